"""What a README's front matter says about a repo, and whether the Hub would take it."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import yaml

from oattn_hub.hub.local.blobs import BlobStore
from oattn_hub.hub.local.faults import Fault
from oattn_hub.hub.local.repos import Commit

FRONT_MATTER = re.compile(r"\A(?:\ufeff)?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)
_TEXT_OR_LIST = ("base_model", "datasets", "language", "metrics", "tags")
_TEXT = ("license", "library_name", "pipeline_tag", "license_name", "license_link", "base_model_relation")


def parse_front_matter(readme: str) -> dict[str, Any]:
    """The metadata of a card; raises ``ValueError`` with what is wrong with it."""
    match = FRONT_MATTER.match(readme)
    if match is None:
        if readme.startswith("---"):
            raise ValueError("the front matter is not closed by a line of three dashes")
        return {}
    try:
        data = yaml.safe_load(match[1]) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"the front matter is not valid YAML: {error}") from error
    if not isinstance(data, dict):
        raise ValueError("the front matter is not a mapping")
    _check_fields(data)
    return data


def _check_fields(data: dict[str, Any]) -> None:
    for name in _TEXT:
        if name in data and not isinstance(data[name], str):
            raise ValueError(f'"{name}" must be a string')
    for name in _TEXT_OR_LIST:
        values = data.get(name, [])
        if not isinstance(values, str) and not (isinstance(values, list) and all(isinstance(v, str) for v in values)):
            raise ValueError(f'"{name}" must be a string or a list of strings')
    for name in _as_list(data.get("base_model")):
        if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name):
            raise ValueError(f'"base_model" with value {name!r} is not valid: it must be a model id on the Hub')
    if "model-index" in data:
        _check_model_index(data["model-index"])


def _check_model_index(index: Any) -> None:
    from huggingface_hub.repocard_data import model_index_to_eval_results

    try:
        model_index_to_eval_results(index)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f'"model-index" is not in the form of evaluation results: {error!r}') from error


def check_card(readme: str) -> None:
    """Refuse a card that the Hub would refuse."""
    try:
        parse_front_matter(readme)
    except ValueError as error:
        raise Fault(400, f"Invalid metadata in README.md: {error}") from error


def card_data(blobs: BlobStore, commit: Commit) -> dict[str, Any]:
    """The metadata of a commit's README; nothing if it has none."""
    entry = commit.files.get("README.md")
    return dict(_stored_card(blobs, entry.sha256)) if entry else {}


@lru_cache(maxsize=256)
def _stored_card(blobs: BlobStore, sha256: str) -> dict[str, Any]:
    return parse_front_matter(blobs.read(sha256).decode("utf-8", "replace"))


def tags_of(card: dict[str, Any]) -> list[str]:
    """The tags one can search by, as the Hub derives them from the metadata."""
    plain = [*_as_list(card.get("library_name")), *_as_list(card.get("pipeline_tag")), *_as_list(card.get("tags"))]
    bases = _as_list(card.get("base_model"))
    relation = card.get("base_model_relation")
    derived = [
        *_as_list(card.get("language")),
        *(f"dataset:{name}" for name in _as_list(card.get("datasets"))),
        *(f"base_model:{name}" for name in bases),
        *(f"base_model:{relation}:{name}" for name in bases if relation),
        *(f"license:{name}" for name in _as_list(card.get("license"))),
    ]
    return list(dict.fromkeys([*plain, *derived]))


def _as_list(value: Any) -> list[str]:
    if value is None:
        return []
    return [value] if isinstance(value, str) else list(value)
