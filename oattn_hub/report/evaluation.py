"""The report's evaluation section: what removing heads was measured to cost, score by score."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

from oattn_hub.errors import FormatError, InvalidInput

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
            if left <= fraction <= right:
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

    def to_json(self) -> dict[str, Any]:
        """The section as a JSON-able dict."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The section back from :meth:`to_json`."""
        known = {item.name for item in fields(cls)}
        if unknown := sorted(set(value) - known):
            raise FormatError(f"The evaluation has unknown fields {unknown}; update oattn_hub to read it.")
        try:
            content: dict[str, Any] = {
                name: tuple(entry) if isinstance(entry, list) else entry for name, entry in value.items()
            }
            content["metrics"] = tuple(MetricInfo(**entry) for entry in value["metrics"])
            content["heads"] = tuple((int(layer), int(head)) for layer, head in value["heads"])
            content["scores"] = tuple(_score(entry) for entry in value["scores"])
            return cls(**content)
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"The evaluation is damaged ({error!r}); run oattn evaluate again.") from error


def _score(entry: Mapping[str, Any]) -> ScoreResult:
    curves = {
        name: Curve(**{part: tuple(numbers) for part, numbers in curve.items()})
        for name, curve in entry["curves"].items()
    }
    numbers = {name: tuple(entry.get(name, ())) for name in ("values", "low", "high")}
    return ScoreResult(**{**entry, **numbers, "curves": curves})
