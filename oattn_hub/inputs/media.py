"""Image and sound contexts: files, or synthetic ones that need no data."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from oattn_hub.errors import InvalidInput, LoadError
from oattn_hub.inputs.tables import FILES, is_table, needed, rows
from oattn_hub.inputs.texts import Part, part_of
from oattn_hub.inputs.types import Data, Item, all_are
from oattn_hub.models.describe import config_of
from oattn_hub.models.load import LoadedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel


_IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm")
_SYNTHETIC_SIZE = 256
_LOWEST_RATE = 1000
_SAMPLING_RATE = 16_000
_WORDS = 32  # about ten seconds of speech


def images(data: Data, batches: int, seed: int, part: Part) -> tuple[list[Image.Image], str]:
    """``batches`` RGB images, and where they come from."""
    if data is None:
        first = part_of(2_000_000, part).start
        made = [synthetic_image(seed, first + number) for number in range(batches)]
        return made, f"{batches} synthetic images (coloured gratings and discs, seed {seed}): no photographs were given"
    if all_are(data, Image.Image):
        pictures = choose(data, batches, seed, part, "images")
        return [picture.convert("RGB") for picture in pictures], f"{batches} of {len(data)} images, seed {seed}"
    files = _files(data, _IMAGE_SUFFIXES, "image")
    chosen = choose(files, batches, seed, part, "images")
    return [_open_image(path) for path in chosen], f"{batches} of {len(files)} image files, seed {seed}"


def sounds(data: Data, batches: int, seed: int, part: Part) -> tuple[list[NDArray[np.float32]], str]:
    """``batches`` mono sounds at 16 kHz, and where they come from."""
    if data is None:
        first = part_of(2_000_000, part).start
        made = [synthetic_sound(seed, first + number) for number in range(batches)]
        return made, f"{batches} synthetic sounds (chirps, seed {seed}): no recordings were given"
    files = _files(data, (".wav",), "WAV")
    chosen = choose(files, batches, seed, part, "sounds")
    return [read_sound(path) for path in chosen], f"{batches} of {len(files)} WAV files, seed {seed}"


def image_batch(loaded: LoadedModel, image: Image.Image) -> dict[str, Tensor]:
    """The model arguments of one image, prepared as the model was trained."""
    if loaded.library == "timm":
        from timm.data.config import resolve_data_config
        from timm.data.transforms_factory import create_transform

        settings = resolve_data_config({}, model=loaded.model)
        built_for = getattr(getattr(loaded.model, "patch_embed", None), "img_size", None)
        if built_for is not None:  # a model made for another size than its weights' config says
            settings["input_size"] = (settings["input_size"][0], *built_for)
        return {"x": create_transform(**settings)(image).unsqueeze(0)}
    processor = getattr(loaded.processor, "image_processor", loaded.processor)
    if processor is not None:
        return {"pixel_values": processor(images=image, return_tensors="pt")["pixel_values"]}
    return {"pixel_values": _plain_pixels(loaded, image)}


def sound_batch(loaded: LoadedModel, sound: NDArray[np.float32]) -> dict[str, Tensor]:
    """The model arguments of one sound; a decoder reads what the model itself hears there."""
    batch = sound_features(loaded, sound)
    config = config_of(loaded.model)
    if getattr(config, "is_encoder_decoder", False):
        try:
            batch["decoder_input_ids"] = _own_words(cast("PreTrainedModel", loaded.model), batch)
        except (AttributeError, TypeError, ValueError, RuntimeError):  # a decoder that is called in another way
            batch["decoder_input_ids"] = torch.tensor([[config.decoder_start_token_id]])
    return batch


def sound_features(loaded: LoadedModel, sound: NDArray[np.float32]) -> dict[str, Tensor]:
    """What an encoder is given of one sound."""
    extractor = getattr(loaded.processor, "feature_extractor", loaded.processor)
    if extractor is None:
        raise InvalidInput(f"{loaded.model_id} came without a feature extractor. Give data as a list of dicts.")
    return dict(extractor(sound, sampling_rate=_SAMPLING_RATE, return_tensors="pt"))


@torch.no_grad()
def _own_words(model: PreTrainedModel, batch: dict[str, Tensor]) -> Tensor:
    """(1, 32) the start token and the model's most probable words after it, the end of its text left out.

    Every sound gets as many, so that attention has one size. A model without words of its own gets the start token.
    """
    config, device = model.config, next(model.parameters()).device
    words = torch.tensor([[config.decoder_start_token_id]], device=device)
    ends = torch.as_tensor(config.eos_token_id if config.eos_token_id is not None else [], device=device).flatten()
    encoded = model.get_encoder()(**{name: value.to(device) for name, value in batch.items()})
    past = None
    limit = min(_WORDS, getattr(config, "max_target_positions", None) or _WORDS)
    while words.shape[1] < limit:
        fresh = words if past is None else words[:, -1:]
        output = model(encoder_outputs=encoded, decoder_input_ids=fresh, past_key_values=past, use_cache=True)
        if not hasattr(output, "logits"):
            break
        past = getattr(output, "past_key_values", None)
        words = torch.cat([words, output.logits[:, -1].index_fill(1, ends, -torch.inf).argmax(1, keepdim=True)], dim=1)
    return words.cpu()


def batch_of(loaded: LoadedModel, path: Path) -> dict[str, Tensor]:
    """The model arguments of one image or sound file; of a sound, the encoder's."""
    if loaded.modality == "image":
        return image_batch(loaded, _open_image(path))
    return sound_features(loaded, read_sound(path))


def files_for(loaded: LoadedModel, data: Data) -> list[Path]:
    """The image or sound files of a folder, or of a list."""
    return _files(data, _IMAGE_SUFFIXES, "image") if loaded.modality == "image" else _files(data, (".wav",), "WAV")


def count_of(loaded: LoadedModel, data: Data, part: Part) -> int | None:
    """How many images or sounds a part of the data holds; None where they are made as needed."""
    if data is None:
        return None
    items = len(data) if all_are(data, Image.Image) else len(files_for(loaded, data))
    return len(range(items)[part_of(items + 1, part)])


def synthetic_image(seed: int, number: int) -> Image.Image:
    """An image of three coloured gratings and three discs, the same on every machine.

    >>> synthetic_image(0, 0).size
    (256, 256)
    """
    rng = np.random.default_rng([seed, number])
    y, x = np.mgrid[0 : 1 : _SYNTHETIC_SIZE * 1j, 0 : 1 : _SYNTHETIC_SIZE * 1j]
    canvas = np.zeros((_SYNTHETIC_SIZE, _SYNTHETIC_SIZE, 3))
    for _ in range(3):
        angle, frequency, phase = rng.uniform(0, np.pi), rng.uniform(2, 24), rng.uniform(0, 2 * np.pi)
        wave_front = np.sin(2 * np.pi * frequency * (x * np.cos(angle) + y * np.sin(angle)) + phase)
        canvas += (0.5 + 0.5 * wave_front)[..., None] * rng.uniform(0, 1, 3) / 3
    for _ in range(3):
        centre, radius = rng.uniform(0.15, 0.85, 2), rng.uniform(0.05, 0.25)
        canvas[(x - centre[0]) ** 2 + (y - centre[1]) ** 2 < radius**2] = rng.uniform(0, 1, 3)
    return Image.fromarray((255 * canvas).round().astype(np.uint8))


def synthetic_sound(seed: int, number: int, seconds: float = 5.0) -> NDArray[np.float32]:
    """Four chirps of random pitch, one after another."""
    rng = np.random.default_rng([seed, number])
    time = np.arange(int(seconds / 4 * _SAMPLING_RATE)) / _SAMPLING_RATE
    chirps = []
    for _ in range(4):
        start, end = rng.uniform(80, 2000, 2)
        chirps.append(0.5 * np.sin(2 * np.pi * (start * time + (end - start) * time**2 / (2 * time[-1]))))
    return np.concatenate(chirps).astype(np.float32)


def _plain_pixels(loaded: LoadedModel, image: Image.Image) -> Tensor:
    """Pixels in [-1, 1] at the size the config names, for a checkpoint that came without its processor."""
    config = config_of(loaded.model)
    config = getattr(config, "vision_config", None) or config
    size = getattr(config, "image_size", 224)
    height, width = size if isinstance(size, Sequence) else (size, size)
    pixels = torch.from_numpy(np.asarray(image.resize((width, height)), dtype=np.float32)) / 127.5 - 1.0
    channels = getattr(config, "num_channels", 3)
    return pixels.permute(2, 0, 1)[:channels].unsqueeze(0).contiguous()


def _files(data: Data, suffixes: tuple[str, ...], what: str) -> list[Path]:
    if is_table(data):
        table = rows(data)
        place = needed(table, FILES, data, "a file")
        return [Path(data).parent / row[place] for row in table]
    if isinstance(data, str | Path):
        folder = Path(data)
        if not folder.exists():
            raise LoadError(f"{folder} does not exist. Give a folder of {what} files, or a list of them.")
        paths = folder.rglob("*") if folder.is_dir() else [folder]
        found = sorted(path for path in paths if path.suffix.lower() in suffixes)
    elif isinstance(data, Sequence):
        found = [Path(str(item)) for item in data]
    else:
        raise InvalidInput(f"data is {type(data).__name__}; give a folder of {what} files, or a list of them.")
    if not found:
        raise LoadError(f"{data} holds no {what} file ({', '.join(suffixes)}).")
    return found


def choose(items: Sequence[Item], batches: int, seed: int, part: Part, what: str) -> list[Item]:
    """So many of a part of the items, drawn with the seed."""
    order = np.random.default_rng(seed).permutation(len(items))
    chosen = order[part_of(len(items) + 1, part)]  # of an odd number the first part gets one more
    if len(chosen) < batches:
        of_all = f" for this out of {len(items)}" if len(chosen) < len(items) else ""
        raise InvalidInput(
            f"There are {len(chosen)} {what}{of_all}; {batches} batches need {batches}. Give more, or ask for fewer."
        )
    return [items[index] for index in chosen[:batches]]


def _open_image(path: Path) -> Image.Image:
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise LoadError(f"{path} is not a readable image ({error}). Remove or replace it.") from error


def read_sound(path: Path) -> NDArray[np.float32]:
    """One WAV file, mono at 16 kHz."""
    try:
        with wave.open(str(path), "rb") as stream:
            width, channels, rate = stream.getsampwidth(), stream.getnchannels(), stream.getframerate()
            raw = stream.readframes(stream.getnframes())
    except (wave.Error, EOFError, OSError) as error:
        raise LoadError(f"{path} is not a readable WAV file ({error}). Give 16-bit PCM.") from error
    if width != 2 or not raw or len(raw) % (2 * channels):
        raise LoadError(f"{path} has {8 * width}-bit samples and {len(raw)} bytes. Give 16-bit PCM.")
    if rate < _LOWEST_RATE:  # it would be stretched to more than the memory holds
        raise LoadError(f"{path} has {rate} samples a second. Give a sound of {_LOWEST_RATE} or more.")
    sound = np.frombuffer(raw, dtype="<i2").reshape(-1, channels).mean(axis=1) / 32768.0
    positions = np.arange(0, len(sound), rate / _SAMPLING_RATE)
    resampled: NDArray[np.float32] = np.interp(positions, np.arange(len(sound)), sound).astype(np.float32)
    return resampled
