"""The experiments of arXiv 2506.15541 on one model: Figures 1-6 and Tables 1-2, our numbers beside the paper's.

`vit_cifar10.py` and `transfo_xl.py` load a model and its data and call `run`, which writes `results.md` and six PNGs.
"""

from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

import oattn_hub as oh
from oattn_hub.attention import CalibrationInputs, LoadedModel, capture_inputs
from oattn_hub.cli.terminal import progress_bar
from oattn_hub.geometry import organise_head, paraproduct, softmax_invariance
from oattn_hub.geometry.softmax import SoftmaxInvariance
from oattn_hub.report import figures
from oattn_hub.report.figures import top_and_bottom
from oattn_hub.report.plot import Panel, PlannedFigure, render

KINDS = ("scores", "probs")
BATCHES = 10  # the paper's; its Table 2 is over 5 of them, its Table 1 over
TABLE_1_BATCHES = 6


@dataclass(frozen=True)
class Printed:
    """What the paper prints about one of its two models: whose tensors it took, Table 1 and Table 2."""

    model: str
    n_heads: int
    kind: str
    top: tuple[str, ...]
    bottom: tuple[str, ...]
    network: tuple[float, ...]


VIT = Printed(
    model="ViT-B/16 on CIFAR-10 (144 heads, 197 tokens)",
    n_heads=144,
    kind="probs",
    top=("(2, 5)", "(3, 6)", "(2, 10)"),
    bottom=("(2, 4)", "(3, 10)", "(1, 11)"),
    network=(6.84, 3.30, 2.47, 5.47, 9.77),
)
TRANSFORMER_XL = Printed(
    model="Transformer-XL on WikiText-103 (128 heads, 256 tokens)",
    n_heads=128,
    kind="scores",
    top=("(13, 3)", "(1, 0)", "(7, 7)"),
    bottom=("(6, 0)", "(7, 5)", "(3, 5)"),
    network=(1200.20, 2473.37, 2476.25, 1902.98, 2188.69),
)


def run(printed: Printed, loaded: LoadedModel, inputs: CalibrationInputs, out: Path, seed: int = 0) -> Path:
    """Measure `loaded` on `inputs`, scores and probs, and write figures and `results.md` into `out`."""
    with progress_bar() as progress:
        store = capture_inputs(loaded, inputs, kinds=KINDS, progress=progress)
        reports = {kind: oh.Analyzer(kind=kind, seed=seed, progress=progress).run(store) for kind in KINDS}
        sample = {kind: store.tensor(0, kind) for kind in KINDS}
        invariance = softmax_invariance(sample["scores"], sample["probs"], progress=progress)
    out.mkdir(parents=True, exist_ok=True)
    picked = np.random.default_rng(seed).choice(len(store.heads()), size=2, replace=False).tolist()
    for figure in plan_figures(printed, reports, sample, picked):
        save_small(render(figure), out / f"{figure.name}.png")
    results = out / "results.md"
    results.write_text(write_results(printed, reports, invariance, loaded, inputs), encoding="utf-8")
    return results


def save_small(png: bytes, path: Path) -> None:
    """Keep a figure 1,200 pixels wide in 200 colours, so that a repository can hold it."""
    image = Image.open(BytesIO(png)).convert("RGB")
    image.thumbnail((1200, 1200))
    image.quantize(200).save(path, optimize=True)


# Figures --------------------------------------------------------------------------------------------------------------


def plan_figures(
    printed: Printed, reports: dict[str, oh.Report], sample: dict[str, np.ndarray], picked: list[int]
) -> list[PlannedFigure]:
    """The paper's figures of one model; 1-5 of the kind the paper took, 6 of both kinds."""
    group = reports[printed.kind].group(None)
    names = [dict(zip(("layer", "head"), group.head_keys()[head], strict=True)) for head in picked]
    title = "layer {layer}, head {head}".format(**names[0])

    def panel(draw, projection=None, **options) -> Panel:
        return Panel(partial(draw, **{"group": group, **options}), projection)

    network = [panel(_draw_network, group=reports[kind].group(None), kind=kind) for kind in KINDS]
    structure = (panel(figures.draw_diffusion, "3d"), panel(figures.draw_affinity), panel(figures.draw_tree))
    expansions = (*(panel(figures.draw_coefficients, **name) for name in names), panel(figures.draw_haar_basis))
    return [
        PlannedFigure("figure-1", (9, 4), organisation_panels(sample[printed.kind][:, :, picked[0]], title)),
        PlannedFigure("figure-2", (9, 4), paraproduct_panels(sample["scores"][:, :, picked[0]], title)),
        PlannedFigure("figure-3", (16, 4.6), structure),
        PlannedFigure("figure-4", (16, 4.2), expansions),
        PlannedFigure("figure-5", (9, 3.5), (panel(figures.draw_batches),)),
        PlannedFigure("figure-6", (12, 4), tuple(network)),
    ]


def _draw_network(ax, group, kind: str, theme) -> None:
    figures.draw_network(ax, group, theme=theme).set_title(f"Tri-Haar coefficients, {kind}")


def organisation_panels(matrix: np.ndarray, title: str) -> tuple[Panel, ...]:
    """A head as it is and with its queries and keys in the order of their trees (Figure 1); no crop to 128."""
    organised = organise_head(matrix).matrix
    return _matrix_panel(matrix, title), _matrix_panel(organised, "organised")


def paraproduct_panels(scores: np.ndarray, title: str) -> tuple[Panel, ...]:
    """Theorem 1's approximation of softmax on the organised head, and softmax itself (Figure 2)."""
    expansion = paraproduct(organise_head(scores).matrix, "softmax")
    error = float(expansion.relative_residual)
    return (
        _matrix_panel(expansion.total, f"approximation, relative error {error:.2f}"),
        _matrix_panel(expansion.value, f"softmax, {title}"),
    )


def _matrix_panel(matrix: np.ndarray, title: str) -> Panel:
    return Panel(partial(_draw_matrix, matrix=matrix, title=title))


def _draw_matrix(ax, matrix: np.ndarray, title: str, theme) -> None:
    low, high = np.quantile(matrix, [0.005, 0.995])  # a few extreme entries would leave the rest one colour
    image = ax.imshow(matrix, cmap="magma", vmin=low, vmax=high, interpolation="nearest")
    ax.figure.colorbar(image, ax=ax, shrink=0.8)
    ax.set(title=title, xlabel="key", ylabel="query")


# Tables and words -----------------------------------------------------------------------------------------------------


def write_results(
    printed: Printed,
    reports: dict[str, oh.Report],
    invariance: SoftmaxInvariance,
    loaded: LoadedModel,
    inputs: CalibrationInputs,
) -> str:
    """`results.md`: tables, what agrees with the paper and what does not, figures."""
    network = reports["probs"].group(None).network_record()
    lines = [
        f"# {Path(loaded.model_id).name} against the paper's {printed.model}",
        "",
        f"{network.n_layers} layers, {network.n_heads} heads, attention {network.n_queries} x {network.n_keys}, "
        f"{len(inputs)} batches: {inputs.description}. The paper's tensors of this model are {printed.kind}. Another "
        "model has other heads: what can agree with Table 1 are the counts, not the heads.",
        "",
        *table_1(printed, reports),
        "",
        *table_1_as_counted(printed, reports),
        "",
        *table_2(printed, reports),
        "",
        "## What agrees with the paper and what does not",
        "",
        *(f"- {sentence}" for sentence in findings(printed, reports, invariance)),
        "",
        *(f"![Figure {number}](figure-{number}.png)" for number in range(1, 7)),
    ]
    return "\n".join(lines) + "\n"


def table_1(printed: Printed, reports: dict[str, oh.Report]) -> list[str]:
    """Heads most often in the top and bottom 10 % over the batches."""
    ours = {kind: top_and_bottom(reports[kind].group(None), 3) for kind in KINDS}
    rows = [
        "**Table 1.** (layer, head) most often in the top and bottom 10 % of entropies, and in how many batches.",
        "",
        f"| | paper, {printed.kind} | batches | ours, scores | batches | ours, probs | batches |",
        "|---|---|---|---|---|---|---|",
    ]
    for side, paper, column in (("top", printed.top, 0), ("bottom", printed.bottom, 2)):
        for place, head in enumerate(paper):
            cells = [cell for kind in KINDS for cell in ours[kind][place][column : column + 2]]
            rows.append(f"| {side} {place + 1} | {head} | 6/6 | {' | '.join(cells)} |")
    return rows


def table_1_as_counted(printed: Printed, reports: dict[str, oh.Report]) -> list[str]:
    """Table 1 with the paper's 6 batches and the size of its sets, beside all of ours."""
    paper_size = round(printed.n_heads / 10)
    rows = [
        f"**Table 1 as the paper counts it.** It takes {TABLE_1_BATCHES} batches and sets of 10 %, {paper_size} of its "
        f"{printed.n_heads} heads. In how many batches the three most frequent heads are in the set, how many are "
        "in the bottom set of all batches, and how many would be if every batch ranked the heads at random.",
        "",
        "| kind | batches | heads in a set | top three | bottom three | always in the bottom | at random |",
        "|---|---|---|---|---|---|---|",
        f"| paper, {printed.kind} | {TABLE_1_BATCHES} | {paper_size} of {printed.n_heads} | 6, 6, 6 | 6, 6, 6 | "
        f"3 or more | {_always_by_chance(printed.n_heads, paper_size, TABLE_1_BATCHES):.2g} |",
    ]
    for kind in KINDS:
        entropies = reports[kind].group(None).haar.entropies
        own_size = max(1, round(entropies.shape[1] / 10))
        settings = ((TABLE_1_BATCHES, own_size), (TABLE_1_BATCHES, paper_size), (len(entropies), own_size))
        rows += [_counted_row(kind, entropies[:batches], size) for batches, size in dict.fromkeys(settings)]
    return rows


def _counted_row(kind: str, entropies: np.ndarray, size: int) -> str:
    n_batches, n_heads = entropies.shape
    size = min(size, n_heads)
    order = np.argsort(entropies, axis=1, kind="stable")
    low, high = (np.bincount(chosen.ravel(), minlength=n_heads) for chosen in (order[:, :size], order[:, -size:]))
    top, bottom = (", ".join(map(str, np.sort(counts)[::-1][:3])) for counts in (high, low))
    chance = _always_by_chance(n_heads, size, n_batches)
    always = np.count_nonzero(low == n_batches)
    return f"| {kind} | {n_batches} | {size} of {n_heads} | {top} | {bottom} | {always} | {chance:.2g} |"


def _always_by_chance(n_heads: int, size: int, batches: int) -> float:
    """How many heads would be in a set of this size in all batches if each batch drew it at random."""
    return float(n_heads * (size / n_heads) ** batches)


def table_2(printed: Printed, reports: dict[str, oh.Report]) -> list[str]:
    """Network entropies over the 100 tri-Haar functions of largest support."""
    ours = {kind: reports[kind].group(None).haar.network_entropies for kind in KINDS}
    rows = [
        "**Table 2.** Network entropy (sum of |coefficient| of the 100 tri-Haar functions of largest support).",
        "",
        f"| batch | paper, {printed.kind} | ours, scores | ours, probs |",
        "|---|---|---|---|",
    ]
    for batch, values in enumerate(zip(*ours.values(), strict=True)):
        paper = f"{printed.network[batch]:,.2f}" if batch < len(printed.network) else ""
        rows.append(f"| {batch + 1} | {paper} | {' | '.join(f'{value:,.2f}' for value in values)} |")
    return rows


def findings(printed: Printed, reports: dict[str, oh.Report], invariance: SoftmaxInvariance) -> list[str]:
    """Sentences computed from the numbers, each naming the paper's claim and ours."""
    return [
        *(_stability_finding(kind, reports[kind]) for kind in KINDS),
        _contrast_finding(reports),
        *_theorem_findings(invariance),
    ]


def _stability_finding(kind: str, report: oh.Report) -> str:
    group = report.group(None)
    ranking, always = group.ranking, group.stability_record()
    extreme = max(1, round(ranking.fraction * group.n_heads))
    return (
        f"Stability, {kind}: the paper's three lowest and three highest heads are the same in all 6 batches. Here "
        f"{len(always.always_bottom)} of the {extreme} lowest and {len(always.always_top)} of the {extreme} highest "
        f"heads stay so in all {group.n_batches} batches (mean Jaccard index of the bottom sets {ranking.jaccard:.2f}, "
        f"rank correlation between batches {ranking.spearman:.2f})."
    )


def _contrast_finding(reports: dict[str, oh.Report]) -> str:
    ours = {kind: float(reports[kind].group(None).haar.network_entropies.mean()) for kind in KINDS}
    paper = np.mean(TRANSFORMER_XL.network) / np.mean(VIT.network)
    return (
        f"Scores against probs: in the paper Transformer-XL's network entropy is {paper:,.0f} times ViT's, but one "
        f"column are scores and the other probs. On this one model scores give {ours['scores'] / ours['probs']:,.0f} "
        f"times the entropy of probs ({ours['scores']:,.1f} against {ours['probs']:,.2f} on average)."
    )


def _theorem_findings(invariance: SoftmaxInvariance) -> list[str]:
    heads = invariance.heads
    errors = np.median([[head.error, head.error_as_printed, head.corollary_error_scaled] for head in heads], axis=0)
    holds = [sum(getattr(head, name) for head in heads) for name in ("expansion_holds", "corollary_holds")]
    kept = next(agreement for agreement in invariance.agreements if agreement.source == "softmax")
    return [
        f"Theorem 1: the expansion is within 10 % of softmax on {holds[0]} of {len(heads)} heads (median relative "
        f"error {errors[0]:.2f}; {errors[1]:.2f} for eq. 12 as printed, without boundary terms).",
        f"Corollary 1 (A' = A'' = 1): within 10 % of softmax on {holds[1]} of {len(heads)} heads, scaled as well as it "
        f"can be (median relative error {errors[2]:.2f}).",
        f"Organisation before and after softmax: the affinities between heads correlate with {kept.head_affinity:.2f}, "
        f"the head trees with {kept.head_tree:.2f} (1 is unchanged, 0 is chance).",
    ]
