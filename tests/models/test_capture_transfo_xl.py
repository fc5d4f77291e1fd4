"""Capture sees every layer of Transformer-XL: scores before the mask, logits with holes, probs."""

from pathlib import Path

import numpy as np
import pytest
import torch

import oattn_hub as oh
from oattn_hub.attention import load_model

CHECKPOINT = Path(__file__).parents[1] / "data" / "models" / "transfo_xl_plain"
KINDS = ("scores", "logits", "probs")


@pytest.fixture(scope="module")
def loaded():
    return load_model(CHECKPOINT)


@pytest.mark.parametrize("mems", [None, ()], ids=["memory of zeros", "no memory"])
def test_all_kinds_of_every_layer(loaded, tmp_path, mems):
    words = torch.arange(8)[None]
    with torch.no_grad():
        plain = loaded.model(words, mems=mems, output_attentions=True)
        with oh.capture(loaded.model, kinds=KINDS, store=tmp_path / "store") as store:
            seen = loaded.model(words, mems=mems)
    assert torch.equal(seen.logits, plain.logits)
    assert [(head.layer, head.head) for head in store.heads()] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    scores, logits, probs = (store.tensor(0, kind) for kind in KINDS)
    n_memory = 5 if mems is None else 0
    assert scores.shape == (8, 8 + n_memory, 4)
    expected = torch.cat(plain.attentions, dim=1)[0].permute(1, 2, 0).numpy()
    np.testing.assert_allclose(probs, expected, atol=1e-6)
    future = np.triu(np.ones((8, 8 + n_memory), bool), 1 + n_memory)
    assert np.isfinite(scores).all()
    assert np.isnan(logits[future]).all()
    visible = np.isfinite(logits)
    np.testing.assert_array_equal(logits[visible], scores[visible])
    powers = np.where(visible, np.exp(logits), 0)
    np.testing.assert_allclose(powers / powers.sum(1, keepdims=True), probs, atol=1e-5)


def test_loading_finds_the_language_model(loaded):
    assert type(loaded.model).__name__ == "TransfoXLLMHeadModel"
    assert loaded.modality == "text"
