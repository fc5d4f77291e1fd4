"""An output projection as one matrix (features of all heads, width), however its module keeps it, and its bias."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from oattn_hub.adapters import AttentionSite
from oattn_hub.adapters.layout import HeadAxis
from oattn_hub.errors import SurgeryError
from oattn_hub.models.offloaded import Change, stored
from oattn_hub.pruning.plain import NO_VALUES, weight_owner


def is_matrix(site: AttentionSite) -> bool:
    """Whether the projection can be read and written as a matrix: 1 x 1 convolutions can, wider ones cannot."""
    weight, axis = site.output_tensor
    if weight.dim() == 3:
        return site.output_module is None and axis == 1
    return weight.dim() == 2 or (weight.dim() == 4 and weight.shape[2:] == (1, 1))


def projection(site: AttentionSite) -> torch.Tensor:
    """(features of all heads, width) of the module's own weight, which need not have values (offloaded)."""
    weight, axis = site.output_tensor
    return _as_matrix(weight.detach(), axis)


def _as_matrix(weight: torch.Tensor, axis: int) -> torch.Tensor:
    if weight.dim() == 3:  # XLNet: (width, head, features of a head)
        return weight.permute(1, 2, 0)
    return weight.movedim(axis, 0).flatten(1) if weight.dim() == 2 else weight.movedim(axis, 0)[..., 0, 0]


def matrix(site: AttentionSite) -> torch.Tensor:
    """A copy of the projection as (features of all heads, width) in double precision."""
    found = _as_matrix(output_values(site), site.output_tensor[1]).double().cpu()
    return found.reshape(-1, found.shape[-1]).clone()


def output_values(site: AttentionSite) -> torch.Tensor:
    """The weight of the projection as it is, with its values, wherever they are."""
    return axis_values(site, site.layout.output)


def head_rows(site: AttentionSite) -> torch.Tensor:
    """The same as (features of all heads, whatever follows): ``site.output_weight`` with its values."""
    return output_values(site).movedim(site.output_tensor[1], 0).flatten(1)


def axis_values(site: AttentionSite, axis: HeadAxis) -> torch.Tensor:
    """The same for any of the layer's projections."""
    found = stored(*weight_owner(site, axis))
    if found is None:
        raise SurgeryError(NO_VALUES.format(f"{site.name}.{axis.path}"))
    return found.detach()


def output_owner(site: AttentionSite) -> tuple[nn.Module, str]:
    """The module that holds the output projection's weight, and the weight's name there."""
    return weight_owner(site, site.layout.output)


def rewritten(site: AttentionSite, value: torch.Tensor) -> Change:
    """The change that puts (features of all heads, width) in the place of the module's own weight."""
    axis = site.output_tensor[1]

    def change(weight: torch.Tensor) -> torch.Tensor:
        new = torch.empty_like(weight)
        target = _as_matrix(new, axis)
        target.copy_(value.to(target).reshape(target.shape))
        return new

    return change


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
