"""Write the value of a spreadsheet's cell as its number format shows it."""

import re
from datetime import date, datetime, time, timedelta
from decimal import Decimal

_QUOTED = re.compile(r'"([^"]*)"|\\(.)|\[\$([^\]-]*)[^\]]*\]')
_OTHER_BRACKETS = re.compile(r"\[[^\]]*\]")
_PADDING = re.compile(r"[_*].")
_DIGITS = re.compile(r"[#0?][#0?,]*(?:\.([#0?]*))?")
_CHINESE_DATE = re.compile(r"年.*月")
_LONGEST_INTEGER = 1e21  # the number of an account or a card, not a measured value


def shown(value: object, number_format: str = "General") -> str:
    """Return what a person sees in the cell: "12.5%", "¥1,234.50", "2024年3月1日", "TRUE"."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int | float):
        return _number(value, number_format)
    if isinstance(value, datetime | date | time | timedelta):
        return _time(value, number_format)
    return str(value).strip()


def _time(value: datetime | date | time | timedelta, number_format: str) -> str:
    if isinstance(value, timedelta):
        minutes, seconds = divmod(round(value.total_seconds()), 60)
        return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
    if isinstance(value, time):
        return _clock(value)
    day = value.strftime("%Y-%m-%d") if value.year >= 1000 else value.isoformat()[:10]
    if _CHINESE_DATE.search(number_format):
        day = f"{value.year}年{value.month}月"
        if "日" in number_format:
            day += f"{value.day}日"
    if not isinstance(value, datetime) or value.time() == time():
        return day
    return f"{day} {_clock(value.time())}"


def _clock(value: time) -> str:
    return value.strftime("%H:%M:%S" if value.second else "%H:%M")


def _number(value: float, number_format: str) -> str:
    # A format has parts for positive and negative numbers, zero and text.
    pattern = number_format.split(";")[0]
    if pattern.lower() in ("general", "@", ""):
        return _plain(value)
    before, digits, after = _parts(pattern)
    if digits is None or "/" in after or "E+" in pattern.upper():
        return _plain(value)
    percent = "%" in before + after
    decimals = digits.group(1)
    number = 100 * value if percent else value
    places = len(decimals or "")
    text = f"{abs(number):,.{places}f}" if "," in digits.group() else f"{abs(number):.{places}f}"
    if decimals and not decimals.endswith("0"):
        least = decimals.count("0")
        whole, _, part = text.partition(".")
        part = part[:least] + part[least:].rstrip("0")
        text = f"{whole}.{part}" if part else whole
    zeros = digits.group().partition(".")[0].replace(",", "").count("0")
    if "," not in digits.group():
        whole, point, part = text.partition(".")
        text = whole.zfill(zeros) + point + part
    sign = "-" if number < 0 and text.strip("0.,") else ""
    return f"{sign}{before}{text}{after}".strip()


def _parts(pattern: str) -> tuple[str, re.Match[str] | None, str]:
    """Return (text before the digits, the digits, text after them) of a number format."""
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        kept.append(next((group for group in found.groups() if group is not None), ""))
        return chr(0xE000 + len(kept) - 1)

    pattern = _QUOTED.sub(keep, pattern[:200])
    pattern = _PADDING.sub("", _OTHER_BRACKETS.sub("", pattern))
    digits = _DIGITS.search(pattern)
    before, after = pattern, ""
    if digits:
        before, after = pattern[: digits.start()], pattern[digits.end() :]
    return _restored(before, kept), digits, _restored(after, kept)


def _restored(text: str, kept: list[str]) -> str:
    for at, literal in enumerate(kept):
        text = text.replace(chr(0xE000 + at), literal)
    return text


def _plain(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    if value.is_integer() and abs(value) < _LONGEST_INTEGER:
        return str(int(Decimal(f"{value:.15g}")))  # spreadsheets keep 15 digits
    return f"{value:.12g}"
