"""Plain text: one block a paragraph, text as it stands."""

from collections.abc import Iterator

from kb_tools.ingest.encodings import decode
from kb_tools.ingest.parsed import (
    Block,
    BlockKind,
    HeadingPath,
    Limits,
    Parsed,
    Parser,
    chapter_level,
)


def create() -> Parser:
    """Return the parser."""
    return parse


def parse(data: bytes, limits: Limits) -> Parsed:
    """Return the paragraphs; a blank line ends one, and so does a line like "第一章 总则"."""
    decoded = decode(data)
    return Parsed(tuple(_blocks(decoded.text)), report=decoded.report)


def _blocks(text: str) -> Iterator[Block]:
    path = HeadingPath()
    lines: list[str] = []
    for line in [*text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), ""]:
        level = chapter_level(line) if line[:3].strip().startswith("第") else 0
        if line.strip() and not level:
            lines.append(line)
            continue
        if lines:
            yield Block("\n".join(lines), str(path))
            lines = []
        if level:
            yield Block(line.strip(), path.enter(level, line), kind=BlockKind.HEADING)
