"""The card of a report: what the template needs, gathered from the report alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from oattn_hub.cards import render
from oattn_hub.errors import InvalidInput
from oattn_hub.files import exists_here
from oattn_hub.hub.readme import build_readme
from oattn_hub.report import findings as words
from oattn_hub.report.answer import GO, STAY, Answer, answer
from oattn_hub.report.plot import group_suffix

if TYPE_CHECKING:
    from oattn_hub.records import ModelInfo, Provenance
    from oattn_hub.report import Report
    from oattn_hub.report.evaluation import EvaluationSection
    from oattn_hub.report.records import HeadRecord
    from oattn_hub.report.validation import ValidationSection

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+", re.ASCII)
DATASET = (
    "dataset:"  # before its id, where ``calibration_inputs`` is asked for one of the Hub and where it describes it
)
_DATASET_ID = re.compile(rf"\b{DATASET}([\w-][\w.-]*(?:/[\w.-]+)?)", re.ASCII)
_SHOWN = 10  # heads in a card's table; all of them are in the report
_CAPTIONS = {
    "heads-entropy": "Entropy of every head, layers down and heads across",
    "batches": "Entropy of the heads in every batch",
    "diffusion": "Heads that attend alike lie close together (diffusion map, by layer and by entropy)",
    "tree": "The tree of heads",
    "affinity": "How alike the heads are, in the order of the tree",
    "attention-lowest": "Attention of the lowest head, as it is and organised",
    "attention-highest": "Attention of the highest head, as it is and organised",
}


def report_readme(
    report: Report, figures: Iterable[Path], repo_id: str | None = None, base_model: str | None = None
) -> str:
    """The README of a results repo; ``figures`` are files that lie in ``figures/`` beside it.

    ``base_model`` is what the model is called on the Hub, if it was loaded from elsewhere.
    """
    names = [path.stem for path in figures]
    summary = words.answer_sentences(report)[0]
    metadata = {
        "library_name": "oattn_hub",
        **base_metadata(report.model, base_model),
        **_datasets(report),
        **({"metrics": [metric.name for metric in report.evaluation.metrics]} if report.evaluation else {}),
        "tags": ["oattn_hub", "attention-head-report", "interpretability", "attention"],
        "oattn_hub": {"kind": "report", "summary": summary},
    }
    return build_readme(metadata, render("report.md.j2", _report_values(report, names, repo_id, base_model)))


def _report_values(
    report: Report, figures: list[str], repo_id: str | None, base_model: str | None = None
) -> dict[str, object]:
    found = answer(report)
    return {
        "model_name": base_model or report.model.id,
        "batches": report.settings.batches,
        "tokens": report.settings.tokens,
        "text": report.model.modality.startswith("text"),
        "percent": f"{100 * report.settings.fraction:g}",
        "answer": words.answer_sentences(report),
        "cost_words": words.cost_words(found.removal) if found.removal else [],
        "prices": _prices(report, found),
        "map": _map(found, figures),
        "groups": [_group_values(report, found, name, figures) for name in report.groups],
        "entropy_findings": words.entropy_sentences(report),
        "evaluation": evaluation_values(report.evaluation, figures) if report.evaluation else None,
        "theory_findings": list(report.theory.findings) if report.theory else [],
        "theory_figures": section_figures("theory", figures),
        "validation": validation_values(report.validation, figures) if report.validation else None,
        "guessed": words.guessed(report),
        "place": repo_id or ".",
        "provenance": report_provenance(report),
    }


def _map(found: Answer, figures: list[str]) -> dict[str, str]:
    name = next(name for name in figures if name.startswith("heads"))
    what = "What losing each head alone costs" if found.alone else "Entropy of every head"
    marks = "; a cross can go, a dot must stay" if found.verdicts else ""
    return {"caption": f"{what}, layers down and heads across{marks}", "path": f"figures/{name}.png"}


def _prices(report: Report, found: Answer) -> dict[str, object] | None:
    if not found.further or report.evaluation is None:
        return None
    return {
        "planned": found.planned,
        "metric": report.evaluation.metrics[0].title,
        "inputs": report.evaluation.evaluation,
        "rows": [{"count": len(price.heads), "bound": f"{price.bound:.2g}"} for price in found.further],
    }


def _group_values(report: Report, found: Answer, group: str, figures: list[str]) -> dict[str, object]:
    """The heads worth a line: those that can go and those that must stay, or, unmeasured, the lowest in entropy."""
    heads: list[HeadRecord] = sorted((h for h in report.heads if h.group == group), key=lambda head: head.rank)
    verdicts = {head: found.verdicts.get((head.layer, head.head), "") for head in heads}
    chosen = [[head for head in heads if verdicts[head] == verdict][:_SHOWN] for verdict in (GO, STAY)]
    shown = [*chosen[0], *chosen[1]] if found.measured else heads[:_SHOWN]
    suffix = group_suffix(report, group)
    return {
        "name": group,
        "n_heads": len(heads),
        "measured": found.measured,
        "words": words.card_table(found.measured, len(shown), len(heads)),
        "shown": [{"record": head, "verdict": verdicts[head], "cost": _cost(found, head)} for head in shown],
        "figures": [
            {"caption": caption, "path": f"figures/{name}{suffix}.png"}
            for name, caption in _CAPTIONS.items()
            if f"{name}{suffix}" in figures
        ],
    }


def _cost(found: Answer, head: HeadRecord) -> str:
    cost = found.alone.get((head.layer, head.head))
    return "not measured" if cost is None else f"{cost:.2g}"


def section_figures(section: str, figures: Iterable[str]) -> list[dict[str, str]]:
    """The figures of one section of the report, with what their names say as captions."""
    own = (name for name in figures if name.startswith(f"{section}-"))
    return [
        {"caption": name.removeprefix(f"{section}-").replace("_", " ").capitalize(), "path": f"figures/{name}.png"}
        for name in own
    ]


def evaluation_values(section: EvaluationSection, figures: Iterable[str]) -> dict[str, object]:
    """What the template of an evaluation needs."""
    columns, rows = section.table()
    return {
        "findings": section.findings,
        "metric": section.metrics[0].title,
        "columns": columns,
        "rows": rows,
        "figures": section_figures("evaluation", figures),
    }


def validation_values(section: ValidationSection, figures: Iterable[str]) -> dict[str, object]:
    """What the template needs of a validation."""
    columns, rows = section.table()
    own = section_figures("validation", figures)
    return {"findings": section.findings, "columns": columns, "rows": rows, "figures": own}


def base_metadata(model: ModelInfo, named: str | None = None) -> dict[str, object]:
    """What the front matter says about the measured model: only an id that the Hub can know is called a base model."""
    metadata: dict[str, object] = {}
    if base := hub_id(model.id, model.source, named):
        metadata["base_model"] = base
    if model.license:
        metadata["license"] = model.license
    return metadata


def _datasets(report: Report) -> dict[str, list[str]]:
    """The Hub's datasets among what was read, by their ids."""
    section = report.evaluation
    read = [report.provenance.data, *((section.calibration, section.evaluation) if section else ())]
    found = sorted({name for description in read for name in _DATASET_ID.findall(description)})
    return {"datasets": found} if found else {}


def hub_id(model_id: str, source: str | None, named: str | None = None) -> str | None:
    """The model's name if it is one on the Hub, not a folder on somebody's disk or an object in somebody's memory.

    What the user named it is taken for that.
    """
    if named is not None:
        if not _HUB_ID.fullmatch(named):
            raise InvalidInput(f"base_model is {named!r}; write the id of a model on the Hub, owner/name.")
        return named
    on_hub = source is not None and not exists_here(source) and _HUB_ID.fullmatch(model_id)
    return model_id if on_hub else None


def report_provenance(report: Report) -> list[tuple[str, str]]:
    """The rows of the table of origin."""
    model, settings, made = report.model, report.settings, report.provenance
    unit = "tokens" if model.modality.startswith("text") else "positions"
    return [
        ("model", f"{model.id} ({model.architecture or model.adapter}, {model.n_parameters:,} parameters)"),
        ("revision", model.revision or "not known"),
        ("licence of the model", model.license or "not stated by the model"),
        ("measured", f"{settings.kind}, {settings.batches} batches of {settings.tokens} {unit}, seed {settings.seed}"),
        ("organised with", _settings_line(settings.questionnaire)),
        *made_rows(made),
    ]


def made_rows(made: Provenance) -> list[tuple[str, str]]:
    """Data, command, versions and date."""
    return [
        ("data", made.data),
        ("data fingerprint", made.data_fingerprint),
        ("command", f"`{made.command}`"),
        ("versions", _settings_line(made.versions)),
        ("made", made.created or "date not recorded"),
    ]


def _settings_line(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items()) or "defaults"
