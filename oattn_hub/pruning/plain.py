"""Which models can be cut as they are: plain tensors in memory. For the others, what to do first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from oattn_hub.adapters import AttentionSite
from oattn_hub.errors import SurgeryError


def check_plain(sites: Iterable[AttentionSite]) -> None:
    """Refuse projections that carry adapters, are quantised, or are not in memory, and say how to get plain ones."""
    for name, owner in _projections(sites):
        _check(name, owner, getattr(owner, "weight", owner))


def check_in_memory(sites: Iterable[AttentionSite]) -> None:
    """Refuse to measure or prune projections whose numbers are not there to be read."""
    for name, owner in _projections(sites):
        _check_in_memory(name, getattr(owner, "weight", owner))


def _projections(sites: Iterable[AttentionSite]) -> Iterator[tuple[str, object]]:
    for site in sites:
        if site.described is None:  # nobody knows its projections, and masking or cutting says so
            continue
        for axis in (*site.described.projections, site.described.output):
            found = site.find(axis.path)
            if found is not None:
                yield f"{site.name}.{axis.path}", found


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
    _check_in_memory(name, weight)


def _check_in_memory(name: str, weight: object) -> None:
    if isinstance(weight, torch.Tensor) and weight.is_meta:
        raise SurgeryError(
            f"{name} is not in memory (offloaded to disk, or a model that was only outlined). Load the model without "
            "offloading, for example without device_map, and evaluate or prune that."
        )
