"""Pruned checkpoints on disk: a folder that loads with oattn_hub, without it, and not at all once it was tampered with.

=======================  =========================================================================================
``model.safetensors``    the weights (sharded for large models)
``config.json``          the original config with the list of cuts under ``oattn_pruning``
``modeling_pruned.py``   applies the cuts, for ``trust_remote_code=True`` and for timm; needs only torch
``evaluation.json``      what removing heads was measured to cost, if the pruned model came with it
``oattn_pruned.json``    the plan, what it saved, and the SHA-256 of the files above
=======================  =========================================================================================

``variant="masked"`` writes a checkpoint of the original shape instead, with the removed heads' weights zero: it is no
smaller, and every tool that reads the original reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from oattn_hub import __version__
from oattn_hub.errors import FormatError, InvalidInput, LoadError, SurgeryError
from oattn_hub.files import read_json, sha256_file, write_json, write_text
from oattn_hub.models.aligned import align_weights
from oattn_hub.pruning import portable
from oattn_hub.pruning.modeling_file import auto_map, timm_source, transformers_source
from oattn_hub.pruning.pruned import PRUNING_KEY, PrunedModel
from oattn_hub.pruning.surgery import CutList

MANIFEST = "oattn_pruned.json"
MODELING = "modeling_pruned.py"
EVALUATION = "evaluation.json"
VARIANTS = ("cut", "masked")
_WEIGHTS = "model.safetensors"


def save_checkpoint(
    pruned: PrunedModel, folder: Path, variant: str = "cut", model_args: Mapping[str, Any] | None = None
) -> Path:
    """Write a pruned model to ``folder`` and return it.

    Args:
        pruned: what ``plan.apply()`` returned.
        folder: made if it does not exist.
        variant: ``"cut"`` (smaller) or ``"masked"`` (original shape, removed heads zero).
        model_args: arguments ``timm.create_model`` needs beside the architecture to build the uncut model.
    """
    if variant not in VARIANTS:
        raise InvalidInput(f"variant is {variant!r}; choose from {', '.join(VARIANTS)}.")
    folder.mkdir(parents=True, exist_ok=True)
    # A folder with the manifest is complete: an old one goes first, the new one is written last.
    (folder / MANIFEST).unlink(missing_ok=True)
    library = pruned.loaded.library
    state = pruned.model.state_dict() if variant == "cut" else inflate(pruned.model.state_dict(), pruned.cuts)
    if library == "transformers":
        _save_transformers(pruned, folder, state, variant)
    else:
        _save_module(pruned, folder, state, variant, dict(model_args or {}))
    if pruned.loaded.processor is not None:
        pruned.loaded.processor.save_pretrained(folder)
    if pruned.evaluation is not None:
        write_json(folder / EVALUATION, pruned.evaluation.to_json())
    names = sorted(path.name for path in folder.iterdir() if path.suffix in (".safetensors", ".json", ".py"))
    manifest = {
        "schema": 1,
        "variant": variant,
        "library": library,
        "class": type(pruned.model).__name__,
        "oattn_hub": __version__,
        "plan": pruned.plan.to_json(),
        "result": pruned.result.to_json(),
        "sha256": {name: sha256_file(folder / name) for name in names},
    }
    write_json(folder / MANIFEST, manifest)
    return folder


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a pruned checkpoint, after checking that every file it lists is as it was written."""
    if not (folder / MANIFEST).is_file():
        raise FormatError(
            f"{folder} has no {MANIFEST}, so it is no complete pruned checkpoint. Save or download it again."
        )
    manifest = read_json(folder / MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("schema") != 1:
        raise FormatError(f"{folder / MANIFEST} has a schema this version does not read; update oattn_hub.")
    for name, expected in manifest["sha256"].items():
        path = folder / name
        if path.suffix == ".py" and not path.exists():
            continue  # code is downloaded only on request, and nothing here runs it
        if not path.is_file():
            raise FormatError(f"{path} is missing; the checkpoint is incomplete. Save or download it again.")
        if sha256_file(path) != expected:
            raise FormatError(
                f"{path} was changed after the checkpoint was saved (its SHA-256 differs from the manifest's), "
                "so it is not loaded. Download or save the checkpoint again."
            )
    return manifest


def load_pruned(folder: str | Path, model: nn.Module | None = None) -> nn.Module:
    """Load a pruned checkpoint from a local folder, in eval mode. Runs no code from the folder.

    Args:
        folder: what ``save_pretrained`` wrote.
        model: a fresh, uncut instance, for plain torch modules whose class only you know.
    """
    where = Path(folder)
    if not where.is_dir():
        raise LoadError(f"{where} is not a folder. Give the folder that save_pretrained wrote.")
    manifest = read_manifest(where)
    if manifest["library"] == "transformers":
        return _load_transformers(where, manifest)
    config = read_json(where / "config.json")
    fresh = model if model is not None else _fresh_module(where, config, manifest)
    cuts = config.get(PRUNING_KEY)
    if cuts is not None:
        fresh = portable.apply_cuts(fresh, cuts)
        setattr(fresh, PRUNING_KEY, cuts)
    from safetensors.torch import load_file

    fresh.load_state_dict(load_file(where / _WEIGHTS))
    return align_weights(fresh.eval())


def inflate(state: Mapping[str, torch.Tensor], cuts: CutList) -> dict[str, torch.Tensor]:
    """The state dict in the uncut shape, zero where heads were removed."""
    full = dict(state)
    for cut in cuts["keep"]:
        if cut["tensor"] not in full:  # a buffer that is not saved
            continue
        small = full[cut["tensor"]]
        shape = list(small.shape)
        shape[cut["axis"]] = cut["size"]
        index = torch.tensor(portable.indices(cut["ranges"]), device=small.device)
        full[cut["tensor"]] = small.new_zeros(shape).index_copy(cut["axis"], index, small)
    return full


def _save_transformers(pruned: PrunedModel, folder: Path, state: dict[str, torch.Tensor], variant: str) -> None:
    model: Any = pruned.model
    # The key is written by us below, into the cut variant only.
    cuts = model.config.__dict__.pop(PRUNING_KEY, pruned.cuts)
    try:
        model.save_pretrained(folder, state_dict=state)
    finally:
        setattr(model.config, PRUNING_KEY, cuts)
    if variant == "masked":
        return
    config = read_json(folder / "config.json")
    mapping = auto_map(model, MODELING.removesuffix(".py"))
    if mapping:
        write_text(folder / MODELING, transformers_source(model))
        config |= {"auto_map": mapping, "architectures": [f"Pruned{type(model).__name__}"]}
    write_json(folder / "config.json", {**config, PRUNING_KEY: cuts})


def _load_transformers(folder: Path, manifest: Mapping[str, Any]) -> nn.Module:
    import transformers

    from oattn_hub.models import find_model_class

    base: Any = getattr(transformers, manifest["class"], None) or find_model_class(manifest["class"])
    if base is None:
        raise LoadError(f"{folder} holds a {manifest['class']}, which this version of transformers does not have.")

    def build(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        base.__init__(self, config, *args, **kwargs)
        if cuts := getattr(config, PRUNING_KEY, None):
            portable.apply_cuts(self, cuts)

    model = type(base.__name__, (base,), {"__init__": build}).from_pretrained(folder)  # type: ignore[attr-defined]
    model.__class__ = base  # the subclass was only there to cut before the weights came
    return align_weights(model.eval())


def _save_module(
    pruned: PrunedModel, folder: Path, state: Mapping[str, torch.Tensor], variant: str, model_args: dict[str, Any]
) -> None:
    from safetensors.torch import save_file

    config: dict[str, Any] = {"oattn_class": type(pruned.model).__qualname__}
    if pruned.loaded.library == "timm":
        config = _timm_config(pruned.model, model_args)
        _check_timm(config, inflate(pruned.model.state_dict(), pruned.cuts))
    if variant == "cut":
        config[PRUNING_KEY] = pruned.cuts
        if pruned.loaded.library == "timm":
            write_text(folder / MODELING, timm_source())
    write_json(folder / "config.json", config)
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / _WEIGHTS, {"format": "pt"})


def _timm_config(model: Any, model_args: dict[str, Any]) -> dict[str, Any]:
    """What ``timm.create_model("local-dir:…")`` reads, so that the masked variant loads in timm as it is."""
    pretrained = {k: v for k, v in dict(model.pretrained_cfg).items() if isinstance(v, str | int | float | bool | list)}
    pretrained |= {k: list(v) for k, v in dict(model.pretrained_cfg).items() if isinstance(v, tuple)}
    config = {
        "architecture": pretrained["architecture"],
        "num_classes": model.num_classes,
        "num_features": model.num_features,
        "pretrained_cfg": {**pretrained, "num_classes": model.num_classes},
    }
    return config | ({"model_args": model_args} if model_args else {})


def _check_timm(config: Mapping[str, Any], state: Mapping[str, torch.Tensor]) -> None:
    fresh = _fresh_timm(config).state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    wrong = [name for name in {*shapes, *fresh} if name not in fresh or shapes.get(name) != tuple(fresh[name].shape)]
    if wrong:
        raise InvalidInput(
            f"timm.create_model({config['architecture']!r}) gives other shapes than this model: {sorted(wrong)[0]}. "
            "Say with which arguments the model was made: save_pretrained(folder, model_args={'img_size': …})."
        )


def _fresh_timm(config: Mapping[str, Any]) -> Any:
    import timm

    arguments = {"num_classes": config["num_classes"], **config.get("model_args", {})}
    return timm.create_model(config["architecture"], pretrained=False, **arguments)


def _fresh_module(folder: Path, config: Mapping[str, Any], manifest: Mapping[str, Any]) -> nn.Module:
    if manifest["library"] != "timm":
        raise SurgeryError(
            f"{folder} holds a {manifest['class']}, which only you can build. "
            "Give a fresh one: load_pruned(folder, model)."
        )
    fresh: nn.Module = _fresh_timm(config)
    return fresh
