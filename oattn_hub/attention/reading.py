"""From captured tensors, which are files mapped into memory, to arrays that the geometry reads fast."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from oattn_hub.types import Array

_HEADS = 16  # copied together: 16 numbers of four bytes are one line of the cache
_ENTRIES = 1 << 20  # of the heads that are looked at together


def in_memory(X: Array, heads: Array | None = None) -> Array:
    """A (query, key, head) tensor, or some of its heads, with the heads of a (query, key) pair side by side.

    What already lies in memory like that is not copied. A mapped file is, a few heads at a time, and its pages are
    given back meanwhile, so that the tensor is not in memory twice. Half precision becomes float32.
    """
    if heads is None and X.flags.c_contiguous and X.dtype != np.float16 and not isinstance(X, np.memmap):
        return X
    return copied(X, heads)


def copied(X: Array, heads: Array | None = None) -> Array:
    """The same, but always a copy."""
    chosen = np.arange(X.shape[2]) if heads is None else heads
    copy = np.empty((*X.shape[:2], len(chosen)), dtype=np.promote_types(X.dtype, np.float32))
    for start in range(0, len(chosen), _HEADS):
        copy[:, :, start : start + _HEADS] = X[:, :, chosen[start : start + _HEADS]]
        give_back(X)
    return copy


def some_heads(X: Array) -> Iterator[Array]:
    """A tensor a few heads at a time; what is not used any more is given back."""
    step = max(1, _ENTRIES // X[:, :, 0].size)
    for start in range(0, X.shape[2], step):
        yield X[:, :, start : start + step]
        give_back(X)


def give_back_freed() -> None:
    """Let the system take back what was freed: glibc keeps it, up to as much again as the largest tensor."""
    with suppress(OSError, AttributeError):  # another C library has no such function
        ctypes.CDLL(None).malloc_trim(0)


def give_back(X: Array) -> None:
    """Let the system take back the memory of what was read of a mapped file; it is read again when it is needed."""
    mapped = getattr(X, "_mmap", None)
    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)
