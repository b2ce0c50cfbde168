"""Keywords of segments: matching them, and the table of a dataset; a query, never a stored blob."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg import Connection
from psycopg.rows import class_row


@dataclass(frozen=True)
class Match:
    """A segment and how many of the words are among its keywords."""

    segment_id: str
    matches: int


def match(
    conn: Connection, dataset_ids: Sequence[str], words: Sequence[str], limit: int
) -> list[Match]:
    """Return visible segments that hold any of `words` as a keyword, most matching words first.

    Ties by document and segment position, then by id.
    """
    rows = conn.cursor(row_factory=class_row(Match)).execute(
        """
        SELECT s.id AS segment_id, m.matches
        FROM segment s JOIN document d ON d.id = s.document_id,
            LATERAL (SELECT count(DISTINCT keyword)::int AS matches
                     FROM unnest(s.keywords) AS keyword WHERE keyword = ANY(%(words)s)) m
        WHERE s.keywords && %(words)s::text[] AND s.dataset_id = ANY(%(datasets)s)
          AND s.enabled AND s.status = 'completed' AND d.enabled AND d.status = 'completed'
        ORDER BY m.matches DESC, d.position, s.position, s.id LIMIT %(limit)s
        """,
        {"words": list(words), "datasets": list(dataset_ids), "limit": limit},
    )
    return rows.fetchall()


def rewrite(conn: Connection, keywords: Mapping[str, Sequence[str]]) -> None:
    """Replace the keywords of segments (segment id -> keywords)."""
    conn.execute(
        """
        UPDATE segment s
        SET keywords = coalesce(string_to_array(nullif(new.keywords, ''), chr(31)), '{}')
        FROM unnest(%s::text[], %s::text[]) AS new(id, keywords) WHERE s.id = new.id
        """,
        (list(keywords), ["\x1f".join(words) for words in keywords.values()]),
    )


def table(conn: Connection, dataset_id: str) -> dict[str, list[str]]:
    """Return keyword -> ids of visible segments, by document and segment position."""
    rows = conn.execute(
        """
        SELECT keyword, array_agg(held.id ORDER BY place)
        FROM (
            SELECT DISTINCT keyword, s.id, (d.position, s.position, s.id) AS place
            FROM segment s JOIN document d ON d.id = s.document_id, unnest(s.keywords) AS keyword
            WHERE s.dataset_id = %s AND s.enabled AND s.status = 'completed'
              AND d.enabled AND d.status = 'completed'
        ) AS held
        GROUP BY keyword ORDER BY keyword COLLATE "C"
        """,
        (dataset_id,),
    )
    return dict(rows.fetchall())
