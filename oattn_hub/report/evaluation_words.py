"""The evaluation section in plain sentences and as a table."""

from __future__ import annotations

import math
from itertools import takewhile
from typing import TYPE_CHECKING

from oattn_hub.report.cost import Look

if TYPE_CHECKING:
    from oattn_hub.report.evaluation import EvaluationSection, MetricInfo, ScoreResult


def findings(section: EvaluationSection) -> list[str]:
    """What was measured, best first, and how the paper's rule did."""
    best, random = section.best(), section.score("random")
    which = "costs least" if best.auc <= random.auc else "costs least of the scores, but no less than chance"
    sentences = [
        f"Removing {percent(section.fractions[1])} to {percent(section.fractions[-1])} of the heads, {best.title} "
        f"{which}: mean {section.metrics[0].title} {best.auc:.3g} [{best.auc_low:.3g}, {best.auc_high:.3g}], against "
        f"{random.auc:.3g} for random removal ({section.seeds} seeds)."
    ]
    sentences += [_against_random(section, result) for result in section.scores if result.name == "haar"]
    sentences.append(_paper_beside_random(section))
    sentences = [sentence for sentence in sentences if sentence]
    if section.primary is not section.metrics[0]:
        sentences.append(_primary(section, best))
    sentences.append(
        f"Scores were computed on {section.calibration}; curves were measured on {section.n_inputs} inputs that share "
        f"nothing with them: {section.evaluation}."
    )
    return [*sentences, *section.notes]


def percent(share: float) -> str:
    """A part of the heads, as every other text of the project writes it.

    >>> percent(0.3)
    '30 %'
    """
    return f"{100 * share:.0f} %"


def rounded_up(value: float, digits: int) -> float:
    """A bound with so many decimals, never less than it is; what floats add in the last places does not count.

    >>> rounded_up(1.421, 1), rounded_up(0.0084, 4), rounded_up(-0.31, 1)
    (1.5, 0.0084, -0.3)
    """
    scale = 10.0**digits
    return math.ceil(value * scale - 1e-6) / scale


def table(section: EvaluationSection) -> tuple[list[str], list[list[str]]]:
    """One row a score: the divergence at each fraction, the mean with its interval, and the agreement with ablation."""
    shown, four = section.fractions[1:], cost_form(section, 4)
    columns = ["score", *(percent(fraction) for fraction in shown), "mean [95 %]", "rank corr. with ablation", "cost"]
    rows = []
    for result in section.scores:
        costs = [format(value, four) for value in result.curves["divergence"].mean[1:]]
        mean = f"{result.auc:{four}} [{result.auc_low:{four}}, {result.auc_high:{four}}]"
        spearman = "" if result.spearman is None else f"{result.spearman:.2f}"
        rows.append([result.title, *costs, mean, spearman, result.cost])
    return columns, rows


def cost_form(section: EvaluationSection, digits: int) -> str:
    """How costs are written: with so many decimals, or, where these would all be zeros, with two that count."""
    largest = max(value for result in section.scores for value in result.curves["divergence"].mean)
    return f".{digits}f" if largest >= 10.0 ** (2 - digits) else ".2g"


def increase_words(cost: Look) -> str:
    """How much worse a verified plan is, with its interval: in per cent; a divergence, which starts at 0, as it is.

    >>> increase_words({"metric": "loss", "increase": 0.0084, "low": -0.01, "high": 0.027})
    'worse by 0.84 %, 95 % interval over inputs -1.00 to 2.70 %'
    """
    return f"worse by {_amount(cost, cost['increase'])}, 95 % interval over inputs {interval_words(cost)}"


def interval_words(cost: Look) -> str:
    """The interval of an increase, in its unit.

    >>> interval_words({"metric": "divergence", "low": 0.0077, "high": 0.0094})
    '0.0077 to 0.0094'
    >>> interval_words({"metric": "loss", "low": -0.00001, "high": 0.0009})
    '0.00 to 0.09 %'
    """
    return f"{_amount(cost, cost['low']).removesuffix(' %')} to {_amount(cost, cost['high'])}"


def _amount(cost: Look, value: float) -> str:
    """What rounding leaves of a zero has no sign."""
    divergence = cost["metric"] == "divergence"
    shown = f"{value:.4f}" if divergence else f"{100 * value:.2f}"
    return f"{shown.removeprefix('-') if float(shown) == 0 else shown}{'' if divergence else ' %'}"


def _against_random(section: EvaluationSection, result: ScoreResult) -> str:
    random = section.score("random")
    verdict = (
        "costs less than"
        if result.auc < random.auc_low
        else "costs more than"
        if result.auc > random.auc_high
        else "cannot be distinguished from"
    )
    return (
        f"Removing the heads of lowest {result.title} {verdict} random removal: {result.auc:.3g} on average, "
        f"where {section.seeds} random draws cost {random.auc_low:.3g} to {random.auc_high:.3g}."
    )


def _paper_beside_random(section: EvaluationSection) -> str:
    """Where the paper's rule crosses random removal, at the measured parts up to 30 %."""
    if not any(result.name == "haar" for result in section.scores):
        return ""
    costs = [
        (fraction, *(section.cost_at(name, fraction) for name in ("haar", "random")))
        for fraction in section.fractions
        if 0.05 < fraction < 0.35
    ]
    parts = [
        f"{paper:.3g} at {percent(fraction)}, {'below' if paper < random else 'above'} random removal's {random:.3g}"
        for fraction, paper, random in costs
        if paper != random  # of few heads a part may be none
    ]
    return f"The paper's rule costs {'; '.join(parts)}." if parts else ""


def _primary(section: EvaluationSection, best: ScoreResult) -> str:
    metric = section.primary
    unpruned = f"Unpruned, {metric.title} is {metric.baseline:.4g}; "
    if _increase(metric, section.score("random").curves[metric.name].mean[-1]) <= 0.01:
        return (
            f"{unpruned}without {percent(section.fractions[-1])} of the heads, taken at random, it is no worse, so on "
            "these inputs it says nothing about heads."
        )
    costs = [_increase(metric, value) for value in best.curves[metric.name].mean]
    within = list(takewhile(lambda pair: pair[1] <= 0.01, zip(section.fractions, costs, strict=True)))
    return f"{unpruned}by {best.title}, {percent(within[-1][0])} of the heads go before it is more than 1 % worse."


def _increase(metric: MetricInfo, after: float) -> float:
    worse = metric.baseline - after if metric.higher_is_better else after - metric.baseline
    return worse / max(abs(metric.baseline), 1e-12) if metric.relative else worse
