"""What the positions of an input are, so that attention can be read: tokens, patches of a picture, seconds."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from oattn_hub.codec import decode
from oattn_hub.files import read_sealed, write_sealed
from oattn_hub.report.contexts import MOST_CONTEXTS, Axis, Context
from oattn_hub.types import Array

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedTokenizerBase

    from oattn_hub.models.load import LoadedModel

CONTEXTS_FILE = "contexts.json"
_PICTURE_SIDE = 256
_PREFIXES = range(9)  # class, distillation and register tokens before the patches
_SECONDS = 0.01  # of one frame of a spectrogram; wav2vec-like models count 320 samples a position at 16 kHz
_SAMPLING_RATE = 16_000


def contexts(loaded: LoadedModel, batches: Sequence[dict[str, Tensor]]) -> tuple[Context, ...]:
    """Axes of the given inputs, in order."""
    return tuple(Context(number, tuple(_axes(loaded, batch))) for number, batch in enumerate(batches))


def keep_contexts(folder: Path, loaded: LoadedModel, inputs: Sequence[dict[str, Tensor]]) -> None:
    """Write beside captured attention what its first contexts are, for a report made another day."""
    found = contexts(loaded, inputs[:MOST_CONTEXTS])
    write_sealed(folder / CONTEXTS_FILE, {"contexts": [context.to_json() for context in found]})


def read_contexts(folder: Path) -> tuple[Context, ...]:
    """The contexts that were kept beside captured attention; none if it was captured by other means."""
    file = folder / CONTEXTS_FILE
    return decode(_Kept, read_sealed(file), str(file)).contexts if file.is_file() else ()


@dataclass(frozen=True)
class _Kept:
    contexts: tuple[Context, ...]


def _axes(loaded: LoadedModel, batch: dict[str, Tensor]) -> list[Axis]:
    found = []
    for name, value in batch.items():
        if name.endswith("input_ids") and value.dim() == 2:
            found.append(_text(loaded, name, value))
        elif value.dim() == 4 and value.shape[1] in (1, 3):
            found += _image(loaded, name, value)
        elif name in ("input_features", "input_values"):
            found += _time(name, value)
    return found


def _text(loaded: LoadedModel, name: str, ids: Tensor) -> Axis:
    tokenizer = getattr(loaded.processor, "tokenizer", loaded.processor)
    numbers = ids[0].tolist()
    return Axis(name, "text", len(numbers), tuple(_words(tokenizer, numbers)))


def _words(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[str]:
    """Each token as a reader would write it; its number where there is no tokenizer."""
    if not hasattr(tokenizer, "convert_ids_to_tokens"):
        return [str(number) for number in ids]
    tokens = tokenizer.convert_ids_to_tokens(ids)
    shown = []
    for number, token in zip(ids, tokens, strict=True):
        text = str(token) if token is not None else str(number)
        if text.startswith(("Ġ", "▁")):  # byte-level and sentencepiece marks of a word's start
            text = " " + text[1:]
        shown.append(text.replace("Ċ", "\\n").replace("\n", "\\n"))
    return shown


def _image(loaded: LoadedModel, name: str, pixels: Tensor) -> list[Axis]:
    """One axis for every number of tokens before the patches, since only the attention shows how many there are."""
    patch = _patch_size(loaded.model)
    if patch is None:
        return []
    rows, columns = pixels.shape[2] // patch[0], pixels.shape[3] // patch[1]
    picture = _jpeg(pixels[0].detach().cpu().float().numpy())
    return [
        Axis(name, "image", rows * columns + prefix, picture=picture, rows=rows, columns=columns, prefix=prefix)
        for prefix in _PREFIXES
    ]


def _patch_size(model: nn.Module) -> tuple[int, int] | None:
    """Height and width of a patch, where the model cuts its picture into patches once."""
    config = getattr(model, "config", None)
    candidates = [
        getattr(getattr(config, "vision_config", config), "patch_size", None),
        getattr(getattr(model, "patch_embed", None), "patch_size", None),
    ]
    for found in candidates:
        if isinstance(found, int):
            return found, found
        if isinstance(found, tuple | list) and len(found) == 2:
            return int(found[0]), int(found[1])
    return None


def _jpeg(pixels: Array) -> str:
    """A small JPEG of (channel, height, width) pixels, stretched from darkest to brightest, in base64."""
    from PIL import Image

    low, high = float(pixels.min()), float(pixels.max())
    shown = np.rint((pixels - low) / ((high - low) or 1.0) * 255).astype(np.uint8)
    image = Image.fromarray(shown.transpose(1, 2, 0) if len(shown) == 3 else shown[0]).convert("RGB")
    image.thumbnail((_PICTURE_SIDE, _PICTURE_SIDE))
    file = BytesIO()
    image.save(file, "JPEG", quality=80)
    return base64.b64encode(file.getvalue()).decode()


def _time(name: str, value: Tensor) -> list[Axis]:
    """Spectrograms are halved once or not at all before the attention; waveforms are cut into steps of 20 ms."""
    if name == "input_values" and value.dim() == 2:
        seconds, lengths = value.shape[1] / _SAMPLING_RATE, [(value.shape[1] - 400) // 320 + 1]
    else:
        frames = max(value.shape[-2:])
        seconds, lengths = frames * _SECONDS, [frames, (frames + 1) // 2, (frames + 3) // 4]
    return [Axis(name, "time", length, seconds=round(seconds, 3)) for length in lengths if length > 1]
