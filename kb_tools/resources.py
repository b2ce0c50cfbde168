"""Resources: what every function of the package works with, in one frozen bundle.

`KnowledgeBase` is its public face. Functions take it as `kb` and reach the database, the models
and the vector stores through it; `account` decides which rows they see.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from kb_tools.db import Database
from kb_tools.embeddings import EmbeddingModels
from kb_tools.errors import InvalidState
from kb_tools.models import Dataset
from kb_tools.settings import Settings
from kb_tools.vectorstores import Space, VectorStore, VectorStores

P = ParamSpec("P")
T = TypeVar("T")


class Lanes:
    """Threads for three kinds of work that wait for one another, so they never share a pool.

    `callers` run async calls, `groups` the parts of a search, `arms` the arms of a hybrid.
    """

    def __init__(self, settings: Settings) -> None:
        """Start no thread yet: executors start theirs when they are needed."""
        self._process = os.getpid()
        calls, groups = settings.concurrent_calls, settings.concurrent_groups
        self.callers = ThreadPoolExecutor(calls, "kb-caller")
        self.groups = ThreadPoolExecutor(calls * groups, "kb-group")
        self.arms = ThreadPoolExecutor(calls * groups * 2, "kb-arm")

    def require_own_process(self) -> None:
        """Raise InvalidState in a forked child, whose threads were left behind."""
        if os.getpid() != self._process:
            raise InvalidState(
                "this knowledge base was opened before a fork; open it in this process"
            )

    def close(self) -> None:
        """Let running work end and take no more."""
        for lane in (self.callers, self.groups, self.arms):
            lane.shutdown(wait=False)


def submit(lane: ThreadPoolExecutor, work: Callable[[], T]) -> Future[T]:
    """Run `work` in `lane` with the caller's context, so that traces nest."""
    with _unless_closed():
        return lane.submit(copy_context().run, work)


@contextmanager
def _unless_closed() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if "shutdown" not in str(error):
            raise
        raise InvalidState("this knowledge base is closed; open it again") from None


@dataclass(frozen=True, eq=False, repr=False)
class Resources:
    """The open resources of one knowledge base, for one account."""

    db: Database
    embeddings: EmbeddingModels
    vector_stores: VectorStores
    lanes: Lanes
    settings: Settings
    account: str = "default"

    def __repr__(self) -> str:
        """Name where it is and for whom, without secrets."""
        return f"{type(self).__name__}({self.db!r}, account={self.account!r})"

    def vectors(self, dataset: Dataset) -> VectorStore:
        """Return the store that holds the vectors of `dataset`.

        Raises InvalidState while the dataset has no vectors yet.
        """
        if dataset.embedding_dimension is None:
            raise InvalidState(f"dataset {dataset.name!r} has no vectors yet; add a document first")
        return self.vector_stores.of(Space(dataset.embedding_model, dataset.embedding_dimension))


async def in_caller(kb: Resources, work: Callable[[], T]) -> T:
    """Run blocking `work` in a thread of the callers' lane, with the caller's context."""
    loop = asyncio.get_running_loop()
    kb.lanes.require_own_process()
    with _unless_closed():
        answer = loop.run_in_executor(kb.lanes.callers, copy_context().run, work)
    return await answer


def async_twin(
    function: Callable[Concatenate[Resources, P], T],
) -> Callable[Concatenate[Resources, P], Coroutine[Any, Any, T]]:
    """Return `function` as a coroutine function; a running event loop is never blocked."""

    @wraps(function)
    async def twin(kb: Resources, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await in_caller(kb, partial(function, kb, *args, **kwargs))

    return twin
