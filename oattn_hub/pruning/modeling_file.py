"""The Python file that travels with a pruned checkpoint: ``portable.py``, ``checks.py`` and a few generated lines.

Its classes bear the names of transformers' own: transformers renames weights, finds a model's task and re-saves a
model by the name of its class, and all that must work as it does for the original. Its config class makes the model
type of ``config.json`` (``pruned_bert``) readable: to a transformers that may not run the file the type is unknown,
so that its error names ``trust_remote_code`` instead of the sizes of tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from oattn_hub.models.aligned import align_weights
from oattn_hub.pruning import checks, portable
from oattn_hub.pruning.served import Served, auto_classes

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WRITTEN_TYPE = "pruned_"
_CONFIG_CLASS = '''

class {name}(_{name}):
    """{name} of a pruned model; on disk its model type is {written!r}, so that only this file reads it."""

    @classmethod
    def get_config_dict(cls, *args, **kwargs):
        found, rest = super().get_config_dict(*args, **kwargs)
        return {{**found, "model_type": cls.model_type}}, rest

    def to_diff_dict(self):
        return {{**super().to_diff_dict(), "model_type": {written!r}}}
'''

_MODEL_CLASS = '''

class {name}(_{name}):
    """{name} without the heads that config.oattn_pruning cuts out."""

    base_model_prefix = {base_prefix!r}

    def __init__(self, config, *args, **kwargs):
        super().__init__(config, *args, **kwargs)
        apply_cuts(self, config.oattn_pruning, prefix={prefix!r})
        expect_all_keys(self)

    @classmethod
    def is_custom_code(cls):
        return False  # so that transformers renames the weights as it does for {name}

    @classmethod
    def _load_pretrained_model(cls, model, state_dict, checkpoint_files, *args, **kwargs):
        check_files(model, checkpoint_files or ())
        return super()._load_pretrained_model(model, state_dict, checkpoint_files, *args, **kwargs)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path, *args, output_loading_info=False, ignore_mismatched_sizes=False, **kwargs
    ):
        place = pretrained_model_name_or_path
        # Sizes are always let through to the check here, whose sentence names the weight.
        options = {{"output_loading_info": True, "ignore_mismatched_sizes": True}}
        model, info = super().from_pretrained(place, *args, **options, **kwargs)
        check_cuts(model.config.oattn_pruning, planned_heads(find_manifest(place, kwargs)))
        expected = {{}} if model.config.architectures == [cls.__name__] else {expected!r}
        check_keys(info, **expected, resized=ignore_mismatched_sizes)
        check_values(align_weights(model))
        return (model, info) if output_loading_info else model
'''

_MANIFEST_FINDER = '''

def find_manifest(place, options):
    """The file that says which heads were removed; None where it did not come along (a model that was trained on)."""
    from transformers.utils import cached_file

    known = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
    try:
        return cached_file(place, "oattn_pruned.json", **{name: options[name] for name in known if name in options})
    except OSError:
        return None
'''

_TIMM_LOADER = '''

def create_model(folder, **options):
    """Build the pruned model of this folder with timm: ``model = create_model("path/to/checkpoint")``."""
    import json
    from pathlib import Path

    import timm

    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    arguments = {"num_classes": config["num_classes"], **config.get("model_args", {}), **options}
    model = timm.create_model(config["architecture"], pretrained=False, **arguments)
    manifest = Path(folder) / "oattn_pruned.json"
    check_cuts(config["oattn_pruning"], planned_heads(manifest if manifest.is_file() else None))
    apply_cuts(model, config["oattn_pruning"])
    return align_weights(load_weights(model, read_weights(folder)).eval())
'''


def _engine() -> str:
    cutting = Path(portable.__file__).read_text(encoding="utf-8")
    functions = [inspect.getsource(function) for function in (*checks.TRAVELLING, align_weights)]
    return "\n\n".join([cutting, "import json\nfrom collections.abc import Collection\n", *functions])


def timm_source() -> str:
    """The text of the file for a timm model: ``create_model(folder)`` needs timm, not oattn_hub."""
    return _engine() + _TIMM_LOADER


def transformers_source(model: PreTrainedModel, classes: Sequence[Served]) -> str:
    """The text of the file for a transformers model: its config, and every class that loads it."""
    config = type(model.config)
    imports = sorted(_import(cls) for cls in {config, *(served.cls for served in classes)})
    head = "import torch\nfrom torch import nn\n"
    parts = [_engine().replace(head, head + "".join(imports), 1)]
    parts.append(_MANIFEST_FINDER)
    parts.append(_CONFIG_CLASS.format(name=config.__name__, written=written_type(model)))
    for served in classes:
        # A task class may keep its base model under another name than the base model's class knows.
        names = {"name": served.cls.__name__, "prefix": served.prefix, "base_prefix": model.base_model_prefix}
        parts.append(_MODEL_CLASS.format(**names, expected=served.expected))
    return "".join(parts)


def written_type(model: PreTrainedModel) -> str:
    """The model type that a pruned checkpoint has on disk."""
    return f"{WRITTEN_TYPE}{model.config.model_type}"


def auto_map(model: PreTrainedModel, module: str, classes: Sequence[Served]) -> dict[str, str]:
    """Auto class -> class in the modeling file."""
    names = [served.cls.__name__ for served in classes]
    found: dict[str, str] = {}
    for name in names:
        for auto, served in auto_classes(model.config.model_type):
            if name in served:
                found.setdefault(auto, f"{module}.{name}")
    if f"{module}.{names[0]}" not in found.values():  # a class that no Auto class lists
        found["AutoModel"] = f"{module}.{names[0]}"
    return {"AutoConfig": f"{module}.{type(model.config).__name__}", **found}


def _import(cls: type) -> str:
    import transformers

    place = "transformers" if getattr(transformers, cls.__name__, None) is cls else cls.__module__
    return f"from {place} import {cls.__name__} as _{cls.__name__}\n"
