"""Formats: a format is a file of this folder, and the file's name is the suffix it reads.

To add one, add a file with `create() -> Parser`, a callable `(data, limits) -> Parsed` that raises
ParseError with a reason. Other suffixes of the same format go into ALIASES. `python -m
kb_tools.ingest.parsers` is the child process that runs them; see `parser_process`.

A parser of another package is an entry point of `kb_tools.parsers` (it runs in the child), or is
given to `kb_tools.register("parsers", "png", create)` (it runs here). One named `ocr` is no format:
see `ingest/ocr.py`.
"""

import pkgutil

from kb_tools import registry
from kb_tools.errors import UnknownName
from kb_tools.ingest.parsed import Block, BlockKind, Limits, Parsed, ParseError, Parser

__all__ = ["Block", "BlockKind", "Limits", "ParseError", "Parsed", "Parser", "format_of", "load"]

ALIASES = {
    "text": "txt", "log": "txt", "markdown": "md", "mdown": "md", "mkd": "md", "htm": "html",
    "xhtml": "html", "tsv": "csv", "tab": "csv", "jsonl": "json", "ndjson": "json",
    "rss": "xml", "atom": "xml", "docm": "docx", "dotx": "docx", "dotm": "docx", "xlsm": "xlsx",
    "xltx": "xlsx", "xltm": "xlsx", "pptm": "pptx", "ppsx": "pptx", "ppsm": "pptx",
    "potx": "pptx", "potm": "pptx", "dot": "doc", "wps": "doc", "xlt": "xls", "et": "xls",
    "pps": "ppt", "pot": "ppt", "dps": "ppt", "ott": "odt", "ots": "ods", "otp": "odp",
}  # fmt: skip
DONE, FAILED = b"+", b"-"  # how an answer of the child begins
OCR = "ocr"  # no format: who reads the pages of a PDF that have no text
_HERE = frozenset(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))


class DictionaryNeeded(Exception):
    """The child was not yet told the words of a tokenizer's dictionary."""


def format_of(extension: str) -> str:
    """Return the name of the parser for a suffix, with or without its dot.

    Raises ParseError naming the supported formats.
    """
    suffix = extension.strip().lower().removeprefix(".")
    name = suffix if suffix in registry.registered("parsers") else ALIASES.get(suffix, suffix)
    if name in _HERE:
        return name
    known = registry.known("parsers")  # looks into every installed package: slow
    if name in known and name != OCR:
        return name
    what = f"unsupported format '.{suffix}'" if suffix else "a file name without an extension"
    supported = sorted({*known, *ALIASES} - {OCR})
    raise ParseError(f"{what}; supported: {', '.join(supported)}")


def load(name: str) -> Parser:
    """Return the parser of that name, ready to use."""
    try:
        parser: Parser = registry.load("parsers", name)()  # type: ignore[assignment]  # its contract
    except UnknownName:
        raise ParseError(f"unsupported format '.{name}'") from None
    return parser
