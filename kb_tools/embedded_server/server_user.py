"""The user that PostgreSQL runs as: never root; the docstring of the folder says which."""

import contextlib
import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from kb_tools.embedded_server.constants import LINUX
from kb_tools.errors import InvalidState

_SERVER_USERS = ("kb_tools", "postgres", "nobody")


@dataclass(frozen=True, slots=True)
class ServerUser:
    """The user that the server runs as; both None: the one that runs this process."""

    uid: int | None
    gid: int | None

    @classmethod
    def chosen(cls) -> "ServerUser":
        """The user for a new cluster; the docstring of the folder says why these."""
        if os.geteuid():
            user_name(os.geteuid())
            return cls(None, None)
        if not LINUX:
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
    def of(cls, data_fd: int) -> "ServerUser":
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
        """Make this user the owner of a file or folder."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def give_all(self, folder_fd: int) -> None:
        """Make this user the owner of a folder and all that is in it."""
        if self.uid is None or self.gid is None:
            return
        for _, folders, files, fd in os.fwalk(dir_fd=folder_fd):
            for name in [*folders, *files]:
                os.chown(name, self.uid, self.gid, dir_fd=fd, follow_symlinks=False)
        os.fchown(folder_fd, self.uid, self.gid)


def name_or_id(uid: int) -> str:
    """Return the user's name, else its number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def user_name(uid: int) -> str:
    """Return the user's name. Raises InvalidState if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise InvalidState(
            f"user id {uid} has no name on this machine, which PostgreSQL needs: add it to "
            "/etc/passwd, or use a postgresql:// URL"
        ) from None
