"""What a parser hands on: blocks of text in reading order, each knowing its heading and page.

`Parsed` travels as JSON from the child process that parses to the process that asked.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from kb_tools.errors import KnowledgeBaseError

if TYPE_CHECKING:
    from kb_tools.models import Json
    from kb_tools.settings import Settings

HEADING_MARK = " › "
OUT_OF_MEMORY = 78  # how a child process that may have no more memory exits
NO_TEXT = "no text: the file is empty or holds only blanks"

_CHAPTER = re.compile(
    r"第[\d零〇一二三四五六七八九十百]{1,6}([编編部卷篇章节節])(?=([\s\u3000:：、]?))"
)
_CHAPTER_LEVELS = {"编": 1, "編": 1, "部": 1, "卷": 1, "篇": 1, "章": 2, "节": 3, "節": 3}
_HANZI = re.compile("[\u4e00-\u9fff]")
_LONGEST_HEADING = 40
_LONGEST_UNMARKED_HEADING = 16


class ParseError(KnowledgeBaseError):
    """A file gives no text; the message says why and, where there is one, the way out."""


class NoTextLayer(ParseError):
    """All pages of a file are pictures; `pages` are their numbers, for a parser named `ocr`."""

    def __init__(self, message: str, pages: Sequence[int]) -> None:
        """Keep the message and the pages."""
        super().__init__(message)
        self.pages = tuple(pages)


class BlockKind(StrEnum):
    """What a block is: a paragraph, a heading, one row of a table, or code."""

    TEXT = "text"
    HEADING = "heading"
    TABLE = "table"
    CODE = "code"


@dataclass(frozen=True)
class Block:
    """A paragraph, heading, table row or piece of code.

    `heading` is the path above it ("第一章 › 第二节"), its own text included for a heading.
    `columns` are the names in a table row's text, each before its value ("姓名: 佐藤太郎").
    """

    text: str
    heading: str = ""
    page: int | None = None
    kind: BlockKind = BlockKind.TEXT
    columns: tuple[str, ...] = ()
    above: str = ""


@dataclass(frozen=True)
class Parsed:
    """The text of one file, and what was noticed on the way.

    `report` may hold encoding, encoding_guessed, pages, pages_without_text, pages_read_by_ocr,
    hidden_sheets, hidden_slides, attachments, converted_by and warnings; `metadata` title, author
    and language, where the file says them.
    """

    blocks: tuple[Block, ...]
    title: str = ""
    report: "dict[str, Json]" = field(default_factory=dict)
    metadata: "dict[str, Json]" = field(default_factory=dict)

    def to_json(self) -> str:
        """Return this as ASCII JSON, which carries any string, lone surrogates too."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Parsed":
        """Return what `to_json` was given."""
        fields = json.loads(text)
        blocks = tuple(
            Block(
                block["text"],
                block["heading"],
                block["page"],
                BlockKind(block["kind"]),
                tuple(block["columns"]),
                block["above"],
            )
            for block in fields["blocks"]
        )
        return cls(blocks, fields["title"], fields["report"], fields["metadata"])


@dataclass(frozen=True)
class Limits:
    """How much a parser may unpack and hand on."""

    max_unpacked_bytes: int = 1024 * 1024 * 1024
    max_pages: int = 5000
    max_characters: int = 50_000_000
    timeout_seconds: float = 300.0  # for programs that a parser starts

    @classmethod
    def of(cls, settings: "Settings") -> "Limits":
        """Return the limits that `settings` sets."""
        return cls(
            settings.max_unpacked_bytes,
            settings.max_pages,
            settings.max_characters,
            settings.parse_timeout_seconds,
        )


def has_chinese(text: str) -> bool:
    """Tell whether labels that are added to `text` ("备注", "发件人") are better in Chinese."""
    return _HANZI.search(text) is not None


def page_list(pages: Sequence[int], name: str = "page") -> str:
    """Return "pages 1-3, 7"."""
    runs: list[list[int]] = []
    for page in pages:
        if runs and page == runs[-1][-1] + 1:
            runs[-1].append(page)
        else:
            runs.append([page])
    names = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return f"{name}{'s' if len(pages) > 1 else ''} {', '.join(names)}" if names else ""


def chapter_level(line: str) -> int:
    """Return 1 to 3 if a line of unmarked text is "第一编 …", "第二章 …" or "第三节 …", else 0."""
    line = line.strip()
    found = _CHAPTER.match(line)
    if not found or line[-1] in "。，；、,;.…" or line[-1].isdigit() or "。" in line:
        return 0
    longest = _LONGEST_HEADING if found.group(2) else _LONGEST_UNMARKED_HEADING
    return _CHAPTER_LEVELS[found.group(1)] if len(line) <= longest else 0


Parser = Callable[[bytes, Limits], Parsed]
# Gets a file, limits and the numbers of pages without text; returns page -> its text.
PageReader = Callable[[bytes, Limits, Sequence[int]], Mapping[int, str]]


class HeadingPath:
    """The headings above the current place.

    Usage:
        path = HeadingPath()
        path.enter(1, "第一章")
        path.enter(2, "第二节")     # str(path) == "第一章 › 第二节"
    """

    def __init__(self) -> None:
        """Start above all headings."""
        self._entered: list[tuple[int, str]] = []

    def enter(self, level: int, text: str) -> str:
        """Go under a heading, leaving those of the same or a deeper level; return the path."""
        above = [(upper, name) for upper, name in self._entered if upper < level]
        self._entered = [*above, (level, " ".join(text.split()))]
        return str(self)

    def __str__(self) -> str:
        """Return the path from the top."""
        return HEADING_MARK.join(name for _, name in self._entered)
