"""The tokenizer of a GGUF file: copied from another one, or written from a byte-level BPE of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oattn_hub.errors import InvalidInput, LoadError
from oattn_hub.models.describe import config_of
from oattn_hub.models.load import LoadedModel

if TYPE_CHECKING:
    from gguf import GGUFWriter
    from transformers import PreTrainedTokenizerBase

# How a text is split before the merges -> what llama.cpp calls it. Others need a file to copy from.
_SPLITS = {("ByteLevel",): "gpt-2", ("Digits", "ByteLevel"): "smollm"}
_NORMAL, _CONTROL, _USER, _UNUSED = 1, 3, 4, 5  # llama.cpp's types of tokens


def copy_words(writer: GGUFWriter, file: Path, n_tokens: int) -> None:
    """Take over everything that another GGUF file says about its tokenizer."""
    import gguf

    if not file.is_file():
        raise LoadError(f"There is no file {file}. Name a GGUF file of the base model.")
    fields = {name: field for name, field in gguf.GGUFReader(file).fields.items() if name.startswith("tokenizer.")}
    known = fields.get("tokenizer.ggml.tokens")
    if known is None or len(known.contents()) != n_tokens:
        found = 0 if known is None else len(known.contents())
        raise InvalidInput(f"{file} knows {found:,} tokens and the model {n_tokens:,}. Name a file of the same model.")
    for name, field in fields.items():
        writer.add_key_value(name, field.contents(), *field.types[:2])


def write_words(writer: GGUFWriter, loaded: LoadedModel) -> None:
    """Write the tokenizer of the checkpoint."""
    tokenizer = loaded.processor
    spec = json.loads(tokenizer.backend_tokenizer.to_str()) if hasattr(tokenizer, "backend_tokenizer") else {}
    split = _SPLITS.get(_split(spec.get("pre_tokenizer") or {}))
    if spec.get("model", {}).get("type") != "BPE" or split is None or spec.get("normalizer") is not None:
        raise InvalidInput(
            f"The tokenizer of {loaded.model_id} is not one that can be written to GGUF here (byte-level BPE, split "
            f"like {' or '.join(_SPLITS.values())}). Name a GGUF file of the base model to copy it from (--like)."
        )
    tokens, kinds = _tokens(tokenizer, spec, config_of(loaded.model).vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    merges = (pair if isinstance(pair, str) else " ".join(pair) for pair in spec["model"]["merges"])
    writer.add_token_merges(list(merges))
    for name in ("bos", "eos", "unk", "pad"):
        if (number := getattr(tokenizer, f"{name}_token_id")) is not None:
            getattr(writer, f"add_{name}_token_id")(number)
    writer.add_add_bos_token(tokenizer.bos_token_id in tokenizer("a")["input_ids"])
    if isinstance(tokenizer.chat_template, str):
        writer.add_chat_template(tokenizer.chat_template)


def _split(pre: dict[str, Any]) -> tuple[str, ...]:
    parts = pre["pretokenizers"] if pre.get("type") == "Sequence" else [pre]
    plain = all(part.get("use_regex", True) and part.get("individual_digits", True) for part in parts)
    return tuple(str(part.get("type")) for part in parts) if plain else ()


def _tokens(tokenizer: PreTrainedTokenizerBase, spec: dict[str, Any], n_tokens: int) -> tuple[list[str], list[int]]:
    known = {number: token for token, number in tokenizer.get_vocab().items()}
    added = {entry["id"]: _CONTROL if entry["special"] else _USER for entry in spec["added_tokens"]}
    tokens = [known.get(number, f"[PAD{number}]") for number in range(n_tokens)]
    kinds = [added.get(number, _NORMAL if number in known else _UNUSED) for number in range(n_tokens)]
    return tokens, kinds
