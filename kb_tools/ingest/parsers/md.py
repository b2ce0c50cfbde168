"""Markdown: headings become the heading path, tables rows, fences code; all else is verbatim."""

import re
from collections.abc import Iterator

from kb_tools.ingest.encodings import decode
from kb_tools.ingest.parsed import Block, BlockKind, HeadingPath, Limits, Parsed, Parser
from kb_tools.ingest.rows import row_blocks

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?\n)(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_FIELD = re.compile(r"([A-Za-z_\u4e00-\u9fff][\w\u4e00-\u9fff -]*):[ \t]*(.*)")
_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})")
_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*$")
_TABLE_RULE = re.compile(r"[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$")
_CELL_END = re.compile(r"(?<!\\)\|")
_NO_PARAGRAPH = re.compile(r"\s*(?:[-*+>|]|\d+[.)])(?:\s|$)")


def create() -> Parser:
    """Return the parser."""
    return parse


def parse(data: bytes, limits: Limits) -> Parsed:
    """Return the blocks; the title is the front matter's, else the first top heading."""
    decoded = decode(data)
    text = decoded.text.replace("\r\n", "\n").replace("\r", "\n")
    metadata: dict[str, str] = {}
    if front := _FRONT_MATTER.match(text):
        metadata = _fields(front.group(1))
        text = text[front.end() :]
    blocks = tuple(_Reader(text.split("\n")).blocks())
    tops = (block.text for block in blocks if block.kind is BlockKind.HEADING)
    title = metadata.get("title") or next(tops, "")
    return Parsed(blocks, title, decoded.report, {**metadata})


def _fields(front: str) -> dict[str, str]:
    found = (_FIELD.fullmatch(line.rstrip()) for line in front.split("\n"))
    pairs = ((match.group(1), match.group(2).strip().strip("\"'")) for match in found if match)
    return {name: value for name, value in pairs if value}


class _Reader:
    """Walks over the lines once."""

    def __init__(self, lines: list[str]) -> None:
        self._lines, self._at = lines, 0
        self._path = HeadingPath()

    def blocks(self) -> Iterator[Block]:
        paragraph: list[str] = []
        while self._at < len(self._lines):
            line = self._lines[self._at]
            special = self._special(line, paragraph)
            if special is None and line.strip():
                paragraph.append(line)
                self._at += 1
                continue
            yield from self._paragraph(paragraph)
            paragraph = []
            if special is None:
                self._at += 1
            else:
                yield from special
        yield from self._paragraph(paragraph)

    def _special(self, line: str, paragraph: list[str]) -> Iterator[Block] | None:
        """Return the reader of what starts at this line; None for running text."""
        if fence := _FENCE.match(line):
            return self._code(fence.group(1))
        if heading := _HEADING.match(line):
            return self._heading(len(heading.group(1)), heading.group(2) or "", lines=1)
        if self._is_table(line) and not paragraph:
            return self._table()
        below = _UNDERLINE.match(self._line(1))
        if below and line.strip() and not paragraph and not _NO_PARAGRAPH.match(line):
            return self._heading(1 if "=" in below.group(1) else 2, line.strip(), lines=2)
        return None

    def _line(self, ahead: int) -> str:
        at = self._at + ahead
        return self._lines[at] if at < len(self._lines) else ""

    def _is_table(self, line: str) -> bool:
        rule = self._line(1)
        return "|" in line and "|" in rule and _TABLE_RULE.match(rule) is not None

    def _paragraph(self, lines: list[str]) -> Iterator[Block]:
        if lines:
            yield Block("\n".join(lines), str(self._path))

    def _heading(self, level: int, text: str, *, lines: int) -> Iterator[Block]:
        self._at += lines
        if text.strip():
            path = self._path.enter(level, text)
            yield Block(text.strip(), path, kind=BlockKind.HEADING)

    def _code(self, mark: str) -> Iterator[Block]:
        """Read to the closing fence, or to the end if there is none."""
        closing = re.compile(rf" {{0,3}}{re.escape(mark[0])}{{{len(mark)},}}[ \t]*$")
        lines = [self._line(0)]
        self._at += 1
        while self._at < len(self._lines):
            lines.append(self._line(0))
            self._at += 1
            if closing.match(lines[-1]):
                break
        yield Block("\n".join(lines), str(self._path), kind=BlockKind.CODE)

    def _table(self) -> Iterator[Block]:
        rows = [_cells(self._line(0))]
        self._at += 2
        while "|" in self._line(0) and self._line(0).strip():
            rows.append(_cells(self._line(0)))
            self._at += 1
        yield from row_blocks(rows, heading=str(self._path), has_header=True)


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|")
    cells = [cell.replace("\\|", "|").strip() for cell in _CELL_END.split(inner)]
    return cells[:-1] if cells and not cells[-1] else cells
