"""What a model outputs, as tensors that can be compared before and after pruning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from oattn_hub.errors import SurgeryError
from oattn_hub.models.load import LoadedModel

# How far outputs of the same weights may lie apart, as a part of their size: another process, or another shape, may
# choose other kernels of attention, which round in the model's own precision.
ROUNDING = {torch.float16: 1e-2, torch.bfloat16: 5e-2}
EXACT = 1e-4
# Fields of a transformers output that hold its result, most informative first.
_LOGITS = ("logits", "start_logits", "end_logits", "prediction_logits")
_EMBEDDINGS = ("image_embeds", "text_embeds")


def readout(loaded: LoadedModel, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One forward call: logits as (positions, classes) under ``logits…``, embeddings as (rows, width) otherwise."""
    return _read(loaded.forward(batch), batch)


def readouts(loaded: LoadedModel, batch: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """All numbers that one forward call answers with, but attention weights: a cut model has fewer of them."""
    with torch.no_grad(), same_random_numbers():
        output = loaded.forward(batch)
    found = [value for name, value in tensors_in(output).items() if "attention" not in name]
    found = [value.float() for value in found if value.is_floating_point()]
    return found or list(_read(output, batch).values())


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """A model that draws random numbers (ViT-MAE's patches, VITS' noise) draws the same ones in every such block."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def largest_difference(one: torch.Tensor, other: torch.Tensor) -> tuple[float, float]:
    """The largest difference between two answers, and the size of the first; what is not a number equals its like.

    >>> largest_difference(torch.tensor([1.0, float("-inf")]), torch.tensor([1.5, float("-inf")]))
    (0.5, 1.0)
    """
    if not one.numel():
        return 0.0, 0.0
    same = (one == other) | (one.isnan() & other.isnan())
    apart = (one - other).abs().masked_fill(same, 0).nan_to_num(nan=torch.inf)
    return float(apart.max()), float(one.nan_to_num(0.0, 0.0, 0.0).abs().max())


def tolerance_of(model: nn.Module) -> float:
    """By how much of their size the outputs of a model may differ by rounding alone."""
    return max((ROUNDING.get(parameter.dtype, EXACT) for parameter in model.parameters()), default=EXACT)


def is_exact(model: nn.Module) -> bool:
    """Whether all numbers of a model have 32 bits or more, so that a small difference is a mistake."""
    precisions = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    return precisions <= {torch.float32, torch.float64}


def _read(output: object, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    if isinstance(output, torch.Tensor):
        return {"logits" if output.dim() == 2 else "embedding": _flat(output) if output.dim() == 2 else _pooled(output)}
    found = {name: _flat(value) for name in _LOGITS if (value := _field(output, name)) is not None}
    if not found:
        found = {name: _flat(value) for name in _EMBEDDINGS if (value := _field(output, name)) is not None}
    if found:
        return found
    hidden = _field(output, "last_hidden_state")
    if hidden is None:
        hidden = next(iter(tensors_in(output).values()), None)
    if hidden is None:
        raise SurgeryError(
            f"The output of the model ({type(output).__name__}) holds no tensor to compare. Give inputs for "
            "which it answers with tensors: apply(model, inputs=[{…}])."
        )
    return {"embedding": _pooled(hidden, batch.get("attention_mask"))}


def _field(output: object, name: str) -> torch.Tensor | None:
    value = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
    return value if isinstance(value, torch.Tensor) else None


def tensors_in(output: object, name: str = "") -> dict[str, torch.Tensor]:
    """All tensors of an output by their path, those in tuples too (the feature maps of a backbone)."""
    if isinstance(output, torch.Tensor):
        return {name or "0": output}
    if isinstance(output, Mapping):
        parts = [(str(key), value) for key, value in output.items()]
    elif isinstance(output, tuple | list):
        parts = [(str(place), value) for place, value in enumerate(output)]
    else:  # nothing, or an object such as a cache
        return {}
    return {path: found for key, part in parts for path, found in tensors_in(part, f"{name}.{key}".lstrip(".")).items()}


def _flat(values: torch.Tensor) -> torch.Tensor:
    return values.reshape(-1, values.shape[-1]).float()


def _pooled(hidden: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """The mean over tokens, as sentence embedders take it; feature maps are averaged over their area."""
    if hidden.dim() == 4:
        return hidden.float().flatten(2).mean(-1)
    if mask is None or mask.shape != hidden.shape[:2]:
        return hidden.float().mean(1)
    weights = mask.to(hidden.dtype).unsqueeze(-1)
    return ((hidden * weights).sum(1) / weights.sum(1)).float()
