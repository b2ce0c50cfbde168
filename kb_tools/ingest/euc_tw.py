"""Decode EUC-TW, which Python has no codec for.

CNS 11643 lists the characters of its planes 1 and 2 in the order of Big5, but for the handful named
here, so the table comes out of Python's Big5 codec. Checked against the GNU C library's.
"""

from functools import cache

_FIRST_LEVEL = (0xA440, 0xC67E)
_SECOND_LEVEL = (0xC940, 0xF9D5)
_SYMBOLS = (0xA140, 0xA3BF)
# Characters that stand elsewhere in CNS 11643 than in Big5, by their place there.
_MOVED_FIRST = {1836: "耄", 3713: "銬", 4626: "薦", 4732: "彞", 4900: "嚨", 4955: "繳"}
_MOVED_SECOND = {
    43: "刉", 138: "攷", 2146: "笻", 2792: "筇", 2893: "莚", 4930: "錥", 5077: "徻", 5365: "螤",
    5723: "磿", 6312: "鎀", 6530: "舋", 6644: "鎥", 6787: "瀪", 6904: "鐼", 7589: "鬮", 7645: "爩",
}  # fmt: skip
_NOT_IN_CNS = "彝\ufa0c\ufa0d"
# Marks whose order or form differs from Big5, by their place.
_OTHER_MARKS = {
    5: "・", 21: "︱", 22: "—", 23: "︲", 24: "–", 73: "′", 74: "‵", 96: "‾", 127: "﹦", 128: "﹥",
    129: "∼", 144: "♁", 145: "☉", 148: "→", 149: "←", 154: "‖", 155: "｜",
}  # fmt: skip
_MARKS, _NUMERALS, _CIRCLED, _HANZI = 0, 3 * 94, 5 * 94, 35 * 94
_MARK_COUNT = 234


def decode_euc_tw(data: bytes) -> str:
    """Return the text; U+FFFD for each byte or character that is not EUC-TW."""
    first, second = _planes()
    out: list[str] = []
    at = 0
    while at < len(data):
        byte = data[at]
        if byte < 0x80:
            out.append(chr(byte))
            at += 1
        elif byte == 0x8E and data[at + 1 : at + 2] in (b"\xa1", b"\xa2"):
            plane = first if data[at + 1] == 0xA1 else second
            out.append(_character(plane, data[at + 2 : at + 4]))
            at += 4
        else:
            out.append(_character(first, data[at : at + 2]))
            at += 2 if out[-1] != "\ufffd" else 1
    return "".join(out)


def _character(plane: dict[int, str], pair: bytes) -> str:
    if len(pair) < 2 or min(pair) < 0xA1 or max(pair) > 0xFE:
        return "\ufffd"
    return plane.get((pair[0] - 0xA1) * 94 + pair[1] - 0xA1, "\ufffd")


@cache
def _planes() -> tuple[dict[int, str], dict[int, str]]:
    symbols = _big5(*_SYMBOLS)
    first = _placed(symbols[:_MARK_COUNT], _MARKS) | _OTHER_MARKS
    first |= _placed(symbols[_MARK_COUNT:], _NUMERALS)
    first |= _placed("①②③④⑤⑥⑦⑧⑨⑩⑴⑵⑶⑷⑸⑹⑺⑻⑼⑽ⅰⅱⅲⅳⅴⅵⅶⅷⅸⅹ", _CIRCLED)
    first |= _placed(_with_moved(_big5(*_FIRST_LEVEL), _MOVED_FIRST), _HANZI)
    return first, _placed(_with_moved(_big5(*_SECOND_LEVEL), _MOVED_SECOND), 0)


def _placed(characters: str, start: int) -> dict[int, str]:
    return dict(enumerate(characters, start))


def _with_moved(characters: str, moved: dict[int, str]) -> str:
    rest = [c for c in characters if c not in _NOT_IN_CNS and c not in moved.values()]
    for place in sorted(moved):
        rest.insert(place, moved[place])
    return "".join(rest)


def _big5(first: int, last: int) -> str:
    trails = [*range(0x40, 0x7F), *range(0xA1, 0xFF)]
    codes = [lead << 8 | trail for lead in range(first >> 8, (last >> 8) + 1) for trail in trails]
    wanted = (code.to_bytes(2, "big") for code in codes if first <= code <= last)
    return b"".join(wanted).decode("cp950")
