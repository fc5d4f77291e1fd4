"""What users hold is often not the model itself: pipelines, sentence encoders, adapters, compiled modules."""

from __future__ import annotations

from typing import Any

from torch import nn

from oattn_hub.errors import InvalidInput
from oattn_hub.models.options import Processor

_PROCESSORS = ("processor", "tokenizer", "image_processor", "feature_extractor")


def unwrap(held: object) -> tuple[nn.Module, Processor | None]:
    """The model inside ``held``, and the tokenizer or processor that comes with it (None if there is none).

    Takes a module, ``(module, tokenizer)``, a transformers or diffusers pipeline, a SentenceTransformer, a PeftModel, a
    compiled module, a module that runs on several devices. Nothing is copied: the module is the one that runs inside.

    >>> layer = nn.Linear(2, 2)
    >>> unwrap((layer, None)) == unwrap(layer) == (layer, None)
    True
    """
    if isinstance(held, tuple) and len(held) == 2:
        module, _ = unwrap(held[0])
        return module, held[1]
    if not isinstance(held, nn.Module):
        return _from_pipeline(held)
    wrapper: Any = held
    if isinstance(getattr(held, "_orig_mod", None), nn.Module):  # torch.compile(module)
        return unwrap(wrapper._orig_mod)
    if isinstance(held, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return unwrap(wrapper.module)
    if is_sentence_encoder(held):
        return wrapper[0].auto_model, getattr(wrapper[0], "tokenizer", None)
    if hasattr(held, "peft_config") and hasattr(held, "get_base_model"):
        return wrapper.get_base_model(), None
    return held, None


def is_sentence_encoder(held: object) -> bool:
    """Whether this is a SentenceTransformer, whose other modules make an embedding of what the model gives."""
    first = held[0] if isinstance(held, nn.Sequential) and len(held) else None
    return isinstance(getattr(first, "auto_model", None), nn.Module)


def _from_pipeline(held: object) -> tuple[nn.Module, Processor | None]:
    inside = (getattr(held, name, None) for name in ("model", "transformer", "unet"))
    module = next((value for value in inside if isinstance(value, nn.Module)), None)
    if module is None:
        raise InvalidInput(
            f"{type(held).__qualname__} is not a model and holds none that is known. Give a Hub id, a folder, a timm "
            "name, a module, (module, tokenizer), a pipeline or a SentenceTransformer."
        )
    processor = next((value for name in _PROCESSORS if (value := getattr(held, name, None)) is not None), None)
    return unwrap(module)[0], processor
