"""Wordings of one dataset that mean the same, and those that stand in a question."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kb_tools.text.terms import query_terms
from kb_tools.text.tokenize import Tokenizer, stems

MAX_SYNONYMS = 64  # of one question in one dataset


@dataclass(frozen=True)
class Synonym:
    """A wording of a question and another one that counts as if it stood in its place.

    `terms` and `other_terms` are what the two are searched by.
    """

    wording: str
    terms: tuple[str, ...]
    other: str
    other_terms: tuple[str, ...]


@dataclass(frozen=True)
class _Wording:
    typed: str
    words: tuple[str, ...]  # stems of all of it, by which it is found in a question
    terms: tuple[str, ...]  # what it is searched by: no function words if there are others


class Synonyms:
    """Groups of wordings that mean the same, as one tokenizer cuts them.

    Usage:
        synonyms = Synonyms(tokenizer, [["年假", "带薪年休假"], ["K8s", "Kubernetes"]])
        synonyms.of("k8s怎么扩容")     # [Synonym("K8s", ("k8s",), "Kubernetes", ("kubernet",))]
    """

    def __init__(self, tokenizer: Tokenizer, groups: Sequence[Sequence[str]]) -> None:
        """Cut every wording; of those that are cut alike the first counts."""
        self._tokenizer = tokenizer
        self._groups: dict[tuple[str, ...], list[_Wording]] = {}
        self._lengths: dict[str, list[int]] = {}
        for group in groups:
            wordings = [self._wording(typed) for typed in group]
            for wording in wordings:
                self._groups.setdefault(wording.words, wordings)
        for words in sorted(self._groups, key=len, reverse=True):
            lengths = self._lengths.setdefault(words[0], [])
            if len(words) not in lengths:
                lengths.append(len(words))

    def __len__(self) -> int:
        """Return how many wordings there are."""
        return len(self._groups)

    def of(self, query: str) -> list[Synonym]:
        """Return the other wordings of those in the question, in its order; the longest counts."""
        asked = set(query_terms(self._tokenizer, query))
        found = [
            Synonym(wording.typed, terms, other.typed, other.terms)
            for wording, group in self._standing_in(query)
            if (terms := tuple(term for term in wording.terms if term in asked))
            for other in group
            if other.words != wording.words and set(other.terms) != set(terms)
        ]
        return list(dict.fromkeys(found))[:MAX_SYNONYMS]

    def _standing_in(self, query: str) -> Iterator[tuple[_Wording, list[_Wording]]]:
        """Yield wordings of the question with their groups, from left to right."""
        words, at = stems(self._tokenizer.words(query)), 0
        while at < len(words):
            ends = (at + length for length in self._lengths.get(words[at], ()))
            end = next((end for end in ends if tuple(words[at:end]) in self._groups), 0)
            if end:
                group = self._groups[tuple(words[at:end])]
                yield next(w for w in group if w.words == tuple(words[at:end])), group
            at = end or at + 1

    def _wording(self, typed: str) -> _Wording:
        words = tuple(stems(self._tokenizer.words(typed)))
        return _Wording(typed, words, tuple(query_terms(self._tokenizer, typed)))
