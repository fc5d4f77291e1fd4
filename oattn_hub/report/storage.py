"""A report on disk: ``report.json`` (what people and scripts read) and ``report.safetensors`` (the arrays).

``run.json`` holds the only things that differ between two runs of one analysis, the date and the seconds per stage.
The JSON carries the schema version and the SHA-256 of the arrays' file, so that a damaged, mixed-up or foreign
file is distinguished from a readable one.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from oattn_hub.errors import FormatError, InvalidInput, LoadError
from oattn_hub.files import (
    fingerprint,
    folder_lock,
    read_json,
    read_sealed,
    read_tensors,
    sha256_file,
    unsealed,
    write_sealed,
    write_tensors,
)
from oattn_hub.records import ModelInfo, Provenance, Settings
from oattn_hub.report.answer import Removal
from oattn_hub.report.contexts import Context
from oattn_hub.report.group_storage import group_from, group_parts
from oattn_hub.types import Array, Json

if TYPE_CHECKING:
    from oattn_hub.report.evaluation import EvaluationSection
    from oattn_hub.report.group import GroupResult
    from oattn_hub.report.report import Report
    from oattn_hub.report.theory import TheorySection
    from oattn_hub.report.validation import ValidationSection

SCHEMA = 2
FORMAT = "oattn_hub.report"
JSON_FILE, TENSOR_FILE, RUN_FILE = "report.json", "report.safetensors", "run.json"
_RUN_FIELDS = ("created", "seconds")


def save_report(report: Report, folder: Path) -> Path:
    """Write the report's files into ``folder``; an older report there is replaced, arrays first."""
    if folder.is_file():
        raise InvalidInput(f"{folder} is a file; name a folder for the report.")
    document, tensors = _to_parts(report)
    provenance = report.provenance.to_json()
    with folder_lock(folder):  # two reports saved at once are not mixed up
        write_tensors(folder / TENSOR_FILE, tensors, {"format": FORMAT})
        write_sealed(folder / JSON_FILE, {**document, "tensors_sha256": sha256_file(folder / TENSOR_FILE)})
        write_sealed(folder / RUN_FILE, {name: provenance[name] for name in _RUN_FIELDS})
    return folder


class ReportParts(TypedDict):
    """The arguments of ``Report``."""

    model: ModelInfo
    settings: Settings
    provenance: Provenance
    groups: dict[str, GroupResult]
    theory: TheorySection | None
    evaluation: EvaluationSection | None
    removal: Removal | None
    contexts: tuple[Context, ...]
    validation: ValidationSection | None


def read_parts(folder: Path) -> ReportParts:
    """The arguments of ``Report`` from a saved folder, or one clear error."""
    document = _read_document(folder)
    tensor_file = folder / TENSOR_FILE
    if not tensor_file.exists():
        raise LoadError(f"{folder} has {JSON_FILE} but no {TENSOR_FILE}. Copy both files of the report.")
    if sha256_file(tensor_file) != document.get("tensors_sha256"):
        raise FormatError(f"{tensor_file} is damaged or belongs to another {JSON_FILE}. Copy or make the report again.")
    try:
        return _from_parts(document, read_tensors(tensor_file, sealed=True), _read_run(folder))
    except (KeyError, TypeError, AttributeError, InvalidInput) as error:
        raise FormatError(f"{folder / JSON_FILE} is damaged ({error}). Copy or make the report again.") from error


def report_fingerprint(report: Report) -> str:
    """SHA-256 of the report's content without date and duration."""
    document, tensors = _to_parts(report)
    return fingerprint(document, *(part for name in sorted(tensors) for part in (name, tensors[name])))


def _read_document(folder: Path) -> dict[str, Any]:
    if not (folder / JSON_FILE).is_file():
        raise LoadError(f"No report in {folder}: {JSON_FILE} is missing. Name the folder that analyze wrote.")
    document = read_json(folder / JSON_FILE)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise FormatError(f"{folder / JSON_FILE} is not a report of oattn_hub (its format is not {FORMAT!r}).")
    if document.get("schema") != SCHEMA:
        advice = "update oattn_hub" if isinstance(s := document.get("schema"), int) and s > SCHEMA else "analyze again"
        raise FormatError(
            f"{folder / JSON_FILE} has schema {document.get('schema')!r}, this version reads {SCHEMA}; {advice}."
        )
    return unsealed(document, folder / JSON_FILE)


def _read_run(folder: Path) -> dict[str, Any]:
    """Date and duration; a report copied without them is still whole."""
    if not (folder / RUN_FILE).exists():
        return {}
    run = read_sealed(folder / RUN_FILE)
    return {name: run[name] for name in _RUN_FIELDS if name in run}


def _to_parts(report: Report) -> tuple[dict[str, Any], dict[str, Array]]:
    tensors: dict[str, Array] = {}
    groups = []
    for group in report.groups.values():
        plain, arrays = group_parts(group)
        groups.append(plain)
        tensors.update({f"{group.name}/{name}": array for name, array in arrays.items()})
    provenance = report.provenance.to_json()
    document = {
        "format": FORMAT,
        "schema": SCHEMA,
        "model": report.model.to_json(),
        "settings": report.settings.to_json(),
        "provenance": {name: value for name, value in provenance.items() if name not in _RUN_FIELDS},
        "network": [asdict(record) for record in report.network],
        "stability": [asdict(record) for record in report.stability],
        "heads": [asdict(record) for record in report.heads],
        "groups": groups,
        "theory": report.theory.to_json() if report.theory else None,
        "evaluation": report.evaluation.to_json() if report.evaluation else None,
        "removal": report.removal.to_json() if report.removal else None,
        "contexts": [context.to_json() for context in report.contexts],
        "validation": report.validation.to_json() if report.validation else None,
    }
    return document, tensors


def _from_parts(document: dict[str, Any], tensors: dict[str, Array], run: dict[str, Any]) -> ReportParts:
    groups = {}
    for plain in document["groups"]:
        prefix = f"{plain['name']}/"
        arrays = {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
        groups[plain["name"]] = group_from(plain, arrays)
    return {
        "model": ModelInfo.from_json(document.get("model")),
        "settings": Settings.from_json(document.get("settings")),
        "provenance": replace(Provenance.from_json(document.get("provenance")), **run),
        "groups": groups,
        "theory": _read_theory(document.get("theory")),
        "evaluation": _read_evaluation(document.get("evaluation")),
        "removal": Removal.from_json(document["removal"]) if document.get("removal") else None,
        "contexts": tuple(Context.from_json(context) for context in document.get("contexts", ())),
        "validation": _read_validation(document.get("validation")),
    }


def _read_theory(value: Json) -> TheorySection | None:
    from oattn_hub.report.theory import TheorySection

    return None if value is None else TheorySection.from_json(value)


def _read_evaluation(value: Json) -> EvaluationSection | None:
    from oattn_hub.report.evaluation import EvaluationSection

    return None if value is None else EvaluationSection.from_json(value)


def _read_validation(value: Json) -> ValidationSection | None:
    from oattn_hub.report.validation import ValidationSection

    return None if value is None else ValidationSection.from_json(value)
