"""Locks of files, which end with the process that holds them."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from kb_tools.embedded_server.constants import START_TIMEOUT_SECONDS, STOP_TIMEOUT_SECONDS
from kb_tools.errors import BackendError


def try_lock(name: str, kind: int, *, dir_fd: int) -> int | None:
    """Return a descriptor that holds the lock, or None if others hold it."""
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
def locked(name: str, folder: Path, *, dir_fd: int) -> Iterator[None]:
    """Hold a lock that processes keep for seconds only."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS + STOP_TIMEOUT_SECONDS
    while (fd := try_lock(name, fcntl.LOCK_EX, dir_fd=dir_fd)) is None:
        if time.monotonic() > deadline:
            raise BackendError(f"another process is still starting or stopping {str(folder)!r}")
        time.sleep(0.02)
    try:
        yield
    finally:
        os.close(fd)
