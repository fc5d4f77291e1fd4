"""Several inputs in one forward call, which is what a processor likes best."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

import torch

from oattn_hub.models.load import LoadedModel

Batch = Mapping[str, torch.Tensor]
# Inputs of one call, and tokens: their logits, of a large vocabulary, must fit into memory.
SIZE, TOKENS = 16, 1024


def stacks(loaded: LoadedModel, inputs: Iterable[Batch], size: int = SIZE) -> Iterator[tuple[Batch, int]]:
    """Neighbouring inputs of equal shape as one batch, with their number; the order stays.

    Where the first axis need not count inputs (a plain torch module, packed images), every input stays alone.
    """
    joined = loaded.library in ("transformers", "timm")
    for _, group in groupby(inputs, key=_shape):
        same = list(group)
        step = fitting(same[0], size) if joined and all(value.shape[:1] == (1,) for value in same[0].values()) else 1
        for start in range(0, len(same), step):
            part = same[start : start + step]
            yield {name: torch.cat([batch[name] for batch in part]) for name in part[0]}, len(part)


def split(outputs: Mapping[str, torch.Tensor], count: int) -> list[dict[str, torch.Tensor]]:
    """The model's outputs on each of the ``count`` inputs of a stack: rows come in the order of the inputs."""
    parts = {name: value.unflatten(0, (count, -1)) for name, value in outputs.items()}
    return [{name: value[number] for name, value in parts.items()} for number in range(count)]


def fitting(batch: Batch, size: int) -> int:
    """How many such inputs go into one call."""
    tokens = batch["input_ids"].shape[-1] if "input_ids" in batch else 1
    return max(1, min(size, TOKENS // tokens))


def _shape(batch: Batch) -> list[tuple[str, torch.Size]]:
    return [(name, value.shape) for name, value in batch.items()]
