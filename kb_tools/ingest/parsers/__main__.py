"""The child process that parses: requests come in on stdin, answers go out where stdout was.

A message is eight bytes of length, then the content. A request is two messages: JSON with the
parser's name and limits, and the file's bytes. The answer is one: JSON with `parsed` or `error`.
The process ends when its stdin does, also in the middle of a file, so it never outlives its parent.
"""

import json
import os
import queue
import signal
import sys
import threading
from dataclasses import replace
from typing import BinaryIO

from kb_tools.ingest.parsed import NO_TEXT, OUT_OF_MEMORY, Limits, NoTextLayer, Parsed, ParseError
from kb_tools.text.characters import storable

Request = tuple[bytes, bytes]
# The parent kills a child that is late; if the parent is gone too, the child's own alarm does.
GRACE_SECONDS = 10


def main() -> None:
    """Answer requests until stdin ends."""
    memory_bytes, timeout_seconds = int(sys.argv[1]), float(sys.argv[2])
    answers = _private_stdout()
    _limit_memory(memory_bytes)
    _leave_interrupts_to_the_parent()
    requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, requests), daemon=True).start()
    while True:
        header, data = requests.get()
        _alarm(timeout_seconds + GRACE_SECONDS)
        _send(answers, _answer(header, data))
        _alarm(0)


def _private_stdout() -> BinaryIO:
    """Return the pipe to the parent, and let whatever libraries print go nowhere."""
    pipe = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return os.fdopen(pipe, "wb")


def _limit_memory(memory_bytes: int) -> None:
    """Make a greedy allocation fail; where the system cannot, only time and size are limited."""
    try:
        import resource
    except ImportError:  # Windows
        return
    kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
    _, most = resource.getrlimit(kind)
    wanted = memory_bytes if most == resource.RLIM_INFINITY else min(memory_bytes, most)
    try:
        resource.setrlimit(kind, (wanted, most))
    except (ValueError, OSError):  # macOS refuses a limit below what is mapped already
        return


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _alarm(seconds: float) -> None:
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _listen(stdin: BinaryIO, requests: "queue.SimpleQueue[Request]") -> None:
    while True:
        try:
            header, data = _receive(stdin), _receive(stdin)
        except MemoryError:  # the file alone is too large
            os._exit(OUT_OF_MEMORY)
        if header is None or data is None:
            os._exit(0)
        requests.put((header, data))


def _receive(stream: BinaryIO) -> bytes | None:
    length = stream.read(8)
    if len(length) < 8:
        return None
    content = stream.read(int.from_bytes(length, "big"))
    return content if len(content) == int.from_bytes(length, "big") else None


def _send(stream: BinaryIO, content: bytes) -> None:
    stream.write(len(content).to_bytes(8, "big") + content)
    stream.flush()


def _answer(header: bytes, data: bytes) -> bytes:
    request = json.loads(header)
    try:
        parsed = parse(data, request["parser"], Limits(**request["limits"]))
        return b'{"parsed": ' + parsed.to_json().encode() + b"}"
    except NoTextLayer as error:
        return json.dumps({"error": str(error), "pages": error.pages}).encode()
    except ParseError as error:
        return json.dumps({"error": str(error)}).encode()
    except MemoryError:
        os._exit(OUT_OF_MEMORY)  # what is still held would count against the next file


def parse(data: bytes, name: str, limits: Limits) -> Parsed:
    """Return what the parser `name` makes of `data`, as PostgreSQL can store it.

    Raises ParseError if that is no text, or too much, and MemoryError.
    """
    from kb_tools.ingest.ocr import with_ocr
    from kb_tools.ingest.parsers import load

    try:
        parser = load(name)
        if name == "pdf":
            parsed = with_ocr(lambda: parser(data, limits), data, limits)
        else:
            parsed = parser(data, limits)
    except (ParseError, MemoryError):
        raise
    except RecursionError:
        raise ParseError("could not be read: nested too deeply") from None
    except Exception as error:  # libraries raise anything on damaged files
        raise ParseError(f"could not be read: {type(error).__name__}") from error
    return checked(parsed, limits)


def checked(parsed: Parsed, limits: Limits) -> Parsed:
    """Return `parsed` as PostgreSQL can store it. Raises ParseError if it is none or too much."""
    characters = sum(len(block.text) for block in parsed.blocks)
    if characters > limits.max_characters:
        raise ParseError(
            f"too large: {characters:,} characters, more than max_characters "
            f"({limits.max_characters:,}); split the file or raise KB_MAX_CHARACTERS"
        )
    blocks = tuple(
        replace(block, text=storable(block.text), heading=storable(block.heading))
        for block in parsed.blocks
        if storable(block.text).strip("\ufeff\u200b \t\r\n")
    )
    if not blocks:
        raise ParseError(NO_TEXT)
    title = " ".join(storable(parsed.title).split())
    return replace(parsed, blocks=blocks, title=title)


if __name__ == "__main__":
    main()
