"""What a ranking of heads owes to the choices of the method: the same ranking made otherwise, on the sample batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from oattn_hub.analysis.landmarks import landmarks
from oattn_hub.attention.reading import copied, some_heads
from oattn_hub.geometry import PartitionTree, Questionnaire, head_entropies
from oattn_hub.geometry.agreement import average_ranks
from oattn_hub.geometry.checks import AXES
from oattn_hub.geometry.entropy import expansion_by_heads
from oattn_hub.records import Settings
from oattn_hub.report.records import Controls
from oattn_hub.types import Array

if TYPE_CHECKING:
    from oattn_hub.analysis.measure import BatchMeasurement

PERTURBATION = 1e-3  # far above rounding, far below what distinguishes two inputs
COPIES = 2  # each costs as much as organising a batch
FEWER_FUNCTIONS = 100


def control(
    sample: Array, batches: Sequence[BatchMeasurement], settings: Settings, device: str | None = None
) -> tuple[Array, Controls]:
    """``tree_spread`` and ``controls`` of a group; ``sample`` is the tensor of the first batch."""
    first = batches[0]
    trees = {"query": PartitionTree(first.query_labels), "key": PartitionTree(first.key_labels)}
    rng = np.random.default_rng(settings.seed)
    shuffled = {axis: tree.permuted(rng.permutation(tree.n)) for axis, tree in trees.items()}
    perturbed = perturbed_entropies(sample, settings, rng, device=device)
    shannon = shannon_entropies(sample, settings.kind)
    controls = Controls(
        shannon=None if shannon is None else rank_correlation(first.entropies, shannon),
        shuffled=rank_correlation(first.entropies, _entropies(sample, shuffled, settings.head_functions)),
        fewer=rank_correlation(first.entropies, _entropies(sample, trees, FEWER_FUNCTIONS)),
        fewer_functions=FEWER_FUNCTIONS,
        all_functions=rank_correlation(first.entropies, _entropies(sample, trees, None)),
        perturbed=_mean([rank_correlation(first.entropies, copy) for copy in perturbed]),
        perturbation=PERTURBATION,
        convergence=dict(zip(AXES, np.mean([batch.convergence for batch in batches], axis=0).tolist(), strict=True)),
    )
    return np.asarray(np.std([first.entropies, *perturbed], axis=0, ddof=1)), controls


def perturbed_entropies(
    X: Array, settings: Settings, rng: np.random.Generator, copies: int = COPIES, device: str | None = None
) -> list[Array]:
    """Entropies of a tensor on the trees of perturbed copies: what differs is the trees' chance alone."""
    marks = landmarks(X.shape[2], settings.landmarks)
    found = []
    for _ in range(copies):
        organised = Questionnaire(**settings.questionnaire)
        organised.fit(_perturbed(X, marks, rng), history=False, device=device)
        found.append(_entropies(X, organised.trees_, settings.head_functions))
    return found


def _perturbed(X: Array, heads: Array, rng: np.random.Generator) -> Array:
    """A copy of some heads in memory, with noise on every entry, made query by query."""
    copy = copied(X, heads)
    for query in copy:
        query *= 1 + np.float32(PERTURBATION) * rng.standard_normal(query.shape, dtype=np.float32)
    return copy


def _entropies(X: Array, trees: Mapping[str, PartitionTree], m: int | None) -> Array:
    """``head_entropies`` of a tensor that may be larger than the memory."""
    if m is None:
        return np.concatenate([head_entropies(heads, trees, None) for heads in some_heads(X)])
    return expansion_by_heads(some_heads(X), trees, ("query", "key"), m).entropy()


def shannon_entropies(X: Array, kind: str) -> Array | None:
    """(H,) mean Shannon entropy of the attention rows; None for scores, whose mask is not known."""
    if kind == "scores":
        return None
    return np.concatenate([_shannon(heads, kind) for heads in some_heads(X)])


def _shannon(X: Array, kind: str) -> Array:
    rows = np.where(np.isnan(X), 0.0, X) if kind == "probs" else _softmax(X)
    return np.asarray(-np.sum(rows * np.log(np.maximum(rows, 1e-30)), axis=1, dtype=np.float64).mean(axis=0))


def rank_correlation(a: Array, b: Array) -> float | None:
    """Spearman's; None where one side is constant or there are fewer than three heads."""
    if len(a) < 3 or np.ptp(a) == 0.0 or np.ptp(b) == 0.0:
        return None
    return float(np.corrcoef(average_ranks(a), average_ranks(b))[0, 1])


def _softmax(logits: Array) -> Array:
    """Over the keys; missing entries get no weight."""
    known = np.where(np.isnan(logits), -np.inf, logits)
    highest = known.max(axis=1, keepdims=True)
    weights = np.exp(known - np.where(np.isfinite(highest), highest, 0.0))
    return np.asarray(weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-30))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
