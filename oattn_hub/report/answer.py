"""The answer to the question on the cover, as data: which heads can go, which must stay, and at what measured cost.

Three sources, the first that is there: a plan whose cost was verified, the curves of an evaluation, and nothing (then
only entropies are known, and they say how a head attends, not what it costs to lose it). ``findings`` puts it in words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, Self

from oattn_hub.records import Head, JsonRecord
from oattn_hub.report.cost import Cost, Look

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
    def cost(self) -> Cost | None: ...


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
    cost: Cost = field(default_factory=lambda: Cost())

    @classmethod
    def of_plan(cls, plan: Plan) -> Self:
        """What the report keeps of a plan."""
        return cls(tuple(sorted(plan.heads)), plan.score, plan.cost or Cost())

    @property
    def looks(self) -> Sequence[Look]:
        """What it was measured to cost at every length; one look where there is one length."""
        return self.cost.get("lengths") or [self.cost]

    @property
    def bound(self) -> float | None:
        """The most that it costs at any length: the 95 % bound, or the upper end of the 95 % interval; None if that
        was not measured."""
        known = [look for look in self.looks if "upper" in look or "high" in look]
        return max(look.get("upper", look["high"]) for look in known) if len(known) == len(self.looks) else None

    @property
    def lengths(self) -> list[int]:
        """The numbers of tokens that this holds for, where they are known."""
        return [tokens for look in self.looks if (tokens := look.get("tokens"))]


@dataclass(frozen=True)
class Answer:
    """What a report says about every head.

    Args:
        heads: all heads, in model order.
        removal: the heads that can go together; None if no measured set is cheap enough, or nothing was measured.
        alone: what losing one head alone costs, for every head it was measured on.
        intervals: the 95 % intervals of these costs, where they are known.
        prices: measured sets of growing size, cheapest way each.
        planned: True if the removal is a plan's, False if it is read off an evaluation.
    """

    heads: tuple[Head, ...]
    removal: Removal | None
    alone: Mapping[Head, float]
    intervals: Mapping[Head, tuple[float, float]]
    prices: tuple[Removal, ...]
    planned: bool

    @property
    def measured(self) -> bool:
        """Whether anything is known about cost."""
        return bool(self.prices or self.alone or self.removal)

    @property
    def further(self) -> tuple[Removal, ...]:
        """Measured sets that are larger than the removal: what it costs to go on, with nothing refitted."""
        reached = len(self.removal.heads) if self.removal else 0
        return tuple(price for price in self.prices if len(price.heads) > reached and price.bound is not None)

    @cached_property
    def stay(self) -> tuple[Head, ...]:
        """Heads that surely cost more than the tolerance when they go alone, the costliest first."""
        removed = set(self.removal.heads) if self.removal else set()
        costly = [head for head in self.alone if self._interval(head)[0] > TOLERANCE and head not in removed]
        return tuple(sorted(costly, key=lambda head: -self.alone[head]))

    @cached_property
    def unclear(self) -> tuple[Head, ...]:
        """Heads of which not even the cost alone is known to be below or above the tolerance."""
        heads = (head for head, verdict in self.verdicts.items() if verdict == UNSURE and head in self.alone)
        return tuple(head for head in heads if self._interval(head)[0] <= TOLERANCE < self._interval(head)[1])

    def _interval(self, head: Head) -> tuple[float, float]:
        """Of the cost alone; the cost itself in a report of before intervals were kept."""
        return self.intervals.get(head, (self.alone[head], self.alone[head]))

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
    ablated = section is not None and any(score.name == "ablation" for score in section.scores)
    alone = section.values("ablation") if section and ablated else {}
    intervals = section.intervals("ablation") if section and ablated else {}
    prices = _prices(section) if section else ()
    planned = report.removal
    return Answer(heads, planned or _cheapest(prices), alone, intervals, prices, planned is not None)


def measured_removal(section: EvaluationSection) -> Removal | None:
    """The largest set that an evaluation measured to cost at most the tolerance; None if there is none."""
    return _cheapest(_prices(section))


def _cheapest(prices: Sequence[Removal]) -> Removal | None:
    cheap = [price for price in prices if price.bound is not None and price.bound <= TOLERANCE]
    return cheap[-1] if cheap else None


def _prices(section: EvaluationSection) -> tuple[Removal, ...]:
    """At every measured fraction, the set whose cost has the lowest upper bound."""
    candidates = [result for result in section.scores if result.name != "random"]
    if not candidates:
        return ()
    steps = range(1, len(section.fractions))
    return tuple(
        _measured_set(
            section, min(candidates, key=lambda r: r.curves["divergence"].high[step]), step, compared=len(candidates)
        )
        for step in steps
    )


def _measured_set(section: EvaluationSection, result: ScoreResult, step: int, compared: int) -> Removal:
    curve, metric = result.curves["divergence"], section.metrics[0]
    count = round(section.fractions[step] * len(section.heads))
    order = sorted(range(len(section.heads)), key=lambda index: result.values[index])
    cost: Cost = {
        "metric": metric.name,
        "title": metric.title,
        "increase": curve.mean[step],
        "low": curve.low[step],
        "high": curve.high[step],
        "n_inputs": section.n_inputs,
        "verified_on": section.evaluation,
        "compared": compared,  # rankings among which these very inputs chose
    }
    return Removal(tuple(sorted(section.heads[index] for index in order[:count])), result.title, cost)
