"""What people may call a word or a wording, and the files in which they keep their words."""

from collections.abc import Iterable

import regex

from kb_tools.errors import InvalidInput
from kb_tools.text.characters import storable
from kb_tools.text.tokenize import MAX_TERM_LENGTH, fold_keyword

MAX_WORDS = 50_000
MAX_WORDINGS, MAX_WORDINGS_IN_GROUP = 10_000, 16
WORD = f"a word has 2 to {MAX_TERM_LENGTH} characters, one of them a letter, digit or ideograph"
WORDING = f"a wording has 1 to {MAX_TERM_LENGTH} characters, one a letter, digit or ideograph"
NAMED_FAULTS = 5

_COMMA = regex.compile("[,，]")
_SAYS_SOMETHING = regex.compile(r"[\p{L}\p{N}]")
# jieba's own: a word, then a frequency, a part of speech or both. A bare part of speech is one
# only behind an ideograph: `tool kit` is a word.
_LINE = regex.compile(r"(.+?)(?:\s+\d+(?:\s+[A-Za-z]+)?|(?<=\p{Han})\s+[A-Za-z]{1,4})?")


def checked_words(words: Iterable[str]) -> list[str]:
    """Return the words of a dictionary as they were typed, the first of those that fold alike.

    Raises InvalidInput for more than 50,000 or for what is no word, naming the first few.
    """
    found = _folded(words, "words")
    bad = [typed for folded, typed in found if not _fits(typed, folded, 2)]
    if bad:
        raise InvalidInput(f"{WORD}; got {_named(bad)}")
    kept = _first(found)
    if len(kept) > MAX_WORDS:
        raise InvalidInput(f"a dictionary has at most {MAX_WORDS} words; got {len(kept)}")
    return kept


def words_of(text: str) -> list[str]:
    """Return the words of a file: one a line, or jieba's `word [frequency] [part of speech]`.

    Blank lines and those that begin with # are left out. Raises InvalidInput that names the lines
    without a word.
    """
    lines = [line.strip() for line in text.removeprefix("\ufeff").splitlines()]
    words = {
        number: _word_of(line)
        for number, line in enumerate(lines, start=1)
        if line and not line.startswith("#")
    }
    bad = [n for n, word in words.items() if not _fits(word, fold_keyword(word), 2)]
    if bad:
        raise InvalidInput(f"{WORD}; not so {_named(f'line {n}: {words[n]}' for n in bad)}")
    return list(words.values())


def checked_groups(groups: Iterable[Iterable[str]]) -> list[list[str]]:
    """Return groups of wordings as they were typed, the first of those that fold alike.

    Raises InvalidInput for more than 10,000 wordings in all or 16 in a group, for less than two,
    for what is no wording, and for one that stands in two groups.
    """
    if isinstance(groups, str):
        raise InvalidInput(f"synonyms are a list of groups; got the text {groups[:50]!r}")
    kept = [_checked_group(group) for group in groups]
    count = sum(map(len, kept))
    if count > MAX_WORDINGS:
        raise InvalidInput(f"a dataset has at most {MAX_WORDINGS} wordings; got {count}")
    seen: set[str] = set()
    for wording in (wording for group in kept for wording in group):
        if fold_keyword(wording) in seen:
            raise InvalidInput(f"{wording!r} stands in two groups of synonyms; make them one group")
        seen.add(fold_keyword(wording))
    return kept


def groups_of(text: str) -> list[list[str]]:
    """Return the groups of a file: wordings with commas between them, a group a line.

    Blank lines and those that begin with # are left out. Raises InvalidInput that names the lines
    that are no group.
    """
    groups, bad = list[list[str]](), list[str]()
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        if line.strip() and not line.strip().startswith("#"):
            try:
                groups.append(group_of(line))
            except InvalidInput as error:
                bad.append(f"line {number}: {error}")
    if bad:
        raise InvalidInput("; ".join(bad[:NAMED_FAULTS]))
    return groups


def group_of(line: str) -> list[str]:
    """Return the wordings between the commas of a line. Raises InvalidInput if it is no group."""
    if "=>" in line:
        raise InvalidInput(f"a group has no direction: write commas, not =>; got {line.strip()!r}")
    return _checked_group(part for part in _COMMA.split(line) if part.strip())


def _checked_group(group: Iterable[str]) -> list[str]:
    found = _folded(group, "a group of synonyms")
    bad = [typed for folded, typed in found if not _fits(typed, folded, 1)]
    if bad:
        raise InvalidInput(f"{WORDING}; got {_named(bad)}")
    kept = _first(found)
    if not 2 <= len(kept) <= MAX_WORDINGS_IN_GROUP:
        raise InvalidInput(
            f"a group of synonyms has 2 to {MAX_WORDINGS_IN_GROUP} different wordings; "
            f"got {len(kept)}: {_named(kept)}"
        )
    return kept


def _word_of(line: str) -> str:
    found = _LINE.fullmatch(line)
    return found[1] if found else line


def _folded(words: Iterable[str], what: str) -> list[tuple[str, str]]:
    """Return (folded, stripped) of each text. Raises InvalidInput for anything else."""
    if isinstance(words, str):
        raise InvalidInput(f"{what} are a list of texts; got the text {words[:50]!r}")
    typed = list(words)
    for word in typed:
        if not isinstance(word, str):
            raise InvalidInput(f"{what} are texts; got {word!r}")
    return [(fold_keyword(word), word.strip()) for word in typed]


def _first(found: Iterable[tuple[str, str]]) -> list[str]:
    """Return what was typed first of those that fold alike, in order."""
    kept: dict[str, str] = {}
    for folded, typed in found:
        kept.setdefault(folded, typed)
    return list(kept.values())


def _fits(typed: str, folded: str, least: int) -> bool:
    return (
        typed == storable(typed)
        and least <= len(folded) <= MAX_TERM_LENGTH
        and _SAYS_SOMETHING.search(folded) is not None
    )


def _named(bad: Iterable[str]) -> str:
    """Return the first few as one text, shortened."""
    listed = [repr(entry if len(entry) <= 80 else entry[:80] + "…") for entry in bad]
    more = f" and {len(listed) - NAMED_FAULTS} more" if len(listed) > NAMED_FAULTS else ""
    return ", ".join(listed[:NAMED_FAULTS]) + more
