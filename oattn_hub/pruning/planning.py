"""From a report to a plan: which heads, and how many.

A score is only trusted as far as it was measured on the model at hand. A report with an evaluation says which score
costs least at the wanted fraction; without one, a quick evaluation is run if the model can be loaded, and otherwise the
user has to name a score. A budget needs the model: heads are searched on some inputs, the plan is verified on others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from oattn_hub.errors import InvalidInput, LoadError, MissingDependency
from oattn_hub.progress import Progress, silent
from oattn_hub.pruning.heads import lowest, structure_of
from oattn_hub.pruning.plan import PruningPlan
from oattn_hub.records import Head

if TYPE_CHECKING:
    from oattn_hub.inputs import CalibrationInputs
    from oattn_hub.models.load import LoadedModel
    from oattn_hub.pruning.search import Meter
    from oattn_hub.pruning.tasks import Metric, Task
    from oattn_hub.report import Report
    from oattn_hub.report.evaluation import EvaluationSection


def plan_from_report(
    report: Report,
    fraction: float | None = None,
    *,
    heads: Iterable[Head] | None = None,
    max_loss_increase: float | None = None,
    metric: str | None = None,
    score: str | None = None,
    min_heads_per_layer: int = 0,
    model: Any = None,
    data: Any = None,
    calibration: Any = None,
    inputs: int = 16,
    tokens: int = 64,
    seed: int = 0,
    progress: Progress = silent,
    **permissions: Any,
) -> PruningPlan:
    """Choose heads to remove: a fraction, named ones, or as many as a budget allows.

    Args:
        report: what is known about the model; its evaluation, if it has one, decides which score is used.
        fraction: part of all heads to remove, e.g. 0.2.
        heads: exactly these (layer, head) pairs.
        max_loss_increase: the largest set found (see :mod:`oattn_hub.pruning.search`) whose cost, measured on inputs
            that the search never saw, stays within this budget: 0.01 allows the task's loss to get 1 % worse, or, for
            an embedder or a model without a task, a divergence of 0.01.
        metric: what the budget is about instead: ``loss``, ``accuracy``, ``mrr`` or ``divergence``.
        score: rank by this score instead of the one that was measured to cost least, or instead of searching.
        min_heads_per_layer: leave at least so many heads in every layer; 0 lets whole layers go.
        model: the model, if it is not to be loaded from where the report says.
        data, calibration, inputs, tokens, seed: what to evaluate on, as in :func:`oattn_hub.pruning.evaluate`. A
            budget is verified on ``inputs`` inputs, and searched on twice as many of the calibration data.
        progress: told about each evaluation.
        permissions: what only the caller may grant to load the model: ``trust_remote_code``, ``token`` … (see
            ``PERMISSIONS`` in :mod:`oattn_hub.models.load`); a report never grants any.
    """
    wanted = {"fraction": fraction, "heads": heads, "max_loss_increase": max_loss_increase}
    given = [name for name, value in wanted.items() if value is not None]
    if len(given) != 1:
        raise InvalidInput(
            f"Give one of fraction, heads and max_loss_increase; got {', '.join(given) or 'none of them'}."
        )
    choice = _Choice(report, min_heads_per_layer)
    if heads is not None:
        return choice.plan(choice.checked(heads), "by hand", {"heads": "named"})
    if fraction is not None and not 0 <= fraction <= 1:
        raise InvalidInput(f"fraction is {fraction}; give a part of the heads between 0 and 1.")
    evaluation = {
        "model": model,
        "data": data,
        "calibration": calibration,
        "inputs": inputs,
        "tokens": tokens,
        "seed": seed,
        "progress": progress,
        **permissions,
    }
    if max_loss_increase is not None:
        return _within_budget(choice, max_loss_increase, metric, score, evaluation)
    assert fraction is not None
    return _by_fraction(choice, fraction, score, evaluation)


@dataclass(frozen=True)
class _Choice:
    """The heads a report knows, and how a plan for its model is written."""

    report: Report
    floor: int

    @property
    def heads(self) -> list[Head]:
        return [(record.layer, record.head) for record in self.report.heads]

    @property
    def shared(self) -> list[list[int]]:
        """Layers that share one module: their names differ only in the pass."""
        modules: dict[str, set[int]] = {}
        for record in self.report.heads:
            modules.setdefault(record.layer_name.split("#")[0], set()).add(record.layer)
        return [sorted(layers) for layers in modules.values() if len(layers) > 1]

    def checked(self, heads: Iterable[Head]) -> list[Head]:
        known = set(self.heads)
        chosen = sorted({(int(layer), int(head)) for layer, head in heads})
        if unknown := [head for head in chosen if head not in known]:
            raise InvalidInput(f"The model has no head {unknown[0]}; layers are {sorted({h[0] for h in known})}.")
        return chosen

    def lowest(self, values: Mapping[Head, float], count: int) -> list[Head]:
        return lowest(values, count, self.floor, self.shared)

    def plan(
        self,
        heads: list[Head],
        score: str,
        chosen_by: Mapping[str, Any],
        evaluations: int = 0,
        cost: Mapping[str, Any] | None = None,
        weights: str = "",
        loaded: LoadedModel | None = None,
    ) -> PruningPlan:
        layers: dict[int, int] = {}
        for layer, _ in self.heads:
            layers[layer] = layers.get(layer, 0) + 1
        floor = {"min_heads_per_layer": self.floor} if self.floor else {}
        return PruningPlan(
            heads=heads,
            n_heads=len(self.heads),
            structure=structure_of(layers),
            weights=weights,
            model=self.report.model,
            score=score,
            chosen_by={**chosen_by, **floor},
            evaluations=evaluations,
            cost=cost,
            loaded=loaded,
            evaluation=self.report.evaluation,
        )


def _by_fraction(choice: _Choice, fraction: float, score: str | None, evaluation: Mapping[str, Any]) -> PruningPlan:
    section = choice.report.evaluation
    count = round(fraction * len(choice.heads))
    if section is None and score == "haar":  # all this needs is in the report
        values = {(record.layer, record.head): record.rank for record in choice.report.heads}
        return choice.plan(choice.lowest(values, count), "haar", {"fraction": fraction})
    if section is None or (score is not None and score not in {result.name for result in section.scores}):
        section = _quick_evaluation(choice.report, evaluation, None if score is None else [score])
    result = section.score(score) if score is not None else section.best(fraction)
    metric = section.metrics[0]
    cost = {
        "metric": metric.name,
        "title": metric.title,
        "before": metric.baseline,
        "after": section.cost_at(result.name, fraction),
        "inputs": section.evaluation_fingerprint,
    }
    found = choice.lowest(section.values(result.name), count)
    how = {"fraction": fraction, "score_by": "named" if score else "measured"}
    return choice.plan(found, result.name, how, section.evaluations, cost, section.weights)


def _quick_evaluation(
    report: Report, evaluation: Mapping[str, Any], scores: list[str] | None = None
) -> EvaluationSection:
    """Measure on the spot; a model that is not here is the user's decision, not ours."""
    from oattn_hub.pruning.evaluation import evaluate

    try:
        return evaluate(report, scores=scores or ["haar", "displacement", "output", "gradient"], **evaluation)
    except (LoadError, MissingDependency) as error:
        raise InvalidInput(
            f"No score was measured on {report.model.id} yet, and the model cannot be loaded here ({error}) "
            "Run `oattn evaluate` where the model is, or name a score, e.g. plan(fraction=0.1, score='haar')."
        ) from error


def _within_budget(
    choice: _Choice, budget: float, about: str | None, score: str | None, evaluation: Mapping[str, Any]
) -> PruningPlan:
    from oattn_hub.models.load import PERMISSIONS
    from oattn_hub.pruning.evaluation import Evaluator, alternating, disjoint_inputs
    from oattn_hub.pruning.scores import Subject, get_score
    from oattn_hub.pruning.search import Choice, Meter, by_ranking, by_slopes, settle, walk
    from oattn_hub.pruning.sites import head_sites, weights_fingerprint
    from oattn_hub.pruning.tasks import find_task

    if not budget >= 0:
        raise InvalidInput(f"max_loss_increase is {budget}; give a part such as 0.01 for 1 %.")
    permissions = {name: evaluation[name] for name in PERMISSIONS if name in evaluation}
    loaded = _model_at_hand(choice.report, evaluation["model"], **permissions)
    seed, count = evaluation["seed"], evaluation["inputs"]
    sources = (evaluation["calibration"], evaluation["data"])
    searched, verified = disjoint_inputs(loaded, *sources, 2 * count, count, evaluation["tokens"], seed)
    proposing, choosing = alternating(searched)
    sites, task = head_sites(loaded.model, choice.report.model.adapter or None), find_task(loaded, verified)
    metric = _metric(task, about)

    def meter(stage: str, inputs: CalibrationInputs) -> Meter:
        told = partial(evaluation["progress"], stage, total=len(choice.heads))
        return Meter(Evaluator(loaded, sites, inputs, task), metric, told)

    search, check = meter("search", choosing), meter("verification", verified)
    removable = Choice(choice.heads, choice.floor, choice.shared)
    if score is None:
        propose = by_slopes(removable, Evaluator(loaded, sites, proposing, task), metric, seed)
    else:
        subject = Subject(loaded, proposing, task, choice.report, choice.report.model.adapter or None, seed)
        values = get_score(score).measure(subject)
        propose = by_ranking(removable, dict(zip(subject.heads, values.tolist(), strict=True)))
    path = walk(propose, search.increase, budget)
    heads = settle(path, check.increase, budget).heads
    chosen_by = {
        "max_loss_increase": budget,
        "metric": metric.name,
        "rounds": len(path) - 1,
        "search_evaluations": search.evaluator.calls,
        "verifications": check.evaluator.calls,
    }
    calls = search.evaluator.calls + check.evaluator.calls
    cost = {**_verified_cost(check, heads, seed), "searched_on": searched.description}
    return choice.plan(sorted(heads), score or "search", chosen_by, calls, cost, weights_fingerprint(sites), loaded)


def _verified_cost(check: Meter, heads: tuple[Head, ...], seed: int) -> dict[str, Any]:
    """What the plan says about its cost: all of it measured on the inputs that the search never saw."""
    from oattn_hub.pruning.evaluation import increase_interval

    before, after = check.values(()), check.values(heads)
    low, high = increase_interval(check.metric, before, after, seed)
    inputs = check.evaluator.inputs
    return {
        "metric": check.metric.name,
        "title": check.metric.title,
        "before": float(before.mean()),
        "after": float(after.mean()),
        "increase": check.increase(heads),
        "low": low,
        "high": high,
        "inputs": inputs.fingerprint,
        "n_inputs": len(inputs),
        "verified_on": inputs.description,
    }


def _metric(task: Task, about: str | None) -> Metric:
    metrics = {metric.name: metric for metric in task.metrics}
    if about is not None and about not in metrics:
        raise InvalidInput(f"metric is {about!r}; this model and its data give {', '.join(metrics)}.")
    return metrics[about] if about else task.primary


def _model_at_hand(report: Report, model: Any, **permissions: Any) -> LoadedModel:
    from oattn_hub.pruning.evaluation import load_subject

    try:
        return load_subject(report, model, **permissions)
    except (LoadError, MissingDependency) as error:
        raise InvalidInput(
            f"A budget is kept by measuring, and {report.model.id} cannot be loaded here ({error}) "
            "Give the model, or plan a fraction of the heads instead, e.g. plan(fraction=0.1, score='haar')."
        ) from error
