"""The trained weights kept in examples/paper load by our own `load_model` and do what their cards say."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from oattn_hub.attention import load_model

PAPER = Path(__file__).parents[2] / "examples" / "paper"
LARGEST = 5_000_000


@pytest.mark.parametrize("name", ["vit_cifar10", "transfo_xl_wikitext2"])
def test_weights_are_small_and_have_a_card(name):
    assert (PAPER / name / "model.safetensors").stat().st_size < LARGEST
    assert "license:" in (PAPER / name / "README.md").read_text(encoding="utf-8")


def test_vit_has_the_promised_shape_and_processor(vit_folder):
    loaded = load_model(vit_folder)
    pixels = loaded.processor(images=Image.new("RGB", (32, 32), "red"), return_tensors="pt")
    output = loaded.model(**pixels, output_hidden_states=True)
    assert loaded.modality == "image"
    assert output.logits.shape == (1, 10)
    assert output.hidden_states[0].shape == (1, 65, 128)
    assert (loaded.model.config.num_hidden_layers, loaded.model.config.num_attention_heads) == (6, 8)


def test_vit_classifies_cifar_images(vit_folder, shared_data):
    loaded = load_model(vit_folder)
    with np.load(shared_data / "cifar10-test.npz") as file:
        images, labels = file["images"][:500], file["labels"][:500]
    pixels = loaded.processor(images=[Image.fromarray(image) for image in images], return_tensors="pt")
    with torch.no_grad():
        hits = (loaded.model(**pixels).logits.argmax(1).numpy() == labels).mean()
    assert hits > 0.5  # chance is 0.1; 500 images know the accuracy to about 0.04


def test_transformer_xl_has_learnt_english_word_order(wikitext_excerpt):
    """It knows real text much better than the same words shuffled, which only word frequencies could predict."""
    loaded = load_model(PAPER / "transfo_xl_wikitext2")
    words = loaded.processor(wikitext_excerpt.read_text(encoding="utf-8"), return_tensors="pt").input_ids[:, :512]
    shuffled = words[:, torch.randperm(words.shape[1], generator=torch.Generator().manual_seed(0))]
    with torch.no_grad():
        real, mixed = (loaded.model(text, labels=text).loss.item() for text in (words, shuffled))
    assert real < np.log(loaded.model.config.vocab_size) - 2
    assert real < mixed - 0.2
