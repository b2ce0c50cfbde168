"""Mail as mail programs save it (RFC 5322): subject, persons, date, text; attachments by name."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from email import message_from_bytes, policy
from email.header import decode_header
from email.message import Message
from email.utils import parsedate_to_datetime

from kb_tools.ingest.encodings import decode_as
from kb_tools.ingest.mail import Mail, parsed_mail
from kb_tools.ingest.parsed import NO_TEXT, Limits, Parsed, ParseError, Parser

_DEEPEST = 10  # mails inside mails
_HEADERS = ("From", "To", "Subject", "Date", "Received", "Message-ID", "MIME-Version")


def create() -> Parser:
    """Return the parser."""
    return parse


def parse(data: bytes, limits: Limits) -> Parsed:
    """Return the subject as heading, then the persons and the date, then the text."""
    if not data.strip():
        raise ParseError(NO_TEXT)
    # compat32: the newer policies lose what is written in an undeclared encoding.
    message = message_from_bytes(data, policy=policy.compat32)
    if not any(message[name] for name in _HEADERS):
        raise ParseError("not a readable eml: no header of a mail in it")
    return parsed_mail(_mail(message, 0), limits)


def _mail(message: Message, depth: int) -> Mail:
    plain: list[str] = []
    pages: list[str] = []
    attachments: list[str] = []
    enclosed: list[Mail] = []
    for part in _parts(message):
        kind = part.get_content_type()
        name = _file_name(part)
        if kind == "message/rfc822":
            inner = part.get_payload()
            if isinstance(inner, list) and isinstance(inner[0], Message) and depth < _DEEPEST:
                enclosed.append(_mail(inner[0], depth + 1))
        elif name or part.get_content_disposition() == "attachment":
            attachments.append(name or kind)
        elif kind == "text/html":
            pages.append(_content(part))
        elif part.get_content_maintype() == "text":
            plain.append(_content(part))
    return Mail(
        subject=_header(message, "Subject"),
        sender=_header(message, "From"),
        to=_header(message, "To"),
        cc=_header(message, "Cc"),
        date=_date(message),
        text="\n\n".join(plain),
        html="\n".join(pages),
        attachments=tuple(attachments),
        enclosed=tuple(enclosed),
    )


def _parts(message: Message) -> Iterator[Message]:
    """Yield the leaves of a message in order; a mail inside it is one."""
    waiting = [message]
    while waiting:
        part = waiting.pop()
        inner = part.get_payload()
        if part.get_content_type() != "message/rfc822" and isinstance(inner, list):
            waiting += reversed([one for one in inner if isinstance(one, Message)])
        else:
            yield part


def _content(part: Message) -> str:
    data = part.get_payload(decode=True)
    if not isinstance(data, bytes):
        return ""
    declared = part.get_param("charset")
    return decode_as(data, declared if isinstance(declared, str) else None)


def _header(message: Message, name: str) -> str:
    # Not message[name]: it has no place for bytes of an undeclared encoding.
    found = (value for key, value in message.raw_items() if key.lower() == name.lower())
    return _decoded(next(found, ""))


def _decoded(raw: str) -> str:
    """Return a header's text; its pieces may be encoded in many ways, or in none."""
    try:
        pieces = decode_header(raw)
    except ValueError:  # base64 that is none
        return " ".join(raw.split())
    text = "".join(
        piece if isinstance(piece, str) else decode_as(piece, charset) for piece, charset in pieces
    )
    if any("\udc80" <= letter <= "\udcff" for letter in text):
        text = decode_as(text.encode("utf-8", "surrogateescape"), None)
    return " ".join(text.split())


def _date(message: Message) -> datetime | None:
    with suppress(TypeError, ValueError, IndexError, OverflowError):
        return parsedate_to_datetime(str(message.get("Date") or ""))
    return None


def _file_name(part: Message) -> str:
    name = part.get_filename()
    return _decoded(name) if name else ""
