"""Outlook's mail (.msg): the properties of an OLE file, read with olefile of the extra `msg`.

Text that is not Unicode is in the code page that the message names, or in another.
"""

import io
import struct
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from kb_tools.ingest.encodings import decode_as
from kb_tools.ingest.mail import Mail, parsed_mail
from kb_tools.ingest.parsed import NO_TEXT, Limits, Parsed, ParseError, Parser

_SUBJECT, _BODY, _HTML, _RTF = "0037", "1000", "1013", "1009"
_SENDER, _SENDER_ADDRESS, _SENDER_SMTP, _TO, _CC = "0C1A", "0C1F", "5D01", "0E04", "0E03"
_LONG_NAME, _NAME, _SHOWN_NAME = "3707", "3704", "3001"
_CODE_PAGES = ("3FDE", "3FFD")  # of the body, of the message
_DATES = ("0039", "0E06")  # sent, received
_NUMBER, _TIME = 0x0003, 0x0040
_OTHER_NAMES = {
    65001: "utf-8", 20127: "ascii", 28591: "latin-1", 54936: "gb18030", 20936: "gb2312",
    50220: "iso2022_jp", 50222: "iso2022_jp", 51932: "euc_jp", 51949: "euc_kr", 52936: "hz",
}  # fmt: skip


def create() -> Parser:
    """Return the parser. Raises ParseError, which names the extra, if olefile is not there."""
    try:
        import olefile  # noqa: F401
    except ImportError:
        raise ParseError(
            '.msg needs the extra "msg": pip install "kb-tools[msg]"; or save the mail as .eml'
        ) from None
    return parse


def parse(data: bytes, limits: Limits) -> Parsed:
    """Return the subject as heading, then the persons and the date, then the text."""
    import olefile

    if not data.strip():
        raise ParseError(NO_TEXT)
    try:
        source = olefile.OleFileIO(io.BytesIO(data))
    except (OSError, ValueError, struct.error, IndexError):
        raise ParseError("not a readable msg (truncated or damaged)") from None
    with source:
        message = _Message(source)
        if not message.properties:
            raise ParseError("not a readable msg: an OLE file without a mail in it")
        mail = message.mail()
    parsed = parsed_mail(mail, limits)
    if not mail.text.strip() and not mail.html.strip() and message.content(_RTF):
        parsed.report["warnings"] = ["the text is there only as RTF and was not read; save as .eml"]
    return parsed


class _Message:
    """The streams of a message."""

    def __init__(self, source: Any) -> None:  # olefile has no types
        self._source = source
        self._streams: dict[str, list[str]] = {}
        for place in source.listdir():
            self._streams["/".join(place).upper()] = place
        self.properties = self._properties()
        self._charset = self._code_page()

    def mail(self) -> Mail:
        address = self.text(_SENDER_SMTP) or self.text(_SENDER_ADDRESS)
        sender = self.text(_SENDER)
        if "@" in address and address not in sender:
            sender = f"{sender} <{address}>".strip()
        return Mail(
            subject=" ".join(self.text(_SUBJECT).split()),
            sender=sender,
            to=self.text(_TO),
            cc=self.text(_CC),
            date=self._date(),
            text=self.text(_BODY),
            html=self.text(_HTML),
            attachments=tuple(self._attachments()),
        )

    def content(self, key: str, kind: str = "0102", folder: str = "") -> bytes:
        """Return a property's bytes, b"" if it is not there."""
        place = self._streams.get(f"{folder}__SUBSTG1.0_{key}{kind}")
        return self._source.openstream(place).read() if place else b""

    def text(self, key: str, folder: str = "") -> str:
        """Return a property's text: Unicode, 8-bit, or bytes as a page is often kept."""
        if data := self.content(key, "001F", folder):
            return data.decode("utf-16-le", "replace").rstrip("\0")
        data = self.content(key, "001E", folder) or self.content(key, "0102", folder)
        return decode_as(data.rstrip(b"\0"), self._charset) if data else ""

    def _properties(self) -> Mapping[str, tuple[int, bytes]]:
        """Return key -> (type, value) of the properties of fixed length."""
        place = self._streams.get("__PROPERTIES_VERSION1.0")
        data = self._source.openstream(place).read() if place else b""
        found = {}
        for at in range(32, len(data) - 15, 16):
            kind, key = struct.unpack_from("<HH", data, at)
            found[f"{key:04X}"] = kind, data[at + 8 : at + 16]
        return found

    def _code_page(self) -> str | None:
        for key in _CODE_PAGES:
            kind, value = self.properties.get(key, (0, b""))
            if kind == _NUMBER:
                number = int.from_bytes(value[:4], "little")
                return _OTHER_NAMES.get(number, f"cp{number}")
        return None

    def _date(self) -> datetime | None:
        for key in _DATES:
            kind, value = self.properties.get(key, (0, b""))
            ticks = int.from_bytes(value, "little")
            if kind == _TIME and 0 < ticks < 2**61:
                return datetime(1601, 1, 1, tzinfo=UTC) + timedelta(microseconds=ticks // 10)
        return None

    def _attachments(self) -> list[str]:
        folders = {
            key.split("/")[0] for key in self._streams if key.startswith("__ATTACH_VERSION1.0_")
        }
        names = (
            next(
                (n for key in (_LONG_NAME, _NAME, _SHOWN_NAME) if (n := self.text(key, place))), ""
            )
            for place in (f"{folder}/" for folder in sorted(folders))
        )
        return [name for name in names if name]
