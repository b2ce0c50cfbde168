"""Vectors beside their rows in PostgreSQL: one table per embedding space, exact search.

Vectors are written in the transaction of their segments and go with them. What is enabled is read
from the rows of segment and document at each search, so no flag is ever copied.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import pgvector
from pgvector import HalfVector
from psycopg import Connection, sql
from psycopg.abc import Buffer
from psycopg.adapt import Dumper
from psycopg.pq import Format

from kb_tools import db
from kb_tools.db import Database
from kb_tools.errors import InvalidInput, InvalidState
from kb_tools.settings import Settings
from kb_tools.vectorstores import Point, Space, Vector, VectorStore

FULL_PRECISION_DIMENSIONS = 2000  # above, half precision: what pgvector can index later
MAX_DIMENSIONS = 16_000
PAGE_IDS = 5000
SPARE_NEAREST = 100
# A row must fit into a page of 8 kB to be kept in one piece.
MAX_INLINE_BYTES = 7500


def create(space: Space, settings: Settings, database: Database) -> VectorStore:
    """Return the store of `space`; its table is made when the first vector is written."""
    if not 1 <= space.dimension <= MAX_DIMENSIONS:
        raise InvalidInput(
            f"pgvector holds vectors of 1 to {MAX_DIMENSIONS} dimensions; "
            f"{space.model!r} has {space.dimension}"
        )
    return PgVectorStore(space, settings, database)


@dataclass(frozen=True)
class _Table:
    """A space's table and the type of its vectors: vector or halfvec."""

    name: sql.Identifier
    type: sql.Identifier

    @property
    def half(self) -> bool:
        return self.type == sql.Identifier("halfvec")

    def sql(self, statement: sql.SQL) -> sql.Composed:
        """Return the statement with our table, type and their function that sends bytes."""
        send = sql.Identifier("halfvec_send" if self.half else "vector_send")
        return statement.format(table=self.name, type=self.type, send=send)


class PgVectorStore:
    """The vectors of one embedding space in one table; see VectorStore for its promises."""

    def __init__(self, space: Space, settings: Settings, database: Database) -> None:
        """Touch nothing yet."""
        self._space, self._schema, self._db = space, settings.db_schema, database
        self._known: _Table | None = None

    def upsert(self, points: Sequence[Point], *, conn: Connection | None = None) -> None:
        """Write the points, replacing those of the same segment."""
        for point in points:
            self._check(point.vector, point.segment_id)
        if not points:
            return
        # In the order of their ids, so that two writers never wait for each other.
        rows = [
            (point.segment_id, point.dataset_id, point.document_id, _Floats(point.vector))
            for point in sorted(points, key=lambda point: point.segment_id)
        ]
        with self._transaction(conn) as ours, ours.cursor() as cursor:
            table = self._table(ours, own=conn is None) or self._make_table(ours)
            cursor.adapters.register_dumper(_Floats, _FloatsDumper)
            cursor.executemany(table.sql(_UPSERT), rows)

    def search(self, vector: Vector, dataset_ids: Sequence[str], k: int) -> list[tuple[str, float]]:
        """Return (segment id, cosine) of visible segments, best first, exactly min(k, matches)."""
        self._check(vector, "the question")
        with self._db.transaction() as conn:
            table = self._table(conn)
            if table is None:
                return []
            # The place where an index for large datasets will come; this is exact.
            asked = {"vector": _text(vector), "datasets": list(dataset_ids), "k": k}
            asked["nearest"] = 2 * k + SPARE_NEAREST
            cursor = conn.cursor(binary=True)
            rows = cursor.execute(table.sql(_SEARCH_NEAREST), asked).fetchall()
            if len(rows) < k:  # too many of the nearest are hidden, or there are no more
                rows = cursor.execute(table.sql(_SEARCH_ALL), asked).fetchall()
        return [(segment_id, _cosine(distance)) for segment_id, distance in rows]

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

    def close(self) -> None:
        """Hold nothing open, so release nothing."""

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

    def _table(self, conn: Connection, *, own: bool = True) -> _Table | None:
        """Return the space's table, or None before its first vector.

        Remembered only from a transaction of our own: one that we were given may have made the
        table, and fail.
        """
        found = self._known or self._find(conn)
        if own:
            self._known = found
        return found

    def _find(self, conn: Connection) -> _Table | None:
        row = conn.execute(_FIND, (self._space.model, self._space.dimension)).fetchone()
        return _Table(sql.Identifier(row[0]), sql.Identifier(row[1])) if row else None

    def _make_table(self, conn: Connection) -> _Table:
        """Make the table, or wait for the one who makes it now."""
        db.lock(conn, f"kb_tools vectors {self._schema}")
        return self._find(conn) or self._make(conn)

    def _make(self, conn: Connection) -> _Table:
        row = conn.execute(_SPACE, (self._space.model, self._space.dimension)).fetchone()
        assert row is not None  # it inserts or updates, so it returns
        half = self._space.dimension > FULL_PRECISION_DIMENSIONS and _has_halfvec(conn)
        kind = sql.Identifier("halfvec" if half else "vector")
        table = _Table(sql.Identifier(f"vector_{row[0]}"), kind)
        size = self._space.dimension * (2 if half else 4)
        inline = sql.SQL("plain" if size <= MAX_INLINE_BYTES else "external")
        dimension = sql.Literal(self._space.dimension)
        conn.execute(
            _TABLE.format(table=table.name, type=kind, dimension=dimension, storage=inline)
        )
        conn.execute(_BY_DATASET.format(table=table.name))
        conn.execute(_BY_DOCUMENT.format(table=table.name))
        return table


def _has_halfvec(conn: Connection) -> bool:
    row = conn.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
    if row is None:
        raise InvalidState("the extension pgvector is missing in this database; run `kb migrate`")
    return [int(part) for part in row[0].split(".")[:2]] >= [0, 7]


def _cosine(distance: float | None) -> float:
    """Return the cosine of a distance; a zero vector has none, which counts as 0."""
    return 0.0 if distance is None else min(1.0, max(-1.0, 1.0 - distance))


def _text(vector: Vector) -> str:
    return pgvector.Vector(vector).to_text()


def _received(sent: bytes, half: bool) -> Vector:
    """Read what vector_send and halfvec_send write."""
    read = HalfVector.from_binary(sent) if half else pgvector.Vector.from_binary(sent)
    return read.to_numpy().astype(np.float32)


class _Floats:
    """A vector on its way to PostgreSQL."""

    def __init__(self, vector: Vector) -> None:
        self.vector = vector


class _FloatsDumper(Dumper):
    """Sends a vector as binary real[], whose type number is the same in every database."""

    format = Format.BINARY
    oid = 1021

    def dump(self, obj: _Floats) -> Buffer:
        items = np.empty(len(obj.vector), dtype=[("size", ">i4"), ("number", ">f4")])
        items["size"], items["number"] = 4, obj.vector
        # One axis, no null, element type real; its length, its lower bound.
        header = np.array([1, 0, 700, len(obj.vector), 1], dtype=">i4")
        return header.tobytes() + items.tobytes()


_FIND = """
    SELECT c.relname, t.typname FROM embedding_space e
    JOIN pg_class c ON c.oid = to_regclass(format('vector_%%s', e.id))
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'embedding'
    JOIN pg_type t ON t.oid = a.atttypid
    WHERE e.model = %s AND e.dimension = %s
"""

_SPACE = """
    INSERT INTO embedding_space (model, dimension) VALUES (%s, %s)
    ON CONFLICT (model, dimension) DO UPDATE SET model = excluded.model RETURNING id
"""

_TABLE = sql.SQL(
    """
    CREATE TABLE {table} (
        segment_id text COLLATE "C" PRIMARY KEY,
        dataset_id text COLLATE "C" NOT NULL,
        document_id text COLLATE "C" NOT NULL,
        embedding {type}({dimension}) STORAGE {storage} NOT NULL
    )
    """
)

_BY_DATASET = sql.SQL("CREATE INDEX ON {table} (dataset_id, segment_id)")

_BY_DOCUMENT = sql.SQL("CREATE INDEX ON {table} (document_id)")

_UPSERT = sql.SQL(
    """
    INSERT INTO {table} (segment_id, dataset_id, document_id, embedding)
    VALUES (%s, %s, %s, %s::real[]::{type}) ON CONFLICT (segment_id) DO UPDATE
    SET dataset_id = excluded.dataset_id, document_id = excluded.document_id,
        embedding = excluded.embedding
    """
)

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
