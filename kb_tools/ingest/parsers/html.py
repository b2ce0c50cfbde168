"""Web pages: the visible text with headings, table rows and code, without menus and the like.

Menus are told by their elements (nav, footer, aside...), by roles, by names and by runs of links.
If little is left then, everything visible is kept. trafilatura was measured against this on small
pages: it kept menus and hidden text, and lost headings, table columns and pages that are links.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from lxml import etree
from lxml import html as lxml_html

from kb_tools.ingest.encodings import decode
from kb_tools.ingest.parsed import (
    Block,
    BlockKind,
    HeadingPath,
    Limits,
    Parsed,
    ParseError,
    Parser,
)
from kb_tools.ingest.rows import column_names, row_block, row_blocks

_DECLARED = re.compile(
    rb"<(?:meta|\?xml)[^>]*?(?:charset|encoding)\s*=\s*[\"']?\s*([\w.:-]+)", re.I
)
_DECLARED_WITHIN = 4096
_NEVER = frozenset((
    "script", "style", "noscript", "template", "head", "svg", "canvas", "iframe", "object",
    "embed", "audio", "video", "select", "datalist", "map", "math", "button", "input",
    "textarea",
))  # fmt: skip
_MENU = frozenset((
    "nav", "footer", "aside", "menu",
))  # fmt: skip
_MENU_ROLES = frozenset((
    "navigation", "contentinfo", "complementary", "search", "menu", "menubar", "banner",
))  # fmt: skip
_MENU_NAMES = re.compile(
    r"(?:^|[\s_-])(?:nav|navbar|navigation|menu|sidebar|breadcrumbs?|footer|cookies?|share|pager|"
    r"pagination)(?:$|[\s_-])",
    re.I,
)
_CONTENT = frozenset((
    "html", "body", "main", "article", "table", "tbody", "tr", "td",
))  # fmt: skip
_BLOCK = frozenset((
    "address", "article", "aside", "blockquote", "body", "caption", "center", "dd", "details",
    "dialog", "dir", "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form",
    "h1", "h2", "h3", "h4", "h5", "h6", "header", "hgroup", "hr", "html", "legend", "li",
    "main", "menu", "nav", "ol", "p", "pre", "section", "summary", "table", "tbody", "td",
    "tfoot", "th", "thead", "tr", "ul",
))  # fmt: skip
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_HIDING = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.I)
_WIDE = "\u2e80-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
_BROKEN_LINE = re.compile(rf"(?<=[{_WIDE}])[ \t]*\n\s*(?=[{_WIDE}])")
_BLANKS = re.compile(r"[ \t\n\r\f]+")
_LEAST_LEFT = 0.3
_WIDEST_SPAN = 100
_DEEPEST_HEADER = 4
_LINK_RUN = 3


def create() -> Parser:
    """Return the parser."""
    return parse


def parse(data: bytes, limits: Limits) -> Parsed:
    """Return the main text of the page, or all visible text if that is most of it."""
    found = _DECLARED.search(data[:_DECLARED_WITHIN])
    decoded = decode(data, found.group(1).decode("ascii", "replace") if found else None)
    root = _tree(decoded.text)
    title = _text_of(root.find(".//title"))
    lines = list(_Walker(root).lines())
    blocks = tuple(_blocks(_main(lines)))
    return Parsed(blocks, title, decoded.report, {**_metadata(root)})


def _tree(text: str) -> etree._Element:
    # lxml refuses text with an encoding declaration; what it declared is known by now.
    text = re.sub(r"\A\s*<\?xml[^>]*\?>", "", text).replace("\x00", "")
    parser = lxml_html.HTMLParser(encoding="utf-8", huge_tree=True, remove_comments=True)
    try:
        root = lxml_html.document_fromstring(text.encode("utf-8", "replace"), parser=parser)
    except (etree.ParserError, etree.XMLSyntaxError):
        raise ParseError("no text: the page is empty") from None
    return root


def _metadata(root: etree._Element) -> dict[str, str]:
    found = {"language": root.get("lang") or root.get("xml:lang") or ""}
    for element in root.iter("meta"):
        name = (element.get("name") or "").lower()
        if name in ("author", "description", "keywords"):
            found.setdefault(name, element.get("content") or "")
    return {name: value.strip() for name, value in found.items() if value.strip()}


@dataclass
class _Line:
    """A block to be: its text, what it is, and how much of it belongs to menus and links."""

    text: str
    kind: BlockKind
    level: int = 0
    in_menu: bool = False
    linked: int = 0
    rows: list[Block] = field(default_factory=list)  # of a table

    @property
    def length(self) -> int:
        return len(self.text) + sum(len(row.text) for row in self.rows)


class _Walker:
    """Goes through the tree once, without recursion, and collects lines."""

    def __init__(self, root: etree._Element) -> None:
        self._root = root
        self._text: list[str] = []
        self._linked = 0
        self._links = self._menus = self._level = 0
        self._done: set[etree._Element] = set()  # elements that were read as a whole

    def lines(self) -> Iterator[_Line]:
        walk = etree.iterwalk(self._root, events=("start", "end"))
        for event, element in walk:
            tag = element.tag if isinstance(element.tag, str) else ""
            if event == "start":
                whole = self._whole(element, tag)
                if whole is None:
                    yield from self._entered(element, tag)
                    continue
                self._done.add(element)
                walk.skip_subtree()
                if whole:
                    yield from self._flushed()
                    yield from whole
            else:
                yield from self._left(element, tag)
        yield from self._flushed()

    def _whole(self, element: etree._Element, tag: str) -> list[_Line] | None:
        """Return the lines of what is read as a whole or not at all; None for all else."""
        if _is_hidden(element, tag):
            return []
        if tag == "pre":
            text = "".join(element.itertext()).strip("\n")
            return [_Line(text, BlockKind.CODE, in_menu=self._menus > 0)]
        if tag == "table" and (rows := _table(element)):
            return [_Line("", BlockKind.TABLE, in_menu=self._menus > 0, rows=rows)]
        return None

    def _entered(self, element: etree._Element, tag: str) -> Iterator[_Line]:
        if tag in _BLOCK:
            yield from self._flushed()
        self._menus += self._is_menu(element, tag)
        self._links += tag == "a"
        if tag in _HEADINGS:
            self._level = _HEADINGS[tag]
        if tag == "br":
            self._text.append("\v")
        elif tag == "img" and element.get("alt"):
            self._add(element.get("alt"))
        self._add(element.text)

    def _left(self, element: etree._Element, tag: str) -> Iterator[_Line]:
        if element in self._done:
            self._done.remove(element)
        else:
            if tag in _BLOCK:
                yield from self._flushed()
            if tag in _HEADINGS:
                self._level = 0
            self._links -= tag == "a"
            self._menus -= self._is_menu(element, tag)
        self._add(element.tail)

    def _is_menu(self, element: etree._Element, tag: str) -> bool:
        if tag == "header":
            return element.getparent() is not None and element.getparent().tag == "body"
        if tag in _MENU or (element.get("role") or "").lower() in _MENU_ROLES:
            return True
        names = f"{element.get('class', '')} {element.get('id', '')}"
        return tag not in _CONTENT and _MENU_NAMES.search(names) is not None

    def _add(self, text: str | None) -> None:
        if text:
            self._text.append(text)
            self._linked += len(text.strip()) if self._links else 0

    def _flushed(self) -> Iterator[_Line]:
        text = _plain("".join(self._text))
        linked, self._text, self._linked = self._linked, [], 0
        if text:
            kind = BlockKind.HEADING if self._level else BlockKind.TEXT
            yield _Line(text, kind, self._level, self._menus > 0, linked)


def _is_hidden(element: etree._Element, tag: str) -> bool:
    if not tag or tag in _NEVER or element.get("hidden") is not None:
        return True
    style = element.get("style")
    return bool(style and _HIDING.search(style))


@dataclass(frozen=True)
class _Cell:
    """A cell of a table, and whether it names what is below or beside it."""

    text: str
    is_name: bool = False


def _table(table: etree._Element) -> list[Block]:
    """Return the rows of a table of data; nothing for one that only lays out the page."""
    if table.find(".//table") is not None:
        return []
    elements = [row for row in table.iter("tr") if not _is_hidden(row, "tr")]
    grid = _grid(elements, spread=False)
    rows = [row for row in grid if any(cell.text for cell in row)]
    if len(rows) < 2 or sum(len(row) > 1 for row in rows) * 2 <= len(rows):
        return []
    if all(_is_labelled(row) for row in rows):
        return [_labelled(row) for row in rows]
    depth = _header_depth(elements)
    texts = [[cell.text for cell in row] for row in grid]
    if depth and depth < len(texts):
        above = [[cell.text for cell in row] for row in _grid(elements[:depth], spread=True)]
        return list(row_blocks([column_names(above), *texts[depth:]], has_header=True))
    return list(row_blocks(texts))


def _grid(rows: Sequence[etree._Element], *, spread: bool) -> list[list[_Cell]]:
    """Return the cells by column; one that spans rows is repeated in each.

    In the columns that it spans, it is repeated if `spread`, else it stands in the first.
    """
    grid: list[list[_Cell]] = []
    hanging: dict[int, tuple[_Cell, int]] = {}  # column -> what comes from above, for how many rows
    for row in rows:
        cells: list[_Cell] = []
        for element in row.iter("td", "th"):
            _take(hanging, cells)
            cell = _Cell(_text_of(element), element.tag == "th")
            width, height = _span(element, "colspan"), _span(element, "rowspan")
            for at in range(width):
                part = cell if spread or not at else _Cell("", cell.is_name)
                if height > 1:
                    hanging[len(cells)] = part, height - 1
                cells.append(part)
        _take(hanging, cells)
        grid.append(cells)
    return grid


def _take(hanging: dict[int, tuple[_Cell, int]], cells: list[_Cell]) -> None:
    """Add what cells of rows above leave for the next columns."""
    while len(cells) in hanging:
        at = len(cells)
        cell, left = hanging.pop(at)
        if left > 1:
            hanging[at] = cell, left - 1
        cells.append(cell)


def _span(element: etree._Element, name: str) -> int:
    value = (element.get(name) or "").strip()
    return min(max(int(value), 1), _WIDEST_SPAN) if value.isdecimal() else 1


def _header_depth(rows: Sequence[etree._Element]) -> int:
    """Return how many rows name the columns; 0 if the table does not say.

    They stand in a thead or are of th only, or the first has a cell over columns and one over the
    rows of names.
    """
    head = list(takewhile(_is_head, rows))
    if head:
        return len(head)
    first = list(rows[0].iter("td", "th"))
    if not any(_span(cell, "colspan") > 1 for cell in first):
        return 0
    depth = max(_span(cell, "rowspan") for cell in first)
    return depth if 1 < depth <= _DEEPEST_HEADER else 0


def _is_head(row: etree._Element) -> bool:
    cells = list(row.iter("td", "th"))
    return row.getparent().tag == "thead" or bool(cells and all(c.tag == "th" for c in cells))


def _is_labelled(row: Sequence[_Cell]) -> bool:
    """Tell whether a row is of names, each with values behind it: "姓名 | 张三 | 电话 | 123"."""
    names = [at for at, cell in enumerate(row) if cell.is_name]
    return bool(names) and names[0] == 0 and len(names) <= len(row) / 2


def _labelled(row: Sequence[_Cell]) -> Block:
    names: list[str] = []
    values: list[list[str]] = []
    for cell in row:
        if cell.is_name:
            names.append(cell.text)
            values.append([])
        else:
            values[-1].append(cell.text)
    return row_block(names, ["; ".join(filter(None, some)) for some in values])


def _text_of(element: etree._Element | None) -> str:
    if element is None:
        return ""
    if not len(element):
        return _plain(element.text or "")
    return " ".join(line.text for line in _Walker(element).lines() if line.text)


def _plain(text: str) -> str:
    text = _BLANKS.sub(" ", _BROKEN_LINE.sub("", text))
    return re.sub(" *\v *", "\n", text).strip()


def _main(lines: list[_Line]) -> list[_Line]:
    """Return the lines that are no menu, or all of them if that leaves too little."""
    kept = [line for line in lines if not line.in_menu]
    kept = list(_without_link_runs(kept))
    enough = _LEAST_LEFT * sum(line.length for line in lines)
    has_text = any(line.kind is not BlockKind.HEADING for line in kept)
    return kept if has_text and sum(line.length for line in kept) >= enough else lines


def _without_link_runs(lines: list[_Line]) -> Iterator[_Line]:
    run: list[_Line] = []
    for line in lines:
        if line.linked and line.linked >= 0.9 * len(line.text) and len(line.text) < 40:
            run.append(line)
            continue
        if len(run) < _LINK_RUN:
            yield from run
        run = []
        yield line
    if len(run) < _LINK_RUN:
        yield from run


def _blocks(lines: list[_Line]) -> Iterator[Block]:
    path = HeadingPath()
    for line in lines:
        if line.kind is BlockKind.HEADING:
            yield Block(line.text, path.enter(line.level, line.text), kind=BlockKind.HEADING)
        elif line.kind is BlockKind.TABLE:
            yield from (replace(row, heading=str(path)) for row in line.rows)
        else:
            yield Block(line.text, str(path), kind=line.kind)
