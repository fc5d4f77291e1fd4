"""The one table of heads: the page shows and downloads it, ``oattn heads`` prints it, ``to_pandas`` returns it."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from oattn_hub.letters import spreadsheet_text
from oattn_hub.records import Head
from oattn_hub.report.answer import answer

# What one place of the table holds; None where something was not measured.
Cell = str | float | None

if TYPE_CHECKING:
    from oattn_hub.report.report import Report

_RECORD = (
    "entropy", "entropy_low", "entropy_high", "rank", "rank_low", "rank_high", "bottom_count", "top_count", "folder",
)  # fmt: skip
_ALWAYS = ("ablation", "gradient")  # columns that are there, empty, even before an evaluation
_NOT_SHOWN = ("random", "haar")  # no property of a head; the entropy column again


def head_table(report: Report) -> tuple[list[str], list[list[Cell]]]:
    """Column names and one row per head, in model order; None where something was not measured."""
    scores = _scores(report)
    verdicts = answer(report).verdicts
    columns = ["group", "layer", "head", "verdict", *scores, *_RECORD, "layer_name"]
    rows = []
    for record in report.heads:
        key = (record.layer, record.head)
        measured = [values.get(key) for values in scores.values()]
        own = [getattr(record, name) for name in _RECORD]
        rows.append([record.group, *key, verdicts.get(key), *measured, *own, record.layer_name])
    return columns, rows


def head_csv(report: Report) -> str:
    """The table as CSV, numbers to six digits.

    A name that starts like a formula gets an apostrophe, so that no spreadsheet computes what a stranger wrote.
    """
    columns, rows = head_table(report)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return spreadsheet_text(value) if isinstance(value, str) else str(value)


def _scores(report: Report) -> dict[str, dict[Head, float]]:
    """Every measured score by its name; ablation is what losing the head alone costs."""
    found: dict[str, dict[Head, float]] = {name: {} for name in _ALWAYS}
    if report.evaluation is not None:
        for result in report.evaluation.scores:
            if result.name not in _NOT_SHOWN:
                found[result.name] = report.evaluation.values(result.name)
        for name in [name for name in found if found[name] and report.evaluation.intervals(name)]:
            ends = report.evaluation.intervals(name)
            found[f"{name}_low"] = {head: low for head, (low, _) in ends.items()}
            found[f"{name}_high"] = {head: high for head, (_, high) in ends.items()}
    return found
