"""A report from made-up numbers: 4 layers x 6 heads, 5 batches, with two heads planted lowest in every batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from oattn_hub.geometry.tree import PartitionTree
from oattn_hub.report import GroupResult, ModelInfo, Provenance, Report, Settings
from oattn_hub.report.samples import display_matrix, encode, value_range

GroupMaker = Callable[..., GroupResult]


def _make_group(
    name: str = "encoder",
    n_layers: int = 4,
    n_heads: int = 6,
    n_batches: int = 5,
    tokens: int = 20,
    first_layer: int = 0,
) -> GroupResult:
    random = np.random.default_rng(len(name) + n_layers + tokens)
    total = n_layers * n_heads
    layers, heads = np.divmod(np.arange(total), n_heads)
    entropies = 5 + np.sort(random.random(total))[None, ::-1] * 4 + 0.05 * random.random((n_batches, total))
    entropies[:, [3, 7]] = 1.0
    mean = entropies.mean(axis=0)
    ranks = 1.0 + np.argsort(np.argsort(mean, kind="stable"), kind="stable")
    lowest = np.argsort(entropies, axis=1, kind="stable")[:, :2]
    points = random.normal(size=(total, 3)) + layers[:, None]
    distances = np.linalg.norm(points[:, None] - points[None], axis=-1)
    X = random.dirichlet(np.full(tokens, 0.2), size=(total, tokens)).transpose(1, 2, 0)
    order = random.permutation(tokens)
    before, after = display_matrix(X, "probs"), display_matrix(X, "probs", order, order)
    low, high = value_range(before, after)
    return GroupResult(
        name=name, n_queries=tokens, n_keys=tokens, fraction=0.1, jaccard=0.9, spearman=0.95,
        layer_names=tuple(f"{name}.layer.{layer + first_layer}.attention" for layer in layers),
        layers=layers + first_layer, heads=heads, entropies=entropies,
        entropy_low=mean - 0.1, entropy_high=mean + 0.1, ranks=ranks, rank_low=ranks - 1, rank_high=ranks + 1,
        bottom_counts=np.bincount(lowest.ravel(), minlength=total), top_counts=np.zeros(total, dtype=np.int64),
        network_entropies=80 + random.random(n_batches),
        network_coefficients=random.normal(size=(n_batches, 30)).astype(np.float32),
        coefficients=random.normal(size=(total, 40)).astype(np.float32),
        supports=np.sort(random.integers(1, 400, 40))[::-1].copy(),
        affinity=np.exp(-distances / np.median(distances)).astype(np.float32),
        distance_quantiles=np.sort(random.random((n_batches, 11)), axis=1),
        diffusion=points - points.mean(axis=0), diffusion_eigenvalues=np.array([0.9, 0.5, 0.2]),
        head_labels=PartitionTree.dyadic(total).labels, query_labels=PartitionTree.dyadic(tokens).labels,
        key_labels=PartitionTree.dyadic(tokens).labels,
        samples=encode(before, low, high), organised=encode(after, low, high), sample_low=low, sample_high=high,
    )  # fmt: skip


def _make_report(*groups: GroupResult) -> Report:
    model = ModelInfo(
        "someone/tiny-model", "0" * 40, "someone/tiny-model", "transformers", "text", "bert", "BertModel", 12345, "mit"
    )
    settings = Settings(kind="probs", batches=5, tokens=20, seed=0, questionnaire={"n_iters": 3})
    provenance = Provenance(
        "made-up numbers", "f" * 64, "oattn analyze someone/tiny-model", {"numpy": np.__version__},
        created="2026-01-02T03:04:05+00:00", seconds={"capture": 1.5},
    )  # fmt: skip
    return Report(model, settings, provenance, {group.name: group for group in groups})


@pytest.fixture(scope="session")
def make_group() -> GroupMaker:
    return _make_group


@pytest.fixture(scope="session")
def make_report() -> Callable[..., Report]:
    return _make_report


@pytest.fixture(scope="session")
def report() -> Report:
    return _make_report(_make_group())


@pytest.fixture(scope="session")
def two_group_report() -> Report:
    return _make_report(_make_group(), _make_group("cross", 2, 6, tokens=12, first_layer=4))
