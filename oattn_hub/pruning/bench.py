"""A model with inputs for every role: where plans are searched, verified, and measured as they are published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from oattn_hub.adapters import Adapter, AttentionSite
from oattn_hub.errors import InvalidInput
from oattn_hub.inputs.types import Data
from oattn_hub.models.options import LoadAgain
from oattn_hub.progress import Progress, silent
from oattn_hub.pruning.bounds import LEVEL, upper_bound
from oattn_hub.pruning.compensate import KINDS, TRIED, Compensator, Kind, Refits
from oattn_hub.pruning.evaluation import Evaluator, increase_interval
from oattn_hub.pruning.origin import Compensation
from oattn_hub.pruning.plain import check_values
from oattn_hub.pruning.roles import Roles, context_lengths, share_out
from oattn_hub.pruning.search import Effort, Meter
from oattn_hub.pruning.sites import adapter_of, weights_fingerprint
from oattn_hub.pruning.tasks import COUNTED, Metric, Task, find_task
from oattn_hub.pruning.units import Removed
from oattn_hub.report.cost import Cost, Look

if TYPE_CHECKING:
    from oattn_hub.inputs import CalibrationInputs
    from oattn_hub.models.load import LoadedModel
    from oattn_hub.pruning.tasks import Values


@dataclass(frozen=True)
class Question:
    """What a user asks to be measured, and on what.

    Attributes:
        metric: name of the metric; None is the task's own.
        data, calibration: what to measure on, and what to choose by; None is bundled.
        inputs: inputs to verify on; the search has half as many. None is as many as there are, up to 64
            (and 256 of short ones, which take no longer).
        tokens: the user's context length; None is 128, or what the model takes.
        lengths: all lengths to search and verify at, instead of ``tokens`` and four times as many.
        compensate: which compensations may be used; None measures which helps.
        permissions: what only the caller may grant to load the model.
        new_biases: whether a refit may give a bias to a projection that has none.
    """

    metric: str | None = None
    data: Data = None
    calibration: Data = None
    inputs: int | None = None
    tokens: int | None = None
    lengths: Sequence[int] | None = None
    compensate: Kind | bool | None = None
    adapter: str | None = None
    new_biases: bool = True
    seed: int = 0
    progress: Progress = field(default=silent)
    permissions: LoadAgain = field(default_factory=lambda: LoadAgain())

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Compensations to choose from."""
        if self.compensate is None:
            return TRIED
        if isinstance(self.compensate, bool):
            return ("refit",) if self.compensate else ("none",)
        if self.compensate not in KINDS:
            raise InvalidInput(f"compensate is {self.compensate!r}; choose from {', '.join(KINDS)}, True and False.")
        return (self.compensate,)


class Bench:
    """One model on one question: roles, task, metric, and meters for each role."""

    def __init__(self, loaded: LoadedModel, question: Question) -> None:
        self.loaded, self.question = loaded, question
        self.adapter: Adapter = adapter_of(loaded.model, question.adapter)
        self.sites: Sequence[AttentionSite] = self.adapter.sites
        check_values(self.sites)
        self.lengths = context_lengths(loaded, question.data, question.tokens, question.lengths)
        self.roles: Roles = share_out(
            loaded, question.data, question.calibration, question.inputs, self.lengths, question.seed
        )
        self.whole_task: Task = find_task(loaded, self.roles.check[0])
        self.metric = _metric(self.whole_task, question.metric)
        self.task = self.whole_task.about(self.metric)
        self.effort = Effort()

    @cached_property
    def compensator(self) -> Compensator:
        """Refits on the inputs that rankings see."""
        return Compensator(self.loaded, self.sites, self.fitted, new_biases=self.question.new_biases)

    @cached_property
    def fitted(self) -> CalibrationInputs:
        """What refits are fitted to, as the model is given it."""
        return self.whole_task.shown(self.roles.fit)

    def evaluator(self, inputs: CalibrationInputs) -> Evaluator:
        """The masked model on these inputs."""
        return Evaluator(self.loaded, self.sites, inputs, self.task)

    def meter(self, parts: Sequence[CalibrationInputs]) -> Meter:
        """The metric on these inputs."""
        return Meter([self.evaluator(part) for part in parts], self.metric, self.effort)

    @cached_property
    def choice(self) -> Meter:
        """Costs that decide."""
        return self.meter(self.roles.choice)

    @cached_property
    def judge(self) -> Meter:
        """What compares rankings and compensations: the task's smooth metric, where the budget's own counts answers."""
        if self.metric.name not in COUNTED:
            return self.choice
        return Meter(self.choice.evaluators, self.whole_task.primary, self.effort)

    @cached_property
    def check(self) -> Meter:
        """Costs that verify."""
        return self.meter(self.roles.check)

    @cached_property
    def last(self) -> Meter:
        """Costs that decide nothing."""
        return self.meter(self.roles.last)

    def best_kind(self, heads: Removed) -> Kind:
        """The compensation that costs least for these heads on inputs it was not fitted to; none where none helps."""
        kinds = self.question.kinds
        if len(kinds) == 1 or not heads:
            return kinds[0] if len(kinds) == 1 else "none"
        costs: dict[Kind, float] = {}
        for kind in reversed(kinds):
            self.question.progress("trials", len(costs), len(kinds))
            costs[kind] = self.judge.increase(heads, self.compensator.of_kind(kind))
        self.question.progress("trials", len(kinds), len(kinds))
        return min(costs, key=costs.__getitem__)

    def bounds(self, heads: Removed, compensator: Compensator) -> list[float]:
        """The one-sided bound of the cost on the verification inputs, for each length."""
        return self.check.bounds(heads, compensator, self.question.seed)

    def cost(self, heads: Removed, compensator: Compensator) -> Cost:
        """What a plan says about its cost: all of it measured on this very set, with these very weights."""
        self.question.progress("cost", 0, 2)
        verified = self._looks(self.check, self.roles.check, heads, compensator)
        self.question.progress("cost", 1, 2)
        last = self._looks(self.last, self.roles.last, heads, compensator)
        self.question.progress("cost", 2, 2)
        return self._cost(verified, last)

    def cost_of(self, student: LoadedModel) -> Cost:
        """The same of a model that is cut already, as it is: what it answers on the same inputs."""
        verified, last = (
            [self._look_at(student, part) for part in parts] for parts in (self.roles.check, self.roles.last)
        )
        return self._cost(verified, last)

    def _cost(self, verified: list[Look], last: list[Look]) -> Cost:
        return {
            **verified[0],
            "level": LEVEL,
            "lengths": verified,
            "last_look": last,
            "searched_on": self.roles.searched_on,
        }

    def _look_at(self, student: LoadedModel, part: CalibrationInputs) -> Look:
        evaluator, name = self.evaluator(part), self.metric.name
        now = self.task.measure(self.task.observe(student, part), evaluator.reference, part)
        return look(self.metric, part, evaluator.baseline[name], now[name], self.question.seed)

    def _looks(
        self, meter: Meter, parts: Sequence[CalibrationInputs], heads: Removed, compensator: Compensator
    ) -> list[Look]:
        after = meter.values(heads, compensator)
        return [
            look(self.metric, part, old, new, self.question.seed)
            for part, old, new in zip(parts, meter.before, after, strict=True)
        ]

    def compensation(self, kind: Kind, refits: Refits) -> Compensation | None:
        """What a plan says about its refits."""
        if not refits:
            return None
        return {
            "kind": kind,
            "layers": len(refits),
            "strengths": self.compensator.strengths(refits) if kind == "refit" else None,
            "fitted_on": self.fitted.description,
            "inputs": self.fitted.fingerprint,
            "n_inputs": len(self.fitted),
        }

    @property
    def weights(self) -> str:
        """Which weights all this is about."""
        return weights_fingerprint(self.sites)


def look(metric: Metric, inputs: CalibrationInputs, before: Values, after: Values, seed: int) -> Look:
    """One measurement in full: both means, the increase with its interval and its one-sided bound, and on what."""
    low, high = increase_interval(metric, before, after, seed)
    return {
        "metric": metric.name,
        "title": metric.title,
        "tokens": inputs.tokens,
        "before": float(before.mean()),
        "after": float(after.mean()),
        "increase": metric.increase(float(before.mean()), float(after.mean())),
        "low": low,
        "high": high,
        "upper": upper_bound(metric, before, after, seed=seed),
        "n_inputs": len(inputs),
        "inputs": inputs.fingerprint,
        "verified_on": inputs.description,
    }


def _metric(task: Task, about: str | None) -> Metric:
    metrics: Mapping[str, Metric] = {metric.name: metric for metric in task.metrics}
    if about is not None and about not in metrics:
        raise InvalidInput(f"metric is {about!r}; this model and its data give {', '.join(metrics)}.")
    return metrics[about] if about else task.primary
