"""Whisper and other speech models: encoder over audio frames, decoder and cross attention over text."""

from __future__ import annotations

from oattn_hub.adapters.base import Adapter
from oattn_hub.adapters.layout import split
from oattn_hub.adapters.registry import register


@register
class WhisperAdapter(Adapter):
    """Whisper, wav2vec 2.0, HuBERT and the audio spectrogram transformer."""

    name = "whisper"
    description = "speech: whisper (encoder, decoder, cross), speech_to_text, wav2vec2, hubert, spectrogram transformer"
    modules = {
        "*.WhisperAttention": "self",
        "*.Speech2TextAttention": "self",
        "*.Wav2Vec2Attention": "self",
        "*.HubertAttention": "self",
        "*.ASTAttention": "ast",
    }
    groups = {"*encoder_attn*": "cross", "*decoder*": "decoder", "*": "encoder"}
    layout = {
        "self": split("q_proj", "k_proj", "v_proj", "out_proj", counts={"num_heads": "heads"}),
        "ast": split("q_proj", "k_proj", "v_proj", "o_proj", counts={"num_attention_heads": "heads"}),
    }
