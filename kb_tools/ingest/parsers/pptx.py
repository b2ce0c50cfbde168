"""PowerPoint slides: a slide is a page, its title the heading; tables, charts, diagrams, notes.

Shapes are read from top to bottom and left to right, as people do; their order in the file is the
order in which they were drawn.
"""

import io
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kb_tools.ingest.office_zip import check, damaged
from kb_tools.ingest.parsed import (
    Block,
    BlockKind,
    Limits,
    Parsed,
    ParseError,
    Parser,
    has_chinese,
    page_list,
)
from kb_tools.ingest.rows import column_names, row_block, row_blocks

if TYPE_CHECKING:
    from pptx.presentation import Presentation
    from pptx.slide import Slide

    from kb_tools.models import Json

_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_DIAGRAM = "http://schemas.openxmlformats.org/drawingml/2006/diagram"
_DIAGRAM_DATA = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}dm"
_TYPES = "application/vnd.%s.main+xml"
_SAME_INSIDE = (
    _TYPES % "openxmlformats-officedocument.presentationml.slideshow",
    _TYPES % "openxmlformats-officedocument.presentationml.template",
    _TYPES % "ms-powerpoint.presentation.macroEnabled",
    _TYPES % "ms-powerpoint.slideshow.macroEnabled",
    _TYPES % "ms-powerpoint.template.macroEnabled",
)
_FURNITURE = frozenset(("DATE", "FOOTER", "HEADER", "SLIDE_NUMBER"))
# What PowerPoint and python-pptx call every presentation.
_NO_TITLES = frozenset(("powerpoint 演示文稿", "powerpoint presentation", "powerpoint 簡報"))
_ROWS_OF_A_SLIDE = 40  # shapes whose tops differ by less than a slide's 40th stand side by side


def create() -> Parser:
    """Return the parser."""
    return parse


def parse(data: bytes, limits: Limits) -> Parsed:
    """Return the slides in order, each with its number as page."""
    check(data, "pptx", limits)
    presentation = _load(data)
    slides = list(presentation.slides)
    if len(slides) > limits.max_pages:
        raise ParseError(
            f"too large: {len(slides):,} slides, more than max_pages ({limits.max_pages:,}); "
            "split the file or raise KB_MAX_PAGES"
        )
    reader = _Reader(presentation.slide_height or 1)
    blocks: list[Block] = []
    characters = 0
    for number, slide in enumerate(slides, 1):
        found = list(reader.blocks(slide, number))
        characters += sum(len(block.text) for block in found)
        _refuse_too_many(characters, number, limits)
        blocks += found
    properties = presentation.core_properties
    metadata = {"title": properties.title, "author": properties.author}
    metadata = {name: value.strip() for name, value in metadata.items() if (value or "").strip()}
    if metadata.get("title", "").lower() in _NO_TITLES:
        del metadata["title"]
    title = metadata.get("title") or next(
        (block.text for block in blocks if block.kind is BlockKind.HEADING), ""
    )
    return Parsed(tuple(blocks), title, _report(slides, blocks, reader), {**metadata})


def _load(data: bytes) -> "Presentation":
    from lxml.etree import XMLSyntaxError
    from pptx.exc import PythonPptxError
    from pptx.opc.package import PartFactory
    from pptx.package import Package
    from pptx.parts.presentation import PresentationPart

    for kind in _SAME_INSIDE:
        PartFactory.part_type_for[kind] = PresentationPart
    try:
        part = Package.open(io.BytesIO(data)).main_document_part
    except (
        zipfile.BadZipFile, EOFError, KeyError, ValueError, OSError, PythonPptxError,
        XMLSyntaxError,
    ):  # fmt: skip
        raise damaged("pptx") from None
    if not isinstance(part, PresentationPart):
        raise damaged("pptx")
    presentation: Presentation = part.presentation
    return presentation


def _refuse_too_many(characters: int, slide: int, limits: Limits) -> None:
    if characters > limits.max_characters:
        raise ParseError(
            f"too large: over {limits.max_characters:,} characters (max_characters) at slide "
            f"{slide}; split the file or raise KB_MAX_CHARACTERS"
        )


def _report(
    slides: Sequence["Slide"], blocks: Iterable[Block], reader: "_Reader"
) -> "dict[str, Json]":
    report: dict[str, Json] = {"pages": len(slides)}
    with_text = {block.page for block in blocks}
    empty = [
        number
        for number, slide in enumerate(slides, 1)
        if number not in with_text and len(slide.shapes)
    ]
    hidden = [n for n, slide in enumerate(slides, 1) if slide.element.get("show") in ("0", "false")]
    warnings: list[Json] = []
    if hidden:
        report["hidden_slides"] = [*hidden]
        warnings.append(f"hidden, and read: {page_list(hidden, 'slide')}")
    if empty:
        report["pages_without_text"] = [*empty]
        warnings.append(f"pictures only: {page_list(empty, 'slide')}")
    if reader.unreadable:
        warnings.append(
            f"a chart or diagram could not be read: {page_list(reader.unreadable, 'slide')}"
        )
    if warnings:
        report["warnings"] = warnings
    return report


class _Reader:
    """Reads one slide after the other."""

    def __init__(self, slide_height: int) -> None:
        self._row_height = max(slide_height // _ROWS_OF_A_SLIDE, 1)
        self.unreadable: list[int] = []

    def blocks(self, slide: "Slide", page: int) -> Iterator[Block]:
        """Yield the title, the other shapes, then the notes."""
        title = slide.shapes.title
        heading = " ".join(_lines(title.text_frame).split()) if title is not None else ""
        if heading:
            yield Block(heading, heading, page, BlockKind.HEADING)
        first = title.shape_id if title is not None else None
        for shape in self._in_order(slide.shapes):
            if shape.shape_id != first:
                yield from self._shape(shape, heading, page)
        yield from _notes(slide, heading, page)

    def _in_order(self, shapes: Iterable[Any]) -> list[Any]:
        # Any: python-pptx has a dozen kinds of shapes, told apart by what they have.
        return sorted(shapes, key=lambda s: ((s.top or 0) // self._row_height, s.left or 0))

    def _shape(self, shape: Any, heading: str, page: int) -> Iterator[Block]:
        if hasattr(shape, "shapes"):  # a group
            for member in self._in_order(shape.shapes):
                yield from self._shape(member, heading, page)
        elif shape.has_text_frame:
            text = _lines(shape.text_frame)
            if text and not _is_furniture(shape):
                yield Block(text, heading, page)
        elif getattr(shape, "has_table", False):
            yield from _table(shape.table, heading, page)
        else:
            yield from self._graphic(shape, heading, page)

    def _graphic(self, shape: Any, heading: str, page: int) -> Iterator[Block]:
        try:
            if getattr(shape, "has_chart", False):
                found = list(_chart(shape.chart, heading, page))
            else:
                found = list(_diagram(shape, heading, page))
        except Exception:  # python-pptx raises anything on charts that it does not know
            self.unreadable.append(page)
            return
        yield from found


def _lines(frame: Any) -> str:
    text = "\n".join(paragraph.text for paragraph in frame.paragraphs)
    return text.replace("\v", "\n").strip()


def _is_furniture(shape: Any) -> bool:
    return shape.is_placeholder and shape.placeholder_format.type.name in _FURNITURE


def _table(table: Any, heading: str, page: int) -> Iterator[Block]:
    rows, marked = _rows(table), True if table.first_row else None
    first = list(table.rows[0].cells) if rows else []
    depth = max((cell.span_height for cell in first), default=1)
    if 1 < depth < len(rows) and any(cell.span_width > 1 for cell in first):
        spread = [_spread(row, values) for row, values in zip(table.rows, rows, strict=True)]
        rows, marked = [column_names(spread[:depth]), *rows[depth:]], True
    yield from row_blocks(rows, heading=heading, page=page, has_header=marked)


def _spread(row: Any, values: Sequence[str]) -> list[str]:
    """Return the texts of a row with each repeated over the columns that its cell spans."""
    spread = list(values)
    for at, cell in enumerate(row.cells):
        if cell._tc.hMerge and at:
            spread[at] = spread[at - 1]
    return spread


def _rows(table: Any) -> list[list[str]]:
    """Return the cells' texts; a cell that spans rows is repeated in each."""
    rows: list[list[str]] = []
    for row in table.rows:
        values = [cell.text.replace("\v", "\n").strip() for cell in row.cells]
        for at, cell in enumerate(row.cells):
            if cell._tc.vMerge and not cell._tc.hMerge and rows and at < len(rows[-1]):
                values[at] = rows[-1][at]
        rows.append(values)
    return rows


def _chart(chart: Any, heading: str, page: int) -> Iterator[Block]:
    """Yield the title, then each category with the values of all series."""
    if chart.has_title and chart.chart_title.has_text_frame:
        title = _lines(chart.chart_title.text_frame)
        if title:
            yield Block(title, heading, page)
    for plot in chart.plots:
        series = list(plot.series)
        columns = ["", *(str(one.name or "") for one in series)]
        values = [list(one.values) for one in series]
        for at, category in enumerate(plot.categories):
            row = [str(category), *(_number(row, at) for row in values)]
            if any(row):
                yield row_block(columns, row, heading=heading, page=page)


def _number(values: Sequence[float | None], at: int) -> str:
    value = values[at] if at < len(values) else None
    return "" if value is None else f"{value:.12g}"


def _diagram(shape: Any, heading: str, page: int) -> Iterator[Block]:
    """Yield the points of SmartArt, whose text lies in a part of its own."""
    from lxml import etree

    for ids in shape.element.iter(f"{{{_DIAGRAM}}}relIds"):
        part = shape.part.related_part(ids.get(_DIAGRAM_DATA))
        root = etree.fromstring(part.blob, etree.XMLParser(resolve_entities=False))
        lines = ("".join(t.text or "" for t in p.iter(f"{_A}t")) for p in root.iter(f"{_A}p"))
        text = "\n".join(line for line in lines if line.strip())
        if text:
            yield Block(text, heading, page)


def _notes(slide: "Slide", heading: str, page: int) -> Iterator[Block]:
    if not slide.has_notes_slide:
        return
    frame = slide.notes_slide.notes_text_frame
    text = _lines(frame) if frame is not None else ""
    if text:
        label = "备注" if has_chinese(text) else "Notes"
        yield Block(f"{label}: {text}", heading, page)
