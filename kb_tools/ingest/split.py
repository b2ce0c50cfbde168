"""Split a document's text into the pieces that become its segments.

A piece never has more tokens than the rule allows, never reaches over a heading, and is exactly
`text[start:end]` of the cleaned text. Neighbours share up to `chunk_overlap` tokens, from a place
where a sentence or clause begins. langchain-text-splitters is not used: it keeps neither spans
nor exact sizes (it adds up the tokens of its parts), and it loses separators.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from kb_tools.config import ProcessRule, RuleMode
from kb_tools.ingest.cleaned import CleanedText, Span
from kb_tools.ingest.cut import Cutter, Part
from kb_tools.ingest.parsed import BlockKind
from kb_tools.text.tokens import count_tokens


@dataclass(frozen=True)
class Piece:
    """A segment to be: `content` is `text[start:end]` of the cleaned text.

    `page` is where its own text begins, text shared with the piece before not counted; None where
    the file has no pages.
    """

    content: str
    heading: str
    page: int | None
    start: int
    end: int
    token_count: int


def split(cleaned: CleanedText, rule: ProcessRule) -> list[Piece]:
    """Return the pieces of a text in order; one piece with mode as_is.

    Raises ParseError if a separator takes too long.
    """
    if rule.mode is RuleMode.AS_IS:
        return _one_piece(cleaned)
    whole = [(s.start, s.end) for s in cleaned.spans if s.kind in (BlockKind.TABLE, BlockKind.CODE)]
    cutter = Cutter(
        cleaned.text,
        size=rule.chunk_size,
        separators=rule.separators,
        bounds=[span.start for span in cleaned.spans],
        whole=whole,
    )
    sections = groupby(cleaned.spans, key=lambda span: span.heading)
    return [
        piece for _, spans in sections for piece in _pieces(cutter, list(spans), rule.chunk_overlap)
    ]


def _one_piece(cleaned: CleanedText) -> list[Piece]:
    if not cleaned.text.strip():
        return []
    first = cleaned.spans[0]
    text = cleaned.text
    return [Piece(text, first.heading, first.page, 0, len(text), count_tokens(text))]


def _pieces(cutter: Cutter, spans: Sequence[Span], overlap: int) -> Iterator[Piece]:
    """Yield the pieces of one section: as many parts as fit, behind some text of the last piece."""
    parts = list(cutter.parts(spans[0].start, spans[-1].end))
    pages = _Pages(spans)
    first, last = 0, (0, 0)
    while first < len(parts):
        start = _shared(cutter, parts[first], last, overlap) if first else parts[0].start
        after, start, end, tokens = _filled(cutter, parts, first, start)
        content = cutter.text[start:end]
        page = pages.at(parts[first].start)
        yield Piece(content, spans[0].heading, page, start, end, tokens)
        first, last = after, (start, end)


def _shared(cutter: Cutter, part: Part, last: tuple[int, int], overlap: int) -> int:
    """Return where a piece begins so that it repeats the end of the last one and `part` fits."""
    room = min(overlap, cutter.size - part.tokens - 1)
    place = cutter.tail(*last, room) if room > 0 else last[1]
    return place if place < last[1] else part.start


def _filled(
    cutter: Cutter, parts: Sequence[Part], first: int, start: int
) -> tuple[int, int, int, int]:
    """Return (part after the piece, start, end, tokens) of the longest piece that fits."""
    after = first + 1
    tokens = cutter.count(start, parts[first].end)
    while after < len(parts) and tokens + parts[after].tokens + 1 <= cutter.size:
        tokens += parts[after].tokens + 1  # the blanks between two parts are a token at most
        after += 1
    while True:
        end = start + len(cutter.text[start : parts[after - 1].end].rstrip())
        tokens = cutter.count(start, end)
        if tokens <= cutter.size:
            return after, start, end, tokens
        if start < parts[first].start:
            start = parts[first].start
        else:
            after -= 1


class _Pages:
    """Finds the page of a position by walking forward once."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans, self._at = spans, 0

    def at(self, position: int) -> int | None:
        while self._at + 1 < len(self._spans) and self._spans[self._at + 1].start <= position:
            self._at += 1
        return self._spans[self._at].page
