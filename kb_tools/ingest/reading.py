"""Read a document: from what a parser found to the cleaned text and the pieces it is cut into.

All of it is done in a child process with a deadline, since a separator of a rule can take as long
as a damaged file; `ReadText` travels back as JSON.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from kb_tools.config import PreProcess, ProcessRule
from kb_tools.ingest.clean import clean
from kb_tools.ingest.cleaned import assemble
from kb_tools.ingest.parsed import Parsed, ParseError
from kb_tools.ingest.split import Piece, split
from kb_tools.models import Json


@dataclass(frozen=True)
class ReadText:
    """The cleaned text of a document with its pieces, its title, and what was noticed."""

    text: str
    pieces: tuple[Piece, ...]
    title: str = ""
    report: Mapping[str, Json] = field(default_factory=dict)
    metadata: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """Return this as JSON, where pieces name their place in the text instead of repeating it.

        UTF-8 but for lone surrogates, which a title may hold.
        """
        pieces = [(p.heading, p.page, p.start, p.end, p.token_count) for p in self.pieces]
        fields = [self.text, pieces, self.title, self.report, self.metadata]
        return json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass")

    @classmethod
    def from_json(cls, content: bytes) -> "ReadText":
        """Return what `to_json` was given."""
        text, pieces, *others = json.loads(content.decode("utf-8", "surrogatepass"))
        return cls(
            text,
            tuple(
                Piece(text[start:end], heading, page, start, end, tokens)
                for heading, page, start, end, tokens in pieces
            ),
            *others,
        )


def read(parsed: Parsed, rule: ProcessRule) -> ReadText:
    """Return the cleaned text of `parsed` and its pieces, in order.

    Raises ParseError if cleaning leaves nothing, or a separator of the rule takes too long.
    """
    cleaned = assemble(parsed, rule)
    if not cleaned.text.strip():
        raise ParseError("no text: the document is empty")
    title = clean(parsed.title, (PreProcess.REMOVE_EXTRA_SPACE,))
    pieces = tuple(split(cleaned, rule))
    return ReadText(cleaned.text, pieces, title, parsed.report, parsed.metadata)
