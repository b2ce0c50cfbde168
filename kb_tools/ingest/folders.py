"""Find the files of a folder or a glob, and say of every other entry why it is left out.

A folder is walked to its leaves in sorted order, one listing per level in memory. Links to files
are followed, links to folders are not, so there are no loops. `**` in a glob is any number of
folders.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePath

from kb_tools.ingest.parsed import ParseError
from kb_tools.ingest.parsers import format_of
from kb_tools.models import SkipKind, Skipped
from kb_tools.text.characters import storable

_HIDDEN = (".", "~$")  # the second marks what Office keeps beside an open file
_DATABASE = "PG_VERSION"
_MAGIC = frozenset("*?[")


@dataclass(frozen=True)
class FoundFile:
    """A file below a folder; `name` is its path from there, with slashes."""

    path: Path
    name: str


def is_pattern(place: str) -> bool:
    """Tell whether a path that does not exist is a glob."""
    return not _MAGIC.isdisjoint(place)


def files_of(place: str) -> Iterator[FoundFile | Skipped]:
    """Yield the files of supported formats of a folder or glob, and what is left out, sorted."""
    supported: dict[str, str] = {}  # suffix -> why it is not supported, or ""
    for path, name, fault in _entries(place):
        fault = fault or _unsupported(name, supported)
        if fault:
            kind, reason = fault
            yield Skipped(storable(name), kind, reason)
        else:
            yield FoundFile(Path(path), name)


_Fault = tuple[SkipKind, str]
_Entry = tuple[str, str, _Fault | None]  # path, name, why it cannot be read


def _entries(place: str) -> Iterator[_Entry]:
    if os.path.isdir(place):
        return _walk(place)
    base, parts = _pattern(place)
    depth = None if "**" in parts else len(parts)
    return (entry for entry in _walk(base, depth) if _is_asked_for(entry, parts))


def _pattern(place: str) -> tuple[str, list[str]]:
    """Return the folder that a glob starts from, and its parts from there."""
    parts = list(PurePath(place).parts)
    fixed = next(at for at, part in enumerate(parts) if is_pattern(part))
    varying = parts[fixed:]
    if varying[-1] == "**":
        varying.append("*")
    return os.path.join(*parts[:fixed]) if fixed else ".", varying


def _is_asked_for(entry: _Entry, parts: Sequence[str]) -> bool:
    _, name, fault = entry
    return bool(fault and fault[0] is SkipKind.UNREADABLE) or _fits(name.split("/"), parts)


def _fits(names: Sequence[str], parts: Sequence[str]) -> bool:
    if not parts:
        return not names
    if parts[0] == "**":
        return _fits(names, parts[1:]) or (bool(names) and _fits(names[1:], parts))
    return bool(names) and fnmatchcase(names[0], parts[0]) and _fits(names[1:], parts[1:])


def _walk(top: str, depth: int | None = None) -> Iterator[_Entry]:
    waiting = [""]
    while waiting:
        name = waiting.pop()
        path = os.path.join(top, name) if name else top
        fault = _fault(path, name) if name else None
        if fault or not os.path.isdir(path):
            yield path, name, fault
            continue
        if depth is not None and name.count("/") + bool(name) >= depth:
            continue
        try:
            below = sorted(os.listdir(path), reverse=True)
        except OSError as error:
            yield path, name or PurePath(top).name, _unreadable(error)
            continue
        waiting += [f"{name}/{entry}" if name else entry for entry in below]


def _fault(path: str, name: str) -> _Fault | None:
    """Return why an entry is neither read nor walked into."""
    if PurePath(name).name.startswith(_HIDDEN):
        return SkipKind.HIDDEN, "hidden; name it to add it"
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return _unreadable(error)
    if stat.S_ISREG(mode):
        return None
    if not stat.S_ISDIR(mode):
        return SkipKind.UNSUPPORTED, "no regular file"
    if os.path.islink(path):
        return SkipKind.UNSUPPORTED, "a link to a folder; name it to add it"
    if os.path.exists(os.path.join(path, _DATABASE)):
        return SkipKind.UNSUPPORTED, "the data of a PostgreSQL server"
    return None


def _unreadable(error: OSError) -> _Fault:
    return SkipKind.UNREADABLE, f"cannot be read: {error.strerror or type(error).__name__}"


def _unsupported(name: str, known: dict[str, str]) -> _Fault | None:
    suffix = PurePath(name).suffix.lower()
    if suffix not in known:
        try:
            format_of(suffix)
            known[suffix] = ""
        except ParseError:
            known[suffix] = f"unsupported format {suffix!r}" if suffix else "a name without suffix"
    return (SkipKind.UNSUPPORTED, known[suffix]) if known[suffix] else None
