"""Word documents: paragraphs, lists with their numbers, tables as rows, text boxes, footnotes.

The XML is walked here: python-docx's own iteration leaves out content controls (most tables of
contents and forms), tracked insertions and text boxes.
"""

import io
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from kb_tools.ingest.office_zip import check, damaged
from kb_tools.ingest.parsed import (
    HEADING_MARK,
    Block,
    BlockKind,
    HeadingPath,
    Limits,
    Parsed,
    Parser,
    chapter_level,
)
from kb_tools.ingest.rows import column_names, row_blocks

if TYPE_CHECKING:
    from docx.document import Document as WordDocument
    from lxml.etree import _Element

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_TYPES = "application/vnd.%s.main+xml"
_TEMPLATE = _TYPES % "openxmlformats-officedocument.wordprocessingml.template"
_WITH_MACROS = _TYPES % "ms-word.document.macroEnabled"
_TEMPLATE_WITH_MACROS = _TYPES % "ms-word.template.macroEnabledTemplate"
_HEADING_STYLE = re.compile(r"(?:heading|标题|標題|見出し|제목|überschrift|titre)\s*([1-9])", re.I)
_TITLE_STYLE = re.compile(r"title|标题|標題|表題", re.I)
_NOT_TEXT = frozenset(
    f"{_W}{tag}" for tag in ("del", "moveFrom", "instrText", "txbxContent", "rPr", "pPr")
)
_MARKS = {f"{_W}tab": "\t", f"{_W}br": "\n", f"{_W}cr": "\n", f"{_W}noBreakHyphen": "-"}
_PLACE = re.compile(r"%([1-9])")
_CHINESE_STYLES = frozenset((
    "chineseCounting", "chineseCountingThousand", "ideographDigital", "japaneseCounting",
    "taiwaneseCounting", "taiwaneseCountingThousand",
))  # fmt: skip
_DEEPEST_HEADER = 4
_CHINESE = "零一二三四五六七八九"
_FOOTNOTES = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/footnotes"


def create() -> Parser:
    """Return the parser."""
    return parse


def parse(data: bytes, limits: Limits) -> Parsed:
    """Return the blocks in the order of the document, footnotes last."""
    document = _open(data, limits)
    blocks = tuple(_Reader(document).blocks())
    properties = document.core_properties
    metadata = {
        "title": properties.title or "",
        "author": properties.author or "",
        "language": properties.language or "",
    }
    metadata = {name: value.strip() for name, value in metadata.items() if value.strip()}
    title = metadata.get("title") or next((block.text for block in blocks if _is_title(block)), "")
    return Parsed(blocks, title, {}, {**metadata})


def _is_title(block: Block) -> bool:
    return block.kind is BlockKind.HEADING and HEADING_MARK not in block.heading


def _open(data: bytes, limits: Limits) -> "WordDocument":
    check(data, "docx", limits)
    return _load(data)


def _load(data: bytes) -> "WordDocument":
    from docx.opc.exceptions import OpcError
    from docx.opc.part import PartFactory
    from docx.package import Package
    from docx.parts.document import DocumentPart
    from lxml.etree import XMLSyntaxError

    # docx.Document refuses templates and documents with macros, which are the same inside.
    for kind in (_TEMPLATE, _WITH_MACROS, _TEMPLATE_WITH_MACROS):
        PartFactory.part_type_for[kind] = DocumentPart
    try:
        part = Package.open(io.BytesIO(data)).main_document_part
    except (zipfile.BadZipFile, EOFError, KeyError, ValueError, OSError, OpcError, XMLSyntaxError):
        raise damaged("docx") from None
    if not isinstance(part, DocumentPart):
        raise damaged("docx")
    document: WordDocument = part.document
    return document


class _Reader:
    """Walks over the body once."""

    def __init__(self, document: "WordDocument") -> None:
        self._document = document
        self._path = HeadingPath()
        self._levels = _heading_levels(document)
        self._numbers = _Numbering(document)
        paragraphs = document.element.body.iter(f"{_W}p")
        self._has_headings = any(self._level(paragraph) for paragraph in paragraphs)

    def blocks(self) -> Iterator[Block]:
        yield from self._inside(self._document.element.body)
        yield from self._footnotes()

    def _inside(self, container: "_Element") -> Iterator[Block]:
        for child in container:
            if child.tag == f"{_W}p":
                yield from self._paragraph(child)
            elif child.tag == f"{_W}tbl":
                yield from self._table(child)
            elif child.tag in (f"{_W}sdt", f"{_W}sdtContent", f"{_W}customXml", f"{_W}ins"):
                yield from self._inside(child)

    def _paragraph(self, paragraph: "_Element") -> Iterator[Block]:
        text = _text(paragraph).strip("\n")
        if text.strip():
            text = f"{self._numbers.label(paragraph)}{text}"
            level = self._level(paragraph)
            if level is None and not self._has_headings:
                level = chapter_level(text) or None
            if level is None:
                yield Block(text, str(self._path))
            else:
                yield Block(text.strip(), self._path.enter(level, text), kind=BlockKind.HEADING)
        for box in _text_boxes(paragraph):
            yield from self._inside(box)

    def _level(self, paragraph: "_Element") -> int | None:
        properties = paragraph.find(f"{_W}pPr")
        if properties is None:
            return None
        outline = _value(properties, "outlineLvl")
        if outline.isdigit() and int(outline) < 9:
            return int(outline) + 1
        return self._levels.get(_value(properties, "pStyle"))

    def _table(self, table: "_Element") -> Iterator[Block]:
        rows = _rows(table)
        if max(map(len, rows), default=0) < 2:  # a frame around text
            for cell in table.iterfind(f"{_W}tr/{_W}tc"):
                yield from self._inside(cell)
            return
        depth = _header_depth(table)
        if depth and depth < len(rows):
            rows = [column_names(_rows(table, spread=True)[:depth]), *rows[depth:]]
        yield from row_blocks(rows, heading=str(self._path), has_header=True if depth else None)

    def _footnotes(self) -> Iterator[Block]:
        from lxml import etree

        for relation in self._document.part.rels.values():
            if relation.reltype != _FOOTNOTES or relation.is_external:
                continue
            parser = etree.XMLParser(resolve_entities=False)
            notes = etree.fromstring(relation.target_part.blob, parser)
            for note in notes.iterfind(f"{_W}footnote"):
                text = "\n".join(_text(paragraph) for paragraph in note.iter(f"{_W}p")).strip()
                if text:
                    yield Block(text, str(self._path))


def _value(properties: "_Element", name: str) -> str:
    element = properties.find(f"{_W}{name}")
    return "" if element is None else str(element.get(f"{_W}val") or "")


def _text(element: "_Element") -> str:
    """Return the text of a paragraph without deleted text, field codes and text boxes."""
    parts: list[str] = []
    waiting = list(reversed(element))
    while waiting:
        child = waiting.pop()
        if child.tag == f"{_W}t":
            parts.append(child.text or "")
        elif child.tag in _MARKS:
            parts.append(_MARKS[child.tag])
        elif child.tag not in _NOT_TEXT and child.tag != _FALLBACK:
            waiting += reversed(child)
    return "".join(parts)


def _text_boxes(paragraph: "_Element") -> Iterator["_Element"]:
    """Yield the outermost text boxes; Word writes each twice, the second time for old readers."""
    waiting = list(reversed(paragraph))
    while waiting:
        child = waiting.pop()
        if child.tag == f"{_W}txbxContent":
            yield child
        elif child.tag != _FALLBACK:
            waiting += reversed(child)


def _rows(table: "_Element", *, spread: bool = False) -> list[list[str]]:
    """Return the cells' texts; a cell that spans rows is repeated in each.

    In the columns that it spans, it is repeated if `spread`, else it stands in the first.
    """
    rows: list[list[str]] = []
    for row in _own_rows(table):
        values: list[str] = []
        for cell in _own_cells(row):
            text = _cell(cell, rows[-1] if rows else [], len(values))
            values += [text, *[text if spread else ""] * (_width(cell) - 1)]
        rows.append(values)
    return rows


def _own_rows(table: "_Element") -> Iterator["_Element"]:
    """Yield the rows that are not those of a table inside."""
    for row in table.iter(f"{_W}tr"):
        if next(row.iterancestors(f"{_W}tbl"), None) is table:
            yield row


def _own_cells(row: "_Element") -> Iterator["_Element"]:
    for cell in row.iter(f"{_W}tc"):
        if next(cell.iterancestors(f"{_W}tr"), None) is row:
            yield cell


def _cell(cell: "_Element", above: list[str], at: int) -> str:
    if _goes_on(cell):
        return above[at] if at < len(above) else ""
    return "\n".join(_cell_lines(cell)).strip()


def _goes_on(cell: "_Element") -> bool:
    """Tell whether a cell is a part of the one above."""
    merged = cell.find(f"{_W}tcPr/{_W}vMerge")
    return merged is not None and merged.get(f"{_W}val") != "restart"


def _width(cell: "_Element") -> int:
    properties = cell.find(f"{_W}tcPr")
    span = "" if properties is None else _value(properties, "gridSpan")
    return min(max(int(span), 1), 100) if span.isdigit() else 1


def _header_depth(table: "_Element") -> int:
    """Return how many rows name the columns; 0 if the table does not say.

    They are marked, or the first has a cell over columns and one over the rows of names.
    """
    rows = list(islice(_own_rows(table), _DEEPEST_HEADER + 1))
    is_marked = [row.find(f"{_W}trPr/{_W}tblHeader") is not None for row in rows]
    if any(is_marked):
        return max(1, len(list(takewhile(bool, is_marked))))
    if not rows or not any(_width(cell) > 1 for cell in _own_cells(rows[0])):
        return 0
    below = takewhile(lambda row: any(map(_goes_on, _own_cells(row))), rows[1:])
    depth = 1 + len(list(below))
    return depth if 1 < depth <= _DEEPEST_HEADER else 0


def _cell_lines(cell: "_Element") -> Iterator[str]:
    """Yield the lines of a cell; a row of a table inside it is a line."""
    for child in cell:
        if child.tag == f"{_W}p":
            yield _text(child)
            for box in _text_boxes(child):
                yield from _cell_lines(box)
        elif child.tag == f"{_W}tbl":
            yield from (" | ".join(filter(None, row)) for row in _rows(child))
        elif child.tag in (f"{_W}sdt", f"{_W}sdtContent", f"{_W}customXml", f"{_W}ins"):
            yield from _cell_lines(child)


def _heading_levels(document: "WordDocument") -> dict[str, int]:
    """Return style id -> level: by name, by outline level, or by the style that it is based on."""
    levels: dict[str, int] = {}
    bases: dict[str, str] = {}
    for style in document.styles.element.iterfind(f"{_W}style"):
        key = str(style.get(f"{_W}styleId") or "")
        name = _value(style, "name").strip()
        bases[key] = _value(style, "basedOn")
        properties = style.find(f"{_W}pPr")
        outline = "" if properties is None else _value(properties, "outlineLvl")
        if named := _HEADING_STYLE.fullmatch(name):
            levels[key] = int(named.group(1))
        elif _TITLE_STYLE.fullmatch(name):
            levels[key] = 0
        elif outline.isdigit() and int(outline) < 9:
            levels[key] = int(outline) + 1
    for key in bases:
        base, steps = bases[key], 0
        while key not in levels and base and steps < 20:
            if base in levels:
                levels[key] = levels[base]
            base, steps = bases.get(base, ""), steps + 1
    return levels


class _Numbering:
    """Writes the numbers that Word counts by itself: "第一条 ", "1.2. ", and "- " for bullets."""

    def __init__(self, document: "WordDocument") -> None:
        self._abstract_of: dict[str, str] = {}
        self._levels: dict[str, dict[int, _Element]] = {}
        self._style_numbers: dict[str, tuple[str, str]] = {}
        self._counts: dict[str, defaultdict[int, int]] = {}
        self._read_styles(document)
        self._read_lists(document)

    def label(self, paragraph: "_Element") -> str:
        """Count the paragraph and return its number with a blank; "" if it has none."""
        number, depth = self._place(paragraph)
        level = self._levels.get(self._abstract_of.get(number, ""), {}).get(depth)
        if level is None:
            return ""
        counts = self._counts.setdefault(self._abstract_of[number], defaultdict(int))
        counts[depth] = counts[depth] + 1 if counts[depth] else self._first(level)
        for deeper in [at for at in counts if at > depth]:
            counts[deeper] = 0
        if _value(level, "numFmt") == "bullet":
            return "- "
        label = _PLACE.sub(
            lambda m: self._shown(number, int(m.group(1)) - 1), _value(level, "lvlText")
        )
        return f"{label} " if label.strip() else ""

    def _place(self, paragraph: "_Element") -> tuple[str, int]:
        properties = paragraph.find(f"{_W}pPr")
        if properties is None:
            return "", 0
        own = properties.find(f"{_W}numPr")
        styled = self._style_numbers.get(_value(properties, "pStyle"), ("", "0"))
        number, depth = styled
        if own is not None:
            number = _value(own, "numId") or number
            depth = _value(own, "ilvl") or depth
        return number, int(depth) if depth.isdigit() else 0

    def _shown(self, number: str, depth: int) -> str:
        abstract = self._abstract_of[number]
        level = self._levels[abstract].get(depth)
        if level is None:
            return ""
        count = self._counts[abstract][depth] or self._first(level)
        return _number(count, _value(level, "numFmt"))

    def _first(self, level: "_Element") -> int:
        start = _value(level, "start")
        return int(start) if start.isdigit() else 1

    def _read_styles(self, document: "WordDocument") -> None:
        for style in document.styles.element.iterfind(f"{_W}style"):
            own = style.find(f"{_W}pPr/{_W}numPr")
            if own is not None:
                key = str(style.get(f"{_W}styleId") or "")
                self._style_numbers[key] = _value(own, "numId"), _value(own, "ilvl") or "0"

    def _read_lists(self, document: "WordDocument") -> None:
        try:
            root = document.part.numbering_part.element
        except (KeyError, NotImplementedError, AttributeError):  # a document without lists
            return
        for abstract in root.iterfind(f"{_W}abstractNum"):
            self._levels[str(abstract.get(f"{_W}abstractNumId"))] = {
                int(level.get(f"{_W}ilvl")): level for level in abstract.iterfind(f"{_W}lvl")
            }
        for number in root.iterfind(f"{_W}num"):
            self._abstract_of[str(number.get(f"{_W}numId"))] = _value(number, "abstractNumId")


def _number(count: int, style: str) -> str:
    if style in _CHINESE_STYLES:
        return _chinese(count)
    if style in ("lowerLetter", "upperLetter"):
        letter = chr(ord("a") + (count - 1) % 26) * ((count - 1) // 26 + 1)
        return letter if style == "lowerLetter" else letter.upper()
    if style in ("lowerRoman", "upperRoman"):
        return _roman(count) if style == "lowerRoman" else _roman(count).upper()
    return "" if style == "none" else str(count)


def _chinese(count: int) -> str:
    """Return a number up to 9999 in Chinese; "十二", not "一十二"."""
    if not 0 < count < 10_000:
        return str(count)
    text, zero = "", False
    for unit, name in ((1000, "千"), (100, "百"), (10, "十"), (1, "")):
        digit = count // unit % 10
        if digit:
            text += ("零" if zero else "") + _CHINESE[digit] + name
        zero = bool(text) and not digit
    return text.removeprefix("一") if 10 <= count < 20 else text


def _roman(count: int) -> str:
    text = ""
    for value, letters in (
        (1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"),
        (40, "xl"), (10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i"),
    ):  # fmt: skip
        text += letters * (min(count, 4999) // value)
        count %= value
    return text
