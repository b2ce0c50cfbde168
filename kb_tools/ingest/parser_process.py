"""Parse, clean and split files in a child process that can be limited, killed and replaced.

A file can make a library loop, crash or eat all memory; then the child is lost and one document is
in error, with its reason. The child is started at the first file and used for many: starting it
costs far more than a small file does.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

from kb_tools import registry
from kb_tools.config import ProcessRule
from kb_tools.ingest.parsed import OUT_OF_MEMORY, Limits, NoTextLayer, Parsed, ParseError
from kb_tools.ingest.parsers import DONE, FAILED, OCR, DictionaryNeeded, format_of
from kb_tools.ingest.reading import ReadText
from kb_tools.ingest.words import SegmentWords, Text, from_json
from kb_tools.settings import Settings
from kb_tools.text.tokenize import Tokenizer

__all__ = ["ParseError", "ParserProcess"]


def child_environment() -> dict[str, str]:
    """Return what a process that reads hostile files may know: no keys, no passwords."""
    kept = ("PATH", "HOME", "LANG", "TMPDIR", "SYSTEMROOT", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
    return {
        name: value
        for name, value in os.environ.items()
        if name in kept or name.startswith(("LC_", "PYTHON"))
    }


class ParserProcess:
    """Does one task at a time, from any thread.

    Parsers of this package and of entry points run in the child. One that was given to
    `registry.register` exists only in this process, so it runs here: without limits of time and
    memory.

    Usage:
        with ParserProcess(settings) as parser:
            parsed = parser.parse(data, "pdf")
    """

    def __init__(self, settings: Settings) -> None:
        """Set the limits; nothing is started yet."""
        self._settings = settings
        self._lock = threading.Lock()
        self._child: _Child | None = None

    def parse(self, data: bytes, extension: str) -> Parsed:
        """Return what the file holds. Raises ParseError with a reason for people."""
        name, limits = self._checked(data, extension)
        if name in registry.registered("parsers"):
            from kb_tools.ingest.parsers.__main__ import parse

            return parse(data, name, limits)
        return self._with_registered_ocr(data, name, limits)

    def read(self, data: bytes, extension: str, rule: ProcessRule) -> ReadText:
        """Return the cleaned text of a file and its pieces. Raises ParseError with a reason."""
        name, limits = self._checked(data, extension)
        registered = registry.registered("parsers")
        if name in registered or (name == "pdf" and OCR in registered):
            return self._read(None, limits, rule, self.parse(data, extension).to_json().encode())
        return self._read(name, limits, rule, data)

    def words(self, tokenizer: Tokenizer, texts: Sequence[Text]) -> list[SegmentWords]:
        """Return the terms and keywords of (heading, content). Raises ParseError with a reason."""
        data = json.dumps(texts, ensure_ascii=False).encode("utf-8", "surrogatepass")
        request = {"task": "words", "engine": tokenizer.engine, "tokenizer": tokenizer.name}
        try:
            return from_json(self._ask(request, data))
        except DictionaryNeeded:  # the child keeps the last one
            words = list(tokenizer.dictionary)
            return from_json(self._ask(request | {"dictionary": words}, data))

    def _checked(self, data: bytes, extension: str) -> tuple[str, Limits]:
        """Return the parser's name and the limits. Raises ParseError for what is not read."""
        if len(data) > self._settings.max_file_bytes:
            raise ParseError(
                f"too large: {len(data):,} bytes, more than max_file_bytes "
                f"({self._settings.max_file_bytes:,}); raise KB_MAX_FILE_BYTES or split the file"
            )
        return format_of(extension), Limits.of(self._settings)

    def _read(self, name: str | None, limits: Limits, rule: ProcessRule, data: bytes) -> ReadText:
        request = {
            "task": "read",
            "parser": name,
            "limits": asdict(limits),
            "rule": rule.model_dump(mode="json"),
        }
        return ReadText.from_json(self._ask(request, data))

    def kill(self) -> None:
        """Kill the child without waiting for the task that it is at, which fails."""
        child = self._child
        if child is not None:
            child.kill()

    def close(self) -> None:
        """End the child; a later task starts another."""
        with self._lock:
            self._drop()

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

    def _with_registered_ocr(self, data: bytes, name: str, limits: Limits) -> Parsed:
        """Parse in the child; an `ocr` that was registered in this process then gets its pages."""

        def parse_in_child() -> Parsed:
            request = {"task": "parse", "parser": name, "limits": asdict(limits)}
            return Parsed.from_json(self._ask(request, data).decode())

        if name != "pdf" or OCR not in registry.registered("parsers"):
            return parse_in_child()
        from kb_tools.ingest.ocr import with_ocr
        from kb_tools.ingest.parsers.__main__ import checked

        return checked(with_ocr(parse_in_child, data, limits), limits)

    def _ask(self, request: dict[str, Any], data: bytes) -> bytes:
        """Return the child's answer, without its mark. Raises ParseError if it is an error."""
        with self._lock:
            if self._child is None or not self._child.is_usable():
                self._drop()
                self._child = _Child(self._settings)
            try:
                answer = self._child.ask(json.dumps(request).encode(), data)
            except BaseException:  # an interrupt, too, leaves a child in the middle of an answer
                self._drop()
                raise
        if answer.startswith(DONE):
            return answer[len(DONE) :]
        problem = json.loads(answer[len(FAILED) :])
        if "dictionary" in problem:
            raise DictionaryNeeded
        if "pages" in problem:
            raise NoTextLayer(problem["error"], problem["pages"])
        raise ParseError(problem["error"])

    def _drop(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


class _Child:
    """One running process, killed when this object goes."""

    def __init__(self, settings: Settings) -> None:
        self._timeout_seconds = settings.parse_timeout_seconds
        self._memory_bytes = settings.parse_memory_bytes
        self._parent = os.getpid()
        # -P: the working folder must not shadow the standard library; the parent's path goes along.
        command = [
            sys.executable, "-P", "-W", "ignore", "-m", "kb_tools.ingest.parsers",
            str(settings.parse_memory_bytes), str(self._timeout_seconds),
        ]  # fmt: skip
        path = os.pathsep.join(place or os.getcwd() for place in sys.path)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**child_environment(), "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"},
        )
        self._finalizer = weakref.finalize(self, _end, self._process, self._parent)

    def is_usable(self) -> bool:
        """Tell whether it still runs and belongs to this process, not to one this forked from."""
        return self._parent == os.getpid() and self._process.poll() is None

    def ask(self, header: bytes, data: bytes) -> bytes:
        """Return the child's answer. Raises ParseError if it is late or ends without one."""
        late = threading.Event()

        def stop() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(self._timeout_seconds, stop)
        timer.daemon = True
        timer.start()
        try:
            answer = self._exchange(header, data)
        finally:
            timer.cancel()
            timer.join()
        if answer is not None:
            return answer
        if late.is_set():
            raise ParseError(
                f"takes longer than {self._timeout_seconds:g} s (parse_timeout_seconds); "
                "split the file or raise KB_PARSE_TIMEOUT_SECONDS"
            )
        raise ParseError(self._reason(self._process.wait()))

    def _reason(self, code: int) -> str:
        if code == OUT_OF_MEMORY:
            return (
                f"needs more than {_size(self._memory_bytes)} of memory (parse_memory_bytes); "
                "split the file or raise KB_PARSE_MEMORY_BYTES"
            )
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"could not be read: the parser crashed ({how}); the file may be damaged"

    def kill(self) -> None:
        """Kill it, from any thread; whoever waits for its answer is told that it ended."""
        if self._parent == os.getpid():
            self._process.kill()

    def end(self) -> None:
        """Kill it and wait until it is gone."""
        self._finalizer()

    def _exchange(self, header: bytes, data: bytes) -> bytes | None:
        """Send a request and return the answer; None if the child ended."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:  # both are pipes; this is for the type checker
            return None
        try:
            for content in (header, data):
                stdin.write(len(content).to_bytes(8, "big"))
                stdin.write(content)
            stdin.flush()
        except OSError:
            return None
        length = stdout.read(8)
        if len(length) < 8:
            return None
        answer = stdout.read(int.from_bytes(length, "big"))
        return answer if len(answer) == int.from_bytes(length, "big") else None


def _end(process: "subprocess.Popen[bytes]", parent: int) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # unsent bytes for a child that is gone
                pipe.close()
    if parent == os.getpid():
        process.kill()
        process.wait()


def _size(count: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB")):
        if count >= unit:
            return f"{count / unit:g} {name}"
    return f"{count:,} bytes"
