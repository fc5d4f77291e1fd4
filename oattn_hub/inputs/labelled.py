"""Inputs that come with what is right about them.

============================================== =================================================================
data                                            what it gives
============================================== =================================================================
table with text and label columns               the class of a text (and its partner), for text classifiers
table with two text columns                     the text that belongs with it, for embedders: retrieval
table or list of texts that fit the context,    their own words, for models that fill in masked ones: a sequence or a
or a file of sequences, one a line              reaction is whole there, as the model was trained, not cut out of many
folder of images or sounds in class folders     the class, for image and audio classifiers
folder of sounds with .txt files or a           the transcript, for speech models with a decoder
metadata.csv, or a table of both
============================================== =================================================================

What is right lies under ``labels``: a class, the tokens of the partner, or the tokens of the transcript.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from oattn_hub.errors import InvalidInput
from oattn_hub.inputs import media, tables
from oattn_hub.inputs.texts import longest_context
from oattn_hub.inputs.types import Data
from oattn_hub.models.describe import config_of
from oattn_hub.models.load import LoadedModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# A token that no loss is counted for, as everywhere in transformers.
IGNORED = -100
# Texts are taken one by one where there are so many, of which at most this part is too long for the model.
_FEWEST_TEXTS, _TOO_LONG, _LOOKED_AT = 9, 0.1, 100
_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.tsv")


@dataclass(frozen=True)
class Examples:
    """What was found, not yet made into tensors.

    Attributes:
        items: one example each, whatever ``make`` takes.
        make: the model arguments of one example, with ``labels``; also given the most tokens.
        description: what the examples are and where they come from.
        whole: whether an example is as long as it is, unless the user asks for fewer tokens.
    """

    items: Sequence[Any]
    make: Callable[[Any, int], dict[str, Tensor]]
    description: str
    whole: bool = False


def find(loaded: LoadedModel, data: Data) -> Examples | None:
    """Labelled examples for this model; None where the data carries no labels that the model could be asked for."""
    if loaded.modality == "text":
        return _whole_texts(loaded, data) or (_texts(loaded, data) if tables.is_table(data) else None)
    if loaded.modality not in ("image", "audio") or not isinstance(data, str | Path):
        return None
    if loaded.modality == "audio" and _has_decoder(loaded):
        return _transcripts(loaded, data)
    return _classes(loaded, data)


def _texts(loaded: LoadedModel, data: str | Path) -> Examples | None:
    table = tables.rows(data)
    label, partner = (tables.column(table, names) for names in (tables.LABELS, tables.PARTNERS))
    text = tables.needed(table, tables.TEXTS, data, "a text")
    if _is_classifier(loaded) and label is not None:
        ids = class_ids(loaded, [row[label] for row in table], strict=True)
        assert ids is not None
        items = [(row[text], row[partner] if partner else None, ids[str(row[label])]) for row in table]
        return Examples(items, lambda item, tokens: _classified_text(loaded, item, tokens), f"texts of {_name(data)}")
    if partner is not None and not _has_logits(loaded):
        pairs = [(row[text], row[partner]) for row in table]
        return Examples(pairs, lambda pair, tokens: _pair(loaded, pair, tokens), f"pairs of {_name(data)}")
    return None


def _whole_texts(loaded: LoadedModel, data: Data) -> Examples | None:
    """Texts one by one for a masked language model, if the model takes nearly all of them as a whole."""
    tokenizer, limit = loaded.processor, longest_context(loaded)
    if not _fills_in(loaded) or not callable(tokenizer) or limit is None:
        return None
    if tables.is_table(data):
        table = tables.rows(data)
        text = tables.needed(table, tables.TEXTS, data, "a text")
        texts, name = [str(row[text]) for row in table], _name(data)
    elif isinstance(data, list | tuple) and data and all(isinstance(text, str) for text in data):
        texts, name = list(dict.fromkeys(data)), "a list"
    elif isinstance(data, str | Path) and (lines := _sequences(Path(data))):
        texts, name = lines, _name(data)
    else:
        return None
    texts = [text for text in texts if text.strip()]
    seen = tokenizer(texts[:_LOOKED_AT], verbose=False)["input_ids"] if texts else []
    if len(texts) < _FEWEST_TEXTS or sum(len(ids) > limit for ids in seen) > _TOO_LONG * len(seen):
        return None
    return Examples(texts, lambda text, tokens: _whole_text(loaded, text, tokens), f"texts of {name}, one by one", True)


def _sequences(path: Path) -> list[str]:
    """The lines of a text file if they are no prose: every line is one word, or all its words are single letters.

    That is how reactions, molecules and proteins are written, one a line; a line of a book is no text by itself.
    """
    try:
        with path.open(encoding="utf-8") as stream:
            if not all(_is_sequence(line) for line in islice(stream, _LOOKED_AT)):
                return []
        return list(dict.fromkeys(path.read_text(encoding="utf-8").split("\n")))
    except (OSError, UnicodeDecodeError):  # whoever needs the file says what is wrong with it
        return []


def _is_sequence(line: str) -> bool:
    words = line.split()
    return len(words) < 2 or all(len(word) == 1 for word in words)


def _whole_text(loaded: LoadedModel, text: str, tokens: int) -> dict[str, Tensor]:
    encoded = loaded.processor(text, truncation=True, max_length=tokens, return_tensors="pt")
    return {"input_ids": encoded["input_ids"]}


def _classified_text(loaded: LoadedModel, item: tuple[str, str | None, int], tokens: int) -> dict[str, Tensor]:
    text, partner, label = item
    encoded = loaded.processor(text, partner, truncation=True, max_length=tokens, return_tensors="pt")
    return {**encoded, "labels": torch.tensor([label])}


def _pair(loaded: LoadedModel, pair: tuple[str, str], tokens: int) -> dict[str, Tensor]:
    options = {"truncation": True, "max_length": tokens, "return_tensors": "pt"}
    first, second = (loaded.processor(text, **options)["input_ids"] for text in pair)
    return {"input_ids": first, "labels": second}


def _classes(loaded: LoadedModel, data: str | Path) -> Examples | None:
    """Files of a table with labels, or files in folders that are named like the model's classes."""
    if not _is_classifier(loaded):
        return None
    if tables.is_table(data):
        table = tables.rows(data)
        place, label = tables.needed(table, tables.FILES, data, "a file"), tables.column(table, tables.LABELS)
        if label is None:
            return None
        found = [(Path(data).parent / row[place], str(row[label])) for row in table]
    else:
        found = [(path, path.parent.name) for path in media.files_for(loaded, data) if path.parent != Path(data)]
    ids = class_ids(loaded, [name for _, name in found], strict=tables.is_table(data)) if found else None
    if ids is None:
        return None
    items = [(path, ids[name]) for path, name in found]
    return Examples(items, lambda item, _: _classified_file(loaded, item), f"{loaded.modality} files of {_name(data)}")


def _classified_file(loaded: LoadedModel, item: tuple[Path, int]) -> dict[str, Tensor]:
    path, label = item
    return {**media.batch_of(loaded, path), "labels": torch.tensor([label])}


def class_ids(loaded: LoadedModel, names: Sequence[object], strict: bool) -> dict[str, int] | None:
    """The model's number for every class: by its name, as a number, or in alphabetical order of as many names.

    Args:
        loaded: the classifier.
        names: the labels of all examples.
        strict: whether names that are none of the model's classes are an error, or no labels at all.
    """
    wanted = sorted({str(name) for name in names})
    known, count = _known_classes(loaded)
    found = {name: known.get(_plain(name)) for name in wanted}
    if None not in found.values():
        return {name: int(number) for name, number in found.items() if number is not None}
    if all(name.isdecimal() and int(name) < count for name in wanted):
        return {name: int(name) for name in wanted}
    nameless = not known or all(name.startswith("label ") for name in known)
    if nameless and len(wanted) == count:
        return {name: number for number, name in enumerate(wanted)}
    if not strict:
        return None
    stray = next(name for name in wanted if found[name] is None)
    raise InvalidInput(
        f"The label {stray!r} is none of the {count} classes of {loaded.model_id} "
        f"({', '.join(list(known)[:5])} …). Write labels as the model names its classes, or as numbers from 0."
    )


def _known_classes(loaded: LoadedModel) -> tuple[dict[str, int], int]:
    """Every way to write a class, and how many classes there are."""
    if loaded.library == "timm":
        return {}, int(getattr(loaded.model, "num_classes", 0))
    named: Mapping[int, str] = getattr(loaded.model.config, "id2label", None) or {}
    known: dict[str, int] = {}
    for number, title in named.items():
        for way in (title, *str(title).split(",")):  # ImageNet's names are lists of synonyms
            known.setdefault(_plain(way), int(number))
    return known, len(named)


def _plain(name: object) -> str:
    return " ".join(str(name).lower().replace("_", " ").replace("-", " ").split())


def _transcripts(loaded: LoadedModel, data: str | Path) -> Examples | None:
    """Sounds with their transcripts: from a table, or from text files beside them."""
    table = next((path for name in _METADATA if (path := Path(data) / name).is_file()), Path(data))
    if tables.is_table(table):
        rows = tables.rows(table)
        place = tables.needed(rows, tables.FILES, table, "a file")
        transcripts = tables.needed(rows, tables.TRANSCRIPTS, table, "a transcript")
        items = [(table.parent / row[place], str(row[transcripts])) for row in rows]
    else:
        paths = [path for path in media.files_for(loaded, data) if path.with_suffix(".txt").is_file()]
        items = [(path, path.with_suffix(".txt").read_text(encoding="utf-8").strip()) for path in paths]
    if not items:
        return None
    words = tokenizer_of(loaded)
    return Examples(
        items, lambda item, tokens: _spoken(loaded, words, item, tokens), f"sounds with transcripts of {_name(data)}"
    )


def _spoken(
    loaded: LoadedModel, tokenizer: PreTrainedTokenizerBase, item: tuple[Path, str], tokens: int
) -> dict[str, Tensor]:
    """The decoder is given the transcript one token late; its own prompt counts for no loss."""
    path, text = item
    config = config_of(loaded.model)
    start, prompt = config.decoder_start_token_id, _prompt(tokenizer)
    spoken = tokenizer(f" {text.strip()}", add_special_tokens=False)["input_ids"][: tokens - 1 - len(prompt)]
    wanted = [*[IGNORED] * len(prompt), *spoken, config.eos_token_id]
    given = torch.tensor([[start, *prompt, *spoken]])
    return {**media.batch_of(loaded, path), "decoder_input_ids": given, "labels": torch.tensor([wanted])}


def tokenizer_of(loaded: LoadedModel) -> PreTrainedTokenizerBase:
    """A speech model's tokenizer, which lies beside its feature extractor."""
    own: PreTrainedTokenizerBase | None = getattr(loaded.processor, "tokenizer", None)
    if own is not None:
        return own
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(loaded.source), **loaded.hub_options)
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"{loaded.model_id} came without a tokenizer, so transcripts mean nothing to it. Load it from a folder or "
            "repo that has one."
        ) from error


def _prompt(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Whisper is asked to write no times."""
    known = tokenizer.get_vocab()
    return [known["<|notimestamps|>"]] if "<|notimestamps|>" in known else []


def _fills_in(loaded: LoadedModel) -> bool:
    return loaded.library == "transformers" and type(loaded.model).__name__.endswith("ForMaskedLM")


def _is_classifier(loaded: LoadedModel) -> bool:
    if loaded.library == "timm":
        return _known_classes(loaded)[1] > 0
    name = type(loaded.model).__name__
    return loaded.library == "transformers" and name.endswith(("Classification", "ClassificationWithTeacher"))


def _has_logits(loaded: LoadedModel) -> bool:
    return getattr(loaded.model, "get_output_embeddings", lambda: None)() is not None or _is_classifier(loaded)


def _has_decoder(loaded: LoadedModel) -> bool:
    return bool(getattr(loaded.model.config, "is_encoder_decoder", False))


def _name(data: object) -> str:
    return Path(str(data)).name
