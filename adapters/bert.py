"""BERT and its kin: one bidirectional stack with separate query, key and value projections."""

from __future__ import annotations

from oattn_hub.adapters.base import Adapter
from oattn_hub.adapters.layout import split
from oattn_hub.adapters.registry import register


@register
class BertAdapter(Adapter):
    """BERT, RoBERTa, ELECTRA, MiniLM and others built like them."""

    name = "bert"
    description = "BERT-like encoders: bert, roberta, xlm-roberta, camembert, electra, distilbert, mpnet, MiniLM"
    modules = {
        "*.BertAttention": "self",
        "*.RobertaAttention": "self",
        "*.XLMRobertaAttention": "self",
        "*.XLMRobertaXLAttention": "self",
        "*.RobertaPreLayerNormAttention": "self",
        "*.CamembertAttention": "self",
        "*.ElectraAttention": "self",
        "*.Data2VecTextAttention": "self",
        "*.ErnieAttention": "self",
        "*.LayoutLMAttention": "self",
        "*.EsmAttention": "self",
        "*.RemBertAttention": "self",
        "*.RoFormerAttention": "self",
        "*.SplinterAttention": "self",
        "*.DistilBertSelfAttention": "distilbert",
        "*.MPNetAttention": "mpnet",
    }
    groups = {"*crossattention*": "cross", "*": "encoder"}
    layout = {
        "self": split(
            "self.query",
            "self.key",
            "self.value",
            "output.dense",
            counts={"self.num_attention_heads": "heads", "self.all_head_size": "width"},
        ),
        "distilbert": split("q_lin", "k_lin", "v_lin", "out_lin", counts={"n_heads": "heads", "dim": "width"}),
        "mpnet": split(
            "attn.q",
            "attn.k",
            "attn.v",
            "attn.o",
            counts={"attn.num_attention_heads": "heads", "attn.all_head_size": "width"},
            head_arguments=("position_bias",),
        ),
    }
