"""The terms that full text indexes for a segment, with their counts, and those of a question."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kb_tools.text.tokenize import Tokenizer, signs, stems

ADDED_KEYWORD_COUNT = 3


@dataclass(frozen=True)
class SegmentTerms:
    """How often each term occurs in a segment, and its length in words."""

    counts: Mapping[str, int]
    length: int


def segment_terms(
    tokenizer: Tokenizer, heading: str, content: str, keywords: Sequence[str] = ()
) -> SegmentTerms:
    """Return the terms of a segment: of its title or heading path, its content and its keywords.

    A compound counts for its parts too, so 退款 finds 退款政策. A keyword that a person added
    counts as three more occurrences; those that were taken from the text count no more than they
    stand there, since boosting them was measured to harm.
    """
    cut = [*tokenizer.words(heading), *tokenizer.words(content)]
    counts = Counter(stems(tokenizer.with_parts(cut)))
    for term in set(_added_terms(tokenizer, content, keywords)):
        counts[term] += ADDED_KEYWORD_COUNT
    return SegmentTerms(counts, len(cut))


def query_terms(tokenizer: Tokenizer, query: str) -> list[str]:
    """Return the distinct terms of a question, in its order, without function words if it can."""
    return list(dict.fromkeys(stems(tokenizer.query_words(query))))


def query_parts(tokenizer: Tokenizer, query: str) -> list[str]:
    """Return smaller terms of a question, for when the index knows none of its own.

    They are the parts of its compounds and its single ideographs.
    """
    cut = tokenizer.query_words(query)
    smaller = [*tokenizer.with_parts(cut), *(sign for word in cut for sign in signs(word))]
    return list(dict.fromkeys(stems(smaller)))


def _added_terms(tokenizer: Tokenizer, content: str, keywords: Sequence[str]) -> Iterator[str]:
    own = set(tokenizer.extract_keywords(content)) if keywords else set()
    for keyword in keywords:
        if keyword not in own:
            yield from stems(tokenizer.with_parts(tokenizer.words(keyword)))
