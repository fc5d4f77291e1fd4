"""A cut makes nothing larger: parameters, FLOPs and the key/value cache; and generation goes on as if masked."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from oattn_hub.errors import SurgeryError
from oattn_hub.models.load import load_model
from oattn_hub.pruning import PruningPlan, load_pruned, masked
from oattn_hub.pruning.costs import cached_tensors, count_flops, kv_bytes_per_token
from oattn_hub.pruning.sites import head_sites
from oattn_hub.pruning.surgery import cut

# Uneven groups: one head of the first group, two of the second, none of the third; a whole group in layer 1.
UNEVEN = [(0, 1), (0, 4), (0, 5), (1, 3), (1, 4), (1, 5), (1, 8)]
FAMILIES = ["Llama", "Mistral", "Gemma2", "Qwen3", "Phi", "StableLm", "Starcoder2", "Cohere"]


def grouped(family: str, **more: Any) -> Any:
    """A decoder with 9 query heads in groups of three, as SmolLM2 has."""
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 72, "num_hidden_layers": 2, "intermediate_size": 48, "vocab_size": 60, "head_dim": 8}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = getattr(transformers, f"{family}Config")(
        num_attention_heads=9, num_key_value_heads=3, **sizes, **ids, **more
    )
    config.eos_token_id = None
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


def key_heads(model: Any, ids: dict[str, torch.Tensor]) -> list[int]:
    """Key/value heads in a real cache, layer by layer."""
    with torch.no_grad():
        cache = model(**ids, use_cache=True).past_key_values
    return [layer.keys.shape[1] for layer in cache.layers]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_cache_holds_every_key_head_once(family: str, ids: dict[str, torch.Tensor]) -> None:
    model = grouped(family)
    assert key_heads(model, ids) == [3, 3]
    smaller = copy.deepcopy(model)
    cut(smaller, UNEVEN)
    assert key_heads(smaller, ids) == [3, 2]
    before, after = load_model(model), load_model(smaller)
    assert count_flops(after, ids) < count_flops(before, ids)
    assert kv_bytes_per_token(after, ids) * 6 == kv_bytes_per_token(before, ids) * 5
    assert sum(p.numel() for p in smaller.parameters()) < sum(p.numel() for p in model.parameters())


GENERATION = {
    "cache": {},
    "no cache": {"use_cache": False},
    "static cache": {"cache_implementation": "static", "disable_compile": True},
    "beams": {"num_beams": 3},
}


@pytest.mark.parametrize(
    ("family", "attention"),
    [("Llama", "eager"), ("Llama", "sdpa"), ("Mistral", "sdpa"), ("Gemma2", "eager"), ("Qwen3", "sdpa")],
)
def test_generation_agrees_with_the_masked_model(family: str, attention: str, ids: dict[str, torch.Tensor]) -> None:
    window = {"sliding_window": 5} if family in ("Mistral", "Gemma2") else {}
    model = grouped(family, **window)
    model.set_attn_implementation(attention)
    smaller = copy.deepcopy(model)
    cut(smaller, UNEVEN)
    length = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    for options in GENERATION.values():
        with masked(model, UNEVEN):
            expected = model.generate(**ids, **length, **options)
        assert torch.equal(smaller.generate(**ids, **length, **options), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_checked_in_full(dtype: torch.dtype, ids: dict[str, torch.Tensor], tmp_path: Path) -> None:
    model = grouped("Llama").to(dtype)
    with torch.no_grad():  # outputs that half precision cannot hold to 1e-4
        model.lm_head.weight.mul_(100)
    pruned = PruningPlan.from_heads(model, UNEVEN).apply(model, inputs=[ids])
    assert {parameter.dtype for parameter in pruned.model.parameters()} == {dtype}
    again = load_pruned(pruned.save_pretrained(tmp_path))
    for name, value in pruned.model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)


def test_a_wrong_cut_is_noticed_in_half_precision(
    ids: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check means something: one wrong row of one projection fails it."""
    from oattn_hub.pruning import pruned as module

    def wrong(model: Any, heads: Any, adapter: Any = None) -> Any:
        cuts = right(model, heads, adapter)
        cuts["keep"][0]["ranges"] = [[1, 1 + sum(stop - start for start, stop in cuts["keep"][0]["ranges"])]]
        return cuts

    right = module.cut_list
    monkeypatch.setattr(module, "cut_list", wrong)
    model = grouped("Llama").to(torch.bfloat16)
    with pytest.raises(SurgeryError, match="differs from the masked one"):
        PruningPlan.from_heads(model, [(0, 1)]).apply(model, inputs=[ids])


def test_shared_weights_stay_shared(ids: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """Zamba's attention layers have one set of weights; a cut must not give each of them its own."""
    import transformers

    torch.manual_seed(0)
    config = transformers.ZambaConfig(
        vocab_size=60,
        hidden_size=32,
        attention_hidden_size=64,
        attention_head_dim=16,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=48,
        n_mamba_heads=2,
        mamba_d_state=4,
        mamba_dt_rank=4,
        layers_block_type=["mamba", "hybrid", "mamba", "hybrid", "mamba"],
        use_mamba_kernels=False,
        pad_token_id=0,
    )
    model = transformers.ZambaForCausalLM(config).eval()
    pruned = PruningPlan.from_heads(model, [(0, 1), (1, 1)]).apply(model, inputs=[ids])
    assert pruned.result.parameters_after < pruned.result.parameters_before
    attention = [module for name, module in pruned.model.named_modules() if name.endswith("self_attn")]
    assert attention[0].q_proj.weight is attention[1].q_proj.weight
    again: Any = load_pruned(pruned.save_pretrained(tmp_path))
    assert sum(p.numel() for p in again.parameters()) == pruned.result.parameters_after
    with pytest.raises(SurgeryError, match="share the weights"):
        cut(model, [(0, 1)])


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_capture_sees_every_kept_head_once(attention: str, ids: dict[str, torch.Tensor], tmp_path: Path) -> None:
    import oattn_hub as oh

    model = grouped("Llama")
    model.set_attn_implementation(attention)
    smaller = copy.deepcopy(model)
    cut(smaller, UNEVEN)
    with torch.no_grad(), oh.capture(smaller, kinds=("probs", "scores"), store=tmp_path / "cut") as found:
        smaller(**ids)
    with torch.no_grad(), masked(model, UNEVEN), oh.capture(model, store=tmp_path / "masked") as expected:
        model(**ids)
    kept = [i for i, head in enumerate(expected.heads()) if (head.layer, head.head) not in UNEVEN]
    probs = expected.tensor(batch=0, kind="probs")[..., kept]
    assert found.tensor(batch=0, kind="probs").shape == probs.shape
    assert abs(found.tensor(batch=0, kind="probs") - probs).max() <= 1e-6


def test_what_a_result_says(ids: dict[str, torch.Tensor]) -> None:
    model = grouped("Llama")
    text = str(PruningPlan.from_heads(model, UNEVEN).apply(model, inputs=[ids]).result)
    for words in (
        "attention heads: 18 -> 11",
        "FLOPs",
        "KV cache per token: 384 bytes -> 320 bytes",
        "prefill",
        "decod",
    ):
        assert words in text
    assert "None" not in text


def test_a_decoder_behind_an_encoder_keeps_less_and_says_so() -> None:
    from transformers import BartConfig, BartForConditionalGeneration

    layers = {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    sizes = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "vocab_size": 30}
    torch.manual_seed(0)
    model = BartForConditionalGeneration(BartConfig(**layers, **sizes, max_position_embeddings=32)).eval()
    batch = {"input_ids": torch.arange(9)[None], "decoder_input_ids": torch.arange(5)[None]}
    own = next(site for site in head_sites(model) if site.group == "decoder")
    result = PruningPlan.from_heads(model, [(own.layer, 0)]).apply(model, inputs=[batch]).result
    # keys and values of two layers of two heads of eight features, in four bytes each; what is kept of 9 tokens is not
    assert (result.kv_bytes_before, result.kv_bytes_after) == (2 * 2 * 2 * 8 * 4, 2 * 3 * 8 * 4)
    assert "decoding one token" in str(result)


def test_the_bytes_of_a_cache_are_counted(ids: dict[str, torch.Tensor]) -> None:
    model = grouped("Llama")
    with torch.no_grad():
        cache = model(**ids, use_cache=True).past_key_values
    total = sum(tensor.nbytes for tensor in cached_tensors(cache))
    assert kv_bytes_per_token(load_model(model), ids) == total // ids["input_ids"].numel() == 2 * 2 * 3 * 8 * 4
