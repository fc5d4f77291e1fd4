"""One attention call as blocks of heads, whichever way the model computed it.

A block is (context, head, query, key). Blocks are made a few heads at a time, so that looking at a layer never
needs more than a fraction of the layer's own attention.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from oattn_hub.attention.masks import MaskTrace

# Blocks of this many bytes stay near the processor's cache; larger ones were slower.
_BLOCK_BYTES = 8 << 20


@dataclass(frozen=True)
class Heads:
    """How many heads a layer has, and which axis of its queries they are on.

    Attributes:
        first: Whether heads come before contexts where the two are one axis.
    """

    count: int
    axis: int = -3
    first: bool = False

    def apart(self, tensor: Tensor) -> Tensor:
        """(context, head, …) of a tensor that has the two on its first axis."""
        if self.first:
            return tensor.reshape(self.count, -1, *tensor.shape[1:]).transpose(0, 1)
        return tensor.reshape(-1, self.count, *tensor.shape[1:])

    def fitted(self, shape: tuple[int, ...]) -> Heads:
        """The same heads on the axis of ``shape`` that has as many entries, if that is another one."""
        if len(shape) <= 3 or shape[self.axis] == self.count:
            return self
        axes = [axis for axis in range(len(shape) - 2) if shape[axis] == self.count]
        return Heads(self.count, axes[0] - len(shape)) if len(axes) == 1 else self

    def joined(self, tensor: Tensor) -> Tensor:
        """A tensor whose heads lie on two axes, (…, group, head of the group, token, width), with one for both."""
        shape = tensor.shape
        groups = len(shape) > 4 and shape[self.axis] != self.count == shape[-4] * shape[-3]
        return tensor.flatten(-4, -3) if groups else tensor

    def fitted_to_weights(self, shape: tuple[int, ...], keys: int = -1) -> Heads:
        """As :meth:`fitted`, for weights, which can also lie as (…, query, head, key): Longformer's windows.

        ``keys`` is the axis of the keys; before the last one, the heads may be the last: (context, query, key, head).
        """
        if len(shape) == 4 and keys % 4 == 2 and shape[1] != self.count == shape[3]:
            return Heads(self.count, -1)
        found = self.fitted(shape)
        elsewhere = len(shape) > 3 and shape[found.axis] != self.count and shape[-2] == self.count
        return Heads(self.count, -2) if elsewhere else found


class UnexpectedShape(Exception):
    """A softmax or product inside an attention module that is not (context, head, query, key)."""


@dataclass
class AttentionCall:
    """What one attention layer computed in one forward call.

    Attributes:
        shape: (contexts, heads, queries, keys).
        masked: Where the mask is, broadcastable to ``shape``; None is nowhere, or not asked for.
    """

    shape: tuple[int, int, int, int]
    masked: Tensor | None

    def blocks(self, kinds: tuple[str, ...]) -> Iterator[dict[str, Tensor]]:
        """float32 blocks of each kind, a few heads at a time; masked logits are NaN."""
        contexts, heads, queries, keys = self.shape
        step = max(1, _BLOCK_BYTES // (4 * contexts * queries * keys))
        for start in range(0, heads, step):
            yield self._block(slice(start, min(start + step, heads)), kinds)

    def only(self, places: Sequence[int]) -> Self:
        """The call with these of its heads only: a cut layer can compute copies of heads to keep its groups even."""
        count = self.shape[1]
        found: dict[str, Any] = {"shape": (self.shape[0], len(places), *self.shape[2:])}
        for name, value in vars(self).items():
            if isinstance(value, Tensor) and value.ndim == 4 and value.shape[1] > 1:  # keys may have fewer heads
                found[name] = value[:, [place * value.shape[1] // count for place in places]]
        return replace(self, **found)

    def _block(self, heads: slice, kinds: tuple[str, ...]) -> dict[str, Tensor]:
        raise NotImplementedError

    def _logits(self, scores: Tensor, heads: slice) -> Tensor:
        if self.masked is None:
            return scores
        return scores.masked_fill(_of_heads(self.masked, heads), math.nan)


@dataclass
class SoftmaxCall(AttentionCall):
    """Attention computed step by step: the softmax's own input and output."""

    scores: Tensor | None
    probs: Tensor

    @classmethod
    def from_softmax(
        cls, logits: Tensor, probs: Tensor, dim: int, heads: Heads, trace: MaskTrace | None
    ) -> SoftmaxCall:
        """Read a call off a softmax over ``dim``; ``trace`` is needed for scores and logits."""
        keys_last = dim % probs.ndim == probs.ndim - 1
        fitted = heads.fitted_to_weights(tuple(heads.joined(probs).shape)) if keys_last else heads

        def four_axes(tensor: Tensor) -> Tensor:
            tensor = tensor.broadcast_to(probs.shape)
            return _four_axes(heads.joined(tensor), -1, fitted) if keys_last else _four_axes(tensor, dim, heads)

        output = four_axes(probs)
        if trace is None:
            return cls(_shape(output), None, None, output)
        values, masked = trace.unmask(logits)
        return cls(_shape(output), None if masked is None else four_axes(masked), four_axes(values), output)

    def only_keys(self, start: int, stop: int) -> SoftmaxCall:
        """The call without columns at its ends: sinks, which take weight and give no value."""
        keys = slice(start, stop)
        masked = self.masked if self.masked is None or self.masked.shape[3] == 1 else self.masked[..., keys]
        scores = None if self.scores is None else self.scores[..., keys]
        probs = self.probs[..., keys]
        return SoftmaxCall((*self.shape[:3], probs.shape[3]), masked, scores, probs)

    def _block(self, heads: slice, kinds: tuple[str, ...]) -> dict[str, Tensor]:
        block = {}
        if self.scores is not None:
            scores = self.scores[:, heads].float()
            block = {"scores": scores, "logits": self._logits(scores, heads) if "logits" in kinds else scores}
        return {kind: self.probs[:, heads].float() if kind == "probs" else block[kind] for kind in kinds}


@dataclass
class DotProductCall(AttentionCall):
    """Attention inside one fused kernel: recomputed from the kernel's inputs."""

    query: Tensor
    key: Tensor
    scale: float
    bias: Tensor | None  # position terms, 0 where masked and unknown
    mask: Tensor | None  # the additive mask as the model has it: fully masked rows come out as in the model

    @classmethod
    def from_sdpa(
        cls,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        *,
        heads: Heads,
        trace: MaskTrace,
    ) -> DotProductCall:
        """Read a call off the arguments of ``scaled_dot_product_attention``."""
        query, key, attn_mask = _unpack_single_query(query, key, attn_mask, heads.count)
        if (together := heads.joined(query)).ndim < query.ndim == key.ndim and key.shape[-3] == 1:
            attn_mask = attn_mask if attn_mask is None or attn_mask.ndim < 5 else attn_mask.flatten(-4, -3)
            query, key = together, key.flatten(-4, -3)
        heads = heads.fitted(tuple(query.shape))
        lead = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3])
        q, k = (_heads_third(x.expand(*lead, *x.shape[-3:]) if x.ndim > 3 else x, heads) for x in (query, key))
        shape = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        bias, masked, mask = _read_mask(attn_mask, is_causal, query, key, heads, trace)
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        return cls(shape, masked, q, k, scale, bias, mask)

    def _block(self, heads: slice, kinds: tuple[str, ...]) -> dict[str, Tensor]:
        per_key_head = self.shape[1] // self.key.shape[1]
        index = torch.arange(heads.start, heads.stop, device=self.key.device) // per_key_head
        keys = self.key[:, heads] if per_key_head == 1 else self.key[:, index]
        product = torch.matmul(self.query[:, heads].float() * self.scale, keys.float().transpose(-1, -2))
        scores = product if self.bias is None else product + _of_heads(self.bias, heads)
        block = {"scores": scores}
        if "logits" in kinds:
            block["logits"] = self._logits(scores, heads)
        if "probs" in kinds:
            block["probs"] = self._probs(product, scores, heads)
        return {kind: block[kind] for kind in kinds}

    def _probs(self, product: Tensor, scores: Tensor, heads: slice) -> Tensor:
        if self.mask is not None:
            return torch.softmax(product + _of_heads(self.mask, heads), dim=-1)
        if self.masked is None:
            return torch.softmax(scores, dim=-1)
        # A row with nothing to attend to (a padding query) is 0/0; torch's kernels return zeros for it.
        return torch.softmax(scores.masked_fill(_of_heads(self.masked, heads), -math.inf), dim=-1).nan_to_num(0.0)


@dataclass
class JoinedCall(AttentionCall):
    """Several calls of one pass, each over tokens of its own (an image, a window): contexts of one layer."""

    calls: tuple[AttentionCall, ...]

    @classmethod
    def of(cls, calls: Sequence[AttentionCall]) -> JoinedCall:
        """Calls over fewer tokens are contexts with padding at their end."""
        queries, keys = (max(call.shape[axis] for call in calls) for axis in (2, 3))
        return cls((sum(call.shape[0] for call in calls), calls[0].shape[1], queries, keys), None, tuple(calls))

    def lengths(self, axis: int) -> list[int]:
        """Tokens of every context."""
        return [call.shape[axis] for call in self.calls for _ in range(call.shape[0])]

    def _block(self, heads: slice, kinds: tuple[str, ...]) -> dict[str, Tensor]:
        blocks = [call._block(heads, kinds) for call in self.calls]
        return {kind: torch.cat([self._padded(block[kind], kind) for block in blocks]) for kind in kinds}

    def _padded(self, block: Tensor, kind: str) -> Tensor:
        missing = (0, self.shape[3] - block.shape[3], 0, self.shape[2] - block.shape[2])
        return torch.nn.functional.pad(block, missing, value=0.0 if kind == "probs" else math.nan)


@dataclass
class QueriesCall(AttentionCall):
    """Several calls of one pass, each for some of the queries and over all keys: blocks that save memory."""

    calls: tuple[AttentionCall, ...]

    @classmethod
    def of(cls, calls: Sequence[AttentionCall]) -> QueriesCall | None:
        """The calls as one, if their queries together are as many as the keys that all of them look at."""
        contexts, heads, _, keys = calls[0].shape
        alike = all((*call.shape[:2], call.shape[3]) == (contexts, heads, keys) for call in calls)
        queries = sum(call.shape[2] for call in calls)
        return cls((contexts, heads, queries, keys), None, tuple(calls)) if alike and queries == keys else None

    def _block(self, heads: slice, kinds: tuple[str, ...]) -> dict[str, Tensor]:
        blocks = [call._block(heads, kinds) for call in self.calls]
        return {kind: torch.cat([block[kind] for block in blocks], dim=2) for kind in kinds}


@dataclass
class HeadsCall(AttentionCall):
    """Calls of one head each, as a loop over the heads makes them."""

    calls: tuple[AttentionCall, ...]

    @classmethod
    def of(cls, calls: Sequence[AttentionCall], n_heads: int) -> HeadsCall | None:
        """The calls as one, if there is one for every head."""
        contexts, _, queries, keys = calls[0].shape
        each = len(calls) == n_heads > 1 and all(call.shape == (contexts, 1, queries, keys) for call in calls)
        return cls((contexts, n_heads, queries, keys), None, tuple(calls)) if each else None

    def _block(self, heads: slice, kinds: tuple[str, ...]) -> dict[str, Tensor]:
        blocks = [call._block(slice(0, 1), kinds) for call in self.calls[heads]]
        return {kind: torch.cat([block[kind] for block in blocks], dim=1) for kind in kinds}


def _read_mask(
    mask: Tensor | None, is_causal: bool, query: Tensor, key: Tensor, heads: Heads, trace: MaskTrace
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Position terms, masked entries and the additive mask itself, each four-dimensional or None."""
    n_queries, n_keys = query.shape[-2], key.shape[-2]
    if is_causal:
        causal = torch.ones(n_queries, n_keys, dtype=torch.bool, device=query.device).triu(1)
        return None, causal[None, None], None
    if mask is None:
        return None, None, None
    values, masked = trace.unmask(mask)
    hidden = None if masked is None else _mask_axes(masked.broadcast_to(mask.shape), query.ndim, heads)
    if mask.dtype == torch.bool:
        return None, hidden, None
    bias = _mask_axes(values.broadcast_to(mask.shape), query.ndim, heads).float()
    additive = _mask_axes(mask, query.ndim, heads).float()
    return bias if bool(bias.any()) else None, hidden, additive


def _mask_axes(mask: Tensor, query_ndim: int, heads: Heads) -> Tensor:
    if query_ndim == 3 and mask.ndim == 3 and mask.shape[0] > 1:
        return heads.apart(mask)
    if mask.ndim > 4:
        return mask.movedim(heads.axis, -3).flatten(0, -4)
    return mask[(None,) * (4 - mask.ndim)]


def _heads_third(tensor: Tensor, heads: Heads) -> Tensor:
    """(context, head, token, width); all axes beside the heads are contexts."""
    if tensor.ndim == 3:
        if tensor.shape[0] % heads.count:
            raise UnexpectedShape(f"{tuple(tensor.shape)}, expected a first axis of contexts x {heads.count} heads")
        return heads.apart(tensor)
    if tensor.ndim < 3 or heads.count % tensor.shape[heads.axis]:
        raise UnexpectedShape(f"{tuple(tensor.shape)}, expected (context, {heads.count} heads, token, width)")
    tensor = tensor.movedim(heads.axis, -3)
    return tensor.reshape(-1, *tensor.shape[-3:])


def _four_axes(tensor: Tensor, dim: int, heads: Heads) -> Tensor:
    """(context, head, query, key) from a softmax over ``dim``."""
    if dim % tensor.ndim == tensor.ndim - 2:
        if tensor.ndim == 4 and tensor.shape[1] != heads.count == tensor.shape[3]:  # (context, query, key, head)
            return tensor.permute(0, 3, 1, 2)
        tensor = tensor.transpose(-1, -2)  # (…, key, query)
    elif dim % tensor.ndim == 1 and tensor.ndim == 4:
        if tensor.shape[3] != heads.count:
            raise UnexpectedShape(f"{tuple(tensor.shape)} with softmax over axis {dim}")
        # (query, key, context, head), the original Transformer-XL; or (context, key, query, head)
        keys_first = tensor.shape[1] == tensor.shape[2] != tensor.shape[0]
        tensor = tensor.permute(0, 3, 2, 1) if keys_first else tensor.permute(2, 3, 0, 1)
    elif dim % tensor.ndim != tensor.ndim - 1:
        raise UnexpectedShape(f"{tuple(tensor.shape)} with softmax over axis {dim}")
    four = _heads_third(tensor, heads)
    if four.shape[1] != heads.count:
        raise UnexpectedShape(f"{tuple(tensor.shape)}, expected {heads.count} heads")
    return four


def _unpack_single_query(query: Tensor, key: Tensor, mask: Tensor | None, n_heads: int) -> tuple[Tensor, Tensor, Any]:
    """Undo transformers' packing of grouped queries into the query axis, done when one token is decoded."""
    packed = query.ndim == 4 and query.shape[1] != n_heads and query.shape[1] * query.shape[2] == n_heads
    if not packed or query.shape[1] != key.shape[1]:
        return query, key, mask
    if mask is not None and mask.ndim == 4 and mask.shape[1] > 1:
        mask = mask.reshape(mask.shape[0], n_heads, 1, mask.shape[-1])
    return query.reshape(query.shape[0], n_heads, 1, query.shape[-1]), key, mask


def _of_heads(tensor: Tensor, heads: slice) -> Tensor:
    return tensor if tensor.shape[1] == 1 else tensor[:, heads]


def _shape(tensor: Tensor) -> tuple[int, int, int, int]:
    contexts, heads, queries, keys = tensor.shape
    return contexts, heads, queries, keys
