"""Real weights, end to end: MiniLM, SmolLM2 (GGUF, grouped queries) and RXNMapper's ALBERT."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from oattn_hub.attention import calibration_inputs, capture, capture_inputs, load_model

KINDS = ("scores", "logits", "probs")
SMILES = re.compile(r"\[[^\]]+]|Br?|Cl?|[NOSPFIbcnosp().=#\-+\\/:~@?*$0-9]|>>?|%[0-9]{2}")
REACTION = "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F"


def test_minilm(minilm_folder: Path) -> None:
    loaded = load_model(minilm_folder)
    inputs = calibration_inputs(loaded, batches=2, tokens=64)
    store = capture_inputs(loaded, inputs, kinds=KINDS)
    assert store.shape(0) == (64, 64, 72)
    from transformers import AutoModel

    eager = AutoModel.from_pretrained(minilm_folder, attn_implementation="eager").eval()
    with torch.no_grad():
        weights = torch.cat(eager(**inputs[0], output_attentions=True).attentions, dim=1)[0]
    assert np.allclose(weights.permute(1, 2, 0), store.tensor(0, "probs"), atol=1e-5)


@pytest.mark.slow
def test_smollm_has_grouped_queries(smollm_folder: Path) -> None:
    loaded = load_model(smollm_folder)
    inputs = calibration_inputs(loaded, batches=1, tokens=48)
    store = capture_inputs(loaded, inputs, kinds=KINDS)
    assert store.shape(0) == (48, 48, 270)
    assert [head.layer for head in store.heads()] == [layer for layer in range(30) for _ in range(9)]
    probs, logits = store.tensor(0, "probs"), store.tensor(0, "logits")
    future = np.triu(np.ones((48, 48), dtype=bool), 1)
    assert np.isnan(logits[future]).all()
    assert np.allclose(probs.sum(axis=1), 1, atol=1e-5)
    loaded.model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = torch.cat(loaded.model(**inputs[0], output_attentions=True).attentions, dim=1)[0]
    assert np.allclose(weights.permute(1, 2, 0), probs, atol=1e-4)


def test_rxnmapper_head_5_maps_atoms(rxnmapper_folder: Path) -> None:
    """Each pass through ALBERT's one module is a layer, and head 5 looks from product atoms to reactant atoms."""
    loaded = load_model(rxnmapper_folder, allow_pickle=True)
    vocabulary = {
        token: number for number, token in enumerate((rxnmapper_folder / "vocab.txt").read_text().split("\n"))
    }
    tokens = ["[CLS]", *SMILES.findall(REACTION), "[SEP]"]
    assert "".join(tokens[1:-1]) == REACTION
    with torch.no_grad(), capture(loaded) as store:
        loaded.forward({"input_ids": torch.tensor([[vocabulary[token] for token in tokens]])})
    assert store.shape(0) == (len(tokens), len(tokens), 96)
    assert store.heads()[-1].layer_name.endswith("attention#11")
    mass = _mapped_mass(np.asarray(store.tensor(0)), tokens).reshape(12, 8)
    assert (mass.argmax(axis=1) == 5).all()
    assert mass[4:11, 5].min() > 0.6
    assert np.median(np.delete(mass, 5, axis=1)) < 0.05


def _mapped_mass(probs: np.ndarray, tokens: list[str]) -> np.ndarray:
    """Per head: attention from a product atom to reactant atoms of its element, averaged over the product's atoms."""
    arrow = tokens.index(">>")
    elements = [re.sub(r"[^a-z]", "", token.lower())[:1] for token in tokens]
    products = [i for i in range(arrow + 1, len(tokens) - 1) if elements[i]]
    partners = [[j for j in range(1, arrow) if elements[j] == elements[i]] for i in products]
    return np.mean([probs[i, js].sum(axis=0) for i, js in zip(products, partners, strict=True)], axis=0)
