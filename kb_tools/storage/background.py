"""The background of score fusion: a fixed sample of what a question is usually far from."""

from collections.abc import Sequence

from psycopg import Connection

SAMPLE = 1000


def sample(conn: Connection, dataset_ids: Sequence[str]) -> list[str]:
    """Return of all completed segments the 1,000 with the smallest hash of their id.

    Flags do not matter, so hiding a segment changes no score of another one.
    """
    rows = conn.execute(
        """
        SELECT picked.id FROM unnest(%(datasets)s::text[]) AS wanted(id), LATERAL (
            SELECT s.id, hashtextextended(s.id, 0) AS hash FROM segment s
            WHERE s.dataset_id = wanted.id AND s.status = 'completed'
            ORDER BY hashtextextended(s.id, 0) LIMIT %(size)s
        ) AS picked ORDER BY picked.hash, picked.id LIMIT %(size)s
        """,
        {"datasets": sorted(set(dataset_ids)), "size": SAMPLE},
    )
    return [segment_id for (segment_id,) in rows]
