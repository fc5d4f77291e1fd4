"""What can go together: heads, key/value groups, whole layers; freely, in even groups, or alike in all layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from oattn_hub.errors import InvalidInput
from oattn_hub.pruning.heads import bundles
from oattn_hub.records import Head

if TYPE_CHECKING:
    from oattn_hub.adapters import AttentionSite
    from oattn_hub.pruning.search import CostModel

Removed = tuple[Head, ...]
Unit = Literal["heads", "groups", "layers"]
Shape = Literal["free", "even", "uniform"]
UNITS: tuple[Unit, ...] = ("heads", "groups", "layers")
SHAPES: tuple[Shape, ...] = ("free", "even", "uniform")
# Part of the heads that goes in each round.
_SHARE = 0.08


class Choice:
    """Which heads may go together and how many must stay.

    Args:
        heads: all heads, in model order.
        floor: heads that every layer keeps.
        shared: sets of layers with the same weights, whose heads go in all of them or in none.
        unit: ``heads``; ``groups``: all queries of a key/value head, which makes the key/value cache smaller;
            ``layers``: the whole attention of a layer.
        shape: ``free``; ``even``: all key/value groups of a layer keep equally many queries; ``uniform``: all layers
            keep equally many heads, and all their groups equally many queries, so that a config can say it.
        n_kv_heads: key/value heads of each layer; None means as many as heads.
        keep: heads that stay.
    """

    def __init__(
        self,
        heads: Sequence[Head],
        floor: int = 0,
        shared: Sequence[Collection[int]] = (),
        unit: Unit = "heads",
        shape: Shape = "free",
        n_kv_heads: Mapping[int, int] | None = None,
        keep: Collection[Head] = (),
    ) -> None:
        for name, value, known in (("unit", unit, UNITS), ("shape", shape, SHAPES)):
            if value not in known:
                raise InvalidInput(f"{name} is {value!r}; choose from {', '.join(known)}.")
        if shape != "free" and unit == "layers":
            raise InvalidInput(f"Whole layers cannot be removed in shape {shape!r}; leave the shape free.")
        if shape == "uniform" and shared:
            raise InvalidInput("Layers that share their weights are alike in any case; leave the shape free.")
        self.heads, self.unit, self.keep = heads, unit, frozenset(keep)
        self.floor = max(floor, 1) if shape == "uniform" else floor
        self.bundles = bundles(heads, shared)
        self.step = max(1, round(_SHARE * len(heads)))
        self._partners = {layer: sorted(layers) for layers in shared for layer in layers}
        counts: dict[int, int] = {}
        for layer, _ in heads:
            counts[layer] = counts.get(layer, 0) + 1
        self.counts = counts
        self.group_sizes = {layer: count // (n_kv_heads or counts)[layer] for layer, count in counts.items()}
        # Groups of one query are even whatever goes.
        self.shape: Shape = "free" if shape == "even" and max(self.group_sizes.values()) == 1 else shape

    @classmethod
    def of(cls, sites: Sequence[AttentionSite], heads: Sequence[Head], **options: object) -> Choice:
        """For a model's own sites."""
        kv = {site.layer: site.n_kv_heads for site in sites}
        return cls(heads, n_kv_heads=kv, **options)  # type: ignore[arg-type]

    def units(self, removed: Collection[Head]) -> list[Removed]:
        """What may go next, each a set of heads that are still there; shapes combine these later."""
        lost = set(removed)
        if self.unit == "heads" or self.shape != "free":
            candidates = [tuple(bundle) for bundle in self.bundles]
        else:
            candidates = self._whole(lost)
        return [unit for unit in candidates if not lost & set(unit) and self._may_go(unit, lost)]

    def extended(self, removed: Removed, units: Sequence[Removed], model: CostModel, count: int) -> Removed:
        """What is removed already, and about ``count`` more heads, by the model's order of the units."""
        if self.shape != "free":
            return self._shaped(removed, units, model, count)
        sizes = np.array([float(len(unit)) for unit in units])
        found = list(removed)
        for number in model.order(np.ones(len(units), dtype=bool), sizes, float("inf")):
            if len(found) >= len(removed) + count:
                break
            if self._may_go(units[number], set(found)):
                found += units[number]
        return tuple(found)

    def _may_go(self, unit: Removed, lost: set[Head]) -> bool:
        """Whether no head of this unit must stay, and every layer keeps its floor without it."""
        if self.keep & set(unit):
            return False
        for layer in {layer for layer, _ in unit}:
            left = self.counts[layer] - sum(where == layer for where, _ in lost | set(unit))
            if left < self.floor:
                return False
        return True

    def _whole(self, lost: set[Head]) -> list[Removed]:
        """Whole groups or layers; layers that share their weights lose theirs together."""
        sizes = self.counts if self.unit == "layers" else self.group_sizes
        found: dict[Removed, None] = {}
        for layer, head in self.heads:
            first = head - head % sizes[layer]
            members = range(first, first + sizes[layer])
            found[tuple((other, one) for other in self._partners.get(layer, [layer]) for one in members)] = None
        return list(found)

    def _shaped(self, removed: Removed, units: Sequence[Removed], model: CostModel, count: int) -> Removed:
        """Rows of heads that keep groups even: one of every group of a layer, or one whole group of it."""
        costs = (model.slope + np.diag(model.curvature) / 2).tolist()
        price = {unit[0]: cost for unit, cost in zip(units, costs, strict=True)}

        def each(row: Iterable[Head]) -> float:
            costs = [price.get(head, float("inf")) for head in row]  # a head that must stay has no price
            return float(sum(costs)) / len(costs)

        found = list(removed)
        while len(found) < len(removed) + count:
            rows = [row for layer in self.counts for row in self._rows(layer, set(found), each)]
            rows = self._alike(rows) if self.shape == "uniform" else rows
            rows = [row for row in rows if self._may_go(row, set(found)) and all(head in price for head in row)]
            if not rows:
                break
            found += min(rows, key=each)
        return tuple(found)

    def _rows(self, layer: int, lost: set[Head], each: Callable[[Removed], float]) -> list[Removed]:
        """The cheapest whole group, and the cheapest head of every group that is left."""
        groups: dict[int, list[Head]] = {}
        for where, head in self.heads:
            if where == layer and (where, head) not in lost:
                groups.setdefault(head // self.group_sizes[layer], []).append((where, head))
        if not groups:
            return []
        wholes: list[Removed] = [tuple(group) for group in groups.values()]
        whole = sorted(wholes, key=lambda group: (bool(self.keep & set(group)), each(group)))[0]
        spare = [[head for head in group if head not in self.keep] for group in groups.values()]
        if not all(spare):
            return [whole]
        across = tuple(min(group, key=lambda head: each((head,))) for group in spare)
        return [whole] if self.unit == "groups" or len(whole) == 1 else [whole, across]

    def _alike(self, rows: Sequence[Removed]) -> list[Removed]:
        """One row in every layer, of one kind in all of them."""
        kinds: dict[bool, dict[int, Removed]] = {}
        for row in rows:
            groups = {head // self.group_sizes[layer] for layer, head in row}
            kinds.setdefault(len(groups) == 1, {})[row[0][0]] = row
        complete = [kind.values() for kind in kinds.values() if len(kind) == len(self.counts)]
        return [tuple(head for row in kind for head in row) for kind in complete]
