"""A second look at the best hits: BM25 over pairs of ideographs, where word cutting loses matches.

jieba cuts a question and a text differently often enough to miss hits; their pairs of ideographs
still agree. Latin words count whole. Document frequencies are those among the given texts, so
nothing is stored.
"""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kb_tools.text.tokenize import simplify

WEIGHT = 0.5
K1, B = 1.2, 0.75
MAX_PAIRS = 128

# The ranges of \p{Han} that matter, for the module that is twice as fast here.
_PIECE = re.compile("([\u3400-\u9fff\U00020000-\U0003ffff]{2,})|([a-z0-9]+)")


def bigram_scores(query: str, texts: Sequence[str]) -> tuple[list[float], float]:
    """Return what each text gains by pairs of ideographs it shares with `query`, and the most.

    Gains lie in [0, most]; both are 0 for a question without two ideographs side by side.
    """
    asked = _PIECE.findall(simplify(query))
    pairs = list(dict.fromkeys(_pairs(asked)))[:MAX_PAIRS]
    if not pairs or not texts:
        return [0.0] * len(texts), 0.0
    words = list(dict.fromkeys(word for _, word in asked if word))[:MAX_PAIRS]
    simple = [simplify(text) for text in texts]
    pieces = [_PIECE.findall(text) for text in simple]
    counts = [
        [*(text.count(pair) for pair in pairs), *_occurrences(words, own)]
        for text, own in zip(simple, pieces, strict=True)
    ]
    lengths = [sum(len(run) - 1 if run else 1 for run, _ in own) for own in pieces]
    return _bm25(np.array(counts, np.float64), np.array(lengths, np.float64))


def _pairs(pieces: Sequence[tuple[str, str]]) -> list[str]:
    return [run[i : i + 2] for run, _ in pieces for i in range(len(run) - 1)]


def _occurrences(words: Sequence[str], pieces: Sequence[tuple[str, str]]) -> list[int]:
    count = Counter(word for _, word in pieces) if words else {}
    return [count.get(word, 0) for word in words]


def _bm25(counts: NDArray[np.float64], lengths: NDArray[np.float64]) -> tuple[list[float], float]:
    df = (counts > 0).sum(axis=0)
    weights = WEIGHT * (K1 + 1) * np.log(1 + (len(counts) - df + 0.5) / (df + 0.5))
    norm = K1 * (1 - B + B * lengths / max(lengths.mean(), 1.0))
    gains = (counts / (counts + norm[:, None]) * weights).sum(axis=1)
    return gains.tolist(), float(weights.sum())
