"""The page of a comparison: both models side by side, each with its own answer and map."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from oattn_hub.files import write_text
from oattn_hub.report.answer import answer
from oattn_hub.report.figures import draw_heads
from oattn_hub.report.findings import GLOSSARY, answer_sentences
from oattn_hub.report.plot import Panel, PlannedFigure, section_figures
from oattn_hub.report.web_page import fill, stills

if TYPE_CHECKING:
    from oattn_hub.report.comparison import Comparison
    from oattn_hub.report.report import Report

_MOVED = 10  # heads in the table of those that moved most


def write_comparison_page(comparison: Comparison, a: Report, b: Report, path: Path) -> Path:
    """Write the page; returns its path."""
    columns, rows = comparison.table()
    matched = [head for group in comparison.groups for head in group.matched if head.rank_a != head.rank_b]
    matched_any = any(group.matched for group in comparison.groups)
    matched.sort(key=lambda head: -abs(head.rank_b - head.rank_a))
    figures = [f for f in section_figures("comparison", comparison) if matched_any or f.name != "comparison-heads"]
    text = fill(
        "comparison.html.j2",
        comparison=comparison,
        sides=[_side(comparison.name_a, a), _side(comparison.name_b, b)],
        columns=columns,
        rows=rows,
        figures=stills(figures),
        matched_any=matched_any,
        matched=matched[:_MOVED],
        glossary=GLOSSARY,
    )
    write_text(path, text)
    return path


def _side(name: str, report: Report) -> dict[str, object]:
    found = answer(report)
    maps = [
        PlannedFigure(f"map of {group.name}", (7, 4), (Panel(partial(draw_heads, group=group, found=found)),))
        for group in report.groups.values()
    ]
    return {"name": name, "report": report, "answer": answer_sentences(report), "maps": stills(maps)}
