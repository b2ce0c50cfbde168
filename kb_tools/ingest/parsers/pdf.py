"""PDF: lines with their places, joined to paragraphs, tables where columns line up, two columns.

pdfium gives the text in the order of the page's own stream, which is the reading order in nearly
all files. It is not thread-safe: this runs in the child process, which has one thread for it.
"""

import ctypes
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product, takewhile
from typing import TYPE_CHECKING

import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_c

from kb_tools.ingest.parsed import (
    Block,
    BlockKind,
    HeadingPath,
    Limits,
    NoTextLayer,
    Parsed,
    ParseError,
    Parser,
    chapter_level,
    page_list,
)
from kb_tools.ingest.rows import looks_like_header, row_blocks

if TYPE_CHECKING:
    from kb_tools.models import Json

_HYPHEN = "\ufffe"  # pdfium's mark of a hyphen at a line's end; elsewhere, of a nameless glyph
_WIDE = (
    "\u2e80-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff00-\uffef\u2018-\u201d\u2026\u2014"
    "\U00020000-\U0003ffff"
)
_ENDS_WIDE = re.compile(rf"[{_WIDE}]$")
_STARTS_WIDE = re.compile(rf"[{_WIDE}]")
_LONGEST_BOOKMARK = 120
_UNREADABLE = re.compile("[\ufffd\ue000-\uf8ff\x00-\x08\x0e-\x1f]")
_DIGITS = re.compile(r"\d+")
_PASSWORD = 4  # pdfium's FPDF_ERR_PASSWORD
_NO_TITLE = re.compile(
    r"\(?(?:untitled|anonymous|无标题|無標題|新建.{0,20}|document\s?\d*|文档\s?\d*|"
    r"powerpoint (?:presentation|演示文稿)|microsoft word - .*|slide 1|幻灯片\s?1)"
    r"(?:\s?document|文档|文檔)?(?:\.\w{2,4})?\)?",
    re.I,
)  # what programs write where nobody gave a title
_PAGE_MARK = "\0"
_MOST_NUMBERS = 3
_MARGIN_LINES = 2  # running heads and feet are looked for in so many lines of either end
_GAP = 1.2  # heights: a blank this wide parts cells or columns


def create() -> Parser:
    """Return the parser."""
    return parse


def parse(data: bytes, limits: Limits) -> Parsed:
    """Return the paragraphs and table rows with their pages."""
    pdf = _open(data)
    try:
        if len(pdf) > limits.max_pages:
            raise ParseError(
                f"too large: {len(pdf):,} pages, more than max_pages ({limits.max_pages:,}); "
                "split the file or raise KB_MAX_PAGES"
            )
        metadata = _metadata(pdf)
        chapters = _bookmarks(pdf)
        pages, empty, blank = _read_pages(pdf, limits)
    finally:
        pdf.close()
    if not any(pages):
        _refuse(empty, blank)
    blocks = tuple(_Layout(chapters).blocks(_without_running_heads(pages)))
    report = _report(pages, empty)
    return Parsed(blocks, metadata.get("title", ""), report, {**metadata})


@dataclass(frozen=True)
class _Cell:
    """A stretch of a line without a wide blank."""

    text: str
    left: float
    right: float


@dataclass(frozen=True)
class _Line:
    """A line of a page; y grows upwards."""

    page: int
    cells: tuple[_Cell, ...]
    bottom: float
    top: float
    page_width: float

    @property
    def text(self) -> str:
        return " ".join(cell.text for cell in self.cells)

    @property
    def left(self) -> float:
        return self.cells[0].left

    @property
    def right(self) -> float:
        return self.cells[-1].right

    @property
    def height(self) -> float:
        return max(self.top - self.bottom, 1.0)


def _open(data: bytes) -> pdfium.PdfDocument:
    try:
        pdf = pdfium.PdfDocument(data)
        len(pdf)
    except pdfium.PdfiumError as error:
        if getattr(error, "err_code", None) == _PASSWORD:
            raise ParseError("encrypted: needs a password; save the file without one") from None
        raise ParseError("not a readable PDF (truncated or damaged)") from None
    return pdf


def _metadata(pdf: pdfium.PdfDocument) -> dict[str, str]:
    found = pdf.get_metadata_dict(skip_empty=True)
    wanted = {"title": found.get("Title", ""), "author": found.get("Author", "")}
    return {
        name: value.strip()
        for name, value in wanted.items()
        if value.strip() and not _NO_TITLE.fullmatch(value.strip())
    }


def _bookmarks(pdf: pdfium.PdfDocument) -> dict[tuple[int, str], int]:
    """Return (page, bare title) -> level of the bookmarks."""
    found: dict[tuple[int, str], int] = {}
    try:
        for mark in pdf.get_toc(max_depth=6):
            place = mark.get_dest()
            page = place.get_index() if place else None
            if page is not None:
                found[page + 1, _bare(mark.get_title())] = mark.level + 1
    except (pdfium.PdfiumError, UnicodeError):
        return found
    return found


def _bare(text: str) -> str:
    return "".join(text.split()).lower()


def _read_pages(
    pdf: pdfium.PdfDocument, limits: Limits
) -> tuple[list[list[_Line]], list[int], list[int]]:
    """Return (lines of each page, pages with pictures but no text, pages with nothing)."""
    pages: list[list[_Line]] = []
    empty: list[int] = []
    blank: list[int] = []
    characters = 0
    for number in range(1, len(pdf) + 1):
        lines, has_objects = _read_page(pdf, number)
        pages.append(lines)
        if not lines:
            (empty if has_objects else blank).append(number)
        characters += sum(len(line.text) for line in lines)
        if characters > limits.max_characters:
            raise ParseError(
                f"too large: over {limits.max_characters:,} characters (max_characters) at page "
                f"{number}; split the file or raise KB_MAX_CHARACTERS"
            )
    return pages, empty, blank


def _read_page(pdf: pdfium.PdfDocument, number: int) -> tuple[list[_Line], bool]:
    try:
        page = pdf[number - 1]
    except pdfium.PdfiumError:
        return [], True
    try:
        text_page = page.get_textpage()
        lines = list(_lines(text_page.raw, number, page.get_width()))
        return lines, pdfium_c.FPDFPage_CountObjects(page.raw) > 0
    except pdfium.PdfiumError:
        return [], True
    finally:
        page.close()


def _lines(text_page: ctypes.c_void_p, page: int, width: float) -> Iterator[_Line]:
    """Yield the lines of a page; pdfium ends each with a line end that is in no font."""
    places: list[int] = []
    for at in range(max(pdfium_c.FPDFText_CountChars(text_page), 0)):
        code = pdfium_c.FPDFText_GetUnicode(text_page, at)
        if code in (10, 13):
            yield from _line(text_page, places, page, width)
            places = []
        else:
            places.append(at)
    yield from _line(text_page, places, page, width)


def _line(
    text_page: ctypes.c_void_p, places: Sequence[int], page: int, width: float
) -> Iterator[_Line]:
    letters = [_letter(pdfium_c.FPDFText_GetUnicode(text_page, at)) for at in places]
    inked = [at for at, letter in enumerate(letters) if not letter.isspace()]
    if not inked:
        return
    first = _box(text_page, places[inked[0]])
    boxes = [
        first,
        _box(text_page, places[inked[len(inked) // 2]]),
        _box(text_page, places[inked[-1]]),
    ]
    bottom, top = min(box[1] for box in boxes), max(box[3] for box in boxes)
    height = max(top - bottom, 1.0)
    cells: list[_Cell] = []
    start, left = inked[0], first[0]
    for before, at in pairwise(inked):
        if at == before + 1:
            continue
        ended, begun = _box(text_page, places[before]), _box(text_page, places[at])
        if begun[0] - ended[2] > _GAP * height:
            cells.append(_Cell(_joined_letters(letters[start : before + 1]), left, ended[2]))
            start, left = at, begun[0]
    cells.append(_Cell(_joined_letters(letters[start : inked[-1] + 1]), left, boxes[-1][2]))
    yield _Line(page, tuple(cells), bottom, top, width)


def _letter(code: int) -> str:
    return chr(code) if code else " "


def _joined_letters(letters: Sequence[str]) -> str:
    """Return the text, with the halves of UTF-16 pairs that pdfium gives apart put together."""
    text = "".join(letters)
    if any("\ud800" <= letter <= "\udfff" for letter in letters):
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _box(text_page: ctypes.c_void_p, at: int) -> tuple[float, float, float, float]:
    """Return (left, bottom, right, top) of a character, as high as its font."""
    box = pdfium_c.FS_RECTF()
    pdfium_c.FPDFText_GetLooseCharBox(text_page, at, box)
    return box.left, min(box.bottom, box.top), box.right, max(box.bottom, box.top)


def _without_running_heads(pages: Sequence[list[_Line]]) -> list[list[_Line]]:
    """Leave out heads, feet and page numbers that most pages share, but for their first time."""
    edges = Counter(
        key for lines in pages for key in {key for line in _edge(lines) for key in _keys(line)}
    )
    most = max(3, len([lines for lines in pages if lines]) // 2)
    seen: set[str] = set()
    kept: list[list[_Line]] = []
    for lines in pages:
        edge = {id(line) for line in _edge(lines)}
        page = []
        for at, line in enumerate(lines):
            keys = _keys(line) if id(line) in edge else set()
            # To count with the pages is no accident, on however few of them.
            running = {key for key in keys if edges[key] >= (3 if _PAGE_MARK in key else most)}
            again = running and (running & seen or _bare_edge(line).isdigit())
            if not again or _table_at(lines, at):  # the names of a table that goes on
                page.append(line)
            seen |= running
        kept.append(page)
    return kept


def _edge(lines: Sequence[_Line]) -> list[_Line]:
    """Return the lines at the top and bottom of a page, wherever they are in its stream."""
    down = sorted(lines, key=lambda line: -line.top)
    return down[:_MARGIN_LINES] + down[_MARGIN_LINES:][-_MARGIN_LINES:]


def _keys(line: _Line) -> set[str]:
    """Return what a line shares with its like on other pages.

    Each of its numbers stays as it is or is counted from the page's: rows of a table whose numbers
    grow otherwise are not alike.
    """
    text = _bare_edge(line)
    numbers = _DIGITS.findall(text)
    if len(numbers) > _MOST_NUMBERS or any(len(number) > 6 for number in numbers):
        return {text}
    between = _DIGITS.split(text)
    ways = product(*((n, f"{_PAGE_MARK}{int(n) - line.page}{_PAGE_MARK}") for n in numbers))
    return {"".join(map(str.__add__, between, (*way, ""))) for way in ways}


def _bare_edge(line: _Line) -> str:
    return _bare(line.text).strip("-–—/·")


class _Layout:
    """Turns the lines of all pages into blocks."""

    def __init__(self, bookmarks: dict[tuple[int, str], int]) -> None:
        self._bookmarks = bookmarks
        self._path = HeadingPath()

    def blocks(self, pages: Sequence[list[_Line]]) -> Iterator[Block]:
        open_lines: list[_Line] = []  # a paragraph that may go on, also on the next page
        names: _Line | None = None  # of a table that the page before ended with
        for lines in pages:
            lines = _in_columns(lines)
            margins = _Margins(lines)
            repeated = names and lines and lines[0].text == names.text
            rows = _rows_under(names, lines) if names and not repeated else []
            at = max(len(rows) - 1, 0)
            if rows:
                yield from self._table(rows, lines[0])
            if lines:
                names = names if rows and at == len(lines) else None
            while at < len(lines):
                rows = _table_at(lines, at)
                level = 0 if rows else self._level(lines[at])
                if rows or level or not (open_lines and margins.go_on(open_lines[-1], lines[at])):
                    yield from self._paragraph(open_lines)
                    open_lines = []
                if rows:
                    yield from self._table(rows, lines[at])
                    names = lines[at] if at + len(rows) == len(lines) else None
                    at += len(rows)
                    continue
                if level:
                    yield self._heading(lines[at], level)
                else:
                    open_lines.append(lines[at])
                at += 1
        yield from self._paragraph(open_lines)

    def _table(self, rows: Sequence[Sequence[str]], first: _Line) -> Iterator[Block]:
        return row_blocks(rows, heading=str(self._path), page=first.page, has_header=True)

    def _level(self, line: _Line) -> int:
        text = line.text.strip()
        if len(text) > _LONGEST_BOOKMARK:
            return 0
        return self._bookmarks.get((line.page, _bare(text))) or chapter_level(text)

    def _heading(self, line: _Line, level: int) -> Block:
        text = _tidy(line.text)
        return Block(text, self._path.enter(level, text), line.page, BlockKind.HEADING)

    def _paragraph(self, lines: Sequence[_Line]) -> Iterator[Block]:
        if not lines:
            return
        text = lines[0].text
        for line in lines[1:]:
            text = _join(text, line.text)
        text = _tidy(text)
        if text:
            yield Block(text, str(self._path), lines[0].page)


def _join(text: str, following: str) -> str:
    if text.endswith(_HYPHEN):
        return text[:-1] + ("" if following[:1].islower() else "-") + following
    if text.endswith("-") and len(text) > 1 and text[-2].isalpha() and following[:1].islower():
        return text[:-1] + following
    if _ENDS_WIDE.search(text) and _STARTS_WIDE.match(following):
        return text + following
    return f"{text} {following}"


def _tidy(text: str) -> str:
    return " ".join(text.replace(_HYPHEN, " ").split())


class _Margins:
    """Tells whether a line goes on with the paragraph of the line before."""

    def __init__(self, lines: Sequence[_Line]) -> None:
        self._left = min((line.left for line in lines), default=0.0)
        # A page of short lines, a slide, has no right margin that a line could reach.
        self._right = max((max(line.right, 0.6 * line.page_width) for line in lines), default=0.0)
        self._middle = (self._left + self._right) / 2
        beside = sum(line.left > self._middle for line in lines)
        self._two_columns = 4 * beside > len(lines)
        gaps = sorted(a.bottom - b.top for a, b in pairwise(lines) if a.bottom > b.top)
        self._gap = gaps[len(gaps) // 2] if gaps else 0.0

    def go_on(self, line: _Line, following: _Line) -> bool:
        if max(line.height, following.height) > 1.3 * min(line.height, following.height):
            return False
        if len(line.cells) > 1 or len(following.cells) > 1:
            return False
        if following.page > line.page + 1:  # a page between gave no text
            return False
        if line.page == following.page and not self._is_next(line, following):
            return False
        indent = following.left - line.left
        if indent > 0.8 * line.height and following.left > self._left + 0.8 * line.height:
            return False
        return line.right + _first_word_width(following) > self._column_right(line)

    def _is_next(self, line: _Line, following: _Line) -> bool:
        between = line.bottom - following.top
        usual = min(1.2 * self._gap, 1.6 * line.height)
        return -line.height < between < max(0.9 * line.height, usual)

    def _column_right(self, line: _Line) -> float:
        if self._two_columns and line.right < self._middle + line.height:
            return self._middle - line.height
        return self._right - line.height


def _first_word_width(line: _Line) -> float:
    text = line.text
    letter = (line.right - line.left) / max(len(text), 1)
    if _STARTS_WIDE.match(text):
        return letter * 1.5
    return letter * (len(text.split(maxsplit=1)[0]) + 1)


def _in_columns(lines: list[_Line]) -> list[_Line]:
    """Read two columns one after the other where the page's stream goes across both.

    Such lines have two long parts with the gap at one place; in a table the parts are short.
    """
    pairs = [line for line in lines if len(line.cells) == 2 and _are_long(line)]
    if len(pairs) < 6 or 2 * len(pairs) < len(lines):
        return lines
    gutter = (max(p.cells[0].right for p in pairs) + min(p.cells[1].left for p in pairs)) / 2
    if any(p.cells[0].right > gutter or p.cells[1].left < gutter for p in pairs):
        return lines
    ordered: list[_Line] = []
    left: list[_Line] = []
    right: list[_Line] = []
    for line in lines:
        if line.left < gutter < line.right and line not in pairs:
            ordered += [*left, *right, line]
            left, right = [], []
            continue
        left += [replace(line, cells=(cell,)) for cell in line.cells if cell.right <= gutter]
        right += [replace(line, cells=(cell,)) for cell in line.cells if cell.left >= gutter]
    return [*ordered, *left, *right]


def _are_long(line: _Line) -> bool:
    return all(cell.right - cell.left > 12 * line.height for cell in line.cells)


def _table_at(lines: Sequence[_Line], at: int) -> list[list[str]]:
    """Return the rows of a table that begins at this line: a header, then cells below its names.

    Row labels may stand to the left of all names.
    """
    if len(lines[at].cells) < 2:
        return []
    rows = _rows_under(lines[at], lines[at + 1 :])
    return rows if len(rows) > 2 and looks_like_header(rows) else []


def _rows_under(names: _Line, lines: Sequence[_Line]) -> list[list[str]]:
    """Return the names and the rows that line up with them; nothing if the first line does not."""
    rows = list(takewhile(bool, (_row_under(names.cells, line) or [] for line in lines)))
    if not rows:
        return []
    rows.insert(0, ["", *(_tidy(cell.text) for cell in names.cells)])
    return rows if any(row[0] for row in rows) else [row[1:] for row in rows]


def _row_under(header: Sequence[_Cell], line: _Line) -> list[str] | None:
    """Return the line's label and cells by column; None if they do not line up with the header."""
    if len(line.cells) < 2:
        return None
    row = [""] * (len(header) + 1)
    for cell in line.cells:
        under = [
            at
            for at, name in enumerate(header, 1)
            if min(cell.right, name.right) > max(cell.left, name.left)
        ]
        if not under and cell.right < header[0].left:
            under = [0]
        if len(under) != 1 or row[under[0]]:
            return None
        row[under[0]] = _tidy(cell.text)
    return row


def _refuse(empty: Sequence[int], blank: Sequence[int]) -> None:
    if empty:
        raise NoTextLayer(f"no text layer ({page_list(empty)}); run OCR first", empty)
    raise ParseError(f"no text: {page_list(blank) or 'no pages'} hold nothing")


def _report(pages: Sequence[list[_Line]], empty: Sequence[int]) -> "dict[str, Json]":
    report: dict[str, Json] = {"pages": len(pages)}
    warnings: list[Json] = []
    if empty:
        report["pages_without_text"] = [*empty]
        warnings.append(f"no text layer: {page_list(empty)}; run OCR to find their text")
    strange = [number for number, lines in enumerate(pages, 1) if _is_unreadable(lines)]
    if strange:
        warnings.append(f"fonts without Unicode: the text of {page_list(strange)} is not readable")
    if warnings:
        report["warnings"] = warnings
    return report


def _is_unreadable(lines: Sequence[_Line]) -> bool:
    text = "".join(line.text for line in lines)
    return len(text) > 0 and len(_UNREADABLE.findall(text)) > 0.2 * len(text)
