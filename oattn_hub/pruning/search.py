"""As many heads as a budget allows: proposed by one set of inputs, measured on another, refitted all the way.

A ranking proposes which heads go next from the model as pruned and refitted so far; what the proposal really costs is
measured on inputs that no ranking and no refit has seen. So is as large a set by the very first ranking, and the search
goes on from the cheaper of the two. Before it begins, a few rankings and compensations remove the same share of the
heads, and those that were measured to cost least go on (:func:`Search.choose`).

========== =====================================================================================================
fisher     slopes of the loss along what removal and refit do to the weights, one backward pass per round
           (:mod:`oattn_hub.pruning.fisher`)
obs        how far the layer's output moves after the refit, relative to the residual stream; no backward pass
           (the optimal brain surgeon by layers, as in SlimGPT, arXiv 2412.18110)
a score    the fixed order of any score of :mod:`oattn_hub.pruning.scores`
========== =====================================================================================================

Prunings in rounds: Michel, Levy, Neubig 2019 (arXiv 1905.10650).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from oattn_hub.progress import Progress, silent
from oattn_hub.pruning.bounds import upper_bound
from oattn_hub.pruning.compensate import Compensator, Kind
from oattn_hub.pruning.fisher import displaced, fisher, removals
from oattn_hub.pruning.units import Choice, Removed
from oattn_hub.records import Head

if TYPE_CHECKING:
    from oattn_hub.pruning.evaluation import Evaluator
    from oattn_hub.pruning.tasks import Metric

Values = NDArray[np.float64]
# A cost that moves up and down may come back: the search ends above this many budgets, or twice in a row above one.
_FAR, _PATIENCE = 1.5, 2
# Blocks are so many times smaller where the first one cost more than the budget.
_SMALLER = 4
# The share of the heads at which rankings and compensations are compared before the search. Where several of them cost
# nothing, which of those is better is chance, and twice the share is tried, up to the last one.
_TRIAL, _LAST_TRIAL = 0.15, 0.6
# The sets to verify begin where the bound on the search's own inputs reaches this part of the budget, and end where
# the mean does: what is far within need not be tested, and the verification decides by itself where to stop.
_BOUND_FROM, _MEAN_TO = 0.7, 1.1
# A block of heads that went together is verified in so many parts, and at most so many sets are.
_PARTS, _MOST = 4, 8
RANKINGS = ("fisher", "obs")


@dataclass(frozen=True)
class Step:
    """Heads removed so far, in the order of removal, how much worse that was measured to be, and its upper bound."""

    heads: Removed
    increase: float
    upper: float = 0.0

    def towards(self, other: Step, share: float) -> tuple[float, float]:
        """What the mean and the bound may be when a share of the block between is removed.

        The bound lies above the mean by a standard error, whose square grows with the heads: half a block has more
        than half of it.
        """
        mean = self.increase + share * (other.increase - self.increase)
        before, after = (max(step.upper - step.increase, 0.0) ** 2 for step in (self, other))
        return mean, mean + math.sqrt(before + share * (after - before))


def walk(propose: Callable[[Removed], Removed], measure: Callable[[Removed], Step], budget: float) -> list[Step]:
    """Remove block after block until the cost stays above the budget.

    >>> def one_more(removed): return (*removed, (0, len(removed)))
    >>> [step.increase for step in walk(one_more, lambda removed: Step(removed, 0.5 * len(removed)), 0.9)]
    [0.0, 0.5, 1.0, 1.5]
    """
    path, above = [Step((), 0.0)], 0
    while above < _PATIENCE and path[-1].increase <= _FAR * budget:
        heads = propose(path[-1].heads)
        if len(heads) <= len(path[-1].heads):
            break
        path.append(measure(heads))
        above = above + 1 if path[-1].increase > budget else 0
    return path


def sequence(
    path: Sequence[Step], budget: float, part: Callable[[Removed, Removed, float], Removed], most: int = _MOST
) -> list[Removed]:
    """The sets to verify, from few heads to many; named before the verification inputs are looked at.

    Args:
        path: what the search measured.
        budget: what is allowed.
        part: a share of a block: heads removed before it, heads removed after it, the share.
        most: how many sets at most.
    """
    last = max((number for number, step in enumerate(path) if step.increase <= budget), default=0)
    found: dict[Removed, tuple[float, float]] = {}
    for before, after in pairwise(path[: last + 2]):
        for share in np.linspace(0, 1, _PARTS + 1)[1:].tolist():
            heads = part(before.heads, after.heads, share)
            if len(heads) > len(before.heads):
                found.setdefault(heads, before.towards(after, share))
    sets = [heads for heads, (mean, _) in found.items() if mean <= _MEAN_TO * budget]
    close = [number for number, heads in enumerate(sets) if found[heads][1] > _BOUND_FROM * budget]
    first = max(0, min([*close, len(sets) // 2]) - 1)
    return _thinned(sets[first:], most)


def _thinned(sets: list[Removed], most: int) -> list[Removed]:
    if len(sets) <= most:
        return sets
    return [sets[round(place)] for place in np.linspace(0, len(sets) - 1, most)]


@dataclass(frozen=True, eq=False)
class CostModel:
    """What removing units is predicted to add: C(S) = sum of slopes + 1/2 sum of curvatures within S.

    Attributes:
        slope: (units,).
        curvature: (units, units).
    """

    slope: Values
    curvature: Values

    def order(self, removable: NDArray[np.bool_], sizes: Values, count: float) -> list[int]:
        """Units in the order in which one more of them adds least for each of its heads, up to ``count`` heads."""
        left, joint, chosen, removed = removable.copy(), np.zeros(len(self.slope)), [], 0.0
        while removed < count and left.any():
            added = np.where(left, (self.slope + np.diag(self.curvature) / 2 + joint) / sizes, np.inf)
            best = int(np.argmin(added))
            chosen.append(best)
            left[best] = False
            joint += self.curvature[best]
            removed += sizes[best]
        return chosen


def shrunk(samples: Values) -> Values:
    """(units, units) mean outer product of (samples, units), its off-diagonal shrunk by how noisy it is.

    The intensity is the estimated variance of the off-diagonal entries over their squares (Schaefer, Strimmer 2005);
    a search that takes the smallest of many noisy sums would otherwise find those that are small by chance.
    """
    count = len(samples)
    mean = samples.T @ samples / count
    off = ~np.eye(mean.shape[0], dtype=bool)
    squares = (samples**2).T @ samples**2 / count
    noise, signal = (squares - mean**2)[off].sum() / max(count - 1, 1), (mean[off] ** 2).sum()
    kept = 1.0 - min(1.0, noise / signal) if signal > 0 else 0.0
    return np.where(off, kept * mean, mean)


@dataclass
class Effort:
    """What a search took: masked models measured, forward and backward calls on single inputs, seconds."""

    evaluations: int = 0
    forwards: int = 0
    backwards: int = 0
    start: float = field(default_factory=time.perf_counter)

    def to_json(self) -> dict[str, float]:
        """Counts, and the seconds so far."""
        seconds = round(time.perf_counter() - self.start, 1)
        return {**{name: getattr(self, name) for name in ("evaluations", "forwards", "backwards")}, "seconds": seconds}


class Meter:
    """One metric on some inputs of each length: how much worse it gets without some heads, each set measured once."""

    def __init__(self, evaluators: Sequence[Evaluator], metric: Metric, effort: Effort | None = None) -> None:
        self.evaluators, self.metric = evaluators, metric
        self.effort = effort or Effort()
        self.before = [evaluator.baseline[metric.name] for evaluator in evaluators]
        self.measured: dict[tuple[frozenset[Head], Kind], list[Values]] = {}

    def values(self, heads: Removed, compensator: Compensator) -> list[Values]:
        """The metric without these heads, for each length one value per input."""
        if not heads:
            return self.before
        key = (frozenset(heads), compensator.kind)
        if key not in self.measured:
            refits = compensator.refits(heads)
            self.measured[key] = [one.without(heads, refits)[self.metric.name] for one in self.evaluators]
            self.effort.evaluations += 1
            self.effort.forwards += sum(len(one.inputs) for one in self.evaluators)
        return self.measured[key]

    def increase(self, heads: Removed, compensator: Compensator) -> float:
        """How much worse the mean over the inputs is, at the length where it is worst."""
        pairs = zip(self.before, self.values(heads, compensator), strict=True)
        return max(self.metric.increase(float(old.mean()), float(new.mean())) for old, new in pairs)

    def bounds(self, heads: Removed, compensator: Compensator, seed: int = 0) -> list[float]:
        """The one-sided bound of the cost, for each length."""
        pairs = zip(self.before, self.values(heads, compensator), strict=True)
        return [upper_bound(self.metric, old, new, seed=seed) for old, new in pairs]

    def cost(self, heads: Removed, compensator: Compensator, seed: int = 0) -> tuple[float, float]:
        """The increase and its bound, each at the length where it is worst."""
        return self.increase(heads, compensator), max(self.bounds(heads, compensator, seed))


@dataclass(frozen=True, eq=False)
class Search:
    """One model, what may go, what ranks, what makes good, and what measures.

    Attributes:
        proposing: the model on the inputs that rankings see.
        compensator: refits on other inputs.
        meter: the cost on inputs that neither has seen.
        choice: which units may go, and how many at a time.
        scores: values of fixed rankings by head, lowest first.
        progress: called with trials and rounds.
    """

    proposing: Evaluator
    compensator: Compensator
    meter: Meter
    choice: Choice
    scores: Mapping[str, Mapping[Head, float]] = field(default_factory=dict)
    seed: int = 0
    progress: Progress = silent
    # what each ranking predicted for what was removed, so that a block can be proposed in parts
    models: dict[tuple[str, Kind, Removed], CostModel] = field(default_factory=dict)

    def path(self, ranking: str, budget: float) -> list[Step]:
        """Block after block by one ranking, until the cost stays above the budget.

        Where the first block costs too much already, smaller blocks are tried, down to single units.
        """
        size = self.choice.step
        while True:
            path = self._path(ranking, budget, size)
            if size == 1 or any(step.increase <= budget for step in path[1:]):
                return path
            size = max(1, size // _SMALLER)

    def _path(self, ranking: str, budget: float, size: int) -> list[Step]:
        measured: list[Step] = []

        def measure(removed: Removed) -> Step:
            measured.append(Step(removed, *self.meter.cost(removed, self.compensator, self.seed)))
            self.progress("search", len(measured), self._rounds(measured, budget, size))
            return measured[-1]

        path = walk(lambda removed: self._next(ranking, removed, size), measure, budget)
        self.progress("search", len(measured), len(measured))
        return path

    def _next(self, ranking: str, removed: Removed, size: int) -> Removed:
        """One more block by a new ranking, or as many heads by the very first one: what was measured to cost less.

        A new ranking knows the refits, but adds to a set that may not be the best of its size.
        """
        again = self.propose(ranking, removed, size)
        first = self.propose(ranking, (), len(again))
        if len(first) < len(again) or set(first) == set(again):
            return again
        return min(again, first, key=lambda heads: self.meter.increase(heads, self.compensator))

    def _rounds(self, measured: Sequence[Step], budget: float, size: int) -> int:
        """How many rounds there will be, if costs grow with the square of the number of heads."""
        heads, cost = len(measured[-1].heads), max(measured[-1].increase, 1e-9)
        reach = min(heads * math.sqrt(_FAR * budget / cost), len(self.choice.heads))
        return max(len(measured) + 1, round(reach / size) + 1)

    def sequence(self, ranking: str, path: Sequence[Step], budget: float) -> list[Removed]:
        """The sets to verify, from few heads to many."""

        def part(before: Removed, after: Removed, share: float) -> Removed:
            if share == 1:
                return after
            return self.propose(ranking, before, max(1, round(share * (len(after) - len(before)))))

        return sequence(path, budget, part)

    def choose(self, rankings: Sequence[str], kinds: Sequence[Kind]) -> tuple[str, Kind, dict[str, float]]:
        """The ranking that cost least for one share of the heads, then the compensation that did for its choice."""
        share = _TRIAL
        best, kind, costs = self._trial(rankings, kinds, share)
        while sum(cost <= 0 for cost in costs.values()) > 1 and 2 * share <= _LAST_TRIAL:
            share *= 2
            best, kind, costs = self._trial(rankings, kinds, share)
        return best, kind, costs

    def _trial(
        self, rankings: Sequence[str], kinds: Sequence[Kind], share: float
    ) -> tuple[str, Kind, dict[str, float]]:
        count = self.choice.step * max(1, round(share * len(self.choice.heads) / self.choice.step))
        first, total = self.compensating(kinds[0]), len(rankings) + len(kinds) - 1
        costs: dict[tuple[str, Kind], float] = {}
        chosen: dict[str, Removed] = {}
        for ranking in rankings:
            self.progress("trials", len(costs), total)
            chosen[ranking] = first.propose(ranking, (), count)
            costs[ranking, kinds[0]] = self.meter.increase(chosen[ranking], first.compensator)
        best = min(rankings, key=lambda ranking: costs[ranking, kinds[0]])
        for kind in kinds[1:]:
            self.progress("trials", len(costs), total)
            costs[best, kind] = self.meter.increase(chosen[best], self.compensator.of_kind(kind))
        self.progress("trials", total, total)
        kind = min(kinds, key=lambda kind: costs[best, kind])
        return best, kind, {f"{ranking} {kind}": cost for (ranking, kind), cost in costs.items()}

    def grown(self, ranking: str, count: int) -> Removed:
        """So many heads, block after block, without a look at what they cost; fewer where no more may go."""
        removed: Removed = ()
        while len(removed) < count:
            longer = self.propose(ranking, removed, min(self.choice.step, count - len(removed)))
            if len(longer) == len(removed) or len(longer) > count:  # nothing more, or only units that are too large
                break
            removed = longer
        return removed

    def compensating(self, kind: Kind) -> Search:
        """The same search with another compensation; the sums of the unpruned model are shared."""
        return replace(self, compensator=self.compensator.of_kind(kind))

    def propose(self, ranking: str, removed: Removed, count: int) -> Removed:
        """What is removed already, and about ``count`` more heads."""
        units = self.choice.units(removed)
        if not units:
            return removed
        key = (ranking, self.compensator.kind, removed)
        if key not in self.models:
            self.models[key] = self._by_units(ranking, units, removed)
        return self.choice.extended(removed, units, self.models[key], count)

    def _by_units(self, ranking: str, units: Sequence[Removed], removed: Removed) -> CostModel:
        none = np.zeros((len(units),) * 2)
        if ranking in self.scores:
            values = self.scores[ranking]
            return CostModel(np.array([sum(values[head] for head in unit) for unit in units]), none)
        refits = self.compensator.refits(removed, sweeps=1)
        by_module = removals(self.compensator, self.compensator.unpruned, units, removed, refits)
        if ranking == "obs":
            return CostModel(displaced(by_module, self.compensator, len(units)), none)
        found = dict(by_module)
        unseen = np.full(len(units), np.inf)  # layers whose projections cannot be watched go last
        unseen[[number for removal in found.values() for number in removal.units]] = 0.0
        samples = fisher(
            self.proposing, self.meter.metric, found, len(units), removed, refits, self.seed + len(removed)
        )
        effort, count = self.meter.effort, len(self.proposing.inputs)
        effort.forwards, effort.backwards = effort.forwards + count, effort.backwards + count
        return CostModel(unseen, shrunk(samples))


def by_head(values: Values, heads: Collection[Head]) -> dict[Head, float]:
    """Values in model order as a mapping."""
    return dict(zip(heads, values.tolist(), strict=True))
