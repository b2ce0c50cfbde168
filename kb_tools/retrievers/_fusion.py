"""One ranking out of several: pure functions over ids and numbers.

The name begins with an underscore because every other module of this folder is a retriever.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from kb_tools.vectorstores import Vector

RRF_CONSTANT = 60  # Cormack et al. 2009
SPREADS = 6.0  # a cosine this many spreads above the background counts as much as a full share
LEAST_SPREAD = 0.01  # a background of equal texts must not blow up small differences


def unit_vectors(vectors: Sequence[Vector]) -> Vector:
    """Return the vectors with length 1, `(n, dimension) float32`; zeros stay zeros."""
    if not vectors:
        return np.zeros((0, 0), np.float32)
    rows = np.asarray(vectors, dtype=np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    return np.asarray(units, dtype=np.float32)


def cosines_to(units: Vector, question: Vector) -> list[float]:
    """Return the question's cosine to each row of `units`; 0 where either is zero."""
    if not len(units):
        return []
    unit = unit_vectors([question])[0]
    products: list[float] = np.clip(units @ unit, -1, 1).astype(np.float64).tolist()
    return products


def background_scale(background: Sequence[float]) -> tuple[float, float]:
    """Return where a question's cosines begin to matter, and how far they reach above.

    `background` are its cosines to a sample of the segments; the first number is their third
    quartile, the second is the distance from there to the 95th percentile, at least .01, times 6.
    Quantiles, because a background in two languages has two humps, and no model's scale matters.
    Of a few segments they lie too near each other: for n normal values by 1 + 3.3 / (n - 1), found
    by simulation and right within 10 % from 2 to 1,000; so the distance is stretched by as much.
    """
    if not background:
        return 0.0, SPREADS * LEAST_SPREAD
    middle, high = np.quantile(np.asarray(background, dtype=np.float64), [0.75, 0.95]).tolist()
    stretch = 1 + 3.3 / max(len(background) - 1, 1)
    return middle, SPREADS * max((high - middle) * stretch, LEAST_SPREAD)


def score_fusion(
    shares: Mapping[str, float],
    cosines: Mapping[str, float],
    background: Sequence[float],
    weight: float,
) -> list[tuple[str, float]]:
    """Return (id, score) best first, ties by id: (1 - weight) x share + weight x lift.

    `shares` are BM25 over the most that the question could score, in [0, 1]; an id without one
    has 0. The lift of a cosine is its place above the background; an id without a cosine has 0,
    the lift of a segment that is as near as the background. Without a background no lift counts.
    """
    middle, reach = background_scale(background)
    lifts = {i: (cosine - middle) / reach for i, cosine in cosines.items()} if background else {}
    scores = {
        i: (1 - weight) * shares.get(i, 0.0) + weight * lifts.get(i, 0.0)
        for i in {**shares, **cosines}
    }
    return sorted(scores.items(), key=lambda hit: (-hit[1], hit[0]))


def reciprocal_rank_fusion(
    rankings: Sequence[Sequence[str]], weights: Sequence[float], constant: int = RRF_CONSTANT
) -> list[tuple[str, float]]:
    """Return (id, score) best first: the sum of weight / (constant + rank), ranks from 1.

    Equal scores come in the order in which the rankings name them, the first ranking first, as
    LangChain's weighted_reciprocal_rank has it.
    """
    scores: dict[str, float] = defaultdict(float)
    for ranking, weight in zip(rankings, weights, strict=True):
        for rank, segment_id in enumerate(ranking, start=1):
            scores[segment_id] += weight / (constant + rank)
    return sorted(scores.items(), key=lambda hit: -hit[1])
