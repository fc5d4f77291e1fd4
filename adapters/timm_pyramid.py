"""timm's hierarchical and hybrid transformers: stages of different resolution, each a group of its own."""

from __future__ import annotations

from oattn_hub.adapters.base import Adapter
from oattn_hub.adapters.registry import register


@register
class TimmPyramidAdapter(Adapter):
    """Stages, windows and reduced keys; (queries, keys) differ between stages, so a model gives several groups."""

    name = "timm_pyramid"
    description = "timm's hierarchical transformers: mvitv2, pvt_v2, maxvit, levit, cait, twins, nest, davit, xcit"
    modules = {
        "timm.models.cait.ClassAttn": "self",
        "timm.models.cait.TalkingHeadAttn": "self",
        "timm.models.crossvit.CrossAttention": "self",
        "timm.models.davit.WindowAttention": "self",
        "timm.models.efficientformer.Attention": "self",
        "timm.models.gcvit.WindowAttentionGlobal": "self",
        "timm.models.hiera.MaskUnitAttention": "self",
        "timm.models.levit.Attention": "self",
        "timm.models.levit.AttentionDownsample": "self",
        "timm.models.maxxvit.Attention2d": "self",
        "timm.models.maxxvit.AttentionCl": "self",
        "timm.models.mvitv2.MultiScaleAttention": "self",
        "timm.models.mvitv2.MultiScaleAttentionPoolFirst": "self",
        "timm.models.nest.Attention": "self",
        "timm.models.pvt_v2.Attention": "self",
        "timm.models.tiny_vit.Attention": "self",
        "timm.models.tnt.Attention": "self",
        "timm.models.twins.GlobalSubSampleAttn": "self",
        "timm.models.twins.LocallyGroupedAttn": "self",
        "timm.models.visformer.Attention": "self",
        "timm.models.volo.Attention": "self",
        "timm.models.volo.ClassAttention": "self",
        "timm.models.xcit.ClassAttention": "self",
    }
    not_token_attention = {
        "timm.models.xcit.XCA": "attention between channels (cross-covariance), not between tokens",
        "timm.models.davit.ChannelAttention*": "attention between channels, not between tokens",
        "timm.models.volo.OutlookAttention": "outlook weights made from one token, not a product of queries and keys",
        "timm.models.edgenext.CrossCovarianceAttn": "attention between channels (cross-covariance), not between tokens",
        "timm.models.efficientvit_mit.LiteMLA": "linear attention: no matrix between tokens is ever made",
        "timm.models.mobilevit.LinearSelfAttention": "linear attention: no matrix between tokens is ever made",
    }
