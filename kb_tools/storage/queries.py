"""The query log and the hit counts: rows that are only ever added, and rolled up now and then."""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import Connection
from psycopg.rows import class_row

from kb_tools.models import AskedQuery, SegmentHits


@dataclass(frozen=True)
class LoggedQuery:
    """One search as it is remembered, for each dataset it was asked of."""

    trace_id: str
    query: str
    rewritten_query: str | None
    source: str
    source_app_id: str | None
    created_by: str | None
    config_fingerprint: str
    reason: str | None
    milliseconds: float


@dataclass(frozen=True)
class ReturnedHit:
    """A segment that a search returned."""

    dataset_id: str
    document_id: str
    segment_id: str
    score: float


def log(
    conn: Connection, query: LoggedQuery, dataset_ids: Sequence[str], hits: Sequence[ReturnedHit]
) -> None:
    """Add one row per searched dataset and one per returned segment."""
    with conn.cursor() as cursor:
        cursor.executemany(
            """
            INSERT INTO dataset_query (trace_id, dataset_id, query, rewritten_query, source,
                source_app_id, created_by, config_fingerprint, segment_ids, scores, reason,
                milliseconds)
            SELECT %s, id, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s FROM dataset WHERE id = %s
            """,
            [
                (
                    query.trace_id, query.query, query.rewritten_query, query.source,
                    query.source_app_id, query.created_by, query.config_fingerprint,
                    [hit.segment_id for hit in hits if hit.dataset_id == dataset_id],
                    [hit.score for hit in hits if hit.dataset_id == dataset_id],
                    query.reason, query.milliseconds, dataset_id,
                )
                for dataset_id in dataset_ids
            ],
        )  # fmt: skip
        cursor.executemany(
            """
            INSERT INTO segment_hit (segment_id, document_id, dataset_id, hits)
            SELECT %s, %s, id, 1 FROM dataset WHERE id = %s
            """,
            [(hit.segment_id, hit.document_id, hit.dataset_id) for hit in hits],
        )


def hits_by_source(conn: Connection, dataset_id: str) -> dict[str, int]:
    """Return how many hits the logged searches of each source had, most first."""
    rows = conn.execute(
        """
        SELECT source, sum(cardinality(segment_ids))::bigint AS hits FROM dataset_query
        WHERE dataset_id = %s GROUP BY source ORDER BY hits DESC, source
        """,
        (dataset_id,),
    )
    return dict(rows.fetchall())


def most_hit(conn: Connection, dataset_id: str, limit: int) -> list[SegmentHits]:
    """Return the segments that were returned most often, of those that are there."""
    rows = conn.cursor(row_factory=class_row(SegmentHits)).execute(
        """
        SELECT s.id AS segment_id, d.id AS document_id, d.name AS document_name, s.position,
               s.content, h.hits
        FROM (SELECT segment_id, sum(hits)::bigint AS hits FROM segment_hit
              WHERE dataset_id = %s GROUP BY segment_id) h
        JOIN segment s ON s.id = h.segment_id JOIN document d ON d.id = s.document_id
        ORDER BY h.hits DESC, s.id LIMIT %s
        """,
        (dataset_id, limit),
    )
    return rows.fetchall()


def recent(
    conn: Connection, dataset_id: str, limit: int, *, without_hits: bool
) -> list[AskedQuery]:
    """Return the last searches, newest first; `without_hits`: only those that found nothing."""
    rows = conn.cursor(row_factory=class_row(AskedQuery)).execute(
        """
        SELECT query, source, cardinality(segment_ids) AS hit_count, reason, milliseconds,
               created_at
        FROM dataset_query WHERE dataset_id = %s AND (NOT %s OR cardinality(segment_ids) = 0)
        ORDER BY created_at DESC, id DESC LIMIT %s
        """,
        (dataset_id, without_hits, limit),
    )
    return rows.fetchall()


def roll_up(conn: Connection, retention_days: int) -> None:
    """Make many hit rows of a segment one, and forget queries older than `retention_days`.

    Only segments with several rows are touched, and those of segments that are gone.
    """
    lock_hits(conn)
    conn.execute(
        """
        WITH many AS (
            SELECT h.segment_id FROM segment_hit h LEFT JOIN segment s ON s.id = h.segment_id
            GROUP BY h.segment_id HAVING count(*) > 1 OR count(s.id) = 0
        ), gone AS (
            DELETE FROM segment_hit h USING many m WHERE h.segment_id = m.segment_id
            RETURNING h.segment_id, h.document_id, h.dataset_id, h.hits
        )
        INSERT INTO segment_hit (segment_id, document_id, dataset_id, hits)
        SELECT g.segment_id, g.document_id, g.dataset_id, sum(g.hits)
        FROM gone g JOIN segment s ON s.id = g.segment_id
        GROUP BY g.segment_id, g.document_id, g.dataset_id
        """
    )
    conn.execute(
        "DELETE FROM dataset_query WHERE created_at < now() - make_interval(days => %s)",
        (retention_days,),
    )


def lock_hits(conn: Connection) -> None:
    """Wait for whoever else rolls up or removes hits; searches only add and do not wait."""
    conn.execute("LOCK TABLE segment_hit IN SHARE UPDATE EXCLUSIVE MODE")


def forget_hits(conn: Connection, dataset_id: str) -> None:
    """Remove the hits of a dataset."""
    lock_hits(conn)
    conn.execute("DELETE FROM segment_hit WHERE dataset_id = %s", (dataset_id,))


def secret(conn: Connection, name: str) -> str:
    """Return this knowledge base's secret called `name`."""
    row = conn.execute("SELECT value FROM secret WHERE name = %s", (name,)).fetchone()
    assert row is not None  # the migration wrote it
    return str(row[0])
