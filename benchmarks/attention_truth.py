"""Attention of a forward call by two ways that share nothing with the capture: what it returns, what it multiplies.

A model that returns its weights is compared with them. One that does not is watched by other means: a fused kernel is
asked once more with the unit vectors as values, so that its own output is the weights; in plain code, every product
with a matrix whose rows are distributions is attention, whatever computed it. A product that is not in the store is a
gap.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

_PRODUCTS = {"matmul", "bmm", "__matmul__", "einsum", "baddbmm"}
TOLERANCE = 1e-4


class ValueProducts(TorchFunctionMode):
    """Collects the weights of everything that values are multiplied with while a model runs: (…, query, key)."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[torch.Tensor] = []
        self._left_out = 0  # how many modules run that the capture names as left out

    @contextmanager
    def without(self, modules: Iterable[torch.nn.Module]) -> Iterator[None]:
        """Look away while these run: the capture says of them why they are not attention between tokens."""

        def enter(*_: Any) -> None:
            self._left_out += 1

        def leave(*_: Any) -> None:
            self._left_out -= 1

        hooks = [(each.register_forward_pre_hook(enter), each.register_forward_hook(leave)) for each in modules]
        try:
            yield
        finally:
            for hook in itertools.chain(*hooks):
                hook.remove()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = "" if self._left_out else getattr(func, "__name__", "")
        with torch._C.DisableTorchFunction(), torch.no_grad():
            if name == "scaled_dot_product_attention":
                self.weights.append(_asked_with_unit_vectors(func, args, kwargs))
            elif name in _PRODUCTS:
                self.weights += _distributions(args)
        return result


def _asked_with_unit_vectors(kernel: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Tensor:
    given = {
        **dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args, strict=False)),
        **kwargs,
    }
    key = given["key"]
    unit = torch.eye(key.shape[-2], dtype=key.dtype).expand(*key.shape[:-1], key.shape[-2])
    found: torch.Tensor = kernel(**{**given, "value": unit})
    return found.detach().float()


def _distributions(args: Sequence[Any]) -> list[torch.Tensor]:
    """The operand of a product whose entries along one axis are a distribution, with that axis last."""
    operands = [leaf for arg in args for leaf in (arg if isinstance(arg, list | tuple) else (arg,))]
    operands = [operand for operand in operands if isinstance(operand, torch.Tensor)]
    if any(isinstance(operand, torch.nn.Parameter) for operand in operands):
        return []  # a layer
    for operand in operands:
        numbers = operand.ndim > 2 and operand.is_floating_point() and operand.numel() > 0
        # zeros and ones only are a choice that was made before (VITS' alignment of sounds and letters)
        if numbers and bool((operand >= 0).all()) and not bool(((operand == 0) | (operand == 1)).all()):
            for axis in (-1, -2):
                sums = operand.detach().float().sum(axis)
                if operand.shape[axis] > 1 and bool(((sums - 1).abs() < 1e-4).all()):  # not the decays of a scan
                    return [operand.detach().float().movedim(axis, -1).clone()]
    return []


def planes_of(store: Any) -> list[Any]:
    """Every head of a store's first batch."""
    groups = [np.asarray(store.tensor(0, "probs", group)) for group in store.groups]
    return [plane for group in groups for plane in np.moveaxis(group, 2, 0)]


def means_of_layers(planes: Sequence[Any], head_counts: set[int]) -> list[Any]:
    """The mean over the heads of every layer: some models return it once for each head (WavLM)."""
    parts = [planes[start : start + count] for count in head_counts for start in range(0, len(planes), count)]
    return [np.mean(part, axis=0) for part in parts if len({plane.shape for plane in part}) == 1]


def missing_products(products: Sequence[torch.Tensor], planes: Sequence[Any], head_counts: set[int]) -> int:
    """How many products have a head that is not in the store; calls of one shape may be there as their mean."""
    among_tokens = [product for product in products if not _within_tokens(product, planes)]
    lost = [product for product in among_tokens if not _found(product, planes, head_counts)]
    together: dict[tuple[int, ...], list[torch.Tensor]] = {}
    for product in lost:
        together.setdefault(tuple(product.shape[-3:]), []).append(product)
    joined = {shape: torch.cat([p.reshape(-1, *shape) for p in parts]) for shape, parts in together.items()}
    return sum(len(together[shape]) for shape, whole in joined.items() if not _found(whole, planes, head_counts))


def _within_tokens(product: torch.Tensor, planes: Sequence[Any]) -> bool:
    """Whether there is a small square matrix for every token: it mixes the token's own streams (hyper-connections).

    Or a single row for every token and head, over fewer places than there are tokens: the kernel of a convolution that
    is made from that token (ConvBERT).
    """
    tokens = {len(plane) for plane in planes}
    if product.shape[-2] == 1 and product.shape[-1] not in tokens and 1 not in tokens:
        return any(product[..., 0, 0].numel() % count == 0 for count in tokens)
    square = product.ndim == 4 and product.shape[-1] == product.shape[-2]
    return square and product.shape[-3] in tokens and product.shape[-1] not in tokens


def _found(product: torch.Tensor, planes: Sequence[Any], head_counts: set[int]) -> bool:
    readings = list(_by_head(product, head_counts))
    if any(all(any(is_in(head, plane) for plane in planes) for head in heads) for heads in readings):
        return True
    ordered = [_sorted_rows(plane) for plane in planes]  # the same weights by distance, as VITS multiplies them
    return any(all(any(_same_rows(head, plane) for plane in ordered) for head in heads) for heads in readings)


def _sorted_rows(plane: Any) -> Any:
    return -np.sort(-plane, axis=1)


def _same_rows(head: Any, ordered: Any) -> bool:
    """Whether every row has the same weights, wherever they lie among zeros."""
    if len(head) != len(ordered):
        return False
    rows, size = _sorted_rows(head), min(head.shape[1], ordered.shape[1])
    rest = max(rows[:, size:].max(initial=0.0), ordered[:, size:].max(initial=0.0))
    return bool(rest <= TOLERANCE and np.abs(rows[:, :size] - ordered[:, :size]).max() <= TOLERANCE)


def _by_head(product: torch.Tensor, head_counts: set[int]) -> Iterator[Any]:
    """The mean over all contexts, for every axis that the heads may be on."""
    if product.ndim == 3:
        counts = [count for count in head_counts if product.shape[0] % count == 0]
        yield from (m for count in counts for m in means(product.reshape(-1, count, *product.shape[1:])))
        return
    for axis in reversed(range(product.ndim - 2)):
        yield from means(product.movedim(axis, -3).flatten(0, -4))


def means(weights: torch.Tensor) -> Iterator[Any]:
    """(head, query, key) mean over contexts: of all tokens, and of each context without its padding."""
    yield weights.detach().float().mean(0).numpy()
    yield _real_means(weights.detach().float())


def _real_means(weights: torch.Tensor) -> Any:
    """Padding are keys that no query of no head looks at, and queries in the same places."""
    keys = (weights > 0).any(dim=2).any(dim=1)  # (context, key)
    square = weights.shape[2] == weights.shape[3]
    queries = keys if square else torch.ones(weights.shape[0], weights.shape[2], dtype=torch.bool)
    mean = (weights * queries[:, None, :, None]).sum(0) / queries.sum(0).clamp(min=1)[None, :, None]
    return mean[:, queries.any(0)][:, :, keys.any(0)].numpy()


def is_distribution(weights: torch.Tensor) -> bool:
    """Whether these can be weights: no model attends with negative or unlimited ones, but some return others."""
    sums = weights.float().sum(-1)
    return bool(weights.isfinite().all() and (weights >= 0).all() and (sums < 1 + 1e-3).all())


def is_in(plane: Any, mine: Any) -> bool:
    """Whether one head's weights are those we have; some models return them without their prompt tokens."""
    rows, columns = plane.shape
    fits = rows <= mine.shape[0] and columns <= mine.shape[1]
    parts = (mine[-rows:, -columns:], mine[:rows, :columns])  # or without the padding that they add at the end
    return fits and any(bool(np.abs(part - plane).max() <= TOLERANCE) for part in parts)


def returned_weights(output: Any) -> list[torch.Tensor]:
    """All attention weights (context, head, query, key) of a model's output and of the outputs inside it."""
    named = list(output.items()) if hasattr(output, "items") else []
    own = [leaf for name, value in named if "attentions" in name for leaf in _flat(value)]
    inner = [leaf for name, value in named if hasattr(value, "items") for leaf in returned_weights(value)]
    return [weights for weights in itertools.chain(own, inner) if weights.ndim == 4]


def _flat(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return _flat(tuple(value.values()))
    return [leaf for entry in value or () for leaf in _flat(entry)]
