"""The report's figures, one function each: it draws one group on the given ``ax`` and returns it.

Figure and table numbers are those of arXiv 2506.15541. Most people reach these through ``report.plot``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from oattn_hub.errors import InvalidInput
from oattn_hub.report.answer import GO, STAY, TOLERANCE, Answer
from oattn_hub.report.dendrogram import layout
from oattn_hub.report.group import GroupResult
from oattn_hub.report.theme import COST_MAP, ENTROPY_MAP, LAYER_MAP, LIGHT, MATRIX_MAP, SERIES, Theme
from oattn_hub.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from oattn_hub.report.contexts import Context
    from oattn_hub.report.evaluation import EvaluationSection, ScoreResult

_LABELLED_LEAVES = 80  # more leaf labels than this cannot be read at card width
_COLOURINGS = ("layer", "entropy")
_DASHES = ("-", (0, (6, 2)), (0, (2, 2)), (0, (8, 2, 2, 2)), "-.")
_NAMED_TOKENS = 64  # more tokens than this cannot be read beside a matrix


def draw_heads(ax: Axes, group: GroupResult, found: Answer | None = None, theme: Theme = LIGHT) -> Axes:
    """Every head, layers down, heads across: coloured by what losing it alone costs if ``found`` knows that, else by
    entropy. A cross can go, a dot must stay; without an answer, a ring is lowest in entropy in every batch."""
    from matplotlib.colors import LogNorm

    layers, rows = np.unique(group.layers, return_inverse=True)
    grid = np.full((len(layers), int(group.heads.max()) + 1), np.nan)
    ax.set_facecolor(theme.missing)
    if found is not None and found.alone:
        costs = np.array([found.alone.get(key, np.nan) for key in group.head_keys()])
        most = float(np.nanmax(costs, initial=1e-12))
        grid[rows, group.heads] = np.maximum(costs, most / 1000)
        image = ax.imshow(grid, cmap=COST_MAP, aspect="auto", interpolation="nearest", norm=LogNorm())
        _colour_bar(ax, image, "cost when removed alone")
        title = "What losing one head costs"
    else:
        grid[rows, group.heads] = group.haar.mean_entropies
        image = ax.imshow(grid, cmap=ENTROPY_MAP, aspect="auto", interpolation="nearest")
        _colour_bar(ax, image, "head entropy")
        title = "Entropy of the heads"
    marks = _verdict_marks(ax, group, rows, found)
    _integer_ticks(ax.xaxis, np.arange(grid.shape[1]))
    _integer_ticks(ax.yaxis, layers)
    ax.set(
        xlabel="head", ylabel="layer", title=f"{title} ({group.name})\n{marks}"
    )  # a line of its own: no map is too narrow for it
    return ax


def _verdict_marks(ax: Axes, group: GroupResult, rows: Array, found: Answer | None) -> str:
    """Mark the heads, and say what the marks mean."""
    from matplotlib.patheffects import withStroke

    if found is None or not found.verdicts:
        lowest = group.ranking.bottom_counts == group.n_batches
        ax.plot(group.heads[lowest], rows[lowest], "o", ms=4, mfc="white", mec="black", mew=0.8, ls="")
        return f"○ lowest {100 * group.ranking.fraction:.0f} % in every batch"
    verdicts = np.array([found.verdicts.get(key, "") for key in group.head_keys()])
    halo = [withStroke(linewidth=4, foreground="white")]
    for verdict, mark, size in ((GO, "x", 7), (STAY, "o", 4)):
        chosen = verdicts == verdict
        style: dict[str, Any] = {"ms": size, "mew": 1.8, "color": "#111111", "ls": "", "path_effects": halo}
        ax.plot(group.heads[chosen], rows[chosen], mark, **style)
    unclear = np.array([key in set(found.unclear) for key in group.head_keys()], dtype=bool)
    style = {"marker": "$?$", "ms": 7, "mew": 0.4, "color": "#111111", "ls": "", "path_effects": halo}
    ax.plot(group.heads[unclear], rows[unclear], **style)
    return "× can go, ● must stay" + (f", ? alone perhaps over {TOLERANCE:g}" if unclear.any() else "")


def draw_costs(
    ax: Axes,
    section: EvaluationSection,
    metric: str | None = None,
    scores: Sequence[str] | None = None,
    theme: Theme = LIGHT,
) -> Axes:
    """What removing heads costs, one named line a score; at most five unless ``scores`` names others.

    Args:
        ax: where to draw.
        section: what was measured.
        metric: name of a metric; the divergence if left out.
        scores: names of scores; if left out the three that cost least, the paper's rule and random removal.
        theme: colours.
    """
    info = next((m for m in section.metrics if m.name == metric), None) if metric else section.metrics[0]
    if info is None:
        known = ", ".join(m.name for m in section.metrics)
        raise InvalidInput(f"metric is {metric!r}; this evaluation has {known}.")
    shown = [section.score(name) for name in scores] if scores else shown_scores(section)
    percent = 100 * np.array(section.fractions)
    ends = []
    for number, result in enumerate(shown):
        curve = result.curves[info.name]
        random = result.name == "random"
        colour, dash = ("0.5", "--") if random else (SERIES[number % len(SERIES)], _DASHES[number % len(_DASHES)])
        ax.fill_between(percent, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
        ax.plot(percent, curve.mean, color=colour, linestyle=dash, marker="o", markersize=4)
        ends.append((curve.mean[-1], result.title, colour))
    ax.axhline(info.baseline, color=theme.faint, linewidth=0.8, zorder=0)
    ax.set(xlabel="heads removed, %", ylabel=info.title, title="What removing heads costs")
    ax.set_xlim(0, percent[-1])
    _label_ends(ax, ends, float(percent[-1]))
    return ax


def shown_scores(section: EvaluationSection, most: int = 5) -> list[ScoreResult]:
    """The scores a chart shows at first: the paper's rule, random removal, and the best of the others."""
    always = [result for result in section.scores if result.name in ("haar", "random")]
    others = [result for result in section.scores if result not in always]
    return [*others[: most - len(always)], *always]


def _label_ends(ax: Axes, ends: list[tuple[float, str, str]], x: float) -> None:
    """The lines' names at their ends, pushed apart until none covers another."""
    low, high = ax.get_ylim()
    step, place = (high - low) * 0.055, -np.inf
    for value, title, colour in sorted(ends):
        place = max(value, place + step)
        ax.text(1.015 * x, place, title, color=colour, va="center", fontsize=9)


def draw_batches(ax: Axes, group: GroupResult, theme: Theme = LIGHT) -> Axes:
    """Entropy of every head in every batch (Fig. 5), heads in model order, the mean on top."""
    index = np.arange(group.n_heads)
    ax.plot(index, group.haar.entropies.T, ".", ms=3, color=SERIES[4], alpha=0.6, zorder=2)
    ax.plot(index, group.haar.mean_entropies, lw=1.2, color=SERIES[5], zorder=3, label="mean")
    ax.plot([], [], ".", color=SERIES[4], label=f"{group.n_batches} batches")
    starts = np.flatnonzero(np.diff(group.layers, prepend=-1))
    for start in starts[1:]:
        ax.axvline(start - 0.5, color=theme.faint, lw=0.6, zorder=1)
    keep = starts[:: max(1, len(starts) // 12)]
    ax.set_xticks(keep, [str(layer) for layer in group.layers[keep]])
    ax.set(xlabel="layer (heads side by side)", ylabel="head entropy", title=f"Entropies per batch ({group.name})")
    ax.set_xlim(-0.5, group.n_heads - 0.5)
    ax.legend(ncols=2, loc="upper right")
    return ax


def draw_diffusion(ax: Axes, group: GroupResult, colour: str = "layer", theme: Theme = LIGHT) -> Axes:
    """Diffusion map of the heads (Fig. 3a, d), in 2D or, on a 3D ``ax``, in 3D; coloured by layer or by entropy."""
    values, name, cmap = _head_colours(group, colour)
    dimensions = 3 if ax.name == "3d" else 2
    missing = max(0, dimensions - group.geometry.diffusion.shape[1])
    points = np.pad(group.geometry.diffusion[:, :dimensions], ((0, 0), (0, missing)))
    style: dict[str, Any] = {"c": values, "cmap": cmap, "s": 22, "edgecolors": theme.background, "linewidths": 0.4}
    dots = ax.scatter(*points.T, **style)
    _colour_bar(ax, dots, name)
    ax.set(title=f"Diffusion map of the heads ({group.name})", xlabel="coordinate 1", ylabel="coordinate 2")
    if dimensions == 3:
        _style_3d(ax, theme)
    else:
        ax.tick_params(labelbottom=False, labelleft=False, length=0)
    return ax


def draw_affinity(ax: Axes, group: GroupResult, theme: Theme = LIGHT) -> Axes:
    """Affinity between heads in tree order (Fig. 3b, e): near heads side by side, folders as blocks."""
    order = list(
        dict.fromkeys(group.geometry.affinity_rows[group.geometry.tree.leaf_order].tolist())
    )  # each landmark once
    image = ax.imshow(
        group.geometry.affinity[np.ix_(order, order)], cmap=ENTROPY_MAP, vmin=0, vmax=1, interpolation="nearest"
    )
    _colour_bar(ax, image, "affinity")
    ax.set(title=f"Head affinity in tree order ({group.name})", xlabel="head", ylabel="head")
    ax.tick_params(labelbottom=False, labelleft=False, length=0)
    return ax


def draw_tree(ax: Axes, group: GroupResult, theme: Theme = LIGHT) -> Axes:
    """The head tree (Fig. 3c, f) over two strips: each head's layer and its entropy."""
    from matplotlib.collections import LineCollection

    tree = layout(group.geometry.head_labels, group.geometry.tree.leaf_order)
    ax.add_collection(LineCollection(list(tree.segments()), colors=theme.text, linewidths=_line_width(group.n_heads)))
    for row, (colour, name) in enumerate((("layer", "layer"), ("entropy", "entropy"))):
        values, _, cmap = _head_colours(group, colour)
        top = -0.03 - 0.075 * row
        strip = (-0.5, group.n_heads - 0.5, top - 0.06, top)
        ax.imshow(values[tree.order][None], cmap=cmap, aspect="auto", extent=strip, interpolation="nearest")
        ax.text(-0.012, (top - 0.03 + 0.2) / 1.25, name, ha="right", va="center", fontsize=9, transform=ax.transAxes)
    ax.set(xlim=(-0.5, group.n_heads - 0.5), ylim=(-0.2, 1.05), title=f"Tree of the heads ({group.name})")
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    keys = group.head_keys()
    if group.n_heads <= _LABELLED_LEAVES:
        labels = ["{}.{}".format(*keys[item]) for item in tree.order]
        ax.set_xticks(np.arange(group.n_heads), labels, rotation=90, fontsize=7)
        ax.set_xlabel("layer.head")
    else:
        ax.set_xticks([])
        ax.set_xlabel(f"{group.n_heads} heads in tree order")
    return ax


def draw_coefficients(ax: Axes, group: GroupResult, layer: int, head: int, theme: Theme = LIGHT) -> Axes:
    """Expansion coefficients of one head (Fig. 4): the bi-Haar functions of largest support, largest first."""
    values = np.abs(group.haar.coefficients[head_index(group, layer, head)])
    ax.set_yscale("log")
    ax.set_ylim(_decades(values))
    ax.vlines(np.arange(len(values)), ax.get_ylim()[0], values, color=SERIES[4], lw=1.0)
    ax.set(xlabel="query-key function, largest support first", ylabel="|coefficient|")
    ax.set_title(f"Layer {layer}, head {head}: entropy {values.sum():.3g} ({len(values)} functions)")
    return ax


def draw_haar_basis(ax: Axes, group: GroupResult, theme: Theme = LIGHT) -> Axes:
    """Haar functions of the head tree (Fig. 4c, f): one column a function, heads down in tree order."""
    from oattn_hub.geometry import haar_basis

    basis = np.asarray(haar_basis(group.geometry.tree))[group.geometry.tree.leaf_order]
    scaled = np.sign(basis) * np.sqrt(np.abs(basis))  # wide functions are small; the root shows them beside narrow ones
    image = ax.imshow(scaled, cmap="PuOr", vmin=-1, vmax=1, aspect="auto", interpolation="nearest")
    _colour_bar(ax, image, "value (signed square root)")
    ax.set(xlabel="Haar function, coarse to fine", ylabel="head in tree order", title=f"Haar basis ({group.name})")
    return ax


def draw_attention(
    ax: Axes, group: GroupResult, layer: int, head: int, organised: bool, kind: str, theme: Theme = LIGHT
) -> Axes:
    """One head's attention before or after the trees order its queries and keys (Fig. 1), reduced for display."""
    index = head_index(group, layer, head)
    values = sample_matrix(group, index, organised)
    _draw_matrix(ax, values, kind, theme)
    state = "after organisation" if organised else "before"
    ax.set(title=f"Layer {layer}, head {head}, {state}", xlabel="key", ylabel="query")
    ax.tick_params(labelbottom=False, labelleft=False, length=0)
    return ax


def draw_head(
    ax: Axes,
    group: GroupResult,
    layer: int,
    head: int,
    context: Context | None,
    number: int = 0,
    theme: Theme = LIGHT,
) -> Axes:
    """One head's attention in one context, with its tokens at the sides where they can be read."""
    values = sample_matrix(group, head_index(group, layer, head), context=number)
    kind = group.samples[number].kind
    _draw_matrix(ax, values, kind, theme)
    ax.set(title=f"Layer {layer}, head {head}, context {number}", xlabel="key", ylabel="query")
    decoder = group.name.startswith(("decoder", "cross"))
    _position_ticks(ax.yaxis, context and context.axis(group.n_queries, decoder), values.shape[0])
    _position_ticks(
        ax.xaxis, context and context.axis(group.n_keys, decoder and group.name != "cross"), values.shape[1]
    )
    ax.tick_params(axis="x", rotation=90)
    return ax


def _draw_matrix(ax: Axes, values: Array, kind: str, theme: Theme) -> None:
    """A matrix in the colours of the page: one token that all look at does not leave the rest black."""
    shown = np.sqrt(values) if kind == "probs" else values
    share = min(1.0, max(0.005, 1.2 / shown.shape[1]))  # a column of entries, and a fifth, has the last colour
    brightest = 1.0
    if np.isfinite(shown).any():
        least, most = float(np.nanmin(shown)), float(np.nanmax(shown))
        brightest = max(float(np.nanquantile(shown, 1 - share)), least + 0.03 * (most - least))
    ax.set_facecolor(theme.missing)
    image = ax.imshow(
        shown, cmap=MATRIX_MAP, vmax=brightest, interpolation="nearest", aspect=shown.shape[1] / shown.shape[0]
    )
    brighter = bool(np.nanmax(shown, initial=-np.inf) > brightest)
    _colour_bar(ax, image, f"√{kind}" if kind == "probs" else kind, extend="max" if brighter else "neither")


def _position_ticks(axis: Any, positions: Any, shown: int) -> None:
    """Tokens if they can be read, seconds if it is sound, else numbers."""
    if positions is not None and positions.kind == "text" and shown <= _NAMED_TOKENS:
        axis.set_ticks(np.arange(shown), [token.strip() or token for token in positions.tokens], fontsize=6)
    elif positions is not None and positions.kind == "time":
        places = np.linspace(0, shown - 1, 6)
        axis.set_ticks(places, [f"{positions.seconds * place / shown:.1f} s" for place in places])


def sample_matrix(group: GroupResult, index: int, organised: bool = False, context: int = 0) -> Array:
    """One head's attention in one of the contexts that the report keeps, NaN where masked."""
    if not 0 <= context < len(group.samples):
        raise InvalidInput(
            f"The report keeps {len(group.samples)} contexts of group {group.name!r}, counted from 0; {context} is not "
            "among them. Analyse again if it keeps none."
        )
    sample = group.samples[context]
    values = sample.matrix(index)
    return values[np.ix_(sample.query_order, sample.key_order)] if organised else values


def draw_network(ax: Axes, group: GroupResult, theme: Theme = LIGHT) -> Axes:
    """Tri-Haar coefficients of the whole network, one line per batch (Fig. 6), largest support first."""
    values = np.abs(group.haar.network_coefficients)
    for batch, row in enumerate(values):
        total = group.haar.network_entropies[batch]
        ax.plot(row, ".", ms=5, alpha=0.85, color=SERIES[batch % len(SERIES)], label=f"batch {batch}: {total:.4g}")
    ax.set_yscale("log")
    ax.set_ylim(_decades(values))
    ax.set(xlabel="tri-Haar function, largest support first", ylabel="|coefficient|")
    ax.set_title(f"Network entropies ({group.name})")
    ax.legend(ncols=3, loc="upper right", handletextpad=0.1, columnspacing=1.0)
    return ax


def draw_table(ax: Axes, group: GroupResult, rows: int = 3, theme: Theme = LIGHT) -> Axes:
    """The heads most often in the top and bottom 10 % (Table 1)."""
    cells = [[str(row + 1), *pair] for row, pair in enumerate(top_and_bottom(group, rows))]
    ax.axis("off")
    header = ["", "top (layer, head)", "batches", "bottom (layer, head)", "batches"]
    table = ax.table(cells, colLabels=header, cellLoc="center", loc="center", colWidths=[0.08, 0.28, 0.16, 0.3, 0.16])
    table.auto_set_font_size(False)
    table.set_fontsize(10)
    table.scale(1, 1.5)
    for (row, _), cell in table.get_celld().items():
        cell.set(facecolor="none", edgecolor=theme.faint)
        cell.get_text().set(color=theme.text, weight="bold" if row == 0 else "normal")
    ax.set_title(f"Most often in the top and bottom 10 % of {group.n_batches} batches ({group.name})")
    return ax


def top_and_bottom(group: GroupResult, rows: int = 3) -> list[tuple[str, str, str, str]]:
    """Table 1's rows: top head, in how many batches, bottom head, in how many; ties by mean entropy."""
    mean = group.haar.mean_entropies
    top = np.lexsort((-mean, -group.ranking.top_counts))[:rows]
    bottom = np.lexsort((mean, -group.ranking.bottom_counts))[:rows]
    names = [f"{layer}.{head}" for layer, head in group.head_keys()]
    return [
        (
            names[t],
            f"{group.ranking.top_counts[t]}/{group.n_batches}",
            names[b],
            f"{group.ranking.bottom_counts[b]}/{group.n_batches}",
        )
        for t, b in zip(top.tolist(), bottom.tolist(), strict=True)
    ]


def head_index(group: GroupResult, layer: int, head: int) -> int:
    """Position of a head on the group's head axis."""
    found = np.flatnonzero((group.layers == layer) & (group.heads == head))
    if found.size == 0:
        raise InvalidInput(
            f"No head {head} in layer {layer} of group {group.name!r}; layers: {np.unique(group.layers).tolist()}."
        )
    return int(found[0])


def _head_colours(group: GroupResult, colour: str) -> tuple[Array, str, str]:
    if colour not in _COLOURINGS:
        raise InvalidInput(f"Cannot colour heads by {colour!r}; choose one of {', '.join(_COLOURINGS)}.")
    if colour == "layer":
        return group.layers, "layer", LAYER_MAP
    return group.haar.mean_entropies, "head entropy", ENTROPY_MAP


def _colour_bar(ax: Axes, mappable: Any, label: str, extend: str = "neither") -> None:
    figure = ax.get_figure()
    assert figure is not None
    bar = figure.colorbar(mappable, ax=ax, fraction=0.046, pad=0.14 if ax.name == "3d" else 0.03, extend=extend)
    bar.set_label(label)
    bar.outline.set_visible(False)


def _integer_ticks(axis: Any, names: Array) -> None:
    """At most about 16 ticks, at whole positions, named by ``names``."""
    step = max(1, -(-len(names) // 16))
    axis.set_ticks(np.arange(0, len(names), step), [str(name) for name in names[::step]])


def _decades(values: Array, count: int = 4) -> tuple[float, float]:
    """Limits of a logarithmic axis that shows the largest values and ``count`` decades below; the rest is rounding."""
    top = float(values.max(initial=0.0)) or 1.0
    return top * 10.0**-count, top * 2.0


def _line_width(n_leaves: int) -> float:
    return float(np.clip(90 / n_leaves, 0.3, 1.2))


def _style_3d(ax: Any, theme: Theme) -> None:
    ax.set_zlabel("coordinate 3")
    for axis in (ax.xaxis, ax.yaxis, ax.zaxis):
        axis.set_pane_color(theme.missing)
        axis.set_ticklabels([])
