"""GPT-J, GPT-Neo and Phi: causal decoders with separate projections that differ in name and position terms."""

from __future__ import annotations

from oattn_hub.adapters.base import Adapter
from oattn_hub.adapters.layout import split
from oattn_hub.adapters.registry import register


@register
class GPTJAdapter(Adapter):
    """Decoders of the years between GPT-2 and Llama."""

    name = "gptj"
    description = "split projections: gptj, gpt_neo, phi"
    modules = {"*.GPTJAttention": "gptj", "*.GPTNeoSelfAttention": "gpt_neo", "*.PhiAttention": "phi"}
    groups = {"*": "decoder"}
    layout = {
        "gptj": split("q_proj", "k_proj", "v_proj", "out_proj", counts={"num_attention_heads": "heads"}),
        "gpt_neo": split("q_proj", "k_proj", "v_proj", "out_proj", counts={"num_heads": "heads"}),
        "phi": split(
            "q_proj",
            "k_proj",
            "v_proj",
            "dense",
            counts={"num_heads": "heads", "num_key_value_heads": "kv_heads", "num_key_value_groups": "group"},
            joint_norms=("q_layernorm", "k_layernorm"),
        ),
    }
