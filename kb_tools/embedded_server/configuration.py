"""The files that PostgreSQL is configured by; they are written anew at every start."""

import contextlib
import os

from kb_tools.embedded_server.constants import LINUX
from kb_tools.embedded_server.server_user import ServerUser, user_name

_SETTINGS = """\
# Written by kb_tools at every start. To change a setting: ALTER SYSTEM, as role postgres.
max_connections = 100
shared_buffers = {cached}MB
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


def write_settings(user: ServerUser, data_fd: int) -> None:
    """Put the files there that PostgreSQL reads when it starts."""
    opener = user_name(os.geteuid()).replace('"', '""')
    shared_memory = "posix" if _has_shared_memory() else "mmap"
    files = {
        "postgresql.conf": _SETTINGS.format(
            shared_memory=shared_memory, cached=min(max(_memory_megabytes() // 8, 128), 1024)
        ),
        "pg_hba.conf": _LOGINS,
        "pg_ident.conf": f'kb "{opener}" kb\nkb "{opener}" postgres\n',
    }
    for name, text in files.items():
        _replace_file(name, text, user, data_fd)


def _replace_file(name: str, text: str, user: ServerUser, folder_fd: int) -> None:
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
        return not LINUX
    return space.f_blocks * space.f_frsize >= 1024**3


def _memory_megabytes() -> int:
    """Return how much memory there is, or may be used in this container."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError), open("/sys/fs/cgroup/memory.max") as limit:
        there = min(there, int(limit.read()))  # "max", if there is no limit, is no number
    return there // 1024**2
