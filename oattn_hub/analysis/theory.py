"""The paper's theory, measured on the heads of one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry.checks import as_tensor
from oattn_hub.geometry.softmax import SoftmaxInvariance, softmax_invariance
from oattn_hub.progress import Progress, silent
from oattn_hub.report.theory import Example, Picture, TheoryGroup, TheoryHead, TheorySection
from oattn_hub.types import Array


class HeadPlace(Protocol):
    """Where a head lies in the model, as the store and the report record it."""

    @property
    def layer(self) -> int: ...
    @property
    def head(self) -> int: ...


def build_theory_section(
    scores: ArrayLike,
    probs: ArrayLike,
    heads: Sequence[HeadPlace],
    *,
    group: str = "",
    progress: Progress = silent,
) -> TheorySection:
    """Measure the theory on one batch of one group.

    Args:
        scores: (query, key, head) before any mask (kind "scores"): a mask is no part of the theorem.
        probs: the attention the model used, of the same shape; exact zeros and NaN are what it masked.
        heads: the places of the heads, in the order of the last axis (``store.heads(group)``).
        group: the group's name.
        progress: called with the stages of ``softmax_invariance``.
    """
    f, used = as_tensor(scores, ndims=(3,), name="scores"), as_tensor(probs, ndims=(3,), name="probs")
    if f.shape != used.shape or f.shape[2] != len(heads):
        raise InvalidInput(
            f"scores have shape {f.shape}, probs {used.shape}, {len(heads)} heads are named. Take all from one store."
        )
    used = np.nan_to_num(used, nan=0.0)
    found = softmax_invariance(f, used, progress=progress)
    records = tuple(
        TheoryHead(**asdict(record), layer=place.layer, head=place.head)
        for record, place in zip(found.heads, heads, strict=True)
    )
    masked = float((used == 0).all(axis=2).mean())
    example = _example(f, found, records)
    return TheorySection((TheoryGroup(group, f.shape[0], f.shape[1], masked, records, found.agreements, example),))


def _example(f: Array, found: SoftmaxInvariance, records: Sequence[TheoryHead]) -> Example:
    index = int(np.argsort([record.error for record in records], kind="stable")[len(records) // 2])
    head = found.organised[index]
    original, organised = Picture.pair(f[:, :, index], head.matrix, "scores")
    expansion, softmax = (
        tensor[:, :, index][head.query_order][:, head.key_order] for tensor in (found.expansion, found.softmax)
    )
    pictures = Picture.pair(expansion, softmax, "probs")
    return Example(records[index].layer, records[index].head, original, organised, *pictures)
