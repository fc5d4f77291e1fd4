"""The page: one self-contained HTML file that shows a report, from disk and without a network.

Jinja writes the answer, the words and the tables, so that they are there without JavaScript; the scripts in ``web/``
draw. Arrays travel as deflated typed arrays in base64, so that a thousand heads stay a file one can mail.
"""

from __future__ import annotations

import base64
import json
import tempfile
import webbrowser
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from oattn_hub.files import write_text
from oattn_hub.lazy import require
from oattn_hub.report import findings as words
from oattn_hub.report.answer import GO, STAY, TOLERANCE, UNSURE, Answer, answer
from oattn_hub.report.contexts import LINEAR_CODES, Context, Sample, code_values
from oattn_hub.report.cost import scale_words
from oattn_hub.report.dendrogram import layout
from oattn_hub.report.figures import top_and_bottom
from oattn_hub.report.group import GroupResult
from oattn_hub.report.head_table import head_csv
from oattn_hub.report.page_table import page_table
from oattn_hub.report.plot import section_figures
from oattn_hub.report.theme import COST_MAP, ENTROPY_MAP, LAYER_MAP, MATRIX_MAP, SERIES
from oattn_hub.report.web_page import Still, fill, resource, stills, verbatim
from oattn_hub.types import Array

if TYPE_CHECKING:
    from oattn_hub.report.evaluation import EvaluationSection
    from oattn_hub.report.report import Report

_STEPS = 255
_SCRIPTS = ("draw.js", "data.js", "heads.js", "attention.js", "charts.js", "table.js", "main.js")
_VERDICTS = (None, GO, STAY, UNSURE)


@dataclass(frozen=True)
class PageSection:
    """A section of findings with still figures and, where there is one, a table: its columns, then its rows."""

    name: str
    title: str
    findings: list[str]
    figures: list[Still]
    columns: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)


def write_page(report: Report, path: Path) -> Path:
    """Write the page of a report."""
    found = answer(report)
    text = fill(
        "page.html.j2",
        **_words(report, found),
        sections=_sections(report),
        data=verbatim(_json(_page_data(report, found))),
        javascript=verbatim("\n".join(resource(name) for name in _SCRIPTS)),
    )
    write_text(path, text)
    return path


def show_page(report: Report) -> Path:
    """Write the page to a temporary file and open it in the browser."""
    folder = Path(tempfile.mkdtemp(prefix="oattn-"))
    path = write_page(report, folder / "report.html")
    webbrowser.open(path.as_uri())
    return path


# ---------------------------------------------------------------- words and tables


def _words(report: Report, found: Answer) -> dict[str, object]:
    section = report.evaluation
    return {
        "model": report.model,
        "settings": report.settings,
        "network": report.network,
        "n_heads": len(report.heads),
        "n_groups": len(report.groups),
        "n_contexts": max(len(group.samples) for group in report.groups.values()),
        "most_batches": max(len(record.entropies) for record in report.network),
        "percent": _percent(report),
        "answer": found,
        "headline": words.headline(found, named=False) if found.measured else words.answer_sentences(report)[0],
        "cost_words": words.cost_words(found.removal) if found.removal else [],
        "unsure": [head for head, verdict in found.verdicts.items() if verdict == UNSURE],
        "unsure_words": words.unsure_words(found),
        "prices": found.further,
        "tolerance": TOLERANCE,
        "metric": section.metrics[0].title if section else None,
        "has_cost": bool(found.alone),
        "evaluation": _evaluation_words(section) if section else None,
        "entropy_findings": words.agreement_sentences(report),
        "method_findings": words.method_sentences(report),
        "scale": scale_words(section.metrics[0].title) if section else "",
        "extremes": {name: top_and_bottom(group) for name, group in report.groups.items()},
        "table": page_table(report),
        "glossary": words.GLOSSARY,
        "links": words.links(report),
        "steps": words.next_steps(report),
        "sample_note": words.sample_note(report),
        "about": words.about(report),
    }


def _evaluation_words(section: EvaluationSection) -> dict[str, object]:
    columns, rows = section.table()
    return {
        "findings": section.findings,
        "metric": section.metrics[0].title,
        "columns": columns,
        "rows": rows,
        "essential": len(section.fractions),  # the columns a phone has room for: name and costs
    }


def _sections(report: Report) -> list[PageSection]:
    sections = []
    if report.validation is not None:
        figures = stills(section_figures("validation", report.validation))
        found = report.validation
        sections.append(PageSection("validation", "Does the ranking hold?", found.findings, figures, *found.table()))
    if report.theory is not None:
        figures = stills(section_figures("theory", report.theory))
        sections.append(PageSection("theory", "Theory", report.theory.findings, figures))
    return sections


# ---------------------------------------------------------------- what the scripts draw from


def _page_data(report: Report, found: Answer) -> dict[str, object]:
    axes = _Axes(report.contexts)
    section = report.evaluation
    return {
        "kind": report.settings.kind,
        "file": report.model.id.split("/")[-1],
        "percent": _percent(report),
        "answered": found.measured,
        "planned": found.planned,
        "removable": bool(found.removal and found.removal.heads),
        "measured": bool(found.alone),
        "tolerance": TOLERANCE,
        "metric": section.metrics[0].title if section else "",
        "verdicts": _VERDICTS,
        "series": SERIES,
        "scales": {
            name: _scale(map_name)
            for name, map_name in (
                ("entropy", ENTROPY_MAP), ("cost", COST_MAP), ("layer", LAYER_MAP), ("matrix", MATRIX_MAP),
            )
        },
        "codeValues": [None, *code_values("probs", 0.0, 1.0)[1:].tolist()],
        "linearCodes": LINEAR_CODES,
        "curves": _curves(section) if section else None,
        "csv": head_csv(report),
        "groups": [_group_data(group, report, found, axes) for group in report.groups.values()],
        "axes": axes.written,
        "pictures": axes.pictures,
    }  # fmt: skip


class _Axes:
    """The axes that some sample uses, each written once."""

    def __init__(self, contexts: Sequence[Context]) -> None:
        self.contexts = {context.batch: context for context in contexts}
        self.written: list[dict[str, object]] = []
        self.pictures: list[str] = []
        self._places: dict[tuple[int, str, int], int] = {}

    def place(self, batch: int, length: int, decoder: bool) -> int | None:
        """The number of the axis with so many positions in this context, None if nothing is known about it."""
        context = self.contexts.get(batch)
        axis = context.axis(length, decoder) if context else None
        if axis is None:
            return None
        key = (batch, axis.name, length)
        if key not in self._places:
            self._places[key] = len(self.written)
            entry = {name: value for name, value in vars(axis).items() if value}
            if axis.picture:
                entry["picture"] = len(self.pictures)
                self.pictures.append(axis.picture)
            self.written.append(entry)
        return self._places[key]


def _curves(section: EvaluationSection) -> dict[str, object]:
    return {
        "fractions": section.fractions,
        "metrics": [{"name": m.name, "title": m.title, "baseline": m.baseline} for m in section.metrics],
        "scores": [
            {
                "name": score.name,
                "title": score.title,
                "curves": {
                    name: {part: [float(f"{v:.4g}") for v in getattr(curve, part)] for part in ("mean", "low", "high")}
                    for name, curve in score.curves.items()
                },
            }
            for score in section.scores
        ],
    }


def _group_data(group: GroupResult, report: Report, found: Answer, axes: _Axes) -> dict[str, object]:
    return {
        "name": group.name,
        "batches": group.n_batches,
        "layerNames": list(group.layer_names),
        "arrays": {name: _pack(array) for name, array in _group_arrays(group, report, found).items()},
        "samples": [_sample_data(sample, group, axes) for sample in group.samples],
    }


def _group_arrays(group: GroupResult, report: Report, found: Answer) -> dict[str, Array]:
    geometry, ranking = group.geometry, group.ranking
    order = geometry.tree.leaf_order
    tree = layout(geometry.head_labels, order)
    sizes = np.abs(group.haar.coefficients.astype(np.float64))
    largest = np.maximum(sizes.max(axis=1, initial=0.0), np.finfo(np.float32).tiny)
    integers = {
        "layers": group.layers, "heads": group.heads, "bottom": ranking.bottom_counts, "top": ranking.top_counts,
        "folder": geometry.folders, "order": order, "treeParent": tree.parent, "treeLeaf": tree.leaf,
        "verdict": [_VERDICTS.index(found.verdicts.get(key)) for key in group.head_keys()],
    }  # fmt: skip
    reals = {
        "entropy": group.haar.mean_entropies, "entropyLow": ranking.entropy_low, "entropyHigh": ranking.entropy_high,
        "rank": ranking.ranks, "rankLow": ranking.rank_low, "rankHigh": ranking.rank_high,
        "entropies": group.haar.entropies, "treeX": tree.x, "treeY": tree.y, "diffusion": geometry.diffusion,
        "coefficientMax": largest, **_measured(group, report, found),
    }  # fmt: skip
    lower = np.tril_indices(len(geometry.affinity), k=-1)
    if geometry.landmarks is not None:
        integers["landmarks"] = geometry.landmarks
    return {
        **{name: np.asarray(array, dtype=np.int32) for name, array in integers.items()},
        **{name: np.asarray(array, dtype=np.float32) for name, array in reals.items()},
        "affinityTriangle": np.rint(np.clip(geometry.affinity[lower], 0, 1) * _STEPS).astype(np.uint8),
        "coefficients": _decibels(sizes / largest[:, None]),
    }


def _measured(group: GroupResult, report: Report, found: Answer) -> dict[str, Array]:
    """What the evaluation measured on each head, NaN where it did not."""
    tables: dict[str, Mapping[tuple[int, int], float]] = {
        "cost": found.alone,
        "costLow": {head: low for head, (low, _) in found.intervals.items()},
        "costHigh": {head: high for head, (_, high) in found.intervals.items()},
        "unclear": dict.fromkeys(found.unclear, 1.0),
    }
    if report.evaluation is not None and any(score.name == "gradient" for score in report.evaluation.scores):
        tables["gradient"] = report.evaluation.values("gradient")
    return {
        name: np.array([values.get(key, np.nan) for key in group.head_keys()])
        for name, values in tables.items()
        if values
    }


def _decibels(shares: Array) -> Array:
    """Codes of sizes relative to the largest: 255 is 1, each 50 less a tenth, 0 is nothing."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.clip(np.rint(_STEPS + 50 * np.log10(shares)), 0, _STEPS).astype(np.uint8))


def _sample_data(sample: Sample, group: GroupResult, axes: _Axes) -> dict[str, object]:
    rows, columns = sample.shape.tolist()
    decoder = group.name.startswith(("decoder", "cross"))
    arrays: dict[str, Array] = {}
    for name, labels, order in (
        ("query", sample.query_labels, sample.query_order),
        ("key", sample.key_labels, sample.key_order),
    ):
        tree = layout(labels, np.argsort(labels[-1]))
        arrays[f"{name}Order"] = order.astype(np.int32)
        arrays[f"{name}Parent"] = tree.parent.astype(np.int32)
        arrays[f"{name}X"], arrays[f"{name}Y"] = tree.x.astype(np.float32), tree.y.astype(np.float32)
    return {
        "batch": sample.batch,
        "rows": rows,
        "columns": columns,
        "full": [group.n_queries, group.n_keys],
        "query": axes.place(sample.batch, group.n_queries, decoder),
        "key": axes.place(sample.batch, group.n_keys, decoder and group.name != "cross"),
        "low": sample.low.tolist(),
        "high": sample.high.tolist(),
        "streams": [base64.b64encode(sample.stream(head)).decode() for head in range(group.n_heads)],
        "arrays": {name: _pack(array) for name, array in arrays.items()},
    }


def _pack(array: Array) -> dict[str, object]:
    """An array as the page's script reads it: little-endian, deflated, base64."""
    content = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()
    data = base64.b64encode(zlib.compress(content, 6)).decode()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": data}


def _scale(name: str) -> list[list[int]]:
    """A matplotlib colour map as red, green and blue at equal steps, so that page and figures have the same colours."""
    require("matplotlib", what="A page")
    import matplotlib as mpl

    return [[round(255 * part) for part in mpl.colormaps[name](step / 16)[:3]] for step in range(17)]


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False).replace("<", "\\u003c")


def _percent(report: Report) -> int:
    return round(100 * report.settings.fraction)
