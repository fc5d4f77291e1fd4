"""What kind of model it is: its library, what it reads, its config, and what prepares its inputs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from torch import nn

from oattn_hub.models.options import Processor

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

# modality -> the Auto class that prepares it
_READERS = {
    "text": "AutoTokenizer",
    "image": "AutoImageProcessor",
    "audio": "AutoFeatureExtractor",
    "image+text": "AutoProcessor",
}


def pretrained(model: nn.Module) -> PreTrainedModel:
    """A model of transformers under its own type, once ``library_of`` has said that it is one."""
    return cast("PreTrainedModel", model)


def config_of(model: nn.Module) -> PreTrainedConfig:
    """The config of a model of transformers; torch's own modules have none."""
    return pretrained(model).config


def library_of(model: nn.Module) -> str:
    """``transformers``, ``timm`` or ``torch``."""
    origin = type(model).__module__.split(".")[0]
    if hasattr(model, "pretrained_cfg") or origin == "timm":
        return "timm"
    return "transformers" if hasattr(model, "main_input_name") and hasattr(model, "config") else "torch"


def modality_of(model: nn.Module, library: str) -> str:
    """What the model reads, by the names of its arguments."""
    if library == "timm":
        return "image"
    if library == "torch":
        return "tensor"
    names = set(inspect.signature(model.forward).parameters)
    if {"pixel_values", "input_ids"} <= names:
        return "image+text"
    if "pixel_values" in names:
        return "image"
    return "audio" if names & {"input_features", "input_values"} else "text"


def processor_for(modality: str, source: str, options: Mapping[str, object]) -> Processor | None:
    """The tokenizer or processor that lies beside the weights; None for a bare checkpoint."""
    import transformers

    try:
        processor = getattr(transformers, _READERS[modality]).from_pretrained(source, **options)
    except (OSError, ValueError, TypeError, KeyError, ImportError):
        return None  # a bare checkpoint; calibration_inputs says what it needs when it needs it
    # Without a vocabulary transformers makes a tokenizer of special tokens only, to which every word is unknown.
    empty = modality == "text" and len(processor) <= len(processor.all_special_ids)
    return None if empty else processor
