"""Weights of 16 bits computed with in 32, where the processor is faster that way.

A processor without instructions for 16-bit numbers multiplies them several times more slowly than those of 32 bits: on
one core of such a machine 25 against 110 billion operations a second, forward and backward, and training that ends with
the clock takes a quarter of the steps. Every 16-bit number is one of 32 bits too, so nothing is changed but rounding.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import nn

from oattn_hub.models.offloaded import is_offloaded

# Rows and columns of the matrices that are multiplied to see which kind of number is faster, and how often.
_SIZE, _TIMES = 384, 3


@contextmanager
def in_fast_precision(model: nn.Module) -> Iterator[None]:
    """Compute in 32 bits for as long as the block lasts, if that is faster; then every tensor is what it was.

    What was trained meanwhile keeps its new values, rounded. Parameters stay the same objects, and so does the memory
    that their values lie in.
    """
    narrow = [] if is_offloaded(model) else [tensor for tensor in _tensors(model) if _slow(tensor)]
    own = [tensor.data for tensor in narrow]
    try:
        for tensor in narrow:
            tensor.data = tensor.data.float()
        yield
    finally:
        for tensor, before in zip(narrow, own, strict=True):
            before.copy_(tensor.data)
            tensor.data = before


def _tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def _slow(tensor: torch.Tensor) -> bool:
    plain = tensor.device.type == "cpu" and type(tensor) in (torch.Tensor, nn.Parameter)
    return plain and tensor.dtype in (torch.bfloat16, torch.float16) and slower_than_32_bits(tensor.dtype)


@cache
def slower_than_32_bits(dtype: torch.dtype) -> bool:
    """Whether this processor multiplies matrices of this kind more slowly; measured once."""
    return _seconds(dtype) > _seconds(torch.float32)


def _seconds(dtype: torch.dtype) -> float:
    matrix = torch.ones(_SIZE, _SIZE, dtype=dtype)
    found = []
    for _ in range(_TIMES):
        start = time.perf_counter()
        torch.matmul(matrix, matrix)
        found.append(time.perf_counter() - start)
    return min(found[1:])  # the first one makes ready
