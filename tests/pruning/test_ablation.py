"""Masking is compared with zeroing the attention itself, so that a wrong layout cannot go unnoticed."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import oattn_hub as oh
from oattn_hub.adapters.explain import explain
from oattn_hub.adapters.registry import adapt
from oattn_hub.errors import SurgeryError
from oattn_hub.models.load import load_model
from oattn_hub.pruning.ablation import check_masking
from oattn_hub.pruning.readout import readouts
from oattn_hub.pruning.sites import head_sites


@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_masking_is_ablation(zoo: Any, name: str) -> None:
    model, inputs = zoo.BY_NAME[name].build()
    sites = head_sites(model)

    def run() -> list[torch.Tensor]:
        return [model(**inputs).last_hidden_state]

    check_masking(model, sites, [(0, 1), (sites[-1].layer, 0)], run)
    # the same heads under other names: masking silences head 1, the ablation head 2
    swapped = [replace(site, n_heads=site.n_heads // 2, n_kv_heads=1) for site in sites]
    with pytest.raises(SurgeryError, match="is not what removing their attention is"):
        check_masking(model, swapped, [(0, 1)], run)


class Functional(torch.nn.Module):
    """Reads its output projection as a parameter: a hook on the module sees nothing, and masking does nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj, self.num_heads = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16), 4

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return torch.nn.functional.linear(y, self.proj.weight, self.proj.bias)


class DeformableAttention(torch.nn.Module):
    """Weights over a few sampled points, made from one token."""

    def __init__(self) -> None:
        super().__init__()
        self.weights, self.values, self.proj, self.num_heads = *(torch.nn.Linear(16, 16) for _ in range(3)), 4

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.weights(x).unflatten(-1, (self.num_heads, -1)).softmax(-1)
        return self.proj((weights * self.values(x).unflatten(-1, (self.num_heads, -1))).flatten(2))


def test_masking_that_does_nothing_is_an_error() -> None:
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(Functional()), torch.randn(1, 5, 16)
    with torch.no_grad(), oh.capture(model):
        model(x)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(SurgeryError, match="is not what removing their attention is"):
        oh.PruningPlan.from_heads(model, [(0, 1)]).apply(model, inputs=[{"input": x}], measure=False)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_deformable_attention_is_left_out_by_name() -> None:
    model = torch.nn.Sequential(DeformableAttention())
    with pytest.raises(oh.OattnError, match="first 0: deformable attention"), oh.capture(model):
        model(torch.randn(1, 5, 16))
    both = torch.nn.Sequential(DeformableAttention(), Functional())
    with torch.no_grad(), oh.capture(both) as store:
        both(torch.randn(1, 5, 16))
    assert store.info.skipped == {"0": adapt(both).left_out["0"]}
    assert store.shape(0) == (5, 5, 4)


def test_an_adapter_explains_what_it_knows(zoo: Any) -> None:
    records = explain(adapt(zoo.BY_NAME["bert"].build()[0]))
    assert [record["layer"] for record in records] == [0, 1]
    assert records[0]["output"] == "output.dense"
    assert records[0]["projections"] == "self.query (q), self.key (k), self.value (v)"
    assert records[0]["found"] == "described by a family"


class Masked(nn.Module):
    """A model that drops tokens at random in every call, as masked autoencoders do, also in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({name: nn.Linear(8, 8) for name in ("q", "k", "v", "o")})

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x[:, torch.randperm(x.shape[1])[:3]]
        q, k, v = (self.attention[name](x).unflatten(-1, (2, 4)).transpose(1, 2) for name in "qkv")
        mixed = (q @ k.mT).softmax(-1) @ v
        return x.mean(1), self.attention["o"](mixed.transpose(1, 2).flatten(2))


def test_a_model_that_draws_random_numbers_is_compared_on_the_same_ones() -> None:
    loaded = load_model(Masked().eval())
    first, second = (readouts(loaded, {"x": torch.arange(48.0).reshape(1, 6, 8)}) for _ in range(2))
    assert len(first) == 2  # all that it answers with, not only the first tensor
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
