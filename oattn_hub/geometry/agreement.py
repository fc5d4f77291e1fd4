"""How much a per-head score depends on the batch it was measured on (Table 1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry.checks import at_least


@dataclass(frozen=True, eq=False)
class Stability:
    """Agreement of a per-head score over batches. Ranks start at 0, the lowest score."""

    n_batches: int
    fraction: float
    set_size: int
    """How many heads a bottom or top set holds."""
    bottom_counts: NDArray[np.intp]
    """(heads,) in how many batches the head lies in the bottom set."""
    top_counts: NDArray[np.intp]
    """(heads,) in how many batches it lies in the top set."""
    jaccard: float
    """Mean pairwise Jaccard index of the batches' bottom sets; NaN with one batch."""
    top_jaccard: float
    """The same for the top sets."""
    spearman: float
    """Mean pairwise rank correlation between batches; NaN with one batch or with constant scores."""
    mean: NDArray[np.float64]
    """(heads,) mean over the batches."""
    mean_low: NDArray[np.float64]
    mean_high: NDArray[np.float64]
    rank: NDArray[np.intp]
    """(heads,) rank of the mean."""
    rank_low: NDArray[np.intp]
    rank_high: NDArray[np.intp]


def stability(
    entropies: ArrayLike, fraction: float = 0.1, seed: int = 0, *, n_bootstrap: int = 1000, confidence: float = 0.95
) -> Stability:
    """Agreement of the heads' entropies over batches, with bootstrap intervals over batches of mean and rank.

    Args:
        entropies: (batches, heads).
        fraction: Share of the heads in a bottom or top set, at least one head. Ties: smallest index.
        seed: Of the bootstrap.
        n_bootstrap: How many times the batches are drawn with replacement.
        confidence: Of the intervals.

    >>> result = stability([[1.0, 2.0, 3.0], [1.5, 2.5, 2.6]], fraction=0.34)
    >>> result.bottom_counts.tolist(), round(result.spearman, 9)
    ([2, 0, 0], 1.0)
    """
    scores = np.asarray(entropies, dtype=np.float64)
    if scores.ndim != 2 or not scores.size or not np.isfinite(scores).all():
        raise InvalidInput(f"entropies has shape {scores.shape}. Give finite numbers of shape (batches, heads).")
    if not 0 < fraction <= 1 or not 0 < confidence < 1:
        raise InvalidInput(f"fraction={fraction}, confidence={confidence}: both are shares between 0 and 1.")
    at_least("n_bootstrap", n_bootstrap, 1)
    n_batches, n_heads = scores.shape
    size = max(1, round(fraction * n_heads))
    ranks = _ranks(scores)
    bottom, top = ranks < size, ranks >= n_heads - size
    draws = np.random.default_rng(seed).integers(n_batches, size=(n_bootstrap, n_batches))
    means = scores[draws].mean(axis=1)
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    mean_low, mean_high = np.quantile(means, tails, axis=0)
    rank_low, rank_high = np.quantile(_ranks(means), tails, axis=0, method="nearest")
    return Stability(
        n_batches=n_batches,
        fraction=fraction,
        set_size=size,
        bottom_counts=bottom.sum(axis=0),
        top_counts=top.sum(axis=0),
        jaccard=_mean_jaccard(bottom),
        top_jaccard=_mean_jaccard(top),
        spearman=_mean_spearman(scores),
        mean=scores.mean(axis=0),
        mean_low=mean_low,
        mean_high=mean_high,
        rank=_ranks(scores.mean(axis=0, keepdims=True))[0],
        rank_low=rank_low.astype(np.intp),
        rank_high=rank_high.astype(np.intp),
    )


def _ranks(scores: NDArray[np.float64]) -> NDArray[np.intp]:
    """Rank of each head in each row, 0 the lowest, ties by index."""
    return np.argsort(np.argsort(scores, axis=1, kind="stable"), axis=1)


def _mean_jaccard(members: NDArray[np.bool_]) -> float:
    counts = members.astype(np.float64)
    shared = counts @ counts.T
    union = counts.sum(axis=1)[:, None] + counts.sum(axis=1)[None, :] - shared
    return _mean_of_pairs(shared / union)


def _mean_spearman(scores: NDArray[np.float64]) -> float:
    from scipy.stats import rankdata

    ranks = rankdata(scores, axis=1)
    ranks = ranks - ranks.mean(axis=1, keepdims=True)
    norms = np.linalg.norm(ranks, axis=1)
    if (norms == 0).any():
        return float("nan")
    return _mean_of_pairs(ranks @ ranks.T / np.outer(norms, norms))


def _mean_of_pairs(matrix: NDArray[np.float64]) -> float:
    pairs = matrix[np.triu_indices(len(matrix), k=1)]
    return float(pairs.mean()) if pairs.size else float("nan")
