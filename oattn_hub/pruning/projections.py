"""An output projection as one matrix (features of all heads, width), however its module keeps it, and its bias."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from oattn_hub.adapters import AttentionSite


def is_matrix(site: AttentionSite) -> bool:
    """Whether the projection can be read and written as a matrix: 1 x 1 convolutions can, wider ones cannot."""
    weight, axis = site.output_tensor
    if weight.dim() == 3:
        return site.output_module is None and axis == 1
    return weight.dim() == 2 or (weight.dim() == 4 and weight.shape[2:] == (1, 1))


def projection(site: AttentionSite) -> torch.Tensor:
    """(features of all heads, width) of the module's own weight; writing to it changes the module."""
    weight, axis = site.output_tensor
    weight = weight.detach()
    if weight.dim() == 3:  # XLNet: (width, head, features of a head)
        return weight.permute(1, 2, 0)
    return weight.movedim(axis, 0).flatten(1) if weight.dim() == 2 else weight.movedim(axis, 0)[..., 0, 0]


def matrix(site: AttentionSite) -> torch.Tensor:
    """A copy of the projection as (features of all heads, width) in double precision."""
    found = projection(site).double().cpu()
    return found.reshape(-1, found.shape[-1]).clone()


def write(site: AttentionSite, value: torch.Tensor) -> None:
    """Put (features of all heads, width) in the place of the module's own weight."""
    target = projection(site)
    target.copy_(value.to(target).reshape(target.shape))


def places(site: AttentionSite, heads: Iterable[int]) -> list[int]:
    """Rows of the matrix that belong to these heads."""
    rows = site.features(heads)
    weight, _ = site.output_tensor
    if weight.dim() != 3:
        return rows
    chunk = weight.shape[2]
    return [row * chunk + feature for row in rows for feature in range(chunk)]


def bias_owner(site: AttentionSite) -> nn.Module | None:
    """The module whose ``bias`` is, or can be, added to what the heads write; None where there can be none."""
    module = site.output_module
    if module is not None:
        can_have_one = isinstance(module, nn.Linear | nn.Conv2d)
        return module if can_have_one or getattr(module, "bias", None) is not None else None
    owner, _, name = site.layout.output.path.rpartition(".")
    found = site.find(owner) if owner and name == "weight" else None
    return found if isinstance(found, nn.Module) and getattr(found, "bias", None) is not None else None
