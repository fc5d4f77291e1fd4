"""Entropies of heads and network: l_p norms of the Haar coefficients of largest support (eq. 21, appendix B.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry.checks import AXES, Floats, at_least, one_of
from oattn_hub.geometry.haar import haar_functions, haar_transform, haar_values, inverse_haar_transform, trees_by_axis
from oattn_hub.geometry.missing import fill_missing
from oattn_hub.geometry.tree import PartitionTree

SELECTIONS = ("support", "leading")
_BLOCK = 1 << 18  # entries contracted together: bounds the memory that float32 tensors take more
_ENTRIES = 1 << 20  # of the heads that are expanded together

TreesByName = Mapping[str, PartitionTree]


@dataclass(frozen=True, eq=False)
class Expansion:
    """Chosen tensor Haar coefficients, in falling order of support (ties: by index) unless the leading were chosen.

    Of ``m`` functions of largest support, the last ones share their support with others that have the same right to
    be chosen. All of these are here, each with the part of a function that is left for it as its weight.
    """

    functions: NDArray[np.intp]
    """(m, axes) which Haar function of each axis; 0 is the constant."""
    supports: NDArray[np.int64]
    """(m,) how many entries each tensor function is not zero on."""
    coefficients: NDArray[np.float64]
    """(m, heads) for a bi-Haar expansion of every head, (m,) for one of all axes."""
    weights: NDArray[np.float64]
    """(m,) 1, and less than 1 for functions tied at the end; the sum is the number of functions asked for."""

    def entropy(self, p: float = 1.0) -> NDArray[np.float64]:
        """The l_p norm of the coefficients, per head where there are heads."""
        return np.asarray((self.weights @ np.abs(self.coefficients) ** p) ** (1.0 / p))


def head_entropies(
    X: ArrayLike,
    trees: TreesByName,
    m: int | None = 400,
    selection: str = "support",
    p: float = 1.0,
    *,
    constant: bool = True,
) -> NDArray[np.float64]:
    """(heads,) l_p norm of each head's bi-Haar coefficients (eq. 21 with p = 1).

    Args:
        X: (query, key, head), or (query, key) for a single head. Missing entries are filled first (``fill_missing``).
        trees: The query tree and the key tree by name, as ``Questionnaire.trees_``.
        m: How many tensor functions count; all of them if None or if there are fewer.
        selection: ``"support"`` takes the functions of largest support |supp psi_Q| * |supp psi_K|; those tied at the
            end count with the same part each. ``"leading"`` takes the first sqrt(m) x sqrt(m) functions, as the
            authors' notebook.
        p: The norm; 1 is the paper's.
        constant: Whether the constant function, the head's mean, may be among them.

    >>> X = np.ones((4, 4, 2)) * [1.0, 3.0]
    >>> trees = {"query": PartitionTree.dyadic(4), "key": PartitionTree.dyadic(4)}
    >>> head_entropies(X, trees).round(9).tolist()
    [4.0, 12.0]
    """
    at_least("p", p, 1e-6)
    parts = _some_heads(X) if m is None else [np.asarray(X)]  # all functions take the memory of what they expand
    expanded = (expansion(some, trees, ("query", "key"), m, selection, constant=constant) for some in parts)
    return np.concatenate([np.atleast_1d(part.entropy(p)) for part in expanded])


def network_entropy(
    X: ArrayLike, trees: TreesByName, m: int | None = 100, selection: str = "support", p: float = 1.0
) -> float:
    """l_p norm of the tri-Haar coefficients of largest support (appendix B.2).

    Arguments as in ``head_entropies``; with ``"leading"`` the first m^(1/3) functions of each axis count.
    """
    at_least("p", p, 1e-6)
    return float(expansion(X, trees, AXES[: np.ndim(X)], m, selection).entropy(p))


def expansion(
    X: ArrayLike,
    trees: TreesByName,
    axes: Sequence[str] = ("query", "key"),
    m: int | None = 400,
    selection: str = "support",
    *,
    constant: bool = True,
) -> Expansion:
    """The chosen Haar coefficients of ``X`` (Figure 4 plots them in this order).

    Args:
        X, trees, m, selection, constant: As in ``head_entropies``.
        axes: query and key for the bi-Haar coefficients of every head, all three for the tri-Haar ones.
    """
    one_of("selection", selection, SELECTIONS)
    if tuple(axes) not in (AXES[:2], AXES):
        raise InvalidInput(f"axes={tuple(axes)} is not known. Valid values are {AXES[:2]} and {AXES}.")
    if m is not None:
        at_least("m", m, 1)
    tensor = fill_missing(X, _named(trees, axes))
    by_axis = {name: trees[name] for name in axes}
    used = [tree for _, tree in trees_by_axis(by_axis, tensor.shape)]
    supports = [haar_functions(tree).supports for tree in used]
    if selection == "leading":
        chosen = _leading([_notebook_order(tree) for tree in used], m)
        weights = np.ones(len(chosen))
    else:
        chosen, weights = _of_largest_support(supports, m)
    if not constant:
        chosen, weights = chosen[chosen.any(axis=1)], weights[chosen.any(axis=1)]
    whole = m is None
    parts = _some_heads(tensor)
    values = haar_transform(tensor, by_axis)[tuple(chosen.T)] if whole else _coefficients(parts, used, chosen)
    return Expansion(chosen, _sizes(supports, chosen), values, weights)


def expansion_by_heads(parts: Iterable[Floats], trees: TreesByName, axes: Sequence[str], m: int) -> Expansion:
    """The ``m`` functions of largest support of a tensor that is never in memory as a whole.

    Args:
        parts: (query, key, heads) tensors that together are the whole, in the order of the heads.
        trees, axes, m: As in ``expansion``.
    """
    used = [_named(trees, axes)[name] for name in axes]
    supports = [haar_functions(tree).supports for tree in used]
    chosen, weights = _of_largest_support(supports, m)
    filled = (fill_missing(part, trees) for part in parts)
    return Expansion(chosen, _sizes(supports, chosen), _coefficients(filled, used, chosen), weights)


def _sizes(supports: list[NDArray[np.intp]], functions: NDArray[np.intp]) -> NDArray[np.int64]:
    """(m,) support of each tensor function: the product over the axes."""
    return np.asarray(
        np.prod([support[functions[:, axis]] for axis, support in enumerate(supports)], axis=0, dtype=np.int64)
    )


def _named(trees: TreesByName, axes: Sequence[str]) -> TreesByName:
    for name in axes:
        if name not in trees:
            raise InvalidInput(f"trees has no tree for the {name} axis, only for {', '.join(trees) or 'none'}.")
    return trees


def _of_largest_support(
    supports: list[NDArray[np.intp]], m: int | None
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """The tensor functions of largest support (with all that tie with the m-th), ties by index, and their weights."""
    total = int(np.prod([len(support) for support in supports]))
    limit = total if m is None else min(int(m), total)
    smallest = 1 if limit == total else _support_of_rank(supports, limit)
    functions = _of_support(supports, smallest)
    sizes = _sizes(supports, functions)
    order = np.lexsort((*functions.T[::-1], -sizes))
    at_the_end = sizes[order] == smallest
    weights = np.ones(len(order))
    weights[at_the_end] = 1.0 - (len(order) - limit) / max(1, at_the_end.sum())
    return functions[order], weights


def _support_of_rank(supports: list[NDArray[np.intp]], limit: int) -> int:
    """The support of the ``limit``-th tensor function by falling support.

    Along each axis take the functions by falling support. A tensor function at the places (a, b, …) has at least
    (a+1)(b+1)… - 1 others before it, so only those with (a+1)(b+1)… <= limit can be among the first ones.
    """
    sizes, places = np.ones(1, dtype=np.int64), np.ones(1, dtype=np.int64)
    for support in supports:
        falling = np.sort(support)[::-1][:limit]
        counts = np.minimum(len(falling), limit // places)
        numbers = _ranges(counts)
        sizes = np.repeat(sizes, counts) * falling[numbers]
        places = np.repeat(places, counts) * (numbers + 1)
    return int(np.sort(sizes)[::-1][limit - 1])


def _of_support(supports: list[NDArray[np.intp]], smallest: int) -> NDArray[np.intp]:
    """(count, axes) all tensor functions whose support is at least ``smallest``."""
    functions = np.zeros((1, 0), dtype=np.intp)
    sizes = np.ones(1)
    for axis, support in enumerate(supports):
        rank = np.argsort(-support, kind="stable")
        later = np.prod([other.max() for other in supports[axis + 1 :]], dtype=np.float64)
        counts = np.searchsorted(-support[rank], -smallest / (sizes * later), side="right")
        numbers = rank[_ranges(counts)]
        functions = np.column_stack([np.repeat(functions, counts, axis=0), numbers])
        sizes = np.repeat(sizes, counts) * support[numbers]
    return functions


def _ranges(counts: NDArray[np.intp]) -> NDArray[np.intp]:
    """0 … count - 1 for each count, one after the other."""
    return np.asarray(np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts))


def _notebook_order(tree: PartitionTree) -> NDArray[np.intp]:
    """The Haar functions level by level, folders by smallest member: the order of the authors' code."""
    functions = haar_functions(tree)
    smallest = [np.unique(labels, return_index=True)[1] for labels in tree.labels]
    members = [
        -1,
        *(smallest[level][folder] for level, folder in zip(functions.levels[1:], functions.folders[1:], strict=True)),
    ]
    return np.lexsort((members, functions.levels))


def _leading(orders: list[NDArray[np.intp]], m: int | None) -> NDArray[np.intp]:
    """(m, axes) the first functions of every axis, the same number on each."""
    side = max(map(len, orders)) if m is None else round(m ** (1 / len(orders)))
    if m is not None and side ** len(orders) != m:
        power = "square" if len(orders) == 2 else "cube"
        raise InvalidInput(f"m={m} is no {power}. Leading functions form a block: take m={side ** len(orders)}.")
    return np.stack(np.meshgrid(*[order[:side] for order in orders], indexing="ij"), axis=-1).reshape(-1, len(orders))


def _coefficients(parts: Iterable[Floats], trees: list[PartitionTree], chosen: NDArray[np.intp]) -> NDArray[np.float64]:
    """The chosen coefficients: only the functions that occur are contracted, a few heads at a time."""
    needed, places = zip(*[np.unique(column, return_inverse=True) for column in chosen.T], strict=True)
    queries, keys, *heads = (haar_values(tree, numbers) for tree, numbers in zip(trees, needed, strict=True))
    by_heads = (_contracted(some, queries, keys) for some in parts)
    if not heads:
        return np.concatenate([block[places] for block in by_heads], axis=-1)
    return np.asarray((np.concatenate(list(by_heads), axis=-1) @ heads[0])[places])


def _contracted(tensor: Floats, queries: NDArray[np.float64], keys: NDArray[np.float64]) -> NDArray[np.float64]:
    """(query functions, key functions, heads) inner products, some columns at a time."""
    flat = tensor.reshape(len(tensor), -1)
    by_query = np.empty((queries.shape[1], flat.shape[1]))
    step = max(1, _BLOCK // len(flat))
    for start in range(0, flat.shape[1], step):
        some = flat[:, start : start + step].astype(np.float64, copy=False)
        by_query[:, start : start + step] = queries.T @ some
    found = np.matmul(
        keys.T, by_query.reshape(len(by_query), tensor.shape[1], -1)
    )  # query function by query function: no turned copy of all
    return np.asarray(found.reshape(*found.shape[:2], *tensor.shape[2:]))


def _some_heads(X: ArrayLike) -> Iterator[Floats]:
    """A tensor a few heads at a time, which bounds the memory of what is made of them; a matrix is one head."""
    tensor = np.asarray(X)
    if tensor.ndim < 3:
        yield tensor
        return
    step = max(1, _ENTRIES // max(1, tensor[:, :, 0].size))
    for start in range(0, max(1, tensor.shape[2]), step):
        yield tensor[:, :, start : start + step]


def sparse_approximation(X: ArrayLike, trees: TreesByName, m: int) -> tuple[NDArray[np.float64], float]:
    """``X`` rebuilt from its ``m`` largest Haar coefficients on all axes, and the relative error in l_2.

    >>> X = np.kron(np.eye(2), np.ones((2, 2)))
    >>> trees = {"query": PartitionTree.dyadic(4), "key": PartitionTree.dyadic(4)}
    >>> sparse_approximation(X, trees, m=2)[1]
    0.0
    """
    at_least("m", m, 1)
    axes = AXES[: np.ndim(X)]
    tensor = fill_missing(X, _named(trees, axes))
    by_axis = {name: trees[name] for name in axes}
    coefficients = haar_transform(tensor, by_axis)
    flat = coefficients.ravel()
    dropped = np.argsort(-np.abs(flat), kind="stable")[int(m) :]
    norm = float(np.linalg.norm(flat))
    error = float(np.linalg.norm(flat[dropped])) / norm if norm else 0.0
    kept = flat.copy()
    kept[dropped] = 0.0
    return inverse_haar_transform(kept.reshape(coefficients.shape), by_axis), error


def approximation_errors(X: ArrayLike, trees: TreesByName, counts: Sequence[int]) -> NDArray[np.float64]:
    """Relative l_2 error of ``X`` rebuilt from its m largest Haar coefficients, for each m in ``counts``."""
    axes = AXES[: np.ndim(X)]
    tensor = fill_missing(X, _named(trees, axes))
    squares = np.sort(haar_transform(tensor, {name: trees[name] for name in axes}).ravel() ** 2)
    left = np.concatenate([[0.0], np.cumsum(squares)])[::-1]
    places = np.clip(np.asarray(counts, dtype=np.intp), 0, len(squares))
    return np.sqrt(left[places] / left[0]) if left[0] > 0 else np.zeros(len(places))
