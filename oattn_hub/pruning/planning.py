"""From a report to a plan: which heads, by which score, and how many.

A score is only trusted as far as it was measured on the model at hand. A report with an evaluation says which score
costs least at the wanted fraction; without one, a quick evaluation is run if the model can be loaded, and otherwise the
user has to name a score.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from oattn_hub.errors import InvalidInput, LoadError, MissingDependency
from oattn_hub.progress import Progress, silent
from oattn_hub.pruning.plan import Head, PruningPlan, lowest, structure_of

if TYPE_CHECKING:
    from oattn_hub.pruning.evaluation import Evaluator
    from oattn_hub.report import Report
    from oattn_hub.report.evaluation import EvaluationSection

# Budget plans try this many of the best scores, each by bisection.
_CANDIDATES = 3


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
    inputs: int = 16,
    tokens: int = 64,
    seed: int = 0,
    progress: Progress = silent,
) -> PruningPlan:
    """Choose heads to remove: a fraction, named ones, or as many as a budget allows.

    Args:
        report: what is known about the model; its evaluation, if it has one, decides which score is used.
        fraction: part of all heads to remove, e.g. 0.2.
        heads: exactly these (layer, head) pairs.
        max_loss_increase: the largest set found whose measured cost stays within this budget: 0.01 allows the task's
            loss to get 1 % worse, or, for an embedder or a model without a task, a divergence of 0.01.
        metric: what the budget is about instead: ``loss``, ``accuracy``, ``mrr`` or ``divergence``.
        score: rank by this score instead of the one that was measured to cost least.
        min_heads_per_layer: leave at least so many heads in every layer; 0 lets whole layers go.
        model: the model, if it is not to be loaded from where the report says.
        data, inputs, tokens, seed: what to evaluate on, as in :func:`oattn_hub.pruning.evaluate`.
        progress: told about each evaluation.
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
    evaluation = {"model": model, "data": data, "inputs": inputs, "tokens": tokens, "seed": seed, "progress": progress}
    if max_loss_increase is not None:
        section = report.evaluation or _quick_evaluation(report, evaluation)
        return _within_budget(choice, section, max_loss_increase, metric, score, evaluation)
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
    ) -> PruningPlan:
        layers: dict[int, int] = {}
        for layer, _ in self.heads:
            layers[layer] = layers.get(layer, 0) + 1
        model = self.report.model
        floor = {"min_heads_per_layer": self.floor} if self.floor else {}
        return PruningPlan(
            heads=heads,
            n_heads=len(self.heads),
            structure=structure_of(layers),
            weights=weights,
            model_id=model.id,
            revision=model.revision,
            source=model.source or None,
            adapter=model.adapter or None,
            options=dict(model.options),
            score=score,
            chosen_by={**chosen_by, **floor},
            evaluations=evaluations,
            cost=cost,
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
    choice: _Choice,
    section: EvaluationSection,
    budget: float,
    about: str | None,
    score: str | None,
    evaluation: Mapping[str, Any],
) -> PruningPlan:
    if not budget >= 0:
        raise InvalidInput(f"max_loss_increase is {budget}; give a part such as 0.01 for 1 %.")
    evaluator = _evaluator(choice.report, evaluation)
    metrics = {metric.name: metric for metric in evaluator.task.metrics}
    if about is not None and about not in metrics:
        raise InvalidInput(f"metric is {about!r}; this model and its data give {', '.join(metrics)}.")
    metric = metrics[about] if about else evaluator.task.primary
    before = float(evaluator.baseline[metric.name].mean())

    def increase(heads: list[Head]) -> float:
        return metric.increase(before, float(evaluator.without(heads)[metric.name].mean()))

    ranked = [result.name for result in sorted(section.scores, key=lambda r: r.auc) if result.name != "random"]
    tried = {}
    for name in [score] if score else ranked[:_CANDIDATES]:
        order = partial(choice.lowest, section.values(name))
        tried[name] = largest_within(lambda count, order=order: increase(order(count)), len(section.heads), budget)  # type: ignore[misc]
    best = max(tried, key=lambda name: tried[name][0])
    count, found = tried[best]
    sign = -1 if metric.higher_is_better else 1
    cost = {
        "metric": metric.name,
        "title": metric.title,
        "before": before,
        "after": before * (1 + sign * found) if metric.relative else found,
        "increase": found,
        "inputs": evaluator.inputs.fingerprint,
    }
    chosen_by = {"max_loss_increase": budget, "metric": metric.name}
    heads = choice.lowest(section.values(best), count)
    return choice.plan(heads, best, chosen_by, evaluator.calls, cost, section.weights)


def largest_within(cost: Callable[[int], float], n: int, budget: float) -> tuple[int, float]:
    """The largest count found by bisection whose cost is within the budget, and that cost; 0 if none is.

    The cost need not grow with every head: bisection then finds one of the crossings, and what it returns was measured.

    >>> largest_within(lambda count: 0.004 * count, 100, 0.05)
    (12, 0.048)
    """
    low, high, found = 0, n, 0.0
    while low < high:
        middle = (low + high + 1) // 2
        value = cost(middle)
        if value <= budget:
            low, found = middle, value
        else:
            high = middle - 1
    return low, found


def _evaluator(report: Report, evaluation: Mapping[str, Any]) -> Evaluator:
    """The evaluation half of the data, with the task that fits it."""
    from oattn_hub.pruning.evaluation import Evaluator, held_out_inputs, load_subject
    from oattn_hub.pruning.sites import head_sites
    from oattn_hub.pruning.tasks import find_task

    loaded = load_subject(report, evaluation["model"])
    inputs = held_out_inputs(loaded, evaluation["data"], evaluation["inputs"], evaluation["tokens"], evaluation["seed"])
    return Evaluator(loaded, head_sites(loaded.model, report.model.adapter or None), inputs, find_task(loaded, inputs))
