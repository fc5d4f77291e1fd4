"""Masked == cut == reloaded, on every family of the adapter zoo; where a family cannot be cut, it says why."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import oattn_hub as oh
from oattn_hub.attention import load_model
from oattn_hub.cli import build_parser
from oattn_hub.cli.prune import check
from oattn_hub.errors import InvalidInput, SurgeryError
from oattn_hub.models.aligned import FEW_UNITS, units_apart
from oattn_hub.models.offloaded import copied
from oattn_hub.pruning import PruningPlan, load_pruned, masked
from oattn_hub.pruning.cutting import cut_model
from oattn_hub.pruning.portable import apply_cuts
from oattn_hub.pruning.pruned import prune
from oattn_hub.pruning.sites import all_heads, head_sites, shared_layers, weights_fingerprint
from oattn_hub.pruning.surgery import cut, cut_list

# Families whose heads cannot be cut, and a word of the reason they must give.
REFUSED = {"olmo2": "normalises all heads", "timm-cait": "mixed"}
# Families that accelerate itself cannot run with offloaded weights: they read parameters of modules they do not call.
NOT_BY_ACCELERATE = {"deberta", "deberta-v2", "transfo-xl", "siglip"}


def outputs(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The first tensor the model returns."""
    with torch.no_grad():
        output = model(**inputs)
    while not isinstance(output, torch.Tensor):
        output = output[0] if isinstance(output, tuple | list) else output.to_tuple()[0]
    return output


def some_heads(model: Any) -> list[tuple[int, int]]:
    """A third of all heads at random, all heads of the last layer among them; shared layers lose the same ones."""
    sites = head_sites(model)
    heads = all_heads(sites)
    if shared := shared_layers(sites):
        return [(layer, head) for layer in shared[0] for head in (0, 2)]
    chosen = set(random.Random(0).sample(heads, max(1, len(heads) // 3)))
    return sorted(chosen | {head for head in heads if head[0] == sites[-1].layer})


def test_cut_equals_masked(specimen: Any) -> None:
    model, inputs = specimen.build()
    before = outputs(model, inputs)
    if specimen.name in REFUSED:
        heads = all_heads(head_sites(model))
        with pytest.raises(SurgeryError, match=REFUSED[specimen.name]):
            cut(model, heads)
        with masked(model, heads):
            assert not torch.equal(outputs(model, inputs), before)
        return
    heads = some_heads(model)
    with masked(model, heads):
        expected = outputs(model, inputs)
    assert torch.equal(outputs(model, inputs), before), "masking left a trace"
    assert not torch.equal(expected, before), "masking did nothing"
    smaller = copy.deepcopy(model)
    cuts = cut(smaller, heads)
    assert (outputs(smaller, inputs) - expected).abs().max() <= 1e-5
    assert units_apart(outputs(copy.deepcopy(smaller), inputs), outputs(smaller, inputs)) <= FEW_UNITS
    rebuilt, _ = specimen.build()
    apply_cuts(rebuilt, json.loads(json.dumps(cuts)))
    rebuilt.load_state_dict(smaller.state_dict())
    assert units_apart(outputs(rebuilt, inputs), outputs(smaller, inputs)) <= FEW_UNITS, (
        "a checkpoint would load another"
    )
    n_parameters = [sum(p.numel() for p in m.parameters()) for m in (model, smaller)]
    assert n_parameters[1] < n_parameters[0]


def test_offloaded_weights_are_masked_and_cut_as_in_memory(specimen: Any) -> None:
    accelerate = pytest.importorskip("accelerate")
    if specimen.library != "transformers" or specimen.name in {*REFUSED, *NOT_BY_ACCELERATE}:
        pytest.skip("not run by accelerate, or not cut")
    model, batch = specimen.build()
    heads, outside = some_heads(model), accelerate.cpu_offload(copy.deepcopy(model), torch.device("cpu"))
    before = outputs(outside, batch)
    sites = head_sites(outside)
    assert weights_fingerprint(sites) == weights_fingerprint(head_sites(model))
    with masked(model, heads), masked(outside, heads):
        assert torch.equal(outputs(outside, batch), outputs(model, batch))
    smaller = cut_model(copied(outside, [site.module for site in sites]), cut_list(outside, heads))
    cut(model, heads)
    assert any(weight.is_meta for weight in smaller.parameters())
    assert torch.equal(outputs(smaller, batch), outputs(model, batch))
    assert torch.equal(outputs(outside, batch), before), "the cut left a trace"


@pytest.mark.parametrize(
    "name", ["bert", "gpt2", "llama", "t5", "swin", "whisper", "clip", "xlnet", "bloom", "transfo-xl"]
)
def test_reloaded_weights_are_bit_identical_and_so_is_the_model_to_a_few_units(
    zoo: Any, same_weights: Any, name: str, tmp_path: Any
) -> None:
    model, inputs = zoo.BY_NAME[name].build()
    pruned = prune(PruningPlan.from_heads(model, some_heads(model)), model, inputs=[inputs], measure=False)
    pruned.save_pretrained(tmp_path / "cut")
    again = load_pruned(tmp_path / "cut")
    assert same_weights(again, pruned.model)
    assert units_apart(outputs(again, inputs), outputs(pruned.model, inputs)) <= FEW_UNITS
    pruned.save_pretrained(tmp_path / "masked", variant="masked")
    original_shape = load_model(tmp_path / "masked").model
    assert {k: v.shape for k, v in original_shape.state_dict().items()} == {
        k: v.shape for k, v in model.state_dict().items()
    }
    assert (outputs(original_shape, inputs) - outputs(pruned.model, inputs)).abs().max() <= 1e-5


def test_shared_layers_are_cut_together_or_not_at_all(zoo: Any) -> None:
    model, inputs = zoo.BY_NAME["albert"].build()
    with pytest.raises(SurgeryError, match="share the weights"):
        cut(model, [(0, 1)])
    before = outputs(model, inputs)
    with masked(model, [(0, 1)]):
        one = outputs(model, inputs)
    with masked(model, [(0, 1), (1, 1), (2, 1)]):
        every = outputs(model, inputs)
    assert not torch.equal(one, before)
    assert not torch.equal(one, every)


def test_heads_of_some_passes_are_planned_without_a_refit_and_refused_before_anything_runs(
    zoo: Any, tmp_path: Path
) -> None:
    """A minute was spent on measuring them, with weights that all passes share, before the cut was refused."""
    model, inputs = zoo.BY_NAME["albert"].build()
    generator = torch.Generator().manual_seed(0)
    data = [{"input_ids": torch.randint(3, 20, inputs["input_ids"].shape, generator=generator)} for _ in range(12)]
    report = oh.analyze(model, data=data[:2], batches=2)
    assert report.plan(heads=[(0, 1)], model=model, data=data).compensation is None
    with pytest.raises(InvalidInput, match=r"Layers 0 to 2 share their weights.*name 1\.1,2\.1 too"):
        report.plan(heads=[(0, 1)], model=model, data=data, compensate=True)
    report.save(tmp_path / "report")
    asked = ["prune", str(tmp_path / "report"), "--heads", "0.1"]
    check(build_parser().parse_args(asked))  # a plan of such heads can be masked
    with pytest.raises(InvalidInput, match="share their weights"):
        check(build_parser().parse_args([*asked, "--out", str(tmp_path / "cut")]))
