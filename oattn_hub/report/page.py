"""The page: one self-contained HTML file that shows a report, from disk and without a network.

Jinja fills in the words and tables; plotly.js, embedded from the plotly wheel, draws; ``page.js`` joins the two. Arrays
travel as deflated typed arrays in base64, so that a thousand heads stay a file one can mail.
"""

from __future__ import annotations

import base64
import json
import tempfile
import webbrowser
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from oattn_hub.files import write_text
from oattn_hub.report.dendrogram import layout
from oattn_hub.report.figures import top_and_bottom
from oattn_hub.report.group import Array, GroupResult
from oattn_hub.report.plot import PlannedFigure, render, section_figures
from oattn_hub.report.theme import ENTROPY_MAP, LAYER_MAP, MATRIX_MAP

if TYPE_CHECKING:
    from oattn_hub.report.comparison import Comparison
    from oattn_hub.report.evaluation import EvaluationSection
    from oattn_hub.report.report import Report
    from oattn_hub.report.theory import TheorySection

_AFFINITY_STEPS = 255
_COEFFICIENT_STEPS = 65535


@dataclass(frozen=True)
class PageFigure:
    """A still figure of the page, as data URLs for light and for dark ground."""

    name: str
    light: str
    dark: str


@dataclass(frozen=True)
class PageSection:
    """A section of findings, with an optional table and still figures."""

    title: str
    findings: list[str]
    figures: list[PageFigure]
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


def write_page(report: Report, path: Path, comparison: Comparison | None = None) -> Path:
    """Write the page of a report, and of its comparison with another if there is one."""
    from jinja2 import Environment, StrictUndefined
    from plotly.offline import get_plotlyjs

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(_resource("page.html.j2"))
    text = template.render(
        **_words(report),
        sections=_sections(report, comparison),
        css=_verbatim(_resource("page.css")),
        data=_verbatim(json.dumps(_page_data(report), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")),
        plotly=_verbatim(get_plotlyjs()),
        javascript=_verbatim(_resource("page.js")),
    )
    write_text(path, text)
    return path


def show_page(report: Report) -> Path:
    """Write the page to a temporary file and open it in the browser."""
    folder = Path(tempfile.mkdtemp(prefix="oattn-"))
    path = write_page(report, folder / "report.html")
    webbrowser.open(path.as_uri())
    return path


def _words(report: Report) -> dict[str, Any]:
    return {
        "model": report.model,
        "settings": report.settings,
        "network": report.network,
        "findings": report.findings(),
        "n_groups": len(report.groups),
        "most_batches": max(len(record.entropies) for record in report.network),
        "percent": _percent(report),
        "extremes": {name: top_and_bottom(group) for name, group in report.groups.items()},
        "about": _about(report),
    }


def _about(report: Report) -> list[tuple[str, str]]:
    model, settings, provenance = report.model, report.settings, report.provenance
    questionnaire = ", ".join(f"{name}={value}" for name, value in settings.questionnaire.items())
    return [
        ("Model", f"{model.id} at {model.revision} ({model.library}, adapter {model.adapter})"),
        ("Licence of the model", model.license or "not stated"),
        ("Data", f"{provenance.data} (SHA-256 {provenance.data_fingerprint})"),
        ("Again", provenance.command),
        ("Questionnaire", questionnaire),
        ("Entropies", f"sum of |coefficient| over the {settings.head_functions} widest query-key Haar functions"),
        ("Versions", ", ".join(f"{name} {version}" for name, version in provenance.versions.items())),
        ("Method", "Fasina, Pohle, Su, Coifman: Intrinsic and Extrinsic Organized Attention, arXiv 2506.15541"),
    ]  # fmt: skip


def _sections(report: Report, comparison: Comparison | None) -> list[PageSection]:
    sections = []
    if comparison is not None:
        sections.append(_section("Comparison", comparison, *comparison.table()))
    if report.evaluation is not None:
        sections.append(_section("Evaluation", report.evaluation, *report.evaluation.table()))
    if report.theory is not None:
        sections.append(_section("Theory", report.theory))
    return sections


def _section(
    title: str,
    section: TheorySection | EvaluationSection | Comparison,
    columns: Sequence[str] = (),
    rows: Sequence[Sequence[str]] = (),
) -> PageSection:
    return PageSection(title, section.findings, _stills(section_figures(title.lower(), section)), columns, rows)


def _stills(planned: list[PlannedFigure]) -> list[PageFigure]:
    def url(figure: PlannedFigure, dark: bool) -> str:
        return "data:image/png;base64," + base64.b64encode(render(figure, dark)).decode()

    return [PageFigure(figure.name.replace("_", " "), url(figure, False), url(figure, True)) for figure in planned]


def _page_data(report: Report) -> dict[str, Any]:
    return {
        "kind": report.settings.kind,
        "percent": _percent(report),
        "scales": {"entropy": _scale(ENTROPY_MAP), "layer": _scale(LAYER_MAP), "matrix": _scale(MATRIX_MAP)},
        "groups": [_group_data(group) for group in report.groups.values()],
    }


def _group_data(group: GroupResult) -> dict[str, Any]:
    return {
        "name": group.name,
        "queries": group.n_queries,
        "keys": group.n_keys,
        "batches": group.n_batches,
        "layerNames": list(group.layer_names),
        "arrays": {name: _pack(array) for name, array in _group_arrays(group).items()},
    }


def _group_arrays(group: GroupResult) -> dict[str, Array]:
    order = group.tree.leaf_order
    tree = layout(group.head_labels, order)
    magnitudes = np.abs(group.coefficients.astype(np.float64))
    largest = np.maximum(magnitudes.max(axis=1, initial=0.0), np.finfo(np.float32).tiny)
    integers = {
        "layers": group.layers, "heads": group.heads, "bottom": group.bottom_counts, "top": group.top_counts,
        "folder": group.folders, "order": order, "treeParent": tree.parent, "treeLeaf": tree.leaf,
    }  # fmt: skip
    reals = {
        "entropy": group.entropies.mean(axis=0), "entropyLow": group.entropy_low, "entropyHigh": group.entropy_high,
        "rank": group.ranks, "rankLow": group.rank_low, "rankHigh": group.rank_high, "entropies": group.entropies,
        "treeX": tree.x, "treeY": tree.y, "diffusion": group.diffusion, "coefficientMax": largest,
        "low": group.sample_low, "high": group.sample_high,
    }  # fmt: skip
    return {
        **{name: np.asarray(array, dtype=np.int32) for name, array in integers.items()},
        **{name: np.asarray(array, dtype=np.float32) for name, array in reals.items()},
        "affinity": np.rint(np.clip(group.affinity, 0, 1) * _AFFINITY_STEPS).astype(np.uint8),
        "coefficients": np.rint(magnitudes / largest[:, None] * _COEFFICIENT_STEPS).astype(np.uint16),
        "samples": group.samples,
        "organised": group.organised,
    }


def _pack(array: Array) -> dict[str, Any]:
    """An array as the page's script reads it: little-endian, deflated, base64."""
    content = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()
    data = base64.b64encode(zlib.compress(content, 9)).decode()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": data}


def _scale(name: str) -> list[list[Any]]:
    """A matplotlib colour map as plotly reads it, so that page and figures have the same colours."""
    import matplotlib as mpl
    from matplotlib.colors import to_hex

    return [[step / 16, to_hex(mpl.colormaps[name](step / 16))] for step in range(17)]


def _percent(report: Report) -> int:
    return round(100 * report.settings.fraction)


def _resource(name: str) -> str:
    return files("oattn_hub.report").joinpath(name).read_text(encoding="utf-8")


def _verbatim(text: str) -> Any:
    """Mark our own files as not to be escaped; everything from a report is escaped by Jinja."""
    from markupsafe import Markup

    return Markup(text)
