"""The contexts a report keeps for people to look at: attention from the store, tokens and pictures from the inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from oattn_hub.report.contexts import Sample, bytes_per_entry, contexts_kept, keep_sample
from oattn_hub.report.group import GroupResult

if TYPE_CHECKING:
    from oattn_hub.analysis.cache import Run
    from oattn_hub.analysis.measure import BatchMeasurement
    from oattn_hub.attention.store import AttentionStore


def with_samples(
    groups: Mapping[str, GroupResult],
    store: AttentionStore,
    measured: Mapping[str, Sequence[BatchMeasurement]],
    kind: str,
    run: Run | None = None,
) -> dict[str, GroupResult]:
    """The groups with the attention of their first contexts; two or three, as many as keep the page small."""
    n_contexts, per_entry = room(store, max(group.n_batches for group in groups.values()))

    def samples(name: str) -> tuple[Sample, ...]:
        places = list(zip(store.batches(name), measured[name], strict=True))[:n_contexts]
        kept = {batch: run.sample(name, batch) if run is not None else None for batch, _ in places}
        return tuple(kept[batch] or sample_of(store, name, batch, trees, kind, per_entry) for batch, trees in places)

    return {name: replace(group, samples=samples(name)) for name, group in groups.items()}


def room(store: AttentionStore, n_batches: int) -> tuple[int, float]:
    """How many contexts a report keeps, and how many bytes per entry."""
    shapes = [store.shape(store.batches(name)[0], name) for name in store.groups]
    n_contexts = contexts_kept(shapes, n_batches)
    return n_contexts, bytes_per_entry(shapes, n_contexts)


def sample_of(
    store: AttentionStore, group: str, batch: int, trees: BatchMeasurement, kind: str, per_entry: float
) -> Sample:
    """The attention of one group in one context, coded to be looked at."""
    X = store.tensor(batch, kind, group)
    return keep_sample(X, kind, batch, trees.query_labels, trees.key_labels, per_entry)
