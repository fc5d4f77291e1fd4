"""Entropies of heads and of the network: l_p sums of the Haar coefficients of largest support (eq. 21, appendix B.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry.checks import AXES, as_tensor, at_least, one_of
from oattn_hub.geometry.haar import haar_basis, haar_functions, haar_transform, inverse_haar_transform, trees_by_axis
from oattn_hub.geometry.missing import fill_missing
from oattn_hub.geometry.tree import PartitionTree

SELECTIONS = ("support", "leading")

TreesByName = Mapping[str, PartitionTree]


@dataclass(frozen=True, eq=False)
class Expansion:
    """Chosen tensor Haar coefficients, in falling order of support (ties: by index)."""

    functions: NDArray[np.intp]
    """(m, axes) which Haar function of each axis; 0 is the constant."""
    supports: NDArray[np.int64]
    """(m,) how many entries each tensor function is not zero on."""
    coefficients: NDArray[np.float64]
    """(m, heads) for a bi-Haar expansion of every head, (m,) for one of all axes."""

    def entropy(self, p: float = 1.0) -> NDArray[np.float64]:
        """The l_p norm of the coefficients, per head where there are heads."""
        return np.asarray(np.sum(np.abs(self.coefficients) ** p, axis=0) ** (1.0 / p))


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
        selection: ``"support"`` takes the functions of largest support |supp psi_Q| * |supp psi_K|, ties by
            (query, key) index. ``"leading"`` takes the first sqrt(m) x sqrt(m) functions, as the authors' notebook.
        p: The norm; 1 is the paper's.
        constant: Whether the constant function, the head's mean, may be among them.

    >>> X = np.ones((4, 4, 2)) * [1.0, 3.0]
    >>> trees = {"query": PartitionTree.dyadic(4), "key": PartitionTree.dyadic(4)}
    >>> head_entropies(X, trees).round(9).tolist()
    [4.0, 12.0]
    """
    at_least("p", p, 1e-6)
    return np.atleast_1d(expansion(X, trees, ("query", "key"), m, selection, constant=constant).entropy(p))


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
    """The chosen Haar coefficients of ``X`` on ``axes`` (Figure 4 plots them in this order)."""
    one_of("selection", selection, SELECTIONS)
    tensor = fill_missing(as_tensor(X), _named(trees, axes))
    pairs = trees_by_axis({name: _named(trees, axes)[name] for name in axes}, tensor.shape)
    supports = [haar_functions(tree).supports for _, tree in pairs]
    if m is not None:
        at_least("m", m, 1)
    chosen = _leading(supports, m) if selection == "leading" else _of_largest_support(supports, m)
    if not constant:
        chosen = chosen[chosen.any(axis=1)]
    values = _coefficients(tensor, [tree for _, tree in pairs], chosen)
    sizes = np.prod([support[chosen[:, axis]] for axis, support in enumerate(supports)], axis=0, dtype=np.int64)
    return Expansion(functions=chosen, supports=sizes, coefficients=values)


def _named(trees: TreesByName, axes: Sequence[str]) -> TreesByName:
    for name in axes:
        if name not in trees:
            raise InvalidInput(f"trees has no tree for the {name} axis, only for {', '.join(trees) or 'none'}.")
    return trees


def _of_largest_support(supports: list[NDArray[np.intp]], m: int | None) -> NDArray[np.intp]:
    """(m, axes) the tensor functions of largest support, ties by index.

    Along each axis take the functions by falling support. A tensor function at the places (a, b, …) has at least
    (a+1)(b+1)… - 1 others before it, so only those with (a+1)(b+1)… <= m can be among the first m.
    """
    total = int(np.prod([len(support) for support in supports]))
    limit = total if m is None else min(int(m), total)
    ranked = [np.argsort(-support, kind="stable")[:limit] for support in supports]
    places = np.stack(np.meshgrid(*[np.arange(1, len(rank) + 1) for rank in ranked], indexing="ij"), axis=-1)
    places = places.reshape(-1, len(supports))
    places = places[np.prod(places, axis=1, dtype=np.float64) <= limit] - 1 if m is not None else places - 1
    functions = np.stack([rank[places[:, axis]] for axis, rank in enumerate(ranked)], axis=1)
    sizes = np.prod([support[functions[:, axis]] for axis, support in enumerate(supports)], axis=0, dtype=np.int64)
    order = np.lexsort((*functions.T[::-1], -sizes))
    return functions[order[:limit]]


def _leading(supports: list[NDArray[np.intp]], m: int | None) -> NDArray[np.intp]:
    """(m, axes) the first functions of every axis, the same number on each."""
    side = max(map(len, supports)) if m is None else round(m ** (1 / len(supports)))
    if m is not None and side ** len(supports) != m:
        example = isqrt(m) ** 2 if len(supports) == 2 else side**3
        raise InvalidInput(
            f"m={m} is no {'square' if len(supports) == 2 else 'cube'}. Leading functions form a block: m={example}."
        )
    block = np.indices([min(side, len(support)) for support in supports]).reshape(len(supports), -1).T
    sizes = np.prod([support[block[:, axis]] for axis, support in enumerate(supports)], axis=0, dtype=np.int64)
    return np.asarray(block[np.argsort(-sizes, kind="stable")])


def _coefficients(
    tensor: NDArray[np.floating], trees: list[PartitionTree], chosen: NDArray[np.intp]
) -> NDArray[np.float64]:
    """The chosen coefficients: only the functions that occur are contracted, the largest axis first."""
    block = tensor
    places = []
    for axis, tree in enumerate(trees):
        needed, place = np.unique(chosen[:, axis], return_inverse=True)
        places.append(place)
        if 2 * len(needed) > tree.n:
            block = haar_transform(block, [None] * axis + [tree])[(slice(None),) * axis + (needed,)]
        else:
            functions = haar_basis(tree)[:, needed]
            block = np.moveaxis(np.tensordot(functions, block, axes=(0, axis)), 0, axis)
    return np.asarray(block[tuple(places)], dtype=np.float64)


def sparse_approximation(X: ArrayLike, trees: TreesByName, m: int) -> tuple[NDArray[np.float64], float]:
    """``X`` rebuilt from its ``m`` largest Haar coefficients on all axes, and the relative error in l_2.

    >>> X = np.kron(np.eye(2), np.ones((2, 2)))
    >>> trees = {"query": PartitionTree.dyadic(4), "key": PartitionTree.dyadic(4)}
    >>> sparse_approximation(X, trees, m=2)[1]
    0.0
    """
    at_least("m", m, 1)
    axes = AXES[: np.ndim(X)]
    tensor = fill_missing(as_tensor(X), _named(trees, axes))
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
    tensor = fill_missing(as_tensor(X), _named(trees, axes))
    squares = np.sort(haar_transform(tensor, {name: trees[name] for name in axes}).ravel() ** 2)
    left = np.concatenate([[0.0], np.cumsum(squares)])[::-1]
    places = np.clip(np.asarray(counts, dtype=np.intp), 0, len(squares))
    return np.sqrt(left[places] / left[0]) if left[0] > 0 else np.zeros(len(places))
