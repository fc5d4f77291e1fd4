"""The plain records a report is made of: heads, networks, stability."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from oattn_hub.records import JsonRecord


@dataclass(frozen=True)
class HeadRecord:
    """One head's answer: how much it processes, how sure we are, and where it lies among the others.

    ``rank`` 1 is the lowest mean entropy of the head's group, the first candidate for removal. Intervals are 95 %
    intervals over batches (Student's t); counts say in how many batches the head lies in the bottom or top 10 %.
    """

    group: str
    layer: int
    layer_name: str
    head: int
    entropy: float
    entropy_low: float
    entropy_high: float
    rank: float
    rank_low: float
    rank_high: float
    bottom_count: int
    top_count: int
    folder: int


@dataclass(frozen=True)
class NetworkRecord:
    """The network entropy of one group of layers, one value per batch (appendix B.2, Table 2)."""

    group: str
    n_layers: int
    n_heads: int
    n_queries: int
    n_keys: int
    entropies: tuple[float, ...]

    @property
    def entropy(self) -> float:
        """Mean over the batches."""
        return sum(self.entropies) / len(self.entropies)


@dataclass(frozen=True)
class StabilityRecord:
    """Do the same heads come out lowest and highest in every batch? (Table 1)

    ``jaccard`` and ``spearman`` are means over pairs of batches, ``None`` when there is only one batch.
    """

    group: str
    n_batches: int
    fraction: float
    jaccard: float | None
    spearman: float | None
    always_bottom: tuple[tuple[int, int], ...]
    always_top: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Controls(JsonRecord):
    """What the ranking of a group's heads owes to the choices of the method, measured on the sample batch.

    Rank correlations (Spearman) of the head entropies with what one gets otherwise; None where there is none.

    Attributes:
        shannon: With the mean Shannon entropy of the attention rows; None for scores before the mask.
        shuffled: With entropies on the same trees after their leaves were shuffled.
        fewer, fewer_functions: With fewer Haar functions, and how many those are.
        all_functions: With all Haar functions.
        perturbed: With entropies on trees of copies that were perturbed by ``perturbation``, mean over the copies.
        perturbation: Relative size of that noise.
        convergence: Axis to the last change of its tree, mean absolute difference of the tree metrics (0 to 1), mean
            over the batches.
    """

    shannon: float | None
    shuffled: float | None
    fewer: float | None
    fewer_functions: int
    all_functions: float | None
    perturbed: float | None
    perturbation: float
    convergence: Mapping[str, float]
