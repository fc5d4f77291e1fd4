"""Keywords that are handed on are named in two places, the function and a type; both name the same ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import get_type_hints

import pytest

from oattn_hub.cli.loading import _NAMES
from oattn_hub.hub.download import PullOptions, pull
from oattn_hub.hub.publish import PublishOptions, publish_folder
from oattn_hub.hub.space import SpaceOptions, publish_space
from oattn_hub.models.load import load_model
from oattn_hub.models.options import HubOptions, LoadAgain, LoadOptions


@pytest.mark.parametrize(
    ("function", "own", "options"),
    [
        (load_model, {"spec"}, LoadOptions),
        (pull, {"repo_id"}, PullOptions),
        (publish_folder, {"folder", "repo_id", "kind", "message"}, PublishOptions),
        (publish_space, {"folder", "repo_id", "title", "models"}, SpaceOptions),
    ],
    ids=["load_model", "pull", "publish_folder", "publish_space"],
)
def test_a_type_of_options_names_what_its_function_takes(
    function: Callable[..., object], own: set[str], options: type
) -> None:
    hints = get_type_hints(function)
    taken = {name: hints[name] for name in inspect.signature(function).parameters if name not in own}
    assert get_type_hints(options) == taken


def test_the_options_of_the_command_line_and_of_the_hub_are_options_of_loading() -> None:
    known = set(get_type_hints(LoadOptions))
    assert set(_NAMES) < known
    assert set(get_type_hints(HubOptions)) < known
    chosen_by_files = {"revision", "gguf_file", "task"}  # a record of the model may say these
    assert set(get_type_hints(LoadAgain)) == known - {*chosen_by_files, "tokenizer", "processor"}
