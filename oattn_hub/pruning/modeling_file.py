"""The Python file that travels with a pruned checkpoint: the engine of ``portable.py`` and a few generated lines."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from oattn_hub.models.aligned import align_weights
from oattn_hub.pruning import portable

_TRANSFORMERS_CLASS = '''

class Pruned{name}({name}):
    """{name} without the heads that config.oattn_pruning cuts out."""

    def __init__(self, config, *args, **kwargs):
        super().__init__(config, *args, **kwargs)
        apply_cuts(self, config.oattn_pruning, prefix="{prefix}")

    @classmethod
    def from_pretrained(cls, *args, **kwargs):
        loaded = super().from_pretrained(*args, **kwargs)
        align_weights(loaded[0] if isinstance(loaded, tuple) else loaded)
        return loaded
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
    apply_cuts(model, config["oattn_pruning"])
    model.load_state_dict(load_file(Path(folder) / "model.safetensors"))
    return align_weights(model.eval())
'''


def _engine() -> str:
    return Path(portable.__file__).read_text(encoding="utf-8") + "\n\n" + inspect.getsource(align_weights)


def timm_source() -> str:
    """The text of the file for a timm model: ``create_model(folder)`` needs timm, not oattn_hub."""
    return _engine() + _TIMM_LOADER


def transformers_source(model: Any) -> str:
    """The text of the file for a transformers model: one class for it, one for its base model."""
    classes = _classes(model)
    imports = "".join(f"from transformers import {name}\n" for name in sorted(classes))
    engine = _engine().replace(
        "import torch\nfrom torch import nn\n", f"import torch\nfrom torch import nn\n{imports}", 1
    )
    return engine + "".join(_TRANSFORMERS_CLASS.format(name=name, prefix=prefix) for name, prefix in classes.items())


def auto_map(model: Any, module: str) -> dict[str, str]:
    """Auto class -> class in the modeling file; empty for a model that is not transformers' own."""
    import transformers

    if not type(model).__module__.startswith("transformers."):
        return {}
    found: dict[str, str] = {}
    for name in _classes(model):
        for auto in dir(transformers):
            mapping = (
                getattr(getattr(transformers, auto, None), "_model_mapping", None)
                if auto.startswith("AutoModel")
                else None
            )
            served = mapping._model_mapping.get(model.config.model_type) if mapping is not None else None
            if served is not None and name in ([served] if isinstance(served, str) else served):
                found.setdefault(auto, f"{module}.Pruned{name}")
    return found


def _classes(model: Any) -> dict[str, str]:
    """The model's class and its base model's, each with the prefix that its paths lack."""
    classes = {type(model).__name__: ""}
    prefix = getattr(model, "base_model_prefix", "")
    base = getattr(model, prefix, None) if prefix else None
    if base is not None and base is not model:
        classes[type(base).__name__] = f"{prefix}."
    return classes
