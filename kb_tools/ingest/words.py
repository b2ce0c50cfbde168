"""Cut segments into what full text and keywords index: here, or in a child process."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kb_tools.text.terms import SegmentTerms, segment_terms
from kb_tools.text.tokenize import Tokenizer

Text = tuple[str, str]  # heading or title, content


@dataclass(frozen=True)
class SegmentWords:
    """The terms of a segment for full text, and its best keywords."""

    terms: SegmentTerms
    keywords: list[str]


def words_of(tokenizer: Tokenizer, texts: Iterable[Text]) -> list[SegmentWords]:
    """Return the words of each text, in order."""
    # Keywords taken from the text count no more than they stand there: no need to pass them on.
    return [
        SegmentWords(
            segment_terms(tokenizer, heading, content), tokenizer.extract_keywords(content)
        )
        for heading, content in texts
    ]


def to_json(words: Sequence[SegmentWords]) -> bytes:
    """Return words as JSON."""
    rows = [(w.terms.counts, w.terms.length, w.keywords) for w in words]
    return json.dumps(rows, ensure_ascii=False).encode("utf-8", "surrogatepass")


def from_json(content: bytes) -> list[SegmentWords]:
    """Return what `to_json` was given."""
    rows = json.loads(content.decode("utf-8", "surrogatepass"))
    return [
        SegmentWords(SegmentTerms(counts, length), keywords) for counts, length, keywords in rows
    ]
