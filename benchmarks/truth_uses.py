"""What is the organised geometry good for? Four uses under one protocol, each beside controls without a tree.

    python benchmarks/truth_uses.py minilm vit smollm --data DIR [--pairs 150] [--merges 60] [--inputs 12]
    python benchmarks/truth_uses.py whisper --model FOLDER --data SOUNDS --inputs 3
    python benchmarks/truth_uses.py models --data DIR --domain-inputs 8

DIR holds ``wikitext-2/valid.txt``, ``tinyshakespeare.txt``, ``cifar10-test.npz`` and ``cifar10-train.npz``. Of Whisper
the 24 heads of the cross attention count, and there is one domain only. Geometry comes from one half of
the data, costs (divergence from the whole model) from the other.

- interaction: cost of losing two heads minus both single costs, predicted by how alike the two heads are;
- few ablations: measure a sixth of the heads, chosen far apart, and predict the cost of the others from near ones;
- merging: cost of giving two heads of a layer the mean of their attention, predicted by their distance;
- domains: which of two texts (for the ViT: animals or vehicles) an input is from, by one number per head;
- models: which of MiniLM, SmolLM2 and the ViT an input was read by, from the distribution of distances between its
  heads, as `oattn compare` measures it;
- stages: for the ViT, whether an image was seen before or after 40 more steps of training.

Every number is a rank correlation (or an accuracy) with a 95 % bootstrap interval of "organised minus this one"; the
tree earns its place where that interval is above zero for every control. Prints Markdown.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.overrides import TorchFunctionMode
from truth import PACKAGES, package_folder

from oattn_hub.analysis.controls import rank_correlation, shannon_entropies
from oattn_hub.attention import capture_inputs
from oattn_hub.geometry import PartitionTree, Questionnaire, cosine_affinity, flexible_tree, head_entropies, tree_emd
from oattn_hub.inputs import CalibrationInputs, calibration_inputs
from oattn_hub.models.load import LoadedModel, load_model
from oattn_hub.pruning.evaluation import Evaluator
from oattn_hub.pruning.outputs import displacements, weighted_gram
from oattn_hub.pruning.sites import all_heads, head_sites
from oattn_hub.pruning.tasks import find_task

Array = NDArray[Any]
VIT = Path(__file__).parents[1] / "examples/paper/vit_cifar10"
ORGANISED = ("attention, organised tree", "outputs, organised tree")
ANIMALS = (2, 3, 4, 5, 6, 7)  # classes of CIFAR-10; the others are vehicles
_DRAWS = 2000


# Data -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """A model, the inputs its geometry comes from, the inputs its costs are measured on, and two domains."""

    name: str
    loaded: LoadedModel
    seen: CalibrationInputs
    held_out: CalibrationInputs
    domains: tuple[CalibrationInputs, ...]
    group: str | None = None


def subject(name: str, options: argparse.Namespace) -> Subject:
    """Load a model and its data."""
    if name == "vit":
        return _vit(options)
    if name == "whisper":
        loaded = load_model(options.model)
        parts = [
            calibration_inputs(loaded, options.data, count, part=part)
            for count, part in ((options.geometry, "calibration"), (options.inputs, "evaluation"))
        ]
        return Subject(name, loaded, parts[0], parts[1], (), "cross")
    loaded = load_model(package_folder(name))
    text, other = options.data / "wikitext-2/valid.txt", options.data / "tinyshakespeare.txt"
    seen = calibration_inputs(loaded, text, options.geometry, options.tokens, 0, "calibration")
    held_out = calibration_inputs(loaded, text, options.inputs, options.tokens, 0, "evaluation")
    domains = [calibration_inputs(loaded, file, options.domain_inputs, options.short, 1) for file in (text, other)]
    return Subject(name, loaded, seen, held_out, (domains[0], domains[1]))


def _vit(options: argparse.Namespace) -> Subject:
    loaded = load_model(VIT)
    with np.load(options.data / "cifar10-test.npz") as file:
        images, labels = file["images"], file["labels"]
    order = np.random.default_rng(0).permutation(len(images))
    kinds = np.isin(labels[order], ANIMALS)

    def inputs(places: Array) -> CalibrationInputs:
        return calibration_inputs(loaded, [Image.fromarray(images[place]) for place in places], len(places))

    first, second = options.geometry, options.geometry + 3 * options.inputs
    rest, rest_kinds = order[second:], kinds[second:]
    domains = [inputs(rest[rest_kinds == kind][: options.domain_inputs]) for kind in (True, False)]
    return Subject("vit", loaded, inputs(order[:first]), inputs(order[first:second]), (domains[0], domains[1]))


def attention(loaded: LoadedModel, inputs: CalibrationInputs, group: str | None = None) -> list[Array]:
    """(query, key, head) probabilities of every input; frames of sound ten by ten."""
    with tempfile.TemporaryDirectory(prefix="oattn-") as folder:
        store = capture_inputs(loaded, inputs, folder, ("probs",))
        found = [np.array(store.tensor(batch, "probs", group), dtype=np.float32) for batch in range(store.n_batches)]
    return found if group is None else [X.reshape(len(X), -1, 10, X.shape[2]).sum(axis=2) for X in found]


def trained_on(options: argparse.Namespace, steps: int = 40) -> LoadedModel:
    """The ViT after some more steps of training."""
    loaded = load_model(VIT)
    model: Any = loaded.model
    with np.load(options.data / "cifar10-train.npz") as file:
        images, labels = file["images"], torch.from_numpy(file["labels"]).long()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-4)
    for rows in torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).split(32)[:steps]:
        pixels = loaded.processor(images=[Image.fromarray(images[row]) for row in rows], return_tensors="pt")
        optimiser.zero_grad()
        model(**pixels, labels=labels[rows]).loss.backward()
        optimiser.step()
    model.zero_grad()
    return loaded


# How alike two heads are ----------------------------------------------------------------------------------------------


def attention_distances(X: Array, rng: np.random.Generator) -> dict[str, Array]:
    """(H, H) distances between the heads of one input, the organised one first."""
    organised = Questionnaire().fit(X)
    trees = {axis: organised.trees_[axis] for axis in ("query", "key")}
    shuffled = {axis: tree.permuted(rng.permutation(tree.n)) for axis, tree in trees.items()}
    flat = X.reshape(-1, X.shape[2]).T.astype(np.float64)
    unit = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    shannon = shannon_entropies(X, "probs")
    marginal = X.mean(axis=0, dtype=np.float64).T
    assert shannon is not None
    return {
        ORGANISED[0]: organised.history_[-1].distances["head"],
        "attention, shuffled leaves": tree_emd(X, shuffled, "head"),
        "attention, plain L1": _l1(flat),
        "attention, plain Gram": 1 - unit @ unit.T,
        "Shannon entropy": np.abs(shannon[:, None] - shannon[None]),
        "attention, token mean": _l1(marginal),
    }


def output_distances(fields: Array, rng: np.random.Generator) -> dict[str, Array]:
    """(H, H) one minus cosine of what the heads of one input write, (head, query, width)."""
    means = fields.mean(axis=1)
    flat = fields.reshape(len(fields), -1)
    return {
        ORGANISED[1]: _from_gram(weighted_gram(fields)),
        "outputs, shuffled leaves": _from_gram(_shuffled_gram(fields, rng)),
        "outputs, plain Gram": _from_gram(flat @ flat.T),
        "outputs, token mean": _from_gram(means @ means.T),
    }


def _shuffled_gram(fields: Array, rng: np.random.Generator) -> Array:
    """The weighted Gram matrix on the same tree with its leaves shuffled."""
    from oattn_hub.geometry import haar_functions, haar_transform

    n_queries = fields.shape[1]
    by_query = np.moveaxis(fields, 1, 0).reshape(n_queries, -1)
    tree = flexible_tree(cosine_affinity(by_query, axis=0)).permuted(rng.permutation(n_queries))
    scaled = haar_transform(by_query, tree) * np.sqrt(haar_functions(tree).supports / n_queries)[:, None]
    rows = np.moveaxis(scaled.reshape(n_queries, len(fields), -1), 1, 0).reshape(len(fields), -1)
    return np.asarray(rows @ rows.T)


def _from_gram(gram: Array) -> Array:
    sizes = np.sqrt(np.maximum(np.diag(gram), 1e-30))
    return np.asarray(1 - gram / np.outer(sizes, sizes))


def _l1(rows: Array) -> Array:
    return np.array([np.abs(rows - row).sum(axis=1) for row in rows])


def geometry(subject: Subject, tensors: Sequence[Array], sites: Sequence[Any]) -> dict[str, Array]:
    """Distances of every kind, the mean over the inputs."""
    rng = np.random.default_rng(0)
    total: dict[str, Array] = {}
    for X, batch in zip(tensors, subject.seen, strict=True):
        fields = np.concatenate([written for _, written in displacements(subject.loaded, sites, batch)])
        for name, found in {**attention_distances(X, rng), **output_distances(fields, rng)}.items():
            total[name] = total.get(name, 0.0) + found / len(tensors)
    layers = np.repeat(np.arange(len(sites)), [site.n_heads for site in sites])
    total["layer number"] = np.abs(layers[:, None] - layers[None]).astype(np.float64)
    return total


# The uses -------------------------------------------------------------------------------------------------------------


def sampled_pairs(layers: Array, count: int, same: bool | None, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Pairs of heads: of one layer, of two, or half of each."""
    if same is None:
        return [*sampled_pairs(layers, count // 2, True, rng), *sampled_pairs(layers, count // 2, False, rng)]
    pairs = np.array([(a, b) for a in range(len(layers)) for b in range(a) if (layers[a] == layers[b]) == same])
    chosen = rng.permutation(len(pairs))[:count]
    return [(int(a), int(b)) for a, b in pairs[chosen]]


class _Merged(TorchFunctionMode):
    """Two heads of one module get the mean of their attention; needs the model's eager attention."""

    def __init__(self, pair: tuple[int, int]) -> None:
        super().__init__()
        self.pair, self.inside, self.merges = list(pair), False, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.inside and getattr(func, "__name__", "") in ("softmax", "_softmax") and result.ndim == 4:
            result = result.clone()
            result[:, self.pair] = result[:, self.pair].mean(dim=1, keepdim=True)
            self.merges += 1
        return result


@contextmanager
def merged(module: torch.nn.Module, pair: tuple[int, int]) -> Iterator[_Merged]:
    """Run a model with the attention of two heads of ``module`` merged."""
    mode = _Merged(pair)
    handles = [
        module.register_forward_pre_hook(lambda *_: setattr(mode, "inside", True)),
        module.register_forward_hook(lambda *_: setattr(mode, "inside", False)),
    ]
    try:
        with mode:
            yield mode
    finally:
        for handle in handles:
            handle.remove()


def merging_costs(evaluator: Evaluator, sites: Sequence[Any], pairs: Sequence[tuple[int, int]]) -> Array:
    """Divergence for each pair of heads of one layer."""
    heads = all_heads(sites)
    by_layer = {site.layer: site for site in sites}
    costs = []
    for a, b in pairs:
        with merged(by_layer[heads[a][0]].module, (heads[a][1], heads[b][1])) as mode:
            seen = evaluator.task.observe(evaluator.loaded, evaluator.inputs)
        if not mode.merges:
            raise SystemExit("The attention was never merged: the model does not compute it eagerly.")
        costs.append(float(evaluator.task.divergence(seen, evaluator.reference).mean()))
    return np.array(costs)


def few_ablations(distances: Array, costs: Array, count: int) -> Array:
    """(H,) for each head to start from: rank correlation of predicted with measured costs, on heads not measured.

    Heads to measure are chosen far from each other; others get a mean of log costs weighted by closeness.
    """
    scale = np.median(distances[distances > 0]) or 1.0
    log = np.log(np.maximum(costs, 1e-9))
    found = []
    for start in range(len(costs)):
        chosen = [start]
        while len(chosen) < count:
            nearest = distances[:, chosen].min(axis=1)
            nearest[chosen] = -1
            chosen.append(int(nearest.argmax()))
        rest = np.setdiff1d(np.arange(len(costs)), chosen)
        weights = np.exp(-4 * distances[rest][:, chosen] / scale)
        predicted = weights @ log[chosen] / np.maximum(weights.sum(axis=1), 1e-30)
        found.append(rank_correlation(predicted, costs[rest]) or 0.0)
    return np.array(found)


def domain_features(tensors: Sequence[Array]) -> dict[str, Array]:
    """(inputs, heads) one number per head and input, the organised one first."""
    rng = np.random.default_rng(0)
    rows: dict[str, list[Array]] = {}
    for X in tensors:
        trees: dict[str, PartitionTree] = dict(Questionnaire().fit(X).trees_)
        shuffled = {axis: tree.permuted(rng.permutation(tree.n)) for axis, tree in trees.items()}
        marginal = X.mean(axis=0, dtype=np.float64)
        shannon = shannon_entropies(X, "probs")
        assert shannon is not None
        one = {
            "Haar entropy, organised": head_entropies(X, trees),
            "Haar entropy, shuffled leaves": head_entropies(X, shuffled),
            "Shannon entropy": shannon,
            "plain norm": np.linalg.norm(X.reshape(-1, X.shape[2]), axis=0),
            "token mean (its entropy)": -np.sum(marginal * np.log(np.maximum(marginal, 1e-30)), axis=0),
        }
        for name, values in one.items():
            rows.setdefault(name, []).append(values)
    return {name: np.array(values) for name, values in rows.items()}


def told_apart(features: Array, labels: Array) -> Array:
    """(inputs,) whether each is nearer to its own domain's mean, left out itself, after scaling every head."""
    right = []
    for left_out in range(len(labels)):
        kept = np.arange(len(labels)) != left_out
        scaled = (features - features[kept].mean(axis=0)) / np.maximum(features[kept].std(axis=0), 1e-12)
        means = [scaled[kept & (labels == label)].mean(axis=0) for label in np.unique(labels)]
        gaps = [np.linalg.norm(scaled[left_out] - mean) for mean in means]
        right.append(int(np.argmin(gaps)) == labels[left_out])
    return np.array(right, dtype=np.float64)


# Numbers and words ----------------------------------------------------------------------------------------------------


def table(title: str, results: dict[str, float], differences: dict[str, tuple[float, float]], best: str) -> None:
    """Print one use: every predictor, and how far the better organised one is ahead of it."""
    print(f"\n### {title}\n\n| predictor | value | `{best}` minus this [95 %] |\n|---|---|---|")
    for name, value in results.items():
        gap = "" if name == best else "[{:+.3f}, {:+.3f}]".format(*differences[name])
        print(f"| {name} | {value:.3f} | {gap} |")
    beaten = all(low > 0 for low, _ in differences.values())
    print(f"\n{'The organised tree beats every control.' if beaten else 'Not better than every control.'}")


def compare(title: str, statistic: Callable[[str, Array], float], names: Sequence[str], count: int) -> None:
    """Bootstrap over ``count`` cases; ``statistic(name, places)`` is a predictor's value on some of them."""
    everything = np.arange(count)
    results = {name: statistic(name, everything) for name in names}
    best = max((name for name in names if "organised" in name), key=results.__getitem__)
    rng = np.random.default_rng(0)
    drawn = [rng.integers(count, size=count) for _ in range(_DRAWS)]
    own = np.array([statistic(best, places) for places in drawn])
    differences = {}
    for name in names:
        if "organised" not in name:
            gap = own - np.array([statistic(name, places) for places in drawn])
            differences[name] = (float(np.quantile(gap, 0.025)), float(np.quantile(gap, 0.975)))
    shown = {name: value for name, value in results.items() if name == best or name in differences}
    table(title, shown, differences, best)


def compare_means(title: str, values: dict[str, Array]) -> None:
    """:func:`compare` for predictors with one value for each case."""
    count = len(next(iter(values.values())))
    compare(title, lambda name, places: float(values[name][places].mean()), list(values), count)


def correlate(
    title: str, distances: dict[str, Array], pairs: Sequence[tuple[int, int]], target: Array, sign: float
) -> None:
    """Rank correlation of distances (times ``sign``) with what was measured on pairs."""
    rows, columns = np.array(pairs).T
    values = {name: sign * found[rows, columns] for name, found in distances.items()}
    known = {name: one for name, one in values.items() if np.ptp(one) > 0}

    def statistic(name: str, places: Array) -> float:
        return rank_correlation(known[name][places], target[places]) or 0.0

    compare(title, statistic, list(known), len(pairs))


def measure(name: str, options: argparse.Namespace) -> None:
    """Print one model's part."""
    one = subject(name, options)
    loaded = one.loaded
    tensors = attention(loaded, one.seen, one.group)
    sites = [site for site in head_sites(loaded.model) if one.group in (None, site.group)]
    heads = all_heads(sites)
    layers = np.array([layer for layer, _ in heads])
    distances = geometry(one, tensors, sites)
    task = find_task(loaded, one.held_out)
    task = task.about(task.metrics[0])
    evaluator = Evaluator(loaded, sites, one.held_out, task)

    def cost(*chosen: int) -> float:
        return float(evaluator.without([heads[index] for index in chosen])["divergence"].mean())

    print(
        f"\n## {name}: {len(heads)} heads, geometry from {len(tensors)} inputs, costs on {len(one.held_out)}",
        flush=True,
    )
    if one.domains:
        seen = [attention(loaded, domain) for domain in one.domains]
        tell_apart("Domains", *seen)
        if name == "vit":
            images = [batch for domain in one.domains for batch in domain]
            before, after = (CalibrationInputs(tuple(images[start::2]), "images") for start in (0, 1))
            tell_apart("Stages of training", attention(loaded, before), attention(trained_on(options), after))

    alone = np.array([cost(index) for index in range(len(heads))])
    count = max(8, len(heads) // 6)
    starts = {key: few_ablations(found, alone, count) for key, found in distances.items()}
    compare_means(f"Costs of all heads from {count} ablations, rank correlation", starts)

    rng = np.random.default_rng(1)
    for same, words in ((True, "one layer"), (False, "different layers")):
        pairs = sampled_pairs(layers, options.pairs // 2, same, rng)
        interaction = np.array([cost(a, b) - alone[a] - alone[b] for a, b in pairs])
        correlate(f"Interaction of {len(pairs)} pairs of {words}", distances, pairs, interaction, -1.0)

    change: Any = loaded.model.set_attn_implementation
    change("eager")
    pairs = sampled_pairs(layers, options.merges, True, rng)
    costs = merging_costs(evaluator, sites, pairs)
    correlate(f"Cost of merging {len(pairs)} pairs of one layer", distances, pairs, costs, 1.0)


def tell_models_apart(options: argparse.Namespace) -> None:
    """Which model read an input, by the quantiles of its heads' distances in units of their median."""
    rng = np.random.default_rng(0)
    rows: dict[str, list[Array]] = {}
    labels = []
    for label, name in enumerate((*PACKAGES, "vit")):
        one = subject(name, options)
        for X in attention(one.loaded, one.domains[0]):
            labels.append(label)
            for key, found in attention_distances(X, rng).items():
                rows.setdefault(key, []).append(_quantiles(found))
    right = {key: told_apart(np.array(values), np.array(labels)) for key, values in rows.items()}
    print("\n## models")
    compare_means(f"Models told apart ({len(labels)} inputs), accuracy", right)


def _quantiles(distances: Array) -> Array:
    pairs = distances[np.triu_indices(len(distances), k=1)]
    return np.asarray(np.quantile(pairs / max(float(np.median(pairs)), 1e-12), np.linspace(0, 1, 11)))


def tell_apart(title: str, first: Sequence[Array], second: Sequence[Array]) -> None:
    """How well two sets of tensors can be told apart by one number per head."""
    labels = np.repeat([0, 1], [len(first), len(second)])
    features = domain_features([*first, *second])
    right = {key: told_apart(values, labels) for key, values in features.items()}
    compare_means(f"{title} told apart ({len(labels)} inputs), accuracy", right)


def main() -> None:
    """Read the arguments, measure each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", choices=[*PACKAGES, "vit", "whisper", "models"])
    parser.add_argument("--model", type=Path, help="folder of Whisper")
    parser.add_argument("--data", type=Path, required=True)
    sizes = {"pairs": 150, "merges": 60, "inputs": 12, "geometry": 4, "tokens": 64, "domain-inputs": 24, "short": 32}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    for model in options.models:
        if model == "models":
            tell_models_apart(options)
        else:
            measure(model, options)


if __name__ == "__main__":
    main()
