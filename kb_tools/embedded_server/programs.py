"""Run a program of PostgreSQL as the server's user, in a session and environment of its own."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from kb_tools.embedded_server.server_user import ServerUser, name_or_id
from kb_tools.errors import BackendError

# Nothing of the caller's environment (keys, PG* variables) reaches the server.
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


def popen(
    command: Sequence[str],
    user: ServerUser,
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
        name = name_or_id(os.geteuid() if user.uid is None else user.uid)
        reason = getattr(error, "strerror", None) or "not permitted"
        raise BackendError(f"cannot run {command[0]!r} as user {name}: {reason}") from error


def run(command: Sequence[str], user: ServerUser, folder: Path) -> None:
    """Run a program to its end. Raises BackendError with its last words if it fails."""
    with popen(command, user, folder) as process:
        output, _ = process.communicate()
    if process.returncode:
        said = "\n  ".join(output.splitlines()[-8:])
        name = os.path.basename(command[0])
        raise BackendError(f"{name} failed with code {process.returncode}:\n  {said}")
