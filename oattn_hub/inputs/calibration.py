"""Calibration inputs: batches of one context each, with exact token counts and no padding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard, overload

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from oattn_hub.errors import InvalidInput
from oattn_hub.inputs import labelled, media, texts
from oattn_hub.inputs.types import Data
from oattn_hub.models.identify import batch_fingerprint
from oattn_hub.models.load import LoadedModel

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class CalibrationInputs(Sequence[Batch]):
    """Batches of model arguments, one context each.

    Attributes:
        batches: The arguments of each forward call.
        description: What the inputs are and where they come from.
        tokens: Tokens per context for text; None where the model decides (images, audio, ready-made batches).
    """

    batches: tuple[Batch, ...]
    description: str
    tokens: int | None = None

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all batches."""
        return batch_fingerprint(*self.batches)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.batches)

    @overload
    def __getitem__(self, index: int) -> Batch: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Batch]: ...
    def __getitem__(self, index: int | slice) -> Batch | Sequence[Batch]:
        return self.batches[index]


def calibration_inputs(
    loaded: LoadedModel,
    data: Data = None,
    batches: int = 6,
    tokens: int = 128,
    seed: int = 0,
    part: texts.Part = None,
    labels: bool = False,
) -> CalibrationInputs:
    """Inputs for ``loaded``, by its modality; with no data at all, bundled text or synthetic images and sounds.

    Args:
        loaded: What :func:`load_model` returned.
        data: None, a text file, a list of texts, ``dataset:owner/name?split=test&column=text`` (needs ``datasets``),
            token ids (an array or a ``.npy`` file: one stream, or a row for each context), a folder or list of images
            or WAV files, a table (CSV, TSV, JSONL) of texts or files, or a list or DataLoader of ready-made dicts of
            model arguments.
        batches: How many contexts.
        tokens: Tokens per context, special tokens included. Images and audio have the length the model gives them.
        seed: Chooses the places in the text, or the synthetic images.
        part: ``calibration`` or ``evaluation``: two halves of the data that share no token and no file. The bundled
            text is always halved (None means ``calibration``); your own data is used whole unless you say so. Or from
            which to which share of the data, such as (0.5, 0.75).
        labels: Whether labels are wanted where the data has them (:mod:`oattn_hub.inputs.labelled`); then every row or
            file is a context of its own length, ``tokens`` at most.

    >>> import oattn_hub.attention as attention                                        # doctest: +SKIP
    >>> inputs = attention.calibration_inputs(attention.load_model("bert-base-uncased"))  # doctest: +SKIP
    >>> len(inputs), inputs[0]["input_ids"].shape                                      # doctest: +SKIP
    (6, torch.Size([1, 128]))
    """
    if part not in (None, "calibration", "evaluation") and not isinstance(part, tuple):
        raise InvalidInput(
            f"part is {part!r}; choose 'calibration', 'evaluation', None, or shares such as (0.5, 0.75)."
        )
    if batches < 1 or tokens < 1:
        raise InvalidInput(f"batches is {batches} and tokens is {tokens}; both are counts, 1 or more.")
    if _is_ready_made(data):
        return _ready_made(data)
    if loaded.modality == "tensor":
        raise InvalidInput(
            f"{loaded.model_id} is a plain torch module, so what it eats is not known. "
            "Give data as a list of dicts of its forward arguments."
        )
    if labels and (found := labelled.find(loaded, data)) is not None:
        return _labelled_inputs(found, batches, tokens, seed, part)
    if loaded.modality == "text":
        return _text_inputs(loaded, data, batches, tokens, seed, part)
    if loaded.modality == "image+text":
        return _image_text_inputs(loaded, data, batches, tokens, seed, part)
    if loaded.modality == "image":
        pictures, description = media.images(data, batches, seed, part)
        if loaded.library == "transformers" and loaded.processor is None:
            description += "; pixels scaled to [-1, 1], a guess, because the model came without a processor"
        return CalibrationInputs(tuple(media.image_batch(loaded, picture) for picture in pictures), description)
    sounds, description = media.sounds(data, batches, seed, part)
    return CalibrationInputs(tuple(media.sound_batch(loaded, sound) for sound in sounds), description)


def available_inputs(loaded: LoadedModel, data: Data, tokens: int, part: texts.Part) -> int | None:
    """How many contexts a part of the data holds, with labels where it has them; None is as many as one likes."""
    if (found := labelled.find(loaded, data)) is not None:
        return len(range(len(found.items))[texts.part_of(len(found.items) + 1, part)])
    if loaded.modality == "text":
        return texts.available(loaded, data, tokens, part)
    return media.count_of(loaded, data, part)


def has_own_lengths(loaded: LoadedModel, data: Data) -> bool:
    """Whether inputs are as long as they are: images, sounds, ready-made batches, and rows of labelled texts."""
    return loaded.modality != "text" or _is_ready_made(data) or labelled.find(loaded, data) is not None


def takes_whole_texts(loaded: LoadedModel, data: Data) -> bool:
    """Whether every text is an input by itself, as long as it is."""
    if loaded.modality != "text" or _is_ready_made(data):
        return False
    found = labelled.find(loaded, data)
    return found is not None and found.whole


def _labelled_inputs(
    found: labelled.Examples, batches: int, tokens: int, seed: int, part: texts.Part
) -> CalibrationInputs:
    chosen = media.choose(found.items, batches, seed, part, "labelled examples")
    cut = f", at most {tokens} tokens each" if found.whole else ""
    described = f"{batches} of {len(found.items)} {found.description}{cut}{texts.part_words(part)}, seed {seed}"
    return CalibrationInputs(tuple(found.make(item, tokens) for item in chosen), described)


def _text_inputs(
    loaded: LoadedModel, data: Data, batches: int, tokens: int, seed: int, part: texts.Part
) -> CalibrationInputs:
    windows, description = texts.windows(loaded, data, batches, tokens, seed, part)
    made = tuple(texts.batch(loaded, window) for window in windows)
    return CalibrationInputs(made, description, tokens)


def _image_text_inputs(
    loaded: LoadedModel, data: Data, batches: int, tokens: int, seed: int, part: texts.Part
) -> CalibrationInputs:
    """Bundled text beside the images: a two-tower model has text contexts of its own length."""
    limit = texts.longest_context(loaded)
    tokens = tokens if limit is None else min(tokens, limit)
    windows, text_description = texts.windows(loaded, None, batches, tokens, seed, part)
    items, image_description = media.images(data, batches, seed, part)
    pairs = zip(windows, items, strict=True)
    made = tuple({**texts.batch(loaded, window), **media.image_batch(loaded, item)} for window, item in pairs)
    return CalibrationInputs(made, f"{image_description}; {text_description}", tokens)


def _is_ready_made(data: object) -> TypeGuard[Sequence[Mapping[str, object]]]:
    if isinstance(data, CalibrationInputs | DataLoader):
        return True
    return isinstance(data, list | tuple) and len(data) > 0 and isinstance(data[0], Mapping)


def _ready_made(data: Iterable[object]) -> CalibrationInputs:
    if isinstance(data, CalibrationInputs):
        return data
    made = []
    for number, batch in enumerate(data):
        if not isinstance(batch, Mapping):
            raise InvalidInput(
                f"Batch {number} is a {type(batch).__name__}, so which argument is which is not known. Give dicts of "
                "the arguments of the model's forward."
            )
        tensors = {name: _as_tensor(name, value) for name, value in batch.items()}
        if not tensors or any(value.numel() == 0 for value in tensors.values()):
            raise InvalidInput(f"Batch {number} is empty: {[tuple(x.shape) for x in tensors.values()]}. Leave it out.")
        made.append(tensors)
    return CalibrationInputs(tuple(made), f"{len(made)} ready-made batches")


def _as_tensor(name: str, value: object) -> Tensor:
    try:
        return value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"Argument {name!r} is a {type(value).__name__} that is no array of numbers. Give a dict of tensors for "
            "each batch, by the names of the arguments of the model's forward."
        ) from error
