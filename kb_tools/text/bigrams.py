"""A second look at the best hits: BM25 over pairs of ideographs, where word cutting loses matches.

jieba cuts a question and a text differently often enough to miss hits; their pairs of ideographs
still agree. Latin words count whole. Document frequencies are those among the given texts, so
nothing is stored.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import regex
from numpy.typing import NDArray

from kb_tools.text.tokenize import simplify

WEIGHT = 0.5
K1, B = 1.2, 0.75
MAX_PAIRS = 128

_IDEOGRAPHS = regex.compile(r"\p{Han}{2,}")
_LATIN = regex.compile(r"[a-z0-9]+")


def bigram_scores(query: str, texts: Sequence[str]) -> tuple[list[float], float]:
    """Return what each text gains by pairs of ideographs it shares with `query`, and the most.

    Gains lie in [0, most]; both are 0 for a question without two ideographs side by side.
    """
    asked = simplify(query)
    pairs = list(dict.fromkeys(_pairs(asked)))[:MAX_PAIRS]
    if not pairs or not texts:
        return [0.0] * len(texts), 0.0
    words = list(dict.fromkeys(_LATIN.findall(asked)))[:MAX_PAIRS]
    simple = [simplify(text) for text in texts]
    counts = np.array([_counts(text, pairs, words) for text in simple], np.float64)
    lengths = np.array([_length(text) for text in simple], np.float64)
    return _bm25(counts, lengths)


def _pairs(text: str) -> list[str]:
    runs = _IDEOGRAPHS.findall(text)
    return [run[i : i + 2] for run in runs for i in range(len(run) - 1)]


def _counts(text: str, pairs: Sequence[str], words: Sequence[str]) -> list[int]:
    latin = Counter(_LATIN.findall(text)) if words else {}
    return [*(text.count(pair) for pair in pairs), *(latin.get(word, 0) for word in words)]


def _length(text: str) -> int:
    pairs = sum(len(run) - 1 for run in _IDEOGRAPHS.findall(text))
    return pairs + len(_LATIN.findall(text))


def _bm25(counts: NDArray[np.float64], lengths: NDArray[np.float64]) -> tuple[list[float], float]:
    df = (counts > 0).sum(axis=0)
    weights = WEIGHT * (K1 + 1) * np.log(1 + (len(counts) - df + 0.5) / (df + 0.5))
    norm = K1 * (1 - B + B * lengths / max(lengths.mean(), 1.0))
    gains = (counts / (counts + norm[:, None]) * weights).sum(axis=1)
    return gains.tolist(), float(weights.sum())
