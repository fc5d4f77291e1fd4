"""The tree EMD in torch, on a device that was asked for, such as a GPU."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry.checks import Floats
from oattn_hub.lazy import require

if TYPE_CHECKING:
    from oattn_hub.geometry.emd import Folders

_NUMBERS = 1 << 25  # coordinates of all slices at a time: memory of the device that does not grow with the tensor
_FEW = 8  # slices that say what a typical one is


def device_distances(
    tensor: Floats, axis: int, rows: Folders, columns: Folders, precision: str, device: str
) -> NDArray[np.float64]:
    """The l_1 distances between the coordinates of all slices: the numbers of ``emd``, but for rounding.

    >>> from oattn_hub.geometry import PartitionTree
    >>> from oattn_hub.geometry.emd import Folders
    >>> two, one = (Folders.of(PartitionTree.dyadic(n), 0.0, 1.0) for n in (2, 1))
    >>> device_distances(np.eye(2)[:, :, None], 0, two, one, "float64", "cpu")
    array([[0., 1.],
           [1., 0.]])
    """
    torch = _torch_for(device)
    kind = {"dtype": getattr(torch, precision), "device": device}
    with torch.inference_mode():
        slices = torch.tensor(np.moveaxis(tensor, axis, 0), device=device)
        typical = slices[:: -(-len(slices) // _FEW)].mean(dim=0)
        slices -= typical  # and divided by a power of two, as in ``emd``: float32 keeps digits and range
        size = float(typical.abs().double().mean())
        scale = 2.0 ** -round(math.log2(size)) if size > 0 else 1.0
        slices = (slices * scale).to(kind["dtype"])
        left, right = torch.tensor(_averages(rows), **kind), torch.tensor(_averages(columns), **kind)
        total = torch.zeros((len(slices), len(slices)), dtype=torch.float64, device=device)
        step = max(1, _NUMBERS // (len(slices) * len(right)))
        for some in left.split(step):
            values = torch.einsum("fr,src->sfc", some, slices) @ right.T
            total += torch.cdist(values.flatten(1), values.flatten(1), p=1.0)
        distances = np.asarray(total.cpu().numpy()) / scale
    return (distances + distances.T) / 2


def _averages(folders: Folders) -> NDArray[np.float64]:
    """(folders, points) matrix that makes each folder's mean of the points, times its weight."""
    matrix = np.zeros((len(folders.weights), folders.n))
    lengths = np.diff(folders.member_starts)
    matrix[np.repeat(np.arange(len(lengths)), lengths), folders.members] = np.repeat(
        folders.weights / folders.sizes, lengths
    )
    return matrix


def _torch_for(device: str) -> Any:
    """The module torch, once it is sure that it has this device."""
    require("torch", what=f"Geometry on {device!r}")
    import torch

    try:
        torch.empty(1, dtype=torch.float64, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput(f"device={device!r} cannot compute in float64 here ({reason}). Leave it out.") from error
    return torch
