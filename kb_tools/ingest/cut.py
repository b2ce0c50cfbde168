"""Cut text where a rule's separators allow, into parts that are never over a number of tokens.

Token counts do not add up (two parts may hold one token more or less than their whole), so every
part is counted as it is, and sums only decide what to try.
"""

import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import regex

from kb_tools.ingest.parsed import ParseError
from kb_tools.text.tokens import count_tokens

# Marks that end something: a part never begins with one that stands right behind a cut ...
_CLOSING = frozenset("。，、；：！？…—～·》〉」』】〕〗）”’％‰,.;:!?)]}%．，；：！？｡､｣")
# ... nor, across blanks, with one that nothing but a sentence can put there.
_CLOSING_FAR = frozenset("。，、；：！？》〉」』】〕〗）”％‰．｡､｣")
_MOST_MARKS = 32
_MOST_BYTES_OF_A_CHARACTER = 4  # so a character has at most as many tokens
_LONG = 16  # characters a token: text longer than that is cut without counting it first
_WINDOW = 64
_GRAPHEME = regex.compile(r"\X")
SEPARATOR_SECONDS = 10.0
SEPARATOR_SECONDS_PER_CHARACTER = 2e-6


@dataclass(frozen=True)
class Part:
    """A stretch of text that starts at no blank, and the tokens of it without blanks at its end."""

    start: int
    end: int
    tokens: int


class Cutter:
    """Cuts one text.

    Usage:
        cutter = Cutter(text, size=500, separators=rule.separators)
        parts = list(cutter.parts(0, len(text)))
    """

    def __init__(
        self,
        text: str,
        *,
        size: int,
        separators: Sequence[str],
        bounds: Sequence[int] = (),
        whole: Iterable[tuple[int, int]] = (),
    ) -> None:
        """Cut `text`, where no separator helps at `bounds`, and last by length.

        The spans in `whole` are cut only if they are too long. Bounds and spans ascend.
        """
        self.text, self.size = text, size
        self._separators = [_Separator(pattern, text) for pattern in separators if pattern]
        self._bounds = bounds
        kept = [(start, end) for start, end in whole if self.count(start, end) <= size]
        self._whole_starts = [start for start, _ in kept]
        self._whole_ends = [end for _, end in kept]

    def count(self, start: int, end: int) -> int:
        """Return the tokens of a stretch, blanks around it left out; or a number over `size`."""
        if end - start > _LONG * self.size:
            return self.size + 1
        return count_tokens(self.text[start:end].strip())

    def parts(self, start: int, end: int) -> Iterator[Part]:
        """Yield the parts of a stretch in order, each as coarse as the separators allow."""
        start = self._past_blanks(start, end)
        if start < end:
            yield from self._parts(start, end, 0)

    def tail(self, start: int, end: int, tokens: int) -> int:
        """Return where the last `tokens` tokens of a stretch begin, at the best place to begin.

        `end` if there is no such place. Coarse separators win if they give at least half.
        """
        best, most = end, 0
        window = max(start, end - tokens * _LONG // 2)
        for separator in self._separators:
            places = self._places(separator, window, end)
            place = self._first_within(places, end, tokens)
            length = self.count(place, end)
            if length > most:
                best, most = place, length
            if 2 * most >= tokens:
                break
        if best < end or self._is_inside_whole(end - 1):
            return best
        place = self._first_within([*range(window + 1, end)], end, tokens)
        return self._settled(place, end)

    def _first_within(self, places: Sequence[int], end: int, tokens: int) -> int:
        at = bisect_left(places, True, key=lambda place: self.count(place, end) <= tokens)
        return places[at] if at < len(places) else end

    def _parts(self, start: int, end: int, level: int) -> Iterator[Part]:
        tokens = self.count(start, end)
        if tokens <= self.size:
            yield Part(start, end, tokens)
        elif level > len(self._separators):
            yield from self._by_length(start, end)
        else:
            places = self._places_of_level(level, start, end)
            for left, right in zip([start, *places], [*places, end], strict=True):
                yield from self._parts(left, right, level + 1)

    def _places_of_level(self, level: int, start: int, end: int) -> list[int]:
        if level < len(self._separators):
            return self._places(self._separators[level], start, end)
        inside = slice(bisect_right(self._bounds, start), bisect_left(self._bounds, end))
        return list(self._bounds[inside])

    def _places(self, separator: "_Separator", start: int, end: int) -> list[int]:
        """Return where parts may begin between `start` and `end`, ascending."""
        found: set[int] = set()
        seen = settled = start
        for place in separator.ends(start, end):
            # Each blank of a long run would walk to its end again.
            if not seen < place <= settled:
                seen, settled = place, self._settled(place, end)
            found.add(settled)
        places = sorted(place for place in found if start < place < end)
        return [place for place in places if not self._is_inside_whole(place)]

    def _settled(self, place: int, end: int) -> int:
        """Move a cut behind blanks and closing marks, so that the next part starts with neither."""
        last = min(end, place + _MOST_MARKS)
        while place < last and self.text[place] in _CLOSING:
            place += 1
        while True:
            beyond = self._past_blanks(place, end)
            if not (beyond < last and self.text[beyond] in _CLOSING_FAR):
                return beyond
            place = beyond + 1

    def _past_blanks(self, place: int, end: int) -> int:
        while place < end and self.text[place].isspace():
            place += 1
        return place

    def _is_inside_whole(self, place: int) -> bool:
        at = bisect_right(self._whole_starts, place) - 1
        return at >= 0 and self._whole_starts[at] < place < self._whole_ends[at]

    def _by_length(self, start: int, end: int) -> Iterator[Part]:
        while start < end:
            reach = self._reach(start, end)
            cut = end if reach == end else self._between_characters(start, reach)
            yield Part(start, cut, self.count(start, cut))
            start = self._past_blanks(cut, end)

    def _reach(self, start: int, end: int) -> int:
        """Return an end so that the stretch fits and, within a tenth, no longer one would."""
        fits = max(1, self.size // _MOST_BYTES_OF_A_CHARACTER)
        over = end - start + 1
        if fits >= over - 1:
            return end
        tried = min(self.size, over - 1)
        for _ in range(12):
            tokens = max(1, self.count(start, start + tried))
            if tokens <= self.size:
                fits = max(fits, tried)
            else:
                over = min(over, tried)
            if over - fits <= 1 or 0.9 * self.size <= tokens <= self.size:
                break
            tried = min(max(int(tried * 0.97 * self.size / tokens), fits + 1), over - 1)
        return start + fits

    def _between_characters(self, start: int, reach: int) -> int:
        """Return the last place up to `reach` that splits no emoji or accent from its letter."""
        left = max(start, reach - _WINDOW)
        near = self.text[left : reach + _WINDOW]
        places = [left + match.start() for match in _GRAPHEME.finditer(near)]
        good = [
            place for place in places if start < place <= reach and self.text[place] not in _CLOSING
        ]
        return good[-1] if good else reach


class _Separator:
    """A pattern of the rule; on one text it may take a bounded time in all."""

    def __init__(self, pattern: str, text: str) -> None:
        self._pattern, self._text = regex.compile(pattern), text
        self._seconds = SEPARATOR_SECONDS + SEPARATOR_SECONDS_PER_CHARACTER * len(text)

    def ends(self, start: int, end: int) -> list[int]:
        """Return where its matches end."""
        began = time.monotonic()
        try:
            found = self._pattern.finditer(
                self._text, start, end, timeout=max(self._seconds, 0.001)
            )
            places = [match.end() for match in found]
        except TimeoutError:
            raise ParseError(
                f"separator {self._pattern.pattern!r} takes too long on this text "
                f"(over {SEPARATOR_SECONDS:.0f} s); use a simpler regular expression"
            ) from None
        self._seconds -= time.monotonic() - began
        return places
