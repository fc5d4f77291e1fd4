"""timm's ViT-like models: query, key and value fused in one Linear called ``qkv``."""

from __future__ import annotations

from oattn_hub.adapters.base import Adapter
from oattn_hub.adapters.layout import Count, HeadAxis, HeadLayout
from oattn_hub.adapters.registry import register

# Everything a ViT of timm may have with heads in it; what a model does not have is skipped.
_QKV = (
    HeadAxis("qkv", "out", ("q", "k", "v")),
    HeadAxis("q_proj", "out", ("q",)),
    HeadAxis("k_proj", "out", ("k",)),
    HeadAxis("v_proj", "out", ("v",)),
    HeadAxis("q_bias", 0, ("q",)),
    HeadAxis("k_bias", 0, ("k",)),
    HeadAxis("v_bias", 0, ("v",)),
    HeadAxis("gate", "out", ("q",)),
)
_COUNTS: dict[str, Count] = {
    "num_heads": "heads",
    "num_kv_heads": "kv_heads",
    "num_kv_groups": "group",
    "attn_dim": "width",
    "kv_dim": "kv_width",
}


@register
class TimmViTAdapter(Adapter):
    """Plain vision transformers of timm."""

    name = "timm_vit"
    description = "timm's plain vision transformers: vit, deit, deit3, beit, eva02, dinov2/3, siglip, naflexvit"
    modules = {
        "timm.layers.attention.Attention": "fused",
        "timm.layers.attention.AttentionRope": "fused",
        "timm.layers.attention_pool.AttentionPoolLatent": "pool",
        "timm.models.beit.Attention": "fused",
        "timm.models.eva.EvaAttention": "eva",
        "timm.models.vision_transformer_relpos.RelPosAttention": "fused",
    }
    groups = {"*attn_pool*": "pool", "*": "encoder"}
    layout = {
        "fused": HeadLayout(
            output=HeadAxis("proj", "in"),
            projections=(
                *_QKV,
                HeadAxis("relative_position_bias_table", 1, ("h",)),
                HeadAxis("rel_pos.relative_position_bias_table", 1, ("h",)),
                HeadAxis("rel_pos.mlp.fc2", "out", ("h",)),
            ),
            counts={**_COUNTS, "rel_pos.num_heads": "heads"},
            behaviours=("fixed_width",),
            head_arguments=("shared_rel_pos_bias", "shared_rel_pos"),
            joint_norms=("norm",),
        ),
        "eva": HeadLayout(
            output=HeadAxis("proj", "in"),
            projections=_QKV,
            counts=_COUNTS,
            behaviours=("fixed_width",),
            joint_norms=("norm",),
        ),
        "pool": HeadLayout(
            output=HeadAxis("proj", "in"),
            projections=(HeadAxis("q", "out", ("q",)), HeadAxis("kv", "out", ("k", "v"))),
            counts=_COUNTS,
            behaviours=("fixed_width",),
        ),
    }
