"""Query and key distances of a tensor with very many heads, of which only some, the landmarks, are in memory.

Every other head is counted to the landmark nearest to it. In the tree of heads, folders of several heads then have
their true means, made from the sums of these crowds; only single heads are sampled: a landmark stands for its crowd.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oattn_hub.geometry.checks import Floats, axis_index
from oattn_hub.geometry.emd import Folders, emd_by_folders, tree_of
from oattn_hub.geometry.tree import PartitionTree


@dataclass(frozen=True, eq=False)
class Crowd:
    """All heads of a tensor, added up by landmark."""

    sums: Floats
    """(query, key, landmark) sum of the heads that are nearest to each landmark, itself included; NaN is missing."""
    counts: NDArray[np.intp]
    """(landmarks,) how many these are."""


def crowd_emd(
    landmarks: Floats,
    has_gaps: bool,
    crowd: Crowd,
    trees: Mapping[str, PartitionTree],
    axis: str,
    *,
    alpha: float,
    beta: float,
    precision: str,
    device: str | None = None,
) -> NDArray[np.float64]:
    """``tree_emd`` along the query or key axis of a tensor of all heads, from that of its landmarks and its crowd."""
    position = axis_index(axis, 3)
    rows = Folders.of(tree_of(trees, 1 - position, landmarks.shape), alpha, beta)
    heads = tree_of(trees, 2, landmarks.shape)
    singles = Folders.of_points(crowd.counts * (1 / crowd.counts.sum()) ** beta * 2.0 ** (-alpha * heads.n_levels))
    folders = Folders.of(heads, alpha, beta, crowd.counts)
    # a mean over present entries is made from means, a plain one from sums
    means = crowd.sums / crowd.counts.astype(crowd.sums.dtype) if has_gaps else crowd.sums
    distances = emd_by_folders(landmarks, has_gaps, position, [rows, singles], precision, device)
    distances += emd_by_folders(means, has_gaps, position, [rows, folders], precision, device)
    return distances
