"""The attention sites of a model together with their layouts: what masking, surgery and scores all start from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from oattn_hub.adapters import Adapter, AttentionSite, find_adapter
from oattn_hub.adapters.layout import HeadAxis, HeadLayout, guess_layout
from oattn_hub.errors import InvalidInput, SurgeryError
from oattn_hub.files import fingerprint
from oattn_hub.pruning.heads import structure_of
from oattn_hub.pruning.portable import indices
from oattn_hub.records import Head as Head

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class HeadSite:
    """One attention layer and where its heads lie. ``turn`` says which pass through a shared module it is."""

    site: AttentionSite
    layout: HeadLayout
    turn: int = 0
    n_turns: int = 1

    @property
    def module_name(self) -> str:
        """The dotted name of the module, without the pass."""
        return self.site.name.split("#")[0]

    def find(self, path: str) -> Any:
        """The module, parameter or attribute at ``path`` below the attention module, or None."""
        return _find(self.site.module, path)

    @cached_property
    def output_module(self) -> nn.Module | None:
        """The output projection if it is called as a module; None if its weight is read as a parameter."""
        found = self.find(self.layout.output.path)
        return found if self.layout.output.axis == "in" else None

    @cached_property
    def output_weight(self) -> torch.Tensor:
        """The output projection's weight as (features of all heads, model width)."""
        weight, axis = self.output_tensor
        heads_first: torch.Tensor = weight.movedim(axis, 0)
        return heads_first.flatten(1)

    @property
    def output_tensor(self) -> tuple[torch.Tensor, int]:
        """The output projection's weight as it is, and the number of its head axis."""
        found = self.find(self.layout.output.path)
        if found is None:
            raise SurgeryError(
                f"{self.site.name} has no {self.layout.output.path}; its adapter does not describe this model."
            )
        return getattr(found, "weight", found), weight_axis(found, self.layout.output.axis)

    def features(self, heads: Iterable[int]) -> list[int]:
        """Positions of the heads' outputs among the output projection's input features."""
        weight, axis = self.output_tensor
        return indices(self.ranges(self.layout.output, weight.shape[axis], sorted(heads), ()))

    def ranges(self, axis: HeadAxis, size: int, kept: Sequence[int], kept_kv: Sequence[int]) -> list[tuple[int, int]]:
        """Index ranges of the kept heads along ``axis`` of length ``size``."""
        n_heads, n_kv_heads = self.site.n_heads, self.site.n_kv_heads
        return axis.ranges(n_heads=n_heads, n_kv_heads=n_kv_heads, size=size, kept=kept, kept_kv=kept_kv)


def weight_axis(owner: Any, axis: int | str) -> int:
    """Axis number of ``"in"`` or ``"out"`` in the weight of a linear module; numbers stay as they are."""
    if isinstance(axis, int):
        return axis
    transposed = hasattr(owner, "nf")  # transformers' Conv1D
    return int((axis == "out") == transposed)


def head_sites(model: nn.Module, adapter: Adapter | str | None = None) -> list[HeadSite]:
    """Every attention layer of ``model`` with its layout, in model order."""
    chosen = adapter if isinstance(adapter, Adapter) else find_adapter(model, adapter)
    sites = chosen.sites(model)
    turns = {id(site.module): 0 for site in sites}
    totals = {key: sum(id(site.module) == key for site in sites) for key in turns}
    found = []
    for site in sites:
        key = id(site.module)
        found.append(HeadSite(site, layout_of(chosen, site), turns[key], totals[key]))
        turns[key] += 1
    return found


def layout_of(adapter: Adapter, site: AttentionSite) -> HeadLayout:
    """The layout that ``adapter`` gives for ``site``, a guess where it gives none, or a clear refusal."""
    layout: Any = adapter.layout
    if not isinstance(layout, HeadLayout) and layout is not None:
        layout = layout.get(site.group) or layout.get(site.kind)
    if layout is None:
        layout = guess_layout(lambda path: _find(site.module, path) is not None)
    if layout is None:
        raise SurgeryError(
            f"Adapter {adapter.name!r} does not say where the heads of {site.name} ({type(site.module).__qualname__}) "
            "lie in its projections. Add a HeadLayout to the adapter (see adapters/layout.py)."
        )
    chosen: HeadLayout = layout
    return chosen


def _find(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name, None)
        if module is None:
            return None
    return module


def all_heads(sites: Iterable[HeadSite]) -> list[Head]:
    """(layer, head) of every head, in model order."""
    return [(site.site.layer, head) for site in sites for head in range(site.site.n_heads)]


def check_heads(sites: Sequence[HeadSite], heads: Iterable[Head]) -> list[Head]:
    """The heads, sorted and without repeats, after making sure the model has them."""
    counts = {site.site.layer: site.site.n_heads for site in sites}
    chosen = sorted({(int(layer), int(head)) for layer, head in heads})
    for layer, head in chosen:
        if layer not in counts:
            raise InvalidInput(f"There is no layer {layer}; the model has attention layers 0 to {max(counts)}.")
        if not 0 <= head < counts[layer]:
            raise InvalidInput(f"Layer {layer} has heads 0 to {counts[layer] - 1}; there is no head {head}.")
    return chosen


def heads_of(layer: int, heads: Collection[Head]) -> list[int]:
    """The heads of one layer, sorted."""
    return sorted(head for where, head in heads if where == layer)


def structure_fingerprint(sites: Sequence[HeadSite]) -> str:
    """SHA-256 of the number of heads of every layer, the same as a report's."""
    return structure_of({site.site.layer: site.site.n_heads for site in sites})


def shared_layers(sites: Sequence[HeadSite]) -> list[list[int]]:
    """Layers that share their weights (ALBERT), one list for each shared module."""
    groups: dict[int, list[int]] = {}
    for site in sites:
        groups.setdefault(id(site.site.module), []).append(site.site.layer)
    return [layers for layers in groups.values() if len(layers) > 1]


def weights_fingerprint(sites: Sequence[HeadSite]) -> str:
    """SHA-256 of the first and last output projections, which tells two models of one shape apart."""
    ends = [site.output_weight.detach().float().cpu().numpy() for site in (sites[0], sites[-1])]
    return fingerprint(*ends)
