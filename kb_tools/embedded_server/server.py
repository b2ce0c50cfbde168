"""EmbeddedServer: a handle on the server of a folder, and what happens at fork and at exit."""

import atexit
import logging
import os
import threading
from pathlib import Path
from typing import Self

from kb_tools.embedded_server.cluster import Cluster, clusters
from kb_tools.embedded_server.home import absolute, disk_errors
from kb_tools.errors import InvalidState

logger = logging.getLogger(__name__)


class EmbeddedServer:
    """One handle on the server of a folder; handles and processes share one server.

    Usage:
        with EmbeddedServer.open("./kb") as server:
            conn = psycopg.connect(server.conninfo)
    """

    __slots__ = ("_closed", "_cluster")

    def __init__(self, cluster: Cluster) -> None:
        """Wrap a cluster that counts this handle already; `open` is the way in."""
        self._cluster, self._closed = cluster, False

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Return a handle on the running server of `folder`, which is created when missing.

        Raises InvalidInput if `folder` cannot be used, InvalidState if its cluster belongs to
        another user or another major version, BackendError if the server does not start.
        """
        path = absolute(folder)
        with _lock, disk_errors(path):
            cluster = Cluster.find(path)
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
        return self._cluster.home.conninfo("kb", "kb")

    @property
    def bootstrap_conninfo(self) -> str:
        """How this process connects as the superuser `postgres`."""
        return self._cluster.home.conninfo("postgres", "kb")

    @property
    def folder(self) -> Path:
        """The folder that was named."""
        return self._cluster.home.folder

    def ensure_running(self) -> None:
        """Start the server again if it died; recovered rows are all that were committed."""
        with _lock, disk_errors(self.folder):
            if self._closed or self._cluster.home.key not in clusters:
                raise InvalidState(f"the server of {str(self.folder)!r} was closed; open it again")
            self._cluster.ensure_running()

    def close(self) -> None:
        """Give the handle back; the last one of the last process stops the server."""
        with _lock, disk_errors(self.folder):
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


# This process

_lock = threading.RLock()


def _leave_all() -> None:
    """Stop at exit what a script forgot to close."""
    with _lock:
        for cluster in list(clusters.values()):
            try:
                cluster.leave()
            except Exception as error:
                logger.warning("PostgreSQL in %s: %s", cluster.home.folder, type(error).__name__)


def _forget_all() -> None:
    """A forked child is no user of its parent's servers; it opens the folder itself."""
    global _lock
    _lock = threading.RLock()
    for cluster in list(clusters.values()):
        cluster.forget()
    clusters.clear()


def _before_fork() -> None:
    # No thread may be starting a server: the child would inherit the start lock.
    _lock.acquire()


def _after_fork() -> None:
    _lock.release()


atexit.register(_leave_all)
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_forget_all)
