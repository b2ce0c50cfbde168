"""Bring the schema up to date: numbered .sql files, each once, under one lock."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

from psycopg import Connection, errors, sql

from kb_tools import db
from kb_tools.errors import InvalidState


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

    Doing it twice changes nothing; two processes at once wait for one another. Raises
    InvalidState when the database was written by a newer version, or when pgvector is missing
    and this role may not create it.
    """
    with database.direct() as conn:
        db.lock(conn, f"kb_tools migrate {schema}")
        _create_extension(conn)
        conn.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
        _use(conn, schema)
        conn.execute(
            """
            CREATE TABLE IF NOT EXISTS migration (
                version int PRIMARY KEY, name text NOT NULL,
                applied_at timestamptz NOT NULL DEFAULT now()
            )
            """
        )
        pending = list(_pending(conn))
        for migration in pending:
            # The files are part of this package, so their text is as literal as this line.
            conn.execute(migration.statements)
            conn.execute(
                "INSERT INTO migration (version, name) VALUES (%s, %s)",
                (migration.version, migration.name),
            )
    return [migration.name for migration in pending]


def require_current(database: db.Database, schema: str) -> None:
    """Raise InvalidState unless every migration has been applied."""
    try:
        with database.transaction() as conn:
            pending = [migration.name for migration in _pending(conn)]
    except errors.UndefinedTable:
        pending = [migration.name for migration in migrations()]
    if pending:
        raise InvalidState(f"schema {schema!r} lacks {', '.join(pending)}; run `kb migrate`")


def script(schema: str) -> str:
    """Return all SQL as one script for a database administrator."""
    name = '"' + schema.replace('"', '""') + '"'
    parts = [
        "BEGIN;",
        "CREATE EXTENSION IF NOT EXISTS vector;",
        f"CREATE SCHEMA IF NOT EXISTS {name};",
        f"SET LOCAL search_path TO {name}, public;",
        "CREATE TABLE migration (version int PRIMARY KEY, name text NOT NULL, "
        "applied_at timestamptz NOT NULL DEFAULT now());",
    ]
    for migration in migrations():
        parts += [
            f"-- {migration.name}",
            migration.statements.strip(),
            # Number and name of a file of this package, not of a user.
            f"INSERT INTO migration (version, name) VALUES "  # noqa: S608
            f"({migration.version}, '{migration.name}');",
        ]
    return "\n\n".join([*parts, "COMMIT;"]) + "\n"


def _pending(conn: Connection) -> Iterator[Migration]:
    done = {version for (version,) in conn.execute("SELECT version FROM migration").fetchall()}
    known = migrations()
    unknown = done - {migration.version for migration in known}
    if unknown:
        raise InvalidState(
            f"the database has migration {max(unknown)}, newer than this kb_tools knows "
            f"({known[-1].version}); upgrade kb_tools"
        )
    return (migration for migration in known if migration.version not in done)


def _create_extension(conn: Connection) -> None:
    if conn.execute("SELECT 1 FROM pg_extension WHERE extname = 'vector'").fetchone():
        return
    try:
        conn.execute("CREATE EXTENSION IF NOT EXISTS vector")
    except (errors.InsufficientPrivilege, errors.FeatureNotSupported, errors.UndefinedFile):
        raise InvalidState(
            "the extension pgvector is missing in this database and could not be created; "
            "install pgvector >= 0.5 and let a superuser run: CREATE EXTENSION vector"
        ) from None


def _use(conn: Connection, schema: str) -> None:
    found = conn.execute(
        """
        SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
        WHERE e.extname = 'vector'
        """
    ).fetchone()
    path = sql.SQL(", ").join(map(sql.Identifier, [schema, found[0] if found else "public"]))
    conn.execute(sql.SQL("SET LOCAL search_path TO {}").format(path))
