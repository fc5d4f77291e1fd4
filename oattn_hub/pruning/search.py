"""As many heads as a budget allows: searched on some inputs, verified on others.

Put a gate before every head's output, 1 for a head that stays and 0 for one that goes. With the cost's slope g with
respect to the gates and its curvature F, removing a set S of heads from the model as pruned so far adds about

    C(S) = - sum_{h in S} g_h + c/2 sum_{h,k in S} F_hk .

One backward pass gives both: g is the mean of the inputs' gradients, F the mean of their outer products (the Fisher
information; for a divergence, whose slope starts at zero, of gradients of random probes of the output). The slope finds
heads whose removal lowers the loss, the curvature keeps apart heads that replace each other. The square of a gradient
that is a mean over T tokens lies between 1 and 1/T of a token's, as the tokens agree or not: c is tried as T, T^2/3 and
T^1/3, and the cheapest block is kept.

Each round removes the few heads of lowest C, measures what that really costs, and looks again at the smaller model.
Slopes come from one half of the search inputs and costs from the other, so that what happens to help the inputs that
proposed a block does not speak for it.
Slopes and prunings in rounds: Michel, Levy, Neubig 2019 (arXiv 1905.10650); Fisher information between heads: Kwon et
al. 2022 (arXiv 2204.09656), after LeCun, Denker, Solla 1990.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from oattn_hub.pruning.heads import bundles
from oattn_hub.pruning.masks import masked_sites
from oattn_hub.pruning.scores.model import gate_gradients
from oattn_hub.pruning.stacks import split, stacks
from oattn_hub.pruning.tasks import Metric, divergence, probes
from oattn_hub.records import Head

if TYPE_CHECKING:
    from oattn_hub.pruning.evaluation import Evaluator

Values = NDArray[np.float64]
Removed = tuple[Head, ...]
Said = dict[str, torch.Tensor]

# Part of the heads that goes in each round, and the powers of T by which the curvature is multiplied.
_SHARE = 0.03
_POWERS = (1, 2 / 3, 1 / 3)
# A cost that moves up and down may come back: so many rounds in a row above the budget end the search.
_PATIENCE = 3
# Inputs of one backward pass, which keeps every layer's outputs.
_STACK = 8


@dataclass(frozen=True)
class Step:
    """Heads removed so far, in the order of removal, and how much worse that was measured to be."""

    heads: Removed
    increase: float


def walk(
    propose: Callable[[Removed], Iterable[Removed]], increase: Callable[[Removed], float], budget: float
) -> list[Step]:
    """Remove block after block, always the cheapest of those proposed, until the cost stays above the budget.

    >>> [step.increase for step in walk(lambda gone: [(*gone, (0, len(gone)))], lambda gone: 0.4 * len(gone), 0.5)]
    [0.0, 0.4, 0.8, 1.2000000000000002, 1.6]
    """
    path, above = [Step((), 0.0)], 0
    while above < _PATIENCE:
        steps = [Step(heads, increase(heads)) for heads in propose(path[-1].heads)]
        if not steps:
            break
        path.append(min(steps, key=lambda step: step.increase))
        above = above + 1 if path[-1].increase > budget else 0
    return path


def settle(path: Sequence[Step], verify: Callable[[Removed], float], budget: float) -> Step:
    """The longest part of the path that keeps the budget on the inputs of the search and, measured here, on others."""
    for step in reversed(path):
        if step.heads and step.increase <= budget and (verified := verify(step.heads)) <= budget:
            return Step(step.heads, verified)
    return Step((), 0.0)


@dataclass(frozen=True, eq=False)
class CostModel:
    """What removing heads is predicted to add.

    Attributes:
        slope: (H,) of the cost towards removal, so minus that of the gates.
        curvature: (H, H) mean outer product of the inputs' gradients.
        terms: how many tokens an input's cost is the mean of.
    """

    slope: Values
    curvature: Values
    terms: int = 1

    def block(self, choice: Choice, gone: Removed, factor: float = 1.0) -> Removed:
        """What is gone and the next few heads, one bundle after the other, that are predicted to cost least."""
        members = choice.membership
        sizes = members.sum(axis=1)
        slope, curvature = members @ self.slope, factor * members @ self.curvature @ members.T
        joint = np.zeros(len(members))  # curvature between each bundle and those of this block
        removed, target = list(gone), len(gone) + choice.step
        while len(removed) < target:
            added = (slope + np.diag(curvature) / 2 + joint) / sizes
            added[~choice.removable(removed)] = np.inf
            chosen = int(np.argmin(added))
            if added[chosen] == np.inf:
                break
            removed += choice.bundles[chosen]
            joint += curvature[chosen]
        return tuple(removed)


class Meter:
    """One metric on one set of inputs: how much worse it gets without some heads, each set measured once."""

    def __init__(self, evaluator: Evaluator, metric: Metric, report: Callable[[int], None]) -> None:
        self.evaluator, self.metric, self.report = evaluator, metric, report
        self.measured: dict[Removed, Values] = {(): evaluator.baseline[metric.name]}

    def values(self, heads: Removed) -> Values:
        """The metric without these heads, one value an input."""
        if heads not in self.measured:
            self.report(len(heads))
            self.measured[heads] = self.evaluator.without(heads)[self.metric.name]
        return self.measured[heads]

    def increase(self, heads: Removed) -> float:
        """How much worse the mean over the inputs is."""
        before, after = (float(self.values(some).mean()) for some in ((), heads))
        return self.metric.increase(before, after)


class Choice:
    """Which heads may go together and how many must stay.

    Args:
        heads: all heads, in model order.
        floor: heads that every layer keeps.
        shared: sets of layers with the same weights, whose heads go in all of them or in none.
    """

    def __init__(self, heads: Sequence[Head], floor: int = 0, shared: Sequence[Collection[int]] = ()) -> None:
        self.heads, self.floor = heads, floor
        self.bundles = bundles(heads, shared)
        self.step = max(1, round(_SHARE * len(heads)))
        self.membership = np.array([[float(head in bundle) for head in heads] for bundle in self.bundles])

    def removable(self, gone: Collection[Head]) -> NDArray[np.bool_]:
        """(bundles,) whether each may go after those that are gone."""
        left: dict[int, int] = {}
        for layer, head in self.heads:
            left[layer] = left.get(layer, 0) + ((layer, head) not in gone)
        return np.array([
            bundle[0] not in gone and all(left[layer] > self.floor for layer, _ in bundle) for bundle in self.bundles
        ])  # fmt: skip


def by_ranking(choice: Choice, values: Mapping[Head, float]) -> Callable[[Removed], list[Removed]]:
    """Proposals in the fixed order of a score."""
    model = CostModel(np.array([values[head] for head in choice.heads]), np.zeros((len(choice.heads),) * 2))

    def propose(gone: Removed) -> list[Removed]:
        return _longer(gone, [model.block(choice, gone)])

    return propose


def by_slopes(choice: Choice, evaluator: Evaluator, metric: Metric, seed: int) -> Callable[[Removed], list[Removed]]:
    """Proposals from slope and curvature of the model as pruned so far."""

    def propose(gone: Removed) -> list[Removed]:
        if not choice.removable(gone).any():
            return []
        model = cost_model(evaluator, metric, gone, seed + len(gone))
        return _longer(gone, [model.block(choice, gone, model.terms**power) for power in _POWERS])

    return propose


def _longer(gone: Removed, proposed: Iterable[Removed]) -> list[Removed]:
    """Each set once, and only those that remove something."""
    return [*{frozenset(heads): heads for heads in proposed if len(heads) > len(gone)}.values()]


def cost_model(evaluator: Evaluator, metric: Metric, gone: Removed, seed: int = 0) -> CostModel:
    """Slope and curvature of the metric; ranks and accuracies have none, there the task's loss stands in."""
    task, inputs = evaluator.task, evaluator.inputs
    said = [_leaf(one) for one in evaluator.observe(gone)]
    if metric.name == "divergence":
        cost = torch.stack([divergence(now, old) for now, old in zip(said, evaluator.reference, strict=True)])
    else:
        cost = task.loss(said, inputs)
    directions = [_gradients(cost.sum(), said)]
    if metric.name == "divergence":
        directions += _probe_directions(said, seed)
    slopes = _head_slopes(evaluator, gone, directions)
    rows = (slopes[1:] if len(slopes) > 1 else slopes).reshape(-1, slopes.shape[-1])
    name, output = next(iter(said[0].items()))
    if "logits" in name:
        return CostModel(-slopes[0].mean(axis=0), rows.T @ rows / len(rows), len(output))
    # A probe sums over the rows of an embedding, a divergence is their mean.
    shares = len(output) if metric.name == "divergence" else 1
    return CostModel(-slopes[0].mean(axis=0), rows.T @ rows / len(rows) / shares)


def _leaf(said: Said) -> Said:
    return {name: value.detach().requires_grad_() for name, value in said.items()}


def _gradients(scalar: torch.Tensor, said: Sequence[Said]) -> list[Said]:
    """The scalar's gradient with respect to what the model said on each input."""
    leaves = [value for one in said for value in one.values()]
    found = iter(torch.autograd.grad(scalar, leaves, allow_unused=True))
    return [{name: _or_zero(next(found), value) for name, value in one.items()} for one in said]


def _or_zero(gradient: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(like) if gradient is None else gradient


def _probe_directions(said: Sequence[Said], seed: int) -> list[list[Said]]:
    """Random directions of every input's output, as many for each."""
    drawn = []
    for number, one in enumerate(said):
        scalars = [probe for name, value in one.items() for probe in probes(name, value, seed + number)]
        drawn.append([_gradients(scalar, [one])[0] for scalar in scalars])
    return [list(direction) for direction in zip(*drawn, strict=True)]


def _head_slopes(evaluator: Evaluator, gone: Removed, directions: Sequence[Sequence[Said]]) -> Values:
    """(directions, inputs, heads) how fast the output moves along each direction when a head's gate opens.

    The directions are known before the backward passes, so these go a few inputs at a time even where the loss
    compares all inputs with each other (Gao et al. 2021, arXiv 2101.06983).
    """
    loaded, sites, task = evaluator.loaded, evaluator.sites, evaluator.task
    size = 1 if any(site.output_module is None for site in sites) else _STACK
    found, start = [], 0
    with masked_sites(loaded.model, sites, gone):
        for stack, count in stacks(loaded, evaluator.inputs, size):

            def along(stack: Any = stack, start: int = start, count: int = count) -> list[torch.Tensor]:
                said = split(task.read(loaded, stack), count)
                return [_product(said, direction[start : start + count]) for direction in directions]

            found.append(gate_gradients(loaded, sites, along, count))
            start += count
    return np.concatenate(found, axis=1)


def _product(said: Sequence[Said], direction: Sequence[Said]) -> torch.Tensor:
    return torch.stack([
        (one[name] * along[name]).sum() for one, along in zip(said, direction, strict=True) for name in one
    ]).sum()  # fmt: skip
