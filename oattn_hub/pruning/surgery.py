"""From a model and a set of heads to the list of cuts that removes them, and to the smaller model.

Surgery decides, :mod:`oattn_hub.pruning.portable` acts: the list of cuts is JSON, and the same list rebuilds the
smaller model when its checkpoint is loaded.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from oattn_hub.adapters import Adapter, AttentionSite
from oattn_hub.adapters.layout import Count, HeadAxis
from oattn_hub.adapters.site import weight_axis
from oattn_hub.errors import SurgeryError
from oattn_hub.pruning.sites import Head, check_heads, head_sites, heads_of

if TYPE_CHECKING:
    from torch import nn

CutList = dict[str, Any]


def cut_list(model: nn.Module, heads: Collection[Head], adapter: Adapter | str | None = None) -> CutList:
    """The cuts that remove ``heads`` from ``model``, which is not touched. Raises SurgeryError where it cannot be."""
    sites = head_sites(model, adapter)
    chosen = check_heads(sites, heads)
    cuts: CutList = {"version": 1, "keep": [], "zero": [], "set": [], "config": [], "behave": []}
    for turns in _by_module(sites):
        removed = _common_heads(turns, chosen)
        if removed:
            _SiteCut(turns[0], removed).write(cuts)
    return cuts


def cut(model: nn.Module, heads: Collection[Head], adapter: Adapter | str | None = None) -> CutList:
    """Remove ``heads`` from ``model`` in place and return the cuts that did it."""
    from oattn_hub.pruning.portable import apply_cuts

    cuts = cut_list(model, heads, adapter)
    apply_cuts(model, cuts)
    return cuts


def _by_module(sites: Sequence[AttentionSite]) -> list[list[AttentionSite]]:
    groups: dict[int, list[AttentionSite]] = {}
    for site in sites:
        groups.setdefault(id(site.module), []).append(site)
    return list(groups.values())


def _common_heads(turns: Sequence[AttentionSite], heads: Collection[Head]) -> list[int]:
    """The heads to remove from one module; all layers that share it must agree."""
    wanted = [heads_of(turn.layer, heads) for turn in turns]
    if any(other != wanted[0] for other in wanted):
        layers = ", ".join(str(turn.layer) for turn in turns)
        uneven = sorted(set().union(*wanted) - set(wanted[0]).intersection(*wanted))
        raise SurgeryError(
            f"Layers {layers} share the weights of {turns[0].module_name}, and heads {uneven} are to go in only some "
            "of them. Remove a head in all of these layers, or use plan.masked(model), which works layer by layer."
        )
    return wanted[0]


class _SiteCut:
    """The cuts of one attention module."""

    def __init__(self, site: AttentionSite, removed: Sequence[int]) -> None:
        self.site, self.layout = site, site.layout
        self._refuse_if_joined()
        n_heads, n_kv_heads = site.n_heads, site.n_kv_heads
        kept = [head for head in range(n_heads) if head not in set(removed)]
        # A layer that loses every head keeps its first one with a zero output: every family's forward still runs.
        self.emptied = not kept
        self.kept = kept or [0]
        group = n_heads // n_kv_heads
        self.kept_kv = sorted({head // group for head in self.kept})
        sizes = {sum(head // group == kv for head in self.kept) for kv in self.kept_kv}
        self.even_group = sizes.pop() if len(sizes) == 1 else None
        # Position of each kept query's key/value head among the kept ones.
        self.kv_of_query = [self.kept_kv.index(head // group) for head in self.kept]

    def write(self, cuts: CutList) -> None:
        """Append this module's cuts to the list."""
        if self.even_group is None and any("qkv" in axis.blocks for axis in self.layout.projections):
            raise SurgeryError(f"{self.site.name} interleaves grouped heads; only whole groups can be removed.")
        for axis in (*self.layout.projections, self.layout.output):
            self._write_axis(axis, cuts)
        if self.emptied:
            cuts["zero"].append(self._path(self._tensors(self.layout.output)[0][0]))
        for attribute, count in self.layout.counts.items():
            owner, _, name = attribute.rpartition(".")
            if self.site.find(attribute) is not None:
                cuts["set"].append({"module": self._path(owner), "attribute": name, "value": self._count(count)})
        if self.layout.config_counts:
            values = {name: self._count(count) for name, count in self.layout.config_counts.items()}
            cuts["config"].append({"module": self._path(""), "attributes": values})
        self._write_behaviours(cuts)

    def _write_axis(self, axis: HeadAxis, cuts: CutList) -> None:
        for path, number, size in self._tensors(axis):
            ranges = self.site.ranges(axis, size, self.kept, self.kept_kv)
            tensor = self._path(path)
            cuts["keep"].append({"tensor": tensor, "axis": number, "size": size, "ranges": _joined(ranges)})
        if self.even_group is None and {"k", "v"} & set(axis.blocks):
            self._write_repeats(axis, cuts)

    def _write_repeats(self, axis: HeadAxis, cuts: CutList) -> None:
        """Uneven groups: the projection hands out its key/value heads once for every query that uses them."""
        if axis.axis != "out":
            raise SurgeryError(
                f"{self.site.name} shares key/value heads between queries and reads {axis.path} as a parameter; "
                "only whole groups of queries can be removed."
            )
        for path, _, size in self._tensors(axis)[:1]:
            slots = sum(self.site.n_kv_heads if b in ("k", "v") else self.site.n_heads for b in axis.blocks)
            chunk, start, ranges = size // slots, 0, []
            for block in axis.blocks:
                order = self.kv_of_query if block in ("k", "v") else range(len(self.kept))
                ranges += [(start + slot * chunk, start + (slot + 1) * chunk) for slot in order]
                start += chunk * (len(self.kept_kv) if block in ("k", "v") else len(self.kept))
            arguments = {"ranges": _joined(ranges)}
            module = self._path(path.rpartition(".")[0])
            cuts["behave"].append({"module": module, "behaviour": "repeat_features", "arguments": arguments})

    def _write_behaviours(self, cuts: CutList) -> None:
        def behave(behaviour: str, **arguments: Any) -> None:
            cuts["behave"].append({"module": self._path(""), "behaviour": behaviour, "arguments": arguments})

        # First, while the module's forward still has its own signature.
        known = inspect.signature(self.site.module.forward).parameters
        for argument in self.layout.head_arguments:
            if argument in known:
                behave("select_head_argument", argument=argument, kept=self.kept, n_heads=self.site.n_heads)
        width, chunk = self.site.output_weight.shape[0], self.site.output_weight.shape[0] // self.site.n_heads
        if "shared_position_bias" in self.layout.behaviours:
            behave("share_position_bias", kept=self.kept)
        if "fixed_width" in self.layout.behaviours:
            # Some forwards divide the width by the (now smaller) number of heads, or remember the number of heads.
            n_heads, kept = self.site.n_heads, len(self.kept)
            widths = {n_heads: kept, width // kept: chunk, width: kept * chunk}
            changes = {str(wide): narrow for wide, narrow in widths.items() if wide != narrow}
            behave("narrow_reshapes", widths=changes, n_heads=kept, head_dim=chunk)
        if "multihead" in self.layout.behaviours:
            behave("cut_multihead", n_heads=len(self.kept), head_dim=chunk)

    def _tensors(self, axis: HeadAxis) -> list[tuple[str, int, int]]:
        """(path, axis number, size) of the tensors behind a head axis; a missing module or bias gives none."""
        found = self.site.find(axis.path)
        if found is None:
            return []
        if isinstance(axis.axis, int):
            return [(axis.path, axis.axis, found.shape[axis.axis])]
        number = weight_axis(found, axis.axis)
        tensors = [(f"{axis.path}.weight", number, found.weight.shape[number])]
        if axis.axis == "out" and getattr(found, "bias", None) is not None:
            tensors.append((f"{axis.path}.bias", 0, found.bias.shape[0]))
        return tensors

    def _count(self, count: Count) -> int:
        repeated = self.even_group is None
        heads = len(self.kept)
        kv_heads = heads if repeated else len(self.kept_kv)
        chunk = self.site.output_weight.shape[0] // self.site.n_heads
        group = 1 if repeated else self.even_group or 1
        return {
            "heads": heads,
            "kv_heads": kv_heads,
            "group": group,
            "width": heads * chunk,
            "kv_width": kv_heads * chunk,
        }[count]

    def _path(self, below: str) -> str:
        return ".".join(part for part in (self.site.module_name, below) if part)

    def _refuse_if_joined(self) -> None:
        for reason in self._reasons():
            name = f"{self.site.name} ({type(self.site.module).__qualname__})"
            raise SurgeryError(
                f"Heads of {name} cannot be cut: {reason}. Use plan.masked(model), or save the masked variant."
            )

    def _reasons(self) -> Iterator[str]:
        """Why the heads of this module cannot be cut; nothing if they can."""
        if self.layout.refusal:
            yield self.layout.refusal
        for attribute, needed in self.layout.only_if.items():
            if (found := self.site.find(attribute)) is not None and found != needed:
                yield f"it has {attribute} {found}, and how its heads then lie is only described for {needed}"
        width = self.site.output_weight.shape[0]
        for path in self.layout.joint_norms:
            weight = getattr(self.site.find(path), "weight", None)
            if weight is not None and weight.numel() >= width and self.site.n_heads > 1:
                yield f"{path} normalises all heads together, so the others would change"


def _joined(ranges: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Neighbouring ranges as one, so that the list of cuts stays short."""
    joined: list[list[int]] = []
    for start, stop in ranges:
        if joined and joined[-1][1] == start:
            joined[-1][1] = stop
        else:
            joined.append([start, stop])
    return joined
