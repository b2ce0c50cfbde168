"""A second look at the best hits: BM25 over pairs of ideographs, where word cutting loses matches.

jieba cuts a question and a text differently often enough to miss hits; their pairs of ideographs
still agree. Document frequencies are those among the given texts, so nothing is stored.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import regex

from kb_tools.text.tokenize import fold

WEIGHT = 0.5
K1, B = 1.2, 0.75
MAX_PAIRS = 128

_IDEOGRAPHS = regex.compile(r"\p{Han}{2,}")


def bigram_scores(query: str, texts: Sequence[str]) -> tuple[list[float], float]:
    """Return what each text gains by pairs of ideographs it shares with `query`, and the most.

    Gains lie in [0, most]; both are 0 for a question without two ideographs side by side.
    """
    pairs = list(dict.fromkeys(_pairs(fold(query))))[:MAX_PAIRS]
    if not pairs or not texts:
        return [0.0] * len(texts), 0.0
    folded = [fold(text) for text in texts]
    counts = np.array([[text.count(pair) for pair in pairs] for text in folded], np.float64)
    lengths = np.array([len(text) for text in folded], np.float64)
    df = (counts > 0).sum(axis=0)
    weights = WEIGHT * (K1 + 1) * np.log(1 + (len(texts) - df + 0.5) / (df + 0.5))
    norm = K1 * (1 - B + B * lengths / max(lengths.mean(), 1.0))
    gains = (counts / (counts + norm[:, None]) * weights).sum(axis=1)
    return gains.tolist(), float(weights.sum())


def _pairs(text: str) -> Iterator[str]:
    for run in _IDEOGRAPHS.findall(text):
        yield from (run[i : i + 2] for i in range(len(run) - 1))
