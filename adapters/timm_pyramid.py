"""timm's hierarchical and hybrid transformers: stages of different resolution, each a group of its own."""

from __future__ import annotations

from dataclasses import replace

from oattn_hub.adapters.base import Adapter
from oattn_hub.adapters.layout import HeadAxis, HeadLayout, interleaved
from oattn_hub.adapters.registry import register

# The names that these families give their projections; those a module does not have are skipped.
_PLAIN = HeadLayout(
    output=HeadAxis("proj", "in"),
    projections=(
        HeadAxis("qkv", "out", ("q", "k", "v")),
        HeadAxis("qk", "out", ("q", "k")),
        HeadAxis("kv", "out", ("k", "v")),
        *(HeadAxis(name, "out", ("q",)) for name in ("q", "wq")),
        *(HeadAxis(name, "out", ("k",)) for name in ("k", "wk")),
        *(HeadAxis(name, "out", ("v",)) for name in ("v", "wv")),
    ),
    counts={"num_heads": "heads", "heads": "heads", "dim_out": "width"},
    behaviours=("fixed_width",),
    only_if={"unshared": False},
)


@register
class TimmPyramidAdapter(Adapter):
    """Stages, windows and reduced keys; (queries, keys) differ between stages, so a model gives several groups."""

    name = "timm_pyramid"
    description = "timm's hierarchical transformers: mvitv2, pvt_v2, maxvit, levit, cait, twins, nest, davit, xcit"
    modules = {
        "timm.models.cait.ClassAttn": "self",
        "timm.models.cait.TalkingHeadAttn": "talking",
        "timm.models.crossvit.CrossAttention": "self",
        "timm.models.davit.WindowAttention": "self",
        "timm.models.efficientformer.Attention": "guessed",
        "timm.models.gcvit.WindowAttentionGlobal": "guessed",
        "timm.models.hiera.MaskUnitAttention": "windows_inside",
        "timm.models.levit.Attention": "guessed",
        "timm.models.levit.AttentionDownsample": "guessed",
        "timm.models.maxxvit.Attention2d": "relative",
        "timm.models.maxxvit.AttentionCl": "relative",
        "timm.models.mvitv2.MultiScaleAttention": "self",
        "timm.models.mvitv2.MultiScaleAttentionPoolFirst": "pool_first",
        "timm.models.nest.Attention": "nest",
        "timm.models.pvt_v2.Attention": "self",
        "timm.models.tiny_vit.Attention": "guessed",
        "timm.models.tnt.Attention": "self",
        "timm.models.twins.GlobalSubSampleAttn": "self",
        "timm.models.twins.LocallyGroupedAttn": "self",
        "timm.models.visformer.Attention": "self",
        "timm.models.volo.Attention": "self",
        "timm.models.volo.ClassAttention": "self",
        "timm.models.xcit.ClassAttention": "self",
    }
    head_axes = {"windows_inside": 1, "nest": 1}  # (image, head, window, token, width)
    not_token_attention = {
        "timm.models.xcit.XCA": "attention between channels (cross-covariance), not between tokens",
        "timm.models.davit.ChannelAttention*": "attention between channels, not between tokens",
        "timm.models.volo.OutlookAttention": "outlook weights made from one token, not a product of queries and keys",
        "timm.models.edgenext.CrossCovarianceAttn": "attention between channels (cross-covariance), not between tokens",
        "timm.models.efficientvit_mit.LiteMLA": "linear attention: no matrix between tokens is ever made",
        "timm.models.mobilevit.LinearSelfAttention": "linear attention: no matrix between tokens is ever made",
    }
    layout = {
        "self": _PLAIN,
        "windows_inside": _PLAIN,
        "nest": replace(_PLAIN, output=HeadAxis("proj", "in", ("woven",))),
        # maxxvit interleaves query, key and value of a head; its bias comes from a table or a small network
        "relative": interleaved(
            "qkv",
            "proj",
            extra=(HeadAxis("rel_pos.relative_position_bias_table", 1), HeadAxis("rel_pos.mlp.fc2")),
            counts={"num_heads": "heads", "rel_pos.num_heads": "heads"},
            behaviours=("fixed_width",),
            only_if={"head_first": True},
        ),
        "talking": HeadLayout(HeadAxis("proj", "in"), refusal="its heads are mixed before and after the softmax"),
        "pool_first": HeadLayout(HeadAxis("proj", "in"), refusal="it pools the input by heads before projecting it"),
    }
