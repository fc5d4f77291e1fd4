"""One group of heads: who they are, what was measured on them, and the records read off that.

A group is a set of layers whose attention has one shape (|queries| x |keys|): all of BERT, T5's cross attention, one
stage of Swin. Groups are analysed each on its own, because entropies of different shapes do not compare.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oattn_hub.report.contexts import Sample
from oattn_hub.report.measured import HaarEntropies, HeadGeometry, Ranking, check_lengths
from oattn_hub.report.records import HeadRecord, NetworkRecord, StabilityRecord
from oattn_hub.types import Array


@dataclass(frozen=True, eq=False)
class GroupResult:
    """A group's heads, H of them in axis order, and everything the figures, the page and plans need of them.

    Args:
        name: the group's name, e.g. ``"encoder"``.
        n_queries, n_keys: the shape of one head's attention matrix, before any reduction for display.
        layer_names: (H,) dotted module names.
        layers, heads: (H,) layer index in the model, head index in the layer.
        geometry: where the heads lie among each other.
        haar: their entropies, and the coefficients these are sums of.
        ranking: their order, and how far the batches agree on it.
        samples: the attention of a few contexts with their query and key trees, to be looked at.
        pooled: how many neighbouring queries, and keys, of the model were read as one; (1, 1) is none.
    """

    name: str
    n_queries: int
    n_keys: int
    layer_names: tuple[str, ...]
    layers: Array
    heads: Array
    geometry: HeadGeometry
    haar: HaarEntropies
    ranking: Ranking
    samples: tuple[Sample, ...] = ()
    pooled: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        check_lengths({"layer_names": self.layer_names, "heads": self.heads}, self.n_heads)
        for part in (self.geometry, self.haar, self.ranking):
            part.check(self.n_heads)

    @property
    def n_heads(self) -> int:
        """Number of heads in the group."""
        return len(self.layers)

    @property
    def n_batches(self) -> int:
        """Number of batches measured."""
        return len(self.haar.entropies)

    def head_keys(self) -> list[tuple[int, int]]:
        """(layer, head) of each head, in axis order."""
        return list(zip(self.layers.tolist(), self.heads.tolist(), strict=True))

    def head_records(self) -> list[HeadRecord]:
        """One record per head, in axis order."""
        found = self.ranking
        columns = (
            self.haar.mean_entropies, found.entropy_low, found.entropy_high, found.ranks, found.rank_low,
            found.rank_high, found.bottom_counts, found.top_counts, self.geometry.folders,
        )  # fmt: skip
        names = zip(self.layers.tolist(), self.layer_names, self.heads.tolist(), strict=True)
        values = zip(*(column.tolist() for column in columns), strict=True)
        return [HeadRecord(self.name, *head, *row) for head, row in zip(names, values, strict=True)]

    def network_record(self) -> NetworkRecord:
        """The network entropies of the batches."""
        n_layers = len(np.unique(self.layers))
        entropies = tuple(self.haar.network_entropies.tolist())
        return NetworkRecord(self.name, n_layers, self.n_heads, self.n_queries, self.n_keys, entropies)

    def stability_record(self) -> StabilityRecord:
        """How far the batches agree, and on which heads all of them do."""
        keys, found = self.head_keys(), self.ranking

        def in_every_batch(counts: Array) -> tuple[tuple[int, int], ...]:
            return tuple(key for key, count in zip(keys, counts.tolist(), strict=True) if count == self.n_batches)

        jaccard, spearman = (None if np.isnan(value) else value for value in (found.jaccard, found.spearman))
        bottom, top = in_every_batch(found.bottom_counts), in_every_batch(found.top_counts)
        return StabilityRecord(self.name, self.n_batches, found.fraction, jaccard, spearman, bottom, top)
