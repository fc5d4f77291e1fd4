"""The plain records a report is made of: heads, networks, stability, and where all of it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from oattn_hub.errors import FormatError


@dataclass(frozen=True)
class HeadRecord:
    """One head's answer: how much it processes, how sure we are, and where it lies among the others.

    ``rank`` 1 is the lowest mean entropy of the head's group, the first candidate for removal. Intervals are 95 %
    bootstrap intervals over batches; counts say in how many batches the head lies in the bottom or top 10 %.
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
    """The network entropy of one group of layers, one value a batch (appendix B.2, Table 2)."""

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


class _JsonRecord:
    """Reading and writing of a flat dataclass as a JSON object that refuses to guess."""

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON-able dict."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The record back from :meth:`to_json`; a missing field is a damaged file, an unknown one a newer one."""
        names = {item.name for item in fields(cls)}  # type: ignore[arg-type]
        if unknown := sorted(set(value) - names):
            raise FormatError(f"{cls.__name__} has unknown fields {unknown}; known are {sorted(names)}.")
        try:
            return cls(**value)
        except TypeError as error:
            raise FormatError(f"{cls.__name__} is incomplete: {error}.") from error


@dataclass(frozen=True)
class ModelInfo(_JsonRecord):
    """Which model was measured, and what ``load_model`` needs to load it again.

    ``revision`` is the Hub's commit or a fingerprint of the weights. ``source`` and ``options`` go to ``load_model``;
    ``source`` is None when a model object was measured.
    """

    id: str
    revision: str | None
    source: str | None
    library: str
    modality: str
    adapter: str
    architecture: str = ""
    n_parameters: int = 0
    license: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings(_JsonRecord):
    """Every parameter that changes a number in the report."""

    kind: str
    batches: int
    tokens: int
    seed: int
    questionnaire: Mapping[str, Any] = field(default_factory=dict)
    head_functions: int = 400
    network_functions: int = 100
    fraction: float = 0.1


@dataclass(frozen=True)
class Provenance(_JsonRecord):
    """What the numbers were made from, and with what.

    ``created`` and ``seconds`` (per stage) differ between two runs of one analysis; they are kept in a file of their
    own (``run.json``), so that equal analyses give equal bytes.
    """

    data: str
    data_fingerprint: str
    command: str
    versions: Mapping[str, str] = field(default_factory=dict)
    created: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
