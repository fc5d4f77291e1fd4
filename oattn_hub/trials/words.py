"""Scores in words, for cards and terminals."""

from __future__ import annotations

from oattn_hub.trials.scores import TrialScore


def score_cells(score: TrialScore) -> tuple[str, str, str, str, str]:
    """One row of a table: tool, task, metric and the two values."""
    arrow = {True: " ↑", False: " ↓", None: ""}[score.higher_is_better]
    asked = f" ({score.samples} examples)" if score.samples else ""
    before, after = _value(score.before, score.before_error), _value(score.after, score.after_error)
    return score.tool, f"{score.task}{asked}", f"{score.metric}{arrow}", before, after


def _value(value: float, error: float | None) -> str:
    """
    >>> _value(0.51234, 0.0213), _value(0.5, None)
    ('0.5123 ± 0.021', '0.5')
    """
    return f"{value:.4g}" if error is None else f"{value:.4g} ± {error:.2g}"
