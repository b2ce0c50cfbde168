"""What our role must be allowed to do, looked up before it is tried.

On a managed server a superuser makes the extension and a DBA may own the schema. What is missing
is said in the words that the DBA has to run.
"""

from dataclasses import dataclass

from psycopg import Connection, errors, sql

from kb_tools.errors import InvalidState

LEAST_PGVECTOR = (0, 5)


@dataclass(frozen=True)
class _Vector:
    """The extension of this database, as our role sees it."""

    version: str
    schema: str
    usable: bool


def create_extension(conn: Connection) -> None:
    """Have the extension in this database. Raises InvalidState if our role may not create it."""
    if _vector(conn) is not None:
        return
    try:
        conn.execute("CREATE EXTENSION IF NOT EXISTS vector")
    except (errors.InsufficientPrivilege, errors.FeatureNotSupported, errors.UndefinedFile):
        raise InvalidState(_NO_EXTENSION) from None


def require_extension(conn: Connection) -> None:
    """Raise InvalidState unless our role can use an extension that is new enough."""
    vector = _vector(conn)
    if vector is None:
        raise InvalidState(_NO_EXTENSION)
    if tuple(int(part) for part in vector.version.split(".")[:2]) < LEAST_PGVECTOR:
        raise InvalidState(
            f"this database has pgvector {vector.version}; install 0.5 or later on the server and "
            "let a superuser run: ALTER EXTENSION vector UPDATE"
        )
    if not vector.usable:
        raise InvalidState(
            f"role {_role(conn)!r} may not use the extension pgvector; let a superuser run: "
            f"GRANT USAGE ON SCHEMA {_quoted(vector.schema)} TO {_quoted(_role(conn))}"
        )


def create_schema(conn: Connection, schema: str) -> None:
    """Have the schema. Raises InvalidState if our role may not create it."""
    if conn.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone():
        return
    row = conn.execute(
        "SELECT has_database_privilege(current_database(), 'CREATE'), current_database()"
    ).fetchone()
    assert row is not None  # a row without a table
    allowed, database = row
    if not allowed:
        role = _quoted(_role(conn))
        raise InvalidState(
            f"role {_role(conn)!r} may not create schema {schema!r}; let the owner of the database "
            f"run: CREATE SCHEMA {_quoted(schema)} AUTHORIZATION {role} "
            f"(or: GRANT CREATE ON DATABASE {_quoted(database)} TO {role})"
        )
    conn.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))


def require_schema(conn: Connection, schema: str, *, create: bool) -> None:
    """Raise InvalidState unless our role may use the schema, and make tables in it if asked.

    A schema that does not exist is not looked at.
    """
    row = conn.execute(
        """
        SELECT has_schema_privilege(oid, 'USAGE'), has_schema_privilege(oid, 'CREATE')
        FROM pg_namespace WHERE nspname = %s
        """,
        (schema,),
    ).fetchone()
    if row is None or (row[0] and (row[1] or not create)):
        return
    raise InvalidState(
        f"role {_role(conn)!r} may not {'use' if not row[0] else 'make tables in'} schema "
        f"{schema!r}; let its owner run: "
        f"GRANT USAGE, CREATE ON SCHEMA {_quoted(schema)} TO {_quoted(_role(conn))}"
    )


def require_ownership(conn: Connection, schema: str) -> None:
    """Raise InvalidState unless our role may change the tables that are in the schema."""
    row = conn.execute(
        """
        SELECT tableowner FROM pg_tables
        WHERE schemaname = %s AND NOT pg_has_role(tableowner, 'USAGE') LIMIT 1
        """,
        (schema,),
    ).fetchone()
    if row is not None:
        raise InvalidState(
            f"the tables of schema {schema!r} belong to role {row[0]!r}, so role {_role(conn)!r} "
            "may not migrate them; let that role run `kb migrate`, or what `kb migrate --sql` "
            "prints"
        )


def grants(schema: str, role: str) -> str:
    """Return SQL that gives a role what a knowledge base needs of a schema that others own."""
    return "\n".join(
        [
            "-- CREATE: the vectors of each embedding model get a table, when the first is written",
            f"GRANT USAGE, CREATE ON SCHEMA {_quoted(schema)} TO {_quoted(role)};",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "
            f"{_quoted(schema)} TO {_quoted(role)};",
        ]
    )


def _vector(conn: Connection) -> _Vector | None:
    row = conn.execute(
        """
        SELECT e.extversion, n.nspname, has_schema_privilege(n.oid, 'USAGE')
        FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
        WHERE e.extname = 'vector'
        """
    ).fetchone()
    return None if row is None else _Vector(*row)


def _role(conn: Connection) -> str:
    row = conn.execute("SELECT current_user").fetchone()
    assert row is not None  # a row without a table
    return str(row[0])


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


_NO_EXTENSION = (
    "the extension pgvector is missing in this database and could not be created; install "
    "pgvector >= 0.5 and let a superuser run: CREATE EXTENSION vector"
)
