"""The page's table of heads, written out in full so that it is there without JavaScript."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oattn_hub.report.head_table import head_table

if TYPE_CHECKING:
    from oattn_hub.report.report import Report


@dataclass(frozen=True)
class Column:
    """A column: the name scripts sort by, its title, what it says in a sentence, and whether a phone leaves it out."""

    name: str
    title: str
    explained: str
    extra: bool = False


@dataclass(frozen=True)
class Cell:
    """What is read, and what is sorted by where that is not the text itself."""

    text: str
    value: float | None = None


@dataclass(frozen=True)
class Row:
    """One head."""

    key: str
    group: str
    verdict: str
    low: int
    name: str
    cells: list[Cell]


_COLUMNS = (
    Column("head", "head", "layer.head, both counted from 0"),
    Column("verdict", "verdict", "what the measurement says about removing it"),
    Column("ablation", "ablation", "cost when this head alone is removed"),
    Column("ablation_interval", "95 % of it", "interval of the ablation; sorted by its width", extra=True),
    Column("gradient", "gradient", "gradient importance: how much the loss moves with the head's output"),
    Column("entropy", "entropy", "mean over the batches"),
    Column("interval", "95 % interval", "of the entropy; sorted by its width", extra=True),
    Column("rank", "rank", "1 is the lowest entropy of the group"),
    Column("rank_interval", "rank interval", "95 %; sorted by its width", extra=True),
    Column("bottom", "batches lowest", "batches in which its entropy is among the lowest", extra=True),
    Column("top", "batches highest", "batches in which its entropy is among the highest", extra=True),
    Column("folder", "folder", "branch of the tree of heads"),
)
_GROUP = Column("group", "group", "layers whose attention has one shape")


def page_table(report: Report) -> dict[str, object]:
    """Columns and rows; what no head has is left out."""
    names, values = head_table(report)
    records = [dict(zip(names, row, strict=True)) for row in values]
    sources = {name: name for name in ("verdict", "ablation", "gradient")} | {"ablation_interval": "ablation_low"}
    empty = {name for name, source in sources.items() if all(r.get(source) is None for r in records)}
    columns = [column for column in _COLUMNS if column.name not in empty]
    if len(report.groups) > 1:
        columns.append(_GROUP)
    batches = {name: group.n_batches for name, group in report.groups.items()}
    return {"columns": columns, "rows": [_row(record, columns, batches[str(record["group"])]) for record in records]}


def _row(record: dict[str, Any], columns: list[Column], n_batches: int) -> Row:
    cells = {
        "head": Cell(f"{record['layer']}.{record['head']}", record["layer"] * 10_000 + record["head"]),
        "verdict": Cell(record["verdict"] or ""),
        "ablation": _number(record["ablation"], 3),
        "ablation_interval": _interval(record, "ablation", 2),
        "gradient": _number(record["gradient"], 3),
        "entropy": _number(record["entropy"]),
        "interval": _interval(record, "entropy"),
        "rank": _number(record["rank"]),
        "rank_interval": _interval(record, "rank"),
        "bottom": Cell(f"{record['bottom_count']}/{n_batches}", record["bottom_count"]),
        "top": Cell(f"{record['top_count']}/{n_batches}", record["top_count"]),
        "folder": Cell(str(record["folder"])),
        "group": Cell(record["group"]),
    }
    return Row(
        key=f"{record['layer']}-{record['head']}",
        group=record["group"],
        verdict=record["verdict"] or "",
        low=int(record["bottom_count"] == n_batches),
        name=record["layer_name"],
        cells=[cells[column.name] for column in columns],
    )


def _number(value: float | None, digits: int = 4) -> Cell:
    return Cell("") if value is None else Cell(f"{value:.{digits}g}", float(f"{value:.6g}"))


def _interval(record: dict[str, Any], name: str, digits: int = 4) -> Cell:
    low, high = record.get(f"{name}_low"), record.get(f"{name}_high")
    if low is None or high is None:
        return Cell("")
    return Cell(f"{low:.{digits}g} – {high:.{digits}g}", float(f"{high - low:.4g}"))
