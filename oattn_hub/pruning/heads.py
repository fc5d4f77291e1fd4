"""Sets of heads: which go together, which are lowest, and how a model's heads are arranged."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from oattn_hub.files import fingerprint
from oattn_hub.records import Head


def structure_of(n_heads_by_layer: Mapping[int, int]) -> str:
    """Fingerprint of the number of heads of every layer; the same from a report as from the model."""
    return fingerprint([[layer, n_heads_by_layer[layer]] for layer in sorted(n_heads_by_layer)])


def lowest(
    values: Mapping[Head, float],
    count: int,
    min_heads_per_layer: int = 0,
    shared: Sequence[Collection[int]] = (),
) -> list[Head]:
    """The ``count`` heads of lowest score, leaving at least so many in every layer.

    Args:
        values: score of every head of the model.
        count: how many to remove.
        min_heads_per_layer: a floor; 0 lets whole layers of heads go.
        shared: sets of layers that share their weights: a head goes in all of them, by its mean score, or in none.

    >>> lowest({(0, 0): 1.0, (0, 1): 2.0, (1, 0): 3.0, (1, 1): 4.0}, 2, min_heads_per_layer=1)
    [(0, 0), (1, 0)]
    """
    left: dict[int, int] = {}
    for layer, _ in values:
        left[layer] = left.get(layer, 0) + 1
    chosen: list[Head] = []
    together = bundles(values, shared)
    for bundle in sorted(together, key=lambda bundle: sum(values[head] for head in bundle) / len(bundle)):
        if len(chosen) + len(bundle) > count:
            if len(bundle) == 1:
                break
            continue
        if all(left[layer] > min_heads_per_layer for layer, _ in bundle):
            chosen += bundle
            for layer, _ in bundle:
                left[layer] -= 1
    return sorted(chosen)


def bundles(heads: Iterable[Head], shared: Sequence[Collection[int]] = ()) -> list[list[Head]]:
    """Heads that can only go together, by position: those of layers that share their weights, others alone."""
    partners = {layer: sorted(layers) for layers in shared for layer in layers}
    found = {tuple((other, head) for other in partners.get(layer, [layer])) for layer, head in heads}
    return [list(bundle) for bundle in sorted(found)]
