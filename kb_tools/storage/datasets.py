"""Rows of datasets."""

from collections.abc import Sequence

from psycopg import Connection
from psycopg.rows import class_row, dict_row
from psycopg.types.json import Jsonb

from kb_tools.errors import NotFound
from kb_tools.models import Dataset, DatasetStatistics, Json, possible_ids
from kb_tools.storage import queries

LISTED = 10


def insert(
    conn: Connection,
    dataset_id: str,
    account: str,
    name: str,
    *,
    description: str,
    retrieval_config: dict[str, Json],
    embedding_model: str,
) -> bool:
    """Add a dataset; False if the account already has one of that name."""
    added = conn.execute(
        """
        INSERT INTO dataset (id, account_id, name, description, retrieval_config, embedding_model)
        VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (account_id, name) DO NOTHING
        """,
        (dataset_id, account, name, description, Jsonb(retrieval_config), embedding_model),
    )
    return added.rowcount == 1


def read(conn: Connection, account: str, dataset_ids: Sequence[str]) -> list[Dataset]:
    """Return the account's datasets among `dataset_ids`, in that order; others are left out."""
    rows = conn.cursor(row_factory=class_row(Dataset)).execute(
        """
        SELECT id, account_id, name, description, retrieval_config, embedding_model,
               embedding_dimension, index_revision, created_at, updated_at
        FROM dataset WHERE account_id = %s AND id = ANY(%s)
        """,
        (account, possible_ids(dataset_ids)),
    )
    found = {dataset.id: dataset for dataset in rows}
    return [found[dataset_id] for dataset_id in dict.fromkeys(dataset_ids) if dataset_id in found]


def read_by_name(conn: Connection, account: str, name: str) -> Dataset | None:
    """Return the account's dataset called `name`, or None."""
    row = conn.execute(
        "SELECT id FROM dataset WHERE account_id = %s AND name = %s", (account, name)
    ).fetchone()
    return read(conn, account, [row[0]])[0] if row else None


def page(
    conn: Connection, account: str, *, search: str | None, offset: int, limit: int
) -> list[Dataset]:
    """Return datasets whose name holds `search`, newest first."""
    rows = conn.execute(
        """
        SELECT id FROM dataset
        WHERE account_id = %s AND (%s::text IS NULL OR strpos(lower(name), lower(%s)) > 0)
        ORDER BY created_at DESC, id DESC OFFSET %s LIMIT %s
        """,
        (account, search, search, offset, limit),
    ).fetchall()
    return read(conn, account, [dataset_id for (dataset_id,) in rows])


def update(
    conn: Connection,
    account: str,
    dataset_id: str,
    *,
    name: str | None = None,
    description: str | None = None,
    retrieval_config: dict[str, Json] | None = None,
) -> None:
    """Change the fields that are given."""
    conn.execute(
        """
        UPDATE dataset SET name = coalesce(%s, name), description = coalesce(%s, description),
            retrieval_config = coalesce(%s, retrieval_config), updated_at = now()
        WHERE account_id = %s AND id = %s
        """,
        (
            name,
            description,
            None if retrieval_config is None else Jsonb(retrieval_config),
            account,
            dataset_id,
        ),
    )


def delete(conn: Connection, account: str, dataset_id: str) -> int:
    """Remove a dataset with all its rows and return how many datasets went."""
    return conn.execute(
        "DELETE FROM dataset WHERE account_id = %s AND id = %s", (account, dataset_id)
    ).rowcount


def record_dimension(conn: Connection, dataset_id: str, dimension: int) -> None:
    """Record the dimension of a dataset's first vector."""
    conn.execute(
        "UPDATE dataset SET embedding_dimension = %s WHERE id = %s AND embedding_dimension IS NULL",
        (dimension, dataset_id),
    )


def set_model(conn: Connection, dataset_id: str, model: str, dimension: int) -> None:
    """Let a dataset be searched with another model, whose vectors are all there."""
    conn.execute(
        """
        UPDATE dataset SET embedding_model = %s, embedding_dimension = %s,
            index_revision = index_revision + 1, updated_at = clock_timestamp() WHERE id = %s
        """,
        (model, dimension, dataset_id),
    )


def touch(conn: Connection, dataset_id: str) -> None:
    """Note that what can be found in a dataset has changed."""
    conn.execute(
        """
        UPDATE dataset SET index_revision = index_revision + 1, updated_at = clock_timestamp()
        WHERE id = %s
        """,
        (dataset_id,),
    )


def owned(conn: Connection, account: str, dataset_id: str) -> Dataset:
    """Return the dataset, or raise NotFound: the same for a foreign id as for an unknown one."""
    found = read(conn, account, [dataset_id])
    if not found:
        raise NotFound(f"no dataset with id {dataset_id!r}")
    return found[0]


def statistics(conn: Connection, dataset_id: str) -> DatasetStatistics:
    """Return the counts of one dataset, and what was asked and found most and last."""
    counts = (
        conn.cursor(row_factory=dict_row)
        .execute(
            """
            SELECT %(id)s::text AS dataset_id, d.*, s.*, q.*, h.*
            FROM (SELECT count(*) AS document_count,
                         count(*) FILTER (WHERE status = 'completed') AS completed_document_count,
                         coalesce(sum(character_count), 0)::bigint AS character_count,
                         coalesce(sum(token_count), 0)::bigint AS token_count
                  FROM document WHERE dataset_id = %(id)s) d,
                 (SELECT count(*) AS segment_count,
                         count(*) FILTER (WHERE s.enabled AND o.enabled) AS enabled_segment_count
                  FROM segment s JOIN document o ON o.id = s.document_id
                  WHERE s.dataset_id = %(id)s) s,
                 (SELECT count(*) AS query_count FROM dataset_query WHERE dataset_id = %(id)s) q,
                 (SELECT coalesce(sum(hits), 0)::bigint AS hit_count
                  FROM segment_hit WHERE dataset_id = %(id)s) h
            """,
            {"id": dataset_id},
        )
        .fetchone()
    )
    assert counts is not None  # aggregates always give a row
    return DatasetStatistics(
        **counts,
        hits_by_source=queries.hits_by_source(conn, dataset_id),
        most_hit_segments=queries.most_hit(conn, dataset_id, LISTED),
        recent_queries=queries.recent(conn, dataset_id, LISTED, without_hits=False),
        zero_hit_queries=queries.recent(conn, dataset_id, LISTED, without_hits=True),
    )
