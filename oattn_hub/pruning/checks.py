"""What makes a pruned checkpoint whole: its cuts, its keys and its values are what they should be, or it is refused.

A copy of these functions travels with every pruned checkpoint, so they need torch and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch import nn


def check_cuts(cuts: dict[str, Any], planned: Iterable[Sequence[int]] | None = None) -> None:
    """Refuse cuts that leave other features than the heads they name, or remove other heads than were planned.

    Args:
        cuts: the list of cuts.
        planned: (layer, head) of every head that the manifest says was removed; None where there is no manifest.
    """
    if "sites" not in cuts:  # lists of before version 2
        return
    if max((site["n_heads"] for site in cuts["sites"]), default=0) > 100_000:
        raise ValueError("The cuts speak of a layer with 100,000 heads or more. Download or save it again.")
    removed = {(s["layer"], head) for s in cuts["sites"] for head in range(s["n_heads"]) if head not in s["kept"]}
    wrong = removed ^ {(layer, head) for layer, head in planned} if planned is not None else None
    if wrong:
        layer, head = min(wrong)
        raise ValueError(
            f"The plan and the cuts disagree on head {head} of layer {layer}, so the checkpoint is not loaded. "
            "Download or save it again."
        )
    kept = {cut["tensor"]: (cut["size"], sum(stop - start for start, stop in cut["ranges"])) for cut in cuts["keep"]}
    for site in cuts["sites"]:
        size, left = kept.get(site["output"], (0, 0))
        if left * site["n_heads"] != size * max(1, len(site["kept"])) or not left:
            raise ValueError(
                f"The cuts leave {left} of {size} features of {site['output']}, which are not the "
                f"{len(site['kept'])} of {site['n_heads']} heads that they name. Download or save it again."
            )


def planned_heads(manifest: object) -> list[list[int]] | None:
    """The heads that the manifest of a checkpoint says were removed; None where there is no such file."""
    if manifest is None:
        return None
    with open(str(manifest), encoding="utf-8") as stream:  # noqa: PTH123 - this file also travels alone
        heads: list[list[int]] = json.load(stream)["plan"]["heads"]
    return heads


def check_keys(
    info: dict[str, Any],
    own: str = "",
    base: str = "",
    may_lack: Collection[str] = (),
    spare: Collection[str] = (),
    resized: bool = False,
) -> None:
    """Refuse what transformers would only warn of: weights that are missing, left over, or of another shape.

    Args:
        info: what ``from_pretrained(output_loading_info=True)`` says.
        own: only keys of the checkpoint that begin so belong to the model that is loaded (the base of one with a head).
        base: only keys of the model that begin so must be in the checkpoint (a new head is not).
        may_lack: weights that the saved model did not have.
        spare: weights that the saved model had, and this one has no use for.
        resized: the user asked for weights of other shapes (``ignore_mismatched_sizes``: another number of classes).
    """
    missing = sorted(key for key in {*info["missing_keys"]} - {*may_lack} if key.startswith(base))
    extra = sorted(key for key in {*info["unexpected_keys"]} - {*spare} if key.startswith(own))
    wrong = [] if resized else sorted(str(entry[0]) for entry in info["mismatched_keys"])
    for keys, what in ((missing, "lacks"), (extra, "has a weight too many:"), (wrong, "has another shape of")):
        if keys:
            others = f" (and {len(keys) - 1} others)" if len(keys) > 1 else ""
            raise ValueError(
                f"The checkpoint {what} {keys[0]}{others}, so it is not loaded. Download or save it again."
            )
    if info.get("error_msgs"):
        raise ValueError(f"The checkpoint cannot be loaded: {info['error_msgs'][0]}")


def check_files(model: nn.Module, files: Iterable[object]) -> None:
    """Refuse integers in the place of weights, which transformers would turn into floats without a word."""
    counts = {name.rpartition(".")[2] for name, buffer in model.named_buffers() if not buffer.is_floating_point()}
    for file in (str(file) for file in files if str(file).endswith(".safetensors")):
        with open(file, "rb") as stream:  # noqa: PTH123 - this file also travels alone
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        for name, entry in header.items():
            if name != "__metadata__" and name.rpartition(".")[2] not in counts and "F" not in entry["dtype"]:
                raise ValueError(f"{name} holds integers ({entry['dtype']}), not weights. Download or save it again.")


def expect_all_keys(model: Any) -> None:
    """Let transformers report every weight that is missing or left over.

    Its classes name weights that old checkpoints of the original may lack or have too many; this one was saved whole.
    """
    model._keys_to_ignore_on_load_missing = set(model._keys_to_ignore_on_save or ())
    model._keys_to_ignore_on_load_unexpected = set()


def check_values(model: nn.Module) -> None:
    """Refuse weights that no training gives: integers, infinities and not-a-numbers."""
    for name, buffer in model.state_dict().items():
        if not buffer.is_meta and bool(buffer.isnan().any()):  # infinities are right in the buffer of a mask
            raise ValueError(f"{name} holds values that are not finite numbers. Download or save it again.")
    for name, parameter in model.named_parameters():
        if parameter.is_meta:  # offloaded: the data is not here to be looked at
            continue
        if not parameter.is_floating_point():
            raise ValueError(f"{name} holds integers ({parameter.dtype}), not weights. Download or save it again.")
        if not bool(parameter.isfinite().all()):
            raise ValueError(f"{name} holds values that are not finite numbers. Download or save it again.")


def load_weights(model: nn.Module, state: dict[str, torch.Tensor]) -> nn.Module:
    """Load all weights of a module that is not transformers', in the precision they were saved in."""
    own = model.state_dict()
    wrong = [key for key in state if key in own and state[key].shape != own[key].shape]
    check_keys(
        {
            "missing_keys": set(own) - set(state),
            "unexpected_keys": set(state) - set(own),
            "mismatched_keys": [(key,) for key in wrong],
        }
    )
    for key, value in state.items():
        if value.is_floating_point() != own[key].is_floating_point():
            kind = "integers" if own[key].is_floating_point() else "weights"
            raise ValueError(f"{key} holds {kind} ({value.dtype}), not {own[key].dtype}. Download or save it again.")
    precisions = {value.dtype for value in state.values() if value.is_floating_point()}
    if len(precisions) == 1:
        model.to(precisions.pop())
    model.load_state_dict(state)
    check_values(model)
    return model


def read_weights(folder: object) -> dict[str, torch.Tensor]:
    """All weights of a folder, out of one file or of those that its index names."""
    from pathlib import Path

    from safetensors.torch import load_file

    index = Path(str(folder)) / "model.safetensors.index.json"
    if not index.is_file():
        return load_file(Path(str(folder)) / "model.safetensors")
    found: dict[str, torch.Tensor] = {}
    for name in sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())):
        if Path(name).name != name:
            raise ValueError(f"The index names {name!r}, which is no file of its own. Download or save it again.")
        found |= load_file(Path(str(folder)) / name)
    return found


TRAVELLING = (
    check_cuts,
    planned_heads,
    check_keys,
    check_files,
    expect_all_keys,
    check_values,
    load_weights,
    read_weights,
)
