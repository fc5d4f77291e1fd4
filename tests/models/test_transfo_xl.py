"""Transformer-XL gives the answers of transformers 4.35 (tests/data/models/make_transfo_xl_reference.py)."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from oattn_hub.attention import load_model
from oattn_hub.errors import LoadError
from oattn_hub.models.aligned import FEW_UNITS, units_apart
from oattn_hub.models.transfo_xl import TransfoXLConfig, TransfoXLLMHeadModel

REFERENCES = Path(__file__).parents[1] / "data" / "models"
CASES = ["wt103", "plain"]


@pytest.fixture(scope="module", params=CASES)
def old(request):
    """The checkpoint loaded by us, and the inputs and answers of the old release."""
    folder = REFERENCES / f"transfo_xl_{request.param}"
    model, info = TransfoXLLMHeadModel.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    return model.eval(), load_file(folder / "reference.safetensors")


def assert_same(ours, theirs):
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("start", ["zeros", "empty"])
def test_two_segments_equal_the_old_release(old, start):
    model, reference = old
    mems = None if start == "zeros" else ()
    with torch.no_grad():
        for segment in range(2):
            words = reference[f"words.{segment}"]
            output = model(words, mems=mems, output_attentions=True, output_hidden_states=True)
            answer = f"{start}.{segment}"
            assert_same(output.logits, reference[f"{answer}.log_probabilities"])
            assert_same(output.hidden_states[-1], reference[f"{answer}.hidden"])
            assert_same(model(words, mems=mems, labels=words).loss, reference[f"{answer}.loss"])
            for layer in range(2):
                assert_same(output.attentions[layer], reference[f"{answer}.attention.{layer}"])
                assert_same(output.mems[layer], reference[f"{answer}.memory.{layer}"])
            mems = output.mems


def test_saved_and_loaded_again_gives_the_same(old, same_weights, tmp_path):
    model, reference = old
    model.save_pretrained(tmp_path)
    again = TransfoXLLMHeadModel.from_pretrained(tmp_path).eval()
    words = reference["words.0"]
    assert same_weights(again, model)
    assert units_apart(model(words).logits, again(words).logits) <= FEW_UNITS
    assert again.crit.out_layers[0].weight is again.transformer.word_emb.emb_layers[0].weight


def test_log_probabilities_of_the_adaptive_softmax_sum_to_one(old):
    model, reference = old
    total = model(reference["words.0"]).logits.exp().sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total))


def test_losses_are_the_log_probabilities_of_the_next_words_in_order(old):
    model, reference = old
    words = reference["words.0"]
    labels = words.clone()
    labels[0, 3] = -100
    expected = -model(words).logits[:, :-1].gather(2, words[:, 1:, None])[..., 0]
    expected[0, 2] = 0.0
    output = model(words, labels=labels)
    assert_same(output.losses, expected)
    assert_same(output.loss, expected.sum() / (expected.numel() - 1))


def tiny(**options):
    shape = {"vocab_size": 40, "cutoffs": [10], "d_model": 16, "d_embed": 16, "n_head": 2, "d_head": 8, "d_inner": 16}
    torch.manual_seed(0)
    return TransfoXLLMHeadModel(TransfoXLConfig(**{**shape, "n_layer": 2, "clamp_len": -1, **options})).eval()


@pytest.mark.parametrize("cutoffs", [[], [10, 20]])
def test_tables_without_projections_are_tied_too(cutoffs, tmp_path):
    model = tiny(div_val=1, cutoffs=cutoffs, mem_len=4)
    model.save_pretrained(tmp_path)
    again, info = TransfoXLLMHeadModel.from_pretrained(tmp_path, output_loading_info=True)
    words = torch.randint(0, 40, (2, 7))
    assert not info["missing_keys"]
    assert again.crit.out_layers[0].weight is again.transformer.word_emb.emb_layers[0].weight
    assert units_apart(again.eval()(words).logits, model(words).logits) <= FEW_UNITS
    assert_same(model(words).logits.exp().sum(-1), torch.ones(2, 7))


def test_sizes_are_the_published_ones():
    """285 million parameters on the Hub; 151 million in Dai et al., Table 1 (16 layers, width 410)."""
    standard = {"n_layer": 16, "d_model": 410, "d_embed": 410, "n_head": 10, "d_head": 41, "d_inner": 2100}
    with torch.device("meta"):
        models = [TransfoXLLMHeadModel(TransfoXLConfig(**shape)) for shape in ({}, {**standard, "div_val": 1})]
    millions = [round(sum(p.numel() for p in model.parameters()) / 1e6) for model in models]
    assert millions == [285, 151]


def test_memory_joins_two_segments_to_one_context():
    """The second half read with the first in memory equals the whole read at once."""
    model = tiny(mem_len=6, same_length=False)
    words = torch.randint(0, 40, (1, 12))
    whole = model(words, mems=()).logits
    first = model(words[:, :6], mems=())
    second = model(words[:, 6:], mems=first.mems)
    assert_same(torch.cat([first.logits, second.logits], dim=1), whole)


def test_the_future_does_not_matter():
    model = tiny(mem_len=4, same_length=True)
    words = torch.randint(0, 40, (1, 8))
    changed = words.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 40
    assert torch.equal(model(words).logits[:, :5], model(changed).logits[:, :5])
    assert not torch.equal(model(words).logits[:, 5:], model(changed).logits[:, 5:])


def test_all_parameters_learn():
    model = tiny(mem_len=4, same_length=False).train()
    words = torch.randint(0, 40, (4, 12))
    model(words, labels=words).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_settings_that_cannot_work_are_named():
    with pytest.raises(ValueError, match="same_length=True needs mem_len > 0"):
        TransfoXLConfig(mem_len=0)
    with pytest.raises(ValueError, match="attn_type must be 0"):
        TransfoXLConfig(attn_type=2)
    mask = torch.tensor([[0, 1, 1]])
    with pytest.raises(ValueError, match="padding_side='right'"):
        tiny(mem_len=4)(torch.tensor([[0, 1, 2]]), attention_mask=mask)


def test_the_hubs_pickle_with_every_tied_name_loads_when_allowed(old, same_weights, tmp_path):
    """The Hub's pytorch_model.bin holds tied tables under both names, and the position waves as a buffer."""
    model, reference = old
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    state = {**model.state_dict(), "transformer.pos_emb.inv_freq": torch.ones(8)}
    torch.save(state, tmp_path / "pytorch_model.bin")
    again = load_model(tmp_path, allow_pickle=True).model
    assert same_weights(again, model)
    assert units_apart(again(reference["words.0"]).logits, model(reference["words.0"]).logits) <= FEW_UNITS
    with pytest.raises(LoadError, match="allow_pickle=True"):
        load_model(tmp_path)


def test_forgetting_the_memory_makes_attention_square(old):
    model, reference = old
    words = reference["words.0"]
    expected = model(words, mems=(), output_attentions=True).attentions
    again = type(model)(model.config).eval()
    again.load_state_dict(model.state_dict())
    again.transformer.forget_memory()
    for ours, theirs in zip(again(words, output_attentions=True).attentions, expected, strict=True):
        assert ours.shape[2:] == (8, 8)
        if not model.config.same_length:
            assert units_apart(ours, theirs) <= FEW_UNITS
