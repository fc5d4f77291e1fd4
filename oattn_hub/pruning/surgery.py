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
from oattn_hub.adapters.site import COPIES, weight_axis
from oattn_hub.errors import SurgeryError
from oattn_hub.pruning.plain import check_plain
from oattn_hub.pruning.portable import joined
from oattn_hub.pruning.sites import Head, check_heads, head_sites, heads_of

if TYPE_CHECKING:
    from torch import nn

CutList = dict[str, Any]
_KINDS = ("keep", "zero", "bias", "set", "config", "behave", "sites")


def cut_list(model: nn.Module, heads: Collection[Head], adapter: Adapter | str | None = None) -> CutList:
    """The cuts that remove ``heads`` from ``model``, which is not touched. Raises SurgeryError where it cannot be."""
    sites = head_sites(model, adapter)
    chosen = check_heads(sites, heads)
    check_plain(sites)
    cuts: CutList = {"version": 2, **{kind: [] for kind in _KINDS}}
    for sharing in _by_weights([site for site in sites if site.described or heads_of(site.layer, chosen)]):
        removed = _common_heads(sharing, chosen)
        if removed:
            for site in {id(site.module): site for site in sharing}.values():
                _SiteCut(site, removed).write(cuts)
            cuts["sites"] += [_record(site, removed) for site in sharing]
    return cuts


def cut(model: nn.Module, heads: Collection[Head], adapter: Adapter | str | None = None) -> CutList:
    """Remove ``heads`` from ``model`` in place and return the cuts that did it."""
    from oattn_hub.pruning.portable import apply_cuts

    cuts = cut_list(model, heads, adapter)
    apply_cuts(model, cuts)
    return cuts


def can_be_cut(site: AttentionSite) -> bool:
    """Whether somebody says where the heads of this layer lie, and nothing ties them to each other."""
    try:
        _SiteCut(site, [0])
    except SurgeryError:
        return False
    return True


def _record(site: AttentionSite, removed: Sequence[int]) -> dict[str, Any]:
    """Which heads are kept, in words that a loader can hold against the plan and the weights."""
    n_heads, layout = site.n_heads, site.layout
    suffix = "" if isinstance(layout.output.axis, int) else ".weight"
    output = f"{site.module_name}.{layout.output.path}{suffix}".lstrip(".")
    kept = [head for head in range(n_heads) if head not in set(removed)]
    kv_heads = len({head // (n_heads // site.n_kv_heads) for head in kept})
    return {"layer": site.layer, "n_heads": n_heads, "kept": kept, "kv_heads": kv_heads, "output": output}


def _by_weights(sites: Sequence[AttentionSite]) -> list[list[AttentionSite]]:
    """Sites that share their weights together: passes through one module (ALBERT), tied modules (Zamba)."""
    groups: dict[int, list[AttentionSite]] = {}
    for site in sites:
        groups.setdefault(id(site.output_tensor[0]), []).append(site)
    return list(groups.values())


def _common_heads(turns: Sequence[AttentionSite], heads: Collection[Head]) -> list[int]:
    """The heads to remove from layers that share their weights; they must agree."""
    wanted = [heads_of(turn.layer, heads) for turn in turns]
    if any(other != wanted[0] for other in wanted):
        layers = ", ".join(str(turn.layer) for turn in turns)
        uneven = sorted(set().union(*wanted) - set(wanted[0]).intersection(*wanted))
        raise SurgeryError(
            f"Layers {layers} share the weights of {turns[0].module_name}, and heads {uneven} are to go in only some "
            "of them. Remove a head in all of these layers, or use plan.masked(model), which works layer by layer."
        )
    return wanted[0]


def _by_heads(norm: nn.Module) -> bool:
    """Whether a norm has a row of weights for every head and says that it normalises the last axis only."""
    axes, rows = getattr(norm, "normalized_shape", ()), getattr(getattr(norm, "weight", None), "ndim", 0)
    return isinstance(axes, tuple) and len(axes) == 1 < rows


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
        members = [[i for i, head in enumerate(self.kept) if head // group == kv] for kv in self.kept_kv]
        self.group = max(map(len, members))
        # The queries that attention runs with, as positions among the kept ones. Every group is as large as the
        # largest one left: key/value heads are cached once, and attention still does no more work than before.
        self.queries = [one for some in members for one in some + some[-1:] * (self.group - len(some))]
        self.filled = len(self.queries) > len(self.kept)
        self.repeated: dict[str, list[list[int]]] = {}  # projection -> the features it hands out

    def write(self, cuts: CutList) -> None:
        """Append this module's cuts to the list."""
        for axis in (*self.layout.projections, self.layout.output):
            self._write_axis(axis, cuts)
        if self.filled:
            self._write_selection(cuts)
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
        # What forward reads as a parameter of its own cannot be filled up later, so it is stored filled up.
        stored = [self.kept[i] for i in self.queries] if isinstance(axis.axis, int) else self.kept
        for path, number, size in self._tensors(axis):
            ranges = joined(self.site.ranges(axis, size, stored, self.kept_kv))
            cuts["keep"].append({"tensor": self._path(path), "axis": number, "size": size, "ranges": ranges})
        if self.filled and axis.axis == "out" and set(axis.blocks) - {"k", "v"}:
            self._write_repeats(axis)

    def _write_repeats(self, axis: HeadAxis) -> None:
        """Uneven groups: the projection hands out some of its query heads twice."""
        for path, _, size in self._tensors(axis)[:1]:
            if "qkv" in axis.blocks or not hasattr(self.site.find(axis.path), "weight"):
                raise SurgeryError(f"{self.site.name} interleaves grouped heads; only whole groups can be removed.")
            slots = sum(self.site.n_kv_heads if b in ("k", "v") else self.site.n_heads for b in axis.blocks)
            left = sum(len(self.kept_kv) if b in ("k", "v") else len(self.kept) for b in axis.blocks)
            ranges = axis.ranges(
                n_heads=len(self.kept),
                n_kv_heads=len(self.kept_kv),
                size=size // slots * left,
                kept=self.queries,
                kept_kv=range(len(self.kept_kv)),
            )
            self.repeated[path.rpartition(".")[0]] = joined(ranges)

    def _write_selection(self, cuts: CutList) -> None:
        """Uneven groups: the output projection reads every kept head once."""
        if self.layout.output.axis != "in":
            raise SurgeryError(
                f"{self.site.name} shares key/value heads between queries and reads {self.layout.output.path} as "
                "a parameter; only whole groups of queries can be removed."
            )
        chunk = self.site.output_weight.shape[0] // self.site.n_heads
        first = [self.queries.index(i) for i in range(len(self.kept))]
        copies = {"count": len(self.queries), "places": first}
        cuts["set"].append({"module": self._path(""), "attribute": COPIES, "value": copies})
        ranges = joined((slot * chunk, (slot + 1) * chunk) for slot in first)
        self._behave(cuts, "", "even_groups", repeat=self.repeated, select={self.layout.output.path: ranges})

    def _behave(self, cuts: CutList, below: str, behaviour: str, **arguments: Any) -> None:
        cuts["behave"].append({"module": self._path(below), "behaviour": behaviour, "arguments": arguments})

    def _write_behaviours(self, cuts: CutList) -> None:
        heads, n_heads = [self.kept[i] for i in self.queries], len(self.queries)
        # First, while the module's forward still has its own signature.
        known = inspect.signature(self.site.module.forward).parameters
        for argument in self.layout.head_arguments:
            if argument in known:
                before = self.site.n_heads
                self._behave(cuts, "", "select_head_argument", argument=argument, kept=heads, n_heads=before)
        width, chunk = self.site.output_weight.shape[0], self.site.output_weight.shape[0] // self.site.n_heads
        if "shared_position_bias" in self.layout.behaviours:
            self._behave(cuts, "", "share_position_bias", kept=heads)
        if "fixed_width" in self.layout.behaviours:
            # Some forwards divide the width by the (now smaller) number of heads, or remember the number of heads.
            widths = {self.site.n_heads: n_heads, width // n_heads: chunk, width: n_heads * chunk}
            values, left = self.site.n_kv_heads * chunk, len(self.kept_kv) * chunk
            widths = {values: left, **widths} if self.site.n_kv_heads < self.site.n_heads else widths
            changes = {str(wide): narrow for wide, narrow in widths.items() if wide != narrow}
            self._behave(cuts, "", "narrow_reshapes", widths=changes, n_heads=n_heads, head_dim=chunk)
        if "multihead" in self.layout.behaviours:
            before = self.site.n_heads
            self._behave(cuts, "", "cut_multihead", n_heads=n_heads, head_dim=chunk, kept=heads, before=before)

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
        heads, kv_heads = len(self.queries), len(self.kept_kv)
        chunk = self.site.output_weight.shape[0] // self.site.n_heads
        return {
            "heads": heads,
            "kv_heads": kv_heads,
            "group": self.group,
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
            norm = self.site.find(path)
            weight = getattr(norm, "weight", None)
            if weight is not None and weight.numel() >= width and self.site.n_heads > 1 and not _by_heads(norm):
                yield f"{path} normalises all heads together, so the others would change"
