"""Heads whose task is known: do they stand out by their entropy, and does the organised geometry put them together?

    python benchmarks/truth_known.py whisper --model FOLDER --data SOUNDS [--inputs 9]
    python benchmarks/truth_known.py rxnmapper --model FOLDER [--inputs 9]
    python benchmarks/truth_known.py smollm --data DIR          (or minilm, vit; DIR as for truth_uses.py)

Whisper tiny.en: the eight alignment heads of the cross attention follow the sound in time. RXNMapper: head 5 maps the
atoms of a product to those of the reactants, most clearly in layers 7 to 9; here all its layers count whose mass on
the other side of the reaction is above one half. Elsewhere no head's task is written down, so one task is measured on
data of its own: local heads, the tenth with most attention on the eight tokens around each (the eight patches).

Two questions, each with a 95 % bootstrap interval over the inputs: the chance that a known head has a higher entropy
than another one (0.5: entropy does not know them), and the chance that two known heads are closer to each other than
any other pair (1: they lie together), for the organised tree and controls without one. Prints Markdown.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from truth_uses import ORGANISED, attention, attention_distances, subject

from oattn_hub.analysis.controls import shannon_entropies
from oattn_hub.attention import capture_inputs
from oattn_hub.geometry import Questionnaire, head_entropies
from oattn_hub.inputs import calibration_inputs
from oattn_hub.models.load import load_model

Array = NDArray[Any]
ALIGNMENT = {(1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4)}
_DRAWS = 1000

# atoms in brackets, atoms of two letters, the arrow, everything else letter by letter
_SYMBOLS = re.compile(r"\[[^\]]+\]|Br|Cl|>>|%\d\d|.")

# textbook reactions, reactants before >>
REACTIONS = [
    "CC(=O)O.OCC>>CC(=O)OCC",
    "c1ccccc1Br.OB(O)c1ccccc1>>c1ccc(-c2ccccc2)cc1",
    "CC(=O)Cl.NCc1ccccc1>>CC(=O)NCc1ccccc1",
    "O=C(O)c1ccccc1O.CC(=O)OC(C)=O>>CC(=O)Oc1ccccc1C(=O)O",
    "CCBr.[Na+].[O-]c1ccccc1>>CCOc1ccccc1",
    "O=Cc1ccccc1.CC(C)=O>>CC(=O)C=Cc1ccccc1",
    "Nc1ccc(O)cc1.CC(=O)OC(C)=O>>CC(=O)Nc1ccc(O)cc1",
    "C=CC=C.C=CC(=O)OC>>COC(=O)C1CC=CCC1",
    "O=[N+]([O-])c1ccc(F)cc1.C1COCCN1>>O=[N+]([O-])c1ccc(N2CCOCC2)cc1",
    "CC(C)(C)OC(=O)OC(=O)OC(C)(C)C.NCCc1ccccc1>>CC(C)(C)OC(=O)NCCc1ccccc1",
]

Tensors = list[Array]


def whisper(options: argparse.Namespace) -> tuple[Tensors, Array]:
    """Cross attention on recordings, (words, frames / 10, 24), and which heads are known."""
    loaded = load_model(options.model)
    tensors = attention(loaded, calibration_inputs(loaded, options.data, options.inputs), "cross")
    known = [(layer, head) in ALIGNMENT for layer in range(4) for head in range(6)]
    return tensors, np.array(known)


def rxnmapper(options: argparse.Namespace) -> tuple[Tensors, Array]:
    """Attention on reactions, (tokens, tokens, 96), and the layers of head 5 that look across the arrow."""
    loaded = load_model(options.model, allow_pickle=True)
    numbers = {word: number for number, word in enumerate((options.model / "vocab.txt").read_text().split())}
    words = [["[CLS]", *_SYMBOLS.findall(reaction), "[SEP]"] for reaction in REACTIONS[: options.inputs]]
    encoded = [{"input_ids": torch.tensor([[numbers[word] for word in one]])} for one in words]
    with tempfile.TemporaryDirectory(prefix="oattn-") as folder:
        store = capture_inputs(loaded, calibration_inputs(loaded, encoded), folder, ("probs",))
        found = [np.array(store.tensor(batch, "probs"), dtype=np.float32) for batch in range(store.n_batches)]
        heads = np.array([place.head for place in store.heads()])
    places = [one.index(">>") for one in words]
    across = [X[place + 1 : -1, 1:place].sum(axis=1).mean(axis=0) for X, place in zip(found, places, strict=True)]
    return found, (heads == 5) & (np.mean(across, axis=0) > 0.5)


def local(options: argparse.Namespace) -> tuple[Tensors, Array]:
    """Attention on one domain, and the heads that look around each token on the other."""
    options.geometry, options.domain_inputs, options.short, options.tokens = 1, options.inputs, 64, 64
    one = subject(options.which, options)
    others, tensors = (attention(one.loaded, domain) for domain in one.domains)
    near = _neighbours(len(tensors[0]), grid=options.which == "vit")
    mass = np.mean([(X * near[:, :, None]).sum(axis=1).mean(axis=0) for X in others], axis=0)
    return tensors, rankdata(-mass, method="ordinal") <= max(4, round(len(mass) / 10))


def _neighbours(n: int, grid: bool) -> Array:
    """(n, n) which tokens are near each other: up to eight places apart, or on a grid of patches up to one step."""
    places = np.arange(n)
    if not grid:
        apart = np.abs(places[:, None] - places[None])
        return np.asarray((apart > 0) & (apart <= 8))
    side = int(np.sqrt(n - 1))  # the first token is the class token
    steps = np.max([np.abs(np.subtract.outer(axis, axis)) for axis in divmod(np.arange(side * side), side)], axis=0)
    near = np.zeros((n, n), dtype=bool)
    near[1:, 1:] = steps == 1
    return near


def measured(tensors: Tensors) -> tuple[dict[str, Array], dict[str, Array]]:
    """For every input: one number per head, and distances between heads."""
    rng = np.random.default_rng(0)
    numbers: dict[str, list[Array]] = {}
    distances: dict[str, list[Array]] = {}
    for X in tensors:
        trees = Questionnaire().fit(X).trees_
        shannon = shannon_entropies(X, "probs")
        assert shannon is not None
        for name, values in {"Haar entropy, organised": head_entropies(X, trees), "Shannon entropy": shannon}.items():
            numbers.setdefault(name, []).append(values)
        for name, values in attention_distances(X, rng).items():
            distances.setdefault(name, []).append(values / np.median(values[values > 0]))
    return {name: np.array(rows) for name, rows in numbers.items()}, {
        name: np.array(rows) for name, rows in distances.items()
    }


def higher(values: Array, known: Array) -> float:
    """How often a known one has the higher value, ties half."""
    ranks = rankdata(values)
    count = int(known.sum())
    return float((ranks[known].sum() - count * (count + 1) / 2) / (count * (len(known) - count)))


def together(distances: Array, known: Array) -> float:
    """How often a pair of known heads is closer than another pair."""
    rows, columns = np.triu_indices(len(known), 1)
    return higher(-distances[rows, columns], (known[:, None] & known[None])[rows, columns])


def draws(count: int) -> Iterator[Array]:
    rng = np.random.default_rng(0)
    return (rng.integers(count, size=count) for _ in range(_DRAWS))


def interval(values: list[float]) -> str:
    low, high = np.quantile(values, [0.025, 0.975])
    return f"[{low:+.3f}, {high:+.3f}]"


def show(title: str, tensors: Tensors, known: Array) -> None:
    """Print both tables."""
    numbers, distances = measured(tensors)
    print(f"\n## {title}: {int(known.sum())} known of {len(known)} heads, {len(tensors)} inputs\n")
    print("| number of a head | known head is higher | 95 % | places of the known heads from the highest |")
    print("|---|---|---|---|")
    for name, rows in numbers.items():
        drawn = [higher(rows[some].mean(axis=0), known) for some in draws(len(rows))]
        places = np.sort(len(known) + 1 - rankdata(rows.mean(axis=0))[known]).astype(int)
        value = higher(rows.mean(axis=0), known)
        print(f"| {name} | {value:.2f} | {interval(drawn)} | {', '.join(map(str, places))} |")
    print(f"\n| distance between heads | known pair is closer | `{ORGANISED[0]}` minus this [95 %] |\n|---|---|---|")
    own = [together(distances[ORGANISED[0]][some].mean(axis=0), known) for some in draws(len(tensors))]
    for name, rows in distances.items():
        gaps = [a - together(rows[some].mean(axis=0), known) for a, some in zip(own, draws(len(tensors)), strict=True)]
        gap = "" if name == ORGANISED[0] else interval(gaps)
        print(f"| {name} | {together(rows.mean(axis=0), known):.3f} | {gap} |")


def main() -> None:
    """Read the arguments, measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=("whisper", "rxnmapper", "minilm", "smollm", "vit"))
    parser.add_argument("--model", type=Path, help="folder of Whisper or RXNMapper")
    parser.add_argument("--data", type=Path, help="folder of WAV files, or of texts and images")
    parser.add_argument("--inputs", type=int, default=9)
    options = parser.parse_args()
    tensors, known = {"whisper": whisper, "rxnmapper": rxnmapper}.get(options.which, local)(options)
    show(options.which, tensors, known)


if __name__ == "__main__":
    main()
