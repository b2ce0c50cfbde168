"""The way to PostgreSQL: one pool, and units of work that are one transaction each.

Every unit of work starts with `SET LOCAL search_path`, so no state of ours stays on a connection:
PgBouncer in transaction mode and a caller's own pool work like a server of our own. A connection
that broke is replaced and the unit of work begins again before any of its statements ran; a server
that does not answer is reported within `connect_timeout_seconds`.
"""

import atexit
import contextlib
import hashlib
import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import psycopg
from psycopg import Connection, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import InsufficientPrivilege
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow, tuple_row
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from kb_tools.errors import BackendError, ConnectionLost, InvalidInput, InvalidState
from kb_tools.settings import Settings

if TYPE_CHECKING:
    from kb_tools.embedded_server import EmbeddedServer

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_AROUND_A_URL = " \t\r\n\ufeff\"'"
_LIKE_A_URL = re.compile(r":/+[^/]*@|://|^\s*jdbc:", re.IGNORECASE)
_KEYWORDS = re.compile(r"\b(host|hostaddr|dbname|user|password|service)\s*=")
_PLACE = re.compile(r"[^:/]*(:\d*)?(,[^:/]*(:\d*)?)*(/[^:]*)?|\[[0-9A-Fa-f:.]*\](:\d*)?(/[^:]*)?")
_PORTS = re.compile(r"[0-9,]*")
_FAILED = (psycopg.OperationalError, psycopg.InterfaceError)
_ATTEMPTS = 3
_PLAIN: dict[str, Any] = {
    "autocommit": True,
    "row_factory": tuple_row,
    "cursor_factory": psycopg.Cursor,
}
_Prepare = Callable[[Connection[TupleRow]], None]


class Database:
    """Transactions in our schema, from a folder, a URL or a caller's own pool.

    Usage:
        with Database.open("./kb", Settings()) as database, database.transaction() as conn:
            conn.execute("SELECT count(*) FROM segment")
    """

    __slots__ = ("__weakref__", "_pool", "_process", "_settings", "_vector_schema")

    def __init__(self, pool: "_Pool", settings: Settings) -> None:
        """Wrap a pool; `open` is the way in."""
        self._pool, self._settings = pool, settings
        self._vector_schema: str | None = None
        self._process = os.getpid()
        _open_databases.add(self)

    @classmethod
    def open(cls, where: str | Path | ConnectionPool[Any], settings: Settings) -> Self:
        """Connect to a folder (an embedded server), a `postgresql://` URL or an open pool.

        Raises BackendError within `connect_timeout_seconds` if the server does not answer,
        InvalidInput if `where` is nothing of the kind.
        """
        if isinstance(where, ConnectionPool):
            return cls(_CallersPool(where), settings)
        if isinstance(where, str) and _URL.match(where.strip(_AROUND_A_URL)):
            where = where.strip(_AROUND_A_URL)
            place = _place(where)
            return cls(_OwnPool(_with_network_timeout(where, settings), place, settings), settings)
        return cls(_folder_pool(where, settings), settings)

    @contextlib.contextmanager
    def transaction(
        self, *, statement_timeout_seconds: float | None = None, snapshot: bool = False
    ) -> Iterator[Connection[TupleRow]]:
        """One transaction in our schema; rows are tuples unless a cursor says otherwise.

        Raises BackendError if the server fails, or refuses or cancels a statement; ConnectionLost
        if it went away meanwhile: the next transaction starts an embedded server again.
        `statement_timeout_seconds` is for each statement of this transaction; None keeps the
        server's. With `snapshot` all of them see the same rows: for reading what another
        transaction replaces.
        """

        def prepare(conn: Connection[TupleRow]) -> None:
            if snapshot:
                conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            conn.execute(self._search_path(conn))
            if statement_timeout_seconds is not None:
                conn.execute(_statement_timeout(statement_timeout_seconds))

        with self._begun(prepare) as conn:
            yield conn

    @contextlib.contextmanager
    def direct(self) -> Iterator[Connection[TupleRow]]:
        """One transaction for migrations: past PgBouncer if `direct_url` is set, no search path."""
        if self._settings.direct_url is None:
            with self._begun() as conn:
                yield conn
            return
        url = self._settings.direct_url.get_secret_value()
        with (
            _backend_errors(_place(url)),
            _connect(url, self._settings) as conn,
            conn.transaction(),
        ):
            yield conn

    @contextlib.contextmanager
    def session(self) -> Iterator[Connection[TupleRow]]:
        """A new connection outside of transactions, closed at the end; no search path.

        For what PostgreSQL refuses inside a transaction or what lasts minutes; it takes no place
        in the pool. Raises InvalidState behind PgBouncer, unless `direct_url` leads past it.
        """
        if self._process != os.getpid():
            raise InvalidState("this database was opened before a fork; open it in this process")
        url = self._settings.direct_url and self._settings.direct_url.get_secret_value()
        place = _place(url) if url else self._pool.place
        with _backend_errors(place), contextlib.ExitStack() as stack:
            conn = _connect(url, self._settings) if url else self._pool.connect()
            stack.callback(conn.close)
            _refuse_pooler(conn)
            yield conn

    def close(self) -> None:
        """Close our pool and leave the embedded server; work in progress gets time to end."""
        _open_databases.discard(self)
        if self._process == os.getpid():
            self._pool.close()

    def __enter__(self) -> Self:
        """Return the database itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close it."""
        self.close()

    def __repr__(self) -> str:
        """Show where it is, without user or password."""
        return f"Database({self._pool.place!r}, schema={self._settings.db_schema!r})"

    @contextlib.contextmanager
    def _begun(self, prepare: _Prepare | None = None) -> Iterator[Connection[TupleRow]]:
        """A connection inside a transaction that was prepared, and no more."""
        if self._process != os.getpid():
            raise InvalidState("this database was opened before a fork; open it in this process")
        with _backend_errors(self._pool.place), contextlib.ExitStack() as stack:
            conn = self._begin(stack, prepare)
            try:
                with stack.pop_all():
                    yield conn
            except _FAILED as error:
                if not conn.closed:
                    raise
                raise _connection_lost(error, self._pool.place) from None

    def _begin(self, stack: contextlib.ExitStack, prepare: _Prepare | None) -> Connection[TupleRow]:
        """Return a connection that answered; one that broke while it lay idle is replaced."""
        for attempt in range(1, _ATTEMPTS + 1):
            conn = stack.enter_context(self._pool.connection())
            try:
                stack.enter_context(_plain_rows(conn))
                _finish_stray_transaction(conn)
                stack.enter_context(conn.transaction())
                if prepare is not None:
                    prepare(conn)
                return conn
            except _FAILED as error:
                if attempt == _ATTEMPTS or not conn.closed:
                    raise
                stack.__exit__(type(error), error, None)
            self._pool.recover()
        raise AssertionError("the last attempt returns or raises")

    def _search_path(self, conn: Connection[TupleRow]) -> sql.Composed:
        """Our schema, then the one where extension `vector` lives, wherever a DBA put it."""
        if self._vector_schema is None:
            row = conn.execute(
                """
                SELECT n.nspname FROM pg_catalog.pg_extension e
                JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
                WHERE e.extname = 'vector'
                """
            ).fetchone()
            self._vector_schema = row[0] if row else None
        schemas = dict.fromkeys([self._settings.db_schema, self._vector_schema])
        names = sql.SQL(", ").join(sql.Identifier(name) for name in schemas if name)
        return sql.SQL("SET LOCAL search_path TO {}").format(names)


def lock(conn: Connection[Any], *names: str) -> None:
    """Hold the locks of these names until the transaction ends; the order of names is no matter.

    Locks are the database's: names of different knowledge bases should differ.
    """
    keys = sorted({_lock_key(name) for name in names})
    # One order for all, so two transactions never wait for each other.
    conn.execute("SELECT pg_advisory_xact_lock(key) FROM unnest(%s::bigint[]) AS key", (keys,))


def try_lock(conn: Connection[Any], name: str) -> bool:
    """Take the lock of this name until the transaction ends, or return False if another has it."""
    # A literal: a statement with parameters keeps its snapshot until the next one.
    query = sql.SQL("SELECT pg_try_advisory_xact_lock({})").format(sql.Literal(_lock_key(name)))
    row = conn.execute(query).fetchone()
    return row is not None and bool(row[0])


def masked(url: str) -> str:
    """Return the URL without user, password and parameters, for messages and logs."""
    scheme, separator, rest = url.partition("://")
    head, _, parameters = rest.partition("?")
    place = head.rpartition("@")[2]
    if not separator:
        return "***"
    # A password that was not percent-encoded can stand anywhere; what is unclear is not shown.
    if "@" in parameters or not _PLACE.fullmatch(place):
        return f"{scheme}://***"
    return f"{scheme}://***@{place}" if "@" in head else f"{scheme}://{place}"


# Pools


class _Pool(Protocol):
    """What Database needs of a pool: connections, a second chance, an end."""

    place: str

    def connection(self) -> contextlib.AbstractContextManager[Connection[TupleRow]]: ...

    def connect(self) -> Connection[TupleRow]: ...

    def recover(self) -> None: ...

    def close(self) -> None: ...


class _CallersPool:
    """A pool that was handed to us: used as it is, never closed or configured."""

    def __init__(self, pool: ConnectionPool[Any]) -> None:
        if pool.closed:
            raise InvalidInput("the connection pool is not open; call its open() first")
        self.place = "the database of the given pool"
        self._pool = pool
        self._closed = False

    @contextlib.contextmanager
    def connection(self) -> Iterator[Connection[TupleRow]]:
        if self._closed:
            raise InvalidState("this database is closed; open it again")
        conn = self._pool.getconn()
        try:
            yield conn
        finally:
            self._pool.putconn(conn)

    def connect(self) -> Connection[TupleRow]:
        """Connect as the pool does, beside it."""
        conninfo, options = self._pool.conninfo, self._pool.kwargs or {}
        # Newer pools also take functions that give them.
        where = conninfo() if callable(conninfo) else conninfo
        how = options() if callable(options) else options
        return psycopg.connect(where, **{**how, **_PLAIN})

    def recover(self) -> None:
        """Drop the connections that broke."""
        self._pool.check()

    def close(self) -> None:
        self._closed = True


class _OwnPool:
    """A pool of ours, replaced as a whole when its server went away.

    psycopg's pool reconnects in the background with growing pauses, while callers wait. So that
    they learn soon, and a server that came back is used at once, we test with a connection of our
    own and start with a new pool.
    """

    def __init__(
        self, conninfo: str, place: str, settings: Settings, server: "EmbeddedServer | None" = None
    ) -> None:
        self.place = place
        self._conninfo, self._settings, self._server = conninfo, settings, server
        self._changed = threading.Condition()
        self._recovering = threading.Lock()
        self._in_use = 0
        self._closed = False
        self._failed_at = 0.0
        with _backend_errors(place):
            _connect(conninfo, settings).close()
        self._pool = self._new_pool()

    def _new_pool(self) -> ConnectionPool[Connection[TupleRow]]:
        settings = self._settings
        return ConnectionPool(
            self._conninfo,
            kwargs=_connection_options(settings),
            min_size=1,
            max_size=settings.pool_max_size,
            timeout=settings.pool_timeout_seconds,
            reconnect_timeout=settings.connect_timeout_seconds,
            open=True,
        )

    @contextlib.contextmanager
    def connection(self) -> Iterator[Connection[TupleRow]]:
        pool, conn = self._take()
        try:
            yield conn
        finally:
            pool.putconn(conn)
            self._count(-1)

    def connect(self) -> Connection[TupleRow]:
        return _connect(self._conninfo, self._settings)

    def _take(self) -> tuple[ConnectionPool[Connection[TupleRow]], Connection[TupleRow]]:
        deadline = time.monotonic() + self._settings.pool_timeout_seconds
        while True:
            if self._closed:
                raise InvalidState("this database is closed; open it again")
            pool = self._pool
            if self._lost(pool):
                self.recover()
                continue
            self._count(1)
            try:
                wait = min(deadline - time.monotonic(), self._settings.connect_timeout_seconds)
                return pool, pool.getconn(timeout=max(wait, 0.001))
            except (PoolTimeout, PoolClosed) as error:
                self._count(-1)
                if isinstance(error, PoolTimeout) and time.monotonic() > deadline:
                    raise
            except BaseException:
                self._count(-1)
                raise

    def _lost(self, pool: ConnectionPool[Connection[TupleRow]]) -> bool:
        """Whether the pool failed to connect and nobody holds a connection that may work."""
        return not self._in_use and bool(pool.get_stats().get("connections_errors"))

    def _count(self, change: int) -> None:
        with self._changed:
            self._in_use += change
            self._changed.notify_all()

    def recover(self) -> None:
        """Replace the pool if its server answers; restart an embedded server that died."""
        lost, asked_at = self._pool, time.monotonic()
        with self._recovering:
            if self._pool is not lost or self._closed:
                return
            if self._failed_at > asked_at:
                raise psycopg.OperationalError("tested by another thread meanwhile")
            try:
                if self._server is not None:
                    self._server.ensure_running()
                _connect(self._conninfo, self._settings).close()
            except BaseException:
                self._failed_at = time.monotonic()
                raise
            self._pool = self._new_pool()
        lost.close()

    def close(self) -> None:
        with self._recovering:
            if self._closed:
                return
            self._closed = True
        with self._changed:
            self._changed.wait_for(lambda: not self._in_use, self._settings.connect_timeout_seconds)
        self._pool.close()
        if self._server is not None:
            self._server.close()


def _folder_pool(where: str | Path, settings: Settings) -> _OwnPool:
    if not isinstance(where, str | Path):
        raise InvalidInput(
            f"cannot open {type(where).__name__}: give a folder, a postgresql:// URL or an open "
            "psycopg_pool.ConnectionPool"
        )
    if _LIKE_A_URL.search(str(where)):  # not shown: it may hold a password
        raise InvalidInput("this is neither a folder nor a postgresql:// URL; check how it begins")
    if _KEYWORDS.search(str(where)):
        raise InvalidInput("a keyword connection string is not accepted; use a postgresql:// URL")
    if sys.platform == "win32":
        raise InvalidState("there is no embedded server on Windows; use a postgresql:// URL")
    # Only here: a program that uses a URL needs neither the wheel nor a Unix.
    from kb_tools.embedded_server import EmbeddedServer

    # Last registered runs first: databases close before the module above stops their servers.
    atexit.unregister(_close_all)
    atexit.register(_close_all)
    server = EmbeddedServer.open(where)
    try:
        return _OwnPool(server.conninfo, str(server.folder), settings, server)
    except BaseException:
        server.close()
        raise


# Connections


def _connection_options(settings: Settings) -> dict[str, Any]:
    # Autocommit: a connection is never left inside a transaction that nobody asked for.
    return {
        "autocommit": True,
        "prepare_threshold": settings.prepare_threshold,
        "connect_timeout": settings.connect_timeout_seconds,
    }


def _with_network_timeout(url: str, settings: Settings) -> str:
    """Let a connection whose network died fail, instead of hanging for a quarter of an hour."""
    milliseconds = 1000 * settings.connect_timeout_seconds
    return make_conninfo("", **{"tcp_user_timeout": milliseconds} | conninfo_to_dict(url))


def _connect(conninfo: str, settings: Settings) -> Connection[TupleRow]:
    return psycopg.connect(conninfo, **_connection_options(settings))


def _refuse_pooler(conn: Connection[TupleRow]) -> None:
    """Raise InvalidState behind PgBouncer, which would hand a session's settings to others.

    It makes up the number of the server process that answers.
    """
    row = conn.execute("SELECT pg_backend_pid()").fetchone()
    if row != (conn.info.backend_pid,):
        raise InvalidState(
            "this needs a session of its own, which a pooler such as PgBouncer does not give; "
            "set direct_url (KB_DIRECT_URL) to a URL past it"
        )


def _finish_stray_transaction(conn: Connection[Any]) -> None:
    """End what a `check` of the caller's pool began: else our work would be a savepoint of it."""
    if conn.info.transaction_status != TransactionStatus.IDLE:
        conn.commit()


@contextlib.contextmanager
def _plain_rows(conn: Connection[Any]) -> Iterator[None]:
    """Give tuples and %s parameters, whatever the caller's pool is set to, and set it back."""
    row_factory, cursor_factory = conn.row_factory, conn.cursor_factory
    conn.row_factory, conn.cursor_factory = tuple_row, psycopg.Cursor
    try:
        yield
    finally:
        conn.row_factory, conn.cursor_factory = row_factory, cursor_factory


def _statement_timeout(seconds: float) -> sql.Composed:
    if seconds <= 0:
        raise InvalidInput(f"statement_timeout_seconds must be above 0, not {seconds}")
    milliseconds = sql.Literal(max(1, round(seconds * 1000)))
    return sql.SQL("SET LOCAL statement_timeout TO {}").format(milliseconds)


def _lock_key(name: str) -> int:
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


# Errors


def _place(url: str) -> str:
    """Host, port and database of the URL."""
    if not url.startswith(("postgresql://", "postgres://")):
        raise InvalidInput(f"{masked(url)!r} is no PostgreSQL URL; it starts with postgresql://")
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        parts = {}
    place = _host_port_database(parts)
    # With a "/" in the password, libpq takes "user:pass" for host and port.
    if not parts or not _PORTS.fullmatch(str(parts.get("port") or "")) or "@" in place:
        raise InvalidInput(
            f"PostgreSQL does not understand {masked(url)!r}; percent-encode special characters "
            "of user and password"
        )
    return place


def _host_port_database(parts: Mapping[str, object]) -> str:
    host = parts.get("host") or parts.get("hostaddr") or "localhost"
    return f"{host}:{parts.get('port') or 5432}/{parts.get('dbname') or ''}"


_HINTS: dict[str, str] = {
    "connection refused": "nothing listens there",
    "authentication failed": "user or password was refused",
    "no pg_hba.conf entry": "the server does not let this user in from here",
    "no password supplied": "a password is needed",
    "does not exist": "there is no such database, user or socket",
    "no such file": "there is no such socket",
    "resolve": "the host name is not known",
    "timeout": "no answer in time",
    "too many": "all connections are taken",
    "starting up": "it is still starting",
    "shutting down": "it is shutting down",
}


@contextlib.contextmanager
def _backend_errors(place: str) -> Iterator[None]:
    """Replace the driver's errors by ours; its words can hold what must not be logged."""
    try:
        yield
    except InsufficientPrivilege as error:
        # The server names the object here, and nothing else.
        raise BackendError(
            f"PostgreSQL at {place} refused: {error.diag.message_primary}; let the owner do it, or "
            "grant this role what is missing"
        ) from None
    except _FAILED as error:
        raise _backend_error(error, place) from None


def _connection_lost(error: psycopg.Error, place: str) -> ConnectionLost:
    return ConnectionLost(
        f"PostgreSQL at {place} went away in the middle of a transaction: {_kind(error)}; what was "
        "committed before is kept, so call again"
    )


def _backend_error(error: psycopg.Error, place: str) -> BackendError:
    said = str(error).lower()
    hint = next((ours for theirs, ours in _HINTS.items() if theirs in said), None)
    if isinstance(error, PoolTimeout):
        hint = "no free connection in time: all are in use, or the server does not answer"
    hint = f" ({hint})" if hint else ""
    return BackendError(f"PostgreSQL at {place} failed: {_kind(error)}{hint}")


def _kind(error: psycopg.Error) -> str:
    name = type(error).__name__
    return f"{name} {error.sqlstate}" if error.sqlstate else name


# At exit

_open_databases: "weakref.WeakSet[Database]" = weakref.WeakSet()


def _close_all() -> None:
    """Close what a script forgot, before the embedded server is stopped under it."""
    for database in list(_open_databases):
        database.close()


atexit.register(_close_all)
