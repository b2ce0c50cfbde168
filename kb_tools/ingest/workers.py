"""Spread the work that needs no database over the cores: as child processes, each with a deadline.

Reading documents and cutting segments into words is pure Python, so threads would share one core.
A small upload uses one child, as starting one costs more than the upload; only a large one spreads.
"""

import os
import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from kb_tools.config import ProcessRule
from kb_tools.ingest.parsed import ParseError
from kb_tools.ingest.parser_process import ParserProcess
from kb_tools.ingest.reading import ReadText
from kb_tools.ingest.words import SegmentWords, Text, words_of
from kb_tools.settings import Settings
from kb_tools.text.tokenize import Tokenizer
from kb_tools.threads import side_by_side

MOST_BY_DEFAULT = 8  # a child takes some 200 MB with its dictionaries
# What keeps a child busy for longer than it takes to start.
CHILD_DOCUMENTS = 200
CHILD_BYTES = 512 * 1024
TEXTS_AT_A_TIME = 64


class Closed(BaseException):
    """The workers were closed while a task waited or ran; it is nobody's failure."""


class Workers:
    """Child processes that take tasks from any thread; a task waits until one is free.

    Usage:
        with Workers(settings, documents=1000, size=5_000_000) as workers:
            workers.read(data, "pdf", rule)
    """

    def __init__(self, settings: Settings, *, documents: int, size: int) -> None:
        """Set how many there may be, for so many documents and bytes; none is started yet."""
        most = settings.ingest_processes or min(_cores(), MOST_BY_DEFAULT)
        self.count = min(most, 1 + documents // CHILD_DOCUMENTS + size // CHILD_BYTES)
        self._all = [ParserProcess(settings) for _ in range(self.count)]
        self._free: queue.LifoQueue[ParserProcess] = queue.LifoQueue()
        for process in self._all:
            self._free.put(process)
        self._closed = False

    def read(self, data: bytes, extension: str, rule: ProcessRule) -> ReadText:
        """Return the cleaned text of a file and its pieces. Raises ParseError with a reason."""
        with self._one() as process:
            return process.read(data, extension, rule)

    def words(self, tokenizer: Tokenizer, texts: Sequence[Text]) -> list[SegmentWords]:
        """Return the terms and keywords of (heading, content), in order.

        With one child only they are made here, where a search needs the dictionary too.
        """
        if self.count == 1:
            return words_of(tokenizer, texts)
        parts = [texts[at : at + TEXTS_AT_A_TIME] for at in range(0, len(texts), TEXTS_AT_A_TIME)]
        made = side_by_side(lambda part: self._words(tokenizer, part), parts, self.count)
        return [words for part in made for words in part]

    def _words(self, tokenizer: Tokenizer, texts: Sequence[Text]) -> list[SegmentWords]:
        try:
            with self._one() as process:
                return process.words(tokenizer, texts)
        except ParseError:  # the child was killed, by the system perhaps
            return words_of(tokenizer, texts)

    @contextmanager
    def _one(self) -> Iterator[ParserProcess]:
        process = self._free.get()
        try:
            if self._closed:
                raise Closed
            yield process
        except Exception:
            if self._closed:  # it was killed, which is no fault of the document
                raise Closed from None
            raise
        finally:
            self._free.put(process)

    def close(self) -> None:
        """Kill all children; whoever still waits or asks for one gets Closed."""
        self._closed = True
        for process in self._all:
            process.kill()
        for process in self._all:
            process.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
