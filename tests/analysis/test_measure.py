"""From tensors to a group's numbers: every setting of the questionnaire reaches what it is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from oattn_hub.analysis.measure import join_batches, measure_batch
from oattn_hub.geometry import Questionnaire, diffusion, flexible_tree
from oattn_hub.records import Settings
from oattn_hub.report import GroupResult

Array = NDArray[Any]


class Head(NamedTuple):
    layer: int
    layer_name: str
    head: int


def tensors(count: int = 4, n: int = 14, heads: int = 10) -> list[Array]:
    rng = np.random.default_rng(0)
    scores = 3 * rng.random((count, n, n, heads)) * np.linspace(0.2, 2.0, heads)
    return [np.exp(X) / np.exp(X).sum(axis=1, keepdims=True) for X in scores]


def joined(batches: list[Array], questionnaire: Mapping[str, Any] | None = None) -> GroupResult:
    settings = Settings("probs", len(batches), 14, 0, Questionnaire(**(questionnaire or {})).get_params())
    heads = [Head(number // 5, f"layer.{number // 5}", number % 5) for number in range(batches[0].shape[2])]
    return join_batches("all", heads, batches[0], [measure_batch(X, settings) for X in batches], settings)


@pytest.mark.parametrize("tree", ["flexible", "binary"])
def test_row_normalisation_reaches_head_tree_and_diffusion_map(tree: str) -> None:
    batches = tensors()
    group = joined(batches, {"normalisation": "row", "tree": tree})
    affinity = np.mean(
        [Questionnaire(normalisation="row", tree=tree).fit(X).affinities_["head"] for X in batches], axis=0
    )
    np.testing.assert_allclose(group.diffusion, diffusion(affinity, 4, "row").coordinates()[:, 1:], atol=1e-5)
    assert not np.allclose(group.diffusion_eigenvalues, diffusion(affinity, 4, "density").values[1:])
    if tree == "flexible":
        assert group.tree == flexible_tree(group.affinity.astype(np.float64), normalisation="row")


def test_the_network_entropy_counts_what_ties_at_the_end() -> None:
    batches = tensors(2)
    group = joined(batches)
    shown = np.abs(group.network_coefficients, dtype=np.float64).sum(axis=1)
    assert group.network_coefficients.shape == (2, 100)
    np.testing.assert_allclose(group.network_entropies, shown, rtol=0.2)
