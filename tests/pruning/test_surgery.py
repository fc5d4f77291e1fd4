"""What the zoo does not show: indices worked out by hand, grouped queries, emptied layers, generation, odd inputs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import oattn_hub as oh
from oattn_hub.errors import InvalidInput, SurgeryError
from oattn_hub.pruning import PruningPlan, masked
from oattn_hub.pruning.surgery import cut, cut_list


def llama(heads: int = 32, kv_heads: int = 8) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 64, "vocab_size": 60}
    return LlamaForCausalLM(LlamaConfig(num_attention_heads=heads, num_key_value_heads=kv_heads, **sizes)).eval()


def logits(model: Any, ids: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return model(**ids).logits


def test_rows_and_columns_are_those_of_the_heads(tiny_bert: Any) -> None:
    attention = tiny_bert.encoder.layer[1].attention
    query, dense = attention.self.query.weight.clone(), attention.output.dense.weight.clone()
    cut(tiny_bert, [(1, 0), (1, 2)])
    kept = [*range(8, 16), *range(24, 32)]
    assert torch.equal(attention.self.query.weight, query[kept])
    assert torch.equal(attention.output.dense.weight, dense[:, kept])
    assert attention.self.num_attention_heads == 2
    assert attention.self.query.out_features == attention.output.dense.in_features == 16


@pytest.mark.parametrize(
    ("removed", "kv_rows"),
    [
        ([0, 1, 2, 3], 7),  # a whole group: its key/value head goes
        ([0, 5, 10, 15], 8),  # uneven groups: no key/value head can go
        ([h for h in range(32) if h % 4 == 0], 8),  # one of every group: groups of three
        (list(range(28)), 1),
    ],
)
def test_grouped_queries_32_over_8(removed: list[int], kv_rows: int, ids: dict[str, torch.Tensor]) -> None:
    model = llama()
    heads = [(1, head) for head in removed]
    with masked(model, heads):
        expected = logits(model, ids)
    smaller = copy.deepcopy(model)
    cut(smaller, heads)
    attention = smaller.model.layers[1].self_attn
    assert attention.k_proj.weight.shape[0] == attention.v_proj.weight.shape[0] == 4 * kv_rows
    assert (logits(smaller, ids) - expected).abs().max() <= 1e-5


def test_cut_model_generates_with_its_cache(ids: dict[str, torch.Tensor]) -> None:
    model = llama(8, 2)
    heads = [(0, 1), (1, 2), (1, 5)]
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    with masked(model, heads):
        expected = model.generate(**ids, **options)
    smaller = copy.deepcopy(model)
    cut(smaller, heads)
    assert torch.equal(smaller.generate(**ids, **options), expected)


def test_a_layer_without_heads_runs(tiny_bert: Any, ids: dict[str, torch.Tensor]) -> None:
    heads = [(1, head) for head in range(4)]
    with masked(tiny_bert, heads), torch.no_grad():
        expected = tiny_bert(**ids)[0]
    cut(tiny_bert, heads)
    with torch.no_grad():
        assert (tiny_bert(**ids)[0] - expected).abs().max() <= 1e-5
    assert not tiny_bert.encoder.layer[1].attention.output.dense.weight.any()


def test_every_head_of_the_model_can_go(tiny_bert: Any, ids: dict[str, torch.Tensor]) -> None:
    heads = [(layer, head) for layer in range(3) for head in range(4)]
    with masked(tiny_bert, heads), torch.no_grad():
        expected = tiny_bert(**ids)[0]
    cut(tiny_bert, heads)
    with torch.no_grad():
        assert (tiny_bert(**ids)[0] - expected).abs().max() <= 1e-5


def test_multihead_attention_with_masks_and_padding() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 48).eval()
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    inputs = {
        "src": torch.randn(7, 3, 32),
        "mask": nn.Transformer.generate_square_subsequent_mask(7),
        "src_key_padding_mask": torch.tensor([[False] * 7, [False] * 5 + [True] * 2, [False] * 7]),
    }
    inputs["src_key_padding_mask"] = torch.zeros(3, 7).masked_fill(inputs["src_key_padding_mask"], float("-inf"))
    heads = [(0, 1), (1, 0), (1, 3)]
    with masked(model, heads), torch.no_grad():
        expected = model(**inputs)
    cut(model, heads)
    with torch.no_grad():
        assert (model(**inputs) - expected).abs().max() <= 1e-5


def test_masking_ends_when_the_block_raises(tiny_bert: Any, ids: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        before = tiny_bert(**ids)[0]
    with pytest.raises(KeyError), masked(tiny_bert, [(0, 0)]):
        raise KeyError
    with torch.no_grad():
        assert torch.equal(tiny_bert(**ids)[0], before)


@pytest.mark.parametrize(("head", "message"), [((7, 0), "no layer 7"), ((0, 4), "no head 4"), ((0, -1), "no head -1")])
def test_a_head_the_model_does_not_have(tiny_bert: Any, head: tuple[int, int], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        cut_list(tiny_bert, [head])


def test_a_pruned_model_is_not_pruned_again(tiny_bert: Any) -> None:
    once = PruningPlan.from_heads(tiny_bert, [(0, 1)]).apply(tiny_bert).model
    with pytest.raises(SurgeryError, match="both plans"):
        PruningPlan.from_heads(once, [(0, 1)]).apply(once)


def test_cuts_are_plain_json(tiny_bert: Any) -> None:
    import json

    cuts = cut_list(tiny_bert, [(0, 1), (2, 3)])
    assert json.loads(json.dumps(cuts)) == cuts


def test_a_plan_for_another_model_is_refused(tiny_bert: Any) -> None:
    from transformers import BertConfig, BertModel

    plan = PruningPlan.from_heads(tiny_bert, [(0, 1)])
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "vocab_size": 60}
    with pytest.raises(InvalidInput, match="12 heads"):
        plan.apply(BertModel(BertConfig(num_attention_heads=4, **sizes)))
    twin = BertModel(BertConfig(num_attention_heads=4, **{**sizes, "num_hidden_layers": 3})).eval()
    with pytest.raises(InvalidInput, match="this model has others"):
        plan.apply(twin)
    assert plan.apply(twin, allow_other_weights=True).result.heads_after == 11


def test_a_mask_with_a_plane_for_every_head_is_cut_along() -> None:
    torch.manual_seed(0)

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = (torch.arange(2 * 4 * 5 * 5).reshape(8, 5, 5) % 7 == 3).to(x.device)
            return self.attention(x, x, x, attn_mask=hidden)[0]

    model, x = Masked().eval(), torch.randn(2, 5, 16)
    pruned = PruningPlan.from_heads(model, [(0, 1), (0, 2)]).apply(model, inputs=[{"x": x}], measure=False)
    with torch.no_grad(), masked(model, [(0, 1), (0, 2)]):
        torch.testing.assert_close(pruned.model(x), model(x), atol=1e-5, rtol=0)


def test_a_plan_finds_layers_that_only_a_forward_call_shows() -> None:
    """A plan of another process, for a model whose attention was found there by watching it."""
    from oattn_hub.adapters import learned

    torch.manual_seed(0)

    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = 4
            self.to_qkv, self.to_out = nn.Linear(16, 48), nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.to_qkv(x).chunk(3, -1))
            return self.to_out(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2))

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.mixer = nn.MultiheadAttention(16, 4, batch_first=True), Mixer()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.mixer(self.attention(x, x, x)[0])

    model, x = Both().eval(), torch.randn(2, 5, 16)
    with torch.no_grad(), oh.capture(model):
        model(x)
    plan = PruningPlan.from_heads(model, [(1, 2)])
    learned._KNOWN.clear()
    assert len(oh.adapt(model).sites) == 1
    pruned = plan.apply(model, inputs=[{"x": x}], measure=False)
    assert pruned.model.mixer.heads == 3
