"""The report's evaluation section: what removing heads was measured to cost, score by score."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from oattn_hub.codec import decode, encode_record
from oattn_hub.errors import FormatError, InvalidInput
from oattn_hub.types import Json, JsonObject

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Head = tuple[int, int]


@dataclass(frozen=True)
class MetricInfo:
    """One metric: its value for the unpruned model, and which way is better."""

    name: str
    title: str
    higher_is_better: bool
    relative: bool
    baseline: float


@dataclass(frozen=True)
class Curve:
    """A metric after removing each fraction of the heads, with a 95 % bootstrap interval over inputs."""

    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class ScoreResult:
    """How one score does: its value for every head, and what removing the lowest costs.

    ``auc`` is the mean divergence over the fractions (the area under the curve over its width), lower is better. For
    random removal curves and area are means over the seeds, and their intervals run over seeds. ``low`` and ``high``
    are the 95 % intervals of the values, of a score that is a mean over inputs; empty for the others.
    """

    name: str
    title: str
    citation: str
    cost: str
    seconds: float
    values: tuple[float, ...]
    curves: Mapping[str, Curve]
    auc: float
    auc_low: float
    auc_high: float
    spearman: float | None = None
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class EvaluationSection:
    """Curves of every score on one model, on inputs that no score has seen.

    Attributes:
        metrics: divergence first, the task's own metric last.
        fractions: parts of the heads removed, starting with 0.
        heads: (layer, head) of every head, in the order of the scores' values.
        scores: results, best area first.
        seeds: how many random removals the random curve is a mean of.
        weights: fingerprint of the model's weights (see ``PruningPlan.weights``).
        calibration, evaluation: what the scores and the curves were measured on.
        calibration_fingerprint, evaluation_fingerprint: of these inputs; they never overlap.
    """

    metrics: tuple[MetricInfo, ...]
    fractions: tuple[float, ...]
    heads: tuple[Head, ...]
    scores: tuple[ScoreResult, ...]
    seeds: int
    n_inputs: int
    weights: str
    calibration: str
    evaluation: str
    calibration_fingerprint: str
    evaluation_fingerprint: str
    evaluations: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = field(default=())

    @property
    def primary(self) -> MetricInfo:
        """The task's own metric; the divergence where there is none."""
        return self.metrics[-1]

    def score(self, name: str) -> ScoreResult:
        """The result of one score."""
        for result in self.scores:
            if result.name == name:
                return result
        raise InvalidInput(f"Score {name!r} was not evaluated; there are {', '.join(s.name for s in self.scores)}.")

    def values(self, name: str) -> dict[Head, float]:
        """One score's value for every head; the lowest goes first."""
        return dict(zip(self.heads, self.score(name).values, strict=True))

    def intervals(self, name: str) -> dict[Head, tuple[float, float]]:
        """The 95 % interval of one score's value for every head; empty where it has none."""
        result = self.score(name)
        return dict(zip(self.heads, zip(result.low, result.high, strict=True), strict=False))

    def cost_at(self, name: str, fraction: float, metric: str = "divergence") -> float:
        """What removing this fraction by this score costs, between measured fractions by interpolation."""
        curve, points = self.score(name).curves[metric].mean, self.fractions
        for (left, low), (right, high) in itertools.pairwise(zip(points, curve, strict=True)):
            if left <= fraction <= right and left < right:
                return low + (high - low) * (fraction - left) / (right - left)
        return curve[-1]

    def best(self, fraction: float | None = None) -> ScoreResult:
        """The score that was measured to cost least at this fraction, or over all fractions."""
        candidates = [result for result in self.scores if result.name != "random"]
        if fraction is None:
            return min(candidates, key=lambda result: result.auc)
        return min(candidates, key=lambda result: (self.cost_at(result.name, fraction), result.auc))

    @property
    def findings(self) -> list[str]:
        """The section in plain sentences."""
        from oattn_hub.report.evaluation_words import findings

        return findings(self)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Column names and rows of the table of scores."""
        from oattn_hub.report.evaluation_words import table

        return table(self)

    def draw_cost_of_removal(self, ax: Axes) -> Axes:
        """Divergence against the part of the heads removed; see :func:`oattn_hub.report.figures.draw_costs`."""
        from oattn_hub.report.figures import draw_costs

        return draw_costs(ax, self)

    def to_json(self) -> JsonObject:
        """The section as a JSON-able dict."""
        return encode_record(self)

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """The section back from :meth:`to_json`; one whose parts do not fit each other is a FormatError."""
        section = decode(cls, value, "The evaluation")
        if reason := section._misfit():
            raise FormatError(f"The evaluation is damaged: {reason}. Run oattn evaluate again.")
        return section

    def _misfit(self) -> str:
        """What does not fit in a section out of a file; empty if all does."""
        if not self.metrics or not self.scores or not self.heads or len(set(self.heads)) != len(self.heads):
            return "it has no metrics, no scores, no heads, or a head twice"
        steps = [0.0, *self.fractions, 1.0]
        if not self.fractions or any(not left <= right for left, right in itertools.pairwise(steps)):
            return "its fractions do not grow from 0 to 1"
        for score in self.scores:
            lengths = {len(part) for curve in score.curves.values() for part in (curve.mean, curve.low, curve.high)}
            intervals = {len(score.low), len(score.high)} - {0}
            if (
                len(score.values) != len(self.heads)
                or lengths != {len(self.fractions)}
                or intervals - {len(self.heads)}
            ):
                return f"{score.name!r} has values or curves of another length"
            if {metric.name for metric in self.metrics} - set(score.curves) or "divergence" not in score.curves:
                return f"{score.name!r} lacks the curve of a metric"
        return ""
