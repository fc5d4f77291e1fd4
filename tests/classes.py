"""Every transformers class of a family, tiny: what reloads of base and task classes are tried on.

``tiny(name)`` shrinks the class's default config by the names of its settings, and ``call(model)`` makes the
arguments of one forward call from the names in its signature.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

# What a setting becomes, by its name; a setting that the config does not have is left out.
SIZES: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "text_vocab_size"), 60),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "word_embed_proj_dim", "hidden_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "n_inner", "d_ff"), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "d_inner"), 48),
    **dict.fromkeys(("embedding_size", "classifier_proj_size"), 16),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 64),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok",), 2),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
    **dict.fromkeys(("head_dim", "d_kv", "rotary_dim", "attention_head_size"), 8),
    **dict.fromkeys(("sliding_window", "window_size", "local_attention"), 6),
    **{"image_size": 32, "patch_size": 8, "num_mel_bins": 16, "max_source_positions": 20, "max_target_positions": 16},
    **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 2, "sep_token_id": 2},
    **{"cls_token_id": 1, "mask_token_id": 3, "forced_eos_token_id": None, "image_token_id": 59},
    **{"conv_dim": [16, 16], "conv_kernel": [10, 3], "conv_stride": [5, 2], "num_feat_extract_layers": 2},
    **{"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "position_buckets": 8, "type_vocab_size": 2},
    **{
        "attention_types": [[["global", "local"], 1]],
        "num_labels": 3,
        "mm_tokens_per_image": 4,
        "global_attn_every_n_layers": 2,
    },
    **{"partial_rotary_factor": 0.5, "rotary_pct": 0.5, "use_relative_position_bias": True},
}


def tiny(name: str, **more: Any) -> Any:
    """A model of this class in eval mode, random weights from a fixed seed, nothing in it zero."""
    import transformers

    cls = getattr(transformers, name)
    torch.manual_seed(0)
    model = cls(tiny_config(cls.config_class, **more)).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in (each for each in model.parameters() if each.requires_grad):
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator) + (parameter.dim() == 1))
    return model


def tiny_config(config_class: Any, **more: Any) -> Any:
    """The config with small sizes, and so are the configs inside it."""
    if "backbone_config" in getattr(config_class, "sub_configs", {}):
        raise ValueError("has a backbone")
    whole = config_class() if config_class.sub_configs else None
    inner = {key: tiny_config(type(getattr(whole, key))) for key in config_class.sub_configs if getattr(whole, key)}
    known = {*inspect.signature(config_class).parameters, *config_class.attribute_map}
    sizes = {key: value for key, value in SIZES.items() if key in known and key not in config_class.attribute_map}
    return config_class(**{**sizes, **inner, **more})


def call(model: Any) -> dict[str, torch.Tensor]:
    """The arguments of one forward call."""
    wanted = inspect.signature(model.forward).parameters
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(4, 50, (1, 12), generator=generator)
    inputs: dict[str, torch.Tensor] = {}
    if "input_ids" in wanted:
        inputs["input_ids"] = ids
    if "decoder_input_ids" in wanted:
        inputs["decoder_input_ids"] = ids[:, :7]
    writes_about_images = hasattr(model.config, "image_token_id") or hasattr(model.config, "image_token_index")
    if "pixel_values" in wanted and not writes_about_images:
        inputs["pixel_values"] = torch.randn(1, 3, 32, 32, generator=generator)
    if "input_values" in wanted:
        inputs["input_values"] = torch.randn(1, 400, generator=generator)
    if "input_features" in wanted:
        inputs["input_features"] = torch.randn(1, 16, 40, generator=generator)
    return inputs


def family(config_name: str) -> list[str]:
    """The names of the model classes that Auto classes know for a config."""
    import transformers
    from transformers.models.auto import modeling_auto

    model_type = getattr(transformers, config_name).model_type
    names: set[str] = set()
    for table in vars(modeling_auto).values():
        if isinstance(table, dict) and model_type in table:
            entry = table[model_type]
            names |= {entry} if isinstance(entry, str) else set(entry)
    return sorted(name for name in names if hasattr(getattr(transformers, name, None), "config_class"))
