"""The child process that reads: requests come in on stdin, answers go out where stdout was.

A message is eight bytes of length, then the content. A request is two messages: JSON that names
the task with what it needs, and the bytes it is about. The answer is one: a byte that says whether
it went well, and the JSON of what came out or of the error. The tasks:

    parse   a file into what its parser finds in it
    read    a file, or what was parsed before, into cleaned text and its pieces
    words   segments into terms and keywords

The process ends when its stdin does, also in the middle of a file, so it never outlives its parent.
"""

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO

from kb_tools.ingest.parsed import NO_TEXT, OUT_OF_MEMORY, Limits, NoTextLayer, Parsed, ParseError
from kb_tools.ingest.parsers import DONE, FAILED, DictionaryNeeded
from kb_tools.text.characters import storable

if TYPE_CHECKING:
    from kb_tools.text.tokenize import Tokenizer

Request = dict[str, Any]
_last_tokenizer: list["Tokenizer"] = []
_Messages = tuple[bytes, bytes]
# The parent kills a child that is late; if the parent is gone too, the child's own alarm does.
GRACE_SECONDS = 10


def main() -> None:
    """Answer requests until stdin ends."""
    memory_bytes, timeout_seconds = int(sys.argv[1]), float(sys.argv[2])
    answers = _private_stdout()
    _limit_memory(memory_bytes)
    _leave_interrupts_to_the_parent()
    requests: queue.SimpleQueue[_Messages] = queue.SimpleQueue()
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


def _listen(stdin: BinaryIO, requests: "queue.SimpleQueue[_Messages]") -> None:
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
        return DONE + TASKS[request["task"]](request, data)
    except NoTextLayer as error:
        return FAILED + json.dumps({"error": str(error), "pages": error.pages}).encode()
    except ParseError as error:
        return FAILED + json.dumps({"error": str(error)}).encode()
    except RecursionError:
        return FAILED + json.dumps({"error": "could not be read: nested too deeply"}).encode()
    except MemoryError:
        os._exit(OUT_OF_MEMORY)  # what is still held would count against the next file
    except DictionaryNeeded:
        return FAILED + json.dumps({"dictionary": "needed"}).encode()
    except Exception as error:
        reason = f"could not be built: {type(error).__name__}"
        return FAILED + json.dumps({"error": reason}).encode()


def _parse(request: Request, data: bytes) -> bytes:
    return parse(data, request["parser"], Limits(**request["limits"])).to_json().encode()


def _read(request: Request, data: bytes) -> bytes:
    from kb_tools.config import ProcessRule
    from kb_tools.ingest.reading import read

    if request["parser"] is None:
        parsed = Parsed.from_json(data.decode())
    else:
        parsed = parse(data, request["parser"], Limits(**request["limits"]))
    return read(parsed, ProcessRule.model_validate(request["rule"])).to_json()


def _words(request: Request, data: bytes) -> bytes:
    from kb_tools.ingest.words import to_json, words_of

    texts = json.loads(data.decode("utf-8", "surrogatepass"))
    return to_json(words_of(_tokenizer(request), texts))


def _tokenizer(request: Request) -> "Tokenizer":
    """Return the tokenizer that a request names. Raises DictionaryNeeded if its words are missing.

    That of the last dictionary is kept.
    """
    from kb_tools.text.dictionary import Dictionary
    from kb_tools.text.tokenize import Tokenizer

    if "dictionary" in request:
        _last_tokenizer[:] = [Tokenizer(request["engine"], Dictionary(request["dictionary"]))]
    for tokenizer in (Tokenizer.of(request["engine"]), *_last_tokenizer):
        if tokenizer.name == request["tokenizer"]:
            return tokenizer
    raise DictionaryNeeded


TASKS: dict[str, Callable[[Request, bytes], bytes]] = {
    "parse": _parse,
    "read": _read,
    "words": _words,
}


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
