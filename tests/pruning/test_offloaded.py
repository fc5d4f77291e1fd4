"""Models that accelerate keeps on the disk: evaluated, searched, refitted, cut and saved, a layer at a time."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import oattn_hub as oh
from oattn_hub.errors import InvalidInput
from oattn_hub.models.offloaded import zeros_aside
from oattn_hub.pruning import PruningPlan, evaluate, load_pruned, read_manifest

pytest.importorskip("accelerate")

ON_DISK = {
    "model.embed_tokens": "cpu",
    "model.rotary_emb": "cpu",
    "model.layers": "disk",
    "model.norm": "disk",
    "lm_head": "disk",
}
INDEX = "model.safetensors.index.json"
HEADS = [(0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (2, 3)]  # an uneven group, a whole one, a whole layer


@pytest.fixture
def folder(tmp_path: Path, save_word_tokenizer: Callable[[Path], int]) -> Path:
    """A tiny Llama in many files, with a tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    words = save_word_tokenizer(tmp_path / "llama")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "max_position_embeddings": 64}
    config = LlamaConfig(vocab_size=words, num_attention_heads=4, num_key_value_heads=2, pad_token_id=0, **sizes)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "llama", max_shard_size="10KB")
    return tmp_path / "llama"


@pytest.fixture
def both(folder: Path, tmp_path: Path) -> tuple[Any, Any]:
    """The same model in memory and on the disk."""
    offloaded = oh.load_model(folder, device_map=ON_DISK, offload_folder=tmp_path / "offload")
    assert {weight.device.type for weight in offloaded.model.model.layers.parameters()} == {"meta"}
    return oh.load_model(folder), offloaded


def inputs(count: int = 8) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [{"input_ids": torch.randint(0, 20, (1, 12), generator=generator)} for _ in range(count)]


def logits(loaded: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = loaded.forward(inputs(1)[0]).logits
    return found


@pytest.mark.parametrize("compensate", ["none", "bias", "refit"])
def test_cut_and_saved_as_in_memory(both: tuple[Any, Any], compensate: Any, tmp_path: Path) -> None:
    whole, offloaded = both
    pruned = [
        PruningPlan.from_heads(one, HEADS).apply(one, inputs=inputs(), compensate=compensate, measure=False)
        for one in both
    ]
    assert torch.equal(logits(pruned[0].loaded), logits(pruned[1].loaded))
    assert torch.equal(logits(whole), logits(offloaded)), "the original was changed"
    assert pruned[1].model.model.layers[0].self_attn.q_proj.weight.is_meta
    pruned[1].save_pretrained(tmp_path / "out", max_shard_size="10KB")  # which verifies it by both loaders
    index = json.loads((tmp_path / "out" / INDEX).read_text())
    assert len(set(index["weight_map"].values())) > 3
    assert not (tmp_path / "out" / "model.safetensors").exists()
    verified = read_manifest(tmp_path / "out").verified
    assert set(verified) == {"oattn_hub.from_pretrained", "AutoModelForCausalLM"}
    again = oh.load_model(tmp_path / "out")
    outside = oh.load_model(tmp_path / "out", device_map=ON_DISK, offload_folder=tmp_path / "offload")
    assert outside.model.model.layers[0].self_attn.q_proj.weight.is_meta
    for loaded in (again, outside):
        assert torch.equal(logits(loaded), logits(pruned[0].loaded))


def test_a_model_offloaded_without_a_map_is_saved(both: tuple[Any, Any], tmp_path: Path) -> None:
    from accelerate import cpu_offload

    outside = cpu_offload(copy.deepcopy(both[0].model), torch.device("cpu"))
    pruned = PruningPlan.from_heads(outside, HEADS).apply(outside, inputs=inputs(1))
    pruned.save_pretrained(tmp_path / "out")
    assert torch.equal(logits(oh.load_model(tmp_path / "out")), logits(pruned.loaded))


def test_evaluated_and_searched_as_in_memory(both: tuple[Any, Any]) -> None:
    def found(loaded: Any) -> Any:
        report = oh.analyze(loaded, batches=2, tokens=8)
        data = {"data": inputs(24)[8:], "calibration": inputs(8)}
        section = evaluate(report, loaded, ["haar", "weight", "ablation"], **data)
        plan = report.plan(max_loss_increase=0.5, model=loaded, score="obs", data=inputs(40))
        return section, plan

    (one, plan), (other, same) = (found(loaded) for loaded in both)
    for score in ("haar", "weight", "ablation"):
        assert other.score(score).values == pytest.approx(one.score(score).values)
        assert other.score(score).auc == pytest.approx(one.score(score).auc)
    assert plan.heads
    assert same.heads == plan.heads
    assert same.cost["increase"] == pytest.approx(plan.cost["increase"])


def test_what_needs_a_backward_pass_is_left_out_or_refused(both: tuple[Any, Any]) -> None:
    offloaded = both[1]
    report = oh.analyze(offloaded, batches=2, tokens=8)
    section = evaluate(report, offloaded, ["weight", "gradient"], data=inputs(24)[8:], calibration=inputs(8))
    assert "gradient" not in {score.name for score in section.scores}
    assert "backward pass" in section.notes[0]
    plan = report.plan(0.2, model=offloaded, data=inputs(40))
    assert plan.score == "obs"
    with pytest.raises(InvalidInput, match="backward pass"):
        report.plan(0.2, model=offloaded, score="fisher", data=inputs(40))
    with pytest.raises(InvalidInput, match="backward pass"):
        plan.apply(offloaded, inputs=inputs(1)).heal()


def test_what_cannot_be_saved_is_refused(both: tuple[Any, Any], folder: Path, tmp_path: Path) -> None:
    pruned = PruningPlan.from_heads(both[1], HEADS).apply(both[1], inputs=inputs(1))
    with pytest.raises(InvalidInput, match="masked variant"):
        pruned.save_pretrained(tmp_path / "out", variant="masked")
    with pytest.raises(InvalidInput, match="max_shard_size is 'small'"):
        pruned.save_pretrained(tmp_path / "out", max_shard_size="small")
    with pytest.raises(InvalidInput, match="another folder"):
        pruned.save_pretrained(folder)
    assert (folder / INDEX).exists()


def test_a_plan_out_of_a_file_says_where_its_model_is_put(folder: Path, tmp_path: Path) -> None:
    PruningPlan.from_heads(folder, HEADS).save(tmp_path / "plan.json")
    plan = PruningPlan.load_file(tmp_path / "plan.json")
    pruned = plan.apply(inputs=inputs(1), device_map=ON_DISK, offload_folder=tmp_path / "offload")
    assert pruned.model.lm_head.weight.is_meta


def test_lower_precision(folder: Path, tmp_path: Path) -> None:
    options = {"device_map": ON_DISK, "dtype": "bfloat16", "offload_folder": tmp_path / "offload"}
    loaded = oh.load_model(folder, **options)
    pruned = PruningPlan.from_heads(loaded, HEADS).apply(loaded, inputs=inputs(), compensate="refit")
    pruned.save_pretrained(tmp_path / "out")
    assert {weight.dtype for weight in oh.load_model(tmp_path / "out").model.parameters()} == {torch.bfloat16}


def test_an_earlier_save_leaves_no_weights_behind(both: tuple[Any, Any], tmp_path: Path) -> None:
    pruned = PruningPlan.from_heads(both[0], HEADS).apply(both[0], inputs=inputs(1), measure=False)
    for size in ("10KB", "1GB", "10KB"):
        pruned.save_pretrained(tmp_path / "out", max_shard_size=size, verify=False)
        weights = sorted(path.name for path in (tmp_path / "out").glob("model*"))
        assert ("model.safetensors" in weights) is (size == "1GB")
        assert (INDEX in weights) is (size == "10KB")


def test_shards_of_other_libraries(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    arguments = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_heads": 4, "depth": 2}
    vit = timm.create_model("vit_tiny_patch16_224", num_classes=5, **arguments).eval()
    plain = torch.nn.TransformerEncoderLayer(16, nhead=4, dim_feedforward=32, batch_first=True).eval()
    batches = {vit: {"x": torch.randn(1, 3, 32, 32)}, plain: {"src": torch.randn(1, 5, 16)}}
    for model, batch in batches.items():
        out = tmp_path / type(model).__name__
        pruned = PruningPlan.from_heads(model, [(0, 1), (0, 3)]).apply(model, inputs=[batch], measure=False)
        named = {"model_args": arguments} if model is vit else {}
        pruned.save_pretrained(out, max_shard_size="4KB", **named)
        files = set(json.loads((out / INDEX).read_text())["weight_map"].values())
        assert len(files) > 2
        again = load_pruned(out) if model is vit else load_pruned(out, copy.deepcopy(plain))
        with torch.no_grad():
            assert torch.equal(again(*batch.values()), pruned.model(*batch.values()))
        stored = {name for file in files for name in load_file(out / file)}
        assert stored == set(pruned.model.state_dict())


def test_zeros_aside_are_like_those_in_memory() -> None:
    value, aside = torch.randn(7, 5, dtype=torch.float64), zeros_aside(7, 5)
    assert torch.equal(aside, torch.zeros_like(value))
    aside += value
    assert torch.equal(aside, value)
