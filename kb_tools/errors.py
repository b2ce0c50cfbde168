"""Every error that kb_tools raises on purpose.

    KnowledgeBaseError
    ├── NotFound            an id or name that does not exist for this account
    ├── InvalidState        the thing exists, but not in a state that allows this
    ├── InvalidInput        a value that cannot be used, named in the message
    │   └── UnknownName     a retriever, vector store or parser nobody registered
    ├── BuildFailed         documents of a batch ended in error
    ├── ParseError          a file gives no text (ingest/parsed.py)
    ├── BackendError        database, vector store or model did not answer
    │   └── ConnectionLost  the database went away in the middle of a transaction
    └── MissingDependency   an optional package is needed; the message names the extra

Messages say what was wrong, with the value, and what to do. They never hold a connection
string or a driver's message: both can carry a password.
"""

from collections.abc import Iterable, Sequence
from typing import Self


class KnowledgeBaseError(Exception):
    """The base of all errors of this package."""


class NotFound(KnowledgeBaseError):
    """No such thing in this account; another account's id gives the same answer."""


class InvalidState(KnowledgeBaseError):
    """The thing is not in a state that allows this operation."""


class InvalidInput(KnowledgeBaseError, ValueError):
    """A value cannot be used; the message names it."""


class UnknownName(InvalidInput):
    """A name that is neither built in, nor an entry point, nor registered."""

    def __init__(self, group: str, name: str, known: Iterable[str]) -> None:
        """Keep what was asked for and what there is."""
        self.group, self.name, self.known = group, name, sorted(known)
        super().__init__(f"unknown {group} {name!r}; known: {', '.join(self.known)}")


class BuildFailed(KnowledgeBaseError):
    """Documents of a batch ended in error; `errors` holds (name, reason) of each."""

    def __init__(self, errors: Sequence[tuple[str, str]]) -> None:
        """Keep name and reason of each document."""
        self.errors = list(errors)
        listed = "; ".join(f"{name}: {reason}" for name, reason in errors)
        super().__init__(f"{len(errors)} document(s) failed: {listed}")


class BackendError(KnowledgeBaseError):
    """A database, vector store or model failed; the message names which, never its own words."""


class ConnectionLost(BackendError):
    """The database went away in the middle of a transaction; what was committed before is kept."""


class MissingDependency(KnowledgeBaseError, ImportError):
    """An optional package is not installed."""

    @classmethod
    def of_extra(cls, package: str, extra: str) -> Self:
        """Return the error that names the package and the extra that brings it."""
        return cls(f"{package} is not installed; run: pip install 'kb-tools[{extra}]'")
