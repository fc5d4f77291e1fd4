"""Every family of the zoo: all of its attention is seen, it is the right attention, and the model does not notice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from oattn_hub.adapters import adapt
from oattn_hub.attention import AttentionStore, capture

KINDS = ("scores", "logits", "probs")


def _capture(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> tuple[AttentionStore, Any]:
    with torch.no_grad(), capture(model, KINDS) as store:
        output = model(**inputs)
    return store, output


def _tensors(output: Any) -> list[torch.Tensor]:
    plain = output.to_tuple() if hasattr(output, "to_tuple") else output
    return [leaf for leaf in torch.utils._pytree.tree_leaves(plain) if isinstance(leaf, torch.Tensor)]


def _softmax(logits: np.ndarray) -> np.ndarray:
    filled = np.where(np.isnan(logits), -np.inf, logits)
    exponentials = np.exp(filled - filled.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def test_zoo_is_large_enough(zoo: Any) -> None:
    libraries = [specimen.library for specimen in zoo.SPECIMENS]
    assert libraries.count("transformers") >= 25
    assert libraries.count("timm") >= 15
    assert len(zoo.BY_NAME) == len(zoo.SPECIMENS)


def test_every_attention_module_is_captured_and_the_model_does_not_notice(specimen: Any) -> None:
    model, inputs = specimen.build()
    adapter = adapt(model)
    assert adapter.name == specimen.adapter
    sites = adapter.sites
    assert [site.layer for site in sites] == list(range(specimen.n_layers))
    with torch.no_grad():
        before = _tensors(model(**inputs))
    store, output = _capture(model, inputs)
    after = _tensors(output)
    assert len(before) == len(after) > 0
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert not _traces_left(model)
    expected = {(site.layer, site.name, head) for site in sites for head in range(site.n_heads)}
    found = [(head.layer, head.layer_name, head.head) for group in store.groups for head in store.heads(group)]
    assert set(found) == expected
    assert len(found) == len(expected)
    assert store.not_run == []


def _traces_left(model: torch.nn.Module) -> list[str]:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    left = [name for name, module in model.named_modules() if "forward" in module.__dict__]
    left += [name for name, module in model.named_modules() if any(getattr(module, hook) for hook in hooks)]
    return left + ["torch function mode"] * torch._C._len_torch_function_stack()


def test_kinds_fit_together(specimen: Any) -> None:
    model, inputs = specimen.build()
    store, _ = _capture(model, inputs)
    for group in store.groups:
        scores, logits, probs = (np.asarray(store.tensor(0, kind, group)) for kind in KINDS)
        masked = np.isnan(logits)
        assert np.isfinite(scores).all()
        assert np.allclose(probs.sum(axis=1), 1.0, atol=1e-5)
        assert (probs >= 0).all()
        if not specimen.windows:
            assert np.array_equal(scores[~masked], logits[~masked])
            assert (probs[masked] == 0).all()
            assert np.allclose(_softmax(logits), probs, atol=1e-5)
        if group == "decoder" and specimen.name not in ("xlnet", "torch-transformer"):  # these two see the future
            queries, keys, _ = scores.shape
            future = np.arange(keys)[None, :] > np.arange(queries)[:, None]
            assert masked[future].all()


def test_probs_are_the_eager_weights(specimen: Any) -> None:
    if not specimen.returns_weights:
        pytest.skip("the model returns no attention weights of its own")
    model, inputs = specimen.build()
    eager, _ = specimen.build(attn="eager")
    store, _ = _capture(model, inputs)
    with torch.no_grad():
        output = eager(**inputs, output_attentions=True)
    compared = set()
    for group in store.groups:
        captured = np.asarray(store.tensor(0, "probs", group))
        weights = _returned_weights(output, group, sorted({head.layer for head in store.heads(group)}))
        for index, head in enumerate(store.heads(group)):
            if head.layer in weights:
                assert np.allclose(weights[head.layer][:, head.head].mean(dim=0), captured[:, :, index], atol=1e-5)
                compared.add(head.layer)
    assert len(compared) == (2 if specimen.name == "swin" else specimen.n_layers)


def _returned_weights(output: Any, group: str, layers: list[int]) -> dict[int, torch.Tensor]:
    """Layer -> (context, head, query, key); Swin returns the last layer of each stage only."""
    names = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}
    weights = output.get(names.get(group, "attentions")) or output["attentions"]
    return dict(zip(layers[len(layers) // len(weights) - 1 :: len(layers) // len(weights)], weights, strict=True))


def test_eager_and_fused_attention_give_the_same_tensors(specimen: Any) -> None:
    if specimen.library != "transformers":
        pytest.skip("one implementation only")
    fused, inputs = specimen.build(attn="sdpa") if specimen.name not in EAGER_ONLY else specimen.build()
    eager, _ = specimen.build(attn="eager")
    one, other = _capture(fused, inputs)[0], _capture(eager, inputs)[0]
    for group in one.groups:
        for kind in KINDS:
            a, b = np.asarray(one.tensor(0, kind, group)), np.asarray(other.tensor(0, kind, group))
            assert np.allclose(a, b, atol=1e-4, equal_nan=True), (group, kind)


EAGER_ONLY = {"deberta", "deberta-v2", "xlnet", "transfo-xl", "mpnet", "gptj", "gpt_neo", "bloom", "roformer", "gemma2"}
