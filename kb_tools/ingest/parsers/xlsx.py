"""Excel workbooks: a sheet is a heading, a row is a block, each value behind its column's name.

A sheet is cut at its blank rows. The names may stand below a title, be several rows deep, and
cells may be merged. Numbers and dates are written as their format shows them.
"""

import io
import re
import warnings
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kb_tools.ingest.office_zip import check, damaged
from kb_tools.ingest.parsed import Block, BlockKind, HeadingPath, Limits, Parsed, ParseError, Parser
from kb_tools.ingest.rows import column_names, form_row, is_form, looks_like_header, row_block
from kb_tools.ingest.shown import shown

if TYPE_CHECKING:
    from kb_tools.models import Json

_MOST_ROWS = 1_048_576  # Excel's; more only in a file that was made to do harm
_HEADER_WITHIN = 10
_DEEPEST_HEADER = 4
_LONGEST_TITLE = 60
_LONGEST_MERGE = 1000
_DEFAULT_NAME = re.compile(r"(?:sheet|工作表|表)\s*\d*", re.I)
_PERIOD = re.compile(r"(?:19|20)\d\d\s*年?度?|\d{1,2}\s*月份?|Q[1-4]|第?[一二三四1-4]季度?", re.I)
_CHUNK = 1 << 20
_LONGEST_CELL = 1 << 15  # bytes of XML kept from a chunk for the next
_MERGED = re.compile(rb'<(?:\w+:)?mergeCell\s[^<>]{0,200}?ref="([A-Z]{1,3}\d+:[A-Z]{1,3}\d+)"')
_NO_VALUE = re.compile(
    rb"<(?:\w+:)?c ([^<>]{0,200})><(?:\w+:)?f(?:[^<>]{0,200}/>|[^<>]{0,200}>[^<]*</(?:\w+:)?f>)"
    rb"(?:<(?:\w+:)?v\s*/>|<(?:\w+:)?v></(?:\w+:)?v>)?</(?:\w+:)?c>"
)


def create() -> Parser:
    """Return the parser."""
    return parse


def parse(data: bytes, limits: Limits) -> Parsed:
    """Return the rows of all visible sheets in order; hidden sheets are named in the report."""
    check(data, "xlsx", limits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # openpyxl's, about extensions that it leaves out
        return _parse(data, limits)


def _parse(data: bytes, limits: Limits) -> Parsed:
    workbook = _load(data)
    try:
        visible = [sheet for sheet in workbook.worksheets if sheet.sheet_state == "visible"]
        hidden = [str(s.title) for s in workbook.worksheets if s.sheet_state != "visible"]
        if len(visible) > limits.max_pages:
            raise ParseError(
                f"too large: {len(visible):,} sheets, more than max_pages ({limits.max_pages:,})"
            )
        sheets = list(_sheets(visible, data, limits))
        properties = workbook.properties
    finally:
        workbook.close()
    blocks = tuple(block for sheet in sheets for block in _blocks(sheet, alone=len(sheets) == 1))
    if not blocks and hidden:
        raise ParseError(f"no text: only hidden sheets hold any ({', '.join(hidden)}); show them")
    found = {"title": properties.title or "", "author": properties.creator or ""}
    metadata = {name: value.strip() for name, value in found.items() if value.strip()}
    if metadata.get("author") == "openpyxl":
        del metadata["author"]
    return Parsed(blocks, metadata.get("title", ""), _report(sheets, hidden), {**metadata})


def _load(data: bytes) -> Any:  # openpyxl has no types
    import openpyxl

    try:
        return openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True)
    except (zipfile.BadZipFile, EOFError, KeyError, OSError, SyntaxError):
        raise damaged("xlsx") from None


@dataclass
class _Sheet:
    """A sheet's rows by their number, without blank ones, and what was noticed."""

    name: str
    rows: dict[int, list[str]] = field(default_factory=dict)
    merged: list[tuple[int, int, int, int]] = field(default_factory=list)
    without_value: int = 0  # formulas


def _sheets(sheets: Sequence[Any], data: bytes, limits: Limits) -> Iterator[_Sheet]:
    """Yield the sheets that hold anything."""
    characters = 0
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for source in sheets:
            sheet = _Sheet(str(source.title))
            source.reset_dimensions()  # what the file says of its size is often wrong
            for number, cells in enumerate(source.iter_rows(), 1):
                if number > _MOST_ROWS:
                    raise ParseError(
                        f"too large: sheet {sheet.name!r} has over {_MOST_ROWS:,} rows"
                    )
                values = [shown(cell.value, _format(cell)) for cell in cells]
                while values and not values[-1]:
                    values.pop()
                if not values:
                    continue
                sheet.rows[number] = values
                characters += sum(map(len, values))
                if characters > limits.max_characters:
                    raise ParseError(
                        f"too large: over {limits.max_characters:,} characters (max_characters) "
                        f"at row {number:,} of sheet {sheet.name!r}; split the file or raise "
                        "KB_MAX_CHARACTERS"
                    )
            _scan(archive, source._worksheet_path, sheet)
            if sheet.rows or sheet.without_value:
                yield sheet


def _format(cell: Any) -> str:
    try:
        return str(cell.number_format or "General")
    except (AttributeError, IndexError, KeyError):  # an empty cell; a style that is not there
        return "General"


def _scan(archive: zipfile.ZipFile, path: str, sheet: _Sheet) -> None:
    """Note merged cells and formulas without a value, which openpyxl's quick mode leaves out."""
    rest = b""
    with archive.open(path) as stream:
        while chunk := stream.read(_CHUNK):
            text = rest + chunk
            done = 0
            for found in _MERGED.finditer(text):
                sheet.merged.append(_bounds(found.group(1).decode()))
                done = found.end()
            for found in _NO_VALUE.finditer(text):
                sheet.without_value += b't="str"' not in found.group(1)
                done = max(done, found.end())
            rest = text[max(done, len(text) - _LONGEST_CELL) :]


def _bounds(reference: str) -> tuple[int, int, int, int]:
    """Return (first column, first row, last column, last row); columns from 0, rows from 1."""
    from openpyxl.utils import range_boundaries

    left, top, right, bottom = range_boundaries(reference)
    return left - 1, top, right - 1, bottom


def _blocks(sheet: _Sheet, *, alone: bool) -> Iterator[Block]:
    path = HeadingPath()
    if not (alone and _DEFAULT_NAME.fullmatch(sheet.name)):
        yield Block(sheet.name, path.enter(1, sheet.name), kind=BlockKind.HEADING)
    _fill_down(sheet)
    across: defaultdict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
    for bounds in sheet.merged:
        across[bounds[1]].append(bounds)
    names: list[str] = []
    regions = list(_regions(sheet.rows))
    for at, numbers in enumerate(regions, 1):
        rows = [sheet.rows[number] for number in numbers]
        if is_form(rows):
            yield from (form_row(row, heading=str(path)) for row in rows)
            continue
        above, names, below = _Region(sheet.rows, numbers, across).parts(names)
        yield from _above(above, path, is_last=at == len(regions) and not below)
        for row in below:
            yield row_block(names, row, heading=str(path))


def _fill_down(sheet: _Sheet) -> None:
    """Repeat the value of a cell that spans rows in each of them."""
    for left, top, _, bottom in sheet.merged:
        above = sheet.rows.get(top, [])
        value = above[left] if left < len(above) else ""
        if not value:
            continue
        for number in range(top + 1, min(bottom, top + _LONGEST_MERGE) + 1):
            row = sheet.rows.get(number)
            if row is None:  # nothing else stands in it
                continue
            row += [""] * (left + 1 - len(row))
            row[left] = row[left] or value


def _regions(rows: Mapping[int, Sequence[str]]) -> Iterator[list[int]]:
    """Yield the numbers of rows that follow each other without a blank row between."""
    region: list[int] = []
    for number in rows:
        if region and number != region[-1] + 1:
            yield region
            region = []
        region.append(number)
    if region:
        yield region


def _above(rows: Sequence[Sequence[str]], path: HeadingPath, *, is_last: bool) -> Iterator[Block]:
    """Yield what stands above the names: a title as heading for the table, then remarks.

    What stands alone at the end of a sheet is a remark.
    """
    for at, row in enumerate(rows):
        filled = [value for value in row if value]
        short = len(filled) == 1 and len(filled[0]) <= _LONGEST_TITLE
        if at == 0 and short and not is_last:
            yield Block(filled[0], path.enter(2, filled[0]), kind=BlockKind.HEADING)
        else:
            yield Block("; ".join(filled), str(path))


class _Region:
    """A run of rows without a blank one: perhaps a title, perhaps names, then rows."""

    def __init__(
        self,
        rows: Mapping[int, list[str]],
        numbers: Sequence[int],
        merged: Mapping[int, Sequence[tuple[int, int, int, int]]],
    ) -> None:
        self._rows = [rows[number] for number in numbers]
        self._numbers = numbers
        self._merged = merged

    def parts(self, names: list[str]) -> tuple[list[list[str]], list[str], list[list[str]]]:
        """Return (rows above the names, the names, rows); `names` are those of the region above.

        They go on where a region has none of its own and is no wider.
        """
        at = self._header()
        if at is not None:
            depth = self._depth(at)
            return self._rows[:at], self._names(at, depth), self._rows[at + depth :]
        titles = 0
        if len(self._rows) > 1 and max(map(_filled, self._rows)) > 1:
            while _filled(self._rows[titles]) == 1:
                titles += 1
        if len(self._rows) == 1 and _filled(self._rows[0]) == 1:  # a title or a remark
            return self._rows, [], []
        width = max(map(len, self._rows))
        if titles or width > len(names) or width == 1:
            names = []
        return self._rows[:titles], names, self._rows[titles:]

    def _header(self) -> int | None:
        """Return the place of the row that names the columns: filled like the rows below it."""
        for at in range(min(_HEADER_WITHIN, len(self._rows) - 1)):
            below = sorted(_filled(row) for row in self._rows[at + 1 : at + 30])
            usual = below[len(below) // 2]
            row = self._spread(at)
            depth = self._depth(at)
            if 10 * _filled(row) < 7 * usual or _filled(row) < 2 or at + depth >= len(self._rows):
                continue
            names = self._names(at, depth) if depth > 1 else row
            if looks_like_header([_without_periods(names), *self._rows[at + depth :]]):
                return at
        return None

    def _depth(self, at: int) -> int:
        """Return over how many rows the names go: as many as one of their cells spans."""
        first = self._numbers[at]
        spans = [b[3] - b[1] + 1 for b in self._merged.get(first, ()) if b[3] - b[1] < 4]
        wide = any(b[2] > b[0] for b in self._merged.get(first, ()))
        return min(max(spans, default=1), _DEEPEST_HEADER) if wide else 1

    def _spread(self, at: int) -> list[str]:
        """Return a row with each value repeated over the columns that it spans."""
        row = list(self._rows[at])
        for left, _, right, _ in self._merged.get(self._numbers[at], ()):
            value = row[left] if left < len(row) else ""
            last = min(right, left + _LONGEST_MERGE)
            if value and last > left:
                row += [""] * (last + 1 - len(row))
                row[left : last + 1] = [value] * (last + 1 - left)
        return row

    def _names(self, at: int, depth: int) -> list[str]:
        """Return a name for each column, "2024年 收入" where it goes over two rows."""
        return column_names([self._spread(place) for place in range(at, at + depth)])


def _filled(row: Sequence[str]) -> int:
    return sum(bool(value) for value in row)


def _without_periods(names: Sequence[str]) -> list[str]:
    """Mark two or more years, quarters or months as names, which numbers are not."""
    periods = [name for name in names if _PERIOD.fullmatch(name)]
    if len(periods) < 2 or len(periods) == len(names):
        return list(names)
    return [f"in {name}" if name in periods else name for name in names]


def _report(sheets: Sequence[_Sheet], hidden: Sequence[str]) -> "dict[str, Json]":
    report: dict[str, Json] = {"sheets": len(sheets)}
    notes: list[Json] = []
    if hidden:
        report["hidden_sheets"] = [*hidden]
        notes.append(f"hidden, and not read: {', '.join(hidden)}")
    notes += [
        f"sheet {sheet.name!r}: {sheet.without_value:,} formula(s) without a value; open and save "
        "the file in a spreadsheet program"
        for sheet in sheets
        if sheet.without_value
    ]
    if notes:
        report["warnings"] = notes
    return report
