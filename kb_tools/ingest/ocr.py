"""Let a parser named `ocr` read the pages of a PDF that have no text.

There is none in this package. Whoever has one gives it to `register`, or as an entry point:

    def create():
        def read_pages(data, limits, pages):   # the PDF, Limits, e.g. [1, 3]
            return {page: my_ocr(data, page) for page in pages}
        return read_pages

    kb_tools.register("parsers", "ocr", create)
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from kb_tools import registry
from kb_tools.errors import UnknownName
from kb_tools.ingest.parsed import (
    Block,
    Limits,
    NoTextLayer,
    PageReader,
    Parsed,
    ParseError,
    page_list,
)
from kb_tools.models import Json

_BLANK_LINES = re.compile(r"\n[ \t]*\n\s*")


def with_ocr(parse: Callable[[], Parsed], data: bytes, limits: Limits) -> Parsed:
    """Return what `parse` makes of a PDF, with what `ocr` reads on its pages without text.

    The report names those pages. If OCR fails, the other pages count and the report says so; if
    there are no others, ParseError is raised.
    """
    failure: NoTextLayer | None = None
    try:
        parsed = parse()
    except NoTextLayer as error:
        failure = error
        parsed = Parsed((), report={"pages_without_text": [*error.pages]})
    without = parsed.report.get("pages_without_text")
    pages = [page for page in without if isinstance(page, int)] if isinstance(without, list) else []
    reader = _reader() if pages else None
    if reader is None:
        if failure:
            raise failure
        return parsed
    read, problem = _read(reader, data, limits, pages)
    if failure and not read:
        raise ParseError(f"no text layer ({page_list(pages)}); {problem}") from None
    return _joined(parsed, pages, read, problem)


def _reader() -> PageReader | None:
    try:
        create = registry.load("parsers", "ocr")
    except UnknownName:
        return None
    return cast(PageReader, create())  # its contract


def _read(
    reader: PageReader, data: bytes, limits: Limits, pages: Sequence[int]
) -> tuple[dict[int, str], str]:
    """Return (page -> text, what went wrong)."""
    try:
        found: Mapping[int, str] = reader(data, limits, pages)
        read = {page: text for page in pages if (text := str(found.get(page) or "").strip())}
    except MemoryError:
        raise
    except Exception as error:  # whatever a stranger's code raises; its message may hold a key
        return {}, f"OCR failed: {type(error).__name__}"
    return read, "" if read else "OCR found no text"


def _joined(parsed: Parsed, pages: Sequence[int], read: Mapping[int, str], problem: str) -> Parsed:
    blocks = [*parsed.blocks]
    for page, text in read.items():
        at = sum((block.page or 0) <= page for block in blocks)
        heading = blocks[at - 1].heading if at else ""
        paragraphs = (part.strip() for part in _BLANK_LINES.split(text))
        blocks[at:at] = [Block(part, heading, page) for part in paragraphs if part]
    report = {key: value for key, value in parsed.report.items() if key != "pages_without_text"}
    warnings = report.pop("warnings", [])
    notes: list[Json] = [
        note
        for note in (warnings if isinstance(warnings, list) else [])
        if not str(note).startswith("no text layer")
    ]
    if left := [page for page in pages if page not in read]:
        report["pages_without_text"] = [*left]
        notes.append(f"no text layer: {page_list(left)}; {problem or 'OCR found none'}")
    if read:
        report["pages_read_by_ocr"] = [*read]
    if notes:
        report["warnings"] = notes
    return Parsed(tuple(blocks), parsed.title, report, parsed.metadata)
