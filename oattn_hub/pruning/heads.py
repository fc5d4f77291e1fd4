"""Sets of heads: which go together, which are lowest, and how a model's heads are arranged."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from oattn_hub.errors import InvalidInput
from oattn_hub.files import fingerprint
from oattn_hub.records import Head


def structure_of(n_heads_by_layer: Mapping[int, int]) -> str:
    """Fingerprint of the number of heads of every layer; the same from a report as from the model."""
    return fingerprint([[layer, n_heads_by_layer[layer]] for layer in sorted(n_heads_by_layer)])


def check_known(heads: Iterable[Head], known: Iterable[Head]) -> None:
    """Refuse heads that a model does not have.

    >>> check_known([(0, 1)], [(0, 0), (0, 1)])
    """
    by_layer: dict[int, list[int]] = {}
    for layer, head in known:
        by_layer.setdefault(layer, []).append(head)
    for layer, head in heads:
        if layer not in by_layer:
            raise InvalidInput(f"There is no head {layer}.{head}: the layers are {_from_to(by_layer)}.")
        if head not in by_layer[layer]:
            raise InvalidInput(
                f"There is no head {layer}.{head}: layer {layer} has the heads {_from_to(by_layer[layer])}."
            )


def check_apart(going: Iterable[Head], staying: Collection[Head]) -> None:
    """Refuse heads that are named both to go and to stay."""
    if both := sorted(set(going) & set(staying)):
        raise InvalidInput(f"Head {both[0][0]}.{both[0][1]} is named both to go and to stay; name it once.")


def _from_to(numbers: Iterable[int]) -> str:
    found = sorted(numbers)
    whole = found == list(range(found[0], found[-1] + 1)) and len(found) > 2
    return f"{found[0]} to {found[-1]}" if whole else ", ".join(map(str, found))


def passes_of_modules(layer_names: Iterable[tuple[int, str]]) -> list[list[int]]:
    """Layers that are passes through one module, as far as names show: they differ only in the pass.

    >>> passes_of_modules([(0, "attention#0"), (1, "attention#1"), (2, "other")])
    [[0, 1]]
    """
    modules: dict[str, set[int]] = {}
    for layer, name in layer_names:
        modules.setdefault(name.split("#")[0], set()).add(layer)
    return [sorted(layers) for layers in modules.values() if len(layers) > 1]


def check_whole(heads: Iterable[Head], shared: Sequence[Collection[int]]) -> None:
    """Refuse heads that are to go in only some of the layers that share their weights.

    >>> check_whole([(0, 3), (1, 3)], [[0, 1]])
    """
    named = set(heads)
    for bundle in bundles(named, shared):
        if missing := [head for head in bundle if head not in named]:
            raise InvalidInput(
                f"Layers {_from_to(layer for layer, _ in bundle)} share their weights, so head {bundle[0][1]} goes in "
                f"all of them or in none: name {_named(missing)} too, or leave {_named(named & set(bundle))} out."
            )


def _named(heads: Iterable[Head]) -> str:
    return ",".join(f"{layer}.{head}" for layer, head in sorted(heads))


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
