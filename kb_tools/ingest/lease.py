"""The right to build a document: held by one process at a time, and free again when it dies."""

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

from psycopg import Connection

from kb_tools import db
from kb_tools.errors import KnowledgeBaseError
from kb_tools.models import new_id
from kb_tools.resources import Resources
from kb_tools.storage import builds, documents
from kb_tools.storage.documents import WaitingDocument

logger = logging.getLogger(__name__)

LEASE_SECONDS = 30.0
RENEWAL_SECONDS = 5.0


class Lease:
    """The lease of one build, renewed in the background while it is open.

    That a process of this machine died is found out at once; of another machine, when its lease
    was not renewed for 30 seconds. `builder` names the holder.

    Usage:
        with Lease(kb) as lease:
            for document in lease.claim(dataset_id, document_ids): ...
    """

    def __init__(self, kb: Resources) -> None:
        """Claim nothing yet."""
        self._kb = kb
        self.builder = f"{_process(os.getpid())} {new_id()}"
        self._ended = threading.Event()
        self._renewing = threading.Thread(target=self._keep_renewing, name="kb-lease", daemon=True)

    def claim(self, dataset_id: str, document_ids: Sequence[str]) -> list[WaitingDocument]:
        """Return those documents that are unfinished and nobody else builds; they begin anew."""
        with self._kb.db.transaction() as conn:
            db.lock(conn, f"dataset {dataset_id}")  # what is left of their segments goes
            dead = [holder for holder in builds.holders(conn, document_ids) if is_dead(holder)]
            claimed = builds.claim(conn, document_ids, self.builder, dead=dead)
            return documents.contents(conn, claimed)

    def held(self, conn: Connection, document_ids: Iterable[str]) -> set[str]:
        """Return those of the documents that are still ours, until `conn`'s transaction ends."""
        return builds.held(conn, list(document_ids), self.builder)

    def __enter__(self) -> Self:
        """Begin the lease."""
        self._renew()
        self._renewing.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End the lease; documents that are not done can be claimed at once."""
        self._ended.set()
        self._renewing.join()
        # If the database is gone, so is what could be released: the lease runs out.
        with contextlib.suppress(KnowledgeBaseError), self._kb.db.transaction() as conn:
            builds.release(conn, self.builder)

    def _renew(self) -> None:
        with self._kb.db.transaction() as conn:
            builds.renew(conn, self.builder, LEASE_SECONDS)

    def _keep_renewing(self) -> None:
        while not self._ended.wait(RENEWAL_SECONDS):
            try:
                self._renew()
            except Exception as error:
                logger.warning("lease not renewed: %s", type(error).__name__)


def is_dead(holder: str) -> bool:
    """Say whether a lease's holder was a process of this machine that is no more."""
    process = holder.rpartition(" ")[0]
    machine, _, pid = process.rpartition(":")[0].rpartition(":")
    return machine == _machine() and pid.isdigit() and _process(int(pid)) != process


def _process(pid: int) -> str:
    """Name a process so that no other, earlier or later, has the same name."""
    return f"{_machine()}:{pid}:{_started(pid)}"


def _machine() -> str:
    """Name the machine, its boot and its space of process ids."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    with contextlib.suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")
        return f"{socket.gethostname()}/{boot.read_text().strip()}/{space}"
    return socket.gethostname()


def _started(pid: int) -> str:
    """Return when a process began, or "" if there is none or the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
