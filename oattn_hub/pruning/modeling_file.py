"""The Python file that travels with a pruned checkpoint: the engine of ``portable.py`` and a few generated lines.

Its classes bear the names of transformers' own: transformers renames weights, finds a model's task and re-saves a
model by the name of its class, and all that must work as it does for the original. Its config class makes the model
type of ``config.json`` (``pruned_bert``) readable: to a transformers that may not run the file the type is unknown,
so that its error names ``trust_remote_code`` instead of the sizes of tensors.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from oattn_hub.models.aligned import align_weights
from oattn_hub.pruning import portable

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
        check_keys(info, own={prefix!r}, may_lack={may_lack!r}, resized=ignore_mismatched_sizes)
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
    from safetensors.torch import load_file

    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    arguments = {"num_classes": config["num_classes"], **config.get("model_args", {}), **options}
    model = timm.create_model(config["architecture"], pretrained=False, **arguments)
    manifest = Path(folder) / "oattn_pruned.json"
    check_cuts(config["oattn_pruning"], planned_heads(manifest if manifest.is_file() else None))
    apply_cuts(model, config["oattn_pruning"])
    return align_weights(load_weights(model, load_file(Path(folder) / "model.safetensors")).eval())
'''


def _engine() -> str:
    return Path(portable.__file__).read_text(encoding="utf-8") + "\n\n" + inspect.getsource(align_weights)


def timm_source() -> str:
    """The text of the file for a timm model: ``create_model(folder)`` needs timm, not oattn_hub."""
    return _engine() + _TIMM_LOADER


def transformers_source(model: Any) -> str:
    """The text of the file for a transformers model: its config, its class, and its base model's."""
    config, classes = type(model.config), _classes(model)
    imports = sorted(_import(cls) for cls in {config, *(cls for cls, _ in classes)})
    head = "import torch\nfrom torch import nn\n"
    parts = [_engine().replace(head, head + "".join(imports), 1)]
    parts.append(_MANIFEST_FINDER)
    parts.append(_CONFIG_CLASS.format(name=config.__name__, written=written_type(model)))
    for cls, prefix in classes:
        # A task class may keep its base model under another name than the base model's class knows.
        names = {"name": cls.__name__, "prefix": prefix, "base_prefix": model.base_model_prefix}
        parts.append(_MODEL_CLASS.format(**names, may_lack=_may_lack(model, prefix)))
    return "".join(parts)


def written_type(model: Any) -> str:
    """The model type that a pruned checkpoint has on disk."""
    return f"{WRITTEN_TYPE}{model.config.model_type}"


def auto_map(model: Any, module: str) -> dict[str, str]:
    """Auto class -> class in the modeling file; empty for a model that is not transformers' own."""
    if not type(model).__module__.startswith("transformers."):
        return {}
    names = [cls.__name__ for cls, _ in _classes(model)]
    found: dict[str, str] = {}
    for name in names:
        for auto, served in _served(model.config.model_type):
            if name in served:
                found.setdefault(auto, f"{module}.{name}")
    if f"{module}.{names[0]}" not in found.values():  # a class that no Auto class lists
        found["AutoModel"] = f"{module}.{names[0]}"
    return {"AutoConfig": f"{module}.{type(model.config).__name__}", **found}


def _served(model_type: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Auto class and the names of the classes it loads for a model type."""
    import transformers

    for auto in dir(transformers):
        if auto.startswith("AutoModel"):  # AutoBackbone reads no local folders
            mapping = getattr(getattr(transformers, auto, None), "_model_mapping", None)
            served = mapping._model_mapping.get(model_type) if mapping is not None else None
            if served is not None:
                yield auto, [served] if isinstance(served, str) else served


def _import(cls: type) -> str:
    import transformers

    place = "transformers" if getattr(transformers, cls.__name__, None) is cls else cls.__module__
    return f"from {place} import {cls.__name__} as _{cls.__name__}\n"


def _classes(model: Any) -> list[tuple[type, str]]:
    """The model's class and its base model's, each with the prefix that its paths lack."""
    classes = [(type(model), "")]
    prefix = getattr(model, "base_model_prefix", "")
    base = getattr(model, prefix, None) if prefix else None
    if hasattr(base, "from_pretrained") and type(base).__name__ != type(model).__name__:
        classes.append((type(base), f"{prefix}."))
    return classes


def _may_lack(model: Any, prefix: str) -> list[str]:
    """Weights of the base model's class that the base model inside ``model`` was built without (BERT's pooler).

    And those that the class of ``model`` never saves, because they are computed (Marian's positions).
    """
    if not prefix:
        return []
    inner = model.get_submodule(prefix.removesuffix("."))
    config = copy.copy(inner.config)
    config.dtype = inner.dtype  # saving leaves a string there, which some classes cannot build from
    with torch.device("meta"):
        alone = type(inner)(config)
    computed = {key.removeprefix(prefix) for key in model._keys_to_ignore_on_save or () if key.startswith(prefix)}
    return sorted(set(alone.state_dict()) - set(inner.state_dict()) | computed)
