"""A saved checkpoint proves itself: it is loaded again, by us and without us, and compared with the model in memory."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from oattn_hub.errors import SurgeryError
from oattn_hub.files import read_json
from oattn_hub.models.load import LoadedModel
from oattn_hub.models.offloaded import StoredState, is_offloaded, placement_of
from oattn_hub.pruning.checks import read_weights
from oattn_hub.pruning.manifest import Manifest
from oattn_hub.pruning.readout import EXACT, ROUNDING, largest_difference, same_random_numbers, tensors_in
from oattn_hub.pruning.reload import load_pruned

State = Mapping[str, torch.Tensor]

_WITHOUT_US = """
from __future__ import annotations
import sys
sys.modules["oattn_hub"] = None  # any import of it fails
import importlib.util, json, pathlib
from collections.abc import Mapping
import torch
from safetensors.torch import load_file, save_file

task = json.loads(sys.stdin.read())
folder, loader = task["folder"], task["loader"]
if loader == "create_model":
    spec = importlib.util.spec_from_file_location("modeling_pruned", pathlib.Path(folder) / "modeling_pruned.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.create_model(folder)
elif loader == "timm.create_model":
    import timm
    model = timm.create_model("local-dir:" + folder, pretrained=True)
else:
    import transformers
    model = getattr(transformers, loader).from_pretrained(folder, **task["options"])
{tensors_in}
model.eval()
batch = load_file(task["batch"])
torch.manual_seed(0)  # as the outputs that it is compared with
with torch.no_grad():
    output = model(*batch.values()) if loader.endswith("create_model") else model(**batch)
found = tensors_in(output)
save_file({name: value.contiguous().clone() for name, value in found.items()}, task["answer"])
"""


def prove(folder: Path, manifest: Manifest, loaded: LoadedModel, state: State, batch: State | None) -> dict[str, str]:
    """Load what was written, by us and in a fresh process without us; raises SurgeryError where anything differs.

    Args:
        folder: the checkpoint.
        manifest: what was written about it.
        loaded: the pruned model in memory.
        state: the weights that were to be written.
        batch: what to compare outputs on; None compares weights only.

    Returns:
        What was compared, by the name of the loader.
    """
    expected = outputs_of(loaded, batch) if batch is not None else {}
    if not expected:  # outputs without a tensor cannot be compared
        batch = None
    found = {"oattn_hub.from_pretrained": prove_here(folder, loaded, state, batch, expected)}
    way = stock_loader(folder, manifest)
    if way and is_offloaded(loaded.model):
        way = {**way, "options": {**way["options"], **placement_of(loaded.model, "offloaded")}}
    if way and batch is not None:
        compare(expected, run_without_us(folder, way, batch), f"{way['loader']} without oattn_hub")
        found[str(way["loader"])] = "outputs, in a process without oattn_hub"
    return found


def prove_here(folder: Path, loaded: LoadedModel, state: State, batch: State | None, expected: State) -> str:
    """Our own loader gives the same weights bit by bit, and the same outputs."""
    if loaded.library == "torch":  # only its author can build it; what lies in the file can still be compared
        _compare_weights(state, read_weights(folder))
        return "weights in the file"
    with TemporaryDirectory() as scratch:
        again = load_pruned(folder, **placement_of(loaded.model, scratch))
        _compare_weights(state, StoredState(again))
        if batch is None:
            return "weights"
        compare(expected, _answers_again(replace(loaded, model=again), batch), "oattn_hub's loader")
    return "weights and outputs"


def _answers_again(again: LoadedModel, batch: State) -> dict[str, torch.Tensor]:
    """The outputs of the reloaded model; some classes cannot run in the precision that transformers loads them in."""
    try:
        return outputs_of(again, batch)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:  # whatever a forward says
        raise SurgeryError(
            f"Loaded again, the checkpoint does not run ({' '.join(str(error).split())[:200]}). It was not saved. Does "
            "the uncut model run, saved in this precision and loaded again? If not, use float32: model.float()."
        ) from error


def stock_loader(folder: Path, manifest: Manifest) -> dict[str, Any] | None:
    """How the checkpoint loads where oattn_hub is not installed; None where it does not."""
    config = read_json(folder / "config.json")
    whole = manifest.variant == "masked" or manifest.stock
    if manifest.library == "timm":
        return {"loader": "timm.create_model" if whole else "create_model"}
    if manifest.library != "transformers":
        return None
    if whole:
        import transformers

        return {"loader": manifest.class_name, "options": {}} if hasattr(transformers, manifest.class_name) else None
    serving = [auto for auto, name in config.get("auto_map", {}).items() if name.endswith(f".{manifest.class_name}")]
    return {"loader": serving[0], "options": {"trust_remote_code": True}} if serving else None


def run_without_us(folder: Path, way: Mapping[str, Any], batch: State) -> dict[str, torch.Tensor]:
    """The outputs of a fresh process that cannot import oattn_hub."""
    from safetensors.torch import load_file, save_file

    with TemporaryDirectory() as scratch:
        place = Path(scratch)
        save_file({name: value.cpu().contiguous().clone() for name, value in batch.items()}, place / "batch")
        task = {"folder": str(folder.resolve()), "batch": str(place / "batch"), "answer": str(place / "answer"), **way}
        quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_MODULES_CACHE": str(place / "modules")}
        script = _WITHOUT_US.replace("{tensors_in}", inspect.getsource(tensors_in))
        command = [sys.executable, "-W", "ignore", "-c", script]
        environment = {**os.environ, **quiet}
        done = subprocess.run(
            command, input=json.dumps(task), capture_output=True, text=True, env=environment, cwd=place, check=False
        )
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
            raise SurgeryError(
                f"The saved checkpoint does not load without oattn_hub ({way['loader']}): {reason[:300]} "
                "Please report the model; variant='masked' saves it in the original shape."
            )
        return load_file(place / "answer")


def outputs_of(loaded: LoadedModel, batch: State) -> dict[str, torch.Tensor]:
    """All tensors that a forward call gives, by name."""
    with torch.no_grad(), same_random_numbers():
        output = loaded.forward(batch)
    return {name: value.cpu() for name, value in tensors_in(output).items()}


def compare(expected: State, found: State, by: str) -> None:
    """Refuse outputs that differ by more than rounding."""
    for name, wanted in expected.items():
        other = found.get(name)
        if other is None or other.shape != wanted.shape:
            how = "has another shape"
        else:
            difference, size = largest_difference(wanted.double(), other.double())
            if difference <= ROUNDING.get(wanted.dtype, EXACT) * max(1.0, size):
                continue
            how = f"differs by {difference:.2g}"
        raise SurgeryError(
            f"Loaded again by {by}, the checkpoint does not give the outputs of the model in memory: {name} {how}. "
            "It was not saved; please report the model. variant='masked' saves it in the original shape."
        )


def _compare_weights(expected: State, found: State) -> None:
    for name in sorted({*expected, *found}):
        if name not in expected or name not in found or not torch.equal(expected[name].cpu(), found[name].cpu()):
            _check_one_precision(expected)
            raise SurgeryError(
                f"Loaded again, the checkpoint has other weights than the model in memory: {name}. "
                "It was not saved; please report the model. variant='masked' saves it in the original shape."
            )


def _check_one_precision(expected: State) -> None:
    """Say of a model in several precisions that transformers loads all weights in one, which rounds the others."""
    kinds = {str(value.dtype).removeprefix("torch.") for value in expected.values() if value.is_floating_point()}
    if len(kinds) > 1:
        raise SurgeryError(
            f"The weights are in several precisions ({', '.join(sorted(kinds))}), and transformers loads a checkpoint "
            "in one, so some would be rounded. It was not saved. Bring the model into one first: model.float()."
        )
