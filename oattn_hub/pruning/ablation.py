"""An independent way to remove heads: in the attention itself, not at the output projection.

Masking zeroes a head's features where the output projection reads them. If the module reads them elsewhere (compiled
code, a functional call, a second stream), masking does nothing or half of the work, and nobody would notice. Here the
head's attention is zeroed where it is computed, and the two ways are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from oattn_hub.attention.calls import Heads
from oattn_hub.attention.folded import FOLDS, Folds
from oattn_hub.attention.hooks import FAST_PATH, ForwardHooks, as_written
from oattn_hub.attention.written import STEPS, WrittenSoftmax, dimension
from oattn_hub.errors import SurgeryError
from oattn_hub.models.offloaded import is_offloaded
from oattn_hub.pruning.masks import masked_sites
from oattn_hub.pruning.readout import is_exact, largest_difference, readouts
from oattn_hub.pruning.sites import Head, heads_of
from oattn_hub.pruning.surgery import can_be_cut
from oattn_hub.types import Args, Function, Kwargs

if TYPE_CHECKING:
    from oattn_hub.adapters import AttentionSite
    from oattn_hub.models.load import LoadedModel


class _ChangedHeads(TorchFunctionMode):
    """Changes heads of the site that runs, in fused attention and in every softmax with as many heads.

    They become zero; or, ``reversed``, their weights look at the keys in the opposite order, and stay distributions.
    """

    def __init__(
        self, removed: dict[nn.Module, list[list[int]]], counts: dict[nn.Module, Heads], reverse: bool = False
    ) -> None:
        super().__init__()
        self.reverse = reverse
        self.changed: set[nn.Module] = set()
        self.removed, self.counts = removed, counts  # for every pass through the module
        self.running: list[tuple[nn.Module, list[int]]] = []
        self.runs: dict[nn.Module, int] = {}
        self.written, self.folds = WrittenSoftmax(), Folds()

    def enter(self, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        """A site begins to run."""
        turns = self.removed[module]
        self.running.append((module, turns[self.runs.get(module, 0) % len(turns)]))
        self.runs[module] = self.runs.get(module, 0) + 1

    def leave(self, module: nn.Module, args: Args, kwargs: Kwargs, well: bool) -> None:
        """It ends."""
        self.running.pop()

    def __torch_function__(
        self, func: Function, types: Collection[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in FOLDS:
            self.folds.note(name, args, kwargs or {}, result)
        fused, keys = name == "scaled_dot_product_attention", None
        if name in ("softmax", "_softmax"):
            keys = dimension(args, kwargs or {})
        elif name in STEPS and (ended := self.written.ended_by(name, args, kwargs or {}, result)) is not None:
            keys = ended[1]
        if self.running and (fused or keys is not None) and result.ndim > 2:
            module, heads = self.running[-1]
            counts, shape = self.counts[module], tuple(result.shape)
            if counts.joined(result).ndim == result.ndim:
                counts = counts.fitted(shape) if keys is None else counts.fitted_to_weights(shape, keys)
            if result.ndim == 3:
                counts = replace(counts, first=self.folds.heads_first(result.shape[0], counts.count))
            if heads:
                self.changed.add(module)
            return _without(result, heads, counts, keys if self.reverse else None)
        return result


def _without(result: torch.Tensor, heads: Sequence[int], counts: Heads, reverse: int | None) -> torch.Tensor:
    """``result`` with these heads zero, or with the entries of the axis ``reverse`` in the opposite order."""
    if result.ndim == 3 and result.shape[0] % counts.count == 0:
        sizes = (counts.count, -1) if counts.first else (-1, counts.count)
        planes, axis = result.clone().unflatten(0, sizes), 0 if counts.first else 1
    elif result.ndim > 3 and result.shape[counts.axis] == counts.count:
        planes, axis = result.clone(), counts.axis
    elif counts.joined(result).ndim < result.ndim:
        planes, axis = counts.joined(result).clone(), -3
    else:
        return result
    with torch._C.DisableTorchFunction():
        chosen = torch.tensor(heads, device=result.device, dtype=torch.long)
        if reverse is not None:
            last = reverse % result.ndim - result.ndim
            planes.index_copy_(axis, chosen, planes.index_select(axis, chosen).flip(last))
        else:
            planes.index_fill_(axis, chosen, 0)
        silenced: torch.Tensor = planes.reshape(result.shape)
    return silenced


@contextmanager
def ablated(sites: Sequence[AttentionSite], heads: Collection[Head], reverse: bool = False) -> Iterator[set[nn.Module]]:
    """Run the model with the attention of these heads set to zero, or changed; gives the modules where it was."""
    removed: dict[nn.Module, list[list[int]]] = {}
    for site in sites:
        removed.setdefault(site.module, []).append(heads_of(site.layer, heads))
    counts = {site.module: Heads(site.n_heads, site.head_axis) for site in sites}
    mode = _ChangedHeads(removed, counts, reverse)
    hooks = ForwardHooks(removed, mode.enter, mode.leave)
    try:
        with as_written(), mode:
            yield mode.changed
    finally:
        hooks.remove()


def check_masking(
    model: nn.Module,
    sites: Sequence[AttentionSite],
    heads: Collection[Head],
    run: Callable[[], list[torch.Tensor]],
    tolerance: float = 1e-3,
) -> None:
    """Raise if masking ``heads`` is not what zeroing their attention is; torch's fused modules are taken at their word.

    Args:
        model: The model that ``run`` runs.
        run: Runs the model and returns outputs to compare.
    """
    if any(isinstance(module, FAST_PATH) for module in model.modules()):
        return
    with torch.no_grad():
        with masked_sites(model, sites, heads):
            masked = run()
        with ablated(sites, heads):
            expected = run()
    worst = _apart(expected, masked)
    if worst > tolerance and not _by_itself(model, sites, heads, run, tolerance):
        raise SurgeryError(
            f"Masking these {len(heads)} heads is not what removing their attention is: outputs differ by {worst:.2g} "
            "of their size. The heads do not lie where the adapter says; describe the model in an adapter of your own."
        )


def check_places(loaded: LoadedModel, sites: Sequence[AttentionSite], batch: Mapping[str, torch.Tensor]) -> None:
    """Raise if masking a head of every layer is not what removing its attention is, before masks measure anything.

    Layers whose heads cannot be cut say so themselves, and a mask is what it is in them. Weights in 16 bits, or on the
    disk, are taken at their word: their rounding can be as large as a small mistake.
    """
    heads = [(site.layer, 0) for site in sites if site.n_heads > 1 and can_be_cut(site)]
    if heads and is_exact(loaded.model) and not is_offloaded(loaded.model):
        check_masking(loaded.model, sites, heads, lambda: readouts(loaded, batch))


def _apart(expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> float:
    pairs = [largest_difference(wanted, one) for wanted, one in zip(expected, found, strict=True)]
    return max((apart / (size or 1.0) for apart, size in pairs), default=0.0)


def _by_itself(
    model: nn.Module,
    sites: Sequence[AttentionSite],
    heads: Collection[Head],
    run: Callable[[], list[torch.Tensor]],
    tolerance: float,
) -> bool:
    """Whether the features of a head hold nothing of other heads, and all of its own, though more than its attention.

    A head may add its query (MViTv2) or a convolution of its values (EfficientFormer) to what it attends to; that goes
    with it. So its features are masked and its attention is changed: nothing else may change. Then the same with all
    other heads.
    """
    known = [(site.layer, head) for site in sites if site.described for head in range(site.n_heads)]
    others = [head for head in known if head not in heads]
    for some in (list(heads), others):
        modules = {site.module for site in sites if heads_of(site.layer, some)}
        with torch.no_grad(), ablated(sites, some, reverse=True) as changed:
            plain_but_changed = run()
        with torch.no_grad(), masked_sites(model, sites, some):
            masked = run()
            with ablated(sites, some, reverse=True):
                both = run()
        with torch.no_grad():
            plain = run()
        seen = modules <= changed and _apart(plain, plain_but_changed) > tolerance
        if some and not (seen and _apart(masked, both) <= tolerance):
            return False
    return True
