"""The answer to the question on the cover, as data: which heads can go, which must stay, and at what measured cost.

Three sources, the first that is there: a plan whose cost was verified, the curves of an evaluation, and nothing (then
only entropies are known, and they say how a head attends, not what it costs to lose it). ``findings`` puts it in words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Self

from oattn_hub.records import Head, JsonRecord

if TYPE_CHECKING:
    from oattn_hub.report.evaluation import EvaluationSection, ScoreResult
    from oattn_hub.report.report import Report

TOLERANCE = 0.02  # a divergence that counts as small: of cosines, or in nats
GO, STAY, UNSURE = "can go", "must stay", "not sure"


class Plan(Protocol):
    """What is read of a pruning plan."""

    @property
    def heads(self) -> Sequence[Head]: ...
    @property
    def score(self) -> str: ...
    @property
    def cost(self) -> Mapping[str, Any] | None: ...


@dataclass(frozen=True)
class Removal(JsonRecord):
    """A set of heads, and what losing all of them was measured to cost.

    Args:
        heads: (layer, head) pairs.
        chosen_by: the score or search that chose them.
        cost: of a plan as the plan says it (``increase``, ``low``, ``high``, ``metric`` …); empty if not measured.
    """

    heads: tuple[Head, ...]
    chosen_by: str
    cost: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_plan(cls, plan: Plan) -> Self:
        """What the report keeps of a plan."""
        return cls(tuple(sorted(plan.heads)), plan.score, dict(plan.cost or {}))

    @property
    def bound(self) -> float | None:
        """The most that it costs: the upper end of the 95 % interval; None if that was not measured."""
        high = self.cost.get("high")
        return None if high is None else float(high)


@dataclass(frozen=True)
class Answer:
    """What a report says about every head.

    Args:
        heads: all heads, in model order.
        removal: the heads that can go together; None if no measured set is cheap enough, or nothing was measured.
        alone: what losing one head alone costs, for every head it was measured on.
        prices: measured sets of growing size, cheapest way each.
        planned: True if the removal is a plan's, False if it is read off an evaluation.
    """

    heads: tuple[Head, ...]
    removal: Removal | None
    alone: Mapping[Head, float]
    prices: tuple[Removal, ...]
    planned: bool

    @property
    def measured(self) -> bool:
        """Whether anything is known about cost."""
        return bool(self.prices or self.alone or self.removal)

    @cached_property
    def stay(self) -> tuple[Head, ...]:
        """Heads that cost more than the tolerance when they go alone, the costliest first."""
        gone = set(self.removal.heads) if self.removal else set()
        dear = [head for head, cost in self.alone.items() if cost > TOLERANCE and head not in gone]
        return tuple(sorted(dear, key=lambda head: -self.alone[head]))

    @cached_property
    def verdicts(self) -> dict[Head, str]:
        """One of ``can go``, ``must stay`` and ``not sure`` for every head; empty if nothing was measured."""
        if not self.measured:
            return {}
        known = {**dict.fromkeys(self.stay, STAY), **dict.fromkeys(self.removal.heads if self.removal else (), GO)}
        return {head: known.get(head, UNSURE) for head in self.heads}


def answer(report: Report) -> Answer:
    """Read the answer off a report."""
    heads = tuple((record.layer, record.head) for record in report.heads)
    section = report.evaluation
    alone = section.values("ablation") if section and any(s.name == "ablation" for s in section.scores) else {}
    prices = _prices(section) if section else ()
    planned = report.removal
    cheap = [price for price in prices if price.bound is not None and price.bound <= TOLERANCE]
    return Answer(heads, planned or (cheap[-1] if cheap else None), alone, prices, planned is not None)


def _prices(section: EvaluationSection) -> tuple[Removal, ...]:
    """At every measured fraction, the set whose cost has the lowest upper bound."""
    candidates = [result for result in section.scores if result.name != "random"]
    if not candidates:
        return ()
    steps = range(1, len(section.fractions))
    return tuple(
        _measured_set(section, min(candidates, key=lambda result: result.curves["divergence"].high[step]), step)
        for step in steps
    )


def _measured_set(section: EvaluationSection, result: ScoreResult, step: int) -> Removal:
    curve, metric = result.curves["divergence"], section.metrics[0]
    count = round(section.fractions[step] * len(section.heads))
    order = sorted(range(len(section.heads)), key=lambda index: result.values[index])
    cost = {
        "metric": metric.name,
        "title": metric.title,
        "increase": curve.mean[step],
        "low": curve.low[step],
        "high": curve.high[step],
        "n_inputs": section.n_inputs,
        "verified_on": section.evaluation,
    }
    return Removal(tuple(sorted(section.heads[index] for index in order[:count])), result.title, cost)
