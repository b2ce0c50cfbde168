"""Turn what a caller hands over (paths, open files, LangChain documents, loaders) into documents.

Nothing is parsed here: bytes are read, named and hashed. What cannot be read at all is refused
before any row exists; what is too large becomes a document in error, so that a batch goes on.
"""

import hashlib
import json
import mimetypes
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path, PurePosixPath
from typing import IO, Any, TypeAlias, cast

from langchain_core.document_loaders import BaseLoader
from langchain_core.documents import Document as LCDocument
from pydantic_core import to_jsonable_python

from kb_tools.errors import InvalidInput
from kb_tools.models import Json, new_id
from kb_tools.settings import Settings
from kb_tools.storage.documents import NewDocument
from kb_tools.text.characters import storable

_PLACE = re.compile(r"(?:/|[A-Za-z]:[\\/]|\\\\|~/)[^\n]*$")
_NAMELESS = "an open file needs a name with an extension: set its .name, e.g. 'a.md'"

Source: TypeAlias = str | PathLike[str] | IO[bytes] | IO[str] | LCDocument | BaseLoader


def read_sources(
    sources: Source | Iterable[Source], metadata: Mapping[str, object] | None, settings: Settings
) -> Iterator[NewDocument]:
    """Yield one document per source, in order; a loader may give many.

    Raises InvalidInput before the first yield, naming every path that is not a readable file and
    every open file without a name; and when a loader fails.
    """
    many = _as_list(sources)
    _refuse_unreadable(many)
    extra = json_metadata(metadata or {})
    for source in many:
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


def _as_list(sources: Source | Iterable[Source]) -> list[Source]:
    if isinstance(sources, str | PathLike | LCDocument | BaseLoader) or hasattr(sources, "read"):
        return [cast(Source, sources)]
    return list(sources)


def _refuse_unreadable(sources: Sequence[Source]) -> None:
    faults = [fault for source in sources if (fault := _fault(source))]
    if faults:
        raise InvalidInput("; ".join(faults))


def _fault(source: Source) -> str | None:
    if isinstance(source, LCDocument | BaseLoader):
        return None
    if hasattr(source, "read"):
        return None if isinstance(getattr(source, "name", None), str) else _NAMELESS
    if not isinstance(source, str | PathLike):
        return (
            f"cannot read a source of type {type(source).__name__}; give paths, open files, "
            "LangChain documents or loaders"
        )
    path = Path(fspath(source))
    try:
        if path.is_dir():
            return f"{str(path)!r} is a folder; give its files, e.g. sorted(Path(folder).glob('*'))"
        if not path.is_file():
            return f"{str(path)!r} is no regular file" if path.exists() else _missing(path)
        with path.open("rb") as stream:
            stream.read(1)
        return None
    except (OSError, ValueError) as error:
        return f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}"


def _missing(path: Path) -> str:
    return f"cannot read {str(path)!r}: no such file"


def _read(source: Source, extra: dict[str, Json], settings: Settings) -> Iterator[NewDocument]:
    if isinstance(source, LCDocument):
        yield _from_langchain(source, extra)
    elif isinstance(source, BaseLoader):
        yield from (_from_langchain(document, extra) for document in _loaded(source))
    elif isinstance(source, str | PathLike):
        path = Path(fspath(source))
        with path.open("rb") as stream:
            yield _from_bytes(path.name, _head(stream, settings), extra, settings)
    else:
        yield _from_stream(source, extra, settings)


def _loaded(loader: BaseLoader) -> Iterator[LCDocument]:
    try:
        yield from loader.lazy_load()
    except Exception as error:
        kind = type(error).__name__
        raise InvalidInput(f"the loader {type(loader).__name__} failed: {kind}") from error


def _from_langchain(document: LCDocument, extra: dict[str, Json]) -> NewDocument:
    metadata = _without_places(json_metadata(document.metadata)) | extra
    text = storable(document.page_content)
    title, filename, source = label_fields(metadata, fallback=text.strip()[:40] or "untitled")
    return _new(
        filename,
        text.encode(),
        metadata | {"title": title},
        source=source,
        extension="txt",  # already text, whatever file it came from
        mime_type="text/plain",
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
    error: str | None = None,
) -> NewDocument:
    digest = hashlib.sha256(content).hexdigest()
    return NewDocument(
        new_id(), name, source, extension, mime_type, content, digest, metadata, error
    )


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
