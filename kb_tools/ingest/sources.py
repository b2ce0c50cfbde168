"""Turn what a caller hands over (paths, folders, open files, LangChain documents) into documents.

Nothing is parsed here: bytes are read, named and hashed, one source after the other, so a generator
of a million documents is never a list. A named file that cannot be read is refused; what a folder
holds besides readable files of known formats is reported; what is too large becomes a document in
error, so that a batch goes on.
"""

import hashlib
import json
import mimetypes
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from os import PathLike, fspath
from pathlib import Path, PurePosixPath
from typing import IO, Any, TypeAlias, cast

from langchain_core.document_loaders import BaseLoader
from langchain_core.documents import Document as LCDocument
from pydantic_core import to_jsonable_python

from kb_tools.errors import InvalidInput
from kb_tools.ingest.folders import FoundFile, files_of, is_pattern
from kb_tools.models import Json, SkipKind, Skipped, new_id
from kb_tools.settings import Settings
from kb_tools.storage.documents import NewDocument
from kb_tools.text.characters import storable

_PLACE = re.compile(r"(?:/|[A-Za-z]:[\\/]|\\\\|~/)[^\n]*$")
_NAMELESS = "an open file needs a name with an extension: set its .name, e.g. 'a.md'"

Source: TypeAlias = str | PathLike[str] | IO[bytes] | IO[str] | LCDocument | BaseLoader


def read_sources(
    sources: Source | Iterable[Source], metadata: Mapping[str, object] | None, settings: Settings
) -> Iterator[NewDocument | Skipped]:
    """Yield one document per file, in order, and what is left out; folders and loaders give many.

    Raises InvalidInput naming every path that is no readable file, every folder without a file,
    glob without a match and open file without a name: before the first yield, or when its turn
    comes if the sources are an iterator. Raises it, too, when a loader fails.
    """
    many = _many(sources)
    if isinstance(many, Collection):
        _refuse(fault for source in many if (fault := _fault(source)))
    extra = json_metadata(metadata or {})
    for source in many:
        if not isinstance(many, Collection) and (fault := _fault(source)):
            raise InvalidInput(fault)
        yield from _read(source, extra, settings)


def json_metadata(metadata: Mapping[str, object]) -> dict[str, Json]:
    """Return metadata as JSON that PostgreSQL can store; what has no JSON form becomes text."""
    return {storable(str(name)): _storable(_plain(value)) for name, value in metadata.items()}


def _plain(value: object) -> Any:
    try:
        plain = to_jsonable_python(
            value, fallback=str, inf_nan_mode="null", bytes_mode="base64", serialize_unknown=True
        )
        json.dumps(plain)
        return plain
    except Exception:  # circular, a number of thousands of digits, an object without a text
        return f"<{type(value).__name__}>"


def label_fields(metadata: Mapping[str, Json], fallback: str) -> tuple[str, str, str]:
    """Return (title, filename, source) of a LangChain document's metadata.

    title: title, else post_title; filename: last part of filename, file_name or source, else the
    title, else `fallback`; source: as given, else the filename.
    """
    title = _text(metadata, "title", "post_title")
    path = _text(metadata, "filename", "file_name", "source")
    filename = _last_part(path) or _last_part(title) or fallback
    return title, filename, _text(metadata, "source") or filename


def _many(sources: Source | Iterable[Source]) -> Iterable[Source]:
    if isinstance(sources, str | PathLike | LCDocument | BaseLoader) or hasattr(sources, "read"):
        return [cast(Source, sources)]
    return sources


def _refuse(faults: Iterable[str]) -> None:
    if message := "; ".join(faults):
        raise InvalidInput(message)


def _fault(source: Source) -> str | None:
    if isinstance(source, LCDocument | BaseLoader):
        return None
    if hasattr(source, "read"):
        return None if isinstance(getattr(source, "name", None), str) else _NAMELESS
    if not isinstance(source, str | PathLike):
        return (
            f"cannot read a source of type {type(source).__name__}; give paths, folders, open "
            "files, LangChain documents or loaders"
        )
    return _fault_of_place(fspath(source))


def _fault_of_place(place: str) -> str | None:
    try:
        if _holds_files(place):
            if next(files_of(place), None) is None:
                what = "holds no file" if os.path.isdir(place) else "matches no file"
                return f"{place!r} {what}"
            return None
        path = Path(place)
        if not path.is_file():
            return f"{place!r} is no regular file" if path.exists() else _missing(path)
        with path.open("rb") as stream:
            stream.read(1)
        return None
    except (OSError, ValueError) as error:
        return f"cannot read {place!r}: {getattr(error, 'strerror', None) or error}"


def _holds_files(place: str) -> bool:
    """Tell whether a path is a folder or a glob; a file may be named like one."""
    return os.path.isdir(place) or (is_pattern(place) and not os.path.lexists(place))


def _missing(path: Path) -> str:
    return f"cannot read {str(path)!r}: no such file"


def _read(
    source: Source, extra: dict[str, Json], settings: Settings
) -> Iterator[NewDocument | Skipped]:
    if isinstance(source, LCDocument):
        yield _from_langchain(source, extra)
    elif isinstance(source, BaseLoader):
        yield from (_from_langchain(document, extra) for document in _loaded(source))
    elif not isinstance(source, str | PathLike):
        yield _from_stream(source, extra, settings)
    elif _holds_files(fspath(source)):
        for found in files_of(fspath(source)):
            yield found if isinstance(found, Skipped) else _from_folder(found, extra, settings)
    else:
        yield _from_file(FoundFile(Path(source), Path(source).name), extra, settings)


def _from_folder(
    file: FoundFile, extra: dict[str, Json], settings: Settings
) -> NewDocument | Skipped:
    try:
        return _from_file(file, extra, settings)
    except OSError as error:
        reason = f"cannot be read: {error.strerror or type(error).__name__}"
        return Skipped(storable(file.name), SkipKind.UNREADABLE, reason)


def _from_file(file: FoundFile, extra: dict[str, Json], settings: Settings) -> NewDocument:
    with file.path.open("rb") as stream:
        return _from_bytes(file.name, _head(stream, settings), extra, settings)


def _loaded(loader: BaseLoader) -> Iterator[LCDocument]:
    try:
        yield from loader.lazy_load()
    except Exception as error:
        kind = type(error).__name__
        raise InvalidInput(f"the loader {type(loader).__name__} failed: {kind}") from error


def _from_langchain(document: LCDocument, extra: dict[str, Json]) -> NewDocument:
    own = _without_places(json_metadata(document.metadata))
    metadata = own | extra
    text = storable(document.page_content)
    title, filename, source = label_fields(metadata, fallback=text.strip()[:40] or "untitled")
    return _new(
        filename,
        text.encode(),
        metadata | {"title": title},
        source=source,
        extension="txt",  # already text, whatever file it came from
        mime_type="text/plain",
        own_metadata=own,
    )


def _without_places(metadata: dict[str, Json]) -> dict[str, Json]:
    """Return metadata whose paths of this machine are cut to their last part; URLs stay."""
    return {
        name: _last_part(value) if isinstance(value, str) and _PLACE.match(value) else value
        for name, value in metadata.items()
    }


def _from_stream(
    stream: IO[bytes] | IO[str], extra: dict[str, Json], settings: Settings
) -> NewDocument:
    name = getattr(stream, "name", None)
    if not isinstance(name, str):
        raise InvalidInput(
            "an open file needs a name with an extension: set its .name, e.g. 'a.md'"
        )
    return _from_bytes(PurePosixPath(name).name, _head(stream, settings), extra, settings)


def _head(stream: IO[bytes] | IO[str], settings: Settings) -> bytes:
    content = stream.read(settings.max_file_bytes + 1)
    return content.encode() if isinstance(content, str) else content


def _from_bytes(
    name: str, content: bytes, extra: dict[str, Json], settings: Settings
) -> NewDocument:
    error = None
    if len(content) > settings.max_file_bytes:
        content = b""
        error = (
            f"too large: over the limit of {settings.max_file_bytes:,} bytes; "
            "raise KB_MAX_FILE_BYTES or split the file"
        )
    name = storable(name)
    mime_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
    suffix = PurePosixPath(name).suffix.lower().lstrip(".")
    return _new(
        name, content, extra, source=name, extension=suffix, mime_type=mime_type, error=error
    )


def _new(
    name: str,
    content: bytes,
    metadata: dict[str, Json],
    *,
    source: str,
    extension: str,
    mime_type: str,
    own_metadata: Mapping[str, Json] | None = None,
    error: str | None = None,
) -> NewDocument:
    return NewDocument(
        new_id(),
        name,
        source,
        extension,
        mime_type,
        content,
        _content_hash(content, own_metadata),
        metadata,
        error,
    )


def _content_hash(content: bytes, own_metadata: Mapping[str, Json] | None) -> str:
    """Return what equal content has in common: bytes, and a LangChain document's own metadata.

    Two passages with one text and two titles or sources are two documents.
    """
    digest = hashlib.sha256(content)
    if own_metadata:
        digest.update(b"\0" + json.dumps(own_metadata, sort_keys=True).encode())
    return digest.hexdigest()


def _text(metadata: Mapping[str, Json], *names: str) -> str:
    values = (metadata.get(name) for name in names)
    return next((str(value).strip() for value in values if value not in (None, "")), "")


def _last_part(path: str) -> str:
    return path.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {storable(str(key)): _storable(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_storable(entry) for entry in value]
    return value
