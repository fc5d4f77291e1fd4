"""What a loader hands out begins at 64-byte boundaries, whatever lies on the disk, with the same bits and ties."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from oattn_hub.attention import load_model
from oattn_hub.models.aligned import align_weights, units_apart
from oattn_hub.pruning import PruningPlan, load_pruned


def odd(model: nn.Module) -> list[str]:
    """The names of the weights that do not begin at a 64-byte boundary."""
    weights = (*model.named_parameters(), *model.named_buffers())
    return [name for name, weight in weights if weight.data_ptr() % 64]


def misplaced(weight: torch.Tensor) -> torch.Tensor:
    """A copy that begins 4 bytes after a boundary, as one that is mapped from a file may."""
    memory = torch.empty(weight.nbytes + 68, dtype=torch.uint8)
    start = -memory.data_ptr() % 64 + 4
    copy = torch.frombuffer(memory.numpy()[start:], dtype=weight.dtype, count=weight.numel()).view(weight.shape)
    return copy.copy_(weight)


def push_header_to_an_odd_end(file: Path) -> None:
    """Rewrite a safetensors file so that its weights begin 8 bytes after a boundary; some versions pad the header."""
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = content[8:end].rstrip(b" ")
    header += b" " * ((8 - (8 + len(header))) % 64)
    file.write_bytes(len(header).to_bytes(8, "little") + header + content[end:])


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "clip", "transfo-xl"])
def test_what_load_model_hands_out_is_aligned(zoo: Any, name: str, tmp_path: Path) -> None:
    model, _ = zoo.BY_NAME[name].build()
    model.save_pretrained(tmp_path)
    push_header_to_an_odd_end(tmp_path / "model.safetensors")
    plain = type(model).from_pretrained(tmp_path)
    assert odd(plain), "transformers aligns by itself now: this test shows nothing any more"
    loaded = load_model(tmp_path).model
    assert odd(loaded) == []
    for (key, ours), theirs in zip(loaded.state_dict().items(), plain.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), key


def test_what_timm_hands_out_is_aligned(zoo: Any, tmp_path: Path) -> None:
    model, inputs = zoo.BY_NAME["timm-vit"].build()
    arguments = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}
    pruned = PruningPlan.from_heads(model, [(0, 1)]).apply(model, inputs=[inputs])
    for variant in ("cut", "masked"):
        pruned.save_pretrained(tmp_path / variant, variant=variant, model_args=arguments)
        assert odd(load_model(tmp_path / variant).model) == []


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "transfo-xl"])
def test_a_pruned_checkpoint_is_aligned_when_loaded(zoo: Any, name: str, tmp_path: Path) -> None:
    model, _ = zoo.BY_NAME[name].build()
    PruningPlan.from_heads(model, [(0, 1)]).apply(model, measure=False).save_pretrained(tmp_path)
    assert odd(load_pruned(tmp_path)) == []


ALONE = """
import json, sys
sys.modules["oattn_hub"] = None
from transformers import AutoModel
model, info = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True, output_loading_info=True)
again = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True)
print(json.dumps([w.data_ptr() % 64 for m in (model, again) for w in (*m.parameters(), *m.buffers())]))
"""


def test_the_modeling_file_aligns_where_oattn_hub_is_not_installed(zoo: Any, tmp_path: Path) -> None:
    model, _ = zoo.BY_NAME["bert"].build()
    folder = tmp_path / "checkpoint"
    PruningPlan.from_heads(model, [(0, 1)]).apply(model, measure=False).save_pretrained(folder)
    push_header_to_an_odd_end(folder / "model.safetensors")
    environment = {"HF_HOME": str(tmp_path / "cache"), "PATH": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", ALONE, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert set(json.loads(done.stdout.splitlines()[-1])) == {0}


class Tied(nn.Module):
    """One table under two names, a second parameter on the same memory, a view into it, and a transposed weight."""

    def __init__(self) -> None:
        super().__init__()
        table = misplaced(torch.arange(96.0).view(12, 8))
        self.one = nn.Parameter(table)
        self.same = self.one
        self.twin = nn.Parameter(table)
        self.register_buffer("rows", table[4:8])
        self.turned = nn.Parameter(misplaced(torch.arange(12.0).view(3, 4)).t())


def test_ties_views_and_strides_survive() -> None:
    model = Tied()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    strides = {name: weight.stride() for name, weight in model.state_dict().items()}
    assert set(odd(model)) == {"one", "twin", "rows", "turned"}
    assert align_weights(model) is model
    assert odd(model) == []
    assert model.same is model.one
    assert {name: weight.stride() for name, weight in model.state_dict().items()} == strides
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name]), name
    with torch.no_grad():
        model.one[5, 0] = -1.0
    assert model.twin[5, 0] == -1.0
    assert model.rows[1, 0] == -1.0


def test_an_empty_weight_that_begins_where_the_next_one_does() -> None:
    """In a mapped file; the next one was read from memory of no size, and so was whatever lay behind it."""
    model = nn.ParameterDict({"tokens": nn.Parameter(torch.empty(1, 0)), "weight": nn.Parameter(torch.randn(64, 64))})
    expected = model["weight"].detach().clone()
    memory = misplaced(expected)
    empty = torch.frombuffer(memory.numpy(), dtype=torch.float32, count=64)[:0].view(1, 0)
    nothing = torch.empty(0)
    nothing.set_(empty.untyped_storage()[:0], 0, (1, 0), (1, 1))
    model["tokens"].data, model["weight"].data = nothing, memory
    align_weights(model)
    assert torch.equal(model["weight"], expected)


def test_aligned_weights_are_not_moved_and_others_left_alone() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8, device="meta"))

    class Quantised(nn.Parameter):
        """Stands for the parameters of bitsandbytes and torchao, which are subclasses."""

    model[0].bias = Quantised(misplaced(torch.zeros(8)), requires_grad=False)
    model.register_buffer("sparse", torch.eye(4).to_sparse())
    before = model[0].weight.data_ptr(), model[0].bias.data_ptr()
    align_weights(model)
    assert (model[0].weight.data_ptr(), model[0].bias.data_ptr()) == before
    assert type(model[0].bias) is Quantised
    assert model[1].weight.is_meta
    assert model.sparse.is_sparse


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_units_apart_counts_in_the_dtype(dtype: torch.dtype) -> None:
    one = torch.tensor([1.0, -0.5, float("-inf")], dtype=dtype)
    assert units_apart(one, one.clone()) == 0
    other = one.clone()
    other[1] += 2 * torch.finfo(dtype).eps
    assert units_apart(one, other) == 2
    assert not units_apart(torch.tensor([float("nan")], dtype=dtype), torch.ones(1, dtype=dtype)) <= 1e9
    assert units_apart(one, one[:2]) == float("inf")
