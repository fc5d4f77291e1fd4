"""What was measured on a group of heads, in three records: their geometry, their Haar entropies, their ranking.

Plain arrays; H heads in axis order, B batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from oattn_hub.errors import InvalidInput
from oattn_hub.report.records import Controls
from oattn_hub.types import Array

if TYPE_CHECKING:
    from oattn_hub.geometry import PartitionTree


@dataclass(frozen=True, eq=False)
class HeadGeometry:
    """Where the heads lie among each other, by the affinity that the questionnaire found.

    Args:
        affinity: (H, H) affinity between heads, mean over batches; of very many heads, (L, L) between landmarks.
        distance_quantiles: (B, n) quantiles of the distances between heads, per batch (what ``compare`` compares).
        diffusion: (H, d) diffusion coordinates of the mean affinity; diffusion_eigenvalues: (d,).
        head_labels: (levels, H) head tree of the mean affinity, root first.
        landmarks: (H,) the row of ``affinity`` that stands for each head; None where every head has its own.
    """

    affinity: Array
    distance_quantiles: Array
    diffusion: Array
    diffusion_eigenvalues: Array
    head_labels: Array
    landmarks: Array | None = None

    def check(self, n_heads: int) -> None:
        """Refuse arrays that are not about so many heads."""
        check_lengths({"diffusion": self.diffusion}, n_heads)
        rows = self.affinity_rows
        if self.affinity.shape != (n := rows.max() + 1, n) or rows.shape != (n_heads,) or rows.min() < 0:
            raise InvalidInput(f"affinity has shape {self.affinity.shape}, but its {n_heads} heads need ({n}, {n}).")

    @property
    def affinity_rows(self) -> Array:
        """(H,) the row of ``affinity`` that stands for each head."""
        return np.arange(len(self.diffusion)) if self.landmarks is None else self.landmarks

    @cached_property
    def tree(self) -> PartitionTree:
        """The head tree of the mean affinity."""
        from oattn_hub.geometry import PartitionTree

        return PartitionTree(self.head_labels)

    @cached_property
    def folders(self) -> Array:
        """Each head's folder on the tree level whose number of folders is closest to sqrt(H)."""
        counts = self.head_labels.max(axis=1) + 1
        level = int(np.argmin(np.abs(counts - np.sqrt(self.head_labels.shape[1]))))
        return np.asarray(self.head_labels[level])


@dataclass(frozen=True, eq=False)
class HaarEntropies:
    """The sizes of the heads' Haar coefficients, and what they owe to the method's choices.

    Args:
        entropies: (B, H) head entropies, eq. 21.
        coefficients: (H, m) bi-Haar coefficients of the sample batch, largest support first (Fig. 4).
        supports: (m,) their supports, in entries of the attention matrix.
        network_entropies: (B,) and network_coefficients (B, m'): tri-Haar, largest support first (Fig. 6).
        details: (B, H) the entropies without the constant function, the head's mean.
        tree_spread: (H,) standard deviation of the sample batch's entropies over trees of slightly perturbed copies.
        controls: what the ranking owes to the method's choices; see ``Controls``.
        The last three are None in reports of older versions.
    """

    entropies: Array
    coefficients: Array
    supports: Array
    network_entropies: Array
    network_coefficients: Array
    details: Array | None = None
    tree_spread: Array | None = None
    controls: Controls | None = None

    def check(self, n_heads: int) -> None:
        """Refuse arrays that are not about so many heads."""
        check_lengths({"coefficients": self.coefficients}, n_heads)
        if self.entropies.shape[1:] != (n_heads,) or len(self.entropies) == 0:
            raise InvalidInput(f"entropies has shape {self.entropies.shape}, expected (batches, {n_heads}).")

    @cached_property
    def mean_entropies(self) -> Array:
        """(H,) head entropies, mean over the batches."""
        return np.asarray(self.entropies.mean(axis=0))


@dataclass(frozen=True, eq=False)
class Ranking:
    """The order of the heads by entropy, and how far the batches agree on it.

    Args:
        fraction: what part of the heads counts as bottom and as top in ``bottom_counts`` and ``top_counts``.
        jaccard, spearman: mean agreement over pairs of batches; NaN when there is only one batch.
        entropy_low, entropy_high, ranks, rank_low, rank_high, bottom_counts, top_counts: (H,) see ``HeadRecord``.
    """

    fraction: float
    jaccard: float
    spearman: float
    entropy_low: Array
    entropy_high: Array
    ranks: Array
    rank_low: Array
    rank_high: Array
    bottom_counts: Array
    top_counts: Array

    def check(self, n_heads: int) -> None:
        """Refuse arrays that are not about so many heads."""
        check_lengths({name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}, n_heads)


def check_lengths(arrays: Mapping[str, Sized], n_heads: int) -> None:
    """Refuse arrays that do not have one entry per head."""
    for name, array in arrays.items():
        if len(array) != n_heads:
            raise InvalidInput(f"{name} has {len(array)} entries, but {n_heads} heads have layers.")
