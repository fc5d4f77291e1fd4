"""The contexts a report keeps for people to look at: attention from the store, tokens and pictures from the inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from oattn_hub.report.contexts import Sample, bytes_per_entry, contexts_kept, keep_sample
from oattn_hub.report.group import GroupResult

if TYPE_CHECKING:
    from oattn_hub.analysis.measure import BatchMeasurement
    from oattn_hub.attention.store import AttentionStore


def with_samples(
    groups: Mapping[str, GroupResult],
    store: AttentionStore,
    measured: Mapping[str, Sequence[BatchMeasurement]],
    kind: str,
) -> dict[str, GroupResult]:
    """The groups with the attention of their first contexts; two or three, as many as keep the page small."""
    shapes = [(group.n_queries, group.n_keys, group.n_heads) for group in groups.values()]
    n_contexts = contexts_kept(shapes, max(group.n_batches for group in groups.values()))
    per_entry = bytes_per_entry(shapes, n_contexts)

    def samples(name: str) -> tuple[Sample, ...]:
        places = list(zip(store.batches(name), measured[name], strict=True))[:n_contexts]
        return tuple(
            keep_sample(store.tensor(batch, kind, name), kind, batch, trees.query_labels, trees.key_labels, per_entry)
            for batch, trees in places
        )

    return {name: replace(group, samples=samples(name)) for name, group in groups.items()}
