"""Clean text: drop what nobody wrote, keep every letter.

Always: NUL, control and zero-width characters go, lone surrogates become U+FFFD, line ends become
\\n (text/characters.py). By rule: runs of blanks, and URLs with e-mail addresses.
"""

import re
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

from kb_tools.text.characters import visible

if TYPE_CHECKING:
    from kb_tools.config import PreProcess

_BLANKS = re.compile(r"[^\S\n]+")
_LINE_EDGES = re.compile(r" ?\n ?")
_BLANK_LINES = re.compile(r"\n{3,}")

# RFC 3986 characters only: anything else, so any Chinese character or full-width mark, ends a URL.
_URL = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:https?|ftp)://|www\.(?=[A-Za-z0-9-]+\.))"
    r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+",
    re.IGNORECASE,
)
_LOCAL = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_EMAIL = re.compile(
    rf"(?<![A-Za-z0-9._%+-])(?:mailto:)?{_LOCAL}{{1,64}}(?:\.{_LOCAL}{{1,64}}){{0,8}}"
    r"@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,8}[A-Za-z]{2,24}(?![A-Za-z0-9-])"
)
_LINK = re.compile(
    r"!?\[([^\[\]\n]*)\]\(\s*<?(?:https?|ftp|mailto)[^\s()<>]*>?(?:\s+\"[^\"\n]*\")?\s*\)"
)
_CLOSING = {")": "(", "]": "["}


def clean(text: str, pre_process: "Collection[PreProcess]" = ()) -> str:
    """Return `text` cleaned as always and as `pre_process` says."""
    from kb_tools.config import PreProcess  # slow to import, and parsers want only `storable`

    text = visible(text)
    if PreProcess.REMOVE_URL_AND_EMAIL in pre_process:
        text = remove_url_and_email(text)
    if PreProcess.REMOVE_EXTRA_SPACE in pre_process:
        text = remove_extra_space(text)
    return text


def remove_extra_space(text: str) -> str:
    """Return `text` with one blank for a run of blanks and at most one blank line in a row."""
    text = _LINE_EDGES.sub("\n", _BLANKS.sub(" ", text))
    return _BLANK_LINES.sub("\n\n", text).strip()


def remove_trailing_space(text: str) -> str:
    """Return code with its indentation, without blanks at line ends and runs of blank lines."""
    lines = "\n".join(line.rstrip() for line in text.split("\n"))
    return _BLANK_LINES.sub("\n\n", lines).strip("\n")


def remove_url_and_email(text: str) -> str:
    """Return `text` without URLs and e-mail addresses; text that touches them stays.

    A URL ends before the first character that a URL cannot hold ("详见https://a.com/x查看" ->
    "详见查看") and keeps its hands off closing brackets and punctuation of the sentence around it.
    Of a Markdown link its text stays.
    """
    if "](" in text:
        text = _LINK.sub(r"\1", text)
    if "://" in text or "www." in text.lower():
        text = _URL.sub(_behind_url, text)
    return _EMAIL.sub("", text) if "@" in text else text


def _behind_url(match: re.Match[str]) -> str:
    """Return the end of the match that belongs to the sentence, not to the URL."""
    url = match.group()
    count = Counter(url)
    end = len(url)
    while end:
        last = url[end - 1]
        from_outside = last in _CLOSING and count[_CLOSING[last]] < count[last]
        if last not in ".,;:!?'*" and not from_outside:
            break
        count[last] -= 1
        end -= 1
    return url[end:]
