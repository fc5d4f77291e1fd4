"""Which models can be cut as they are: plain tensors with values. For the others, what to do first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from oattn_hub.adapters import AttentionSite
from oattn_hub.adapters.layout import HeadAxis
from oattn_hub.errors import SurgeryError
from oattn_hub.models.offloaded import has_values

NO_VALUES = (
    "{} has no values: the model was only outlined (on the meta device), or offloaded by another tool than accelerate. "
    "Load it with its weights, and evaluate or prune that."
)


def check_plain(sites: Iterable[AttentionSite]) -> None:
    """Refuse projections that carry adapters, are quantised, or have no values, and say how to get plain ones."""
    for site, axis in _projections(sites):
        found = site.find(axis.path)
        _check(f"{site.name}.{axis.path}", found, getattr(found, "weight", found))
        _check_values(site, axis)


def check_values(sites: Iterable[AttentionSite]) -> None:
    """Refuse to measure or prune projections whose numbers are nowhere to be read."""
    for site, axis in _projections(sites):
        _check_values(site, axis)


def weight_owner(site: AttentionSite, axis: HeadAxis) -> tuple[nn.Module, str]:
    """The module that holds the weight of a projection, and the weight's name there."""
    found = site.find(axis.path)
    if isinstance(found, nn.Module):
        return found, "weight"
    above, _, name = axis.path.rpartition(".")
    return (site.find(above) if above else site.module), name


def _projections(sites: Iterable[AttentionSite]) -> Iterator[tuple[AttentionSite, HeadAxis]]:
    for site in sites:
        if site.described is None:  # nobody knows its projections, and masking or cutting says so
            continue
        for axis in (*site.described.projections, site.described.output):
            if site.find(axis.path) is not None:
                yield site, axis


def _check(name: str, owner: object, weight: object) -> None:
    if hasattr(owner, "base_layer"):
        raise SurgeryError(
            f"{name} carries an adapter (LoRA or alike), and its heads cannot be cut under it. Merge it into the "
            "weights first: model = model.merge_and_unload()."
        )
    if not isinstance(weight, torch.Tensor) or not weight.is_floating_point() or weight.is_quantized:
        kind = weight.dtype if isinstance(weight, torch.Tensor) else type(owner).__name__
        raise SurgeryError(
            f"{name} is quantised ({kind}), and rows of packed numbers cannot be taken out. Load the model in full "
            "precision, prune that, and quantise the result."
        )


def _check_values(site: AttentionSite, axis: HeadAxis) -> None:
    """Weights may lie where accelerate keeps them, but somewhere they must be."""
    owner, name = weight_owner(site, axis)
    weight = getattr(owner, name, None)
    if isinstance(weight, torch.Tensor) and weight.is_meta and not has_values(owner, name):
        raise SurgeryError(NO_VALUES.format(f"{site.name}.{axis.path}"))
