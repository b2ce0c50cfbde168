"""Comma-separated values, and the same with semicolons, tabs or bars: one block a row."""

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence

from kb_tools.ingest.encodings import decode
from kb_tools.ingest.parsed import Block, Limits, Parsed, ParseError, Parser
from kb_tools.ingest.rows import line_blocks, row_blocks, title_rows

DELIMITERS = ",;\t|"
_SAMPLE_ROWS = 200
_SAMPLE_CHARACTERS = 200_000
_SEP_LINE = re.compile(r"sep=(.)\r?\n", re.IGNORECASE)
# A quoted field of more lines than this is a quotation mark that nobody closed.
_MOST_LINES = 2000


def create() -> Parser:
    """Return the parser."""
    return parse


def parse(data: bytes, limits: Limits) -> Parsed:
    """Return the rows with their column names, if the first row holds names."""
    decoded = decode(data)
    text = decoded.text.replace("\x00", "")
    named = _SEP_LINE.match(text)
    delimiter = named.group(1) if named else _delimiter(text[:_SAMPLE_CHARACTERS])
    rows, warning = _rows(text[named.end() :] if named else text, delimiter, limits)
    report = decoded.report
    if warning:
        known = report.get("warnings")
        report["warnings"] = [*(known if isinstance(known, list) else []), warning]
    rows = [row for row in rows if any(value.strip() for value in row)]
    titles = title_rows(rows)
    table = rows[len(titles) :]
    blocks = line_blocks(table, delimiter) or row_blocks(table)
    return Parsed((*map(Block, titles), *blocks), report=report)


def _rows(text: str, delimiter: str, limits: Limits) -> tuple[list[list[str]], str | None]:
    rows = _read(text, delimiter, csv.QUOTE_MINIMAL, limits)
    longest = max((value.count("\n") for row in rows for value in row), default=0)
    if longest > _MOST_LINES and text.count('"') % 2:
        rows = _read(text, delimiter, csv.QUOTE_NONE, limits)
        return rows, "a quotation mark is never closed; quotation marks were read as text"
    return rows, None


def _read(text: str, delimiter: str, quoting: int, limits: Limits) -> list[list[str]]:
    csv.field_size_limit(max(limits.max_characters, 131_072))
    lines = io.StringIO(text, newline="")
    try:
        return list(csv.reader(lines, delimiter=delimiter, quoting=quoting))  # type: ignore[arg-type]
    except csv.Error as error:
        raise ParseError(f"not a readable csv: {error}") from None


def _delimiter(sample: str) -> str:
    """Return the delimiter that cuts most rows into the same number of fields, more than one."""
    scores = {mark: _evenness(sample, mark) for mark in DELIMITERS}
    return max(scores, key=scores.__getitem__)


def _evenness(sample: str, delimiter: str) -> tuple[float, int]:
    try:
        rows = _some_rows(sample, delimiter)
    except csv.Error:
        return 0.0, 0
    widths = Counter(len(row) for row in rows if row)
    if not widths:
        return 0.0, 0
    width, count = widths.most_common(1)[0]
    return (count / widths.total() if width > 1 else 0.0), width


def _some_rows(sample: str, delimiter: str) -> Sequence[Sequence[str]]:
    csv.field_size_limit(max(len(sample) + 1, 131_072))
    reader = csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter)
    return [row for row, _ in zip(reader, range(_SAMPLE_ROWS), strict=False)]
