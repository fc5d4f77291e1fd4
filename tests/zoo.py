"""Tiny models from configs, one builder a family: what capture and surgery are tried on.

Loaded through the fixture ``zoo`` (tests/conftest.py). ``Specimen.build(attn=…)`` gives a model in eval mode with
random weights from a fixed seed, and the arguments of one forward call; position terms that start at zero are filled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

WIDTH, HEADS, LAYERS, TOKENS = 32, 4, 2, 12
IDS = {"vocab_size": 60, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
BERT = {**IDS, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 48}
LLAMA = {**BERT, "num_key_value_heads": 2}
GPT = {**IDS, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 64}
BART = {
    **{**IDS, "d_model": WIDTH, "decoder_start_token_id": 2},
    **{
        f"{side}_{what}": value
        for side in ("encoder", "decoder")
        for what, value in (("layers", LAYERS), ("attention_heads", HEADS), ("ffn_dim", 48))
    },
}
T5 = {
    **IDS,
    "d_model": WIDTH,
    "d_kv": 8,
    "num_heads": HEADS,
    "num_layers": LAYERS,
    "d_ff": 48,
    "decoder_start_token_id": 0,
}
VIT = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}
SWIN = {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "image_size": 32, "patch_size": 2}
TOWER = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 48}
AUDIO = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "conv_dim": [16, 16],
    "conv_kernel": [10, 3],
    "conv_stride": [5, 2],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
}

WINDOWED = {"swin", *(f"timm-{name}" for name in ("swin", "swinv2", "maxvit", "twins", "nest", "davit", "hiera"))}


@dataclass(frozen=True)
class Specimen:
    """One architecture: how to build it, and what the capture of it must look like.

    Attributes:
        name: Family, unique in the zoo.
        library: ``transformers``, ``timm`` or ``torch``.
        adapter: Name of the adapter that must be found for it.
        n_layers: How many attention layers one forward call runs.
        make: Builds the model; transformers models take ``attn``.
        inputs: Builds the arguments of a forward call.
        returns_weights: Whether ``output_attentions=True`` gives the eager weights, layer by layer, to compare with.
    """

    name: str
    library: str
    adapter: str
    n_layers: int
    make: Callable[..., nn.Module]
    inputs: Callable[[], dict[str, torch.Tensor]]
    returns_weights: bool = False

    @property
    def windows(self) -> bool:
        """Whether one image gives several contexts, so that what is stored is a mean."""
        return self.name in WINDOWED

    def build(self, attn: str | None = None) -> tuple[nn.Module, dict[str, torch.Tensor]]:
        """The model in eval mode and the arguments of one call."""
        torch.manual_seed(0)
        model = (self.make(attn) if self.library == "transformers" else self.make()).eval()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():  # biases and position tables start at zero; make them matter
                if not bool(parameter.any()) or not bool(parameter.isfinite().all()):
                    parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
        torch.manual_seed(2)
        return model, self.inputs()


def ids() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(3, 60, (1, TOKENS))}


def seq2seq_ids() -> dict[str, torch.Tensor]:
    return {**ids(), "decoder_input_ids": torch.randint(3, 60, (1, TOKENS - 3))}


def pixels(size: int = 32) -> Callable[[], dict[str, torch.Tensor]]:
    return lambda: {"pixel_values": torch.randn(1, 3, size, size)}


def image(size: int) -> Callable[[], dict[str, torch.Tensor]]:
    return lambda: {"x": torch.randn(1, 3, size, size)}


def clip_inputs() -> dict[str, torch.Tensor]:
    return {**ids(), **pixels()()}


def whisper_inputs() -> dict[str, torch.Tensor]:
    return {"input_features": torch.randn(1, 16, 40), "decoder_input_ids": torch.randint(3, 60, (1, 7))}


def hf(model_class: str, config_class: str, settings: dict[str, Any], **more: Any) -> Callable[..., nn.Module]:
    def make(attn: str | None = None) -> nn.Module:
        import transformers

        config = getattr(transformers, config_class)(**{**settings, **more})
        if attn is not None:
            config._attn_implementation = attn
        return getattr(transformers, model_class)(config)

    return make


def clip(prefix: str) -> Callable[..., nn.Module]:
    def make(attn: str | None = None) -> nn.Module:
        import transformers

        text = {**TOWER, **IDS, "max_position_embeddings": 16}
        vision = {**TOWER, "image_size": 32, "patch_size": 8}
        config = getattr(transformers, f"{prefix}Config")(text_config=text, vision_config=vision)
        if attn is not None:
            config._attn_implementation = attn
        return getattr(transformers, f"{prefix}Model")(config)

    return make


def timm_model(name: str, **settings: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import timm

        return timm.create_model(name, pretrained=False, num_classes=5, **settings)

    return make


def mvitv2() -> nn.Module:
    from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg

    strides = ((1, 1), (2, 2), (2, 2))
    return MultiScaleVit(
        MultiScaleVitCfg(depths=(1, 1, 1), embed_dim=16, num_heads=2, stride_q=strides), img_size=(32, 32)
    )


def nest() -> nn.Module:
    from timm.models.nest import Nest

    return Nest(img_size=64, embed_dims=(32, 32, 32), num_heads=(2, 2, 4), depths=(1, 1, 1), num_classes=5)


def transfo_xl(attn: str | None = None) -> nn.Module:
    from oattn_hub.models.transfo_xl import TransfoXLConfig, TransfoXLModel

    sizes = {"d_model": WIDTH, "d_embed": WIDTH, "n_head": HEADS, "d_head": 8, "d_inner": 48, "n_layer": LAYERS}
    return TransfoXLModel(
        TransfoXLConfig(vocab_size=60, cutoffs=[20], div_val=1, **sizes, mem_len=0, same_length=False)
    )


def _text(
    name: str, adapter: str, model: str, settings: dict[str, Any], n_layers: int = LAYERS, **more: Any
) -> Specimen:
    weights = more.pop("returns_weights", True)
    config = model.removesuffix("Model").removesuffix("ForCausalLM") + "Config"
    return Specimen(name, "transformers", adapter, n_layers, hf(model, config, settings, **more), ids, weights)


def _seq2seq(name: str, adapter: str, prefix: str, settings: dict[str, Any]) -> Specimen:
    make = hf(f"{prefix}Model", f"{prefix}Config", settings)
    return Specimen(name, "transformers", adapter, 3 * LAYERS, make, seq2seq_ids, True)


def _vision(
    name: str, adapter: str, prefix: str, settings: dict[str, Any], n_layers: int = LAYERS, **more: Any
) -> Specimen:
    make = hf(f"{prefix}Model", f"{prefix}Config", settings, **more)
    return Specimen(name, "transformers", adapter, n_layers, make, pixels(), True)


def _timm(name: str, adapter: str, n_layers: int, model: str, size: int, **settings: Any) -> Specimen:
    return Specimen(name, "timm", adapter, n_layers, timm_model(model, **settings), image(size))


SMALL_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": WIDTH, "depth": LAYERS, "num_heads": HEADS}

SPECIMENS = [
    # transformers: encoders of text
    _text("bert", "bert", "BertModel", BERT),
    _text("roberta", "bert", "RobertaModel", BERT),
    _text("xlm-roberta", "bert", "XLMRobertaModel", BERT),
    _text("camembert", "bert", "CamembertModel", BERT),
    _text("electra", "bert", "ElectraModel", BERT, embedding_size=16),
    _text(
        "distilbert",
        "bert",
        "DistilBertModel",
        {**IDS, "dim": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": 48},
    ),
    _text("mpnet", "bert", "MPNetModel", BERT),
    _text("ernie", "bert", "ErnieModel", BERT),
    _text("esm", "bert", "EsmModel", BERT, mask_token_id=3),
    _text("roformer", "bert", "RoFormerModel", BERT, embedding_size=16),
    _text("albert", "albert", "AlbertModel", BERT, n_layers=3, num_hidden_layers=3, embedding_size=16),
    _text("deberta", "deberta", "DebertaModel", BERT, relative_attention=True, pos_att_type=["c2p", "p2c"]),
    _text(
        "deberta-v2",
        "deberta",
        "DebertaV2Model",
        BERT,
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        position_buckets=8,
    ),
    _text(
        "modernbert", "generic", "ModernBertModel", BERT, cls_token_id=1, sep_token_id=2, global_attn_every_n_layers=2
    ),
    # transformers: decoders
    _text("gpt2", "gpt2", "GPT2Model", GPT),
    _text(
        "gpt_neo",
        "gptj",
        "GPTNeoModel",
        {
            **IDS,
            "hidden_size": WIDTH,
            "num_layers": 2,
            "num_heads": HEADS,
            "intermediate_size": 48,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
            "max_position_embeddings": 64,
        },
    ),
    _text("gptj", "gptj", "GPTJModel", {**GPT, "rotary_dim": 4}),
    _text("gpt_neox", "gpt_neox", "GPTNeoXModel", BERT),
    _text("bloom", "gpt_neox", "BloomModel", {**IDS, "hidden_size": WIDTH, "n_layer": LAYERS, "n_head": HEADS}),
    _text("falcon", "gpt_neox", "FalconModel", BERT, returns_weights=True),
    _text("phi", "gptj", "PhiModel", LLAMA),
    _text(
        "opt",
        "bart",
        "OPTModel",
        {
            **IDS,
            "hidden_size": WIDTH,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "ffn_dim": 48,
            "word_embed_proj_dim": WIDTH,
            "max_position_embeddings": 64,
        },
    ),
    _text("llama", "llama", "LlamaModel", LLAMA),
    _text("mistral", "llama", "MistralModel", LLAMA, sliding_window=6),
    _text("qwen2", "llama", "Qwen2Model", LLAMA),
    _text("qwen3", "llama", "Qwen3Model", LLAMA, head_dim=8),
    _text("gemma", "llama", "GemmaModel", LLAMA, head_dim=8),
    _text("gemma2", "llama", "Gemma2Model", LLAMA, head_dim=8, sliding_window=6),
    _text("gemma3", "llama", "Gemma3TextModel", LLAMA, head_dim=8, sliding_window=6),
    _text("olmo2", "llama", "Olmo2Model", LLAMA),
    _text("mixtral", "llama", "MixtralModel", LLAMA, num_local_experts=2),
    _text("xlnet", "xlnet", "XLNetModel", {**IDS, "d_model": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "d_inner": 48}),
    Specimen("transfo-xl", "transformers", "xlnet", LAYERS, transfo_xl, ids),
    # transformers: encoder and decoder
    _seq2seq("t5", "t5", "T5", T5),
    _seq2seq("mt5", "t5", "MT5", T5),
    _seq2seq("umt5", "t5", "UMT5", T5),
    _seq2seq("bart", "bart", "Bart", BART),
    _seq2seq("mbart", "bart", "MBart", BART),
    _seq2seq("pegasus", "bart", "Pegasus", BART),
    _seq2seq("marian", "bart", "Marian", {**BART, "max_position_embeddings": 64}),
    # transformers: images, sound, two towers
    _vision("vit", "vit", "ViT", VIT),
    _vision("deit", "vit", "DeiT", VIT),
    _vision("dinov2", "vit", "Dinov2", VIT),
    _vision("beit", "vit", "Beit", VIT, use_relative_position_bias=True),
    _vision("swin", "swin", "Swin", SWIN, n_layers=4),
    Specimen(
        "whisper",
        "transformers",
        "whisper",
        3 * LAYERS,
        hf("WhisperModel", "WhisperConfig", BART, num_mel_bins=16, max_source_positions=20, max_target_positions=16),
        whisper_inputs,
        True,
    ),
    Specimen(
        "wav2vec2",
        "transformers",
        "whisper",
        LAYERS,
        hf("Wav2Vec2Model", "Wav2Vec2Config", AUDIO),
        lambda: {"input_values": torch.randn(1, 400)},
        True,
    ),
    Specimen("clip", "transformers", "clip", 2 * LAYERS, clip("CLIP"), clip_inputs),
    Specimen("siglip", "transformers", "clip+torch", 2 * LAYERS + 1, clip("Siglip"), clip_inputs),
    # timm
    _timm("timm-vit", "timm_vit", LAYERS, "vit_tiny_patch16_224", 32, **SMALL_VIT),
    _timm("timm-deit", "timm_vit", LAYERS, "deit_tiny_distilled_patch16_224", 32, **SMALL_VIT),
    _timm("timm-deit3", "timm_vit", LAYERS, "deit3_small_patch16_224", 32, **SMALL_VIT),
    _timm("timm-siglip", "timm_vit", LAYERS + 1, "vit_base_patch16_siglip_224", 32, **SMALL_VIT),
    _timm("timm-beit", "timm_vit", LAYERS, "beit_base_patch16_224", 32, **SMALL_VIT),
    _timm("timm-eva02", "timm_vit", LAYERS, "eva02_tiny_patch14_224", 32, **SMALL_VIT),
    _timm("timm-relpos", "timm_vit", LAYERS, "vit_relpos_small_patch16_224", 32, **SMALL_VIT),
    _timm(
        "timm-swin",
        "swin",
        4,
        "swin_tiny_patch4_window7_224",
        32,
        img_size=32,
        patch_size=2,
        window_size=4,
        embed_dim=16,
        depths=(2, 2),
        num_heads=(2, 4),
    ),
    _timm(
        "timm-swinv2",
        "swin",
        4,
        "swinv2_tiny_window8_256",
        32,
        img_size=32,
        patch_size=2,
        window_size=4,
        embed_dim=16,
        depths=(2, 2),
        num_heads=(2, 4),
    ),
    Specimen("timm-mvitv2", "timm", "timm_pyramid", 3, mvitv2, image(32)),
    _timm("timm-pvt_v2", "timm_pyramid", 4, "pvt_v2_b0", 64, depths=(1, 1, 1, 1)),
    _timm(
        "timm-maxvit", "timm_pyramid", 4, "maxvit_rmlp_pico_rw_256", 64, img_size=64, depths=(1, 1), embed_dim=(32, 64)
    ),
    _timm(
        "timm-levit",
        "timm_pyramid",
        5,
        "levit_128s",
        64,
        img_size=64,
        depth=(1, 1, 1),
        embed_dim=(32, 48, 64),
        num_heads=(2, 3, 4),
    ),
    _timm("timm-cait", "timm_pyramid", 4, "cait_xxs24_224", 32, **SMALL_VIT),
    _timm(
        "timm-twins",
        "timm_pyramid",
        8,
        "twins_svt_small",
        64,
        img_size=64,
        depths=(2, 2, 2, 2),
        embed_dims=(32, 32, 32, 32),
    ),
    Specimen("timm-nest", "timm", "timm_pyramid", 3, nest, image(64)),
    _timm(
        "timm-davit",
        "timm_pyramid",
        4,
        "davit_tiny",
        64,
        depths=(1, 1, 1, 1),
        embed_dims=(16, 16, 32, 32),
        num_heads=(2, 2, 4, 4),
        window_size=4,
    ),
    _timm(
        "timm-xcit",
        "timm_pyramid",
        2,
        "xcit_nano_12_p16_224",
        32,
        img_size=32,
        patch_size=8,
        embed_dim=WIDTH,
        depth=LAYERS,
        num_heads=HEADS,
    ),
    _timm("timm-hiera", "timm_pyramid", 4, "hiera_tiny_224", 64, img_size=(64, 64), stages=(1, 1, 1, 1), embed_dim=16),
    _timm(
        "timm-visformer",
        "timm_pyramid",
        2,
        "visformer_tiny",
        64,
        img_size=64,
        depth=(1, 1, 1),
        embed_dim=64,
        num_heads=2,
    ),
    _timm("timm-crossvit", "timm_vit+timm_pyramid", 18, "crossvit_9_240", 240),
    # torch
    Specimen(
        "torch-mha",
        "torch",
        "torch",
        1,
        lambda: nn.MultiheadAttention(WIDTH, HEADS, batch_first=True),
        lambda: dict.fromkeys(("query", "key", "value"), torch.randn(1, TOKENS, WIDTH)),
    ),
    Specimen(
        "torch-encoder",
        "torch",
        "torch",
        LAYERS,
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, 48, batch_first=True), LAYERS),
        lambda: {"src": torch.randn(1, TOKENS, WIDTH)},
    ),
    Specimen(
        "torch-transformer",
        "torch",
        "torch",
        3 * LAYERS,
        lambda: nn.Transformer(WIDTH, HEADS, LAYERS, LAYERS, 48, batch_first=True),
        lambda: {"src": torch.randn(1, TOKENS, WIDTH), "tgt": torch.randn(1, TOKENS - 2, WIDTH)},
    ),
]

BY_NAME = {specimen.name: specimen for specimen in SPECIMENS}
