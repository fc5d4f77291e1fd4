"""CLIP-like models: two towers, one for text and one for images, each a group of its own."""

from __future__ import annotations

from oattn_hub.adapters.base import Adapter
from oattn_hub.adapters.layout import split
from oattn_hub.adapters.registry import register


@register
class ClipAdapter(Adapter):
    """CLIP and SigLIP, whole or one tower alone."""

    name = "clip"
    description = "CLIP-like two-tower models: clip, siglip; groups text and vision"
    modules = {"*.CLIPAttention": "self", "*.SiglipAttention": "self", "*.CLIPSegAttention": "self"}
    groups = {"*text*": "text", "*vision*": "vision", "*": "encoder"}
    layout = split("q_proj", "k_proj", "v_proj", "out_proj", counts={"num_heads": "heads"})
