"""Mail as blocks: who wrote what to whom, the text, and the names of what is attached."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from kb_tools.ingest.parsed import (
    NO_TEXT,
    Block,
    BlockKind,
    Limits,
    Parsed,
    ParseError,
    has_chinese,
)
from kb_tools.ingest.rows import row_block
from kb_tools.models import Json

_LABELS = {
    "sender": ("发件人", "From"), "to": ("收件人", "To"), "cc": ("抄送", "Cc"),
    "date": ("日期", "Date"), "attachments": ("附件", "Attachments"),
}  # fmt: skip
# A plain part this much shorter than the page says only that the mail is a page.
_LEAST_PLAIN = 0.2
_BLANK_LINES = re.compile(r"\n[ \t]*\n\s*")


@dataclass(frozen=True)
class Mail:
    """A message as far as it can be searched; `html` is a page, `text` its plain twin."""

    subject: str = ""
    sender: str = ""
    to: str = ""
    cc: str = ""
    date: datetime | None = None
    text: str = ""
    html: str = ""
    attachments: tuple[str, ...] = ()
    enclosed: tuple["Mail", ...] = ()


def parsed_mail(mail: Mail, limits: Limits) -> Parsed:
    """Return the subject as heading, then the persons and the date, then the text.

    Raises ParseError if there is neither a subject nor a text.
    """
    blocks = tuple(_blocks(mail, limits, ""))
    if not any(block.kind is not BlockKind.TABLE for block in blocks):
        raise ParseError(NO_TEXT)
    report: dict[str, Json] = {}
    if attachments := _attachments(mail):
        report["attachments"] = [*attachments]
        report["warnings"] = [f"attached, and not read: {', '.join(attachments)}"]
    metadata: dict[str, Json] = {"author": mail.sender} if mail.sender else {}
    if mail.date:
        metadata["date"] = mail.date.isoformat()
    return Parsed(blocks, mail.subject, report, metadata)


def _blocks(mail: Mail, limits: Limits, above: str) -> Iterator[Block]:
    heading = f"{above} › {mail.subject}" if above and mail.subject else mail.subject or above
    if mail.subject:
        yield Block(mail.subject, heading, kind=BlockKind.HEADING)
    body = list(_body(mail, limits))
    is_chinese = has_chinese(mail.subject + "".join(block.text for block in body))
    values = {
        "sender": mail.sender,
        "to": mail.to,
        "cc": mail.cc,
        "date": mail.date.strftime("%Y-%m-%d %H:%M") if mail.date else "",
        "attachments": ", ".join(mail.attachments),
    }
    names = [_LABELS[name][0 if is_chinese else 1] for name in values]
    if any(values.values()):
        yield row_block(names, list(values.values()), heading=heading)
    for block in body:
        yield replace(block, heading=heading)
    for inner in mail.enclosed:
        yield from _blocks(inner, limits, heading)


def _body(mail: Mail, limits: Limits) -> Iterator[Block]:
    page = _page(mail.html, limits) if mail.html.strip() else ()
    length = sum(len(block.text) for block in page)
    if page and len(mail.text.strip()) < _LEAST_PLAIN * length:
        yield from page
        return
    text = mail.text.replace("\r\n", "\n").replace("\r", "\n").strip()
    for paragraph in _BLANK_LINES.split(text):
        if paragraph.strip():
            yield Block(paragraph)


def _page(html: str, limits: Limits) -> tuple[Block, ...]:
    from kb_tools.ingest.parsers.html import parse

    try:
        return parse(html.encode("utf-8", "replace"), limits).blocks
    except ParseError:
        return ()


def _attachments(mail: Mail) -> list[str]:
    return [*mail.attachments, *(name for inner in mail.enclosed for name in _attachments(inner))]
