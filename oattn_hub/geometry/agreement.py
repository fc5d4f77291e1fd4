"""How much a per-head score depends on the batch it was measured on (Table 1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry.checks import at_least

FEWEST_BATCHES = 4  # with fewer, intervals cover less than they say


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

    @property
    def too_few(self) -> bool:
        """Whether the batches are too few for the intervals to hold what they say."""
        return self.n_batches < FEWEST_BATCHES


def stability(
    entropies: ArrayLike, fraction: float = 0.1, seed: int = 0, *, n_draws: int = 1000, confidence: float = 0.95
) -> Stability:
    """Agreement of the heads' entropies over batches, with intervals of mean and rank.

    The interval of a mean is Student's t over the batches. A batch grows its own trees, so that the chance in them is
    part of what is seen. Few batches give some heads a far too small spread: none is taken to vary less, in relation
    to its mean, than a quarter of the heads do. The interval of a rank is that of draws of all means together, with
    the spread and the correlation between heads that the batches have and the tails of Student's t. On real batches
    of MiniLM and SmolLM2 both hold what they say from ``FEWEST_BATCHES`` on (benchmarks/truth.py); with fewer they
    are too short, with one there is none and both ends are the mean.

    Args:
        entropies: (batches, heads).
        fraction: Share of the heads in a bottom or top set, at least one head. Ties: smallest index.
        seed: Of the draws.
        n_draws: How many times all means are drawn for the ranks.
        confidence: Of the intervals.

    >>> result = stability([[1.0, 2.0, 3.0], [1.5, 2.5, 2.6]], fraction=0.34)
    >>> result.bottom_counts.tolist(), round(result.spearman, 9), result.too_few
    ([2, 0, 0], 1.0, True)
    """
    scores = np.asarray(entropies, dtype=np.float64)
    if scores.ndim != 2 or not scores.size or not np.isfinite(scores).all():
        raise InvalidInput(f"entropies has shape {scores.shape}. Give finite numbers of shape (batches, heads).")
    if not 0 < fraction <= 1 or not 0 < confidence < 1:
        raise InvalidInput(f"fraction={fraction}, confidence={confidence}: both are shares between 0 and 1.")
    at_least("n_draws", n_draws, 1)
    n_batches, n_heads = scores.shape
    size = max(1, round(fraction * n_heads))
    ranks = _ranks(scores)
    bottom, top = ranks < size, ranks >= n_heads - size
    mean = scores.mean(axis=0)
    half = _half_width(scores, confidence)
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    rank_low, rank_high = np.quantile(_ranks(_drawn_means(scores, seed, n_draws)), tails, axis=0, method="nearest")
    return Stability(
        n_batches=n_batches,
        fraction=fraction,
        set_size=size,
        bottom_counts=bottom.sum(axis=0),
        top_counts=top.sum(axis=0),
        jaccard=_mean_jaccard(bottom),
        top_jaccard=_mean_jaccard(top),
        spearman=_mean_spearman(scores),
        mean=mean,
        mean_low=mean - half,
        mean_high=mean + half,
        rank=_ranks(mean[None])[0],
        rank_low=rank_low.astype(np.intp),
        rank_high=rank_high.astype(np.intp),
    )


def _spread(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """(heads,) standard deviation over the batches; relative to the mean, at least that of a quarter of the heads."""
    sizes = np.abs(scores.mean(axis=0))
    own = scores.std(axis=0, ddof=1)
    relative = np.divide(own, sizes, out=np.zeros_like(own), where=sizes > 0)
    return np.asarray(np.maximum(own, np.quantile(relative, 0.25) * sizes))


def _half_width(scores: NDArray[np.float64], confidence: float) -> NDArray[np.float64]:
    """(heads,) half the interval of the mean; 0 with one batch, of which nothing can be said."""
    from scipy.special import stdtrit  # what scipy.stats.t.ppf calls; scipy.stats alone takes half a second to import

    n_batches, n_heads = scores.shape
    if n_batches == 1:
        return np.zeros(n_heads)
    return np.asarray(stdtrit(n_batches - 1, (1 + confidence) / 2) * _spread(scores) / np.sqrt(n_batches))


def _drawn_means(scores: NDArray[np.float64], seed: int, n_draws: int) -> NDArray[np.float64]:
    """(draws, heads) means as other batches might give them: t-distributed, correlated between heads as seen."""
    n_batches = len(scores)
    mean = scores.mean(axis=0)
    if n_batches == 1:
        return np.asarray(mean[None])
    rng = np.random.default_rng(seed)
    own = scores.std(axis=0, ddof=1)
    # a head whose batches happen to agree gets the spread that _spread gives it, in a direction of its own
    missing = np.sqrt(np.maximum(_spread(scores) ** 2 - own**2, 0.0))
    together = rng.standard_normal((n_draws, n_batches)) @ (scores - mean) / np.sqrt(n_batches - 1)
    alone = rng.standard_normal((n_draws, len(mean))) * missing
    tails = np.sqrt(rng.chisquare(n_batches - 1, (n_draws, 1)) / (n_batches - 1))
    return np.asarray(mean + (together + alone) / np.sqrt(n_batches) / tails)


def _ranks(scores: NDArray[np.float64]) -> NDArray[np.intp]:
    """Rank of each head in each row, 0 the lowest, ties by index."""
    return np.argsort(np.argsort(scores, axis=1, kind="stable"), axis=1)


def average_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rank of each value from 1 on; equal values share the mean of theirs.

    >>> average_ranks(np.array([2.0, 1.0, 2.0])).tolist()
    [2.5, 1.0, 2.5]
    """
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[places])


def _mean_jaccard(members: NDArray[np.bool_]) -> float:
    counts = members.astype(np.float64)
    shared = counts @ counts.T
    union = counts.sum(axis=1)[:, None] + counts.sum(axis=1)[None, :] - shared
    return _mean_of_pairs(shared / union)


def _mean_spearman(scores: NDArray[np.float64]) -> float:
    ranks = np.stack([average_ranks(row) for row in scores])
    ranks = ranks - ranks.mean(axis=1, keepdims=True)
    norms = np.linalg.norm(ranks, axis=1)
    if (norms == 0).any():
        return float("nan")
    return _mean_of_pairs(ranks @ ranks.T / np.outer(norms, norms))


def _mean_of_pairs(matrix: NDArray[np.float64]) -> float:
    pairs = matrix[np.triu_indices(len(matrix), k=1)]
    return float(pairs.mean()) if pairs.size else float("nan")
