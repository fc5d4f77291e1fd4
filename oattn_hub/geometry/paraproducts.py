"""The paraproduct decomposition of A(f): Theorem 1 of the paper, with the boundary terms it leaves out.

Write a(j, j') = P^j P'^j' f for the averages of f over the blocks of query scale j and key scale j'. Telescoping
A(a(j, j')) over both scales gives back A(f) exactly; replacing each mixed second difference of A by

    A'(a) * (mixed difference of a)  +  A''(a) * (query difference of a) * (key difference of a)

gives the decomposition, eq. 12. The terms of one pair of scales are constant on the blocks of the next finer pair, and
are kept that small until they are added up, coarse to fine. So the whole sum costs O(n_query * n_key) for each head,
not the O(n^2 log^2 n) of adding full-size terms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry.checks import as_tensor
from oattn_hub.geometry.dyadic import Scales
from oattn_hub.geometry.nonlinearity import Nonlinearity, get_nonlinearity
from oattn_hub.geometry.tree import PartitionTree

Float = NDArray[np.float64]
Pair = tuple[Float, Float]
Trees = Sequence[PartitionTree]
Derivatives = Callable[[Float], Pair]

_BLOCK_VALUES = 1 << 20  # heads are taken a few at a time, so that the averages of all scales stay near the cores


@dataclass(frozen=True)
class Paraproduct:
    """A(f) taken apart: ``value = first + second + boundary + residual``, each shaped like f.

    Attributes:
        function: what A was applied to (f itself, or its log-normalised form for softmax).
        value: A(f).
        first: the sum over all scales of the terms with A'.
        second: the sum over all scales of the terms with A''.
        boundary: what the coarsest scales contribute; zero for the formula as printed.
        first_sizes: root mean square of the A' term of each pair of scales, (query scales - 1, key scales - 1, …).
        second_sizes: the same for the A'' terms.
    """

    nonlinearity: Nonlinearity
    scales: tuple[Scales, Scales]
    function: Float
    value: Float
    first: Float
    second: Float
    boundary: Float
    first_sizes: Float
    second_sizes: Float

    @property
    def total(self) -> Float:
        """The approximation of A(f)."""
        return self.first + self.second + self.boundary

    @property
    def residual(self) -> Float:
        """What the approximation misses, Delta of eq. 14."""
        return self.value - self.total

    @property
    def relative_residual(self) -> Float:
        """The norm of the residual over the norm of A(f), one number for each head."""
        return np.asarray(np.linalg.norm(self.residual, axis=(0, 1)) / np.linalg.norm(self.value, axis=(0, 1)))

    def terms_at(self, query_scale: int, key_scale: int) -> Pair:
        """The A' and the A'' term of one pair of scales, each shaped like f."""
        shape = self.first_sizes.shape[:2]
        if not (0 <= query_scale < shape[0] and 0 <= key_scale < shape[1]):
            raise InvalidInput(
                f"There are no terms at scales ({query_scale}, {key_scale}). "
                f"They go from (0, 0) to ({shape[0] - 1}, {shape[1] - 1})."
            )
        queries, keys = self.scales
        rows = queries.averages(self.function[queries.order][:, keys.order], axis=0)[query_scale : query_scale + 2]
        averages = [keys.averages(row, axis=1)[key_scale : key_scale + 2] for row in rows]
        blocks = _terms(averages, queries, keys, query_scale, key_scale, self.nonlinearity.derivatives)
        first, second = (_to_points(block, queries, keys, query_scale + 1, key_scale + 1) for block in blocks)
        return first, second


def paraproduct(
    f: ArrayLike,
    nonlinearity: str | Nonlinearity = "exp",
    boundary: bool = True,
    trees: Trees | None = None,
) -> Paraproduct:
    """Decompose A(f) over all pairs of scales (Theorem 1, eq. 12).

    Args:
        f: one head's matrix (query, key) or all heads at once (query, key, head); organised first, if the theorem's
            assumption is to hold (``organise_head``).
        nonlinearity: "exp", "softmax" (normalised over the keys of each query), "tanh", or a ``Nonlinearity``.
        boundary: add the terms of the coarsest scales. Without them (the formula as printed) the residual is as
            regular, but not small.
        trees: query and key tree whose folders are the scales; by default intervals in the given order.

    >>> smooth = np.outer(np.linspace(0, 1, 8), np.linspace(0, 1, 6))
    >>> [round(float(paraproduct(smooth, boundary=choice).relative_residual), 2) for choice in (True, False)]
    [0.03, 0.99]
    """
    chosen = get_nonlinearity(nonlinearity)
    function = chosen.prepare(_checked(f))
    scales = _scales(function, trees)
    with np.errstate(over="ignore", invalid="ignore"):  # reported below, by name, once
        value, edge = chosen.value(function), _boundary(function, chosen)
        (first, second), sizes = _add_up(function, scales, chosen.derivatives)
    if not all(np.isfinite(array).all() for array in (value, first, second)):
        raise InvalidInput(
            f"{chosen.name} is not finite on this f, whose entries run from {function.min():g} to {function.max():g}. "
            "Use nonlinearity='softmax', or subtract the largest entry first."
        )
    edge = edge if boundary else np.zeros_like(edge)
    return Paraproduct(chosen, scales, function, value, first, second, edge, *sizes)


def corollary(f: ArrayLike, trees: Trees | None = None) -> Float:
    """What Corollary 1 puts in the place of softmax(f): eq. 12 with A' = A'' = 1, without boundary (eq. 18)."""
    function = _checked(f)
    (first, second), _ = _add_up(function, _scales(function, trees), lambda a: (np.ones_like(a), np.ones_like(a)))
    return first + second


def telescope(f: ArrayLike, nonlinearity: str | Nonlinearity = "exp", trees: Trees | None = None) -> Float:
    """A(f) put together again from its exact mixed differences over all scales and the boundary terms.

    This is the identity that the paraproduct approximates; it must return A(f) itself, to rounding.
    """
    chosen = get_nonlinearity(nonlinearity)
    function = chosen.prepare(_checked(f))
    queries, keys = _scales(function, trees)
    averages = _averages(function, queries, keys)
    values = [[chosen.value(a) for a in row] for row in averages]
    # with A = identity the first-order term is the exact mixed difference of whatever is averaged
    (exact, _), _ = _accumulate(values, queries, keys, lambda a: (np.ones_like(a), np.zeros_like(a)))
    return exact + _boundary(function, chosen)


def _checked(f: ArrayLike) -> Float:
    """f as (query, key) or (query, key, head) without missing entries."""
    array = as_tensor(f, name="f").astype(np.float64, copy=False)
    if missing := int(np.isnan(array).sum()):
        raise InvalidInput(
            f"f has {missing:,} missing entries, and averages over blocks need every one. "
            "For a masked model use the scores before the mask (kind='scores')."
        )
    return array


def _scales(f: Float, trees: Trees | None) -> tuple[Scales, Scales]:
    query_tree, key_tree = trees or [PartitionTree.dyadic(n) for n in f.shape[:2]]
    if (query_tree.n, key_tree.n) != f.shape[:2]:
        raise InvalidInput(
            f"trees have {query_tree.n} and {key_tree.n} points, f has {f.shape[0]} queries and {f.shape[1]} keys."
        )
    return Scales(query_tree), Scales(key_tree)


def _add_up(f: Float, scales: tuple[Scales, Scales], derivatives: Derivatives) -> tuple[Pair, Pair]:
    """First- and second-order sums of f in its own order, and the sizes of their terms, a few heads at a time."""
    queries, keys = scales
    heads = f.reshape(*f.shape[:2], -1)
    step = max(1, _BLOCK_VALUES // (f.shape[0] * f.shape[1]))
    parts = []
    for start in range(0, heads.shape[2], step):
        some = np.ascontiguousarray(heads[:, :, start : start + step])
        parts.append(_accumulate(_averages(some, queries, keys), queries, keys, derivatives))
    joined = [np.concatenate([(*sums, *sizes)[k] for sums, sizes in parts], axis=2) for k in range(4)]
    first, second, first_sizes, second_sizes = (array.reshape(*array.shape[:2], *f.shape[2:]) for array in joined)
    return (first, second), (first_sizes, second_sizes)


def _averages(f: Float, queries: Scales, keys: Scales) -> list[list[Float]]:
    """P^j P'^j' f for every pair of scales, one value for each pair of blocks."""
    ordered = f[queries.order][:, keys.order]
    return [keys.averages(rows, axis=1) for rows in queries.averages(ordered, axis=0)]


def _terms(
    averages: Sequence[Sequence[Float]], queries: Scales, keys: Scales, j: int, k: int, derivatives: Derivatives
) -> Pair:
    """The two terms of eq. 12 at scales (j, k), on the blocks of (j + 1, k + 1); ``averages`` holds those 2 x 2."""
    (coarse, finer_keys), (finer_queries, fine) = averages
    slope, curvature = derivatives(coarse)
    query_step = finer_queries - queries.spread(coarse, j, axis=0)
    key_step = finer_keys - keys.spread(coarse, k, axis=1)
    mixed = fine - queries.spread(finer_keys, j, axis=0) - keys.spread(query_step, k, axis=1)
    first = queries.spread(keys.spread(slope, k, axis=1), j, axis=0) * mixed
    second = keys.spread(queries.spread(curvature, j, axis=0) * query_step, k, axis=1)
    return first, second * queries.spread(key_step, j, axis=0)


def _accumulate(
    averages: Sequence[Sequence[Float]], queries: Scales, keys: Scales, derivatives: Derivatives
) -> tuple[Pair, Pair]:
    """Both sums of terms over all pairs of scales, in the points' own order, and each term's root mean square."""
    shape = averages[0][0].shape[2:]
    sizes = [np.zeros((queries.n_scales - 1, keys.n_scales - 1, *shape)) for _ in range(2)]
    totals = [np.zeros((queries.n, 1, *shape)) for _ in range(2)]
    for k in range(keys.n_scales - 1):
        columns = [np.zeros((1, len(keys.sizes[k + 1]), *shape)) for _ in range(2)]
        for j in range(queries.n_scales - 1):
            window = [averages[j][k : k + 2], averages[j + 1][k : k + 2]]
            for order, term in enumerate(_terms(window, queries, keys, j, k, derivatives)):
                sizes[order][j, k] = _root_mean_square(term, queries.sizes[j + 1], keys.sizes[k + 1])
                columns[order] = queries.spread(columns[order], j, axis=0) + term
        totals = [keys.spread(total, k, axis=1) + column for total, column in zip(totals, columns, strict=True)]
    first, second = (total[queries.positions][:, keys.positions] for total in totals)
    return (first, second), (sizes[0], sizes[1])


def _root_mean_square(term: Float, query_sizes: NDArray[np.intp], key_sizes: NDArray[np.intp]) -> Float:
    """The root mean square over points of a term given on blocks, for each head."""
    columns = (query_sizes / query_sizes.sum()) @ (term * term).reshape(len(term), -1)
    return np.asarray(np.sqrt(np.tensordot(key_sizes / key_sizes.sum(), columns.reshape(term.shape[1:]), axes=1)))


def _to_points(blocks: Float, queries: Scales, keys: Scales, j: int, k: int) -> Float:
    """Values of the blocks of scales (j, k), handed down to the points in their given order."""
    rows = np.repeat(blocks, queries.sizes[j], axis=0)[queries.positions]
    return np.repeat(rows, keys.sizes[k], axis=1)[:, keys.positions]


def _boundary(f: Float, nonlinearity: Nonlinearity) -> Float:
    """A of the key profile, plus A of the query profile, minus A of the mean: what telescoping leaves at scale 0."""
    profiles = f.mean(axis=0, keepdims=True), f.mean(axis=1, keepdims=True), f.mean(axis=(0, 1), keepdims=True)
    key_part, query_part, corner = (nonlinearity.value(profile) for profile in profiles)
    return query_part + key_part - corner
