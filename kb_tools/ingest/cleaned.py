"""Assemble the cleaned text of a document, which is stored and which the spans of segments name.

Blocks are cleaned one by one and joined: rows of a table by a line end, all else by a blank line.
A table row that is longer than a segment may be is written as several, each with its columns.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from kb_tools.config import PreProcess, ProcessRule, RuleMode
from kb_tools.ingest.clean import clean, remove_trailing_space, remove_url_and_email
from kb_tools.ingest.cut import Cutter
from kb_tools.ingest.parsed import HEADING_MARK, Block, BlockKind, Parsed
from kb_tools.text.characters import storable, visible
from kb_tools.text.tokens import count_tokens

_LONGEST_LABEL = 60


@dataclass(frozen=True)
class Span:
    """Where a block stands in the cleaned text, and what it was."""

    start: int
    end: int
    heading: str
    page: int | None
    kind: BlockKind


@dataclass(frozen=True)
class CleanedText:
    """A document's text as segments are cut from it; spans are in order and do not touch."""

    text: str
    spans: tuple[Span, ...]


def assemble(parsed: Parsed, rule: ProcessRule) -> CleanedText:
    """Return the text that `split` cuts; it is empty if cleaning leaves nothing.

    With mode as_is only what PostgreSQL cannot store is gone.
    """
    if rule.mode is RuleMode.AS_IS:
        blocks = [replace(block, text=storable(block.text)) for block in parsed.blocks]
    else:
        blocks = list(_under_headers(_cleaned_blocks(parsed.blocks, rule), rule))
    return _joined(_with_headings_moved(blocks))


def _cleaned_blocks(blocks: Sequence[Block], rule: ProcessRule) -> Iterator[Block]:
    for block in blocks:
        text = _cleaned(block, rule)
        if text.strip():
            heading = clean(block.heading, (PreProcess.REMOVE_EXTRA_SPACE,))
            above = clean(block.above, rule.pre_process)
            yield from _fitting(replace(block, text=text, heading=heading, above=above), rule)


def _under_headers(blocks: Iterable[Block], rule: ProcessRule) -> Iterator[Block]:
    """Join rows that share a header line, as many as fit into a segment, under that line."""
    for (above, _, _), run in groupby(blocks, key=lambda b: (b.above, b.heading, b.page)):
        if not above:
            yield from run
            continue
        rows: list[Block] = []
        tokens = least = count_tokens(above)
        for row in run:
            more = count_tokens(row.text) + 1  # and the line end
            if rows and tokens + more > rule.chunk_size:
                yield _table(above, rows)
                rows, tokens = [], least
            rows.append(row)
            tokens += more
        yield _table(above, rows)


def _table(above: str, rows: Sequence[Block]) -> Block:
    return replace(rows[0], text="\n".join([above, *(row.text for row in rows)]), above="")


def _cleaned(block: Block, rule: ProcessRule) -> str:
    if block.kind is not BlockKind.CODE:
        return clean(block.text, rule.pre_process).strip("\n")
    text = visible(block.text)
    if PreProcess.REMOVE_URL_AND_EMAIL in rule.pre_process:
        text = remove_url_and_email(text)
    return remove_trailing_space(text)


def _with_headings_moved(blocks: Sequence[Block]) -> list[Block]:
    """Put a heading without text of its own under the heading below it, not in a piece alone."""
    moved: list[Block] = []
    below = ""
    for block in reversed(blocks):
        if block.kind is BlockKind.HEADING and below.startswith(block.heading + HEADING_MARK):
            block = replace(block, heading=below)
        below = block.heading
        moved.append(block)
    return moved[::-1]


def _joined(blocks: Sequence[Block]) -> CleanedText:
    parts: list[str] = []
    spans: list[Span] = []
    length = 0
    before: Block | None = None
    for block in blocks:
        between = "" if before is None else _between(before, block)
        start = length + len(between)
        length = start + len(block.text)
        parts += [between, block.text]
        spans.append(Span(start, length, block.heading, block.page, block.kind))
        before = block
    return CleanedText("".join(parts), tuple(spans))


def _between(before: Block, block: Block) -> str:
    return "\n" if before.kind is block.kind is BlockKind.TABLE else "\n\n"


def _fitting(block: Block, rule: ProcessRule) -> Iterator[Block]:
    """Yield the block, or a row that is too long as rows that fit."""
    if block.kind is not BlockKind.TABLE or count_tokens(block.text) <= rule.chunk_size:
        yield block
        return
    columns = [clean(column, rule.pre_process) for column in block.columns]
    for text in _row_parts(block.text, columns, rule):
        yield replace(block, text=text)


def _row_parts(text: str, columns: Sequence[str], rule: ProcessRule) -> Iterator[str]:
    """Yield texts that hold whole cells where they fit, else a part of one behind its column."""
    packed = ""
    for label, cell in _cells(text, columns):
        together = f"{packed}\n{cell}" if packed else cell
        if count_tokens(together) <= rule.chunk_size:
            packed = together
            continue
        if packed:
            yield packed
        *full, packed = _cell_parts(label, cell, rule)
        yield from full
    if packed:
        yield packed


def _cells(text: str, columns: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (column with its colon, cell with its column) of a row's text."""
    starts, at = [], 0
    for column in columns:
        if not column or f"{column}: " not in text:
            continue
        found = re.compile(rf"(?:^|(?<=; )|(?<=\n)){re.escape(column)}: ").search(text, at)
        if found:
            starts.append((found.start(), found.group()))
            at = found.end()
    if not starts or starts[0][0] > 0:
        starts.insert(0, (0, ""))
    ends = [start for start, _ in starts[1:]] + [len(text)]
    for (start, label), end in zip(starts, ends, strict=True):
        yield label, text[start:end].rstrip("; \n")


def _cell_parts(label: str, cell: str, rule: ProcessRule) -> list[str]:
    short = label if len(label) <= _LONGEST_LABEL else f"{label[:_LONGEST_LABEL]}…: "
    value = cell[len(label) :]
    # The column and the value may hold a token more together than apart.
    size = max(1, rule.chunk_size - count_tokens(short) - 2)
    parts = Cutter(value, size=size, separators=rule.separators).parts(0, len(value))
    return [f"{short}{value[part.start : part.end].rstrip()}" for part in parts] or [cell]
