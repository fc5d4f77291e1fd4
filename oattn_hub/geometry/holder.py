"""How regular a function on one or two trees is: Holder exponents, Definitions 1 and 2 of the paper.

The distance of two points is the share of all points in the smallest folder that holds both. A function is alpha-Holder
for it exactly when its steps (mean of a folder's child minus mean of the folder: the Haar coefficients, normalised to
the function's own units) are bounded by C * share^alpha; on two trees the mixed steps are bounded by
C * (share * share')^alpha (Gavish, Nadler & Coifman 2010).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry.checks import one_of
from oattn_hub.geometry.dyadic import Scales
from oattn_hub.geometry.tree import PartitionTree

Float = NDArray[np.float64]

_FEWEST = 8  # an octave with fewer coefficients says little about the largest one; left out where others remain
_CONFIDENCE = 0.95
_ROUNDING = 1e-13  # differences below this share of the largest entry are not the function's own


@dataclass(frozen=True)
class HolderFit:
    """An estimated Holder exponent.

    Attributes:
        alpha: the exponent; nan when fewer than two scales carry anything, as for a constant function.
        low, high: its 95 % interval, from the scatter of the scales around the fitted line.
        constant: the C of the definition, the largest |difference| / distance^alpha found.
        shares: the distances of the fitted points, as shares of the axis (of both axes: their products).
        magnitudes: what was found at those distances.
        directions: on two trees, the exponent along queries (over every key) and along keys (over every query).
    """

    alpha: float
    low: float
    high: float
    constant: float
    shares: Float
    magnitudes: Float
    directions: tuple[HolderFit, ...] = ()


def holder_exponent(
    f: ArrayLike, *trees: PartitionTree, method: Literal["coefficients", "differences"] = "coefficients"
) -> HolderFit:
    """Estimate the Holder exponent of ``f`` on a tree, or the mixed one of a matrix on two trees.

    Args:
        f: (n,) for one tree, (query, key) for two.
        trees: one for each axis of ``f``; none at all means intervals in the given order (dyadic trees).
        method: "coefficients" fits the largest step of each octave of folder sizes, as the definition's worst case.
            "differences" fits the root mean square of f(x) - f(y) (on two trees: of the mixed difference) over all
            pairs at each distance, the typical case; its ``constant`` is the exact worst quotient.

    A finite sample knows an exponent only from the scales it has: expect +- 0.05 from a thousand points.

    >>> steps = [0.5**0.3, 0.25**0.3, 0.125**0.3]
    >>> f = [a + b + c for a in (0, 1) for b in (0, steps[0]) for c in (0, steps[1])]
    >>> round(holder_exponent(f).alpha, 6)
    0.3
    """
    one_of("method", method, ("coefficients", "differences"))
    array = np.asarray(f, dtype=np.float64)
    if array.ndim not in (1, 2) or not np.isfinite(array).all():
        raise InvalidInput(f"f has shape {array.shape}. Give a vector or a matrix (query, key) of finite numbers.")
    trees = trees or tuple(PartitionTree.dyadic(n) for n in array.shape)
    if tuple(tree.n for tree in trees) != array.shape:
        points = " and ".join(str(tree.n) for tree in trees)
        raise InvalidInput(
            f"f has shape {array.shape}, the trees have {points} points. Give one tree for each axis of f."
        )
    along = _by_steps if method == "coefficients" else _by_differences
    if array.ndim == 1:
        return along(array[:, None], trees[0])
    mixed = _by_mixed_steps if method == "coefficients" else _by_mixed_differences
    query_tree, key_tree = trees
    return mixed(array, query_tree, key_tree, (along(array, query_tree), along(array.T, key_tree)))


# Largest steps ---------------------------------------------------------------------------------------------------


def _by_steps(f: Float, tree: PartitionTree) -> HolderFit:
    """The exponent along the first axis, the other axis taken as many functions at once."""
    scales = Scales(tree)
    averages = scales.averages(f[scales.order], axis=0)
    shares, steps = [np.empty(0)], [np.empty(0)]
    for scale, share in enumerate(_shares(scales)):
        kept = ~np.isnan(share)
        steps.append(np.abs(averages[scale + 1] - scales.spread(averages[scale], scale, axis=0))[kept].max(axis=1))
        shares.append(share[kept])
    share, step = np.concatenate(shares), np.concatenate(steps)
    return _fit_largest(share, _without_rounding(step, f), _octave(share))


def _by_mixed_steps(
    f: Float, query_tree: PartitionTree, key_tree: PartitionTree, directions: tuple[HolderFit, ...]
) -> HolderFit:
    queries, keys = Scales(query_tree), Scales(key_tree)
    rows = queries.averages(f[queries.order][:, keys.order], axis=0)
    shares, steps, cells = [np.empty(0)], [np.empty(0)], [np.empty(0, np.int64)]
    for j, of_parents in enumerate(_shares(queries)):
        branching = ~np.isnan(of_parents)
        means = keys.averages((rows[j + 1] - queries.spread(rows[j], j, axis=0))[branching], axis=1)
        query_share = of_parents[branching]
        for k, key_share in enumerate(_shares(keys)):
            kept = ~np.isnan(key_share)
            steps.append(np.abs(means[k + 1] - keys.spread(means[k], k, axis=1))[:, kept].ravel())
            shares.append(np.multiply.outer(query_share, key_share[kept]).ravel())
            cells.append(np.add.outer(_octave(query_share) * 64, _octave(key_share[kept])).ravel())
    step = _without_rounding(np.concatenate(steps), f)
    return _fit_largest(np.concatenate(shares), step, np.concatenate(cells), directions)


def _shares(scales: Scales) -> list[Float]:
    """For each block below the root, the share of its parent; nan where the parent has no other child."""
    result = []
    for sizes, children in zip(scales.sizes, scales.children, strict=False):
        result.append(np.repeat(np.where(children > 1, sizes / scales.n, np.nan), children))
    return result


def _without_rounding(steps: Float, f: Float) -> Float:
    """The same with zero for what rounding leaves of equal values."""
    return np.where(steps > _ROUNDING * np.abs(f).max(), steps, 0.0)


def _octave(share: Float) -> NDArray[np.int64]:
    return np.round(-np.log2(share)).astype(np.int64)


def _fit_largest(
    share: Float, step: Float, group: NDArray[np.int64], directions: tuple[HolderFit, ...] = ()
) -> HolderFit:
    """Fit the largest step of each group against the share it was found at."""
    order = np.lexsort((step, group))
    ends = np.flatnonzero(np.diff(group[order], append=-1))
    counts = np.diff(ends, prepend=-1).astype(np.float64)
    shares, largest = share[order][ends], step[order][ends]
    kept = _worth_fitting(largest, counts)
    shares, largest, counts = shares[kept], largest[kept], counts[kept]
    alpha, low, high = _weighted_line(np.log2(shares), np.log2(largest), counts)
    constant = float((step / share**alpha).max()) if np.isfinite(alpha) else float(step.max(initial=0.0))
    return HolderFit(alpha, low, high, constant, shares, largest, directions)


def _worth_fitting(magnitudes: Float, counts: Float) -> NDArray[np.bool_]:
    """Which scales enter a fit: those that carry something, and of those the well-filled ones if three are."""
    carrying = magnitudes > 0
    filled = carrying & (counts >= _FEWEST)
    return filled if filled.sum() >= 3 else carrying


def _weighted_line(x: Float, y: Float, weights: Float) -> tuple[float, float, float]:
    """Slope of y on x with its interval; nan where there is no slope, and no interval with two points."""
    if len(np.unique(x)) < 2:
        return np.nan, np.nan, np.nan
    weights = weights / weights.sum()
    centred = x - weights @ x
    spread = float(weights @ centred**2)
    slope = float(weights @ (centred * y)) / spread
    freedom = len(x) - 2
    if freedom < 1:
        return slope, -np.inf, np.inf
    scatter = y - weights @ y - slope * centred
    error = np.sqrt(float(weights @ scatter**2) / freedom / spread)
    half = float(stdtrit(freedom, (1 + _CONFIDENCE) / 2)) * error
    return slope, slope - half, slope + half


# Differences of all pairs of points ------------------------------------------------------------------------------


def _by_differences(f: Float, tree: PartitionTree) -> HolderFit:
    """The exponent along the first axis from the differences of all pairs, averaged over the other axis."""
    pairs = _Pairs(tree)
    centred = f - f.mean(axis=0)
    energies = pairs.energies(centred @ centred.T) / (pairs.counts * f.shape[1])
    energies = _without_rounding(np.sqrt(np.maximum(energies, 0)), f) ** 2
    worst = _largest_quotient(f, Scales(tree))
    return _fit_energies(energies, pairs.shares[:, None], [1 / tree.n], lambda alpha: float(worst(alpha).max()))


def _by_mixed_differences(
    f: Float, query_tree: PartitionTree, key_tree: PartitionTree, directions: tuple[HolderFit, ...]
) -> HolderFit:
    queries, keys = _Pairs(query_tree), _Pairs(key_tree)
    centred = f - f.mean(axis=0) - f.mean(axis=1, keepdims=True) + f.mean()  # changes no mixed difference
    found = [np.empty(0)]
    for octave, count in enumerate(queries.counts):
        # products of the query differences f(x, .) - f(y, .) at two keys, summed over the octave's pairs
        gram = 2 * centred.T @ (queries.degrees[:, octave, None] * centred - queries.at(octave) @ centred)
        found.append(keys.energies(gram) / (count * keys.counts))
    energies = _without_rounding(np.sqrt(np.maximum(np.concatenate(found), 0)), f) ** 2
    shares = np.array([(share, key_share) for share in queries.shares for key_share in keys.shares]).reshape(-1, 2)
    resolution = [1 / query_tree.n, 1 / key_tree.n]
    worst = _mixed_worst(f, query_tree, key_tree)
    return _fit_energies(energies, shares, resolution, worst, directions)


class _Pairs:
    """The ordered pairs of different points of a tree, by the octave of their distance.

    Attributes:
        counts: how many pairs each octave has.
        degrees: (n, octaves) in how many of them each point comes first.
        shares: the geometric mean of their distances.
    """

    def __init__(self, tree: PartitionTree) -> None:
        different = tree.distances > 0
        distances = np.where(different, tree.distances, 1.0)
        octaves = np.where(different, _octave(distances), -1)
        present, numbers = np.unique(octaves, return_inverse=True)
        # -1, a point with itself, comes first among the sorted values and is left out
        self._numbers = numbers.reshape(octaves.shape) - 1
        self._octaves = len(present) - 1
        self.counts = self._sum(np.ones_like(distances))
        self.shares = np.exp(self._sum(np.log(distances)) / self.counts)
        self.degrees = np.stack([self.at(octave).sum(axis=1) for octave in range(self._octaves)] or [[]], axis=-1)

    def at(self, octave: int) -> Float:
        """(n, n) one for the pairs of an octave, zero for the others."""
        return np.asarray(self._numbers == octave, dtype=np.float64)

    def energies(self, gram: Float) -> Float:
        """The sum of |u_x - u_y|^2 over the pairs of each octave, from the inner products of the vectors u."""
        return 2 * (self.degrees.T @ np.diag(gram) - self._sum(gram)) if self._octaves else np.empty(0)

    def _sum(self, values: Float) -> Float:
        sums = np.bincount(self._numbers.ravel() + 1, values.ravel(), minlength=self._octaves + 1)
        return sums[1:].astype(np.float64)


def _fit_energies(
    energies: Float,
    shares: Float,
    resolution: list[float],
    worst: Callable[[float], float],
    directions: tuple[HolderFit, ...] = (),
) -> HolderFit:
    """Fit mean square differences at the distances ``shares`` (points, axes) by what an exponent predicts for them."""
    energies, shares = energies[energies > 0], shares[energies > 0]
    product, weights = shares.prod(axis=1), 1 / shares.prod(axis=1)
    if len(np.unique(product)) < 2:
        return HolderFit(np.nan, np.nan, np.nan, worst(1.0), product, np.sqrt(energies), directions)
    weights /= weights.sum()

    def misfit(alpha: float) -> Float:
        gap = np.log(energies) - _log_predicted(shares, resolution, alpha)
        return np.asarray(gap - weights @ gap)

    from scipy.optimize import minimize_scalar  # takes long to import, and only the theory needs it

    found = minimize_scalar(lambda alpha: float(weights @ misfit(alpha) ** 2), bounds=(-1.0, 2.0), method="bounded")
    alpha = float(found.x)
    slope = (misfit(alpha - 1e-4) - misfit(alpha + 1e-4)) / 2e-4
    freedom = len(energies) - 1 - 1
    half = np.inf
    if freedom > 0:
        error = np.sqrt(float(found.fun) / freedom / float(weights @ slope**2))
        half = float(stdtrit(freedom, (1 + _CONFIDENCE) / 2)) * error
    return HolderFit(alpha, alpha - half, alpha + half, worst(alpha), product, np.sqrt(energies), directions)


def _log_predicted(shares: Float, resolution: list[float], alpha: float) -> Float:
    """log of the mean square difference at each distance, up to a constant, of a sampled alpha-Holder function.

    A sample has no detail below its resolution, so differences fall faster than distance^alpha near it: at distance s
    the scales s, s/2, … down to the resolution contribute, each in proportion to its own size^(2 alpha).
    """
    if abs(alpha) < 1e-6:  # the geometric sum below is 0/0 there
        alpha = 1e-6
    power = 2 * alpha
    finer = (shares**power - np.asarray(resolution) ** power) / (1 - 2.0**-power)
    return np.asarray(np.log(shares**power + finer).sum(axis=1))


def _largest_quotient(f: Float, scales: Scales) -> Callable[[float], Float]:
    """For every column of f and an exponent, the largest |f(x) - f(y)| / distance^exponent.

    A folder's range is the largest difference at or below its distance, so one pass over the folders is exact.
    """
    high = low = f[scales.order]
    ranges, shares = [], []
    for first_child, sizes in zip(reversed(scales.first_children), reversed(scales.sizes[:-1]), strict=True):
        high, low = np.maximum.reduceat(high, first_child, axis=0), np.minimum.reduceat(low, first_child, axis=0)
        ranges.append(high - low)
        shares.append(sizes / scales.n)
    if not ranges:
        return lambda exponent: np.zeros(f.shape[1])
    spans, share = np.concatenate(ranges), np.concatenate(shares)
    return lambda exponent: np.asarray((spans / share[:, None] ** exponent).max(axis=0))


def _mixed_worst(f: Float, query_tree: PartitionTree, key_tree: PartitionTree) -> Callable[[float], float]:
    """For an exponent, the largest mixed difference over (query distance * key distance)^exponent."""
    keys, distances = Scales(key_tree), query_tree.distances

    def worst(exponent: float) -> float:
        largest = 0.0
        for x in range(len(f) - 1):
            quotients = _largest_quotient((f[x + 1 :] - f[x]).T, keys)(exponent)
            largest = max(largest, float((quotients / distances[x, x + 1 :] ** exponent).max()))
        return largest

    return worst
