"""From a report to a plan: which heads, and how many.

A score is only trusted as far as it was measured on the model at hand. A report with an evaluation says which score
costs least at the wanted fraction; without one, rankings are tried if the model can be loaded, and otherwise the user
has to name a score. A budget needs the model: heads are searched on some inputs, the plan is verified on others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Unpack

from oattn_hub.errors import InvalidInput, LoadError, MissingDependency, OattnError
from oattn_hub.inputs.types import Data
from oattn_hub.models.offloaded import is_offloaded
from oattn_hub.models.options import LoadAgain
from oattn_hub.progress import Progress, silent
from oattn_hub.pruning.alignment import alignment_heads
from oattn_hub.pruning.bench import Bench, Question
from oattn_hub.pruning.bounds import fixed_sequence
from oattn_hub.pruning.heads import check_apart, check_known, check_whole, lowest, passes_of_modules, structure_of
from oattn_hub.pruning.origin import ChosenBy, Compensation
from oattn_hub.pruning.plan import PruningPlan
from oattn_hub.pruning.scores import Subject, get_score
from oattn_hub.pruning.search import RANKINGS, Search, by_head
from oattn_hub.pruning.sites import shared_layers
from oattn_hub.pruning.units import Choice, Removed, Shape, Unit
from oattn_hub.records import Head
from oattn_hub.report.cost import Cost

if TYPE_CHECKING:
    from oattn_hub.models.load import LoadedModel, Source
    from oattn_hub.pruning.compensate import Kind, Refits
    from oattn_hub.pruning.tasks import Metric
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
    keep: Iterable[Head] = (),
    unit: Unit = "heads",
    shape: Shape = "free",
    compensate: Kind | bool | None = None,
    model: Source | None = None,
    data: Data = None,
    calibration: Data = None,
    inputs: int | None = None,
    tokens: int | None = None,
    lengths: Sequence[int] | None = None,
    seed: int = 0,
    progress: Progress = silent,
    **permissions: Unpack[LoadAgain],
) -> PruningPlan:
    """Choose heads to remove: a fraction, named ones, or as many as a budget allows.

    ``plan.cost`` is measured on exactly these heads and weights; where no model is at hand it is None, no estimate.

    Args:
        report: what is known about the model; its evaluation, if it has one, decides which score ranks a fraction.
        fraction, heads: a part of all heads, e.g. 0.2, or exactly these.
        max_loss_increase: the largest set found whose cost, at every length and with 95 % confidence, is at most this:
            0.01 lets the loss get 1 % worse, or, where there is no task, a divergence (1 - cosine, KL) be 0.01.
        metric: what the budget is about instead: ``loss``, ``accuracy``, ``mrr`` or ``divergence``.
        score: rank by this score (or ``fisher``, ``obs``) instead of what was measured to cost least.
        min_heads_per_layer, keep: what stays at any cost. A budget also leaves the heads that Whisper reads times off.
        unit, shape: ``heads``, key/value ``groups`` or ``layers``; ``free``, ``even`` in a layer, ``uniform`` over all.
        compensate: ``"refit"``, ``"bias"``, ``"none"``; None is what was measured to cost least on inputs of its own.
        model: the model, if it is not to be loaded from where the report says.
        data, calibration: what to measure on, and what to choose by; None is bundled (:mod:`oattn_hub.pruning.roles`).
        inputs: inputs to verify on; the search has half as many. None is all there are, up to 64 (short ones: 256).
        tokens, lengths: your context length (None: 128), verified also at four times as many; or all lengths.
        seed, progress: of inputs, random signs and bootstrap; called after each evaluation.
        permissions: what only the caller may grant to load the model; a report never grants any.
    """
    _check_wish(fraction, heads, max_loss_increase)
    question = Question(
        metric, data, calibration, inputs, tokens, lengths, compensate, report.model.adapter or None,
        shape != "uniform", seed, progress, permissions,
    )  # fmt: skip
    choice = _Choice(report, min_heads_per_layer, unit, shape, frozenset((int(a), int(b)) for a, b in keep))
    choice.checked(choice.keep)
    if heads is not None:
        chosen = choice.checked(heads)
        check_apart(chosen, choice.keep)
        return _measured(choice, chosen, "by hand", {"heads": "named"}, _refitting(question, choice, chosen), model)
    if max_loss_increase is not None:
        return _within_budget(choice, max_loss_increase, score, question, model)
    return _by_fraction(choice, fraction or 0.0, score, question, model)


def _check_wish(fraction: float | None, heads: Iterable[Head] | None, max_loss_increase: float | None) -> None:
    wanted = {"fraction": fraction, "heads": heads, "max_loss_increase": max_loss_increase}
    given = [name for name, value in wanted.items() if value is not None]
    if len(given) != 1:
        raise InvalidInput(
            f"Give one of fraction, heads and max_loss_increase; got {', '.join(given) or 'none of them'}."
        )
    if fraction is not None and not 0 <= fraction <= 1:
        raise InvalidInput(f"fraction is {fraction}; give a part of the heads between 0 and 1.")
    if max_loss_increase is not None and not max_loss_increase >= 0:
        raise InvalidInput(f"max_loss_increase is {max_loss_increase}; give a part such as 0.01 for 1 %.")


def _refitting(question: Question, choice: _Choice, heads: Sequence[Head]) -> Question:
    """Nothing is refitted where heads go in some passes of a shared layer only, as all passes would feel it."""
    try:
        check_whole(heads, choice.shared)
    except InvalidInput:
        if question.compensate not in (None, False, "none"):
            raise
        return replace(question, compensate="none")
    return question


@dataclass(frozen=True)
class _Choice:
    """The heads a report knows, and how a plan for its model is written."""

    report: Report
    floor: int
    unit: Unit = "heads"
    shape: Shape = "free"
    keep: frozenset[Head] = frozenset()

    @property
    def heads(self) -> list[Head]:
        return [(record.layer, record.head) for record in self.report.heads]

    @property
    def shared(self) -> list[list[int]]:
        """Layers that share one module: their names differ only in the pass."""
        return passes_of_modules((record.layer, record.layer_name) for record in self.report.heads)

    def checked(self, heads: Iterable[Head]) -> list[Head]:
        chosen = sorted({(int(layer), int(head)) for layer, head in heads})
        check_known(chosen, self.heads)
        return chosen

    def lowest(self, values: Mapping[Head, float], count: int) -> list[Head]:
        most = min(count, len(values) - len(self.keep))
        prices = {head: float("inf") if head in self.keep else value for head, value in values.items()}
        return [head for head in lowest(prices, most, self.floor, self.shared) if head not in self.keep]

    def plan(
        self,
        heads: list[Head],
        score: str,
        chosen_by: ChosenBy,
        evaluations: int = 0,
        cost: Cost | None = None,
        weights: str = "",
        compensation: Compensation | None = None,
        refits: Refits | None = None,
        bench: Bench | None = None,
    ) -> PruningPlan:
        layers: dict[int, int] = {}
        for layer, _ in self.heads:
            layers[layer] = layers.get(layer, 0) + 1
        how = ChosenBy(**chosen_by)
        if self.floor:
            how["min_heads_per_layer"] = self.floor
        if self.keep:
            how["keep"] = sorted(self.keep)
        if self.unit != "heads":
            how["unit"] = self.unit
        if self.shape != "free":
            how["shape"] = self.shape
        return PruningPlan(
            heads=heads,
            n_heads=len(self.heads),
            structure=structure_of(layers),
            weights=weights,
            model=self.report.model,
            score=score,
            chosen_by=how,
            evaluations=evaluations,
            cost=cost,
            compensation=compensation,
            refits=refits,
            loaded=bench.loaded if bench is not None else None,
            bound=bench.adapter if bench is not None else None,
            evaluation=self.report.evaluation,
        )


def _by_fraction(
    choice: _Choice, fraction: float, score: str | None, question: Question, model: Source | None
) -> PruningPlan:
    count = round(fraction * len(choice.heads))
    section = choice.report.evaluation
    how: ChosenBy = {"fraction": fraction, "score_by": "named" if score else "measured"}
    if section is None and score == "haar":  # all this needs is in the report
        values: Mapping[Head, float] = {(record.layer, record.head): record.rank for record in choice.report.heads}
        return _measured(choice, choice.lowest(values, count), "haar", {"fraction": fraction}, question, model)
    plain = (choice.unit, choice.shape) == ("heads", "free")
    if section is not None and plain and (score is None or score in {result.name for result in section.scores}):
        result = section.score(score) if score is not None else section.best(fraction)
        found = choice.lowest(section.values(result.name), count)
        return _measured(choice, found, result.name, how, question, model, section)
    bench = _bench_at_hand(
        choice.report,
        model,
        question,
        "No score was measured on {} yet, so the model is needed; or name a score (score='haar', --score haar).",
    )
    search, ranking, kind, trials = _search(choice, score, bench)
    heads = tuple(sorted(search.compensating(kind).grown(ranking, count)))
    return _finished(choice, bench, heads, kind, ranking, {**how, "trials": trials, **_left_alone(bench)})


def _measured(
    choice: _Choice,
    heads: list[Head],
    score: str,
    how: ChosenBy,
    question: Question,
    model: Source | None,
    section: EvaluationSection | None = None,
) -> PruningPlan:
    """A plan for these heads with what they cost; where the model is not at hand, with what is known, or nothing."""
    try:
        bench = Bench(_load(choice.report, model, question), question)
    except (OattnError, MissingDependency) as error:
        if model is not None or question.data is not None:
            raise
        how = {**how, "not_measured": str(error)}
        weights = section.weights if section is not None else ""
        return choice.plan(heads, score, how, cost=_known_cost(section, score, heads), weights=weights)
    removed = tuple(heads)
    return _finished(choice, bench, removed, bench.best_kind(removed), score, how)


def _known_cost(section: EvaluationSection | None, score: str, heads: list[Head]) -> Cost | None:
    """What a report's evaluation measured on exactly these heads; nothing where it measured others."""
    if section is None:
        return None
    values, metric = section.values(score), section.metrics[0]
    order = sorted(values, key=values.__getitem__)
    for number, fraction in enumerate(section.fractions):
        if sorted(order[: round(fraction * len(order))]) == heads:
            curve = section.score(score).curves[metric.name]
            return {
                "metric": metric.name,
                "title": metric.title,
                "before": metric.baseline,
                "after": curve.mean[number],
                "increase": curve.mean[number] - metric.baseline,
                "low": curve.low[number] - metric.baseline,
                "high": curve.high[number] - metric.baseline,
                "n_inputs": section.n_inputs,
                "inputs": section.evaluation_fingerprint,
                "verified_on": section.evaluation,
                "compared": sum(result.name != "random" for result in section.scores),
            }
    return None


def _finished(choice: _Choice, bench: Bench, heads: Removed, kind: Kind, score: str, how: ChosenBy) -> PruningPlan:
    """The plan with all that was measured on exactly these heads, and the weights it was measured with."""
    compensator = bench.compensator.of_kind(kind) if heads else bench.compensator
    cost = bench.cost(heads, compensator)
    refits = compensator.refits(heads)
    return choice.plan(
        sorted(heads),
        score,
        {**how, "effort": bench.effort.to_json()},
        bench.effort.evaluations,
        cost,
        bench.weights,
        bench.compensation(kind, refits),
        refits,
        bench,
    )


def _search(choice: _Choice, score: str | None, bench: Bench) -> tuple[Search, str, Kind, dict[str, float]]:
    """A search by the ranking and with the compensation that cost least in a trial, or by those named."""
    keep = choice.keep | alignment_heads(bench.loaded, bench.sites)
    rules = Choice.of(
        bench.sites,
        choice.heads,
        floor=choice.floor,
        shared=shared_layers(bench.sites),
        unit=choice.unit,
        shape=choice.shape,
        keep=keep,
    )
    scores = {}
    if score is not None and score not in RANKINGS:
        subject = Subject(
            bench.loaded, bench.roles.rank, bench.whole_task, choice.report, bench.question.adapter, bench.question.seed
        )
        scores[score] = by_head(get_score(score).measure(subject), subject.heads)
    proposing = bench.evaluator(bench.roles.rank)
    question = bench.question
    search = Search(proposing, bench.compensator, bench.choice, rules, scores, question.seed, question.progress)
    # a backward pass would bring all weights of an offloaded model into memory
    usable = ("obs",) if is_offloaded(bench.loaded.model) else RANKINGS
    rankings = usable if score is None else (score,)
    if len(rankings) == len(bench.question.kinds) == 1:
        return search, rankings[0], bench.question.kinds[0], {}
    return search, *replace(search, meter=bench.judge).choose(rankings, bench.question.kinds)


def _within_budget(
    choice: _Choice, budget: float, score: str | None, question: Question, model: Source | None
) -> PruningPlan:
    bench = _bench_at_hand(choice.report, model, question, "A budget is kept by measuring, so the model is needed.")
    search, ranking, kind, trials = _search(choice, score, bench)
    search = search.compensating(kind)
    path = search.path(ranking, budget)
    plans = search.sequence(ranking, path, budget)

    def holds(heads: Removed) -> bool:
        question.progress("verification", plans.index(heads), len(plans))
        return max(bench.bounds(heads, search.compensator)) <= budget

    passed = fixed_sequence(plans, holds)
    accepted, tested = passed
    question.progress("verification", len(plans), len(plans))
    how: ChosenBy = {
        "max_loss_increase": budget,
        "metric": bench.metric.name,
        "unit_of_budget": budget_words(bench.metric, budget),
        "ranking": ranking,
        "trials": trials,
        "rounds": len(path) - 1,
        "verifications": tested,
        "lengths": bench.lengths,
        **_left_alone(bench),
    }
    return _finished(choice, bench, accepted or (), kind, score or "search", how)


def _left_alone(bench: Bench) -> ChosenBy:
    """Heads that no search removes, for the record."""
    aligned = sorted(alignment_heads(bench.loaded, bench.sites))
    return {"alignment_heads": aligned} if aligned else {}


def budget_words(metric: Metric, budget: float) -> str:
    """The budget with its unit.

    >>> from oattn_hub.pruning.tasks import DIVERGENCE_COSINE, TOKEN_LOSS
    >>> budget_words(TOKEN_LOSS, 0.01), budget_words(DIVERGENCE_COSINE, 0.01)
    ('1 % of the loss per token (nats)', '0.01 of 1 - cosine with the unpruned embedding')
    """
    return f"{100 * budget:g} % of the {metric.title}" if metric.relative else f"{budget:g} of {metric.title}"


def _load(report: Report, model: Source | None, question: Question) -> LoadedModel:
    from oattn_hub.pruning.evaluation import load_subject

    return load_subject(report, model, **question.permissions)


def _bench_at_hand(report: Report, model: Source | None, question: Question, why: str) -> Bench:
    """A bench, or what the user can do without the model."""
    try:
        loaded = _load(report, model, question)
    except (LoadError, MissingDependency) as error:
        raise InvalidInput(f"{why.format(report.model.id)} {error}") from error
    return Bench(loaded, question)
