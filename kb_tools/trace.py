"""What happened inside one search: its stages and what did not answer.

`search` opens a trace; every layer below adds to the one of its own search, which travels in
a context variable, so nothing is handed through signatures and threads started with the
caller's context write to the right one.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from kb_tools.errors import KnowledgeBaseError
from kb_tools.models import Degraded, Json, Stage


@dataclass
class Trace:
    """The stages of one search, in the order in which they ended."""

    stages: list[Stage] = field(default_factory=list)
    degraded: list[Degraded] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, stage: Stage) -> None:
        """Append a stage; safe from several threads."""
        with self._lock:
            self.stages.append(stage)

    def miss(self, part: str, error: BaseException) -> None:
        """Note that `part` did not answer; words are kept of our own errors only."""
        message = str(error) if isinstance(error, KnowledgeBaseError) else ""
        entry = Degraded(part, type(error).__name__, message)
        with self._lock:
            if entry not in self.degraded:
                self.degraded.append(entry)


_current: ContextVar[Trace | None] = ContextVar("kb_tools_trace", default=None)
_running: ContextVar["Measured | None"] = ContextVar("kb_tools_stage", default=None)


@contextmanager
def recording() -> Iterator[Trace]:
    """Open a trace that all code called inside writes to."""
    trace = Trace()
    token = _current.set(trace)
    try:
        yield trace
    finally:
        _current.reset(token)


def current() -> Trace:
    """Return the trace of the running search; outside of one, a trace that nobody reads."""
    return _current.get() or Trace()


class Measured:
    """What a stage tells about itself while it runs."""

    def __init__(self) -> None:
        """Start with no hits and no facts."""
        self.count = 0
        self.facts: dict[str, Json] = {}


@contextmanager
def stage(name: str) -> Iterator[Measured]:
    """Measure a stage and add it to the running search's trace, also when it fails.

    Usage:
        with stage("full_text") as measured:
            measured.count = len(hits)
    """
    measured, started = Measured(), time.perf_counter()
    token = _running.set(measured)
    try:
        yield measured
    finally:
        _running.reset(token)
        milliseconds = 1000 * (time.perf_counter() - started)
        current().add(Stage(name, measured.count, milliseconds, measured.facts))


def note(**facts: Json) -> None:
    """Add facts to the stage that runs now; without one, nobody reads them.

    For layers below that know how a thing was done, as the vector store does.
    """
    measured = _running.get()
    if measured is not None:
        measured.facts |= facts
