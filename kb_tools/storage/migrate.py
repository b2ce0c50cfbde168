"""Bring the schema up to date: numbered .sql files, each once, under one lock."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files

from psycopg import Connection, sql

from kb_tools import db
from kb_tools.errors import InvalidState
from kb_tools.storage import privileges

_MIGRATION_TABLE = """
CREATE TABLE IF NOT EXISTS migration (
    version int PRIMARY KEY, name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""


@dataclass(frozen=True)
class Migration:
    """One .sql file; its number is its version."""

    version: int
    name: str
    statements: str


def migrations() -> list[Migration]:
    """Return all migrations, oldest first."""
    folder = files("kb_tools.storage").joinpath("migrations")
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [
        Migration(int(name[:4]), name, folder.joinpath(name).read_text("utf-8")) for name in names
    ]


def migrate(database: db.Database, schema: str) -> list[str]:
    """Apply what is missing, all of it or nothing, and return the names applied.

    Doing it twice changes nothing; two processes at once wait for one another. A schema that is up
    to date needs no right to change it. Raises InvalidState when the database was written by a
    newer version, when pgvector is missing, or when our role may not do what is needed.
    """
    with database.direct() as conn:
        db.lock(conn, f"kb_tools migrate {schema}")
        privileges.create_extension(conn)
        privileges.require_extension(conn)
        privileges.create_schema(conn, schema)
        privileges.require_schema(conn, schema, create=False)
        _use(conn, schema)
        pending = list(_pending(conn))
        if pending:
            _apply(conn, schema, pending)
    return [migration.name for migration in pending]


def require_current(database: db.Database, schema: str) -> None:
    """Raise InvalidState unless every migration has been applied and our role may use them."""
    with database.transaction() as conn:
        privileges.require_extension(conn)
        privileges.require_schema(conn, schema, create=False)
        pending = [migration.name for migration in _pending(conn)]
    if pending:
        raise InvalidState(f"schema {schema!r} lacks {', '.join(pending)}; run `kb migrate`")


def script(schema: str, role: str | None = None) -> str:
    """Return all SQL as one script for a database administrator; twice changes nothing.

    `role` is granted what it needs to work with the result without owning it.
    """
    name = '"' + schema.replace('"', '""') + '"'
    parts = [
        "BEGIN;",
        "CREATE EXTENSION IF NOT EXISTS vector;",
        f"CREATE SCHEMA IF NOT EXISTS {name};",
        f"SET LOCAL search_path TO {name};",
        f"{_MIGRATION_TABLE.strip()};",
        *map(_unless_done, migrations()),
    ]
    if role is not None:
        parts.append(privileges.grants(schema, role))
    return "\n\n".join([*parts, "COMMIT;"]) + "\n"


def _unless_done(migration: Migration) -> str:
    """Return a migration as a block that does nothing where it was applied before."""
    # Number, name and text are those of a file of this package, not of a user.
    return (
        f"-- {migration.name}\n"
        "DO $kb_block$ BEGIN\n"
        f"IF NOT EXISTS (SELECT FROM migration WHERE version = {migration.version}) THEN\n"
        f"EXECUTE $kb_file$\n\n{migration.statements.strip()}\n\n$kb_file$;\n"
        "INSERT INTO migration (version, name) "
        f"VALUES ({migration.version}, '{migration.name}');\n"
        "END IF; END $kb_block$;"
    )


def _apply(conn: Connection, schema: str, pending: Sequence[Migration]) -> None:
    privileges.require_schema(conn, schema, create=True)
    privileges.require_ownership(conn, schema)
    conn.execute(_MIGRATION_TABLE)
    for migration in pending:
        # The files are part of this package, so their text is as literal as this line.
        conn.execute(migration.statements)
        conn.execute(
            "INSERT INTO migration (version, name) VALUES (%s, %s)",
            (migration.version, migration.name),
        )


def _pending(conn: Connection) -> Iterator[Migration]:
    known = migrations()
    done = _done(conn)
    unknown = done - {migration.version for migration in known}
    if unknown:
        raise InvalidState(
            f"the database has migration {max(unknown)}, newer than this kb_tools knows "
            f"({known[-1].version}); upgrade kb_tools"
        )
    return (migration for migration in known if migration.version not in done)


def _done(conn: Connection) -> set[int]:
    """Return the versions that were applied; none where there is no table yet."""
    if conn.execute("SELECT to_regclass('migration')").fetchone() == (None,):
        return set()
    return {version for (version,) in conn.execute("SELECT version FROM migration").fetchall()}


def _use(conn: Connection, schema: str) -> None:
    found = conn.execute(
        """
        SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
        WHERE e.extname = 'vector'
        """
    ).fetchone()
    path = sql.SQL(", ").join(map(sql.Identifier, [schema, found[0] if found else "public"]))
    conn.execute(sql.SQL("SET LOCAL search_path TO {}").format(path))
