"""The table of an embedding space: how it is found, made and written.

The name begins with an underscore because every other module of this folder is a store.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from psycopg import Connection, sql
from psycopg.abc import Buffer
from psycopg.adapt import Dumper
from psycopg.pq import Format

from kb_tools import db
from kb_tools.errors import BackendError, InvalidState
from kb_tools.vectorstores import Point, Space, Vector

FULL_PRECISION_DIMENSIONS = 2000  # above, half precision, which pgvector can index
INDEXED_DIMENSIONS = 4000  # more than this it cannot
HALF_PRECISION_SINCE = (0, 7)
ITERATIVE_SCAN_SINCE = (0, 8)
# A row must fit into a page of 8 kB to be kept in one piece.
MAX_INLINE_BYTES = 7500
COPIED_POINTS = 16  # fewer are written one by one: a temporary table costs as much as some rows


@dataclass(frozen=True)
class Table:
    """A space's table, the type of its vectors, and what the server can do for it."""

    name: str
    half: bool  # halfvec, else vector
    dimension: int
    version: tuple[int, ...]  # of pgvector
    temporary: bool  # whether we may make temporary tables

    @property
    def indexable(self) -> bool:
        """Whether HNSW can answer for the table."""
        return self.version >= ITERATIVE_SCAN_SINCE and self.dimension <= INDEXED_DIMENSIONS

    @property
    def index(self) -> str:
        """The name of its HNSW index."""
        return f"{self.name}_hnsw"

    def sql(self, statement: sql.SQL) -> sql.Composed:
        """Return the statement with our table, its index, its type and its function that sends.

        `key` is what the HNSW index holds: unit vectors, which half precision neither loses nor
        overflows, take half the space and have the same neighbours.
        """
        half = sql.SQL("halfvec({})").format(sql.Literal(self.dimension))
        return statement.format(
            table=sql.Identifier(self.name),
            index=sql.Identifier(self.index),
            type=sql.Identifier("halfvec" if self.half else "vector"),
            send=sql.Identifier("halfvec_send" if self.half else "vector_send"),
            key=sql.SQL("(l2_normalize(embedding)::{})").format(half),
            half=half,
        )


def find(conn: Connection, space: Space) -> Table | None:
    """Return the table of `space`, or None before its first vector."""
    row = conn.execute(_FIND, (space.model, space.dimension)).fetchone()
    if row is None:
        return None
    name, kind, version, temporary = row
    return Table(name, kind == "halfvec", space.dimension, _numbers(version), temporary)


def find_or_make(conn: Connection, space: Space, schema: str) -> Table:
    """Return the table of `space`, made now unless another makes it, who is waited for."""
    db.lock(conn, f"kb_tools vectors {schema}")
    found = find(conn, space)
    if found is None:
        _require_create(conn, space, schema)
        _make(conn, space)
        found = find(conn, space)
    assert found is not None  # it was made
    return found


def write(conn: Connection, table: Table, points: Sequence[Point]) -> None:
    """Write the points, replacing those of the same segment; of two the last one counts."""
    # In the order of their ids, so that two writers never wait for each other.
    last = {point.segment_id: point for point in points}
    rows = [last[segment_id] for segment_id in sorted(last)]
    if table.temporary and len(rows) >= COPIED_POINTS:
        _copy(conn, table, rows)
    else:
        _write_each(conn, table, rows)


def _require_create(conn: Connection, space: Space, schema: str) -> None:
    row = conn.execute(
        "SELECT has_schema_privilege(%s, 'CREATE'), current_user", (schema,)
    ).fetchone()
    assert row is not None  # a row without a table
    allowed, role = row
    if not allowed:
        grant = sql.SQL("GRANT CREATE ON SCHEMA {} TO {}")
        statement = grant.format(sql.Identifier(schema), sql.Identifier(role)).as_string(conn)
        raise BackendError(
            f"the vectors of {space.model!r} get a table when the first is written, which role "
            f"{role!r} may not make; let the owner of the schema run: {statement}"
        )


def _make(conn: Connection, space: Space) -> None:
    row = conn.execute(_SPACE, (space.model, space.dimension)).fetchone()
    assert row is not None  # it inserts or updates, so it returns
    half = space.dimension > FULL_PRECISION_DIMENSIONS and _version(conn) >= HALF_PRECISION_SINCE
    size = space.dimension * (2 if half else 4)
    table = sql.Identifier(f"vector_{row[0]}")
    made = _TABLE.format(
        table=table,
        type=sql.Identifier("halfvec" if half else "vector"),
        dimension=sql.Literal(space.dimension),
    )
    storage = sql.SQL("plain" if size <= MAX_INLINE_BYTES else "external")
    conn.execute(made)
    conn.execute(_STORED.format(table=table, storage=storage))
    conn.execute(_BY_DATASET.format(table=table))
    conn.execute(_BY_DOCUMENT.format(table=table))


def _version(conn: Connection) -> tuple[int, ...]:
    row = conn.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
    if row is None:
        raise InvalidState("the extension pgvector is missing in this database; run `kb migrate`")
    return _numbers(row[0])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


# Write


def _copy(conn: Connection, table: Table, points: Sequence[Point]) -> None:
    """Bring all in one stream: three times as fast as statements with parameters."""
    cursor = conn.cursor()
    cursor.execute(table.sql(_INCOMING))
    with cursor.copy("COPY pg_temp.kb_incoming FROM STDIN (FORMAT BINARY)") as stream:
        stream.write(_binary(points, half=table.half))
    cursor.execute(table.sql(_MERGE))
    cursor.execute("DROP TABLE pg_temp.kb_incoming")


def _binary(points: Sequence[Point], *, half: bool) -> bytes:
    """Return rows as COPY reads them: signature, flags, then fields with their sizes, and an end.

    A vector is its length, two bytes of nothing, and its numbers.
    """
    number = ">f2" if half else ">f4"
    parts = [b"PGCOPY\n\xff\r\n\0", bytes(8)]
    for point in points:
        vector = struct.pack(">hh", len(point.vector), 0) + point.vector.astype(number).tobytes()
        ids = (point.segment_id, point.dataset_id, point.document_id)
        parts.append(struct.pack(">h", 4))
        for field in (*(text.encode() for text in ids), vector):
            parts += (struct.pack(">i", len(field)), field)
    return b"".join([*parts, struct.pack(">h", -1)])


def _write_each(conn: Connection, table: Table, points: Sequence[Point]) -> None:
    rows = [
        (point.segment_id, point.dataset_id, point.document_id, _Floats(point.vector))
        for point in points
    ]
    cursor = conn.cursor()
    cursor.adapters.register_dumper(_Floats, _FloatsDumper)
    cursor.executemany(table.sql(_UPSERT), rows)


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
    SELECT c.relname, t.typname, x.extversion, has_database_privilege(current_database(), 'TEMP')
    FROM embedding_space e
    JOIN pg_class c ON c.oid = to_regclass(format('vector_%%s', e.id))
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'embedding'
    JOIN pg_type t ON t.oid = a.atttypid
    JOIN pg_extension x ON x.extname = 'vector'
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
        embedding {type}({dimension}) NOT NULL
    )
    """
)

# A statement of its own: CREATE TABLE takes STORAGE only since PostgreSQL 16.
_STORED = sql.SQL("ALTER TABLE {table} ALTER COLUMN embedding SET STORAGE {storage}")

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

_INCOMING = sql.SQL("CREATE TEMPORARY TABLE kb_incoming (LIKE {table}) ON COMMIT DROP")

_MERGE = sql.SQL(
    """
    INSERT INTO {table} (segment_id, dataset_id, document_id, embedding)
    SELECT segment_id, dataset_id, document_id, embedding FROM pg_temp.kb_incoming
    ORDER BY segment_id ON CONFLICT (segment_id) DO UPDATE
    SET dataset_id = excluded.dataset_id, document_id = excluded.document_id,
        embedding = excluded.embedding
    """
)
