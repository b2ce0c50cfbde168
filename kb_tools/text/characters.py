"""Characters that no text should hold: what PostgreSQL cannot store, and what nobody sees.

Two joiners are kept where they are part of the writing: ZWJ between the parts of an emoji and in
scripts that shape with it, ZWNJ in those scripts (Arabic, Persian, Indic ones).
"""

import re

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


def storable(text: str) -> str:
    """Return `text` without what PostgreSQL cannot store: no NUL, U+FFFD for lone surrogates."""
    return _SURROGATE.sub(REPLACEMENT, text.replace("\x00", ""))


def visible(text: str) -> str:
    """Return `text` with \\n as only line end and without characters that nobody sees."""
    text = _SURROGATE.sub(REPLACEMENT, _LINE_END.sub("\n", text))
    text = _UNWANTED.sub("", text)
    if "\u200c" in text or "\u200d" in text:
        text = _until_stable(_STRAY_JOINER, text)
    return text


def _until_stable(pattern: re.Pattern[str], text: str) -> str:
    """Drop matches until none is left: a dropped joiner may uncover another one."""
    while (shorter := pattern.sub("", text)) != text:
        text = shorter
    return text
