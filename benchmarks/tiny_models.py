"""Tiny models of every transformers model type and timm family, from configs that are shrunk by rules.

No list of families: attributes of a config are recognised by their names, so that a type that is new tomorrow is tried
as well. What cannot be built this way is reported as such and counts neither for nor against us.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

Inputs = dict[str, Any]
WIDTH, HEADS, HEAD_DIM, LAYERS, VOCABULARY, TOKENS = 32, 4, 8, 2, 160, 12
FIRST_WORD = 60  # ids below are special tokens

_KV_HEADS = r"(num_|n_)?(key_value|kv)_heads|multi_query_group_num|num_global_key_value_heads"
# name of an integer attribute -> its size in a tiny model, -1 to leave it; the first pattern that fits counts
_SIZES: list[tuple[str, int]] = [
    (
        r"num_feat_extract_layers|num_channels|in_channels|num_input_channels|in_chans|type_vocab_size|pad_token|num_labels",
        -1,
    ),
    (_KV_HEADS, 2),
    (r"head_size|d_kv|d_head|kv_channels|.*head_dim", HEAD_DIM),
    (r"n_?head|nhead|heads|.*_heads?", HEADS),
    (r".*lora_rank", 16),
    (r"rotary_(n)?dims?|rotary_embedding_base_dim", HEAD_DIM),
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
_DEPTHS = [
    (r"num_feat_extract_layers", -1),
    *((pattern, size) for pattern, size in _SIZES if size in (LAYERS, VOCABULARY) and "kv" not in pattern),
    (r"num_(local_)?experts|n_routed_experts|moe_num_experts|num_routed_experts", 4),
]
# settings without a default, or that other settings of a tiny model must fit
_SERIES = {"prediction_length": 6, "context_length": 12, "lags_sequence": [1, 2]}
_ROTATION = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0, "mrope_section": [2, 1, 1]}
_SECTIONS = {"rope_parameters": _ROTATION}
_NEEDED: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("glm4v_text", "glm4v_moe_text", "glm_image_text", "glm_ocr_text"), _SECTIONS),
    "autoformer": _SERIES,
    "informer": _SERIES,
    "time_series_transformer": _SERIES,
    "esm": {"vocab_size": 33},
    "bamba": {"attn_layer_indices": [1]},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "chameleon": {"vocabulary_map": {"<image>": 5}},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "num_hidden_layers": 2},
    "falcon_h1": {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_ssm": 64, "mamba_d_state": 16},
    # what a config is refused without when it is saved
    "dots3_note_vision_encoder": {"adapter_in_dim": WIDTH, "adapter_out_dim": WIDTH},
    "dots3_note_audio_encoder": {"adapter_input_size": WIDTH, "adapter_out_dim": WIDTH},
    "FunAsrNanoAdaptorConfig": {"intermediate_size": WIDTH // 4},
    "GradiumPhononTTSFlowHeadConfig": {"condition_dim": WIDTH},
    "PocketTTSFlowHeadConfig": {"condition_dim": WIDTH},
    "molmo2_adapter": {"vision_feature_layer": [0, 1]},
    "muse_spark_audio": {"num_hidden_layers": 4},
}
LARGEST = 60_000_000  # parameters of a model whose widths cannot be shrunk
_WAYS = ((True, 1), (False, 1), (True, 4), (True, 0))  # (config made anew, scale of the widths)
_WIDTHS = (WIDTH, HEAD_DIM, 16, 48)
_OF_THE_LIBRARY = {"model_type", "transformers_version", "architectures", "dtype", "torch_dtype", "out_features"}
_ORIGINALS = ("num_hidden_layers", "hidden_size", "num_attention_heads")
_LISTS = [
    (r".*heads.*", HEADS),
    (r"depths|.*num_blocks|.*layers.*|.*blocks", 1),
    (r".*(hidden_sizes|embed_dims?|dims|channels|widths|planes)", WIDTH),
]
_TABLES = ("MODEL", "MODEL_FOR_PRETRAINING", "MODEL_FOR_CAUSAL_LM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT", "MODEL_FOR_CTC", "MODEL_FOR_DEPTH_ESTIMATION", "MODEL_FOR_OBJECT_DETECTION",
    "MODEL_FOR_UNIVERSAL_SEGMENTATION", "MODEL_FOR_KEYPOINT_MATCHING", "MODEL_FOR_SPEECH_SEQ_2_SEQ")  # fmt: skip
_FEATURES = ("num_mel_bins", "feature_size", "input_feat_per_channel", "input_dim", "feature_projection_input_dim")


def shrunk(config: Any, scale: int = 1) -> dict[str, Any]:
    """The settings of a config that a tiny model has otherwise; parts are configs again.

    ``scale`` multiplies all widths; 0 keeps widths and heads as they are, for classes that derive one from the other.
    """
    layers, width, heads = (_number(config, name) for name in _ORIGINALS)
    sizes = _SIZES if scale else _DEPTHS
    special = iter(range(3, FIRST_WORD))
    found: dict[str, Any] = {}
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            found[name] = tiny(value, scale=scale)
        elif name.endswith(("_token_id", "_token_index", "_token_ids")) and isinstance(value, int):
            found[name] = next(special)
        elif isinstance(value, bool) or name.startswith("_"):
            continue
        elif isinstance(value, int):
            unknown = WIDTH if value == width and scale else -1
            size = next((size for pattern, size in sizes if re.fullmatch(pattern, name)), unknown)
            if re.fullmatch(_KV_HEADS, name) and value == heads and scale:  # not grouped: as many as queries
                size = HEADS
            if size > 0 and value > 0:
                found[name] = min(value, size * max(scale, 1) if size in _WIDTHS else size)
        elif name == "head_dim" and value is None and scale:
            found[name] = HEAD_DIM * scale
        elif name in ("rope_parameters", "rope_scaling") and isinstance(value, dict) and scale:
            found[name] = _short_rotation(value, HEAD_DIM * scale)
        elif name == "model_args" and value is None and str(vars(config).get("architecture")).startswith("vit"):
            found[name] = {"depth": LAYERS, "img_size": 32}  # a tower of timm's, known to the config by its name only
        elif value is None and re.fullmatch(r"(num_)?experts_per_tok|n_routed_experts|num_local_experts", name):
            found[name] = 4 if "tok" not in name else 2
        elif isinstance(value, list | tuple) and value:
            found[name] = _short_list(name, value, layers, scale)
    for name, token in (("pad_token_id", 0), ("bos_token_id", 1), ("eos_token_id", 2), ("decoder_start_token_id", 1)):
        if hasattr(config, name):
            found[name] = token
    if isinstance(kinds := found.get("layer_types"), list):
        found["num_hidden_layers"] = len(kinds)
    return {name: value for name, value in found.items() if value is not vars(config).get(name)}


def _short_rotation(settings: dict[str, Any], head_dim: int) -> dict[str, Any]:
    """Rotary settings whose sections (time, height, width) fit heads of this width."""
    sections = settings.get("mrope_section")
    if not isinstance(sections, list | tuple):
        return settings
    half = int(head_dim * (settings.get("partial_rotary_factor") or 1)) // 2
    shares = [half * entry // sum(sections) for entry in sections]
    return {**settings, "mrope_section": [half - sum(shares[1:]), *shares[1:]]}


def _number(config: Any, name: str) -> int:
    value = vars(config).get(getattr(config, "attribute_map", {}).get(name, name))
    return value if isinstance(value, int) else 0


def tiny(config: Any, made: bool = True, scale: int = 1) -> Any:
    """A tiny config: ``made`` anew, so that what its class derives fits, or the given one with other values."""
    needed = {**_NEEDED.get(config.model_type, {}), **_NEEDED.get(type(config).__name__, {})}
    changes = {**shrunk(config, scale), **needed}
    if made:
        try:
            return type(config)(**{**_given(config), **changes})
        except Exception:  # a class may refuse what it derives itself
            pass
    for name, value in changes.items():
        _set(config, name, value)
    return config


def _given(config: Any) -> dict[str, Any]:
    """What a config has otherwise than its class by default: needed settings, the name of a backbone."""
    try:
        given = config.to_diff_dict()
    except Exception:  # a class without defaults
        given = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    derived = _OF_THE_LIBRARY if config.model_type == "timm_backbone" else {*_OF_THE_LIBRARY, "out_indices"}
    return {name: value for name, value in given.items() if name not in derived and not isinstance(value, dict)}


def _set(config: Any, name: str, value: Any) -> None:
    try:
        setattr(config, name, value)
    except (AttributeError, NotImplementedError, ValueError, TypeError):
        return


def _short_list(name: str, value: Any, layers: int, scale: int = 1) -> Any:
    kind = type(value)
    if re.fullmatch(r".*layer_ind(ices|exes)|full_attn_idxs", name):
        return kind([LAYERS - 1])  # which layers attend, beside others that do not
    if name == "mrope_section" and scale:
        return [2 * scale, scale, scale]
    if len(value) == layers > LAYERS and name not in ("depths",):
        # keep one layer of every kind
        kinds = {str(entry): entry for entry in value}
        return (
            kind(([*kinds.values()] * LAYERS)[: max(LAYERS, len(kinds))]) if len(kinds) <= 4 else kind(value[:LAYERS])
        )
    if not all(isinstance(entry, int) and not isinstance(entry, bool) for entry in value):
        return value
    size = next((size for pattern, size in _LISTS if re.fullmatch(pattern, name)), -1)
    if not scale:
        return kind(min(entry, 1) for entry in value) if size == 1 else value
    if size == HEADS:  # powers of two divide the widths
        return kind(min(1 << (entry.bit_length() - 1), HEADS) if entry else entry for entry in value)
    if name in ("image_size", "img_size"):
        return kind([32] * len(value))
    size *= scale if size in _WIDTHS else 1
    return value if size < 0 else kind(min(entry, size) for entry in value)


def tiny_config(config_class: Any, made: bool = True, scale: int = 1) -> Any:
    """The config of a class, shrunk; see :func:`tiny`."""
    return tiny(config_class(**_NEEDED.get(config_class.model_type, {})), made, scale)


def model_classes(model_type: str) -> Iterator[Any]:
    """The classes that may build a type: those of the auto classes, the base model first, then any with its config."""
    import transformers
    from transformers import CONFIG_MAPPING, PreTrainedModel
    from transformers.models.auto import modeling_auto

    if model_type not in CONFIG_MAPPING:
        yield named_class(model_type)
        return
    config_class, seen = CONFIG_MAPPING[model_type], set()
    for table in _TABLES:
        mapping = getattr(modeling_auto, f"{table}_MAPPING", None) or getattr(transformers, f"{table}_MAPPING", None)
        try:
            found = mapping[config_class]
        except (KeyError, TypeError, ImportError, AttributeError):
            continue
        for model_class in found if isinstance(found, tuple) else (found,):
            seen.add(model_class)
            yield model_class
    try:
        code = importlib.import_module(config_class.__module__.replace(".configuration_", ".modeling_"))
    except ModuleNotFoundError:  # a config for the code of another type
        return
    models = [each for each in vars(code).values() if isinstance(each, type) and issubclass(each, PreTrainedModel)]
    for model_class in models:
        whole = model_class.config_class is config_class and not model_class.__name__.endswith("PreTrainedModel")
        if whole and model_class not in seen:
            yield model_class


def named_class(name: str) -> Any:
    """The model class of that name, exported or not."""
    import transformers

    folder = Path(transformers.__file__).parent / "models"
    for file in sorted(folder.glob("*/modeling_*.py")):
        if re.search(rf"^class {name}\(", file.read_text(), re.MULTILINE):
            return getattr(importlib.import_module(f"transformers.models.{file.parent.name}.{file.stem}"), name)
    raise NotAModel(f"transformers has no model {name}")


def build(name: str, attn: str | None = None) -> tuple[nn.Module, Inputs]:
    """A tiny model of a type or class, with random weights and inputs that it takes; raises the first reason if none.

    >>> model, inputs = build("bert")
    >>> type(model).__name__, sorted(inputs)
    ('BertModel', ['attention_mask', 'input_ids'])
    """
    reasons: list[Exception] = []
    classes = list(model_classes(name))
    for (made, scale), model_class in itertools.product(_WAYS, classes):
        try:
            model = _tiny_model(model_class, made, scale, attn)
        except Exception as error:  # a shrunk config may break anything
            reasons.append(error)
            continue
        for inputs in inputs_for(model, model.config):
            try:
                return model, runnable(model, model.config, inputs)
            except Exception as error:
                reasons.append(error)
    raise reasons[0] if reasons else NotAModel(f"transformers has no model for {name}")


class NotAModel(ValueError):
    """A type that is only a part of another one's config."""


def _tiny_model(model_class: Any, made: bool, scale: int, attn: str | None) -> nn.Module:
    torch.manual_seed(0)
    config = tiny_config(model_class.config_class, made, scale)
    if attn is not None:
        config._attn_implementation = attn
    if scale == 0:
        with torch.device("meta"):
            count = sum(parameter.numel() for parameter in model_class(copy.deepcopy(config)).parameters())
        if count > LARGEST:
            raise ValueError(f"{count} parameters are too many for a tiny model")
    return randomised(model_class(config).float().eval())


def runnable(model: nn.Module, config: Any, inputs: Inputs) -> Inputs:
    """The inputs, with as many placeholders for an image or a sound as the model says that it needs."""
    for _ in range(3):
        try:
            with torch.no_grad():
                model(**inputs)
            return inputs
        except Exception as error:
            wanted = re.search(r"(\w+) features and.*features:? ?(?:torch.Size\(\[)?(\d+)", str(error), re.DOTALL)
            if wanted is None or "input_ids" not in inputs:
                raise
            inputs = _with_places(config, inputs, wanted[1].lower(), int(wanted[2]))
    raise ValueError("placeholders do not fit")


def _with_places(config: Any, inputs: Inputs, kind: str, count: int) -> Inputs:
    names = [f"{word}_token_{end}" for word in (kind, "image", "audio", "video") for end in ("id", "index")]
    token = next(value for name in names if isinstance(value := getattr(config, name, None), int))
    ids = inputs["input_ids"]
    ids = torch.cat([ids[:, :1], torch.full((1, count), token), ids[:, -6:]], 1)
    found = {**inputs, "input_ids": ids}
    if "attention_mask" in inputs:
        found["attention_mask"] = torch.ones_like(ids)
    if "mm_token_type_ids" in inputs:
        found["mm_token_type_ids"] = (ids == token).long()
    return found


def randomised(model: nn.Module) -> nn.Module:
    """Weights large enough that heads differ: many classes begin with zeros."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.dim() > 1:
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.15)
        elif parameter.is_floating_point() and "norm" not in name.lower() and name.endswith("bias"):
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
        elif parameter.dim() == 1 and re.search(r"layer_?scale", name) and float(parameter.detach().abs().max()) < 0.1:
            parameter.data.fill_(0.5)  # beside features of codecs, what is scaled so small is nothing
    for module in model.modules():
        if isinstance(codes := getattr(module, "embed_sum", None), torch.Tensor):  # of a codebook: all zero
            codes.copy_(torch.randn(codes.shape, generator=generator))
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            module.weight.data[module.padding_idx].zero_()  # as transformers does again whenever it loads
    return model


def inputs_for(model: nn.Module, config: Any) -> Iterator[Inputs]:
    """Inputs that a model of this signature may take, those that use most of it first."""
    names = set(inspect.signature(model.forward).parameters)
    torch.manual_seed(1)
    text, decoder = _text(names, _vocabulary(config)), _decoder(names)
    media = list(_media(model, config, names))
    if text:
        for one in media:
            yield {**one, **text, **decoder}
        yield {**text, **decoder}
        yield text
    for one in media:
        yield {**one, **decoder}
        yield one


def _vocabulary(config: Any) -> int:
    parts = (config, getattr(config, "text_config", None), getattr(config, "model_config", None))
    sizes = [getattr(part, "vocab_size", None) for part in parts]
    return min(size for size in (*sizes, VOCABULARY) if isinstance(size, int) and size > 2)


def _text(names: set[str], vocabulary: int) -> Inputs:
    ids = torch.randint(min(FIRST_WORD, vocabulary // 2), vocabulary - 1, (1, TOKENS))
    text: Inputs = {"input_ids": ids} if "input_ids" in names else {}
    if "attention_mask" in names and text:
        text["attention_mask"] = torch.ones_like(ids)
    if "mm_token_type_ids" in names and text:
        text["mm_token_type_ids"] = torch.zeros_like(ids)
    for other in ("qformer_input_ids", "task_inputs"):
        if other in names and text:
            text[other] = ids.clone()
    if "bbox" in names:
        text["bbox"] = torch.randint(0, 50, (1, TOKENS, 4)).sort(-1).values
    return text


def _decoder(names: set[str]) -> Inputs:
    return {"decoder_input_ids": torch.arange(FIRST_WORD, FIRST_WORD + 7)[None]} if "decoder_input_ids" in names else {}


def _media(model: nn.Module, config: Any, names: set[str]) -> Iterator[Inputs]:
    """Images, patches, sounds, videos and series, by the names of the arguments."""
    main = getattr(model, "main_input_name", "input_ids")
    for grid, pixels in (*itertools.product(("image_grid_thw", "grid_thw"), ("pixel_values", "hidden_states")),):
        if grid in names and pixels in names:
            yield _patches(config, grid, pixels)
    if "pixel_values" in names or main == "pixel_values":
        for size in _image_sizes(config):
            for shape in ((1, 3, size, size), (1, 1, size, size), (1, 1, 3, size, size), (1, 2, 3, size, size)):
                yield {"pixel_values": torch.rand(shape)}
    audio = [name for name in names if name in ("input_features", "input_values", "audio_values", main)]
    for name in audio:
        if name not in ("input_ids", "pixel_values", "pixel_values_videos"):
            yield from ({name: torch.randn(shape)} for shape in _audio_shapes(config))
    if "pixel_values_videos" in names:
        yield {"pixel_values_videos": torch.rand(1, 4, 3, 32, 32)}
    for name in sorted({"inputs_embeds", "hidden_states"} & names) if "input_ids" not in names else ():
        yield {name: torch.randn(1, TOKENS, _number(config, "hidden_size") or WIDTH)}


def _patches(config: Any, grid: str, pixels: str) -> Inputs:
    """An image as a list of patches, as Qwen-VL and others take it."""
    vision = getattr(config, "vision_config", config)
    patch, time = getattr(vision, "patch_size", 8), getattr(vision, "temporal_patch_size", 1) or 1
    channels = getattr(vision, "in_channels", None) or getattr(vision, "num_channels", 3)
    return {pixels: torch.rand(16, channels * time * patch * patch), grid: torch.tensor([[1, 4, 4]])}


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


_SIZE_WORDS = (
    r"tiny|x?x?tiny|nano|atto|femto|pico|zepto|small|x?xsmall|base|large|huge|giant|gigantic|enormous|little|medium\w*|"
    r"betwixt|xlarge|mini|micro|mega|d?wee|x*[stmlbhg]|ti|\w*\d\w*"
)
_ATTENDS = r"softmax|scaled_dot_product|fused_attn"


def timm_names() -> list[str]:
    """The smallest-looking model of every timm family whose attention is built otherwise than that of the others."""
    import timm

    families: dict[tuple[str, str], str] = {}
    for module in timm.list_modules():
        for name in sorted(timm.list_models(module=module), key=_looks_large):
            words = [word for word in name.split("_")[1:] if not re.fullmatch(_SIZE_WORDS, word)]
            start = re.split(r"\d", name.split("_")[0])[0]
            families.setdefault((module, "_".join([start, *words])), name)
    found: dict[tuple[str, frozenset[Any]], str] = {}
    for (module, _), name in families.items():
        if kinds := _kinds_of_attention(name):
            found.setdefault((module, kinds), name)
    return list(found.values())


def _looks_large(name: str) -> tuple[bool, int, str]:
    return not re.search(r"tiny|nano|atto|_xs|small|_s_|_t_|_s0|_m0|wee", name), len(name), name


def _kinds_of_attention(name: str) -> frozenset[Any]:
    """The modules of a timm model whose code has attention in it: class, and the names of what each is made of.

    Nothing for a model that has none, and for one that is too large to try.
    """
    import timm

    try:
        with torch.device("meta"):
            model = timm.create_model(name, pretrained=False)
    except Exception:  # a class that looks at its weights while it is built
        return frozenset([name])
    if sum(parameter.numel() for parameter in model.parameters()) > 2 * LARGEST:
        return frozenset()
    return frozenset(_made_of(module) for module in model.modules() if _attends(type(module)))


def _made_of(module: nn.Module) -> tuple[str, ...]:
    parts = (part for part, child in module.named_children() if not isinstance(child, nn.Identity))
    own = (name for name, _ in module.named_parameters(recurse=False))
    return (type(module).__name__, *sorted(parts), *sorted(own))


@functools.cache
def _attends(kind: type) -> bool:
    return kind.__module__.startswith("timm.") and bool(re.search(_ATTENDS, inspect.getsource(kind)))


def build_timm(name: str) -> tuple[nn.Module, Inputs]:
    """A timm model of its own size with random weights, and an image, a small one where the model takes it."""
    import timm

    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=10).eval()
    size = model.pretrained_cfg.get("input_size", (3, 224, 224))
    if size[1] > 256:
        try:
            model = timm.create_model(name, pretrained=False, num_classes=10, img_size=224).eval()
            size = (3, 224, 224)
        except TypeError:  # its size is its own
            pass
    for parameter in model.parameters():
        if float(parameter.abs().max()) <= 1e-4:  # layer scales, gates and classifiers that begin at zero
            parameter.data.fill_(0.1) if parameter.dim() == 1 else parameter.data.normal_(0, 0.1)
    return model, {"x": torch.randn(1, *size)}
