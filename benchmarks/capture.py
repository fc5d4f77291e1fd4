"""What capture costs, against a forward pass with ``output_attentions=True``.

    python benchmarks/capture.py [--batches 8] [--tokens 1024] [--layers 12] [--heads 12] [--rounds 3] [--out FILE]

Every way runs in a process of its own, because peak memory is a property of a process; the ways take turns, ``rounds``
times, and medians are shown. CPU seconds are the fairer number on a machine that others use too. Memory is the peak
above what the process holds with the model loaded and warmed up.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WAYS = {
    "forward": "forward only, fused attention",
    "output_attentions": "forward with output_attentions=True (eager), weights dropped after each batch",
    "output_attentions_saved": "the same, weights of each batch saved with safetensors",
    "capture": "oattn_hub.capture, probs in float32 streamed to a store",
    "capture_half": "oattn_hub.capture, probs in float16",
}
GOALS = {"time": 1.3, "memory": 0.25}


def main() -> None:
    """Run all ways in turn and print the table."""
    args = _arguments()
    if args.way:
        print(json.dumps(measure(args)))
        return
    results: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(args.rounds):
        for way in WAYS:
            command = [sys.executable, __file__, "--way", way]
            command += [f"--{name}={getattr(args, name)}" for name in ("batches", "tokens", "layers", "heads")]
            printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            results[way].append(json.loads(printed.splitlines()[-1]))
    table = _table(results, args)
    print(table)
    if args.out:
        Path(args.out).write_text(table)


def measure(args: argparse.Namespace) -> dict[str, float]:
    """One way, in this process: seconds per batch and peak memory above the warm model."""
    import torch
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 64 * args.heads, "num_hidden_layers": args.layers, "num_attention_heads": args.heads}
    config = BertConfig(**sizes, intermediate_size=256 * args.heads, max_position_embeddings=args.tokens)
    config._attn_implementation = "eager" if args.way.startswith("output") else "sdpa"
    torch.manual_seed(0)
    model = BertModel(config, add_pooling_layer=False).eval()
    batches = [torch.randint(0, config.vocab_size, (1, args.tokens)) for _ in range(args.batches)]
    with torch.inference_mode(), tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        # everything that is imported or set up once belongs to the warm process, not to the way's peak
        _run(args.way, model, [batches[0][:, :64]], Path(folder) / "warm-up")
        before = _reset_peak()
        wall, cpu = time.perf_counter(), time.process_time()
        _run(args.way, model, batches, Path(folder) / "run")
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"wall": wall / args.batches, "cpu": cpu / args.batches, "memory": _resident("VmHWM") - before}


def _run(way: str, model: Any, batches: list[Any], folder: Path) -> None:
    folder.mkdir()
    if way.startswith("capture"):
        from oattn_hub.attention import capture

        with capture(model, ("probs",), folder, dtype="float16" if way == "capture_half" else "float32"):
            for ids in batches:
                model(input_ids=ids)
        return
    for number, ids in enumerate(batches):
        output = model(input_ids=ids, output_attentions=way != "forward")
        if way == "output_attentions_saved":
            from safetensors.torch import save_file

            save_file(
                {str(i): weights for i, weights in enumerate(output.attentions)}, folder / f"{number}.safetensors"
            )
        del output


def _reset_peak() -> float:
    """Forget the peak so far; returns the resident MiB now. (``ru_maxrss`` starts from the parent's peak.)"""
    Path("/proc/self/clear_refs").write_text("5")
    return _resident("VmRSS")


def _resident(field: str) -> float:
    """A field of /proc/self/status in MiB: VmRSS is what is resident now, VmHWM its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 2**10 for line in lines if line.startswith(f"{field}:"))


def _table(results: dict[str, list[dict[str, float]]], args: argparse.Namespace) -> str:
    middle = {
        way: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for way, runs in results.items()
    }
    reference = middle["output_attentions"]
    layer = args.heads * args.tokens**2 * 4 / 2**20
    lines = [
        "# Capture",
        "",
        f"BERT of {args.layers} layers x {args.heads} heads with random weights, {args.batches} batches of "
        f"{args.tokens} tokens, batch size 1; {os.cpu_count()} cores, {platform.machine()}, Python "
        f"{platform.python_version()}; median of {args.rounds} rounds. One layer's attention is {layer:.0f} MiB, "
        f"all layers' {layer * args.layers:.0f} MiB.",
        "",
        "| way | wall s/batch | CPU s/batch | CPU, relative | peak memory MiB | relative |",
        "|---|---|---|---|---|---|",
    ]
    for way, name in WAYS.items():
        one = middle[way]
        lines.append(
            f"| {name} | {one['wall']:.2f} | {one['cpu']:.2f} | {one['cpu'] / reference['cpu']:.2f} | "
            f"{one['memory']:.0f} | {one['memory'] / reference['memory']:.2f} |"
        )
    time_ratio = middle["capture"]["cpu"] / reference["cpu"]
    memory_ratio = middle["capture"]["memory"] / reference["memory"]
    lines += [
        "",
        f"Goals: time at most {GOALS['time']} x (measured {time_ratio:.2f}), "
        f"memory at most {GOALS['memory']} x (measured {memory_ratio:.2f}).",
    ]
    return "\n".join(lines) + "\n"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", help="also write the table to this file")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
