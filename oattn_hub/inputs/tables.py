"""Rows with named columns: CSV, TSV and JSONL files, and datasets of the Hub with the columns they were asked for."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeGuard
from urllib.parse import parse_qs, urlsplit

from oattn_hub.errors import InvalidInput, LoadError, MissingDependency
from oattn_hub.inputs.types import Data
from oattn_hub.tokens import default_token

DATASET = "dataset:"
DATASETS_MISSING = "Hub datasets need the package 'datasets': pip install oattn_hub[datasets]."
_SUFFIXES = (".csv", ".tsv", ".jsonl")
# Usual names of columns, the usual first.
TEXTS = ("text", "sentence", "content", "review", "sentence1", "premise", "query", "question", "anchor")
PARTNERS = ("pair", "text2", "sentence2", "hypothesis", "passage", "answer", "positive", "document")
LABELS = ("label", "labels", "class", "category", "target")
FILES = ("file_name", "file", "path", "audio", "image")
TRANSCRIPTS = ("transcription", "transcript", "text", "sentence")

Row = Mapping[str, Any]


def is_table(data: Data) -> TypeGuard[str | Path]:
    """Whether data has rows and columns.

    >>> is_table("reviews.csv"), is_table("play.txt"), is_table("dataset:imdb?label=label")
    (True, False, True)
    """
    if isinstance(data, str) and data.startswith(DATASET):
        return bool({"label", "pair"} & set(_address(data)[1]))
    return isinstance(data, str | Path) and Path(data).suffix.lower() in _SUFFIXES


def rows(data: str | Path) -> list[Row]:
    """All rows that are not equal to an earlier one."""
    found = _of_dataset(str(data)) if str(data).startswith(DATASET) else _of_file(Path(data))
    if not found:
        raise InvalidInput(f"{data} has no rows. Give a table with a line of column names and at least one row.")
    return found


def column(table: Iterable[Row], names: Iterable[str]) -> str | None:
    """The first of these columns that the table has."""
    present = set(next(iter(table)))
    return next((name for name in names if name in present), None)


def needed(table: Iterable[Row], names: Iterable[str], origin: object, what: str) -> str:
    """The first of these columns that the table has; an error where it has none."""
    names = tuple(names)
    found = column(table, names)
    if found is None:
        present = ", ".join(sorted(map(str, next(iter(table)))))
        raise InvalidInput(
            f"{origin} has the columns {present}, and none of them is {what}. Name one of them {names[0]!r}."
        )
    return found


def check_columns(path: Path) -> None:
    """Refuse a table whose first row has nothing that a model of any kind reads."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if path.suffix.lower() == ".jsonl":
                names = list(_object(next((line for line in file if line.strip()), "{}"), path, 0))
            else:
                names = list(csv.DictReader(file, delimiter=_delimiter(path)).fieldnames or ())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _unreadable(path, error) from error
    if names:
        needed([dict.fromkeys(names)], (*TEXTS, *FILES, *TRANSCRIPTS), path, "a text")


def _delimiter(path: Path) -> str:
    return "\t" if path.suffix.lower() == ".tsv" else ","


def _unreadable(path: Path, error: Exception) -> LoadError:
    return LoadError(f"{path} cannot be read as a table ({error}). Give a CSV or JSONL file in UTF-8.")


def _of_file(path: Path) -> list[Row]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error
    if path.suffix.lower() == ".jsonl":
        return _distinct([_object(line, path, number) for number, line in enumerate(text.splitlines()) if line.strip()])
    lines = csv.DictReader(text.splitlines(keepends=True), delimiter=_delimiter(path))
    return _distinct([{name: value or "" for name, value in line.items() if name} for line in lines])


def _object(line: str, path: Path, number: int) -> Row:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise LoadError(f"Line {number + 1} of {path} is not JSON ({error}). Write one object a line.") from error
    if not isinstance(found, dict):
        raise LoadError(f"Line {number + 1} of {path} is {type(found).__name__}. Write one object a line.")
    return found


def _distinct(table: list[Row]) -> list[Row]:
    """Equal rows would let the same input choose and verify."""
    return list({json.dumps(row, sort_keys=True, default=str): row for row in table}.values())


def _address(data: str) -> tuple[str, dict[str, str]]:
    parts = urlsplit(data.removeprefix(DATASET))
    return parts.path, {name: values[0] for name, values in parse_qs(parts.query).items()}


def _of_dataset(data: str) -> list[Row]:
    """Columns come under the names that they are looked for by."""
    name, options = _address(data)
    wanted = {"text": options.get("column", "text")}
    wanted |= {ours: options[ours] for ours in ("label", "pair", "image", "audio") if ours in options}
    loaded = load_rows(name, options, data)
    present = {ours: theirs for ours, theirs in wanted.items() if theirs in loaded.column_names}
    classes = {ours: getattr(loaded.features[theirs], "names", None) for ours, theirs in present.items()}
    return [
        {ours: names[row[theirs]] if (names := classes[ours]) else row[theirs] for ours, theirs in present.items()}
        for row in loaded
    ]


def load_rows(name: str, options: Mapping[str, str], address: str) -> Any:
    """A split of a Hub dataset."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise MissingDependency(DATASETS_MISSING) from error
    split = options.get("split", "test")
    try:
        return load_dataset(name, options.get("config"), split=split, token=default_token(None))
    except Exception as error:  # datasets raises a dozen unrelated classes
        raise LoadError(f"{address} cannot be loaded: {' '.join(str(error).split())[:300]}") from error
