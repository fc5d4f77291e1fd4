"""Where weights lie in memory: matrix kernels give other last bits when a weight begins at an odd address."""

from __future__ import annotations

import torch
from torch import nn


def align_weights(model: nn.Module) -> nn.Module:
    """Move every weight of ``model`` on the CPU to a 64-byte boundary, in place; its values stay as they are.

    A safetensors file is mapped into memory as it lies on the disk, and its weights begin wherever its header ends.
    One piece of memory is copied at a time, and tied weights stay tied. Weights that are elsewhere (on a device,
    offloaded) or that are no plain tensors (quantised) are left alone.
    """
    moved: dict[tuple[int, int], torch.UntypedStorage] = {}
    for weight in (*model.parameters(), *model.buffers()):
        plain = type(weight) in (torch.Tensor, nn.Parameter) and weight.layout == torch.strided
        if not plain or weight.device.type != "cpu" or weight.is_quantized:
            continue
        memory = weight.untyped_storage()
        if memory.data_ptr() % 64 == 0:
            continue
        # by size too: in a mapped file an empty weight begins where the next one does
        place = (memory.data_ptr(), memory.nbytes())
        if place not in moved:
            moved[place] = memory.clone()
        new = torch.empty(0, dtype=weight.dtype)
        new.set_(moved[place], weight.storage_offset(), weight.shape, weight.stride())
        weight.data = new
    return model


# Two machines, or two places in memory, may differ by this much after a whole model (see units_apart). Of 76 models the
# most was 11 between instruction sets and 3 between places (benchmarks/results/machines.md); deeper ones need room.
FEW_UNITS = 32


def units_apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """How far two outputs are apart, in units in the last place (of their dtype) of the largest value in ``other``.

    >>> import torch
    >>> units_apart(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 2.0**-23]))
    1.0
    """
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    differs = one != other  # infinities that are equal are not apart, and their difference is not a number
    if not differs.any():
        return 0.0
    largest = other.nan_to_num(0.0, 0.0, 0.0).abs().max().item()
    difference = (one[differs].double() - other[differs].double()).abs().max().item()
    return difference / (torch.finfo(other.dtype).eps * largest) if largest else float("inf")
