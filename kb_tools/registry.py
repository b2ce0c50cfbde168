"""Find a retriever, vector store or parser by its name.

A name is looked up in this order: registered at run time, a module of the built-in folder, an
entry point of `kb_tools.<group>`. To add one, add a file; its name is the name.
"""

import pkgutil
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points

from kb_tools.errors import UnknownName

_registered: dict[tuple[str, str], Callable[..., object]] = {}
_FOLDERS = {
    "retrievers": "retrievers",
    "vectorstores": "vectorstores",
    "parsers": "ingest.parsers",
}


def register(group: str, name: str, create: Callable[..., object]) -> None:
    """Make `create` available as `name` of `group`: retrievers, vectorstores or parsers.

    Raises UnknownName for another group.
    """
    if group not in _FOLDERS:
        raise UnknownName("group", group, _FOLDERS)
    _registered[group, name.lower()] = create


def registered(group: str) -> list[str]:
    """Return the names that were given to `register` in this process, sorted."""
    return sorted(name for place, name in _registered if place == group)


def known(group: str) -> list[str]:
    """Return all names of `group`, sorted."""
    plugged = {entry.name.lower() for entry in entry_points(group=f"kb_tools.{group}")}
    return sorted({*registered(group)} | plugged | set(_modules(group)))


def load(group: str, name: str) -> Callable[..., object]:
    """Return the `create` function behind `name`; case does not matter.

    Raises UnknownName, which lists the known names.
    """
    wanted = name.lower()
    if (group, wanted) in _registered:
        return _registered[group, wanted]
    if wanted in _modules(group):
        create: Callable[..., object] = import_module(f"{_folder(group)}.{wanted}").create
        return create
    for entry in entry_points(group=f"kb_tools.{group}"):
        if entry.name.lower() == wanted:
            plugged: Callable[..., object] = entry.load()
            return plugged
    raise UnknownName(group.removesuffix("s"), name, known(group))


def _modules(group: str) -> list[str]:
    folder = import_module(_folder(group)).__path__
    names = [module.name for module in pkgutil.iter_modules(folder)]
    return [name for name in names if not name.startswith("_") and name != "base"]


def _folder(group: str) -> str:
    return f"kb_tools.{_FOLDERS[group]}"
