"""The metadata at the head of a card, checked as the Hub checks it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from oattn_hub.errors import OattnError
from oattn_hub.files.documents import read_bytes

FRONT_MATTER = re.compile(r"\A(?:\ufeff)?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)
_MAX_LETTERS = 128 * 1024
_MAX_CARD = 16 * 2**20
_MAX_NODES = 20_000
_TEXT_OR_LIST = ("base_model", "datasets", "language", "metrics", "tags")
_TEXT = ("license", "library_name", "pipeline_tag", "license_name", "license_link", "base_model_relation")


def parse_front_matter(readme: str) -> dict[str, Any]:
    """The metadata of a card as the Hub takes it; raises ``ValueError`` with what is wrong with it."""
    data = _read_front_matter(readme)
    _check_fields(data)
    return data


def card_metadata(card: Path) -> dict[str, Any]:
    """What the card of somebody's model says; empty where it says nothing that can be read: no model needs a card."""
    try:
        return _read_front_matter(read_bytes(card, _MAX_CARD).decode("utf-8", "replace"))
    except (OattnError, ValueError):
        return {}


def _read_front_matter(readme: str) -> dict[str, Any]:
    match = FRONT_MATTER.match(readme)
    if match is None:
        if readme.startswith("---"):
            raise ValueError("the front matter is not closed by a line of three dashes")
        return {}
    data = _load_yaml(match[1])
    if not isinstance(data, dict):
        raise ValueError("the front matter is not a mapping")
    return data


def _load_yaml(text: str) -> object:
    """The value of a YAML text that is neither long nor, its aliases written out, large."""
    if len(text) > _MAX_LETTERS:
        raise ValueError(f"the front matter has {len(text):,} letters, more than the {_MAX_LETTERS:,} it may have")
    try:
        if _written_out(yaml.compose(text, Loader=yaml.SafeLoader), {}) > _MAX_NODES:
            raise ValueError(f"its aliases stand for more than {_MAX_NODES:,} values")
        return yaml.safe_load(text) or {}
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # a date or a number may have no meaning
        raise ValueError(f"the front matter is not valid YAML: {error}") from error
    except RecursionError:
        raise ValueError("the front matter is nested too deeply") from None


def _written_out(node: yaml.Node | None, known: dict[int, float]) -> float:
    """How many values a node stands for, each alias counted as what it points to; one within itself is endless."""
    if isinstance(node, yaml.MappingNode):
        children = [child for pair in node.value for child in pair]
    else:
        children = node.value if isinstance(node, yaml.SequenceNode) else []
    if id(node) not in known:
        known[id(node)] = float("inf")  # while it is being counted
        known[id(node)] = 1 + sum(_written_out(child, known) for child in children)
    return known[id(node)]


def _check_fields(data: dict[str, Any]) -> None:
    for name in _TEXT:
        if name in data and not isinstance(data[name], str):
            raise ValueError(f'"{name}" must be a string')
    for name in _TEXT_OR_LIST:
        values = data.get(name, [])
        if not isinstance(values, str) and not (isinstance(values, list) and all(isinstance(v, str) for v in values)):
            raise ValueError(f'"{name}" must be a string or a list of strings')
    for name in listed(data.get("base_model")):
        if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name):
            raise ValueError(f'"base_model" with value {name!r} is not valid: it must be a model id on the Hub')
    if "model-index" in data:
        _check_model_index(data["model-index"])


def _check_model_index(index: Any) -> None:
    from huggingface_hub.repocard_data import model_index_to_eval_results

    try:
        model_index_to_eval_results(index)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f'"model-index" is not in the form of evaluation results: {error!r}') from error


def listed(value: object) -> list[str]:
    """The entries of a field that may be one text, a list of texts, or absent."""
    if value is None:
        return []
    return [str(entry) for entry in value] if isinstance(value, list | tuple) else [str(value)]
