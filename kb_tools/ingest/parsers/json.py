"""JSON and JSON Lines as lines of "path: value"; a record of a list is a block of its own."""

import json
from collections.abc import Iterator

from kb_tools.ingest.encodings import decode
from kb_tools.ingest.parsed import Block, Limits, Parsed, ParseError, Parser
from kb_tools.ingest.rows import row_block

_LARGE = 12  # an object with more values than this gets blocks of its own


def create() -> Parser:
    """Return the parser."""
    return parse


def parse(data: bytes, limits: Limits) -> Parsed:
    """Return the values behind their paths, in the file's order; numbers as they are written."""
    decoded = decode(data)
    value = _load(decoded.text)
    blocks = tuple(_blocks(value, ""))
    return Parsed(blocks, title=_title(value), report=decoded.report)


def _load(text: str) -> object:
    try:
        return _loads(text)
    except json.JSONDecodeError as error:
        records = _records(text)
        if records is None:
            raise ParseError(
                f"invalid JSON at line {error.lineno}, column {error.colno}: {error.msg}"
            ) from None
        return records
    except RecursionError:
        raise ParseError("JSON is nested too deeply to be read") from None


def _loads(text: str) -> object:
    # Numbers stay as written: 1.10 is not 1.1, and a long one needs no limit.
    return json.loads(text, parse_float=str, parse_int=str, parse_constant=str)


def _records(text: str) -> list[object] | None:
    """Return the lines of a JSON Lines file, or None if this is none."""
    lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    try:
        first = _loads(lines[0][1])
    except (json.JSONDecodeError, RecursionError):
        return None
    if len(lines) < 2 or not isinstance(first, dict | list):
        return None
    return [_loads_line(number, line) for number, line in lines]


def _loads_line(number: int, line: str) -> object:
    try:
        return _loads(line)
    except json.JSONDecodeError as error:
        raise ParseError(
            f"invalid JSON at line {number}, column {error.colno}: {error.msg}"
        ) from None


def _blocks(value: object, path: str) -> Iterator[Block]:
    if isinstance(value, list) and any(isinstance(entry, dict | list) for entry in value):
        for entry in value:
            yield from _block(_flat(entry), path)
        return
    if not isinstance(value, dict):
        yield from _block(_flat(value), path)
        return
    small: list[tuple[str, str]] = []
    for key, entry in value.items():
        if _is_large(entry):
            yield from _block(small, path)
            small = []
            yield from (
                _block(_flat(entry), str(key))
                if isinstance(entry, dict)
                else _blocks(entry, str(key))
            )
        else:
            small += _flat(entry, str(key))
    yield from _block(small, path)


def _is_large(value: object) -> bool:
    if isinstance(value, list):
        return any(isinstance(entry, dict | list) for entry in value)
    return isinstance(value, dict) and len(_flat(value)) > _LARGE


def _block(pairs: list[tuple[str, str]], heading: str) -> Iterator[Block]:
    if pairs:
        names, values = zip(*pairs, strict=True)
        yield row_block(names, values, heading=heading)


def _flat(value: object, path: str = "") -> list[tuple[str, str]]:
    """Return (path, text) of each value below, in order, without recursion."""
    pairs: list[tuple[str, str]] = []
    waiting = [(path, value)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            inner = [(f"{path}.{key}" if path else str(key), entry) for key, entry in value.items()]
            waiting += reversed(inner)
        elif isinstance(value, list) and any(isinstance(entry, dict | list) for entry in value):
            waiting += reversed([(f"{path}[{at}]", entry) for at, entry in enumerate(value)])
        elif (text := _text(value)).strip():
            pairs.append((path, text))
    return pairs


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(text for entry in value if (text := _text(entry)).strip())
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _title(value: object) -> str:
    title = value.get("title") if isinstance(value, dict) else None
    return title if isinstance(title, str) else ""
