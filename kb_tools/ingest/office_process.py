"""A process that lets LibreOffice convert one file and cleans up, whatever happens.

It is run by its path: `python office_process.py SOFFICE SUFFIX TARGET SECONDS MOST_BYTES`. Eight
bytes of length and the file come in on stdin; the converted file goes out on stdout. Exit codes say
what else happened. When stdin ends, the one who asked is gone: LibreOffice is killed, with all that
it started, and its folder removed. It imports nothing of this package, so that it starts quickly.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

NOT_CONVERTED, TOO_SLOW, TOO_LARGE = 3, 4, 5

# No macros, no pictures, sheets or web services from elsewhere, no proxy of the system.
_PROFILE = """<?xml version="1.0" encoding="UTF-8"?>
<oor:items xmlns:oor="http://openoffice.org/2001/registry">
<item oor:path="/org.openoffice.Office.Common/Security/Scripting">
<prop oor:name="DisableMacrosExecution" oor:op="fuse"><value>true</value></prop></item>
<item oor:path="/org.openoffice.Office.Common/Security/Scripting">
<prop oor:name="BlockUntrustedRefererLinks" oor:op="fuse"><value>true</value></prop></item>
<item oor:path="/org.openoffice.Office.Common/Security/Scripting">
<prop oor:name="MacroSecurityLevel" oor:op="fuse"><value>3</value></prop></item>
<item oor:path="/org.openoffice.Office.Calc/Content/Update">
<prop oor:name="Link" oor:op="fuse"><value>2</value></prop></item>
<item oor:path="/org.openoffice.Office.Writer/Content/Update">
<prop oor:name="Link" oor:op="fuse"><value>0</value></prop></item>
<item oor:path="/org.openoffice.Inet/Settings">
<prop oor:name="ooInetProxyType" oor:op="fuse"><value>2</value></prop></item>
<item oor:path="/org.openoffice.Inet/Settings">
<prop oor:name="ooInetHTTPProxyName" oor:op="fuse"><value>127.0.0.1</value></prop></item>
<item oor:path="/org.openoffice.Inet/Settings">
<prop oor:name="ooInetHTTPProxyPort" oor:op="fuse"><value>9</value></prop></item>
<item oor:path="/org.openoffice.Inet/Settings">
<prop oor:name="ooInetHTTPSProxyName" oor:op="fuse"><value>127.0.0.1</value></prop></item>
<item oor:path="/org.openoffice.Inet/Settings">
<prop oor:name="ooInetHTTPSProxyPort" oor:op="fuse"><value>9</value></prop></item>
</oor:items>
"""


def main() -> int:
    """Convert one file; return the exit code."""
    soffice, suffix, target, seconds, most_bytes = sys.argv[1:]
    length = int.from_bytes(sys.stdin.buffer.read(8), "big")
    data = sys.stdin.buffer.read(length)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="kb-office-"))
    try:
        source = folder / f"in.{suffix}"
        source.write_bytes(data)
        code = _convert(soffice, source, target, float(seconds))
        return code or _hand_over(folder / "out" / f"in.{target}", int(most_bytes))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _convert(soffice: str, source: pathlib.Path, target: str, seconds: float) -> int:
    folder = source.parent
    profile = folder / "profile" / "user"
    profile.mkdir(parents=True)
    (profile / "registrymodifications.xcu").write_text(_PROFILE)
    command = [
        soffice, f"-env:UserInstallation={profile.parent.as_uri()}", "--headless", "--norestore",
        "--nologo", "--nolockcheck", "--convert-to", target, "--outdir", str(folder / "out"),
        str(source),
    ]  # fmt: skip
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "HOME": str(folder), "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    watch = threading.Thread(target=_end_with_stdin, args=(process, folder), daemon=True)
    watch.start()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return TOO_SLOW
    finally:
        _kill(process)
    return 0


def _end_with_stdin(process: "subprocess.Popen[bytes]", folder: pathlib.Path) -> None:
    os.read(0, 1)  # not sys.stdin, whose lock would be held when this process ends
    _kill(process)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(NOT_CONVERTED)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(OSError):  # all are gone
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def _hand_over(converted: pathlib.Path, most_bytes: int) -> int:
    if not converted.is_file():
        return NOT_CONVERTED
    if converted.stat().st_size > most_bytes:
        return TOO_LARGE
    sys.stdout.buffer.write(converted.read_bytes())
    sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
