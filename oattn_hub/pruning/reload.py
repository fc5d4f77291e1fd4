"""Load a pruned checkpoint: strictly, and without running any code of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from oattn_hub.errors import FormatError, LoadError, SurgeryError
from oattn_hub.files import read_json
from oattn_hub.files.documents import blamed_on
from oattn_hub.models.aligned import align_weights
from oattn_hub.models.screening import screen_folder
from oattn_hub.models.timm_models import timm_arguments
from oattn_hub.pruning import checks, portable
from oattn_hub.pruning.manifest import Manifest, read_manifest
from oattn_hub.pruning.modeling_file import WRITTEN_TYPE
from oattn_hub.pruning.projections import head_rows
from oattn_hub.pruning.sites import head_sites, heads_of
from oattn_hub.records import MANIFEST, PRUNING_KEY, Head


def load_pruned(folder: str | Path, model: nn.Module | None = None, **placement: Any) -> nn.Module:
    """Load a pruned checkpoint from a local folder, in eval mode. Runs no code from the folder.

    A missing, unexpected, misshapen or non-finite weight, a changed file, or a plan that does not agree with the cuts
    and the weights raises FormatError. A pruned model that was trained on and saved by transformers has no plan and no
    hashes; its weights are checked as strictly.

    Args:
        folder: what ``save_pretrained`` wrote.
        model: a fresh, uncut instance, for models whose class only you know.
        placement: ``device_map``, ``dtype`` and ``offload_folder`` of transformers' ``from_pretrained``.
    """
    where = Path(folder)
    if not where.is_dir():
        raise LoadError(f"{where} is not a folder. Give the folder that save_pretrained wrote.")
    with blamed_on(where):
        saved = _saved_by_transformers(where) or _saved_by_us(read_manifest(where))
        config = read_json(where / "config.json")
        cuts = config.get(PRUNING_KEY) or saved.cuts  # the masked variant has none
        if cuts is not None:
            checks.check_cuts(cuts, saved.heads)
        if saved.library == "transformers" and model is None:
            loaded = _load_transformers(where, saved, placement)
        else:
            loaded = _load_module(where, saved, config, model)
        check_silence(where, saved, loaded)
    return align_weights(loaded.eval())


@dataclass(frozen=True)
class _Saved:
    """What the loader must know of a checkpoint; ``heads`` is None where no plan says which were removed."""

    library: str
    class_name: str
    model_type: str | None
    variant: str = "cut"
    cuts: dict[str, Any] | None = None
    heads: Sequence[Head] | None = None
    adapter: str | None = None


def _saved_by_us(manifest: Manifest) -> _Saved:
    return _Saved(
        manifest.library,
        manifest.class_name,
        manifest.model_type,
        manifest.variant,
        manifest.cuts,
        manifest.plan.heads,
        manifest.plan.adapter,
    )


def _saved_by_transformers(folder: Path) -> _Saved | None:
    """What is known of a pruned model that was trained on and saved by transformers, which writes no manifest."""
    if (folder / MANIFEST).is_file() or not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        return None
    config = read_json(folder / "config.json")
    if PRUNING_KEY not in config or not config.get("architectures"):
        return None
    model_type = str(config.get("model_type", "")).removeprefix(WRITTEN_TYPE)
    return _Saved("transformers", config["architectures"][0], model_type)


def check_silence(folder: Path, saved: _Saved, model: nn.Module) -> None:
    """Refuse a masked variant in which a head that the plan removed still has weights."""
    if saved.variant != "masked":
        return
    for site in head_sites(model, saved.adapter):
        heads = heads_of(site.layer, saved.heads or ())
        if bool(head_rows(site)[site.features(heads)].any()):
            raise FormatError(
                f"{folder}: the plan removes heads {heads} of layer {site.layer}, but their weights are not all "
                "zero. Download or save the checkpoint again."
            )


def _load_transformers(folder: Path, saved: _Saved, placement: Mapping[str, Any]) -> nn.Module:
    screen_folder(folder, read_json(folder / "config.json"))
    base = _transformers_class(folder, saved.class_name, saved.model_type)
    found, _ = base.config_class.get_config_dict(folder)
    settings = {name: value for name, value in found.items() if name not in ("auto_map", "model_type")}

    def build(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        base.__init__(self, config, *args, **kwargs)
        if cuts := getattr(config, PRUNING_KEY, None):
            portable.apply_cuts(self, cuts)
        checks.expect_all_keys(self)

    def load(cls: Any, model: nn.Module, state: Any, files: Any, *args: Any, **kwargs: Any) -> Any:
        checks.check_files(model, files or ())
        return super(cut, cls)._load_pretrained_model(model, state, files, *args, **kwargs)

    # A class of the same name and module: transformers renames weights only for classes that are its own.
    members = {"__init__": build, "_load_pretrained_model": classmethod(load), "__module__": base.__module__}
    cut: Any = type(base.__name__, (base,), members)
    try:
        config = base.config_class.from_dict(settings)
    except Exception as error:  # configs check themselves with errors of many classes
        reason = " ".join(str(error).split())[:200]
        raise FormatError(
            f"{folder}: config.json is refused by {base.config_class.__name__} ({reason}). Download or save it again."
        ) from error
    options = {**placement, "output_loading_info": True, "ignore_mismatched_sizes": True}  # check_keys names the weight
    model, info = cut.from_pretrained(folder, config=config, use_safetensors=True, **options)
    checks.check_keys(info)
    checks.check_values(model)
    model.__class__ = base  # the subclass was only there to cut before the weights came
    loaded: nn.Module = model
    return loaded


def _transformers_class(folder: Path, name: str, model_type: str | None) -> Any:
    from oattn_hub.models import find_model_class

    found: Any = find_model_class(name, model_type)
    if found is None:
        raise LoadError(
            f"{folder} holds a {name}, which this version of transformers does not have. Update transformers, or give "
            "a fresh, uncut model: load_pruned(folder, model)."
        )
    return found


def _load_module(folder: Path, saved: _Saved, config: dict[str, Any], model: Any) -> nn.Module:
    fresh: nn.Module = model if model is not None else _fresh_module(folder, config, saved)
    cuts = config.get(PRUNING_KEY)
    if cuts is not None:
        fresh = portable.apply_cuts(fresh, cuts)
        setattr(fresh, PRUNING_KEY, cuts)
    return checks.load_weights(fresh, checks.read_weights(folder))


def _fresh_module(folder: Path, config: Mapping[str, Any], saved: _Saved) -> nn.Module:
    if saved.library != "timm":
        raise SurgeryError(
            f"{folder} holds a {saved.class_name}, which only you can build. "
            "Give a fresh one: load_pruned(folder, model)."
        )
    return fresh_timm(config)


def fresh_timm(config: Mapping[str, Any]) -> nn.Module:
    """The uncut timm model that a checkpoint's config names, with random weights."""
    import timm

    architecture, given = timm_arguments(config, Path("config.json"))
    arguments = {"num_classes": config["num_classes"], **given}
    fresh: nn.Module = timm.create_model(architecture, pretrained=False, **arguments)
    return fresh
