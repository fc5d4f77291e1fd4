"""The Haar coefficients of one head with the folders they belong to, so that a large one leads to its tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oattn_hub.errors import InvalidInput
from oattn_hub.report.figures import head_index
from oattn_hub.report.group import GroupResult
from oattn_hub.types import Array


@dataclass(frozen=True)
class FolderOfPositions:
    """The folder that a Haar function lives on: its level (0 is the root), its number there, and its positions."""

    level: int
    folder: int
    positions: tuple[int, ...]


@dataclass(frozen=True)
class Coefficient:
    """One bi-Haar coefficient: it compares parts of a query folder on parts of a key folder."""

    value: float
    support: int
    query: FolderOfPositions
    key: FolderOfPositions


def head_coefficients(group: GroupResult, layer: int, head: int) -> list[Coefficient]:
    """The coefficients whose sizes add up to the head's entropy on the first context, widest function first."""
    from oattn_hub.geometry import PartitionTree, expansion, haar_functions

    if not group.samples:
        raise InvalidInput("This report keeps no trees of queries and keys. Analyse again to get the folders.")
    sample, values = group.samples[0], group.haar.coefficients[head_index(group, layer, head)]
    trees = {"query": PartitionTree(sample.query_labels), "key": PartitionTree(sample.key_labels)}
    # which functions are the widest depends on the trees alone, so any numbers will do
    blank = np.zeros((group.n_queries, group.n_keys, 1))
    chosen = expansion(blank, trees, ("query", "key"), len(values))
    sides = [(haar_functions(trees[name]), trees[name].labels) for name in ("query", "key")]

    def folder(axis: int, number: int) -> FolderOfPositions:
        functions, labels = sides[axis]
        level, place = int(functions.levels[number]), int(functions.folders[number])
        return FolderOfPositions(level, place, _positions(labels, level, place))

    # where several functions tie for the last place, the expansion gives all of them
    functions = zip(values, chosen.supports[: len(values)], chosen.functions[: len(values)], strict=True)
    return [
        Coefficient(float(value), int(support), folder(0, int(query)), folder(1, int(key)))
        for value, support, (query, key) in functions
    ]


def _positions(labels: Array, level: int, folder: int) -> tuple[int, ...]:
    """The positions of a folder; all of them for the constant, whose level is -1."""
    inside = np.ones(labels.shape[1], dtype=bool) if level < 0 else labels[level] == folder
    return tuple(np.flatnonzero(inside).tolist())
