"""Text contexts: windows of exactly so many tokens, cut from one stream."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import numpy as np
import torch
from torch import Tensor

from oattn_hub.errors import InvalidInput, LoadError
from oattn_hub.inputs.ids import are_ids, read_ids
from oattn_hub.inputs.tables import DATASET, TEXTS, is_table, load_rows, needed, rows
from oattn_hub.inputs.types import Data, all_are
from oattn_hub.models.describe import config_of
from oattn_hub.models.load import LoadedModel
from oattn_hub.types import Array

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

_BUNDLED = "shakespeare.txt"
# Above this share of unknown tokens what was measured says little about the model.
_STRANGE = 0.2
# two halves that share nothing, or from which to which share of the data; None is all of it
Part = str | tuple[float, float] | None


def windows(
    loaded: LoadedModel, data: Data, batches: int, tokens: int, seed: int, part: Part
) -> tuple[list[list[int]], str]:
    """Token ids of ``batches`` contexts that do not overlap, and where they come from."""
    _check_length(loaded, tokens)
    if are_ids(data):
        return _windows_of_ids(loaded, data, batches, tokens, seed, part)
    tokenizer = _tokenizer(loaded)
    text, origin = read_text(data)
    prefix, suffix = _special_tokens(tokenizer)
    content = tokens - len(prefix) - len(suffix)
    if content < 1:
        raise InvalidInput(f"tokens is {tokens}, but the tokenizer adds {len(prefix) + len(suffix)}. Ask for more.")
    part = part or ("calibration" if data is None else None)
    stream = _encode(tokenizer, text)
    pieces = _pieces(stream[part_of(len(stream), part)], origin, batches, content, seed)
    described = f"{origin}{part_words(part)}, {batches} contexts of {tokens} tokens, seed {seed}"
    return [prefix + piece + suffix for piece in pieces], described + _unknown_words(tokenizer, pieces)


def _unknown_words(tokenizer: PreTrainedTokenizerBase, pieces: list[list[int]]) -> str:
    """Says so where the text is not of the kind the model reads: English prose for a model of proteins, say."""
    tokens = [token for piece in pieces for token in piece]
    share = sum(token == tokenizer.unk_token_id for token in tokens) / max(len(tokens), 1)
    return f"; {100 * share:.0f} % of its tokens are unknown to the model" if share > _STRANGE else ""


def _windows_of_ids(
    loaded: LoadedModel, data: str | Path | Array | torch.Tensor, batches: int, tokens: int, seed: int, part: Part
) -> tuple[list[list[int]], str]:
    """Contexts of ready-made token ids; nothing is put before or after them."""
    ids, origin = read_ids(data, getattr(_text_config(loaded), "vocab_size", None))
    chosen = ids[part_of(len(ids), part)]
    described = f"{origin}{part_words(part)}, {batches} contexts of {tokens} tokens"
    if ids.ndim == 1:
        return _pieces(chosen.tolist(), origin, batches, tokens, seed), f"{described}, seed {seed}"
    if len(chosen) < batches or ids.shape[1] < tokens:
        raise InvalidInput(
            f"The token ids ({origin}) have {len(chosen)} rows of {ids.shape[1]}; {batches} contexts of {tokens} "
            "tokens were asked for. Ask for fewer or shorter contexts."
        )
    rows = np.sort(np.random.default_rng(seed).choice(len(chosen), batches, replace=False))
    return chosen[rows, :tokens].tolist(), f"{described}, seed {seed}"


def _pieces(stream: list[int], origin: str, batches: int, length: int, seed: int) -> list[list[int]]:
    """Windows of one stream that do not overlap."""
    if len(stream) < batches * length:
        raise InvalidInput(
            f"The text ({origin}) has {len(stream)} tokens; {batches} contexts of {length} need {batches * length}. "
            "Give a longer text, or ask for fewer or shorter contexts."
        )
    return [stream[start : start + length] for start in _starts(len(stream), length, batches, seed)]


def batch(loaded: LoadedModel, window: list[int]) -> dict[str, Tensor]:
    """The model arguments of one context; a decoder is given the same tokens, shifted by its start token."""
    ids = torch.tensor([window])
    config = config_of(loaded.model)
    if not getattr(config, "is_encoder_decoder", False):
        return {"input_ids": ids}
    start = getattr(config, "decoder_start_token_id", None)
    start = start if start is not None else getattr(config, "bos_token_id", None) or 0
    shifted = torch.cat([torch.tensor([[start]]), ids[:, :-1]], dim=1)
    return {"input_ids": ids, "decoder_input_ids": shifted}


def read_text(data: Data) -> tuple[str, str]:
    """The text itself, and where it comes from."""
    if data is None:
        text = (resources.files("oattn_hub.inputs.data") / _BUNDLED).read_text(encoding="utf-8")
        return text, "bundled text (Shakespeare, Coriolanus; public domain)"
    if isinstance(data, str) and data.startswith(DATASET):
        return _read_dataset(data)
    if is_table(data):
        return _read_table(Path(data))
    if isinstance(data, str | Path):
        return _read_file(Path(data))
    if all_are(data, str):
        return "\n\n".join(data), f"{len(data)} texts"
    raise InvalidInput(f"data is {type(data).__name__}; for text give a file, a list of texts, or a list of dicts.")


def part_of(length: int, part: Part) -> slice:
    """Which of ``length`` tokens or files a part of the data is.

    >>> part_of(10, "evaluation"), part_of(8, (0.25, 0.5))
    (slice(5, 10, None), slice(2, 4, None))
    """
    start, stop = {"calibration": (0.0, 0.5), "evaluation": (0.5, 1.0), None: (0.0, 1.0)}.get(part, part)  # type: ignore[arg-type,misc]
    return slice(int(start * length), int(stop * length))


def part_words(part: Part) -> str:
    """The part as it is said behind the data's name."""
    if part is None:
        return ""
    return f", {part} half" if isinstance(part, str) else f", from {100 * part[0]:.0f} to {100 * part[1]:.0f} % of it"


def available(loaded: LoadedModel, data: Data, tokens: int, part: Part) -> int:
    """How many contexts of this length the part of the text holds."""
    if are_ids(data):
        ids, _ = read_ids(data, None)
        rows = part_of(len(ids), part)
        return int(rows.stop - rows.start) // (tokens if ids.ndim == 1 else 1)
    tokenizer = _tokenizer(loaded)
    content = tokens - sum(map(len, _special_tokens(tokenizer)))
    chosen = part_of(len(_encode(tokenizer, read_text(data)[0])), part)
    return len(range(chosen.start, chosen.stop)) // max(content, 1)


def longest_context(loaded: LoadedModel) -> int | None:
    """How many tokens the model has positions for, if it says so."""
    limits = [getattr(_text_config(loaded), name, None) for name in ("max_position_embeddings", "n_positions")]
    limits.append(getattr(getattr(loaded.processor, "tokenizer", loaded.processor), "model_max_length", None))
    known = [limit for limit in limits if isinstance(limit, int) and 0 < limit < 10**9]
    return min(known) if known else None


def _text_config(loaded: LoadedModel) -> PreTrainedConfig:
    config = config_of(loaded.model)
    return getattr(config, "text_config", None) or config


def _read_file(path: Path) -> tuple[str, str]:
    try:
        return path.read_text(encoding="utf-8"), path.name
    except OSError as error:
        raise LoadError(f"{path} cannot be read ({error.strerror}). Give a text file.") from error
    except UnicodeDecodeError as error:
        raise LoadError(f"{path} is not UTF-8 text ({error}). Give a text file.") from error


def _read_dataset(address: str) -> tuple[str, str]:
    parts = urlsplit(address.removeprefix(DATASET))
    options = {name: values[0] for name, values in parse_qs(parts.query).items()}
    rows = load_rows(parts.path, options, address)
    column = options.get("column", "text")
    try:
        return "\n\n".join(rows[column]), f"{address} ({len(rows)} rows)"
    except Exception as error:  # datasets raises a dozen unrelated classes
        raise LoadError(f"{address} cannot be loaded: {' '.join(str(error).split())[:300]}") from error


def _read_table(path: Path) -> tuple[str, str]:
    table = rows(path)
    column = needed(table, TEXTS, path, "a text")
    return "\n\n".join(str(row[column]) for row in table), f"{path.name}, column {column}"


def _tokenizer(loaded: LoadedModel) -> PreTrainedTokenizerBase:
    processor = loaded.processor
    tokenizer: PreTrainedTokenizerBase | None = getattr(processor, "tokenizer", processor)
    if tokenizer is None or not callable(tokenizer):
        raise InvalidInput(
            f"{loaded.model_id} came without a tokenizer. Give one (tokenizer=…), token ids as data (an array, or "
            "--data ids.npy), or a list of dicts such as {'input_ids': …}."
        )
    return tokenizer


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    # Paragraph by paragraph: tokenizers warn about, and are slow on, one very long string.
    paragraphs = [f"{paragraph}\n\n" for paragraph in text.split("\n\n") if paragraph.strip()]
    encoded = tokenizer(paragraphs, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
    return [token for ids in encoded for token in ids]


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """What the tokenizer puts before and after a text."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            return whole[:start], whole[start + len(bare) :]
    return [], []


def _check_length(loaded: LoadedModel, tokens: int) -> None:
    limit = longest_context(loaded)
    if limit is not None and tokens > limit:
        raise InvalidInput(
            f"tokens is {tokens}, but {loaded.model_id} takes at most {limit}. Ask for {limit} or fewer."
        )


def _starts(length: int, content: int, batches: int, seed: int) -> list[int]:
    """Starts of windows that do not overlap, in order; the seed spreads the slack between them."""
    slack = length - batches * content
    gaps = np.sort(np.random.default_rng(seed).integers(0, slack + 1, size=batches))
    return [int(gap) + index * content for index, gap in enumerate(gaps)]
