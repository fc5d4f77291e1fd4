"""What 64-byte aligned weights cost: seconds and memory of loading a model as transformers does, and moving it.

Mapped weights are pages of the file, which the system may drop and read again; aligned weights are memory of the
process. Each way is a new process; ``used`` adds one forward call, which reads every weight.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 3
WAYS = ("mapped", "aligned", "mapped, used", "aligned, used")


def memory() -> dict[str, float]:
    """MiB of the process now (its own, and pages of files) and at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines)
    return {name: int(found[name].split()[0]) / 1024 for name in ("RssAnon", "RssFile", "VmHWM")}


def child(folder: str, way: str) -> dict[str, float]:
    """Load the model in this process, once the libraries are imported."""
    import torch
    from transformers import LlamaForCausalLM

    from oattn_hub.models.aligned import align_weights

    ids = torch.arange(16)[None]
    before, began = memory(), time.perf_counter()
    model = LlamaForCausalLM.from_pretrained(folder)
    if way.startswith("aligned"):
        align_weights(model)
    if way.endswith("used"):
        with torch.no_grad():
            model(input_ids=ids)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, **{name: value - before[name] for name, value in memory().items()}}


def align_seconds(folder: str) -> dict[str, float]:
    """Only the moving, of a model whose file is in the page cache."""
    from transformers import LlamaForCausalLM

    from oattn_hub.models.aligned import align_weights

    model = LlamaForCausalLM.from_pretrained(folder)
    began = time.perf_counter()
    align_weights(model)
    return {"seconds": time.perf_counter() - began}


def make_model(folder: str, layers: int) -> float:
    """Save a Llama of random weights; returns the MiB of its file."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_key_value_heads": 4}
    LlamaForCausalLM(LlamaConfig(vocab_size=8000, num_hidden_layers=layers, **sizes)).save_pretrained(folder)
    return sum(file.stat().st_size for file in Path(folder).glob("*.safetensors")) / 2**20


def best(folder: str, way: str) -> dict[str, float]:
    """The fastest of a few new processes."""
    command = [sys.executable, __file__, "--child", way, "--folder", folder]
    runs = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(RUNS)]
    return min((json.loads(printed.splitlines()[-1]) for printed in runs), key=lambda run: float(run["seconds"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(align_seconds(given.folder) if given.child == "align" else child(given.folder, given.child)))
        return
    with tempfile.TemporaryDirectory() as folder:
        size = make_model(folder, given.layers)
        print(f"A Llama of {size:.0f} MiB; moving its weights takes {best(folder, 'align')['seconds']:.2f} s.\n")
        print("| way | seconds | own memory, MiB | pages of files, MiB | peak of both, MiB |\n|---|---|---|---|---|")
        for way in WAYS:
            row = best(folder, way)
            shares = " | ".join(f"{row[name]:.0f}" for name in ("RssAnon", "RssFile", "VmHWM"))
            print(f"| {way} | {row['seconds']:.2f} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
