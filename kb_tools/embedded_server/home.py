"""The folder that a cluster lies in: its paths, its descriptors, its locks.

Files are reached through descriptors of the folders that were opened, so that nobody can put
another folder or link in their place.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from psycopg.conninfo import make_conninfo

from kb_tools.embedded_server.constants import LINUX, SOCKET
from kb_tools.embedded_server.locks import locked, try_lock
from kb_tools.embedded_server.server_user import name_or_id
from kb_tools.errors import BackendError, InvalidInput, InvalidState

_SOCKET_PATH_BYTES = 107 if LINUX else 103


@dataclass(slots=True, eq=False)
class Home:
    """The opened folder `<folder>/postgres`, and `data` in it once that was needed."""

    folder: Path
    path: Path
    fd: int
    key: tuple[int, int]
    data_fd: int | None = None

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open the home of a cluster, which is made when missing.

        Raises InvalidState if it belongs to another user.
        """
        path = make_home(folder)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        found = os.fstat(fd)
        if found.st_uid != os.geteuid():
            os.close(fd)
            raise InvalidState(foreign(folder, found.st_uid))
        return cls(folder, path, fd, (found.st_dev, found.st_ino))

    def close(self) -> None:
        """Close the descriptors."""
        for fd in (self.data_fd, self.fd):
            if fd is not None:
                os.close(fd)
        self.data_fd = None

    @property
    def data(self) -> Path:
        """The cluster by the name that a user knows."""
        return self.path / "data"

    @property
    def opened(self) -> Path:
        """The home that was opened, even if somebody puts another folder or link in its place."""
        return Path(f"/proc/self/fd/{self.fd}") if LINUX else self.path

    def conninfo(self, user: str, database: str) -> str:
        """How this process connects; it holds no secret."""
        # The empty values keep PGHOSTADDR, PGOPTIONS and PGREQUIREPEER of the environment out.
        return make_conninfo(
            host=self.socket_folder(), hostaddr="", port=5432, user=user, dbname=database,
            options="", requirepeer="",
        )  # fmt: skip

    def socket_folder(self) -> str:
        """The data folder by a name that a socket address and libpq can carry."""
        path = os.fsencode(self.data)
        if len(path) + 1 + len(SOCKET) <= _SOCKET_PATH_BYTES and _plain(path):
            return str(self.data)
        if LINUX:
            return f"/proc/self/fd/{self.data_fd}"
        raise InvalidInput(f"the path {str(self.folder)!r} is too long or has a comma; move it")

    def try_lock(self, name: str, kind: int) -> int | None:
        """Return a descriptor that holds the lock, or None if others hold it."""
        return try_lock(name, kind, dir_fd=self.fd)

    @contextlib.contextmanager
    def start_lock(self) -> Iterator[None]:
        """Hold the lock of those who start or stop the server."""
        with locked("start.lock", self.folder, dir_fd=self.fd):
            yield

    def read(self, name: str) -> str:
        """The text of a small file in the data folder; empty when missing."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self.opened_data())
        except OSError:
            return ""
        with open(fd, encoding="utf-8", errors="replace") as file:
            return file.read(8192)

    def opened_data(self) -> int:
        """A descriptor of the data folder, which exists."""
        if self.data_fd is None:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            self.data_fd = os.open("data", flags, dir_fd=self.fd)
        return self.data_fd

    def complaint(self, what: str) -> str:
        """A message that ends with the last lines of the server's log."""
        log = self.path / "server.log"
        with contextlib.suppress(OSError):
            lines = (
                (self.opened / log.name)
                .read_text(encoding="utf-8", errors="replace")
                .splitlines()[-8:]
            )
            said = "\n  ".join(lines)
            return f"PostgreSQL in {str(self.folder)!r} {what}; {str(log)!r} ends with:\n  {said}"
        return f"PostgreSQL in {str(self.folder)!r} {what}"


def absolute(folder: str | Path) -> Path:
    """Return the folder's whole path. Raises InvalidInput if no folder can be named so."""
    text = os.fspath(folder)
    if not text.strip() or "\0" in text:
        raise InvalidInput(f"{text!r} is not a folder; name one, like './kb'")
    return Path(os.path.abspath(os.path.expanduser(text)))


def make_home(folder: Path) -> Path:
    """Return `<folder>/postgres`, created when missing and owned by this user."""
    folder.mkdir(parents=True, exist_ok=True)
    home = folder / "postgres"
    with contextlib.suppress(FileExistsError):
        home.mkdir(mode=0o700)
    found = os.lstat(home)
    if not stat.S_ISDIR(found.st_mode):
        raise InvalidState(f"{str(home)!r} is not a folder; choose another folder")
    if found.st_uid != os.geteuid():
        raise InvalidState(foreign(folder, found.st_uid))
    return home


def foreign(folder: Path, owner: int) -> str:
    """Say that the server belongs to another user, and what to do."""
    return (
        f"the server in {str(folder)!r} belongs to user {name_or_id(owner)}, this process runs as "
        f"{name_or_id(os.geteuid())}: run it as {name_or_id(owner)}, or choose another folder, "
        "or use a postgresql:// URL that both can reach"
    )


@contextlib.contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn what the file system says into our errors; its words hold no secret."""
    try:
        yield
    except (FileExistsError, NotADirectoryError):
        raise InvalidInput(f"{str(folder)!r} is, or lies below, a file; name a folder") from None
    except PermissionError as error:
        raise InvalidInput(
            f"user {name_or_id(os.geteuid())} may not use {error.filename or str(folder)!r}; "
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
