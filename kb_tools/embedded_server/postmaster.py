"""The running PostgreSQL of a home: started, found again, looked after, stopped."""

import contextlib
import fcntl
import logging
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass

from kb_tools.embedded_server.binaries import binaries
from kb_tools.embedded_server.configuration import write_settings
from kb_tools.embedded_server.constants import (
    HERE,
    LINUX,
    SOCKET,
    START_TIMEOUT_SECONDS,
    STOP_TIMEOUT_SECONDS,
)
from kb_tools.embedded_server.home import Home
from kb_tools.embedded_server.programs import popen
from kb_tools.embedded_server.server_user import ServerUser
from kb_tools.errors import BackendError

LOG_BYTES = 5 * 1024 * 1024
_SSL_REQUEST = bytes.fromhex("00000008 04d2162f")

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Postmaster:
    """The first process of a cluster's PostgreSQL, whoever started it."""

    home: Home
    _process: "subprocess.Popen[str] | None" = None
    _pid: int | None = None

    def ready(self) -> bool:
        """Whether the postmaster listens and says that it takes connections."""
        lines = self.home.read("postmaster.pid").splitlines()
        return len(lines) >= 8 and lines[7].strip() == "ready" and self._listening()

    def _listening(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(5)
            try:
                client.connect(f"{self.home.socket_folder()}/{SOCKET}")
                client.sendall(_SSL_REQUEST)
                # A postmaster that is being killed still accepts, but it does not answer.
                return bool(client.recv(1))
            except OSError:
                return False

    def living(self) -> int | None:
        """The process id of the living postmaster of this cluster."""
        first = self.home.read("postmaster.pid").partition("\n")[0]
        pid = int(first) if first.isascii() and first.isdigit() else 0
        if pid and self._runs_here(pid):
            self._pid = pid
        # The file is gone when the folder was deleted under a running server.
        return self._pid if self._pid and self._runs_here(self._pid) else None

    def _runs_here(self, pid: int) -> bool:
        """Whether this process is a PostgreSQL of this cluster; ids are re-used, so look."""
        if not LINUX:
            return self._listening()
        try:
            program = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
            folder = os.stat(f"/proc/{pid}/cwd")
        except OSError:
            return False
        same = os.path.samestat(folder, os.fstat(self.home.opened_data()))
        return same and program.removesuffix(" (deleted)") == "postgres"

    def start(self) -> None:
        """Return when the server takes connections; called under the start lock.

        Raises BackendError if it does not start.
        """
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        alive_fd = self._wait_until_dead_or_ready(deadline)
        if alive_fd is None:
            return
        try:
            self._bury()
            self._remove_stale_files()
            self._launch(alive_fd)
        finally:
            os.close(alive_fd)
        self._wait_until_ready(deadline)

    def _wait_until_dead_or_ready(self, deadline: float) -> int | None:
        """Return the alive lock once no process of the cluster lives, None once it is ready."""
        patience = time.monotonic() + 2
        while not self.ready():
            running = self.living()
            alive_fd = None if running else self.home.try_lock("alive.lock", fcntl.LOCK_EX)
            if alive_fd is not None:
                return alive_fd
            if not running and time.monotonic() > patience:
                self._end_orphans()
            self._pause(deadline)
        return None

    def _end_orphans(self) -> None:
        """End backends whose postmaster died: while they live, no new server may start."""
        processes = [int(name) for name in os.listdir("/proc") if name.isdigit()] if LINUX else []
        for pid in filter(self._runs_here, processes):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _bury(self) -> None:
        """Take the exit code of a server of ours that has let go of its lock: it is ending."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=2)
        self.forget()

    def _remove_stale_files(self) -> None:
        # PostgreSQL trusts the process id in them, which may be a zombie's or another program's.
        # The alive lock is ours, so no process of this cluster lives.
        for name in ("postmaster.pid", SOCKET, f"{SOCKET}.lock"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self.home.opened_data())

    def _launch(self, alive_fd: int) -> None:
        user = ServerUser.of(self.home.opened_data())
        write_settings(user, self.home.opened_data())
        command = [
            str(binaries(user) / "postgres"), "-D", HERE,
            "-c", "listen_addresses=", "-c", f"unix_socket_directories={HERE}",
            "-c", "unix_socket_permissions=0700",
        ]  # fmt: skip
        log = self._open_log()
        try:
            # A session of its own keeps Ctrl-C away from it.
            self._process = popen(
                command, user, self.home.opened / "data", output=log, pass_fds=(alive_fd,)
            )
        finally:
            os.close(log)

    def _open_log(self) -> int:
        log = self.home.opened / "server.log"
        if log.exists() and log.stat().st_size > LOG_BYTES:
            log.replace(self.home.opened / "server.log.1")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        return os.open(log, flags, 0o600)

    def _wait_until_ready(self, deadline: float) -> None:
        while not self.ready():
            alive_fd = self.home.try_lock("alive.lock", fcntl.LOCK_EX)
            if alive_fd is not None:
                os.close(alive_fd)
                raise BackendError(self.home.complaint("did not start"))
            self._pause(deadline)

    def _pause(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            seconds = int(START_TIMEOUT_SECONDS)
            raise BackendError(self.home.complaint(f"does not answer after {seconds} s; try again"))
        time.sleep(0.02)

    def stop(self, how: signal.Signals) -> None:
        """Stop the server and wait until it has; a server of another container is left alone."""
        if self.home.data_fd is None or (pid := self.living()) is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)
        deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
        while self._runs_here(pid):
            self._reap()
            if time.monotonic() > deadline:
                logger.warning("PostgreSQL in %s is still stopping", self.home.folder)
                return
            time.sleep(0.01)
        self._reap()

    def forget(self) -> None:
        """Leave the server to others."""
        if self._process is not None and self._process.poll() is None:
            # Others use the server: it is not ours to wait for, and Popen need not warn.
            self._process.returncode = 0
        self._process = None

    def _reap(self) -> None:
        """Take the exit code of a server that we started; no other process can."""
        if self._process is not None and self._process.poll() is not None:
            self._process = None
