"""Vectors beside their rows in PostgreSQL: one table per embedding space.

Vectors are written in the transaction of their segments and go with them. What is enabled is read
from the rows of segment and document at each search, so no flag is ever copied. A search compares
every vector of its datasets, or walks an HNSW index where that is cheaper; the trace says which.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import pgvector
from pgvector import HalfVector
from psycopg import Connection, sql

from kb_tools import trace
from kb_tools.db import Database
from kb_tools.errors import InvalidInput
from kb_tools.settings import Settings
from kb_tools.vectorstores import (
    Point,
    Space,
    Vector,
    VectorStore,
    _pgvector_index,
    _pgvector_table,
)
from kb_tools.vectorstores._pgvector_index import IndexBuilder, Scan
from kb_tools.vectorstores._pgvector_table import Table

MAX_DIMENSIONS = 16_000
PAGE_IDS = 5000
SPARE_NEAREST = 100
SPARE_WALKED = 40


def create(space: Space, settings: Settings, database: Database) -> VectorStore:
    """Return the store of `space`; its table is made when the first vector is written."""
    if not 1 <= space.dimension <= MAX_DIMENSIONS:
        raise InvalidInput(
            f"pgvector holds vectors of 1 to {MAX_DIMENSIONS} dimensions; "
            f"{space.model!r} has {space.dimension}"
        )
    return PgVectorStore(space, settings, database)


class PgVectorStore:
    """The vectors of one embedding space in one table; see VectorStore for its promises."""

    def __init__(self, space: Space, settings: Settings, database: Database) -> None:
        """Touch nothing yet."""
        self._space, self._schema, self._db = space, settings.db_schema, database
        self._known: Table | None = None
        self._builder = IndexBuilder(database, settings)

    def upsert(self, points: Sequence[Point], *, conn: Connection | None = None) -> None:
        """Write the points, replacing those of the same segment."""
        for point in points:
            self._check(point.vector, point.segment_id)
        if not points:
            return
        with self._transaction(conn) as ours:
            table = self._table(ours, own=conn is None)
            if table is None:
                table = _pgvector_table.find_or_make(ours, self._space, self._schema)
            _pgvector_table.write(ours, table, points)

    def search(self, vector: Vector, dataset_ids: Sequence[str], k: int) -> list[tuple[str, float]]:
        """Return (segment id, cosine) of visible segments, best first, exactly min(k, matches).

        Exact, or with a recall above .99 of the best 10 where the index is used.
        """
        self._check(vector, "the question")
        nearest = 2 * k + SPARE_NEAREST
        asked = {
            "vector": _text(vector),
            "unit": _text(vector / (np.linalg.norm(vector.astype(np.float64)) or 1.0)),
            "datasets": list(dataset_ids),
            "k": k,
            "nearest": nearest,
            "walked": k + SPARE_WALKED,
        }
        with self._db.transaction() as conn:
            table = self._table(conn)
            if table is None:
                return []
            # A vector of zeros is in no index and has no neighbours.
            walk = vector.any()
            scan = _pgvector_index.choose(conn, table, dataset_ids, nearest) if walk else None
            if scan is None:
                trace.note(method="exact")
                return _cosines(_exactly(conn, table, asked, k))
            rows = _by_index(conn, table, asked, scan)
        if _is_complete(rows, k):
            trace.note(method="hnsw")
            return _cosines(rows)
        with self._db.transaction() as conn:
            trace.note(method="hnsw", redone_exactly=True)
            return _cosines(_exactly(conn, table, asked, k))

    def build_index(self) -> bool:
        """Build the HNSW index now and wait for it; return whether the vectors have one.

        Minutes for 100,000s of vectors, while searches and writers go on; not to be called inside
        a transaction, which the build would wait for. False if there are no vectors, if they have
        more than 4,000 dimensions or if pgvector is older than 0.8: then every search is exact.
        """
        with self._db.transaction() as conn:
            table = self._table(conn)
        if table is None or not table.indexable:
            return False
        self._builder.build(table)
        return True

    def index_if_large(self) -> bool:
        """Build the index in the background from `hnsw_from_vectors` vectors on.

        Returns at once, whether a build runs; a server that fails is logged. `close` waits for it,
        five minutes at most, and says so in the log.
        """
        with self._db.transaction() as conn:
            table = self._table(conn)
            return table is not None and self._builder.start_if_large(conn, table)

    def cosines(self, vector: Vector, segment_ids: Sequence[str]) -> dict[str, float]:
        """Return the cosine of each known segment; unknown ids are left out."""
        self._check(vector, "the question")
        with self._db.transaction() as conn:
            table = self._table(conn)
            if table is None or not segment_ids:
                return {}
            asked = {"vector": _text(vector), "ids": list(segment_ids)}
            rows = conn.cursor(binary=True).execute(table.sql(_COSINES), asked).fetchall()
        return {segment_id: _cosine(distance) for segment_id, distance in rows}

    def vectors(self, segment_ids: Sequence[str]) -> dict[str, Vector]:
        """Return the stored vectors of known segments; unknown ids are left out."""
        with self._db.transaction() as conn:
            table = self._table(conn)
            if table is None or not segment_ids:
                return {}
            cursor = conn.cursor(binary=True)
            rows = cursor.execute(table.sql(_VECTORS), (list(segment_ids),)).fetchall()
        return {segment_id: _received(sent, table.half) for segment_id, sent in rows}

    def set_enabled(
        self,
        *,
        segment_ids: Sequence[str] = (),
        document_id: str | None = None,
        segment_enabled: bool | None = None,
        document_enabled: bool | None = None,
        conn: Connection | None = None,
    ) -> None:
        """Do nothing: a search reads the flags from the rows of segment and document.

        Copies of them would cost a new version of every vector that a toggle touches.
        """

    def delete(
        self,
        *,
        segment_ids: Sequence[str] = (),
        document_id: str | None = None,
        dataset_id: str | None = None,
        conn: Connection | None = None,
    ) -> int:
        """Remove the vectors of these segments, this document, this dataset; return how many."""
        with self._transaction(conn) as ours:
            table = self._table(ours, own=conn is None)
            if table is None:
                return 0
            which = (list(segment_ids), document_id, dataset_id)
            return ours.execute(table.sql(_DELETE), which).rowcount

    def ids(self, dataset_id: str) -> Iterator[str]:
        """Yield the segment ids that have a vector, in order; no connection is held in between."""
        last = ""
        while True:
            with self._db.transaction() as conn:
                table = self._table(conn)
                if table is None:
                    return
                asked = (dataset_id, last, PAGE_IDS)
                page = [row[0] for row in conn.execute(table.sql(_IDS), asked)]
            yield from page
            if len(page) < PAGE_IDS:
                return
            last = page[-1]

    def dataset_ids(self) -> list[str]:
        """Return the ids of all datasets that have a vector, in order."""
        with self._db.transaction() as conn:
            table = self._table(conn)
            return [row[0] for row in conn.execute(table.sql(_DATASETS))] if table else []

    def close(self) -> None:
        """Wait for an index that is being built, at most five minutes."""
        self._builder.close()

    def _transaction(self, conn: Connection | None) -> AbstractContextManager[Connection]:
        return self._db.transaction() if conn is None else nullcontext(conn)

    def _check(self, vector: Vector, whose: str) -> None:
        if vector.shape != (self._space.dimension,):
            raise InvalidInput(
                f"the vector of {whose!r} has {vector.size} dimensions; "
                f"{self._space.model!r} has {self._space.dimension} here"
            )
        if not np.isfinite(vector).all():
            raise InvalidInput(f"the vector of {whose!r} is not finite")

    def _table(self, conn: Connection, *, own: bool = True) -> Table | None:
        """Return the space's table, or None before its first vector.

        Remembered only from a transaction of our own: one that we were given may have made the
        table, and fail.
        """
        found = self._known or _pgvector_table.find(conn, self._space)
        if own:
            self._known = found
        return found


def _exactly(
    conn: Connection, table: Table, asked: Mapping[str, object], k: int
) -> list[tuple[str, float]]:
    """Compare every vector of the datasets; return (segment id, distance), nearest first."""
    cursor = conn.cursor(binary=True)
    rows = cursor.execute(table.sql(_SEARCH_NEAREST), asked).fetchall()
    if len(rows) < k:  # too many of the nearest are hidden, or there are no more
        rows = cursor.execute(table.sql(_SEARCH_ALL), asked).fetchall()
    return rows


def _by_index(
    conn: Connection, table: Table, asked: Mapping[str, object], scan: Scan
) -> list[tuple[str, float]]:
    """Walk the index; return (segment id, distance), nearest first, too few if it gave up."""
    _pgvector_index.prepare(conn, scan)
    return conn.cursor(binary=True).execute(table.sql(_SEARCH_INDEX), asked).fetchall()


def _is_complete(rows: Sequence[tuple[str, float]], k: int) -> bool:
    """Return whether these are k, and nearer than vectors of zeros, which are in no index."""
    return len(rows) == k and all(distance < 1 for _, distance in rows)


def _cosines(rows: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    return [(segment_id, _cosine(distance)) for segment_id, distance in rows]


def _cosine(distance: float | None) -> float:
    """Return the cosine of a distance; a zero vector has none, which counts as 0."""
    return 0.0 if distance is None else min(1.0, max(-1.0, 1.0 - distance))


def _text(vector: Vector) -> str:
    return pgvector.Vector(vector).to_text()


def _received(sent: bytes, half: bool) -> Vector:
    """Read what vector_send and halfvec_send write."""
    read = HalfVector.from_binary(sent) if half else pgvector.Vector.from_binary(sent)
    return read.to_numpy().astype(np.float32)


# A zero vector has no cosine: pgvector's distance is NaN, which counts as distance 1.
# Sorting few and asking for the rows of the best only costs a tenth more than no rows at all;
# joining all of them costs 2.7 times as much.
_SEARCH_NEAREST = sql.SQL(
    """
    SELECT v.segment_id, v.distance
    FROM (
        SELECT segment_id, coalesce(nullif(embedding <=> %(vector)s::{type}, 'NaN'), 1) AS distance
        FROM {table} WHERE dataset_id = ANY(%(datasets)s)
        ORDER BY distance, segment_id LIMIT %(nearest)s
    ) v
    JOIN segment s ON s.id = v.segment_id JOIN document d ON d.id = s.document_id
    WHERE s.enabled AND s.status = 'completed' AND d.enabled AND d.status = 'completed'
    ORDER BY v.distance, v.segment_id LIMIT %(k)s
    """
)

_SEARCH_ALL = sql.SQL(
    """
    SELECT v.segment_id, coalesce(nullif(v.embedding <=> %(vector)s::{type}, 'NaN'), 1) AS distance
    FROM {table} v JOIN segment s ON s.id = v.segment_id JOIN document d ON d.id = s.document_id
    WHERE v.dataset_id = ANY(%(datasets)s)
      AND s.enabled AND s.status = 'completed' AND d.enabled AND d.status = 'completed'
    ORDER BY distance, v.segment_id LIMIT %(k)s
    """
)

# The index gives the nearest only roughly in order, so more than k are asked for, and sorted. More
# than these would cost the reading of their rows, and the best ten would be the same.
_SEARCH_INDEX = sql.SQL(
    """
    WITH near AS MATERIALIZED (
        SELECT v.segment_id, v.embedding <=> %(vector)s::{type} AS distance
        FROM {table} v JOIN segment s ON s.id = v.segment_id JOIN document d ON d.id = s.document_id
        WHERE v.dataset_id = ANY(%(datasets)s)
          AND s.enabled AND s.status = 'completed' AND d.enabled AND d.status = 'completed'
        ORDER BY {key} <=> %(unit)s::{half} LIMIT %(walked)s
    )
    SELECT segment_id, coalesce(nullif(distance, 'NaN'), 1) AS distance FROM near
    ORDER BY distance, segment_id LIMIT %(k)s
    """
)

_COSINES = sql.SQL(
    """
    SELECT segment_id, nullif(embedding <=> %(vector)s::{type}, 'NaN') FROM {table}
    WHERE segment_id = ANY(%(ids)s)
    """
)

_VECTORS = sql.SQL("SELECT segment_id, {send}(embedding) FROM {table} WHERE segment_id = ANY(%s)")

_DELETE = sql.SQL(
    "DELETE FROM {table} WHERE segment_id = ANY(%s) OR document_id = %s OR dataset_id = %s"
)

_IDS = sql.SQL(
    "SELECT segment_id FROM {table} WHERE dataset_id = %s AND segment_id > %s "
    "ORDER BY segment_id LIMIT %s"
)

# From one dataset to the next through the index: there are few of them and many vectors.
_DATASETS = sql.SQL(
    """
    WITH RECURSIVE held(id) AS (
        (SELECT dataset_id FROM {table} ORDER BY dataset_id LIMIT 1)
        UNION ALL
        SELECT (SELECT v.dataset_id FROM {table} v WHERE v.dataset_id > held.id
                ORDER BY v.dataset_id LIMIT 1)
        FROM held WHERE held.id IS NOT NULL
    )
    SELECT id FROM held WHERE id IS NOT NULL
    """
)
