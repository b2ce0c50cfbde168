"""How the command line prints: lines, tables and JSON, without anything that steers a terminal."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kb_tools.models import Document, DocumentState
from kb_tools.text.characters import visible

LONGEST_CELL = 120
_out = Console(highlight=False)
_err = Console(stderr=True, highlight=False)
# What json.dumps leaves as it is although a terminal may act on it, or no encoding can hold it.
_UNSAFE = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]")


def say(line: str) -> None:
    """Print text: wrapped between words on a terminal, untouched in a pipe."""
    _out.print(Text(visible(line)), soft_wrap=not _out.is_terminal)


def tell(line: str) -> None:
    """Print one line to stderr, whatever the text holds."""
    _err.print(Text(" ".join(visible(line).split())), soft_wrap=True)


def tell_errors(documents: Sequence[Document | DocumentState]) -> None:
    """Print to stderr which documents failed and why, and what to do about it."""
    failed = [document for document in documents if document.error]
    for document in failed:
        tell(f"error: {document.name}: {document.error}")
    if failed:
        tell("Mend what is wrong and add the file again: it takes the failed document's place.")


def show(value: object, as_json: bool, line: str) -> None:
    """Print `value` as JSON, or `line`."""
    if as_json:
        print_json(value)
    else:
        say(line)


def print_json(value: object) -> None:
    """Print JSON; dataclasses become objects, times become texts."""
    narrow = not (sys.stdout.encoding or "").lower().startswith("utf")
    text = json.dumps(value, default=_plain, ensure_ascii=narrow, indent=2)
    typer.echo(_UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def _plain(item: object) -> object:
    return asdict(item) if is_dataclass(item) and not isinstance(item, type) else str(item)


def print_table(rows: Sequence[Mapping[str, object]], nothing: str) -> None:
    """Print rows as a table that fits the terminal, or the line `nothing` if there are none.

    Numbers and ids stay in one line; long texts fold and are cut.
    """
    if not rows:
        say(nothing)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for name, value in rows[0].items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        solid = number or name in ("id", "status", "kind")
        justify: Any = "right" if number else "left"
        table.add_column(name, justify=justify, no_wrap=solid, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row.values()))
    _out.print(table)


def _cell(value: object) -> str:
    text = "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
    line = " ".join(visible(text).split())
    return line if len(line) <= LONGEST_CELL else f"{line[: LONGEST_CELL - 1]}…"


def confirm(question: str, yes: bool) -> None:
    """Ask before something is lost; ends the command unless the answer is yes."""
    if not yes:
        typer.confirm(" ".join(visible(question).split()), abort=True, err=True)
