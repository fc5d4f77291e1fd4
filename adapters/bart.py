"""BART-like models: encoder, decoder and cross attention with ``out_proj``."""

from __future__ import annotations

from oattn_hub.adapters.base import Adapter
from oattn_hub.adapters.layout import split
from oattn_hub.adapters.registry import register


@register
class BartAdapter(Adapter):
    """BART and the encoder-decoders (and decoders) derived from it."""

    name = "bart"
    description = "BART-like: bart, mbart, pegasus, marian, blenderbot, m2m_100, opt, biogpt"
    modules = {
        "*.BartAttention": "self",
        "*.MBartAttention": "self",
        "*.PegasusAttention": "self",
        "*.MarianAttention": "self",
        "*.BlenderbotAttention": "self",
        "*.BlenderbotSmallAttention": "self",
        "*.M2M100Attention": "self",
        "*.PLBartAttention": "self",
        "*.OPTAttention": "self",
        "*.BioGptAttention": "self",
    }
    groups = {"*encoder_attn*": "cross", "*decoder*": "decoder", "*encoder*": "encoder", "*": "decoder"}
    layout = split("q_proj", "k_proj", "v_proj", "out_proj", counts={"num_heads": "heads"})
