"""Weights in files of a bounded size, with an index that says which weight is where: model-00001-of-00003.safetensors.

Files that are too large are slow to send and to repeat, and whoever writes one holds all of it in memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch

from oattn_hub.files import write_json
from oattn_hub.models.offloaded import is_offloaded
from oattn_hub.models.screening import INDEX_FILE
from oattn_hub.pruning.pruned import PrunedModel

_PATTERN = "model{suffix}.safetensors"
_NAMES = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors|" + re.escape(INDEX_FILE))
_LARGEST, _SMALLEST = 5 * 10**9, 10**8


def shard_size(pruned: PrunedModel) -> int:
    """How large a file becomes, unless the user says so: 5 GB, and about a layer of an offloaded model."""
    if not is_offloaded(pruned.model):
        return _LARGEST
    total = sum(weight.nbytes for weight in pruned.model.parameters())
    return min(_LARGEST, max(_SMALLEST, total // max(1, len({site["layer"] for site in pruned.cuts["sites"]}))))


def write_shards(state: Mapping[str, torch.Tensor], folder: Path, largest: int) -> None:
    """Write weights as one file or as many."""
    from huggingface_hub import split_torch_state_dict_into_shards
    from safetensors.torch import save_file

    split = split_torch_state_dict_into_shards(dict(state), filename_pattern=_PATTERN, max_shard_size=largest)
    for file, names in split.filename_to_tensors.items():
        # copies, since safetensors refuses tensors that share memory (tied weights)
        save_file({name: state[name].contiguous().clone() for name in names}, folder / file, {"format": "pt"})
    if split.is_sharded:
        write_json(folder / INDEX_FILE, {"metadata": split.metadata, "weight_map": split.tensor_to_filename})


def remove_shards(folder: Path) -> None:
    """Take away the weights of an earlier save: what is left of them would be read in the place of the new ones."""
    for path in folder.iterdir():
        if _NAMES.fullmatch(path.name):
            path.unlink()
