"""XML: news feeds as articles, other files as their texts under the names of their elements.

Entities from outside are never read; a file whose own entities blow up is refused.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lxml import etree

from kb_tools.ingest.encodings import decode
from kb_tools.ingest.parsed import (
    HEADING_MARK,
    Block,
    BlockKind,
    Limits,
    Parsed,
    ParseError,
    Parser,
)
from kb_tools.ingest.rows import row_block

if TYPE_CHECKING:
    from kb_tools.models import Json

_DECLARATION = re.compile(r"\A\s*<\?xml[^>]*\?>")
_ENCODING = re.compile(rb"<\?xml[^>]*?encoding\s*=\s*[\"']\s*([\w.:-]+)")
_MARKUP = re.compile(
    r"</?(?:p|br|div|span|table|ul|ol|li|h[1-6]|a|b|i|strong|em|img)\b[^>]*>", re.I
)
_TITLES = frozenset(("title", "name", "heading", "head", "subject", "headline", "标题", "名称"))
_FEEDS = frozenset(("rss", "feed", "RDF", "channel"))
_FEED_FURNITURE = frozenset((
    "image", "guid", "id", "ttl", "generator", "docs", "cloud", "skipHours", "skipDays",
    "webMaster", "managingEditor", "lastBuildDate", "icon", "logo", "textInput",
))  # fmt: skip
_PROSE = frozenset((
    "abstract", "body", "caption", "content", "description", "encoded", "note", "p", "para",
    "paragraph", "section", "simpara", "summary", "text", "v", "verse", "正文", "内容", "摘要",
))  # fmt: skip
_LONG = 200  # a longer text is a paragraph, whatever its element is called
_FEW = 30  # values that make one row
_PARTS = 12  # values of an element inside a row


def create() -> Parser:
    """Return the parser."""
    return parse


def parse(data: bytes, limits: Limits) -> Parsed:
    """Return the texts in the order of the file."""
    found = _ENCODING.search(data[:1024])
    decoded = decode(data, found.group(1).decode("ascii", "replace") if found else None)
    root, damage = _tree(decoded.text)
    report = decoded.report
    if damage:
        known = report.get("warnings")
        report["warnings"] = [*(known if isinstance(known, list) else []), damage]
    if _name(root) == "html":
        from kb_tools.ingest.parsers.html import parse as parse_html

        return parse_html(data, limits)
    return Parsed(tuple(_Walker(root, limits).blocks()), _title(root), report, _metadata(root))


def _tree(text: str) -> tuple[etree._Element, str | None]:
    """Return the root, and what is wrong with a file that could only be read in part."""
    content = _DECLARATION.sub("", text).strip("\ufeff\x00 \t\r\n").encode("utf-8", "replace")
    declares = "<!ENTITY" in text
    options = {
        "encoding": "utf-8", "no_network": True, "load_dtd": False, "remove_comments": True,
        "remove_pis": True, "resolve_entities": "internal" if declares else False,
        "huge_tree": not declares,
    }  # fmt: skip
    try:
        return etree.fromstring(content, etree.XMLParser(**options)), None
    except etree.XMLSyntaxError as error:
        reason = str(error.msg)
    if declares:
        raise ParseError(
            f"refused: its entities (<!ENTITY>) cannot be read safely ({reason}); save it without"
        )
    root = etree.fromstring(content, etree.XMLParser(**options, recover=True))
    if root is None or not "".join(root.itertext()).strip():
        raise ParseError(f"not a readable XML file: {reason}")
    return root, f"damaged XML, read as far as it could be: {reason}"


def _name(element: etree._Element) -> str:
    tag = element.tag
    return tag.rsplit("}", 1)[-1] if isinstance(tag, str) else ""


def _children(element: etree._Element) -> list[etree._Element]:
    return [child for child in element if isinstance(child.tag, str)]


def _text(element: etree._Element) -> str:
    return "".join(element.itertext()).strip()


def _plain(text: str) -> str:
    return " ".join(text.split())


def _title_of(element: etree._Element) -> str:
    for child in _children(element):
        if _name(child).lower() in _TITLES and (text := _plain(_text(child))):
            return text if len(text) <= _LONG else ""
    return ""


def _title(root: etree._Element) -> str:
    places = [root, *_children(root)[:1]]
    return next((title for place in places if (title := _title_of(place))), "")


def _metadata(root: etree._Element) -> "dict[str, Json]":
    language = root.get("{http://www.w3.org/XML/1998/namespace}lang") or ""
    for child in [] if language else _children(root)[:1]:
        language = next((_text(e) for e in _children(child) if _name(e) == "language"), "")
    return {"language": language} if language else {}


class _Walker:
    """Goes down the tree; what it meets becomes headings, rows and paragraphs."""

    def __init__(self, root: etree._Element, limits: Limits) -> None:
        self._root = root
        self._limits = limits
        self._is_feed = _name(root) in _FEEDS

    def blocks(self) -> Iterator[Block]:
        yield from self._inside(self._root, ())

    def _inside(self, element: etree._Element, above: tuple[str, ...]) -> Iterator[Block]:
        """Yield the blocks of an element, under its title, else under its name."""
        title = _title_of(element)
        name = title or ("" if self._is_feed else _name(element))
        place = (*above, name) if name else above
        heading = HEADING_MARK.join(place)
        if title:
            yield Block(title, heading, kind=BlockKind.HEADING)
        pairs = [] if self._is_feed else _attributes(element)
        children = self._wanted(element, title)
        names = Counter(_name(child) for child in children)
        for child in children:
            found = _inner(child, alone=names[_name(child)] == 1)
            if isinstance(found, list) and len(pairs) + len(found) <= _FEW:
                pairs += found
                continue
            if isinstance(found, str) and self._is_feed:  # an article's facts stand together below
                yield from self._paragraphs(found, heading)
                continue
            yield from _row(pairs, heading)
            pairs = found if isinstance(found, list) else []
            if found is None:
                yield from self._inside(child, place)
            elif isinstance(found, str):
                yield from self._paragraphs(found, heading)
        yield from _row(pairs, heading)

    def _wanted(self, element: etree._Element, title: str) -> list[etree._Element]:
        """Return the children without the one that gave the title and what is for programs."""
        return [
            child
            for child in _children(element)
            if not (self._is_feed and _name(child) in _FEED_FURNITURE)
            and not (title and _name(child).lower() in _TITLES and _plain(_text(child)) == title)
        ]

    def _paragraphs(self, text: str, heading: str) -> Iterator[Block]:
        if not _MARKUP.search(text):
            yield Block(_tidy(text), heading)
            return
        from kb_tools.ingest.parsers.html import parse as parse_html

        try:
            parsed = parse_html(f"<body>{text}</body>".encode("utf-8", "replace"), self._limits)
        except ParseError:  # nothing but pictures
            return
        for block in parsed.blocks:
            yield replace(block, heading=heading)


def _inner(element: etree._Element, *, alone: bool) -> list[tuple[str, str]] | str | None:
    """Return pairs or a paragraph; None for an element that has blocks of its own.

    An element of few short values that has no siblings of its name is a part of the row.
    """
    if not _is_container(element):
        return _leaf(element)
    children = _children(element)
    if not alone or _title_of(element) or len(children) > _PARTS:
        return None
    pairs = _attributes(element)
    for child in children:
        found = None if _is_container(child) else _leaf(child)
        if not isinstance(found, list):
            return None
        pairs += found
    return [(f"{_name(element)}.{name}", value) for name, value in pairs]


def _leaf(element: etree._Element) -> list[tuple[str, str]] | str:
    """Return (name, value) pairs of a short value, or the text of a paragraph."""
    text, name = _text(element), _name(element)
    is_prose = name.lower() in _PROSE or len(text) > _LONG or len(element) > 0
    if text and (is_prose or _MARKUP.search(text)):
        return text
    own = [(name, _plain(text))] if text else []
    return own + [(f"{name}.{key}", value) for key, value in _attributes(element)]


def _row(pairs: Sequence[tuple[str, str]], heading: str) -> Iterator[Block]:
    if pairs:
        names, values = zip(*pairs, strict=True)
        yield row_block(names, values, heading=heading)


def _attributes(element: etree._Element) -> list[tuple[str, str]]:
    """Return the attributes that hold words, not those for programs."""
    return [
        (str(key), _plain(value))
        for key, value in element.attrib.items()
        if not str(key).startswith("{") and value.strip()
    ]


def _is_container(element: etree._Element) -> bool:
    """Tell whether an element holds elements and no text of its own beside them."""
    children = _children(element)
    if not children:
        return False
    own = [element.text, *(child.tail for child in children)]
    return not any(text and text.strip() for text in own)


def _tidy(text: str) -> str:
    lines = (_plain(line) for line in text.splitlines())
    return "\n".join(line for line in lines if line)
