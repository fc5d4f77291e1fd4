"""All reports of a sweep in one table: heads, entropy, stability, size, and what can go."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from oattn_hub.errors import FormatError, OattnError
from oattn_hub.files import read_sealed, write_text
from oattn_hub.letters import TURNING, spreadsheet_text
from oattn_hub.report.answer import TOLERANCE, Removal, measured_removal
from oattn_hub.report.evaluation import EvaluationSection
from oattn_hub.report.evaluation_words import percent
from oattn_hub.sweep.state import REPORT_FILE, SweepFolder

PAGE_FILE, TABLE_FILE = "leaderboard.html", "leaderboard.csv"


@dataclass(frozen=True)
class Row:
    """One model. Entropy and stability are those of its largest group of heads, since groups do not compare.

    ``removable`` is the part of the heads that its page says can go: a plan's, or the largest measured set whose
    divergence is surely small; None if nothing was measured.
    """

    model: str
    revision: str
    parameters: int
    layers: int
    heads: int
    group: str
    network_entropy: float
    spearman: float | None
    jaccard: float | None
    removable: float | None
    page: str


@dataclass(frozen=True)
class Leaderboard:
    """The rows of all models that are done, and the reasons of those that failed."""

    title: str
    rows: tuple[Row, ...]
    failures: Mapping[str, str]

    @classmethod
    def of(cls, folder: SweepFolder) -> Leaderboard:
        """Read the reports' JSON only; a report that cannot be read is a failure, not the end."""
        rows, failures = [], {}
        for place, status in folder.statuses().items():
            if status.state == "failed":
                failures[status.model] = status.error
            elif status.state == "done":
                try:
                    rows.append(_row(status.model, place))
                except OattnError as error:
                    failures[status.model] = str(error)
        return cls(folder.root.name, tuple(sorted(rows, key=_order)), failures)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Column names and rows, as words."""
        return list(_COLUMNS), [[words(row) for words, _ in _COLUMNS.values()] for row in self.rows]

    def save(self, folder: Path) -> list[Path]:
        """Write ``leaderboard.html`` and ``leaderboard.csv``; returns both."""
        write_text(folder / PAGE_FILE, self.to_html())
        write_text(folder / TABLE_FILE, self.to_csv())
        return [folder / PAGE_FILE, folder / TABLE_FILE]

    def to_csv(self) -> str:
        """Every number at full precision; no name becomes a formula."""
        text = io.StringIO()
        writer = csv.DictWriter(text, [item.name for item in fields(Row)], lineterminator="\n")
        writer.writeheader()
        for row in self.rows:
            cells = asdict(row).items()
            writer.writerow({name: spreadsheet_text(cell) if isinstance(cell, str) else cell for name, cell in cells})
        return text.getvalue()

    def to_html(self) -> str:
        """One page that needs nothing else; its columns sort."""
        from jinja2 import Environment, StrictUndefined

        environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        template = environment.from_string(files("oattn_hub.sweep").joinpath("leaderboard.html.j2").read_text("utf-8"))
        cells = [[(words(row), getattr(row, name)) for words, name in _COLUMNS.values()] for row in self.rows]
        lines = list(zip(self.rows, cells, strict=True))
        return TURNING.sub("", template.render(board=self, tolerance=TOLERANCE, columns=list(_COLUMNS), lines=lines))


def _row(model: str, folder: Path) -> Row:
    document = read_sealed(folder / REPORT_FILE)
    try:
        network = max(document["network"], key=lambda record: record["n_heads"])
        (stability,) = (record for record in document["stability"] if record["group"] == network["group"])
        return Row(
            model=model,
            revision=document["model"]["revision"] or "",
            parameters=document["model"]["n_parameters"],
            layers=network["n_layers"],
            heads=sum(record["n_heads"] for record in document["network"]),
            group=network["group"],
            network_entropy=sum(network["entropies"]) / len(network["entropies"]),
            spearman=stability["spearman"],
            jaccard=stability["jaccard"],
            removable=_removable(document),
            page=f"{folder.name}/report.html",
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(
            f"The report in {folder} is damaged ({error!r}). Remove the folder and sweep again."
        ) from error


def _removable(document: Mapping[str, Any]) -> float | None:
    """By the same rule as the report's own page, so that the two say the same."""
    evaluation, plan = document.get("evaluation"), document.get("removal")
    if evaluation is None and plan is None:
        return None
    if plan is not None:
        found: Removal | None = Removal.from_json(plan)
    else:
        found = measured_removal(EvaluationSection.from_json(evaluation))
    return len(found.heads) / len(document["heads"]) if found else 0.0


def _order(row: Row) -> tuple[float, str]:
    """Most removable first; what was not evaluated comes last."""
    return 1.0 if row.removable is None else -row.removable, row.model


def _percent(value: float | None) -> str:
    return "" if value is None else percent(value)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _size(count: int) -> str:
    for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return str(count)


# title -> (how it is shown, the field by which the column sorts)
_COLUMNS: dict[str, tuple[Callable[[Row], str], str]] = {
    "model": (lambda row: row.model, "model"),
    "parameters": (lambda row: _size(row.parameters), "parameters"),
    "layers": (lambda row: str(row.layers), "layers"),
    "heads": (lambda row: str(row.heads), "heads"),
    "can go": (lambda row: _percent(row.removable), "removable"),
    "network entropy": (lambda row: f"{row.network_entropy:.4g}", "network_entropy"),
    "Spearman": (lambda row: _number(row.spearman), "spearman"),
    "Jaccard": (lambda row: _number(row.jaccard), "jaccard"),
}
