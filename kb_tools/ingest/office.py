"""Read old Office and OpenDocument files: LibreOffice converts them, today's parser reads them.

Much that is called .doc or .xls is something else: a web page, a table with tabs, a docx. Such
files need no LibreOffice.
"""

import io
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

from kb_tools.ingest import office_process
from kb_tools.ingest.office_zip import ENCRYPTED, OLE, is_encrypted, refuse_too_large
from kb_tools.ingest.parsed import Limits, Parsed, ParseError, Parser

# LibreOffice is given less time than the whole parse has.
_SHARE_OF_TIME = 0.8
_PLACES = (
    "/Applications/LibreOffice.app/Contents/MacOS/soffice",
    "/usr/lib/libreoffice/program/soffice",
    "/opt/libreoffice/program/soffice",
)
_OPEN_DOCUMENT = b"application/vnd.oasis.opendocument"


def converted(suffix: str, target: str) -> Parser:
    """Return a parser that reads files named `.suffix` as the format `target`."""

    def parse(data: bytes, limits: Limits) -> Parsed:
        if not data.strip():
            raise ParseError("no text: the file is empty")
        if data.startswith(OLE) and is_encrypted(data):
            raise ParseError(ENCRYPTED)
        if name := _really(data, target):
            return _read(data, name, limits)
        if data.startswith(b"PK"):
            _check_open_document(data, suffix, limits)
        found = _read(convert(data, suffix, target, limits), target, limits)
        return replace(found, report={**found.report, "converted_by": "LibreOffice"})

    return parse


def _read(data: bytes, name: str, limits: Limits) -> Parsed:
    from kb_tools.ingest.parsers import load

    return load(name)(data, limits)


def _really(data: bytes, target: str) -> str | None:
    """Return the format of a file whose suffix is wrong, if no conversion is needed."""
    if data.startswith(b"PK"):
        return None if _OPEN_DOCUMENT in data[:200] else target
    head = data[:4096].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if data.startswith(OLE) or head.startswith((b"{\\rtf", b"<?xml", b"<?mso")):
        return None
    if head.startswith((b"<html", b"<!doctype html", b"<table", b"<meta", b"<head", b"<style")):
        return "html"
    if target == "xlsx" and b"\x00" not in head and b"\t" in head:
        return "csv"
    return None


def _check_open_document(data: bytes, suffix: str, limits: Limits) -> None:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            refuse_too_large(archive, limits)
            manifest = archive.read("META-INF/manifest.xml")
    except (zipfile.BadZipFile, EOFError, KeyError, NotImplementedError, ValueError, OSError):
        raise ParseError(f"not a readable {suffix} (truncated or damaged zip)") from None
    if b":encryption-data" in manifest:
        raise ParseError(ENCRYPTED)


def soffice() -> str | None:
    """Return the path of LibreOffice's program, if it is installed."""
    found = shutil.which("soffice") or shutil.which("libreoffice")
    return found or next((place for place in _PLACES if Path(place).is_file()), None)


def convert(data: bytes, suffix: str, target: str, limits: Limits) -> bytes:
    """Return the file as LibreOffice saves it. Raises ParseError with a reason."""
    program = soffice()
    if program is None:
        raise ParseError(
            f".{suffix} is read through LibreOffice, which is not installed: install it, or save "
            f"it as .{target}"
        )
    seconds = _SHARE_OF_TIME * limits.timeout_seconds
    script = str(Path(office_process.__file__))
    command = [
        sys.executable, "-I", "-S", script, program, suffix, target, str(seconds),
        str(limits.max_unpacked_bytes),
    ]  # fmt: skip
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        answer = _exchange(process, data)
    if process.returncode == office_process.TOO_SLOW:
        raise ParseError(
            f"LibreOffice took longer than {seconds:g} s of parse_timeout_seconds; save it as "
            f".{target} or raise KB_PARSE_TIMEOUT_SECONDS"
        )
    if process.returncode == office_process.TOO_LARGE:
        raise ParseError(
            f"too large: over {limits.max_unpacked_bytes:,} bytes (max_unpacked_bytes) as .{target}"
        )
    if process.returncode or not answer:
        raise ParseError(
            f"not a readable {suffix}: LibreOffice could not convert it; it is damaged or needs "
            "a password"
        )
    return answer


def _exchange(process: "subprocess.Popen[bytes]", data: bytes) -> bytes:
    """Return what the process writes; its stdin stays open, since its end would stop it."""
    if process.stdin is None or process.stdout is None:  # both are pipes; for the type checker
        return b""
    try:
        process.stdin.write(len(data).to_bytes(8, "big"))
        process.stdin.write(data)
        process.stdin.flush()
    except OSError:
        return b""
    return process.stdout.read()
