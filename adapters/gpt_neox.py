"""GPT-NeoX, BLOOM and Falcon: query, key and value of one head lie side by side in one projection."""

from __future__ import annotations

from oattn_hub.adapters.base import Adapter
from oattn_hub.adapters.registry import register


@register
class GPTNeoXAdapter(Adapter):
    """Decoders with an interleaved ``query_key_value``."""

    name = "gpt_neox"
    description = "interleaved query_key_value: gpt_neox (pythia), bloom, falcon"
    modules = {"*.GPTNeoXAttention": "self", "*.BloomAttention": "self", "*.FalconAttention": "falcon"}
    groups = {"*": "decoder"}
