"""ViT, DeiT and DINO of transformers: one stack over patches and special tokens, no mask."""

from __future__ import annotations

from oattn_hub.adapters.base import Adapter
from oattn_hub.adapters.layout import split
from oattn_hub.adapters.registry import register


@register
class ViTAdapter(Adapter):
    """Vision transformers of the transformers library."""

    name = "vit"
    description = "transformers' vision encoders: vit, deit, dinov2, dinov3, ijepa, vit_mae, beit, data2vec-vision"
    modules = {
        "*.ViTAttention": "self",
        "*.DeiTAttention": "self",
        "*.Dinov2Attention": "self",
        "*.Dinov2WithRegistersAttention": "self",
        "*.DINOv3ViTAttention": "self",
        "*.IJepaAttention": "self",
        "*.ViTMAEAttention": "self",
        "*.ViTMSNAttention": "self",
        "*.BeitAttention": "self",
        "*.Data2VecVisionAttention": "self",
    }
    layout = split(
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        counts={"num_attention_heads": "heads", "num_heads": "heads"},
        head_arguments=("attention_mask",),  # BEiT puts its position bias there
    )
