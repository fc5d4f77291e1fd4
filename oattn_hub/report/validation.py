"""The report's validation section: do the heads that it calls low hold what the method says of them?

Three checks: are low heads regular, do other inputs and other domains name the same heads, and does losing them cost
less than losing heads drawn at random?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from oattn_hub.errors import InvalidInput
from oattn_hub.records import Head, JsonRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from oattn_hub.report.report import Report

#: The name of the domain that the report itself was measured on.
OWN = "the report's own data"
Verdict = Literal["less", "more", "undecided"]
_BUNDLED = ("bundled text", "synthetic images", "synthetic sounds")  # as inputs describe themselves
_CLEARLY = 0.1  # a tenth of the heads: more than the share of a hundred heads moves by chance


@dataclass(frozen=True)
class Domain(JsonRecord):
    """Data of one kind: its name, what was taken from it and how many inputs these are."""

    name: str
    data: str
    fingerprint: str
    n_inputs: int

    def is_like(self, other: Domain) -> bool:
        """Whether both are known to come from the same data, so that agreement says nothing about other data."""
        bundled = all(any(words in one.data for words in _BUNDLED) for one in (self, other))
        return bundled or self.fingerprint == other.fingerprint


@dataclass(frozen=True)
class WithinDomain(JsonRecord):
    """How far single inputs of one domain agree on a group's ranking: means over pairs of inputs."""

    group: str
    domain: str
    n_inputs: int
    jaccard: float | None
    spearman: float | None


@dataclass(frozen=True)
class BetweenDomains(JsonRecord):
    """How far the mean entropies of two domains agree.

    Attributes:
        jaccard: Of the sets of lowest heads.
        spearman: Rank correlation of all heads; None where one side is constant.
        coverage: Share of the heads whose 95 % interval from ``first`` holds the mean of ``second``.
        expected: What that share would be if the domain did not matter: below 95 %, as a mean over some inputs of
            ``second`` is not quite its true one.
        coverage_back, expected_back: The same with the two exchanged.
    """

    group: str
    first: str
    second: str
    jaccard: float
    spearman: float | None
    coverage: float
    expected: float
    coverage_back: float
    expected_back: float

    @property
    def domain_matters(self) -> bool:
        """Whether intervals of one domain are clearly too short for the other."""
        return min(self.coverage - self.expected, self.coverage_back - self.expected_back) < -_CLEARLY


@dataclass(frozen=True)
class Regularity(JsonRecord):
    """Mixed Hölder exponents of a group's heads on the trees that their entropies are taken in.

    Attributes:
        heads: (layer, head) in axis order; ``exponents`` and ``entropies`` are theirs, means over ``n_inputs`` inputs.
        exponents: NaN where a head's attention is constant.
        n_lowest: How many heads count as low.
        lowest, others: Median exponent of the low heads, and of the others.
        p_value: Mann-Whitney, two-sided, of low heads against others.
        spearman: Rank correlation of exponents with entropies.
    """

    group: str
    heads: tuple[Head, ...]
    exponents: tuple[float, ...]
    entropies: tuple[float, ...]
    n_inputs: int
    n_lowest: int
    lowest: float
    others: float
    p_value: float | None
    spearman: float | None

    @property
    def verdict(self) -> Verdict:
        """Whether low heads are more or less regular than the others, if that is known."""
        if self.p_value is None or self.p_value > 0.05:
            return "undecided"
        return "more" if self.lowest > self.others else "less"


@dataclass(frozen=True)
class RemovalTrial(JsonRecord):
    """What losing the lowest heads of a group costs by one metric, beside heads drawn at random from the same group.

    Attributes:
        heads: The report's lowest, as many as were removed.
        metric, title: What was measured; costs are how much worse it got, in the metric's own unit.
        cost, cost_low, cost_high: Of the lowest heads, with a 95 % bootstrap interval over inputs.
        random: The cost of every random draw.
        difference, low, high: Cost of the lowest minus mean cost of the draws, on the same inputs, with a 95 %
            bootstrap interval over inputs and draws.
    """

    group: str
    heads: tuple[Head, ...]
    metric: str
    title: str
    cost: float
    cost_low: float
    cost_high: float
    random: tuple[float, ...]
    difference: float
    low: float
    high: float

    @property
    def count(self) -> int:
        """How many heads were removed."""
        return len(self.heads)

    @property
    def cheaper_draws(self) -> int:
        """How many random draws cost less than the lowest heads."""
        return sum(cost < self.cost for cost in self.random)

    @property
    def verdict(self) -> Verdict:
        """Whether the lowest heads cost less or more than random ones, if that is known."""
        return "less" if self.high < 0 else "more" if self.low > 0 else "undecided"


def removable_counts(remove: Sequence[int], report: Report) -> list[int]:
    """The numbers of heads to remove in order, after refusing those that a group does not have to spare."""
    counts = sorted(set(remove))
    most = min(group.n_heads for group in report.groups.values()) - 1
    if not counts or counts[0] < 1 or counts[-1] > most:
        asked = list(remove) if len(counts) <= 8 else f"{counts[0]} to {counts[-1]}"
        raise InvalidInput(f"remove is {asked}; give numbers of heads from 1 to {most}, one less than there are.")
    return counts


@dataclass(frozen=True)
class ValidationSection(JsonRecord):
    """The three checks of one report.

    Attributes:
        domains: What the heads were ranked on; the report's own inputs come first.
        fraction: Share of the heads that counts as low in every Jaccard index and in ``regularity``.
        evaluation, evaluation_fingerprint, n_inputs: What the costs were measured on; no input ranked a head here.
        seed: Of the inputs, the random draws and the bootstrap.
    """

    domains: tuple[Domain, ...]
    within: tuple[WithinDomain, ...]
    between: tuple[BetweenDomains, ...]
    regularity: tuple[Regularity, ...]
    removals: tuple[RemovalTrial, ...]
    fraction: float
    evaluation: str
    evaluation_fingerprint: str
    n_inputs: int
    seed: int

    def one_source(self, pair: BetweenDomains) -> bool:
        """Whether the two domains of a pair are known to be the same data."""
        known = {domain.name: domain for domain in self.domains}
        one, other = known.get(pair.first), known.get(pair.second)
        return one is not None and other is not None and one.is_like(other)

    @property
    def findings(self) -> list[str]:
        """The section in plain sentences."""
        from oattn_hub.report.validation_words import findings

        return findings(self)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Column names and rows of the table of removals."""
        from oattn_hub.report.validation_words import table

        return table(self)

    def draw_regularity(self, ax: Axes) -> Axes:
        """Hölder exponent against entropy, one dot a head."""
        for found in self.regularity:
            ax.scatter(found.entropies, found.exponents, s=14, label=found.group)
        ax.set(xlabel="entropy", ylabel="mixed Hölder exponent", title="Are heads of low entropy regular?")
        if len(self.regularity) > 1:
            ax.legend()
        return ax

    def draw_removal(self, ax: Axes) -> Axes:
        """Cost of the lowest heads (line) beside that of every random draw (dots), by the first metric."""
        group, metric = self.removals[0].group, self.removals[0].metric
        trials = [trial for trial in self.removals if (trial.group, trial.metric) == (group, metric)]
        counts = [trial.count for trial in trials]
        for trial in trials:
            ax.plot([trial.count] * len(trial.random), trial.random, ".", color="0.6", alpha=0.6)
        costs = np.array([trial.cost for trial in trials])
        errors = [costs - [t.cost_low for t in trials], [t.cost_high for t in trials] - costs]
        ax.errorbar(counts, costs, yerr=np.maximum(errors, 0), marker="o", capsize=3, label="lowest entropy")
        ax.plot([], [], ".", color="0.6", label="drawn at random")
        ax.set_xticks(counts)
        ax.set(xlabel="heads removed", ylabel=trials[0].title, title="Do the lowest heads cost less?")
        ax.legend()
        return ax
