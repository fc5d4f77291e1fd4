"""From attention tensors to a group's numbers: each batch organised and measured on its own, then joined.

Plain arrays in, plain arrays out; a batch's measurement can be kept in a file, which is what makes a run resumable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from threadpoolctl import threadpool_limits

from oattn_hub.analysis.controls import control
from oattn_hub.analysis.landmarks import affinity_to_landmarks, crowd_of, extended, landmarks, nearest, tree_of_all
from oattn_hub.attention.reading import copied, in_memory, some_heads
from oattn_hub.attention.store import AttentionStore
from oattn_hub.errors import CaptureError, FormatError
from oattn_hub.files import read_tensors, write_tensors
from oattn_hub.geometry import PartitionTree, Questionnaire, binary_tree, diffusion, flexible_tree, stability
from oattn_hub.geometry.checks import AXES
from oattn_hub.geometry.entropy import expansion_by_heads
from oattn_hub.records import Settings
from oattn_hub.report.group import GroupResult
from oattn_hub.report.measured import HaarEntropies, HeadGeometry, Ranking
from oattn_hub.types import Array

_QUANTILES = np.linspace(0.0, 1.0, 101)
_DIMENSIONS = 3


class Head(Protocol):
    """What a store's ``heads()`` gives for each place on the head axis."""

    @property
    def layer(self) -> int: ...
    @property
    def layer_name(self) -> str: ...
    @property
    def head(self) -> int: ...


@dataclass(frozen=True, eq=False)
class BatchMeasurement:
    """One batch of one group, organised and measured.

    Args:
        entropies: (H,) head entropies, details (H,) without the constant function; coefficients (H, m), supports (m,):
            what they are sums of.
        convergence: (3,) last change of the query, key and head tree.
        network_coefficients: (m',) tri-Haar coefficients, largest support first; network_entropy: (1,).
        affinity: (H, L) between the heads and the landmarks, which are all heads unless there are very many.
        distance_quantiles: (101,) quantiles of the distances between heads, in units of their median.
        query_labels, key_labels: trees of the batch.
    """

    entropies: Array
    details: Array
    convergence: Array
    coefficients: Array
    supports: Array
    network_coefficients: Array
    network_entropy: Array
    affinity: Array
    distance_quantiles: Array
    query_labels: Array
    key_labels: Array

    def save(self, path: Path) -> None:
        """Write the measurement, whole or not at all."""
        write_tensors(path, {item.name: getattr(self, item.name) for item in fields(self)})

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a measurement back, bit for bit."""
        tensors = read_tensors(path, sealed=True)
        if set(tensors) != {item.name for item in fields(cls)}:
            raise FormatError(f"{path} is not a measurement of this version. Delete it and run again.")
        return cls(**tensors)


def check_finite(store: AttentionStore, batch: int, kind: str, group: str) -> None:
    """Refuse attention that is not a number, and name the head it comes from; of logits, masked ones are gaps."""
    enough = np.any if kind == "logits" else np.all
    finite = (np.isfinite(heads) for heads in some_heads(store.tensor(batch, kind, group)))
    sound = np.concatenate([enough(entries, axis=(0, 1)) for entries in finite])
    if not sound.all():
        head = store.heads(group)[int(sound.argmin())]
        raise CaptureError(
            f"The {kind} of head {head.head} in layer {head.layer} ({head.layer_name}) are NaN or infinite in batch "
            f"{batch}: the model overflows, or a row of its mask is empty. Try float32, or inputs without padding."
        )


def measure_batch(X: Array, settings: Settings, device: str | None = None) -> BatchMeasurement:
    """Organise one (query, key, head) tensor (Algorithm 1) and expand it in the Haar bases of its trees.

    ``device`` is one of torch's that compares the slices; None: this processor.
    """
    # Expansions are too small for BLAS threads, which wait for each other on a busy machine: 7 times the CPU time.
    with threadpool_limits(1, user_api="blas"):
        return _measure(X, settings, device)


def _measure(X: Array, settings: Settings, device: str | None) -> BatchMeasurement:
    marks = landmarks(X.shape[2], settings.landmarks)
    everything = len(marks) == X.shape[2]
    organised = Questionnaire(**settings.questionnaire)
    if everything:
        X = in_memory(X)
        organised.fit(X, history=False, device=device)
    else:
        organised.fit(copied(X, marks), history=False, crowd=crowd_of(X, marks), device=device)
    trees = dict(organised.trees_)
    heads = expansion_by_heads(some_heads(X), trees, ("query", "key"), settings.head_functions)
    # times their weights, so that their sizes add up to the entropy
    coefficients = (heads.coefficients.T * heads.weights).astype(np.float32)
    affinity = affinity_to_landmarks(coefficients, heads.supports, marks, organised.affinities_["head"])
    trees["head"] = tree_of_all(trees["head"], nearest(affinity, marks))
    network = expansion_by_heads(some_heads(X), trees, AXES, settings.network_functions)
    return BatchMeasurement(
        entropies=heads.entropy(),
        # the constant is the first function: none has a larger support, and its index is the smallest
        details=heads.entropy() - heads.weights[0] * np.abs(heads.coefficients[0]),
        convergence=np.array([organised.convergence_[axis][-1] for axis in AXES]),
        coefficients=coefficients,
        supports=heads.supports,
        # as many as were asked for: those that tie with the last are in the entropy only
        network_coefficients=network.coefficients[: settings.network_functions].astype(np.float32),
        network_entropy=np.atleast_1d(network.entropy()),
        affinity=affinity.astype(np.float32),
        distance_quantiles=_distance_quantiles(organised.history_[-1].distances["head"]),
        query_labels=trees["query"].labels,
        key_labels=trees["key"].labels,
    )


def join_batches(
    name: str,
    heads: Sequence[Head],
    sample: Array,
    batches: Sequence[BatchMeasurement],
    settings: Settings,
    device: str | None = None,
) -> GroupResult:
    """A group's result from its measured batches; ``sample`` is the first batch's tensor, kept for display."""
    entropies = np.stack([batch.entropies for batch in batches])
    tree_spread, controls = control(sample, batches, settings, device)
    return GroupResult(
        name=name,
        n_queries=sample.shape[0],
        n_keys=sample.shape[1],
        layer_names=tuple(record.layer_name for record in heads),
        layers=np.array([record.layer for record in heads]),
        heads=np.array([record.head for record in heads]),
        geometry=_geometry(batches, settings),
        haar=HaarEntropies(
            entropies=entropies,
            coefficients=batches[0].coefficients,
            supports=batches[0].supports,
            network_entropies=np.concatenate([batch.network_entropy for batch in batches]),
            network_coefficients=np.stack([batch.network_coefficients for batch in batches]),
            details=np.stack([batch.details for batch in batches]),
            tree_spread=tree_spread,
            controls=controls,
        ),
        ranking=_ranking(entropies, settings),
    )


def _geometry(batches: Sequence[BatchMeasurement], settings: Settings) -> HeadGeometry:
    """The mean affinity, with the tree and the diffusion map of its own."""
    affinity = np.zeros(batches[0].affinity.shape)
    for batch in batches:
        affinity += batch.affinity
    affinity /= len(batches)
    marks = landmarks(len(affinity), settings.landmarks)
    closest = nearest(affinity, marks)
    coordinates, eigenvalues = _diffusion(affinity, marks, settings.questionnaire)
    return HeadGeometry(
        affinity=affinity[marks].astype(np.float32),
        distance_quantiles=np.stack([batch.distance_quantiles for batch in batches]),
        diffusion=coordinates,
        diffusion_eigenvalues=eigenvalues,
        head_labels=tree_of_all(_head_tree(affinity[marks], settings.questionnaire), closest).labels,
        landmarks=None if len(marks) == len(affinity) else closest,
    )


def _ranking(entropies: Array, settings: Settings) -> Ranking:
    """The heads by entropy; a report counts ranks from 1."""
    agreement = stability(entropies, fraction=settings.fraction, seed=settings.seed)
    return Ranking(
        fraction=settings.fraction,
        jaccard=agreement.jaccard,
        spearman=agreement.spearman,
        entropy_low=np.maximum(agreement.mean_low, 0.0),  # a sum of sizes is never below 0, where Student's t may be
        entropy_high=agreement.mean_high,
        ranks=1 + agreement.rank,
        rank_low=1 + agreement.rank_low,
        rank_high=1 + agreement.rank_high,
        bottom_counts=agreement.bottom_counts,
        top_counts=agreement.top_counts,
    )


def _distance_quantiles(distances: Array) -> Array:
    """Quantiles of the distances between different heads in units of their median; zeros for a single head."""
    pairs = distances[np.tri(len(distances), k=-1, dtype=bool).T]
    if pairs.size == 0:
        return np.zeros(len(_QUANTILES))
    median = float(np.median(pairs))
    return np.asarray(np.quantile(pairs / (median or 1.0), _QUANTILES))


def _diffusion(affinity: Array, marks: Array, questionnaire: Mapping[str, Any]) -> tuple[Array, Array]:
    """(H, 3) leading non-trivial diffusion coordinates, zero where a small group has fewer, and their eigenvalues."""
    geometry = diffusion(affinity[marks], _DIMENSIONS + 1, questionnaire["normalisation"])
    found = extended(geometry, affinity, marks, questionnaire["normalisation"])[:, 1:]
    missing = _DIMENSIONS - found.shape[1]
    return np.pad(found, ((0, 0), (0, missing))), np.pad(geometry.values[1:], (0, missing))


def _head_tree(affinity: Array, questionnaire: Mapping[str, Any]) -> PartitionTree:
    """The tree of the mean affinity, grown as the questionnaire grows its own."""
    if questionnaire["tree"] == "binary":
        return binary_tree(affinity, normalisation=questionnaire["normalisation"])
    names = ("constant", "median", "n_eigenvectors", "normalisation")
    return flexible_tree(affinity, **{name: questionnaire[name] for name in names})
