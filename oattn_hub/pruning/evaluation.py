"""Measure what removing heads costs, for every score, on inputs that no score has seen."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Unpack

import numpy as np
from numpy.typing import NDArray

from oattn_hub.adapters import AttentionSite
from oattn_hub.errors import InvalidInput
from oattn_hub.inputs import CalibrationInputs, calibration_inputs
from oattn_hub.inputs.types import Data
from oattn_hub.models.identify import batch_fingerprint
from oattn_hub.models.load import LoadedModel, Source, load_again, load_model
from oattn_hub.models.options import LoadAgain
from oattn_hub.progress import Progress, silent
from oattn_hub.pruning.ablation import check_places
from oattn_hub.pruning.compensate import Refits, refitted
from oattn_hub.pruning.masks import masked_sites
from oattn_hub.pruning.plain import check_values
from oattn_hub.pruning.scores import Score, Subject, resolve_scores
from oattn_hub.pruning.sites import Head, check_report, weights_fingerprint
from oattn_hub.pruning.tasks import Metric, Outputs, Task, find_task
from oattn_hub.report.evaluation import Curve, EvaluationSection, MetricInfo, ScoreResult

if TYPE_CHECKING:
    from oattn_hub.report import Report

FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
_BOOTSTRAP = 500
Values = NDArray[np.float64]


class Evaluator:
    """Runs the masked model on the evaluation inputs and compares it with the unpruned one; counts how often."""

    def __init__(
        self, loaded: LoadedModel, sites: Sequence[AttentionSite], inputs: CalibrationInputs, task: Task
    ) -> None:
        self.loaded, self.sites, self.inputs, self.task = loaded, sites, inputs, task
        check_places(loaded, sites, inputs[0])
        self.reference = task.observe(loaded, inputs)
        self.calls = 0

    def observe(self, heads: Sequence[Head], refits: Refits | None = None) -> list[Outputs]:
        """The model's outputs on every input with these heads silenced and these output projections refitted."""
        self.calls += 1
        with refitted(self.sites, refits or {}), masked_sites(self.loaded.model, self.sites, heads):
            return self.task.observe(self.loaded, self.inputs)

    def without(self, heads: Sequence[Head], refits: Refits | None = None) -> dict[str, Values]:
        """Every metric with these heads silenced, one value per input."""
        return self.task.measure(self.observe(heads, refits), self.reference, self.inputs)

    @property
    def baseline(self) -> dict[str, Values]:
        """Every metric of the unpruned model."""
        return self.task.measure(self.reference, self.reference, self.inputs)


def evaluate(
    report: Report | None = None,
    model: Source | None = None,
    scores: str | list[str] | None = None,
    *,
    data: Data = None,
    calibration: Data = None,
    inputs: int = 16,
    calibration_inputs_count: int = 6,
    tokens: int = 64,
    fractions: Sequence[float] = FRACTIONS,
    seeds: int = 5,
    seed: int = 0,
    adapter: str | None = None,
    progress: Progress = silent,
    **permissions: Unpack[LoadAgain],
) -> EvaluationSection:
    """Rank the heads by every score and measure what removing the lowest costs.

    Args:
        report: where the Haar entropies come from, and which model it is; needed by the Haar scores.
        model: a module, a loaded model or a spec; None loads the report's model.
        scores: names, or ``"all"`` (the default).
        data: what to evaluate on; None takes the half of the bundled data that calibration never uses.
        calibration: what to compute the scores on; None takes the other half.
        inputs: how many evaluation inputs.
        calibration_inputs_count: how many inputs the scores see.
        tokens: tokens per input, for text.
        fractions: parts of the heads to remove.
        seeds: how many random removals to compare with, at least 5.
        seed: of the inputs, the random removals and the bootstrap.
        adapter: name of the adapter, if the model's own choice is not wanted.
        progress: called after each evaluation.
        permissions: what only the caller may grant to load the model: ``trust_remote_code``, ``token`` …
    """
    if seeds < 5:
        raise InvalidInput(f"seeds is {seeds}; random removal needs at least 5 to be a comparison.")
    start = time.perf_counter()
    loaded = load_subject(report, model, **permissions)
    seen, held_out = disjoint_inputs(loaded, calibration, data, calibration_inputs_count, inputs, tokens, seed)
    task = find_task(loaded, held_out)
    subject = Subject(loaded, seen, task, report, adapter, seed)
    check_values(subject.sites)
    if report is not None:
        check_report(subject.sites, report)
    evaluator = Evaluator(loaded, subject.sites, held_out, task)
    chosen = _computable(resolve_scores(scores), report)
    runs, notes = _score_values(subject, chosen, seeds, progress)
    curves = _curves(evaluator, subject.heads, runs, fractions, progress)
    return _section(subject, evaluator, runs, curves, fractions, seeds, notes, time.perf_counter() - start)


@dataclass(frozen=True, eq=False)
class _Run:
    """One score, one list of values for each of its runs (random has several), and what they are means of."""

    score: Score
    values: list[Values]
    by_input: Values | None
    seconds: float


def load_subject(report: Report | None, model: Source | None, **permissions: Unpack[LoadAgain]) -> LoadedModel:
    """The model to evaluate: the one given, or the one the report was made for."""
    if model is not None:
        return load_model(model, **permissions)
    if report is None:
        raise InvalidInput("Nothing to evaluate: give a report or a model.")
    if not report.model.source:
        raise InvalidInput(
            f"The report was made of a {report.model.id} in memory and cannot load it again; give the model, too "
            "(model=…)."
        )
    return load_again(report.model, **permissions)


def _computable(scores: list[Score], report: Report | None) -> list[Score]:
    return [score for score in scores if report is not None or not score.name.startswith("haar")]


def disjoint_inputs(
    loaded: LoadedModel, calibration: Data, data: Data, n_seen: int, n_held_out: int, tokens: int, seed: int
) -> tuple[CalibrationInputs, CalibrationInputs]:
    """Inputs to choose heads by and inputs to measure the cost on, checked to have nothing in common."""
    held_out = held_out_inputs(loaded, data, n_held_out, tokens, seed)
    if calibration is not None:
        seen = calibration_inputs(loaded, calibration, n_seen, tokens, seed, labels=True)
    else:
        seen = calibration_inputs(loaded, data, n_seen, tokens, seed, "calibration", labels=True)
        if is_ready_made(data):
            seen = _part(seen, 0, min(n_seen, len(seen) // 3))
    shared = {batch_fingerprint(batch) for batch in seen} & {batch_fingerprint(batch) for batch in held_out}
    if shared:
        raise InvalidInput(
            f"{len(shared)} inputs are used both to choose heads and to measure the cost, which flatters the choice. "
            "Give other data for one of the two."
        )
    return seen, held_out


def held_out_inputs(loaded: LoadedModel, data: Data, count: int, tokens: int, seed: int) -> CalibrationInputs:
    """The half of the data that calibration never uses; of ready-made batches, the last two thirds."""
    inputs = calibration_inputs(loaded, data, count, tokens, seed, "evaluation", labels=True)
    if not is_ready_made(data):
        return inputs
    if len(inputs) < 4:
        raise InvalidInput(f"{len(inputs)} ready-made inputs are too few to hold some out; give at least 4.")
    first = len(inputs) // 3
    return _part(inputs, first, min(first + count, len(inputs)))


def is_ready_made(data: Data) -> bool:
    """Batches of forward arguments, which come without halves."""
    return isinstance(data, CalibrationInputs) or (isinstance(data, list | tuple) and isinstance(data[0], dict))


def _part(inputs: CalibrationInputs, start: int, stop: int) -> CalibrationInputs:
    description = f"inputs {start} to {stop - 1} of {inputs.description}"
    return CalibrationInputs(tuple(inputs[start:stop]), description, inputs.tokens)


def alternating(inputs: CalibrationInputs) -> tuple[CalibrationInputs, CalibrationInputs]:
    """Every other input, and those between."""
    if len(inputs) < 2:
        raise InvalidInput("One input cannot be shared between slopes and costs of a search; give at least 2 to it.")
    parts = [(inputs[start::2], f"every other input from {start} of {inputs.description}") for start in (0, 1)]
    first, second = (CalibrationInputs(tuple(part), described, inputs.tokens) for part, described in parts)
    return first, second


def _score_values(
    subject: Subject, scores: Sequence[Score], seeds: int, progress: Progress
) -> tuple[list[_Run], list[str]]:
    runs, notes = [], []
    for number, score in enumerate(scores):
        progress("scores", number, len(scores))
        start = time.perf_counter()
        try:
            if score.name == "random":
                values = [score.measure(replace(subject, seed=subject.seed + draw)) for draw in range(seeds)]
            else:
                values = [score.measure(subject)]
            by_input = score.by_input(subject) if score.by_input else None
        except InvalidInput as error:  # one score that does not apply must not cost the others
            notes.append(f"{score.title} was left out: {error}")
            continue
        runs.append(_Run(score, values, by_input, time.perf_counter() - start))
    progress("scores", len(scores), len(scores))
    return runs, notes


def _curves(
    evaluator: Evaluator, heads: Sequence[Head], runs: Sequence[_Run], fractions: Sequence[float], progress: Progress
) -> list[list[list[dict[str, Values]]]]:
    """For every score, every run and every fraction: each metric's value on each input."""
    total = sum(len(run.values) for run in runs) * len(fractions)
    done, found = 0, []
    for run in runs:
        lines = []
        for values in run.values:
            order = np.argsort(values, kind="stable")
            line = []
            for fraction in fractions:
                progress("curves", done, total)
                line.append(evaluator.without([heads[index] for index in order[: round(fraction * len(heads))]]))
                done += 1
            lines.append(line)
        found.append(lines)
    progress("curves", total, total)
    return found


def _section(
    subject: Subject,
    evaluator: Evaluator,
    runs: Sequence[_Run],
    curves: Sequence[Sequence[Sequence[dict[str, Values]]]],
    fractions: Sequence[float],
    seeds: int,
    notes: Sequence[str],
    seconds: float,
) -> EvaluationSection:
    baseline = evaluator.baseline
    ablation = next((run.values[0] for run in runs if run.score.name == "ablation"), None)
    results = [
        _result(run, lines, baseline, ablation, subject.task.metrics, subject.seed)
        for run, lines in zip(runs, curves, strict=True)
    ]
    metrics = [
        MetricInfo(m.name, m.title, m.higher_is_better, m.relative, float(baseline[m.name].mean()))
        for m in subject.task.metrics
    ]
    return EvaluationSection(
        metrics=tuple(metrics),
        fractions=(0.0, *map(float, fractions)),
        heads=tuple(subject.heads),
        scores=tuple(sorted(results, key=lambda result: result.auc)),
        seeds=seeds,
        n_inputs=len(evaluator.inputs),
        weights=weights_fingerprint(subject.sites),
        calibration=subject.inputs.description,
        evaluation=evaluator.inputs.description,
        calibration_fingerprint=subject.inputs.fingerprint,
        evaluation_fingerprint=evaluator.inputs.fingerprint,
        evaluations=evaluator.calls,
        seconds=round(seconds, 1),
        notes=tuple(notes),
    )


def _result(
    run: _Run,
    lines: Sequence[Sequence[dict[str, Values]]],
    baseline: dict[str, Values],
    ablation: Values | None,
    metrics: Sequence[Metric],
    seed: int,
) -> ScoreResult:
    by_metric = {m.name: np.array([[point[m.name] for point in (baseline, *line)] for line in lines]) for m in metrics}
    drawn = {name: _resampled(values, seed) for name, values in by_metric.items()}
    area = drawn["divergence"][:, 1:].mean(axis=1)
    low, high = ((), ()) if run.by_input is None else mean_interval(run.by_input)
    return ScoreResult(
        name=run.score.name,
        title=run.score.title,
        citation=run.score.citation,
        cost=run.score.cost,
        seconds=round(run.seconds, 2),
        values=tuple(run.values[0].tolist()),
        curves={name: _curve(by_metric[name], drawn[name]) for name in by_metric},
        auc=float(by_metric["divergence"][:, 1:].mean()),
        auc_low=float(np.quantile(area, 0.025)),
        auc_high=float(np.quantile(area, 0.975)),
        spearman=_spearman(run, ablation),
        low=low,
        high=high,
    )


def mean_interval(values: Values) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The 95 % intervals of the means of rows, Student's t; none from one value, of which nothing can be said.

    >>> low, high = mean_interval(np.array([[1.0, 2.0, 3.0]]))
    >>> round(low[0], 3), round(high[0], 3)
    (-0.484, 4.484)
    """
    from scipy.stats import t as student

    n = values.shape[1]
    if n < 2:
        return (), ()
    half = student.ppf(0.975, n - 1) * values.std(axis=1, ddof=1) / np.sqrt(n)
    mean = values.mean(axis=1)
    return tuple((mean - half).tolist()), tuple((mean + half).tolist())


def increase_interval(metric: Metric, before: Values, after: Values, seed: int) -> tuple[float, float]:
    """95 % bootstrap interval over inputs of how much worse a metric got; the inputs are resampled in pairs."""
    drawn = _draws(len(before), seed)
    pairs = zip(before[drawn].mean(axis=1), after[drawn].mean(axis=1), strict=True)
    low, high = np.quantile([metric.increase(float(old), float(new)) for old, new in pairs], [0.025, 0.975])
    return float(low), float(high)


def _resampled(values: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """(draws, fractions) means over resampled inputs; with several runs (random), the runs themselves are the draws."""
    if len(values) > 1:
        return np.asarray(values.mean(axis=2))
    return np.asarray(values[0][:, _draws(values.shape[2], seed)].mean(axis=2).T)


def _draws(n_inputs: int, seed: int) -> NDArray[np.int64]:
    """(draws, inputs) which inputs each resampling takes."""
    return np.random.default_rng(seed).integers(n_inputs, size=(_BOOTSTRAP, n_inputs))


def _curve(values: NDArray[np.float64], drawn: NDArray[np.float64]) -> Curve:
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    return Curve(tuple(values.mean(axis=(0, 2)).tolist()), tuple(low.tolist()), tuple(high.tolist()))


def _spearman(run: _Run, ablation: Values | None) -> float | None:
    if ablation is None or len(run.values) > 1 or np.ptp(run.values[0]) == 0:
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(run.values[0], ablation).statistic)
