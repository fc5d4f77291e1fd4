"""A report from made-up numbers: 4 layers x 6 heads, 5 batches, with two heads planted lowest in every batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from oattn_hub.geometry.tree import PartitionTree
from oattn_hub.report import GroupResult, ModelInfo, Provenance, Report, Settings
from oattn_hub.report.contexts import Axis, Context, bytes_per_entry, keep_sample
from oattn_hub.report.evaluation import Curve, EvaluationSection, MetricInfo, ScoreResult
from oattn_hub.report.measured import HaarEntropies, HeadGeometry, Ranking

GroupMaker = Callable[..., GroupResult]


def _make_group(
    name: str = "encoder",
    n_layers: int = 4,
    n_heads: int = 6,
    n_batches: int = 5,
    tokens: int = 20,
    first_layer: int = 0,
    kept: bool = False,
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
    trees = PartitionTree.dyadic(tokens).labels[:, random.permutation(tokens)]
    per_entry = bytes_per_entry([X.shape], 2) if kept else 1.0  # kept: as an analysis would, else without loss
    samples = tuple(keep_sample(X, "probs", batch, trees, trees, per_entry) for batch in range(2))
    geometry = HeadGeometry(
        affinity=np.exp(-distances / np.median(distances)).astype(np.float32),
        distance_quantiles=np.sort(random.random((n_batches, 11)), axis=1),
        diffusion=points - points.mean(axis=0), diffusion_eigenvalues=np.array([0.9, 0.5, 0.2]),
        head_labels=PartitionTree.dyadic(total).labels,
    )  # fmt: skip
    haar = HaarEntropies(
        entropies=entropies,
        coefficients=random.normal(size=(total, 40)).astype(np.float32),
        supports=np.sort(random.integers(1, 400, 40))[::-1].copy(),
        network_entropies=80 + random.random(n_batches),
        network_coefficients=random.normal(size=(n_batches, 30)).astype(np.float32),
    )
    ranking = Ranking(
        fraction=0.1, jaccard=0.9, spearman=0.95, entropy_low=mean - 0.1, entropy_high=mean + 0.1,
        ranks=ranks, rank_low=ranks - 1, rank_high=ranks + 1,
        bottom_counts=np.bincount(lowest.ravel(), minlength=total), top_counts=np.zeros(total, dtype=np.int64),
    )  # fmt: skip
    return GroupResult(
        name=name, n_queries=tokens, n_keys=tokens,
        layer_names=tuple(f"{name}.layer.{layer + first_layer}.attention" for layer in layers),
        layers=layers + first_layer, heads=heads, geometry=geometry, haar=haar, ranking=ranking, samples=samples,
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


def _make_evaluation(report: Report) -> EvaluationSection:
    """Seven scores; by ablation 0.3 and 1.1 cost nothing, 3.4 and 3.5 much."""
    heads = tuple((record.layer, record.head) for record in report.heads)
    alone = {(0, 3): 0.0, (1, 1): 0.0001, (3, 4): 0.03, (3, 5): 0.05}
    values = tuple(alone.get(head, 0.001 + 0.0001 * place) for place, head in enumerate(heads))
    fractions = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)

    def score(name: str, title: str, slope: float) -> ScoreResult:
        mean = tuple(slope * fraction for fraction in fractions)
        divergence = Curve(mean, tuple(0.8 * value for value in mean), tuple(1.2 * value for value in mean))
        loss = Curve(
            *(tuple(2 + value for value in line) for line in (divergence.mean, divergence.low, divergence.high))
        )
        own = values if name == "ablation" else tuple(reversed(values))
        curves = {"divergence": divergence, "loss": loss}
        return ScoreResult(name, title, "", "one pass", 1.0, own, curves, slope / 3, slope / 4, slope / 2, 0.5)

    names = {
        "ablation": "single-head ablation", "gradient": "gradient importance", "displacement": "displacement",
        "output": "output energy", "weight": "weight magnitude", "random": "random", "haar": "Haar entropy (the paper)",
    }  # fmt: skip
    scores = tuple(score(name, title, 0.1 * (1 + place)) for place, (name, title) in enumerate(names.items()))
    metrics = (
        MetricInfo("divergence", "KL divergence from the unpruned model", False, False, 0.0),
        MetricInfo("loss", "loss per token (nats)", False, True, 2.0),
    )
    return EvaluationSection(metrics, fractions, heads, scores, 5, 16, "w" * 8, "some text", "other text", "c", "e")


@pytest.fixture(scope="session")
def measured_report(report: Report) -> Report:
    """The report with an evaluation and with two contexts of words."""
    axes = [Axis("input_ids", "text", 20, tuple(f"{word}{i}" for i in range(20))) for word in ("word", "other")]
    contexts = tuple(Context(batch, (axis,)) for batch, axis in enumerate(axes))
    return replace(report.with_evaluation(_make_evaluation(report)), contexts=contexts)


@pytest.fixture(scope="session")
def two_group_report() -> Report:
    return _make_report(_make_group(), _make_group("cross", 2, 6, tokens=12, first_layer=4))
