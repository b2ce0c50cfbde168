"""Formats: a format is a file of this folder, and the file's name is the suffix it reads.

To add one, add a file with `create() -> Parser`, a callable `(data, limits) -> Parsed` that raises
ParseError with a reason. Other suffixes of the same format go into ALIASES. `python -m
kb_tools.ingest.parsers` is the child process that runs them; see `parser_process`.
"""

import pkgutil

from kb_tools import registry
from kb_tools.errors import UnknownName
from kb_tools.ingest.parsed import Block, BlockKind, Limits, Parsed, ParseError, Parser

__all__ = ["Block", "BlockKind", "Limits", "ParseError", "Parsed", "Parser", "format_of", "load"]

ALIASES = {
    "text": "txt", "log": "txt", "markdown": "md", "mdown": "md", "mkd": "md", "htm": "html",
    "xhtml": "html", "tsv": "csv", "tab": "csv", "jsonl": "json", "ndjson": "json",
}  # fmt: skip
_HERE = frozenset(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
_SAVE_AS = {
    "doc": "docx",
    "dot": "docx",
    "docm": "docx",
    "rtf": "docx",
    "odt": "docx",
    "wps": "docx",
}


def format_of(extension: str) -> str:
    """Return the name of the parser for a suffix, with or without its dot.

    Raises ParseError naming the supported formats.
    """
    suffix = extension.strip().lower().removeprefix(".")
    name = suffix if suffix in registry.registered("parsers") else ALIASES.get(suffix, suffix)
    if name in _HERE:
        return name
    known = registry.known("parsers")  # looks into every installed package: slow
    if name in known:
        return name
    if better := _SAVE_AS.get(suffix):
        raise ParseError(
            f"unsupported format '.{suffix}': save it as .{better}; {_supported(known)}"
        )
    what = f"unsupported format '.{suffix}'" if suffix else "a file name without an extension"
    raise ParseError(f"{what}; {_supported(known)}")


def load(name: str) -> Parser:
    """Return the parser of that name, ready to use."""
    try:
        parser: Parser = registry.load("parsers", name)()  # type: ignore[assignment]  # its contract
    except UnknownName:
        raise ParseError(f"unsupported format '.{name}'") from None
    return parser


def _supported(known: list[str]) -> str:
    return f"supported: {', '.join(known)}"
