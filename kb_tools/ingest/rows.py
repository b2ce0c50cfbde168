"""Tables as text: one block a row, every value behind the name of its column.

"姓名: 佐藤太郎; 年龄: 30" is found by its column names and stays true when read alone. A narrow
table of short values is shorter and as clear as it came, under a header line in every segment.
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence

from kb_tools.ingest.parsed import Block, BlockKind

_LONGEST_NAME = 60
_MOST_PLAIN_COLUMNS = 5
_LONGEST_LINE = 200
_NUMBER_OR_DATE = re.compile(r"[\s\d.,:/%+\-()（）¥￥$€°年月日]+|https?://\S+|\S+@\S+\.\S+")


def row_blocks(
    rows: Sequence[Sequence[str]],
    *,
    heading: str = "",
    page: int | None = None,
    has_header: bool | None = None,
) -> Iterator[Block]:
    """Yield a block for each row that is not blank; rows may differ in length.

    `has_header` None: the first row is looked at. A table of one row or column is just text.
    """
    rows = [row for row in rows if any(value.strip() for value in row)]
    if not rows:
        return
    if has_header is None:
        has_header = looks_like_header(rows)
    names = _names(rows[0]) if has_header and len(rows) > 1 else ()
    for row in rows[1:] if names else rows:
        yield row_block(names, row, heading=heading, page=page)


def line_blocks(rows: Sequence[Sequence[str]], delimiter: str) -> list[Block] | None:
    """Return the rows as they came, under their header line, if the table is easily read so.

    None for a table without header, of many columns, or with long or multi-line values.
    """
    rows = [row for row in rows if any(value.strip() for value in row)]
    if not rows or len(rows[0]) > _MOST_PLAIN_COLUMNS or not looks_like_header(rows):
        return None
    if any("\n" in value or len(value) > _LONGEST_NAME for row in rows for value in row):
        return None
    above, *lines = (_line(row, delimiter) for row in rows)
    return [Block(line, kind=BlockKind.TABLE, above=above) for line in lines]


def _line(row: Sequence[str], delimiter: str) -> str:
    line = io.StringIO()
    csv.writer(line, delimiter=delimiter, lineterminator="").writerow(row)
    return line.getvalue()


def row_block(
    columns: Sequence[str], values: Sequence[str], *, heading: str = "", page: int | None = None
) -> Block:
    """Return one row as a block; blank values are left out, values without a column stand alone."""
    named = tuple(columns)[: len(values)]
    names = [*named, *[""] * (len(values) - len(named))]
    cells = [
        f"{name}: {value.strip()}" if name else value.strip()
        for name, value in zip(names, values, strict=True)
        if value.strip()
    ]
    one_line = sum(map(len, cells)) <= _LONGEST_LINE and not any("\n" in cell for cell in cells)
    text = ("; " if one_line else "\n").join(cells)
    return Block(text, heading, page, BlockKind.TABLE, named)


def looks_like_header(rows: Sequence[Sequence[str]]) -> bool:
    """Tell whether the first row names the columns: short, different words, no numbers or dates."""
    first = [value.strip() for value in rows[0]]
    filled = [value for value in first if value]
    if len(rows) < 2 or len(first) < 2 or 2 * len(filled) < len(first):
        return False
    if len(set(filled)) < len(filled):
        return False
    if any(len(v) > _LONGEST_NAME or _NUMBER_OR_DATE.fullmatch(v) for v in filled):
        return False
    below = rows[1:50]
    return not any(
        value and any(len(row) > at and row[at].strip() == value for row in below)
        for at, value in enumerate(first)
    )


def _names(row: Sequence[str]) -> tuple[str, ...]:
    return tuple(" ".join(value.split()) for value in row)
