"""Tiny models of every transformers model type and timm family, from configs that are shrunk by rules.

No list of families: attributes of a config are recognised by their names, so that a type that is new tomorrow is tried
as well. What cannot be built this way is reported as such and counts neither for nor against us.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

Inputs = dict[str, Any]
WIDTH, HEADS, HEAD_DIM, LAYERS, VOCABULARY, TOKENS = 32, 4, 8, 2, 160, 12
FIRST_WORD = 60  # ids below are special tokens

# name of an integer attribute -> its size in a tiny model, -1 to leave it; the first pattern that fits counts
_SIZES: list[tuple[str, int]] = [
    (r"num_channels|in_channels|num_input_channels|in_chans|type_vocab_size|pad_token|num_labels", -1),
    (r"(num_|n_)?(key_value|kv)_heads|multi_query_group_num|num_global_key_value_heads", 2),
    (r"n_?head|nhead|heads|.*_heads?", HEADS),
    (r"head_size|d_kv|d_head|kv_channels|.*head_dim", HEAD_DIM),
    (r".*lora_rank", 16),
    (r".*ffn_dim|d_ff|d_inner|n_inner|.*intermediate.*|ffn_hidden_size|mlp_dim|ff_dim|dim_ff", 48),
    (r".*_layers?|n_layer|depth|num_blocks|.*_depth", LAYERS),
    (r".*vocab_size", VOCABULARY),
    (r"num_(local_)?experts|n_routed_experts|moe_num_experts|num_routed_experts", 4),
    (r"num_experts_per_tok(en)?|moe_topk|moe_k|(moe_)?top_k|num_selected_experts|n_group|topk_group", 1),
    (
        r".*hidden_size|d_model|n_embd|.*embed_dim|embedding_size|.*hidden_dim|dim|width|projection_dim|.*_proj_dim",
        WIDTH,
    ),
    (r"dim_model|encoder_dim|decoder_dim|embedding_dim|cross_attention_dim|d_latents|latent_dim", WIDTH),
    (r"image_size|img_size|input_size|crop_size", 32),
    (r"patch_size", 8),
    (r"max_position_embeddings|n_positions|max_(source|target)_positions|n_ctx|max_seq(uence)?_len(gth)?", 64),
    (r"num_queries|num_latents|num_query_tokens", 6),
]
_LISTS = [
    (r".*heads.*", HEADS),
    (r"depths|.*num_blocks|.*layers.*|.*blocks", 1),
    (r".*(hidden_sizes|embed_dims?|dims|channels|widths|planes)", WIDTH),
]
_TABLES = ("MODEL", "MODEL_FOR_PRETRAINING", "MODEL_FOR_CAUSAL_LM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT", "MODEL_FOR_CTC", "MODEL_FOR_DEPTH_ESTIMATION", "MODEL_FOR_OBJECT_DETECTION",
    "MODEL_FOR_UNIVERSAL_SEGMENTATION", "MODEL_FOR_KEYPOINT_MATCHING", "MODEL_FOR_SPEECH_SEQ_2_SEQ")  # fmt: skip
_FEATURES = ("num_mel_bins", "feature_size", "input_feat_per_channel", "input_dim", "feature_projection_input_dim")


def shrink(config: Any) -> Any:
    """Make every part of a config tiny, in place."""
    layers = _old_layers(config)
    special = iter(range(3, FIRST_WORD))
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            shrink(value)
        elif name.endswith(("_token_id", "_token_index", "_token_ids")) and isinstance(value, int):
            _set(config, name, next(special))
        elif isinstance(value, bool) or name.startswith("_"):
            continue
        elif isinstance(value, int):
            size = next((size for pattern, size in _SIZES if re.fullmatch(pattern, name)), -1)
            if size > 0 and value > 0:
                _set(config, name, min(value, size))
        elif isinstance(value, list | tuple) and value:
            _set(config, name, _short_list(name, value, layers))
    for name, token in (("pad_token_id", 0), ("bos_token_id", 1), ("eos_token_id", 2), ("decoder_start_token_id", 1)):
        if hasattr(config, name):
            _set(config, name, token)
    return config


def _old_layers(config: Any) -> int:
    return int(getattr(config, "num_hidden_layers", 0) or 0)


def _set(config: Any, name: str, value: Any) -> None:
    try:
        setattr(config, name, value)
    except (AttributeError, NotImplementedError, ValueError, TypeError):
        return


def _short_list(name: str, value: Any, layers: int) -> Any:
    kind = type(value)
    if name == "mrope_section":
        return [2, 1, 1]
    if len(value) == layers > LAYERS and name not in ("depths",):
        # keep one layer of every kind
        kinds = {str(entry): entry for entry in value}
        return (
            kind(([*kinds.values()] * LAYERS)[: max(LAYERS, len(kinds))]) if len(kinds) <= 4 else kind(value[:LAYERS])
        )
    if not all(isinstance(entry, int) and not isinstance(entry, bool) for entry in value):
        return value
    size = next((size for pattern, size in _LISTS if re.fullmatch(pattern, name)), -1)
    if name in ("image_size", "img_size"):
        return kind([32] * len(value))
    return value if size < 0 else kind(min(entry, size) for entry in value)


def tiny_config(model_type: str) -> Any:
    """The config of a model type, shrunk."""
    from transformers import CONFIG_MAPPING

    config = shrink(CONFIG_MAPPING[model_type]())
    kinds = getattr(config, "layer_types", None)
    if isinstance(kinds, list):
        _set(config, "num_hidden_layers", len(kinds))
    return config


def model_classes(model_type: str) -> Iterator[Any]:
    """The classes that may build a type, the base model first."""
    import transformers
    from transformers import CONFIG_MAPPING
    from transformers.models.auto import modeling_auto

    for table in _TABLES:
        mapping = getattr(modeling_auto, f"{table}_MAPPING", None) or getattr(transformers, f"{table}_MAPPING", None)
        try:
            found = mapping[CONFIG_MAPPING[model_type]]
        except (KeyError, TypeError, ImportError, AttributeError):
            continue
        yield from found if isinstance(found, tuple) else (found,)


def build(model_type: str, attn: str | None = None) -> tuple[nn.Module, Inputs]:
    """A tiny model with random weights and inputs that it takes; raises the last reason if there are none."""
    reason: Exception = ValueError("no model class")
    for model_class in model_classes(model_type):
        try:
            torch.manual_seed(0)
            config = tiny_config(model_type)
            if attn is not None:
                config._attn_implementation = attn
            model = randomised(model_class(config).float().eval())
        except Exception as error:  # a shrunk config may break anything
            reason = error
            continue
        for inputs in inputs_for(model, config):
            try:
                with torch.no_grad():
                    model(**inputs)
            except Exception as error:
                reason = error
            else:
                return model, inputs
    raise reason


def randomised(model: nn.Module) -> nn.Module:
    """Weights large enough that heads differ: many classes begin with zeros."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.dim() > 1:
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.15)
        elif parameter.is_floating_point() and "norm" not in name.lower() and name.endswith("bias"):
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return model


def inputs_for(model: nn.Module, config: Any) -> Iterator[Inputs]:
    """Inputs that a model of this signature may take, likely ones first."""
    names = set(inspect.signature(model.forward).parameters)
    main = getattr(model, "main_input_name", "input_ids")
    torch.manual_seed(1)
    ids = torch.randint(FIRST_WORD, VOCABULARY - 1, (1, TOKENS))
    text: Inputs = {"input_ids": ids} if "input_ids" in names else {}
    if "attention_mask" in names and text:
        text["attention_mask"] = torch.ones_like(ids)
    decoder: Inputs = {"decoder_input_ids": ids[:, :7]} if "decoder_input_ids" in names else {}
    if "bbox" in names:
        text["bbox"] = torch.randint(0, 50, (1, TOKENS, 4)).sort(-1).values
    images = [
        {"pixel_values": torch.rand(1, channels, size, size)} for size in _image_sizes(config) for channels in (3, 1)
    ]
    if text:
        yield {**text, **decoder}
        yield text
    if "pixel_values" in names or main == "pixel_values":
        for image in images:
            yield {**image, **text}
            yield image
            yield {**image, **decoder}
        yield {"pixel_values": torch.rand(1, 2, 3, 32, 32)}
    for name in ("input_features", "input_values", main):
        if name in names and name not in ("input_ids", "pixel_values"):
            for shape in _audio_shapes(config):
                yield {name: torch.randn(shape), **decoder}
                yield {name: torch.randn(shape), **text}
    if "pixel_values_videos" in names:
        yield {"pixel_values_videos": torch.rand(1, 4, 3, 32, 32)}


def _image_sizes(config: Any) -> list[int]:
    owners = [config, getattr(config, "vision_config", None), getattr(config, "backbone_config", None)]
    found = [getattr(owner, "image_size", None) for owner in owners if owner is not None]
    sizes = [size[0] if isinstance(size, list | tuple) else size for size in found if size]
    return [*dict.fromkeys([*sizes, 32, 64, 128])]


def _audio_shapes(config: Any) -> list[tuple[int, ...]]:
    sizes = [getattr(config, name, None) for name in _FEATURES]
    mel = next((size for size in sizes if isinstance(size, int)), 80)
    frames = 2 * (getattr(config, "max_source_positions", 0) or 16)
    return [
        (1, mel, frames),
        (1, 32, mel),
        (1, 1600),
        (1, 4000),
        (1, 1, 3200),
        (1, 1, 64, 64),
        (1, 1024, 128),
        (1, 12, WIDTH),
    ]


def timm_names() -> list[str]:
    """The smallest-looking model of every timm module that has attention in its source."""
    import timm

    found = {}
    for module in timm.list_modules():
        source = inspect.getsource(__import__(f"timm.models.{module}", fromlist=["x"]))
        if re.search(r"softmax|scaled_dot_product|Attention", source):
            names = timm.list_models(module=module)
            found[module] = min(
                names,
                key=lambda name: (not re.search("tiny|nano|atto|_xs|small|_s_|_t_|_s0|_m0", name), len(name)),
                default=None,
            )
    return [name for name in found.values() if name]


def build_timm(name: str) -> tuple[nn.Module, Inputs]:
    """A timm model of its own size with random weights, and an image."""
    import timm

    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=10).eval()
    size = model.pretrained_cfg.get("input_size", (3, 224, 224))
    for parameter in model.parameters():
        if parameter.dim() == 1 and float(parameter.abs().max()) <= 1e-4:  # layer scales and gates that begin at zero
            parameter.data.fill_(0.1)
    return model, {"x": torch.randn(1, *size)}
