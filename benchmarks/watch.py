"""What HeadWatch adds to training when it measures every 100 steps (goal: under 5 %).

Steps and moments of the same model are timed in one process, in CPU seconds of one thread, so that other work on the
machine counts for neither. The model is trained as its users would: AdamW, a batch of 32 texts.

    python benchmarks/watch.py [--steps 4] [--moments 3]
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForMaskedLM

import oattn_hub as oh
from oattn_hub.demo import minilm_folder

GOAL = 0.05
EVERY = 100
BATCH, TOKENS = 32, 128
SIZES = {"MiniLM-L6 (6 x 12 heads)": {}, "12 x 12 heads, width 768": {"num_hidden_layers": 12, "hidden_size": 768}}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=4)
    arguments.add_argument("--moments", type=int, default=3)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    print(f"| model | a step, {BATCH} x {TOKENS} tokens | a moment | added, every {EVERY} steps | goal |")
    print("|---|---|---|---|---|")
    for name, sizes in SIZES.items():
        step, moment = measure(sizes, options.steps, options.moments)
        added = moment / (EVERY * step)
        shown = f"{100 * added:.1f} %" if added < GOAL else f"**{100 * added:.1f} %**"
        print(f"| {name} | {step:.2f} s | {moment:.2f} s | {shown} | {100 * GOAL:g} % |", flush=True)


def measure(sizes: dict[str, int], steps: int, moments: int) -> tuple[float, float]:
    """Median CPU seconds of a training step and of a moment, both after a first one that warms up."""
    torch.manual_seed(0)
    if "hidden_size" in sizes:
        sizes = {**sizes, "intermediate_size": 4 * sizes["hidden_size"]}
    config = AutoConfig.from_pretrained(minilm_folder(), **sizes)
    model: Any = AutoModelForMaskedLM.from_config(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs = [{"input_ids": torch.randint(1000, 20000, (1, 64))} for _ in range(4)]
    watch = oh.HeadWatch(inputs, every=EVERY)

    def train() -> None:
        ids = torch.randint(1000, 20000, (BATCH, TOKENS))
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def seconds(work: Any) -> float:
        start = time.process_time()
        work()
        return time.process_time() - start

    taken = [seconds(train) for _ in range(steps + 1)][1:]
    looked = [seconds(lambda: watch.observe(model, 0)) for _ in range(moments + 1)][1:]
    return statistics.median(taken), statistics.median(looked)


if __name__ == "__main__":
    main()
