"""Many contexts, one tensor: the mean over contexts, with padding left out, and pooling of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

# Where models take the 2-D mask of real tokens for each side of an attention, by group of layers.
_DECODER = ("decoder_attention_mask", "attention_mask")
_QUERY_MASKS = {"decoder": _DECODER, "cross": ("decoder_attention_mask",), "vision": ()}
_KEY_MASKS = {"decoder": _DECODER, "vision": ()}


@dataclass(frozen=True)
class RealTokens:
    """Which queries (context, query) and keys (context, key) are tokens and not padding; None is all."""

    queries: Tensor | None
    keys: Tensor | None

    def kept(self) -> tuple[Tensor | None, Tensor | None]:
        """Positions that are a token in at least one context."""
        return tuple(None if x is None or bool(x.all()) else x.any(0) for x in (self.queries, self.keys))  # type: ignore[return-value]


def tokens_of_lengths(queries: Sequence[int], keys: Sequence[int], device: torch.device) -> RealTokens:
    """The real tokens of contexts of different lengths."""
    found = []
    for lengths in (queries, keys):
        count = torch.tensor(lengths, device=device)[:, None]
        found.append(torch.arange(max(lengths), device=device)[None] < count)
    return RealTokens(*found) if any(not bool(mask.all()) for mask in found) else RealTokens(None, None)


def real_tokens(group: str, shape: tuple[int, ...], masked: Tensor | None, inputs: Mapping[str, object]) -> RealTokens:
    """Find the padding of one attention layer.

    The model's own ``attention_mask`` says it best. Without one, a key that every query is masked from is padding.
    """
    contexts, _, n_queries, n_keys = shape
    keys = _declared(inputs, _KEY_MASKS.get(group, ("attention_mask",)), contexts, n_keys)
    queries = _declared(inputs, _QUERY_MASKS.get(group, ("attention_mask",)), contexts, n_queries)
    if keys is None and masked is not None:
        hidden = masked.all(dim=1).all(dim=1).expand(contexts, n_keys)
        keys = ~hidden if bool(hidden.any()) else None
        if keys is not None and queries is None and group != "cross" and n_queries == n_keys:
            queries = keys
    if all(x is None or bool(x.all()) for x in (queries, keys)):
        return RealTokens(None, None)
    return RealTokens(queries, keys)


def _declared(inputs: Mapping[str, object], names: tuple[str, ...], contexts: int, length: int) -> Tensor | None:
    for name in names:
        mask = inputs.get(name)
        # With a cache the mask covers the past too; the queries are its last entries.
        if isinstance(mask, Tensor) and mask.ndim == 2 and len(mask) == contexts and mask.shape[1] >= length:
            return mask[:, mask.shape[1] - length :].bool()
    return None


def mean_over_contexts(block: Tensor, kind: str, real: RealTokens) -> Tensor:
    """(head, query, key) from (context, head, query, key): the mean over the contexts in which the entry is real.

    Rows of ``probs`` are averaged over the contexts whose query is a token. ``scores`` and ``logits`` also need a
    token as key; ``logits`` masked in every context stay missing.
    """
    if len(block) == 1 and real.queries is None and real.keys is None:
        return block[0]
    if kind == "probs":
        mean = block.mean(0) if real.queries is None else _weighted(block, real.queries[:, None, :, None].float())
    else:
        mean = block.where(_present(block, real), torch.nan).nanmean(0)
    rows, columns = real.kept()
    mean = mean if rows is None else mean[:, rows]
    return mean if columns is None else mean[:, :, columns]


def _weighted(block: Tensor, weight: Tensor) -> Tensor:
    return (block * weight).sum(0) / weight.sum(0).clamp(min=1.0)


def _present(block: Tensor, real: RealTokens) -> Tensor:
    present = ~block.isnan()
    if real.queries is not None:
        present = present & real.queries[:, None, :, None]
    return present if real.keys is None else present & real.keys[:, None, None, :]


def pool_tokens(block: Tensor, kind: str, size: int) -> Tensor:
    """Merge ``size`` consecutive tokens into one on both axes of (head, query, key).

    Queries are averaged. Keys are averaged for scores and logits (missing entries left out) and summed for probs, so
    that rows still sum to 1. The last block may be shorter.

    >>> pool_tokens(torch.full((1, 4, 4), 0.25), "probs", 2)[0].tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    if size == 1:
        return block
    pooled = _pool_axis(_pool_axis(block, 1, size, mean=True), 2, size, mean=kind != "probs")
    return pooled


def _pool_axis(block: Tensor, axis: int, size: int, mean: bool) -> Tensor:
    missing = (-block.shape[axis]) % size
    padding = (0, 0) * (block.ndim - 1 - axis) + (0, missing)
    blocks: Tensor = functional.pad(block, padding, value=torch.nan).unflatten(axis, (-1, size))
    return blocks.nanmean(axis + 1) if mean else blocks.nansum(axis + 1)
