"""Words of one dataset that are kept whole wherever its text is cut."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence


class Dictionary:
    """Folded words to be found in folded text; never changed, so it may be shared.

    Usage:
        words = Dictionary(["云枢平台", "k8s集群"])
        list(words.found_in("升级云枢平台"))     # [(2, 6)]
    """

    def __init__(self, words: Iterable[str] = ()) -> None:
        """Index the words by their first two characters; a shorter word is never found."""
        self._words = frozenset(words)
        lengths: dict[str, set[int]] = {}
        for word in self._words:
            lengths.setdefault(word[:2], set()).add(len(word))
        self._lengths = {head: sorted(found, reverse=True) for head, found in lengths.items()}
        listed = "\n".join(sorted(self._words))
        # The same for the same words, whatever their order; "" if there are none.
        self.fingerprint = listed and hashlib.sha256(listed.encode()).hexdigest()[:32]

    def __iter__(self) -> Iterator[str]:
        """Yield the words, in no order."""
        return iter(self._words)

    def __len__(self) -> int:
        """Return how many words there are."""
        return len(self._words)

    def __contains__(self, word: str) -> bool:
        """Say whether a folded word is one of them."""
        return word in self._words

    def found_in(self, text: str, closed: Sequence[int] = ()) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of words from left to right, the longest first, none overlapping.

        None starts or ends where `closed` (one entry for each place between characters, both ends
        included) is true.
        """
        lengths_of, start = self._lengths, 0
        for at in range(len(text) - 1):
            lengths = lengths_of.get(text[at : at + 2])  # for every character: keep it cheap
            if lengths and at >= start:
                for length in lengths:
                    if self._is_word(text, at, at + length, closed):
                        start = at + length
                        yield at, start
                        break

    def inside(self, word: str, closed: Sequence[int] = ()) -> list[str]:
        """Return the other words that stand in `word`, overlapping ones too."""
        spans = (
            (start, start + length)
            for start in range(len(word) - 1)
            for length in self._lengths.get(word[start : start + 2], ())
        )
        found = [word[a:b] for a, b in spans if self._is_word(word, a, b, closed)]
        return [other for other in found if other != word]

    def _is_word(self, text: str, start: int, end: int, closed: Sequence[int]) -> bool:
        if text[start:end] not in self._words or end > len(text):
            return False
        return not closed or not (closed[start] or closed[end])
