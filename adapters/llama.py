"""Llama-like decoders: separate projections, rotary positions, grouped queries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oattn_hub.adapters.base import Adapter
from oattn_hub.adapters.layout import split
from oattn_hub.adapters.registry import register

if TYPE_CHECKING:
    from torch import nn


@register
class LlamaAdapter(Adapter):
    """Llama and the many decoders with its attention: ``q_proj``, ``k_proj``, ``v_proj``, ``o_proj``."""

    name = "llama"
    description = (
        "Llama-like, grouped queries: llama, smollm, mistral, mixtral, qwen2/3, gemma 1-3, olmo, granite, cohere"
    )
    modules = {
        "*.LlamaAttention": "self",
        "*.MistralAttention": "self",
        "*.MixtralAttention": "self",
        "*.Qwen2Attention": "self",
        "*.Qwen2MoeAttention": "self",
        "*.Qwen3Attention": "self",
        "*.Qwen3MoeAttention": "self",
        "*.GemmaAttention": "self",
        "*.Gemma2Attention": "self",
        "*.Gemma3Attention": "self",
        "*.SmolLM3Attention": "self",
        "*.OlmoAttention": "self",
        "*.Olmo2Attention": "self",
        "*.GraniteAttention": "self",
        "*.CohereAttention": "self",
        "*.StableLmAttention": "self",
        "*.Starcoder2Attention": "self",
    }
    groups = {"*": "decoder"}
    layout = split(
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        counts={
            "num_heads": "heads",
            "num_attention_heads": "heads",
            "num_key_value_heads": "kv_heads",
            "num_key_value_groups": "group",
        },
        joint_norms=("q_norm", "k_norm"),
    )

    # Widths come from the projections, not from the config: a pruned checkpoint has its own count in every layer.
    def n_heads(self, module: nn.Module) -> int:
        """Width of the output projection's input over the width of a head."""
        attention: Any = module
        return int(attention.o_proj.in_features // attention.head_dim)

    def n_kv_heads(self, module: nn.Module) -> int:
        """Width of the key projection over the width of a head."""
        attention: Any = module
        return int(attention.k_proj.out_features // attention.head_dim)
