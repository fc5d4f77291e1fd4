"""Cross attention heads that follow the sound in time: a speech model's times of words are read off them.

A generation config names them. Converted folders come without it, so those of OpenAI's own models are listed here, as
published with them (github.com/openai/whisper, MIT licence); a model is known by its shape, which fine-tuning keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oattn_hub.adapters import AttentionSite
from oattn_hub.models.load import LoadedModel
from oattn_hub.records import Head

# decoder layers, heads of each, words in the vocabulary (51,864: English only) -> layer.head of the cross attention
_PUBLISHED = {
    (4, 6, 51864): "1.0 2.0 2.5 3.0 3.1 3.2 3.3 3.4",
    (4, 6, 51865): "2.2 3.0 3.2 3.3 3.4 3.5",
    (6, 8, 51864): "3.3 4.7 5.1 5.5 5.7",
    (6, 8, 51865): "3.1 4.2 4.3 4.7 5.1 5.2 5.4 5.6",
    (12, 12, 51864): "6.6 7.0 7.3 7.8 8.2 8.5 8.7 9.0 9.4 9.8 9.10 10.0 10.1 10.2 10.3 10.6 10.11 11.2 11.4",
    (12, 12, 51865): "5.3 5.9 8.0 8.4 8.7 8.8 9.0 9.7 9.9 10.5",
    (24, 16, 51864): "11.4 14.1 14.12 14.14 15.4 16.0 16.4 16.9 17.12 17.14 18.7 18.10 18.15 20.0 20.3 20.9 20.14 "
    "21.12",
    (24, 16, 51865): "13.15 15.4 15.15 16.1 20.0 23.4",
    # the first and the second large model have one shape: the heads of both
    (32, 20, 51865): "9.19 10.12 11.2 11.4 11.17 13.17 16.11 16.12 16.13 17.15 17.16 18.4 18.11 18.19 19.11 21.2 21.3 "
    "22.3 22.7 22.9 22.11 22.12 22.17 23.2 23.5 23.7 23.13 23.15 25.5 26.1 26.12 27.15",
    (32, 20, 51866): "7.0 10.17 12.18 13.12 16.1 17.14 19.11 21.4 24.1 25.6",
    (4, 20, 51866): "2.4 2.11 3.3 3.6 3.11 3.14",
}


def alignment_heads(loaded: LoadedModel, sites: Sequence[AttentionSite]) -> frozenset[Head]:
    """The heads that the model's generation config or its publisher names, in our numbers."""
    generation: Any = getattr(loaded.model, "generation_config", None)
    named = getattr(generation, "alignment_heads", None) or _published(loaded)
    cross = [site for site in sites if site.group == "cross"]
    return frozenset(
        (site.layer, int(head)) for number, site in enumerate(cross) for layer, head in named if int(layer) == number
    )


def _published(loaded: LoadedModel) -> list[tuple[int, int]]:
    config: Any = getattr(loaded.model, "config", None)
    if getattr(config, "model_type", None) != "whisper":
        return []
    shape = (config.decoder_layers, config.decoder_attention_heads, config.vocab_size)
    pairs = (pair.split(".") for pair in _PUBLISHED.get(shape, "").split())
    return [(int(layer), int(head)) for layer, head in pairs]
