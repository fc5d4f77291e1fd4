"""Pruned checkpoints on disk: a folder that loads with oattn_hub, without it, and not at all once it was tampered with.

=======================  =========================================================================================
``model.safetensors``    the weights (sharded for large models)
``config.json``          the original config with the list of cuts under ``oattn_pruning``
``modeling_pruned.py``   applies the cuts, for ``trust_remote_code=True`` and for timm; needs only torch
``evaluation.json``      what removing heads was measured to cost, if the pruned model came with it
``oattn_pruned.json``    the plan, what it saved, how the folder was verified, and the SHA-256 of the files above
=======================  =========================================================================================

All files of the base model that are not weights come along. Where every layer keeps the same number of heads and the
config of the family can say so, the folder is a plain checkpoint of the original class, without ``oattn_pruning`` and
``modeling_pruned.py``. ``variant="masked"`` writes a checkpoint of the original shape instead, with the removed heads'
weights zero: it is no smaller, and every tool that reads the original reads it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from oattn_hub import __version__
from oattn_hub.errors import FormatError, InvalidInput, OattnError, SurgeryError
from oattn_hub.files import folder_lock, parse_size, read_json, sha256_file, storage_errors, write_json, write_text
from oattn_hub.models.describe import pretrained
from oattn_hub.models.offloaded import StoredState, is_offloaded, mapped
from oattn_hub.pruning import portable
from oattn_hub.pruning.belongings import base_card, copy_belongings
from oattn_hub.pruning.manifest import Manifest
from oattn_hub.pruning.modeling_file import auto_map, timm_source, transformers_source, written_type
from oattn_hub.pruning.proof import prove
from oattn_hub.pruning.pruned import PrunedModel
from oattn_hub.pruning.reload import fresh_timm
from oattn_hub.pruning.served import served_classes
from oattn_hub.pruning.shards import remove_shards, shard_size, write_shards
from oattn_hub.pruning.stock import stock_model
from oattn_hub.pruning.surgery import CutList
from oattn_hub.records import MANIFEST, PRUNING_KEY

MODELING = "modeling_pruned.py"
EVALUATION = "evaluation.json"
VARIANTS = ("cut", "masked")
_HASHED = (".safetensors", ".json", ".py")
_ANY_SIZE = 10**18


def save_checkpoint(
    pruned: PrunedModel,
    folder: Path,
    variant: str = "cut",
    model_args: Mapping[str, Any] | None = None,
    verify: bool = True,
    allow_empty: bool = False,
    max_shard_size: int | str | None = None,
) -> Manifest:
    """Write a pruned model to ``folder``, load it again with and without oattn_hub, and return its manifest.

    Args:
        pruned: what ``plan.apply()`` returned.
        folder: made if it does not exist.
        variant: ``"cut"`` (smaller) or ``"masked"`` (original shape, removed heads zero).
        model_args: arguments ``timm.create_model`` needs beside the architecture to build the uncut model.
        verify: compare what the folder loads to with the model in memory; without it the manifest and the card say
            that nothing was verified.
        allow_empty: also save a plan that removes no head.
        max_shard_size: the most that one file of weights holds, such as ``"1GB"``; None is 5 GB, and about a layer for
            a model that accelerate has offloaded, of which no more than a file is in memory.
    """
    _check_saveable(pruned, folder, variant, allow_empty)
    largest = shard_size(pruned) if max_shard_size is None else parse_size(max_shard_size)
    stock, reason = stock_model(pruned) if variant == "cut" and pruned.cuts["sites"] else (None, "")
    manifest = Manifest(
        variant=variant,
        library=pruned.loaded.library,
        class_name=type(pruned.model).__name__,
        plan=pruned.plan,
        result=pruned.result,
        sha256={},  # known when the files are written
        stock=stock is not None,
        needs_code_because=reason,
        model_type=getattr(getattr(pruned.model, "config_class", None), "model_type", None),
        oattn_hub=__version__,
        base_card=base_card(pruned.loaded),
        cuts=pruned.cuts if stock is not None else None,
    )
    state = StoredState(pruned.model) if variant == "cut" else inflate(pruned.model.state_dict(), pruned.cuts)
    with folder_lock(folder, wait=0), storage_errors(folder):
        writer = _Writer(pruned, folder, manifest, state, stock, dict(model_args or {}), largest)
        try:
            writer.write()
            if verify:
                writer.verify()
        except Exception:
            writer.discard()
            raise
    return writer.manifest


def _check_saveable(pruned: PrunedModel, folder: Path, variant: str, allow_empty: bool) -> None:
    if variant not in VARIANTS:
        raise InvalidInput(f"variant is {variant!r}; choose from {', '.join(VARIANTS)}.")
    if not pruned.plan.heads and not allow_empty:
        raise InvalidInput(
            "The plan removes no head, so there is nothing to save: the model is the original. Allow more heads to go, "
            "or pass allow_empty=True if you want a copy of it all the same."
        )
    if variant == "masked" and pruned.cuts["bias"]:
        raise InvalidInput(
            "The output projections of this model got a bias that the original does not have, so it has no masked "
            "variant. Save variant='cut', or apply the plan with compensate=False."
        )
    if is_offloaded(pruned.model):
        _check_offloaded(pruned, folder, variant)


def _check_offloaded(pruned: PrunedModel, folder: Path, variant: str) -> None:
    """Refuse what an offloaded model cannot be saved as, or where its own weights are read from."""
    if variant == "masked":
        raise InvalidInput(
            "The masked variant has the original's shape, which an offloaded model no longer has at hand. Save "
            "variant='cut', or load the model without offloading."
        )
    source = pruned.loaded.source
    if source is not None and Path(source).is_dir() and Path(source).resolve() == folder.resolve():
        raise InvalidInput(
            f"{folder} holds the weights that the offloaded model is read from, so it cannot be saved there. Name "
            "another folder."
        )


class _Writer:
    """One checkpoint on its way to disk."""

    def __init__(
        self,
        pruned: PrunedModel,
        folder: Path,
        manifest: Manifest,
        state: Mapping[str, torch.Tensor],
        stock: Any,
        model_args: dict[str, Any],
        largest: int,
    ) -> None:
        self.pruned, self.folder, self.manifest, self.state = pruned, folder, manifest, state
        self.stock, self.model_args, self.largest = stock, model_args, largest
        self._before = _file_states(folder)

    def write(self, own_names: bool = False) -> None:
        """Write all files, the manifest last: a folder with a manifest is complete."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in (MANIFEST, MODELING):  # of an earlier save
            (self.folder / name).unlink(missing_ok=True)
        remove_shards(self.folder)
        if self.pruned.loaded.library == "transformers":
            self._write_transformers(own_names)
        else:
            _write_config(self.pruned, self.folder, self.manifest.variant, self.model_args)
            # timm reads its own models out of one file
            whole = self.pruned.loaded.library == "timm" and self.manifest.variant == "masked"
            write_shards(self.state, self.folder, _ANY_SIZE if whole else self.largest)
        if self.pruned.loaded.processor is not None:
            self.pruned.loaded.processor.save_pretrained(self.folder)
        belongings = copy_belongings(self.pruned.loaded, self.folder)
        if self.pruned.evaluation is not None:
            write_json(self.folder / EVALUATION, self.pruned.evaluation.to_json())
        names = sorted({*belongings, *self._written()} - {MANIFEST})
        hashes = {name: sha256_file(self.folder / name) for name in names if name.endswith(_HASHED)}
        self.manifest = replace(self.manifest, files=tuple(names), sha256=hashes)
        self.manifest.write(self.folder)

    def _written(self) -> list[str]:
        """What this save wrote; whatever else lies in the folder is no part of the checkpoint, and is not published."""
        return [name for name, state in _file_states(self.folder).items() if self._before.get(name) != state]

    def verify(self) -> None:
        """Load the folder again and compare."""
        self.manifest = replace(self.manifest, verified=self._proof())
        self.manifest.write(self.folder)

    def discard(self) -> None:
        """Take away what this save wrote, so that nothing passes for a model, and the same command can be repeated."""
        for name in {*self._written(), MANIFEST}:
            (self.folder / name).unlink(missing_ok=True)

    def _proof(self) -> dict[str, str]:
        try:
            return self._prove_once()
        except (SurgeryError, FormatError):
            if self.pruned.loaded.library != "transformers" or self.manifest.variant == "masked" or self.stock:
                raise
        # Some families rearrange weights for the disk by the number of heads that the config says, which a cut
        # layer no longer has; their weights are saved as they are in memory.
        self.write(own_names=True)
        return self._prove_once()

    def _prove_once(self) -> dict[str, str]:
        return prove(self.folder, self.manifest, self.pruned.loaded, self.state, self.pruned.probe)

    def _write_transformers(self, own_names: bool) -> None:
        if self.stock is not None:
            self.stock.save_pretrained(self.folder, max_shard_size=self.largest)
            return
        model = pretrained(self.pruned.model)
        # The key is written by us below, into the cut variant only.
        cuts = model.config.__dict__.pop(PRUNING_KEY, self.pruned.cuts)
        try:
            # transformers empties the dict, and reads what is offloaded by itself, one file at a time
            state = model.state_dict() if isinstance(self.state, StoredState) else dict(self.state)
            with storage_errors(self.folder), mapped(model), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Attempting to save a model with offloaded modules")
                model.save_pretrained(
                    self.folder, state_dict=state, max_shard_size=self.largest, save_original_format=not own_names
                )
        except OattnError:
            raise
        except Exception as error:  # a config that its own class no longer accepts
            raise FormatError(
                f"transformers cannot save this {type(model).__name__} ({' '.join(str(error).split())[:200]}). Does "
                "the uncut model save? Mend its config first."
            ) from error
        finally:
            setattr(model.config, PRUNING_KEY, cuts)
        if self.manifest.variant == "masked":
            return
        config = read_json(self.folder / "config.json")
        if classes := served_classes(model):
            write_text(self.folder / MODELING, transformers_source(model, classes))
            mapping = auto_map(model, MODELING.removesuffix(".py"), classes)
            config |= {"auto_map": mapping, "model_type": written_type(model)}
        write_json(self.folder / "config.json", {**config, PRUNING_KEY: cuts})


def _file_states(folder: Path) -> dict[str, tuple[int, ...]]:
    """Of every plain file that is not hidden: what changes when it is written."""
    found: dict[str, tuple[int, ...]] = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if not any(part.startswith(".") for part in name.parts) and path.is_file() and not path.is_symlink():
            state = path.stat()
            found[name.as_posix()] = (state.st_size, state.st_ino, state.st_mtime_ns, state.st_ctime_ns)
    return found


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


def _write_config(pruned: PrunedModel, folder: Path, variant: str, model_args: dict[str, Any]) -> None:
    """The config, and the code where it needs some, of a model that is not transformers'."""
    config: dict[str, Any] = {"oattn_class": type(pruned.model).__qualname__}
    if pruned.loaded.library == "timm":
        config = _timm_config(pruned.model, model_args)
        _check_timm(config, inflate(pruned.model.state_dict(), pruned.cuts))
    if variant == "cut":
        config[PRUNING_KEY] = pruned.cuts
        if pruned.loaded.library == "timm":
            write_text(folder / MODELING, timm_source())
    write_json(folder / "config.json", config)


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
    fresh = fresh_timm(config).state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    wrong = [name for name in {*shapes, *fresh} if name not in fresh or shapes.get(name) != tuple(fresh[name].shape)]
    if wrong:
        raise InvalidInput(
            f"timm.create_model({config['architecture']!r}) gives other shapes than this model: {sorted(wrong)[0]}. "
            "Say with which arguments the model was made: save_pretrained(folder, model_args={'img_size': …})."
        )
