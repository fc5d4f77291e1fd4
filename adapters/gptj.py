"""GPT-J, GPT-Neo and Phi: causal decoders with separate projections that differ in name and position terms."""

from __future__ import annotations

from oattn_hub.adapters.base import Adapter
from oattn_hub.adapters.registry import register


@register
class GPTJAdapter(Adapter):
    """Decoders of the years between GPT-2 and Llama."""

    name = "gptj"
    description = "split projections: gptj, gpt_neo, phi"
    modules = {"*.GPTJAttention": "gptj", "*.GPTNeoSelfAttention": "gpt_neo", "*.PhiAttention": "phi"}
    groups = {"*": "decoder"}
