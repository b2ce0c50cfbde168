"""The cluster of one folder, as seen by this process: who uses it, and until when."""

import contextlib
import fcntl
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from kb_tools.embedded_server import creation
from kb_tools.embedded_server.home import Home
from kb_tools.embedded_server.postmaster import Postmaster
from kb_tools.errors import BackendError

clusters: dict[tuple[int, int], "Cluster"] = {}  # those that this process uses


@dataclass(slots=True, eq=False)
class Cluster:
    """A cluster that this process has open, with `handles` on it."""

    home: Home
    postmaster: Postmaster
    handles: int = 0
    users_fd: int | None = None

    @classmethod
    def find(cls, folder: Path) -> "Cluster":
        """Return the one cluster of the folder; the same folder by another path is the same."""
        home = Home.open(folder)
        known = clusters.get(home.key)
        if known is not None:
            home.close()
            return known
        clusters[home.key] = cls(home, Postmaster(home))
        return clusters[home.key]

    def join(self) -> None:
        """Count this process as a user, and have the server running."""
        if self.users_fd is not None and self.postmaster.ready():
            return
        with self.home.start_lock():
            if self.users_fd is None:
                self.users_fd = self._share_users_lock()
            self._start()

    def ensure_running(self) -> None:
        """Start the server again if it died."""
        if self.postmaster.ready():
            return
        with self.home.start_lock():
            self._start()

    def leave(self) -> None:
        """Stop counting this process; the last one stops the server."""
        if clusters.pop(self.home.key, None) is None:
            return
        try:
            with self.home.start_lock():
                if self.users_fd is not None:
                    # Explicit, since a child that just forked may not have closed its copy yet.
                    fcntl.flock(self.users_fd, fcntl.LOCK_UN)
                alone = self.home.try_lock("users.lock", fcntl.LOCK_EX)
                if alone is not None:
                    with contextlib.closing(os.fdopen(alone)):
                        self.postmaster.stop(signal.SIGINT)
        except FileNotFoundError:
            # The folder was deleted under us: there is nothing to keep, only a process to end.
            self.postmaster.stop(signal.SIGQUIT)
        finally:
            self.forget()

    def forget(self) -> None:
        """Close what this process holds; in a forked child, the parent's locks stay."""
        self.postmaster.forget()
        if self.users_fd is not None:
            os.close(self.users_fd)
        self.users_fd = None
        self.home.close()

    def _share_users_lock(self) -> int:
        # Only a leaver holds it exclusively, and only under the start lock, which we hold.
        fd = self.home.try_lock("users.lock", fcntl.LOCK_SH)
        if fd is None:
            raise BackendError(f"{str(self.home.path)!r}/users.lock is held by a foreign program")
        return fd

    def _start(self) -> None:
        """Have the server running and its roles made; called under the start lock."""
        creation.create(self.home)
        if not self.postmaster.ready():
            self.postmaster.start()
        self.postmaster.living()
        creation.prepare(self.home)
