"""Clean text: drop what nobody wrote, keep every letter.

Always: NUL, control and zero-width characters go, lone surrogates become U+FFFD, line ends become
\\n. By rule: runs of blanks, and URLs with e-mail addresses. Two joiners are kept where they are
part of the writing: ZWJ between the parts of an emoji and in scripts that shape with it, ZWNJ in
those scripts (Arabic, Persian, Indic ones).
"""

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kb_tools.config import PreProcess

REPLACEMENT = "\ufffd"

_SURROGATE = re.compile("[\ud800-\udfff]")
_LINE_END = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
# Controls; soft hyphen; zero-width space, marks of direction, word joiner and its kin; BOM;
# noncharacters. U+200C and U+200D have their own rule.
_UNWANTED = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ufdd0-\ufdef\ufffe\uffff]"
)
_SHAPING = "\u0600-\u08ff\u0900-\u0dff\u0f00-\u109f\u1780-\u18af\ufb50-\ufdff\ufe70-\ufefc"
_PICTURES = "\u00a9\u00ae\u2190-\u2bff\u3030\u303d\u3297\u3299\ufe0f\U0001f000-\U0001faff"
_STRAY_JOINER = re.compile(
    f"(?<![{_SHAPING}])\u200c|\u200c(?![{_SHAPING}])"
    f"|(?<![{_SHAPING}{_PICTURES}\u20e3])\u200d|\u200d(?![{_SHAPING}{_PICTURES}])"
)

_BLANKS = re.compile(r"[^\S\n]+")
_LINE_EDGES = re.compile(r" ?\n ?")
_BLANK_LINES = re.compile(r"\n{3,}")
_TRAILING = re.compile(r"[^\S\n]+(?=\n|$)")

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


def storable(text: str) -> str:
    """Return `text` without what PostgreSQL cannot store: no NUL, U+FFFD for lone surrogates."""
    return _SURROGATE.sub(REPLACEMENT, text.replace("\x00", ""))


def clean(text: str, pre_process: "Collection[PreProcess]" = ()) -> str:
    """Return `text` cleaned as always and as `pre_process` says."""
    from kb_tools.config import PreProcess  # slow to import, and parsers want only `storable`

    text = visible(text)
    if PreProcess.REMOVE_URL_AND_EMAIL in pre_process:
        text = remove_url_and_email(text)
    if PreProcess.REMOVE_EXTRA_SPACE in pre_process:
        text = remove_extra_space(text)
    return text


def visible(text: str) -> str:
    """Return `text` with \\n as only line end and without characters that nobody sees."""
    text = _SURROGATE.sub(REPLACEMENT, _LINE_END.sub("\n", text))
    text = _UNWANTED.sub("", text)
    if "\u200c" in text or "\u200d" in text:
        text = _until_stable(_STRAY_JOINER, text)
    return text


def remove_extra_space(text: str) -> str:
    """Return `text` with one blank for a run of blanks and at most one blank line in a row."""
    text = _LINE_EDGES.sub("\n", _BLANKS.sub(" ", text))
    return _BLANK_LINES.sub("\n\n", text).strip()


def remove_trailing_space(text: str) -> str:
    """Return code with its indentation, without blanks at line ends and runs of blank lines."""
    return _BLANK_LINES.sub("\n\n", _TRAILING.sub("", text)).strip("\n")


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
    end = len(url)
    while end and (url[end - 1] in ".,;:!?'*" or _closes_from_outside(url[:end])):
        end -= 1
    return url[end:]


def _closes_from_outside(url: str) -> bool:
    opening = _CLOSING.get(url[-1])
    return opening is not None and url.count(opening) < url.count(url[-1])


def _until_stable(pattern: re.Pattern[str], text: str) -> str:
    """Drop matches until none is left: a dropped joiner may uncover another one."""
    while (shorter := pattern.sub("", text)) != text:
        text = shorter
    return text
