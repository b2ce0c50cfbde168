"""Where vectors live: the protocol that every store keeps, and one store per embedding space.

A store holds vectors, ids and two flags. It never decides what a user may see: every hit is
re-read from its row afterwards. To add a store, add a file with `create(space, settings, db)`.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Protocol, cast, runtime_checkable

from psycopg import Connection

from kb_tools import registry
from kb_tools.db import Database
from kb_tools.embeddings import Vector as Vector
from kb_tools.errors import KnowledgeBaseError
from kb_tools.settings import Settings

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Space:
    """An embedding space: a model's name and its dimension."""

    model: str
    dimension: int


@dataclass(frozen=True, eq=False)
class Point:
    """A segment's vector, `(dimension,) float32`, with what a store may filter on."""

    segment_id: str
    document_id: str
    dataset_id: str
    vector: Vector
    segment_enabled: bool = True
    document_enabled: bool = True


class VectorStore(Protocol):
    """The vectors of one embedding space.

    `conn` is the transaction of the asset that changes; stores outside PostgreSQL ignore it.
    """

    def upsert(self, points: Sequence[Point], *, conn: Connection | None = None) -> None:
        """Write the points, replacing those of the same segment."""

    def search(self, vector: Vector, dataset_ids: Sequence[str], k: int) -> list[tuple[str, float]]:
        """Return (segment id, cosine) of enabled segments, best first, exactly min(k, matches)."""

    def cosines(self, vector: Vector, segment_ids: Sequence[str]) -> dict[str, float]:
        """Return the cosine of each known segment; unknown ids are left out."""

    def vectors(self, segment_ids: Sequence[str]) -> dict[str, Vector]:
        """Return the stored vectors of known segments; unknown ids are left out."""

    def set_enabled(
        self,
        *,
        segment_ids: Sequence[str] = (),
        document_id: str | None = None,
        segment_enabled: bool | None = None,
        document_enabled: bool | None = None,
        conn: Connection | None = None,
    ) -> None:
        """Change the flags of segments, or of all segments of a document."""

    def delete(
        self,
        *,
        segment_ids: Sequence[str] = (),
        document_id: str | None = None,
        dataset_id: str | None = None,
        conn: Connection | None = None,
    ) -> int:
        """Remove vectors and return how many there were."""

    def ids(self, dataset_id: str) -> Iterator[str]:
        """Yield the segment ids that have a vector."""

    def close(self) -> None:
        """Release what the store holds open."""


@runtime_checkable
class IndexesItself(Protocol):
    """A store that wants to know when many vectors were written."""

    def index_if_large(self) -> bool:
        """Prepare for many vectors in the background; return at once, whether work goes on."""


@runtime_checkable
class KnowsDatasets(Protocol):
    """A store that can tell whose vectors it holds."""

    def dataset_ids(self) -> list[str]:
        """Return the ids of all datasets that have a vector."""


class VectorStores:
    """The stores of one knowledge base, one per embedding space, opened when first used."""

    def __init__(self, name: str, settings: Settings, db: Database) -> None:
        """Keep the store's name; raises UnknownName if nothing answers to it."""
        self.name, self._settings, self._db = name, settings, db
        self._create = registry.load("vectorstores", name)
        self._open: dict[Space, VectorStore] = {}
        self._lock = Lock()

    def of(self, space: Space) -> VectorStore:
        """Return the store of `space`, the same object at every call."""
        with self._lock:
            if space not in self._open:
                store = self._create(space, self._settings, self._db)
                self._open[space] = cast(VectorStore, store)
            return self._open[space]

    def index_if_large(self, space: Space) -> None:
        """Tell the store of `space` that a build has ended; it does not wait for what follows.

        A failure is logged: what was built is complete without.
        """
        store = self.of(space)
        if not isinstance(store, IndexesItself):
            return
        try:
            store.index_if_large()
        except KnowledgeBaseError as error:
            logger.warning("the vectors were not indexed: %s", error)

    def close(self) -> None:
        """Close every store that was opened."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()
