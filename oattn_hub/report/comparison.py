"""Two reports side by side: two models, one model on two data sets, or one before and after fine-tuning.

The distance between head geometries. Each batch gives a metric space of heads: the tree EMD between them, in units of
its median. Two such spaces are compared by their *distributions of distances*: the Wasserstein-1 distance between the
quantile functions of all pairwise distances. It does not depend on the order of the heads, needs no matching, takes
different numbers of heads, and is a lower bound of the Gromov-Wasserstein distance (Mémoli 2011, "SLB"), so that a
large value is proof of different geometry while a small one is only consistent with the same. The same
distance between batches of one model says how large it gets by chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from oattn_hub.errors import InvalidInput
from oattn_hub.files import atomic_path, write_json
from oattn_hub.report.group import GroupResult
from oattn_hub.report.report import Report
from oattn_hub.report.theme import SERIES
from oattn_hub.types import Array, JsonObject

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from oattn_hub.records import ModelInfo

_DEPTHS = 4  # quarters of the network


@dataclass(frozen=True)
class MatchedHead:
    """One head in both reports; ranks are shares of the group, 0 the lowest entropy and 1 the highest."""

    layer: int
    head: int
    entropy_a: float
    entropy_b: float
    rank_a: float
    rank_b: float


@dataclass(frozen=True)
class GroupComparison:
    """One group of ``a`` beside one group of ``b``.

    Args:
        network_a, network_b: network entropies, one per batch.
        depth_a, depth_b: mean head entropy of each quarter of the layers, first to last.
        geometry_distance: between the head geometries (see the module), mean over pairs of a batch of ``a`` and one of
            ``b``; geometry_noise: mean over pairs of batches of one report, the larger of the two reports' (None with
            one batch each).
        spearman: rank correlation of the matched heads' mean entropies; None if the shapes differ.
        matched: heads present in both, or empty if the groups have different heads.
    """

    group_a: str
    group_b: str
    network_a: tuple[float, ...]
    network_b: tuple[float, ...]
    depth_a: tuple[float, ...]
    depth_b: tuple[float, ...]
    geometry_distance: float
    geometry_noise: float | None
    spearman: float | None
    matched: tuple[MatchedHead, ...]

    @property
    def title(self) -> str:
        """The name of the group, or both where the two are called differently."""
        return self.group_a if self.group_a == self.group_b else f"{self.group_a} / {self.group_b}"


@dataclass(frozen=True)
class Comparison:
    """What differs between two reports. ``findings`` says it in words."""

    name_a: str
    name_b: str
    groups: tuple[GroupComparison, ...]
    findings: list[str]

    def to_json(self) -> JsonObject:
        """The comparison as JSON-able values."""
        return asdict(self)

    def save(self, folder: str | Path, a: Report | str | Path, b: Report | str | Path) -> list[Path]:
        """Write ``comparison.json``, the figures, and the page that shows both reports side by side."""
        from oattn_hub.report.comparison_page import write_comparison_page
        from oattn_hub.report.plot import render, section_figures

        target = Path(folder)
        write_json(target / "comparison.json", self.to_json())
        paths = [target / "comparison.json"]
        for planned in section_figures("comparison", self):
            paths.append(target / f"{planned.name}.png")
            with atomic_path(paths[-1]) as draft:
                draft.write_bytes(render(planned))
        report_a, report_b = (x if isinstance(x, Report) else Report.load(x) for x in (a, b))
        return [*paths, write_comparison_page(self, report_a, report_b, target / "comparison.html")]

    def table(self) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
        """Column names and one row of printed values per pair of groups."""
        columns = ("groups", f"network entropy {self.name_a}", f"network entropy {self.name_b}",
                   "geometry distance", "between batches", "Spearman of heads")  # fmt: skip
        rows = tuple(
            (
                group.title,
                f"{np.mean(group.network_a):.4g}",
                f"{np.mean(group.network_b):.4g}",
                f"{group.geometry_distance:.3g}",
                "–" if group.geometry_noise is None else f"{group.geometry_noise:.3g}",
                "–" if group.spearman is None else f"{group.spearman:.2f}",
            )
            for group in self.groups
        )
        return columns, rows

    def draw_depth(self, ax: Axes) -> Axes:
        """Mean head entropy by depth, both reports; one pair of lines per group."""
        quarters = np.arange(1, _DEPTHS + 1)
        for index, group in enumerate(self.groups):
            style = ("-", "--", ":")[index % 3]
            sides = (
                (0, self.name_a, group.group_a, group.depth_a),
                (5, self.name_b, group.group_b, group.depth_b),
            )
            for series, name, part, values in sides:
                ax.plot(quarters, values, style, marker="o", color=SERIES[series], label=f"{name} ({part})")
        ax.set_xticks(quarters, ["first quarter", "second", "third", "last quarter"])
        ax.set(ylabel="mean head entropy", title="Entropy by depth", ylim=(0, None))
        ax.legend()
        return ax

    def draw_heads(self, ax: Axes) -> Axes:
        """Each matched head's rank in the two reports; on the diagonal nothing changed."""
        matched = [head for group in self.groups for head in group.matched]
        if not matched:
            ax.set_axis_off()
            ax.text(0.5, 0.5, "The two have different heads, so none can be matched.", ha="center")
            return ax
        ax.plot([0, 1], [0, 1], color=SERIES[3], lw=1)
        colours = [head.layer for head in matched]
        ax.scatter([h.rank_a for h in matched], [h.rank_b for h in matched], c=colours, cmap="plasma", s=22)
        ax.set(xlabel=f"rank in {self.name_a}", ylabel=f"rank in {self.name_b}", title="Matched heads (colour: layer)")
        return ax


def compare(a: Report | str | Path, b: Report | str | Path) -> Comparison:
    """Compare two reports, or the folders they are saved in.

    Groups of one name are compared; if the two have no name in common, their groups are paired in model order.

    >>> comparison = compare("runs/base", "runs/fine-tuned")    # doctest: +SKIP
    >>> comparison.groups[0].spearman                           # doctest: +SKIP
    0.97
    """
    report_a, report_b = (x if isinstance(x, Report) else Report.load(x) for x in (a, b))
    pairs = _paired_groups(report_a.groups, report_b.groups)
    groups = tuple(_compare_groups(group_a, group_b) for group_a, group_b in pairs)
    names = _names(report_a, report_b)
    caveats = _caveats(report_a, report_b, names)
    return Comparison(*names, groups, [*caveats, *_findings(groups, names, _comparable(report_a, report_b))])


def geometry_distance(quantiles_a: Array, quantiles_b: Array) -> float:
    """Wasserstein-1 distance of two distributions of distances given by their quantiles at equal steps."""
    if quantiles_a.shape[-1] != quantiles_b.shape[-1]:
        raise InvalidInput(f"{quantiles_a.shape[-1]} and {quantiles_b.shape[-1]} quantiles do not compare.")
    return float(np.abs(quantiles_a - quantiles_b).mean())


def _paired_groups(a: Mapping[str, GroupResult], b: Mapping[str, GroupResult]) -> list[tuple[GroupResult, GroupResult]]:
    common = [name for name in a if name in b]
    if common:
        return [(a[name], b[name]) for name in common]
    return list(zip(a.values(), b.values(), strict=False))


def _compare_groups(a: GroupResult, b: GroupResult) -> GroupComparison:
    matched = _matched_heads(a, b)
    noises = [noise for group in (a, b) if (noise := _noise(group)) is not None]
    return GroupComparison(
        group_a=a.name,
        group_b=b.name,
        network_a=tuple(a.haar.network_entropies.tolist()),
        network_b=tuple(b.haar.network_entropies.tolist()),
        depth_a=_by_depth(a),
        depth_b=_by_depth(b),
        geometry_distance=_mean_distance(product(a.geometry.distance_quantiles, b.geometry.distance_quantiles)),
        geometry_noise=max(noises) if noises else None,
        spearman=_spearman(matched),
        matched=matched,
    )


def _noise(group: GroupResult) -> float | None:
    """Mean geometry distance between two batches of one group."""
    return _mean_distance(combinations(group.geometry.distance_quantiles, 2)) if group.n_batches > 1 else None


def _mean_distance(pairs: Iterable[tuple[Array, ...]]) -> float:
    return float(np.mean([geometry_distance(one, other) for one, other in pairs]))


def _by_depth(group: GroupResult) -> tuple[float, ...]:
    """Mean entropy of each quarter of the group's layers; few layers fall into several quarters."""
    layers, place = np.unique(group.layers, return_inverse=True)
    mean = np.bincount(place, weights=group.haar.mean_entropies) / np.bincount(place)
    edges = np.linspace(0, len(layers), _DEPTHS + 1)
    quarters = [mean[int(np.floor(low)) : int(np.ceil(high))] for low, high in pairwise(edges)]
    return tuple(float(quarter.mean()) for quarter in quarters)


def _matched_heads(a: GroupResult, b: GroupResult) -> tuple[MatchedHead, ...]:
    """The heads of both, if the two groups have the same ones."""
    if a.head_keys() != b.head_keys():
        return ()
    mean_a, mean_b = a.haar.mean_entropies.tolist(), b.haar.mean_entropies.tolist()
    share_a, share_b = ((group.ranking.ranks - 1) / max(group.n_heads - 1, 1) for group in (a, b))
    rows = zip(a.head_keys(), mean_a, mean_b, share_a.tolist(), share_b.tolist(), strict=True)
    return tuple(MatchedHead(*key, *values) for key, *values in rows)


def _spearman(matched: tuple[MatchedHead, ...]) -> float | None:
    if len(matched) < 2:
        return None
    ranks = np.array([[head.rank_a, head.rank_b] for head in matched])
    return float(np.corrcoef(ranks.T)[0, 1])


def _names(a: Report, b: Report) -> tuple[str, str]:
    """Short names that distinguish the two: the models, or letters if the model is the same."""
    names = _short_name(a.model), _short_name(b.model)
    return names if names[0] != names[1] else ("A", "B")


def _short_name(model: ModelInfo) -> str:
    """A model of the Hub goes by its name without the owner; of a folder the last part alone may be just "model"."""
    return model.id.split("/")[-1] if model.source == model.id else model.id


def _caveats(a: Report, b: Report, names: tuple[str, str]) -> list[str]:
    """What keeps the entropies from being compared, said before any number."""
    caveats = [_same_name(a, b)] if names == ("A", "B") else []
    if a.settings.kind != b.settings.kind:
        caveats.append(
            f"The entropies do not compare: {names[0]} is about {a.settings.kind}, {names[1]} about {b.settings.kind}. "
            "Only ranks and the geometry distance mean something."
        )
    if a.settings.tokens != b.settings.tokens:
        caveats.append(
            f"{names[0]} has {a.settings.tokens} positions per batch, {names[1]} {b.settings.tokens}; "
            "entropies grow with the number of positions, so they do not compare."
        )
    return caveats


def _same_name(a: Report, b: Report) -> str:
    """Two reports of one model: what else distinguishes them."""
    same_weights = a.model.revision == b.model.revision
    what = "one model" if same_weights else "models of one name with different weights"
    read = [report.provenance.data or "unknown data" for report in (a, b)]
    data = f"both read {read[0]}" if read[0] == read[1] else f"A read {read[0]}; B read {read[1]}"
    return f"A and B are {what}, {_short_name(a.model)}; {data}."


def _comparable(a: Report, b: Report) -> bool:
    """Whether their entropies are of one kind and of matrices of one size."""
    return (a.settings.kind, a.settings.tokens) == (b.settings.kind, b.settings.tokens)


def _findings(groups: tuple[GroupComparison, ...], names: tuple[str, str], comparable: bool) -> list[str]:
    findings = []
    for group in groups:
        mean_a, mean_b = np.mean(group.network_a), np.mean(group.network_b)
        if comparable:
            findings.append(
                f"{group.title}: network entropy {mean_a:.4g} in {names[0]}, {mean_b:.4g} in {names[1]} "
                f"({(mean_b / mean_a - 1) * 100 if mean_a else 0.0:+.0f} %){_overlap(group)}."
            )
        findings.append(_geometry_finding(group))
        if group.spearman is not None:
            moved = max(group.matched, key=lambda head: abs(head.rank_b - head.rank_a))
            most = (
                f"head {moved.layer}.{moved.head} moved most" if moved.rank_a != moved.rank_b else "none of them moved"
            )
            findings.append(
                f"{group.title}: the {len(group.matched)} heads rank alike with a Spearman correlation of "
                f"{group.spearman:.2f}; {most}."
            )
    return findings


def _overlap(group: GroupComparison) -> str:
    """Whether the batches alone could make a difference of the means."""
    sides = group.network_a, group.network_b
    if min(len(side) for side in sides) < 2:
        return "; with one batch of a side, nothing says how much of that is chance"
    first, second = (f"{min(side):.4g} to {max(side):.4g}" for side in sides)
    apart = max(map(min, sides)) > min(map(max, sides))
    return f"; single batches have {first} and {second}, which {'do not overlap' if apart else 'overlap'}"


def _geometry_finding(group: GroupComparison) -> str:
    start = f"{group.title}: the head geometries differ by {group.geometry_distance:.3g}"
    if group.geometry_noise is None:
        return f"{start}; with one batch each, nothing says how much of that is chance."
    verdict = "more than" if group.geometry_distance > group.geometry_noise else "no more than"
    return f"{start}, {verdict} two batches of one model do ({group.geometry_noise:.3g})."
