"""``report.plot``: the figures for notebooks, and all of them as files for cards.

Each method draws on the ``ax`` it is given, or on a new figure, and returns the axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from oattn_hub.errors import InvalidInput
from oattn_hub.files import atomic_path, safe_name
from oattn_hub.lazy import require
from oattn_hub.report import figures
from oattn_hub.report.answer import Answer, answer
from oattn_hub.report.group import GroupResult
from oattn_hub.report.theme import Theme, figure_style, show_letters

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from oattn_hub.report.comparison import Comparison
    from oattn_hub.report.evaluation import EvaluationSection
    from oattn_hub.report.report import Report
    from oattn_hub.report.theory import TheorySection
    from oattn_hub.report.validation import ValidationSection

Drawing = Callable[..., Any]  # draw(ax, theme=…)


@dataclass(frozen=True)
class ReportPlots:
    """The figures of one report; ``dark=True`` for dark ground."""

    report: Report
    dark: bool = False

    def heads(self, group: str | None = None, ax: Axes | None = None) -> Axes:
        """The map, layers x heads: what losing each head costs where that was measured, else entropies."""
        return self._draw(ax, (7, 4), figures.draw_heads, self.report.group(group), answer(self.report))

    def evaluation(
        self, metric: str | None = None, scores: Sequence[str] | None = None, ax: Axes | None = None
    ) -> Axes:
        """What removing heads costs, score by score (needs ``report.with_evaluation``)."""
        if self.report.evaluation is None:
            raise InvalidInput(
                "This report has no evaluation. Run oh.pruning.evaluate(report) and report.with_evaluation(...)."
            )
        return self._draw(ax, (8, 4), figures.draw_costs, self.report.evaluation, metric, scores)

    def head(self, layer: int, head: int, context: int = 0, ax: Axes | None = None) -> Axes:
        """One head's attention in one of the kept contexts, with its tokens."""
        group = self.report.group(self.report.head(layer, head).group)
        found = next((c for c in self.report.contexts if c.batch == context), None)
        return self._draw(ax, (7, 6), figures.draw_head, group, layer, head, found, context)

    def batches(self, group: str | None = None, ax: Axes | None = None) -> Axes:
        """Entropies per batch (Fig. 5)."""
        return self._draw(ax, (8, 3.5), figures.draw_batches, self.report.group(group))

    def diffusion(
        self, group: str | None = None, colour: str = "layer", ax: Axes | None = None, three: bool = False
    ) -> Axes:
        """Diffusion map of the heads (Fig. 3a, d), coloured by ``"layer"`` or ``"entropy"``; in 3D if ``three``."""
        result = self.report.group(group)
        return self._draw(ax, (6, 5), figures.draw_diffusion, result, colour, three=three)

    def affinity(self, group: str | None = None, ax: Axes | None = None) -> Axes:
        """Head affinity in tree order (Fig. 3b, e)."""
        return self._draw(ax, (6, 5), figures.draw_affinity, self.report.group(group))

    def tree(self, group: str | None = None, ax: Axes | None = None) -> Axes:
        """Head tree (Fig. 3c, f)."""
        return self._draw(ax, (9, 4), figures.draw_tree, self.report.group(group))

    def haar_basis(self, group: str | None = None, ax: Axes | None = None) -> Axes:
        """Haar functions of the head tree (Fig. 4c, f)."""
        return self._draw(ax, (6, 5), figures.draw_haar_basis, self.report.group(group))

    def network(self, group: str | None = None, ax: Axes | None = None) -> Axes:
        """Tri-Haar coefficients per batch (Fig. 6)."""
        return self._draw(ax, (7, 4), figures.draw_network, self.report.group(group))

    def table(self, group: str | None = None, rows: int = 3, ax: Axes | None = None) -> Axes:
        """The heads most often in the top and bottom 10 % (Table 1)."""
        return self._draw(ax, (7, 0.6 + 0.35 * (rows + 1)), figures.draw_table, self.report.group(group), rows)

    def coefficients(self, layer: int, head: int, ax: Axes | None = None) -> Axes:
        """Expansion coefficients of one head by support (Fig. 4)."""
        group = self.report.group(self.report.head(layer, head).group)
        return self._draw(ax, (7, 3.5), figures.draw_coefficients, group, layer, head)

    def attention(self, layer: int, head: int, organised: bool = True, ax: Axes | None = None) -> Axes:
        """One head's attention after (or before) organisation (Fig. 1)."""
        group = self.report.group(self.report.head(layer, head).group)
        kind = self.report.settings.kind
        return self._draw(ax, (5, 4.4), figures.draw_attention, group, layer, head, organised, kind)

    def _draw(self, ax: Axes | None, size: tuple[float, float], draw: Drawing, *args: Any, three: bool = False) -> Axes:
        require("matplotlib", what="Drawing figures")
        import matplotlib
        import matplotlib.pyplot as plt

        with figure_style(self.dark) as theme:
            if ax is None:
                projection = {"projection": "3d"} if three else None
                ax = plt.subplots(figsize=size, layout="constrained", subplot_kw=projection)[1]
            drawn: Axes = draw(ax, *args, theme=theme)
            interactive = matplotlib.is_interactive()
        # a notebook's first figure turns this on; leaving the style turned it off again, and no later figure was shown
        matplotlib.interactive(interactive)
        return drawn


@dataclass(frozen=True)
class Panel:
    """One axes of a figure: what draws on it, and its projection."""

    draw: Drawing
    projection: str | None = None


@dataclass(frozen=True)
class PlannedFigure:
    """A figure to be drawn: its file name's stem, its size in inches and its panels, side by side."""

    name: str
    size: tuple[float, float]
    panels: tuple[Panel, ...]


def save_figures(report: Report, folder: Path, dark: bool = False) -> list[Path]:
    """Draw every figure of every group, and of the sections, as PNG files into ``folder``."""
    paths = []
    for planned in planned_figures(report):
        path = folder / f"{planned.name}{'-dark' if dark else ''}.png"
        with atomic_path(path) as draft:
            draft.write_bytes(render(planned, dark))
        paths.append(path)
    return paths


def render(planned: PlannedFigure, dark: bool = False) -> bytes:
    """The PNG of one figure; equal figures give equal bytes."""
    require("matplotlib", what="Drawing figures")
    from matplotlib.figure import Figure

    with figure_style(dark) as theme:
        figure = Figure(figsize=planned.size, layout="constrained")
        for index, panel in enumerate(planned.panels):
            ax = figure.add_subplot(1, len(planned.panels), index + 1, projection=panel.projection)
            panel.draw(ax, theme=theme)
        show_letters(figure)
        png = BytesIO()
        figure.savefig(png, format="png", metadata={"Software": None})
    return png.getvalue()


def planned_figures(report: Report) -> list[PlannedFigure]:
    """Every figure of the report, in reading order."""
    planned, found = [], answer(report)
    for name, group in report.groups.items():
        suffix = group_suffix(report, name)
        own = _group_figures(group, report.settings.kind, found)
        planned += [replace(figure, name=figure.name + suffix) for figure in own]
    planned += section_figures("theory", report.theory)
    planned += section_figures("validation", report.validation)
    return [*planned, *evaluation_figures(report.evaluation)]


def group_suffix(report: Report, group: str) -> str:
    """What the names of a group's figures end with; a group's name comes out of a file and could lead anywhere."""
    return "" if len(report.groups) == 1 else f"-{safe_name(group)}"


def evaluation_figures(section: EvaluationSection | None) -> list[PlannedFigure]:
    """The divergence and, where it is another one, the task's own metric."""
    if section is None:
        return []
    charts = {"cost_of_removal": section.metrics[0].name, "task_metric": section.primary.name}
    if len(section.metrics) == 1:
        del charts["task_metric"]
    return [
        PlannedFigure(
            f"evaluation-{name}", (9, 4), (Panel(partial(figures.draw_costs, section=section, metric=metric)),)
        )
        for name, metric in charts.items()
    ]


def section_figures(title: str, section: TheorySection | ValidationSection | Comparison | None) -> list[PlannedFigure]:
    """The figures of a report's section: one for each of its ``draw_*`` methods."""
    names = sorted(name for name in dir(section) if name.startswith("draw_"))
    return [
        PlannedFigure(
            f"{title}-{name.removeprefix('draw_')}", (7, 4), (Panel(partial(_plain, getattr(section, name))),)
        )
        for name in names
    ]


def _plain(draw: Drawing, ax: Axes, theme: Theme) -> None:
    """Sections draw with the style in force and take no theme of their own."""
    draw(ax)


def _group_figures(group: GroupResult, kind: str, found: Answer) -> Iterator[PlannedFigure]:
    def panel(draw: Drawing, projection: str | None = None, **options: Any) -> Panel:
        return Panel(partial(draw, group=group, **options), projection)

    extremes = {"lowest": int(np.argmin(group.ranking.ranks)), "highest": int(np.argmax(group.ranking.ranks))}
    picked = {name: group.head_keys()[index] for name, index in extremes.items()}
    yield PlannedFigure("heads", (7, 4), (panel(figures.draw_heads, found=found),))
    if found.alone:
        yield PlannedFigure("heads-entropy", (7, 4), (panel(figures.draw_heads),))
    yield PlannedFigure("batches", (8, 3.5), (panel(figures.draw_batches),))
    for name, size, projection in (("diffusion", (11, 4.6), None), ("diffusion-3d", (11, 4.8), "3d")):
        colourings = ("layer", "entropy")
        panels = tuple(panel(figures.draw_diffusion, projection, colour=colour) for colour in colourings)
        yield PlannedFigure(name, size, panels)
    yield PlannedFigure("affinity", (6, 5), (panel(figures.draw_affinity),))
    yield PlannedFigure("tree", (9, 4), (panel(figures.draw_tree),))
    yield PlannedFigure("haar-basis", (6, 5), (panel(figures.draw_haar_basis),))
    expansions = tuple(panel(figures.draw_coefficients, layer=layer, head=head) for layer, head in picked.values())
    yield PlannedFigure("coefficients", (11, 3.6), expansions)
    for name, (layer, head) in picked.items() if group.samples else ():
        place: dict[str, Any] = {"layer": layer, "head": head, "kind": kind}
        views = tuple(panel(figures.draw_attention, organised=organised, **place) for organised in (False, True))
        yield PlannedFigure(f"attention-{name}", (10, 4.2), views)
    yield PlannedFigure("network", (7, 4), (panel(figures.draw_network),))
    yield PlannedFigure("table", (7, 2.1), (panel(figures.draw_table),))
