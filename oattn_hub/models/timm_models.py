"""timm models out of folders: what their ``config.json`` may decide, and weights that are data.

``timm.create_model("local-dir:…")`` hands everything under ``model_args`` to its own loader, a ``checkpoint_path`` that
is unpickled among it, and takes a pickle where there are no safetensors. Here a file decides about the architecture
and about how images are prepared, and about nothing else.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from oattn_hub.errors import FormatError, LoadError
from oattn_hub.files import read_header, read_json
from oattn_hub.types import Json

PICKLED_WEIGHTS = ("pytorch_model.bin", "pytorch_model.pth", "model.pth")
# How images are prepared, what the outputs mean, and where the card says the model comes from.
_DESCRIPTION = (
    "architecture", "classifier", "crop_mode", "crop_pct", "description", "first_conv", "fixed_input_size",
    "input_size", "interpolation", "label_descriptions", "label_names", "label_offset", "license", "mean",
    "min_input_size", "num_classes", "origin_url", "paper_ids", "paper_name", "pool_size", "std", "tag",
    "test_crop_pct", "test_input_size", "test_pool_size",
)  # fmt: skip


def load_timm_folder(folder: Path, allow_pickle: bool = False) -> nn.Module:
    """The model in a folder that ``timm`` or ``oattn_hub`` wrote, with its weights."""
    import timm

    config = read_json(folder / "config.json")
    architecture, arguments = timm_arguments(config, folder / "config.json")
    description = {**_description(config), "state_dict": _weights(folder, allow_pickle)}
    if "num_classes" in config:
        description["num_classes"] = config["num_classes"]
    model: Any = timm.create_model(architecture, pretrained=True, pretrained_cfg=description, **arguments)
    model.pretrained_cfg.pop("state_dict", None)  # a second copy of all weights
    loaded: nn.Module = model
    return loaded


def timm_arguments(config: Json, place: Path) -> tuple[str, dict[str, Any]]:
    """The architecture that a ``config.json`` names and the arguments it gives; any other than a model's is refused."""
    import timm

    config = config if isinstance(config, Mapping) else {}
    architecture = config.get("architecture")
    if not isinstance(architecture, str) or not timm.is_model(architecture):
        raise FormatError(f"{place} names the architecture {str(architecture)[:60]!r}, which this timm does not have.")
    arguments = config.get("model_args") or {}
    if not isinstance(arguments, Mapping):
        raise FormatError(f"{place} is damaged: its model_args are no object.")
    known = _architecture_arguments(architecture)
    for name, value in arguments.items():
        if name not in known or not _is_plain(value):
            raise FormatError(
                f"{place} sets {name!r} in model_args, which a file may not decide. Build the model yourself, if you "
                "trust the file, and pass the module."
            )
    return architecture, dict(arguments)


def _architecture_arguments(architecture: str) -> set[str]:
    """What the classes in the architecture's module take; of that, nothing that timm's loader would take as its own."""
    import timm
    from timm.models import build_model_with_cfg

    module = sys.modules[timm.model_entrypoint(architecture).__module__]
    classes = [item for item in vars(module).values() if inspect.isclass(item) and issubclass(item, nn.Module)]
    taken = {name for item in classes for name in inspect.signature(item.__init__).parameters}
    loader = {
        name for build in (timm.create_model, build_model_with_cfg) for name in inspect.signature(build).parameters
    }
    return taken - loader - {"self", "args", "kwargs", "pruned", "features_only"}


def _is_plain(value: object, depth: int = 3) -> bool:
    if isinstance(value, list):
        return depth > 0 and len(value) <= 1000 and all(_is_plain(item, depth - 1) for item in value)
    return value is None or isinstance(value, str | int | float)


def _description(config: Mapping[str, Any]) -> dict[str, Any]:
    given = config.get("pretrained_cfg", config)  # old files have it all on one level
    if not isinstance(given, Mapping):
        return {}
    return {
        name: tuple(given[name]) if isinstance(given[name], list) else given[name]
        for name in _DESCRIPTION
        if name in given
    }


def _weights(folder: Path, allow_pickle: bool) -> dict[str, Tensor]:
    found = sorted(folder.glob("*.safetensors"), key=lambda path: path.name != "model.safetensors")
    if found:
        from safetensors.torch import load_file

        read_header(found[0])
        return load_file(found[0])
    pickles = [folder / name for name in PICKLED_WEIGHTS if (folder / name).is_file()]
    if not pickles:
        raise LoadError(f"{folder} has no weights (model.safetensors). Save or download the model again.")
    if not allow_pickle:
        raise LoadError(
            f"{folder} has no safetensors, only pickles ({pickles[0].name}), which can run code. Convert it, or pass "
            "allow_pickle=True (--allow-pickle)."
        )
    import torch

    loaded: dict[str, Tensor] = torch.load(pickles[0], map_location="cpu", weights_only=True)
    return loaded
