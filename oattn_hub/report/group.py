"""What was measured on one group of heads: plain arrays, and the records read off them.

A group is a set of layers whose attention has one shape (|queries| x |keys|): all of BERT, T5's cross attention, one
stage of Swin. Groups are analysed each on its own, because entropies of different shapes do not compare.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from oattn_hub.errors import FormatError, InvalidInput
from oattn_hub.report.contexts import Sample, sample_arrays, samples_from
from oattn_hub.report.records import Controls, HeadRecord, NetworkRecord, StabilityRecord

if TYPE_CHECKING:
    from oattn_hub.geometry import PartitionTree

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class GroupResult:
    """One group's numbers; H heads in axis order, B batches. Everything the figures, the page and plans need.

    Args:
        name: the group's name, e.g. ``"encoder"``.
        n_queries, n_keys: the shape of one head's attention matrix, before any reduction for display.
        pooled: how many neighbouring queries, and keys, of the model were read as one; (1, 1) is none.
        fraction: what part of the heads counts as bottom and as top in ``bottom_counts`` and ``top_counts``.
        jaccard, spearman: mean agreement over pairs of batches; NaN when there is only one batch.
        layer_names: (H,) dotted module names.
        layers, heads: (H,) layer index in the model, head index in the layer.
        entropies: (B, H) head entropies, eq. 21.
        entropy_low, entropy_high, ranks, rank_low, rank_high, bottom_counts, top_counts: (H,) see ``HeadRecord``.
        network_entropies: (B,) and network_coefficients (B, m'): tri-Haar, largest support first (Fig. 6).
        coefficients: (H, m) bi-Haar coefficients of the sample batch, largest support first (Fig. 4).
        supports: (m,) their supports, in entries of the attention matrix.
        affinity: (H, H) affinity between heads, mean over batches; of very many heads, (L, L) between landmarks.
        landmarks: (H,) the row of ``affinity`` that stands for each head; None where every head has its own.
        distance_quantiles: (B, n) quantiles of the distances between heads, per batch (what ``compare`` compares).
        diffusion: (H, d) diffusion coordinates of the mean affinity; diffusion_eigenvalues: (d,).
        head_labels: (levels, H) head tree of the mean affinity, root first.
        samples: the attention of a few contexts with their query and key trees, to be looked at.
        details: (B, H) the entropies without the constant function, the head's mean.
        tree_spread: (H,) standard deviation of the sample batch's entropies over trees of slightly perturbed copies.
        controls: what the ranking owes to the method's choices; see ``Controls``.
        These three are None in reports of older versions.
    """

    name: str
    n_queries: int
    n_keys: int
    fraction: float
    jaccard: float
    spearman: float
    layer_names: tuple[str, ...]
    layers: Array
    heads: Array
    entropies: Array
    entropy_low: Array
    entropy_high: Array
    ranks: Array
    rank_low: Array
    rank_high: Array
    bottom_counts: Array
    top_counts: Array
    network_entropies: Array
    network_coefficients: Array
    coefficients: Array
    supports: Array
    affinity: Array
    distance_quantiles: Array
    diffusion: Array
    diffusion_eigenvalues: Array
    head_labels: Array
    samples: tuple[Sample, ...] = ()
    details: Array | None = None
    tree_spread: Array | None = None
    controls: Controls | None = None
    landmarks: Array | None = None
    pooled: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        per_head = len(self.layers)
        for name in _PER_HEAD:
            if len(getattr(self, name)) != per_head:
                raise InvalidInput(f"{name} has {len(getattr(self, name))} entries, but {per_head} heads have layers.")
        if self.entropies.shape[1:] != (per_head,) or len(self.entropies) == 0:
            raise InvalidInput(f"entropies has shape {self.entropies.shape}, expected (batches, {per_head}).")
        rows = self.affinity_rows
        if self.affinity.shape != (n := rows.max() + 1, n) or rows.shape != (per_head,) or rows.min() < 0:
            raise InvalidInput(f"affinity has shape {self.affinity.shape}, but its {per_head} heads need ({n}, {n}).")

    @property
    def n_heads(self) -> int:
        """Number of heads in the group."""
        return len(self.layers)

    @property
    def n_batches(self) -> int:
        """Number of batches measured."""
        return len(self.entropies)

    @property
    def affinity_rows(self) -> Array:
        """(H,) the row of ``affinity`` that stands for each head."""
        return np.arange(self.n_heads) if self.landmarks is None else self.landmarks

    @cached_property
    def tree(self) -> PartitionTree:
        """The head tree of the mean affinity."""
        from oattn_hub.geometry import PartitionTree

        return PartitionTree(self.head_labels)

    @cached_property
    def folders(self) -> Array:
        """Each head's folder on the tree level whose number of folders is closest to sqrt(H)."""
        counts = self.head_labels.max(axis=1) + 1
        level = int(np.argmin(np.abs(counts - np.sqrt(self.n_heads))))
        return np.asarray(self.head_labels[level])

    def head_keys(self) -> list[tuple[int, int]]:
        """(layer, head) of each head, in axis order."""
        return list(zip(self.layers.tolist(), self.heads.tolist(), strict=True))

    def head_records(self) -> list[HeadRecord]:
        """One record per head, in axis order."""
        columns = (
            self.layers, self.layer_names, self.heads, self.entropies.mean(axis=0), self.entropy_low, self.entropy_high,
            self.ranks, self.rank_low, self.rank_high, self.bottom_counts, self.top_counts, self.folders,
        )  # fmt: skip
        rows = zip(*(column if isinstance(column, tuple) else column.tolist() for column in columns), strict=True)
        return [HeadRecord(self.name, *row) for row in rows]

    def network_record(self) -> NetworkRecord:
        """The network entropies of the batches."""
        n_layers = len(np.unique(self.layers))
        entropies = tuple(self.network_entropies.tolist())
        return NetworkRecord(self.name, n_layers, self.n_heads, self.n_queries, self.n_keys, entropies)

    def stability_record(self) -> StabilityRecord:
        """How far the batches agree, and on which heads all of them do."""
        keys = self.head_keys()

        def in_every_batch(counts: Array) -> tuple[tuple[int, int], ...]:
            return tuple(key for key, count in zip(keys, counts.tolist(), strict=True) if count == self.n_batches)

        jaccard, spearman = (None if np.isnan(value) else value for value in (self.jaccard, self.spearman))
        bottom, top = in_every_batch(self.bottom_counts), in_every_batch(self.top_counts)
        return StabilityRecord(self.name, self.n_batches, self.fraction, jaccard, spearman, bottom, top)

    def to_parts(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """The JSON part and the arrays of the group; :meth:`from_parts` takes both back."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        plain = {name: value for name, value in values.items() if name not in arrays and name != "samples"}
        for name in ("jaccard", "spearman"):  # JSON has no NaN
            plain[name] = None if np.isnan(plain[name]) else plain[name]
        plain["controls"] = self.controls.to_json() if self.controls is not None else None
        return plain, {**arrays, **sample_arrays(self.samples)}

    @classmethod
    def from_parts(cls, plain: dict[str, Any], arrays: dict[str, Array]) -> Self:
        """The group back from :meth:`to_parts`."""
        values: dict[str, Any] = dict.fromkeys(("details", "tree_spread", "controls", "landmarks"))
        values |= {"pooled": (1, 1)} | plain | arrays
        values["samples"] = samples_from(arrays)
        if missing := sorted({item.name for item in fields(cls)} - set(values)):
            raise FormatError(f"Group {plain.get('name')!r} of the report misses {', '.join(missing)}.")
        for name in ("jaccard", "spearman"):
            values[name] = float("nan") if values[name] is None else values[name]
        for name in ("layer_names", "pooled"):
            values[name] = tuple(values[name])
        _check_plain(values)
        if values["controls"] is not None:
            values["controls"] = Controls.from_json(values["controls"])
        return cls(**{item.name: values[item.name] for item in fields(cls)})


def _check_plain(values: dict[str, Any]) -> None:
    """Refuse a group out of a file whose plain values are not of their kind."""
    numbers = ("fraction", "jaccard", "spearman", "n_queries", "n_keys")
    wrong = [name for name in numbers if not isinstance(values[name], int | float) or abs(values[name]) > 2**53]
    wrong += [name for name in ("n_queries", "n_keys") if not isinstance(values[name], int) or values[name] < 1]
    wrong += [] if isinstance(values["name"], str) else ["name"]
    factors = values["pooled"]
    wrong += [] if len(factors) == 2 and all(type(f) is int and f > 0 for f in factors) else ["pooled"]
    if wrong or not all(isinstance(name, str) for name in values["layer_names"]):
        raise FormatError(f"Group {str(values['name'])[:60]!r} of the report is damaged: {wrong or ['layer_names']}.")
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray) and name != "samples"}
    for name in ("layers", "heads", "bottom_counts", "top_counts", "head_labels"):
        if name not in arrays or arrays[name].dtype.kind not in "iu":
            raise FormatError(f"Group {values['name']!r} of the report is damaged: {name} holds no whole numbers.")
    if values["head_labels"].ndim != 2 or min(values["head_labels"].shape) < 1 or values["head_labels"].min() < 0:
        raise FormatError(f"Group {values['name']!r} of the report is damaged: head_labels is no tree.")


_PER_HEAD = (
    "layer_names", "heads", "entropy_low", "entropy_high", "ranks", "rank_low", "rank_high", "bottom_counts",
    "top_counts", "coefficients", "diffusion",
)  # fmt: skip
