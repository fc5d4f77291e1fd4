"""An offloaded model in a process that may not have as much memory as the model has weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

pytest.importorskip("accelerate")

# Everything runs once with a small model, so that what is loaded once is loaded. Reading a checkpoint maps all its
# files, which Linux counts as memory of the process although nothing is in it: the limit holds from there on.
_SCRIPT = """
import resource, sys
from pathlib import Path
import torch
import oattn_hub as oh
from oattn_hub.pruning import PruningPlan, evaluate

PLACES = {"model.embed_tokens": "cpu", "model.rotary_emb": "cpu", "model.layers": "disk", "model.norm": "disk",
          "lm_head": "disk"}

def inputs(count):
    generator = torch.Generator().manual_seed(count)
    return [{"input_ids": torch.randint(0, 20, (1, 8), generator=generator)} for _ in range(count)]

def load(folder):
    return oh.load_model(folder, device_map=PLACES, offload_folder=folder.parent / "offload")

def limit(extra):
    status = Path("/proc/self/status").read_text().splitlines()
    now = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (now + extra, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    return now + extra

def everything(folder, extra):
    loaded = load(folder / "model")
    size = sum(weight.nbytes for weight in loaded.model.parameters())
    allowed = limit(extra)
    report = oh.analyze(loaded, inputs(2))
    evaluate(report, loaded, "weight", data=inputs(6), calibration=inputs(2), fractions=(0.5,))
    plan = PruningPlan.from_heads(loaded, [(0, 0), (0, 1), (1, 3)])
    pruned = plan.apply(loaded, inputs=inputs(4), compensate="refit")
    pruned.save_pretrained(folder / "out", verify=False, max_shard_size="60MB")
    limit(2**40)
    batch = inputs(1)[0]
    with torch.no_grad():
        same = torch.equal(load(folder / "out").forward(batch).logits, pruned.loaded.forward(batch).logits)
    return size > allowed, same, len(list((folder / "out").glob("model-*")))

everything(Path(sys.argv[1]) / "small", 2**40)
print(*everything(Path(sys.argv[1]) / "large", int(sys.argv[2])))
"""


def write_llama(folder: Path, width: int, layers: int) -> None:
    """A Llama of noise, two large files a layer, that is never as a whole in memory."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=20, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers, num_attention_heads=8,
        num_key_value_heads=8, max_position_embeddings=64, pad_token_id=0, architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    config.save_pretrained(folder)
    with torch.device("meta"):
        shapes = {name: value.shape for name, value in LlamaForCausalLM(config).state_dict().items()}
    noise = 0.02 * torch.randn(4 * width * width, generator=torch.Generator().manual_seed(0))
    files: dict[str, list[str]] = {}
    for name in shapes:
        files.setdefault(".".join(name.split(".")[:4]) if ".layers." in name else "rest", []).append(name)
    places = {}
    for number, names in enumerate(files.values()):
        file = f"model-{number + 1:05d}-of-{len(files):05d}.safetensors"
        part = {name: noise[: shapes[name].numel()].roll(number).reshape(shapes[name]).clone() for name in names}
        save_file(part, folder / file, {"format": "pt"})
        places |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts mapped memory on Linux only")
def test_a_model_larger_than_the_memory_of_the_process(tmp_path: Path) -> None:
    write_llama(tmp_path / "small/model", 64, 2)
    write_llama(tmp_path / "large/model", 1024, 24)  # 1.6 GB of weights, 67 MB a layer
    # what is freed is given back at once, and not kept by the C library for later
    settings = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "1000000"}
    command = [sys.executable, "-W", "ignore", "-c", _SCRIPT, str(tmp_path), str(350 * 10**6)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **settings}, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    larger, same, n_files = done.stdout.split()
    assert (larger, same) == ("True", "True")
    assert int(n_files) > 20
