"""Plain text: one block a paragraph, text as it stands."""

import re

from kb_tools.ingest.encodings import decode
from kb_tools.ingest.parsed import Block, Limits, Parsed, Parser

_BETWEEN_PARAGRAPHS = re.compile(r"\n(?:[^\S\n]*\n)+")


def create() -> Parser:
    """Return the parser."""
    return parse


def parse(data: bytes, limits: Limits) -> Parsed:
    """Return the paragraphs; a blank line ends one."""
    decoded = decode(data)
    return Parsed(tuple(Block(text) for text in paragraphs(decoded.text)), report=decoded.report)


def paragraphs(text: str) -> list[str]:
    """Return the stretches of `text` between blank lines, first indentation kept."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return [part.strip("\n") for part in _BETWEEN_PARAGRAPHS.split(lines) if part.strip()]
