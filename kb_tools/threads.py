"""Do work beside the caller: in daemon threads, so that what hangs never keeps a process alive.

Each call carries the caller's context, so traces nest. A thread costs some 50 microseconds, less
than anything that is done here.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import TypeVar

T = TypeVar("T")
Item = TypeVar("Item")


def in_background(work: Callable[[], T]) -> Future[T]:
    """Begin `work` in a thread of its own and return its future."""
    future: Future[T] = Future()
    context = copy_context()

    def run() -> None:
        try:
            future.set_result(context.run(work))
        except BaseException as error:  # whoever asks for the result gets it
            future.set_exception(error)

    threading.Thread(target=run, name="kb-background", daemon=True).start()
    return future


def side_by_side(work: Callable[[Item], T], items: Iterable[Item], most: int) -> Iterator[T]:
    """Yield `work` of each item in order, while up to `most` are worked on at the same time."""
    begun: deque[Future[T]] = deque()
    for item in items:
        begun.append(in_background(partial(work, item)))
        if len(begun) == most:
            yield begun.popleft().result()
    while begun:
        yield begun.popleft().result()


def one_ahead(
    work: Callable[[Item], T],
    items: Iterable[Item],
    begin: Callable[[Callable[[], T]], Future[T]] = in_background,
    wait: Callable[[Future[T]], T] = Future.result,
) -> Iterator[T]:
    """Yield `work` of each item in order, one at a time, each begun while the last is made use of.

    `begin` begins work and `wait` waits for its result. Who stops early leaves one item that is
    still being worked on.
    """
    begun: Future[T] | None = None
    for item in items:
        done = [] if begun is None else [wait(begun)]
        begun = begin(partial(work, item))
        yield from done
    if begun is not None:
        yield wait(begun)
