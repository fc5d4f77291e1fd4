"""The questionnaire: trees on all axes of an array, each built from the geometry of the others (Algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

from oattn_hub.errors import NotFitted
from oattn_hub.geometry.affinity import cosine_affinity, distance_affinity, gaussian_affinity
from oattn_hub.geometry.canonical import content_of_tensor
from oattn_hub.geometry.checks import AXES, Floats, as_tensor_with_gaps, at_least, one_of
from oattn_hub.geometry.crowd import Crowd, crowd_emd
from oattn_hub.geometry.emd import PRECISIONS, emd_of_checked
from oattn_hub.geometry.growing import MEDIANS, binary_tree, grow
from oattn_hub.geometry.markov import NORMALISATIONS, Diffusion, components, join_components
from oattn_hub.geometry.numbering import Orders, canonical_orders
from oattn_hub.geometry.published import grow_as_published
from oattn_hub.geometry.tree import PartitionTree
from oattn_hub.progress import Progress, silent

COUPLINGS = ("latest", "initial", "previous")
TREE_TYPES = ("flexible", "binary")
INITIAL_AFFINITIES = ("cosine", "gaussian")

_ERROR = 1e-9  # slices closer than this part of their size are equal: noise of 1e-10 must not become a geometry


@dataclass(frozen=True, eq=False)
class Iteration:
    """What one pass over the axes made; every mapping is by axis name."""

    trees: Mapping[str, PartitionTree]
    affinities: Mapping[str, NDArray[np.float64]]
    distances: Mapping[str, NDArray[np.float64]]
    """Tree EMDs between the slices; empty for the initial trees, which come from the cosine affinity."""
    diffusions: Mapping[str, Diffusion]
    """Leading eigenpairs of the affinities' Markov operators."""

    def reordered(self, places: Mapping[str, NDArray[np.intp]]) -> Iteration:
        """The same after the points were reordered: new point ``i`` of an axis is old point ``places[axis][i]``."""
        return Iteration(
            trees=MappingProxyType({axis: tree.permuted(places[axis]) for axis, tree in self.trees.items()}),
            affinities=MappingProxyType({axis: _square(m, places[axis]) for axis, m in self.affinities.items()}),
            distances=MappingProxyType({axis: _square(m, places[axis]) for axis, m in self.distances.items()}),
            diffusions=MappingProxyType(
                {axis: Diffusion(d.values, d.vectors[places[axis]]) for axis, d in self.diffusions.items()}
            ),
        )

    def trees_only(self) -> Iteration:
        """The same without what takes the memory of a matrix on each axis."""
        return Iteration(self.trees, *[MappingProxyType({})] * 3)


class Questionnaire:
    """Organises a (query, key, head) tensor, or a (query, key) matrix, by a partition tree on each axis.

    Query and key trees start from the affinities of the slices. Then ``n_iters`` times: the head tree from the query
    and key trees, the query tree from the key and head trees, the key tree from the query and head trees. With two
    axes: the key tree from the query tree, then the query tree from the key tree.

    Args:
        n_iters: How often the trees are rebuilt.
        coupling: Which trees the next one is built from. ``"latest"``: the newest of the other axes (Mishne et al.
            2016). ``"initial"``: the head tree always from the initial query and key trees, as line 15 is printed and
            as the authors' code does, so that it never changes after the first iteration; the others from the newest.
            ``"previous"``: all from the trees of the iteration before, as the authors' code for the paraproduct.
        median: ``"off_diagonal"`` or ``"published"``: see ``flexible_tree``.
        zero_is_missing: Whether the initial cosine affinity ignores exact zeros, as the authors' code does.
        tree: ``"flexible"`` or ``"binary"``.
        initial: ``"cosine"`` or ``"gaussian"`` affinity to start from.
        alpha: Reduces the weight of a folder by 2^-alpha per level.
        beta: Raises the folder's share of the points to this power.
        constant: Divides the median distance when clusters join; larger values make smaller folders.
        n_eigenvectors: How many eigenvectors the diffusion distance uses.
        normalisation: ``"density"`` or ``"row"``: see ``markov_matrix``.
        precision: ``"auto"``, ``"float32"`` or ``"float64"`` in the comparison of slices: see ``tree_emd``.

    Attributes, after ``fit``:
        trees_: Axis name to tree.
        affinities_: Axis name to affinity.
        initial_: The ``Iteration`` before the first: initial trees and affinities of query and key.
        history_: One ``Iteration`` per pass.
        convergence_: Axis name to (n_iter_,) change of the axis' tree against the one before: mean absolute
            difference of the tree metrics. NaN where there was none before.
        n_iter_: Number of passes made.

    >>> rng = np.random.default_rng(0)
    >>> X = np.kron(rng.random((2, 2, 2)), np.ones((4, 4, 4))) + 0.01 * rng.random((8, 8, 8))
    >>> q = Questionnaire().fit(X)
    >>> sorted(folder.tolist() for folder in q.trees_["head"].folders(1))
    [[0, 1, 2, 3], [4, 5, 6, 7]]
    """

    trees_: Mapping[str, PartitionTree]
    affinities_: Mapping[str, NDArray[np.float64]]
    initial_: Iteration
    history_: tuple[Iteration, ...]
    convergence_: Mapping[str, NDArray[np.float64]]
    n_iter_: int

    def __init__(
        self,
        n_iters: int = 3,
        coupling: str = "latest",
        *,
        median: str = "off_diagonal",
        zero_is_missing: bool = False,
        tree: str = "flexible",
        initial: str = "cosine",
        alpha: float = 0.0,
        beta: float = 1.0,
        constant: float = 1.0,
        n_eigenvectors: int = 12,
        normalisation: str = "density",
        precision: str = "auto",
    ) -> None:
        self.n_iters = n_iters
        self.coupling = coupling
        self.median = median
        self.zero_is_missing = zero_is_missing
        self.tree = tree
        self.initial = initial
        self.alpha = alpha
        self.beta = beta
        self.constant = constant
        self.n_eigenvectors = n_eigenvectors
        self.normalisation = normalisation
        self.precision = precision

    def get_params(self) -> dict[str, Any]:
        """The parameters by name, JSON-able."""
        return {name: value for name, value in vars(self).items() if not name.endswith("_")}

    def fit(
        self,
        X: ArrayLike,
        *,
        progress: Progress = silent,
        history: bool = True,
        crowd: Crowd | None = None,
        device: str | None = None,
    ) -> Questionnaire:
        """Build the trees of ``X``.

        Args:
            X: (query, key, head) or (query, key), float32 or float64; it is not changed. NaN entries are missing.
            progress: Called with the stage "questionnaire" and how many of its trees are built.
            history: Whether every pass keeps its affinities, distances and diffusions, or the last one only.
            crowd: Where ``X`` is only some of very many heads, all of them, added up.
            device: A device of torch that compares the slices, as in ``tree_emd``.
        """
        self._check()
        tensor, has_gaps = as_tensor_with_gaps(X)
        # The distances share their work among the cores themselves; BLAS threads beside them only wait for each other
        # (128 x 128 x 72 on two cores: 0.8 s with them, 0.35 s without).
        with threadpool_limits(1, user_api="blas"):
            content = content_of_tensor(tensor, has_gaps)
            # landmarks were drawn by their numbers, so a numbering by content would not make anything canonical
            free = self.median == "published" or crowd is not None
            orders = None if free else canonical_orders(tensor, content)
            if orders is None:
                return self._fit(tensor, content, has_gaps, progress, history, crowd, device)
            ordered = [own[order] for own, order in zip(content, orders, strict=True)]
            self._fit(tensor[np.ix_(*orders)], ordered, has_gaps, progress, history, crowd, device)
            return self._renumbered(orders)

    def _fit(
        self,
        tensor: Floats,
        moments: Sequence[NDArray[np.float64]],
        has_gaps: bool,
        progress: Progress,
        keep: bool,
        crowd: Crowd | None,
        device: str | None,
    ) -> Questionnaire:
        axes = AXES[: tensor.ndim]
        order = ("head", "query", "key") if tensor.ndim == 3 else ("key", "query")
        total = 2 + self.n_iters * len(order)
        size = sum(float(np.nansum(np.abs(rows), dtype=np.float64)) for rows in tensor) / tensor.size
        content = dict(zip(axes, moments, strict=True))
        self.initial_ = self._initial(tensor, content, progress, total)
        history: list[Iteration] = []
        options = {"alpha": self.alpha, "beta": self.beta, "precision": self.precision, "device": device}
        trees = dict(self.initial_.trees)
        for _ in range(self.n_iters):
            if not keep and self.coupling != "initial":  # which takes the head's part from the pass before
                self.initial_, history = self.initial_.trees_only(), [made.trees_only() for made in history]
            before = dict(trees)
            made = _Pass()
            for axis in order:
                sources = self._sources(axis, trees, before)
                if not self._reuse(axis, history, made):
                    distances = _distances(tensor, has_gaps, crowd, sources, axis, options)
                    if self.median != "published":
                        distances[distances < _ERROR * size * self._weight(sources, axis)] = 0.0
                    made.distances[axis] = distances
                    self._grow(made, axis, distance_affinity(distances), content[axis])
                trees[axis] = made.trees[axis]
                progress("questionnaire", 2 + len(history) * len(order) + len(made.trees), total)
            history.append(made.frozen())
        self.history_ = tuple(history)
        self.n_iter_ = len(history)
        last = history[-1] if history else self.initial_
        self.trees_ = MappingProxyType({axis: last.trees[axis] for axis in axes if axis in last.trees})
        self.affinities_ = MappingProxyType({axis: last.affinities[axis] for axis in axes if axis in last.affinities})
        self.convergence_ = MappingProxyType({axis: self._changes(axis) for axis in axes})
        return self

    def _renumbered(self, orders: Orders) -> Questionnaire:
        """Give the points their own numbers back: point ``i`` was fitted as point ``orders[axis][i]`` of the tensor."""
        places = {axis: np.argsort(order) for axis, order in zip(AXES, orders, strict=False)}
        self.initial_ = self.initial_.reordered(places)
        self.history_ = tuple(made.reordered(places) for made in self.history_)
        self.trees_ = MappingProxyType({axis: tree.permuted(places[axis]) for axis, tree in self.trees_.items()})
        self.affinities_ = MappingProxyType({axis: _square(m, places[axis]) for axis, m in self.affinities_.items()})
        return self

    def __getattr__(self, name: str) -> Any:
        if name in Questionnaire.__annotations__:
            raise NotFitted(f"This Questionnaire has no {name} yet. Call fit(X) first.")
        raise AttributeError(f"'Questionnaire' object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"Questionnaire({', '.join(f'{name}={value!r}' for name, value in self.get_params().items())})"

    def _check(self) -> None:
        at_least("n_iters", self.n_iters, 1)
        one_of("coupling", self.coupling, COUPLINGS)
        one_of("median", self.median, MEDIANS)
        one_of("tree", self.tree, TREE_TYPES)
        one_of("initial", self.initial, INITIAL_AFFINITIES)
        one_of("normalisation", self.normalisation, NORMALISATIONS)
        one_of("precision", self.precision, PRECISIONS)
        at_least("alpha", self.alpha, 0)
        at_least("beta", self.beta, 0)
        at_least("constant", self.constant, 1e-12)
        at_least("n_eigenvectors", self.n_eigenvectors, 2)

    def _initial(
        self, tensor: Floats, content: Mapping[str, NDArray[np.float64]], progress: Progress, total: int
    ) -> Iteration:
        made = _Pass()
        for done, axis in enumerate(("query", "key"), start=1):
            if self.initial == "cosine":
                affinity = cosine_affinity(tensor, axis, zero_is_missing=self.zero_is_missing)
            else:
                affinity = gaussian_affinity(tensor, axis)
            self._grow(made, axis, affinity, content[axis])
            progress("questionnaire", done, total)
        return made.frozen()

    def _sources(
        self, axis: str, latest: Mapping[str, PartitionTree], before: Mapping[str, PartitionTree]
    ) -> Mapping[str, PartitionTree]:
        """The trees from which the tree of ``axis`` is built."""
        if self.coupling == "initial" and axis == "head":
            return self.initial_.trees
        if self.coupling == "previous":
            return {**latest, **before}  # in the first pass the head tree is the only one of its axis
        return latest

    def _weight(self, sources: Mapping[str, PartitionTree], axis: str) -> float:
        """The tree EMD from 0 to a slice of ones: what turns a typical entry into a typical distance."""
        total = 1.0
        for other, tree in sources.items():
            if other != axis:
                levels = enumerate(tree.sizes)
                total *= sum(
                    float(np.sum((n / tree.n) ** self.beta)) * 2.0 ** (-self.alpha * depth) for depth, n in levels
                )
        return total

    def _reuse(self, axis: str, history: list[Iteration], made: _Pass) -> bool:
        """Take over the head's part of the last pass where the same trees would give the same again."""
        if not (self.coupling == "initial" and axis == "head" and history):
            return False
        made.take(history[-1], axis)
        return True

    def _grow(self, made: _Pass, axis: str, affinity: NDArray[np.float64], content: NDArray[np.float64]) -> None:
        parts = components(affinity, self.n_eigenvectors, self.normalisation)
        made.affinities[axis] = affinity
        made.diffusions[axis] = join_components(parts, self.n_eigenvectors)
        if self.tree == "binary":
            made.trees[axis] = binary_tree(affinity, normalisation=self.normalisation, content=content)
        elif self.median == "published":
            made.trees[axis] = grow_as_published(made.diffusions[axis], self.constant)
        else:
            made.trees[axis] = grow(parts, content, self.constant)

    def _changes(self, axis: str) -> NDArray[np.float64]:
        changes, before = [], None
        for made in (self.initial_, *self.history_):
            tree = made.trees.get(axis)
            now = None if tree is None else tree.metric()  # which is not kept: two at a time are in memory
            if made is not self.initial_:
                changes.append(np.nan if before is None or now is None else _mean_difference(before, now))
            before = now
        return np.array(changes)


def _square(matrix: NDArray[np.float64], order: NDArray[np.intp]) -> NDArray[np.float64]:
    return matrix[np.ix_(order, order)]


def _distances(
    tensor: Floats,
    has_gaps: bool,
    crowd: Crowd | None,
    sources: Mapping[str, PartitionTree],
    axis: str,
    options: Mapping[str, Any],
) -> NDArray[np.float64]:
    if crowd is None or axis == "head":
        return emd_of_checked(tensor, has_gaps, sources, axis, **options)
    return crowd_emd(tensor, has_gaps, crowd, sources, axis, **options)


def _mean_difference(old: NDArray[np.float64], new: NDArray[np.float64]) -> float:
    """Mean absolute difference of two tree metrics; the old one is used up."""
    old -= new
    return float(np.abs(old, out=old).mean())


class _Pass:
    """An ``Iteration`` in the making."""

    def __init__(self) -> None:
        self.trees: dict[str, PartitionTree] = {}
        self.affinities: dict[str, NDArray[np.float64]] = {}
        self.distances: dict[str, NDArray[np.float64]] = {}
        self.diffusions: dict[str, Diffusion] = {}

    def take(self, other: Iteration, axis: str) -> None:
        self.trees[axis] = other.trees[axis]
        self.affinities[axis] = other.affinities[axis]
        self.distances[axis] = other.distances[axis]
        self.diffusions[axis] = other.diffusions[axis]

    def frozen(self) -> Iteration:
        return Iteration(
            trees=MappingProxyType(self.trees),
            affinities=MappingProxyType(self.affinities),
            distances=MappingProxyType(self.distances),
            diffusions=MappingProxyType(self.diffusions),
        )
