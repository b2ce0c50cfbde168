"""Database: one transaction per unit of work, on any pool, and no secret in any word."""

import fcntl
import io
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool
from pydantic import SecretStr

from kb_tools.db import Database, lock, masked
from kb_tools.embedded_server import EmbeddedServer
from kb_tools.errors import BackendError, InvalidInput, InvalidState, KnowledgeBaseError
from kb_tools.settings import Settings

SECRET = "geheim-秘密"
URL_SECRET = "geheim-%E7%A7%98%E5%AF%86"


def url_of(server_folder: Path, *, password: str = "") -> str:
    """A URL for the session's server, through its socket."""
    socket_folder = str(server_folder / "postgres" / "data").replace("/", "%2F")
    return f"postgresql://kb{password and ':'}{password}@{socket_folder}/kb"


def fast(**settings: object) -> Settings:
    """Settings that do not let a test wait for long."""
    return Settings.model_validate({"connect_timeout_seconds": 2, **settings})


def search_path(database: Database) -> str:
    with database.transaction() as conn:
        row = conn.execute("SHOW search_path").fetchone()
    assert row
    return str(row[0])


def count(database: Database, name: str) -> int:
    with database.transaction() as conn:
        row = conn.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(name)))
        found = row.fetchone()
    assert found
    return int(found[0])


def wait_until_dead(folder: Path) -> None:
    """Wait for the last process of a server whose postmaster was killed."""
    with (folder / "postgres" / "alive.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


@pytest.fixture
def closed_port() -> int:
    """A port where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def callers_pool(server_folder: Path) -> Iterator[ConnectionPool]:
    """A pool as a caller may have it: other rows, other cursors, a transaction left open."""

    def leave_a_transaction(conn: psycopg.Connection) -> None:
        conn.execute("SELECT 1")

    with ConnectionPool(
        url_of(server_folder), min_size=1, max_size=2, open=True, check=leave_a_transaction,
        kwargs={"row_factory": dict_row, "cursor_factory": psycopg.RawCursor},
    ) as pool:  # fmt: skip
        yield pool


# Transactions


def test_a_transaction_finds_our_tables_and_the_vector_type(database: Database) -> None:
    with database.transaction() as conn:
        conn.execute("CREATE TABLE item (v vector(2))")
        conn.execute("INSERT INTO item VALUES ('[1,2]')")
    assert count(database, "item") == 1


def test_an_error_rolls_the_whole_transaction_back(database: Database) -> None:
    with database.transaction() as conn:
        conn.execute("CREATE TABLE item (n int UNIQUE)")

    def insert_twice() -> None:
        with database.transaction() as conn:
            conn.execute("INSERT INTO item VALUES (1)")
            conn.execute("INSERT INTO item VALUES (1)")

    with pytest.raises(psycopg.errors.UniqueViolation):
        insert_twice()
    assert count(database, "item") == 0


def test_no_state_stays_on_a_connection(server_folder: Path) -> None:
    with Database.open(server_folder, Settings(db_schema="mine", pool_max_size=1)) as database:
        assert search_path(database) == "mine, public"
        with database.transaction(statement_timeout_seconds=5) as conn:
            assert conn.execute("SHOW statement_timeout").fetchone() == ("5s",)
        with database.direct() as conn:
            assert conn.execute("SHOW search_path").fetchone() == ('"$user", public',)
            assert conn.execute("SHOW statement_timeout").fetchone() == ("0",)
            assert conn.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)


def test_an_extension_in_a_schema_of_its_own_is_found(folder: Path) -> None:
    with EmbeddedServer.open(folder) as server, Database.open(folder, Settings()) as database:
        with psycopg.connect(server.bootstrap_conninfo, autocommit=True) as conn:
            conn.execute("DROP EXTENSION vector")
            assert search_path(database) == "kb"
            conn.execute('CREATE SCHEMA "Ext ""x"; GRANT USAGE ON SCHEMA "Ext ""x" TO kb')
            conn.execute('CREATE EXTENSION vector SCHEMA "Ext ""x"')
        assert search_path(database) == 'kb, "Ext ""x"'
        with database.transaction() as conn:
            assert conn.execute("SELECT '[1]'::vector::text").fetchone() == ("[1]",)


def test_a_statement_that_takes_too_long_is_cancelled(database: Database) -> None:
    with (
        pytest.raises(BackendError, match="QueryCanceled 57014"),
        database.transaction(statement_timeout_seconds=0.01) as conn,
    ):
        conn.execute("SELECT pg_sleep(60)")
    with (
        pytest.raises(InvalidInput, match="above 0, not 0"),
        database.transaction(statement_timeout_seconds=0),
    ):
        pass


def test_a_statement_is_prepared_only_when_the_settings_say_so(server_folder: Path) -> None:
    for threshold, prepared in ((None, 0), (0, 1)):
        settings = Settings(prepare_threshold=threshold, pool_max_size=1)
        with Database.open(server_folder, settings) as database, database.direct() as conn:
            conn.execute("SELECT %s::int", (1,))
            found = conn.execute("SELECT count(*) FROM pg_prepared_statements", prepare=False)
            assert bool(found.fetchone()[0]) == bool(prepared)  # type: ignore[index]


def test_locks_of_the_same_names_in_any_order_never_deadlock(database: Database) -> None:
    names = ["甲", "b", "c"]
    errors: list[BaseException] = []

    def work(turn: int) -> None:
        try:
            for _ in range(20):
                with database.transaction() as conn:
                    lock(conn, *(names if turn % 2 else reversed(names)))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(turn,)) for turn in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_a_lock_is_held_until_its_transaction_ends(database: Database) -> None:
    def wait_for(name: str) -> None:
        with database.transaction(statement_timeout_seconds=0.2) as conn:
            lock(conn, name)

    with database.transaction() as conn:
        lock(conn, "dataset 1", "dataset 1")
        wait_for("dataset 2")
        with pytest.raises(BackendError, match="QueryCanceled"):
            wait_for("dataset 1")
    wait_for("dataset 1")


# Where the database is


def test_two_databases_on_one_folder_are_closed_independently(folder: Path) -> None:
    first, second = Database.open(folder, Settings()), Database.open(str(folder), Settings())
    first.close()
    first.close()
    assert search_path(second) == "kb, public"
    with pytest.raises(InvalidState, match="closed"):
        search_path(first)
    second.close()
    assert not (folder / "postgres" / "data" / "postmaster.pid").exists()


def test_a_url_and_a_direct_url_reach_the_server(server_folder: Path) -> None:
    url = url_of(server_folder)
    with Database.open(url, Settings(direct_url=SecretStr(url))) as database:
        assert search_path(database) == "kb, public"
        with database.direct() as conn:
            assert conn.execute("SHOW search_path").fetchone() == ('"$user", public',)


def test_a_callers_pool_is_left_as_it_was_found(callers_pool: ConnectionPool) -> None:
    with Database.open(callers_pool, Settings(db_schema="foreign")) as database:
        with database.transaction() as conn:
            assert conn.execute("SELECT %s::int", (1,)).fetchone() == (1,)
            conn.execute("CREATE SCHEMA foreign_work")
        with database.transaction() as conn:
            conn.execute("DROP SCHEMA foreign_work")
    assert not callers_pool.closed
    with callers_pool.connection() as conn:
        assert conn.row_factory is dict_row  # type: ignore[comparison-overlap]
        assert conn.cursor_factory is psycopg.RawCursor
        assert not conn.autocommit
        found = conn.execute("SHOW search_path").fetchone()
        assert found == {"search_path": '"$user", public'}  # type: ignore[comparison-overlap]


def test_a_closed_database_does_not_use_the_callers_pool(callers_pool: ConnectionPool) -> None:
    database = Database.open(callers_pool, Settings())
    database.close()
    with pytest.raises(InvalidState, match="closed"):
        search_path(database)


def test_a_pool_that_is_not_open_is_refused() -> None:
    pool = ConnectionPool("", open=False)
    with pytest.raises(InvalidInput, match="not open"):
        Database.open(pool, Settings())


@pytest.mark.parametrize(
    "where",
    [
        f"mysql://me:{SECRET}@host/db",
        f"postgresql://me:{SECRET}@host:port/db",
        f"postgresql://me:{SECRET}/x@host/db",
        f"host=localhost password={SECRET}",
        7,
    ],
)
def test_what_is_no_place_for_a_database_is_refused_without_its_secret(where: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        Database.open(where, Settings())  # type: ignore[arg-type]
    text = "".join(traceback.format_exception(caught.value))
    assert SECRET not in text.replace(str(Path(__file__)), "")


@pytest.fixture
def pgbouncer_url(
    folder: Path, pgbouncer: Callable[[EmbeddedServer, str, str], str]
) -> Iterator[str]:
    """PgBouncer in transaction mode before a server of this test's own."""
    with EmbeddedServer.open(folder) as server:
        allow_login(server, "local kb kb trust")
        yield pgbouncer(server, "kb", "kb")


def test_many_threads_work_through_pgbouncer_in_transaction_mode(pgbouncer_url: str) -> None:
    found: list[object] = []

    def work(database: Database) -> None:
        for turn in range(10):
            with database.transaction(statement_timeout_seconds=20) as conn:
                lock(conn, f"name {turn % 3}")
                found.append(conn.execute("SELECT '[1]'::vector::text, %s", (turn,)).fetchone())
        found.append(search_path(database))

    with Database.open(pgbouncer_url, fast()) as database:
        threads = [threading.Thread(target=work, args=(database,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with database.direct() as conn:
            assert conn.execute("SHOW search_path").fetchone() == ('"$user", public',)
    assert len(found) == 66
    assert found.count("kb, public") == 6


# Failures


def test_a_killed_postmaster_is_restarted_by_the_next_transaction(folder: Path) -> None:
    with Database.open(folder, fast(db_schema="public")) as database:
        with database.transaction() as conn:
            conn.execute("CREATE TABLE item AS SELECT 1 AS n")
        pid = int((folder / "postgres/data/postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        wait_until_dead(folder)
        assert count(database, "item") == 1


def test_a_connection_that_the_server_ended_is_replaced(
    database: Database, callers_pool: ConnectionPool
) -> None:
    for victim in (database, Database.open(callers_pool, Settings())):
        with victim.transaction() as conn:
            pid = conn.info.backend_pid
        with database.transaction() as conn:
            if pid != conn.info.backend_pid:
                conn.execute("SELECT pg_terminate_backend(%s)", (pid,))
        assert search_path(victim).endswith("public")


def test_a_connection_that_ends_in_mid_transaction_is_a_backend_error(database: Database) -> None:
    with pytest.raises(BackendError, match="AdminShutdown"), database.transaction() as conn:
        conn.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    assert search_path(database).endswith("public")


def test_all_connections_in_use_is_a_backend_error(server_folder: Path) -> None:
    settings = fast(pool_max_size=1, pool_timeout_seconds=0.1)
    with (
        Database.open(server_folder, settings) as database,
        database.transaction(),
        pytest.raises(BackendError, match=r"PoolTimeout \(no free connection in time"),
    ):
        search_path(database)


def test_many_threads_share_few_connections(server_folder: Path) -> None:
    with Database.open(server_folder, Settings(pool_max_size=2)) as database:
        found: list[str] = []
        threads = [
            threading.Thread(target=lambda: found.append(search_path(database))) for _ in range(40)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == ["kb, public"] * 40


def test_close_waits_for_a_transaction_in_progress(folder: Path) -> None:
    database = Database.open(folder, Settings())
    begun, finished = threading.Event(), threading.Event()

    def work() -> None:
        with database.transaction() as conn:
            begun.set()
            conn.execute("SELECT pg_sleep(0.3)")
            finished.set()

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    database.close()
    assert finished.is_set()
    thread.join()


def test_a_server_that_is_gone_is_reported_at_once_and_used_when_back(tmp_path: Path) -> None:
    code = """
import sys, time
from kb_tools.embedded_server import EmbeddedServer
from kb_tools.db import Database
from kb_tools.errors import BackendError
from kb_tools.settings import Settings
server = EmbeddedServer.open(sys.argv[1])
socket = (sys.argv[1] + "/postgres/data").replace("/", "%2F")
database = Database.open(f"postgresql://kb@{socket}/kb", Settings())
for turn in range(2):
    server.close()
    for _ in range(3):
        try:
            with database.transaction() as conn:
                print("wrong")
        except BackendError as error:
            print("gone", turn)
    server = EmbeddedServer.open(sys.argv[1])
    with database.transaction() as conn:
        print(conn.execute("SELECT 'back'").fetchone()[0], turn)
database.close()
server.close()
"""
    done = run_python(code, tmp_path / "kb")
    assert done.stdout.split("\n")[:-1] == [*["gone 0"] * 3, "back 0", *["gone 1"] * 3, "back 1"]


def test_a_script_that_closes_nothing_ends_without_a_word_and_without_a_server(
    folder: Path,
) -> None:
    code = """
import sys
from kb_tools.db import Database
from kb_tools.settings import Settings
database = Database.open(sys.argv[1], Settings())
with database.transaction() as conn:
    conn.execute("SELECT 1")
"""
    done = run_python(code, folder)
    assert (done.stdout, done.stderr) == ("", "")
    assert not (folder / "postgres" / "data" / "postmaster.pid").exists()


def test_a_database_opened_before_a_fork_is_refused_after_it(folder: Path) -> None:
    code = """
import os, sys
from kb_tools.db import Database
from kb_tools.errors import InvalidState
from kb_tools.settings import Settings
with Database.open(sys.argv[1], Settings()) as database:
    import warnings; warnings.simplefilter("ignore", DeprecationWarning)
    if not os.fork():
        try:
            with database.transaction():
                pass
        except InvalidState as error:
            print(error, flush=True)
        database.close()
        os._exit(0)
    os.wait()
    with database.transaction() as conn:
        print(conn.execute("SELECT 'parent'").fetchone()[0])
"""
    assert run_python(code, folder).stdout.split("\n")[:-1] == [
        "this database was opened before a fork; open it in this process",
        "parent",
    ]


def run_python(code: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(folder)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


# Secrets


@pytest.fixture
def logs() -> Iterator[io.StringIO]:
    """Everything that is logged, down to the last detail."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)


def complaint(url: str, settings: Settings) -> str:
    """The error of opening this URL with all that a traceback shows."""
    with pytest.raises(KnowledgeBaseError) as caught:
        Database.open(url, settings)
    return "".join(traceback.format_exception(caught.value))


def test_a_port_where_nothing_listens_is_named_and_the_password_is_not(
    closed_port: int, logs: io.StringIO
) -> None:
    url = f"postgresql://me:{URL_SECRET}@127.0.0.1:{closed_port}/kb"
    text = complaint(url, fast())
    assert f"PostgreSQL at 127.0.0.1:{closed_port}/kb failed: OperationalError" in text
    assert "nothing listens there" in text
    for secret in (SECRET, URL_SECRET, "geheim"):
        assert secret not in text + logs.getvalue()


def test_a_refused_password_is_shown_nowhere(folder: Path, logs: io.StringIO) -> None:
    with EmbeddedServer.open(folder) as server:
        allow_password_login(server, "visitor", SECRET)
        url = url_of(folder, password=URL_SECRET).replace("kb:", "visitor:")
        with Database.open(url, fast(db_schema="public")) as database:
            assert search_path(database) == "public"
            allow_password_login(server, "visitor", "changed")
            with pytest.raises(BackendError, match="user or password was refused") as caught:
                search_path(database)
        text = complaint(url, fast()) + "".join(traceback.format_exception(caught.value))
    assert "user or password was refused" in text
    for secret in (SECRET, URL_SECRET, "geheim"):
        assert secret not in text + logs.getvalue() + repr(database)


def allow_login(server: EmbeddedServer, rule: str) -> None:
    """Put a rule before those of the server, until it starts again."""
    logins = server.folder / "postgres" / "data" / "pg_hba.conf"
    logins.write_text(f"{rule}\nlocal all kb,postgres peer map=kb\n")
    with psycopg.connect(server.bootstrap_conninfo, autocommit=True) as conn:
        conn.execute("SELECT pg_reload_conf()")


def allow_password_login(server: EmbeddedServer, role: str, password: str) -> None:
    """Let this role in by this password only, and end its connections."""
    allow_login(server, f"local kb {role} scram-sha-256")
    name = sql.Identifier(role)
    with psycopg.connect(server.bootstrap_conninfo, autocommit=True) as conn:
        if not conn.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)).fetchone():
            conn.execute(sql.SQL("CREATE ROLE {} LOGIN").format(name))
        conn.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(name, sql.Literal(password)))
        conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (role,)
        )


def test_a_login_that_the_server_does_not_know_is_refused(server_folder: Path) -> None:
    text = complaint(url_of(server_folder).replace("kb@", "nobody_known@"), fast())
    assert "the server does not let this user in from here" in text


def test_an_unknown_database_shows_no_secret(server_folder: Path, logs: io.StringIO) -> None:
    text = complaint(url_of(server_folder, password=URL_SECRET) + "_other", fast())
    assert "no such database" in text
    assert "geheim" not in text + logs.getvalue()


def test_repr_and_pool_logs_show_no_secret(server_folder: Path, logs: io.StringIO) -> None:
    with Database.open(url_of(server_folder, password=URL_SECRET), fast()) as database:
        with pytest.raises(BackendError), database.transaction() as conn:
            conn.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        assert search_path(database) == "kb, public"
    assert "geheim" not in repr(database) + str(database) + logs.getvalue()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:pw@host:5432/db", "postgresql://***@host:5432/db"),
        ("postgresql://me@host/db?password=pw", "postgresql://***@host/db"),
        ("postgresql://host/db", "postgresql://host/db"),
        ("postgresql://me:pw@a:1,b:2/db", "postgresql://***@a:1,b:2/db"),
        ("postgresql://me:pw@[::1]:5432/db", "postgresql://***@[::1]:5432/db"),
        ("postgresql://me:p/w@host/db", "postgresql://***@host/db"),
        ("postgresql://me:p@w@host/db", "postgresql://***@host/db"),
        ("postgresql://me:p?w@host/db", "postgresql://***"),
        ("postgresql://me:p#w@host/db", "postgresql://***@host/db"),
        ("postgresql://host/db?password=p@w", "postgresql://***"),
        ("postgresql://me:pw/db", "postgresql://***"),
        ("me:pw", "***"),
    ],
)
def test_a_masked_url_shows_the_place_only(url: str, shown: str) -> None:
    assert masked(url) == shown


def test_a_session_is_refused_behind_pgbouncer(pgbouncer_url: str) -> None:
    with (
        Database.open(pgbouncer_url, fast()) as database,
        pytest.raises(InvalidState, match="direct_url"),
        database.session(),
    ):
        pass


def test_a_session_is_outside_of_transactions_and_ends(database: Database) -> None:
    with database.session() as conn:
        conn.execute("SET work_mem = '5MB'")
        assert conn.info.transaction_status == TransactionStatus.IDLE
    assert conn.closed


@pytest.mark.parametrize(
    "where", [" postgresql://u:S3CRET@127.0.0.1:9/d", "'postgresql://u:S3CRET@127.0.0.1:9/d'",
              "\ufeffpostgresql://u:S3CRET@127.0.0.1:9/d", "jdbc:postgresql://u:S3CRET@h/d",
              "postgresql:/u:S3CRET@h/d"],
)  # fmt: skip
def test_a_url_that_was_mistyped_never_becomes_a_folder(where: str) -> None:
    with pytest.raises((InvalidInput, BackendError)) as raised:
        Database.open(where, Settings(connect_timeout_seconds=1))
    assert "S3CRET" not in str(raised.value)
