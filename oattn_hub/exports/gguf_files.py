"""GGUF for llama.cpp, whose ``deci`` graph (Nemotron's) is a Llama that may have other head counts in every layer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from oattn_hub.errors import InvalidInput, MissingDependency
from oattn_hub.exports.gguf_words import copy_words, write_words
from oattn_hub.files import atomic_path
from oattn_hub.models.describe import pretrained
from oattn_hub.models.load import LoadedModel, Source, load_model
from oattn_hub.records import PRUNING_KEY

if TYPE_CHECKING:
    from gguf import GGUFWriter

_FAMILIES = ("llama", "mistral")
_FORMATS = {"float16": torch.float16, "float32": torch.float32}


def export_gguf(model: Source, file: str | Path, *, like: str | Path | None = None, dtype: str = "float16") -> Path:
    """Write a Llama-like model, pruned or not, as one GGUF file, and return its path.

    Every group of queries of a layer must have the same size, as ``oattn prune --shape even`` leaves them; layers may
    differ from each other.

    Args:
        model: a pruned checkpoint's folder, or anything ``load_model`` takes.
        file: what to write, e.g. ``model.gguf``.
        like: a GGUF file of the base model, whose tokenizer is taken over as it is.
        dtype: ``float16`` or ``float32``, of the matrices; quantise the file with llama.cpp's own tool.
    """
    try:
        import gguf
    except ImportError as error:
        raise MissingDependency("Writing GGUF needs a package: pip install 'oattn_hub[gguf]'.") from error
    if dtype not in _FORMATS:
        raise InvalidInput(f"dtype is {dtype!r}; choose one of {', '.join(_FORMATS)}.")
    loaded = load_model(model)
    counts = _head_counts(loaded)
    source = pretrained(loaded.model)
    with atomic_path(Path(file)) as draft:
        writer = gguf.GGUFWriter(draft, "llama" if len(set(counts)) == 1 else "deci")
        _write_settings(writer, loaded, counts)
        if like is not None:
            copy_words(writer, Path(like), source.config.vocab_size)
        else:
            write_words(writer, loaded)
        for name, weight in _tensors(gguf, writer.arch, source, counts):
            writer.add_tensor(name, weight.to(_FORMATS[dtype] if weight.dim() > 1 else torch.float32).numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return Path(file)


def _head_counts(loaded: LoadedModel) -> list[tuple[int, int]]:
    """Query and key/value heads of every layer; refuse what llama.cpp's graphs cannot express."""
    model: Any = loaded.model  # a Llama, if it is one: its layers are read by name
    config: Any = getattr(model, "config", None)
    kind = getattr(config, "model_type", None)
    if kind not in _FAMILIES or not hasattr(model, "lm_head"):
        raise InvalidInput(
            f"{loaded.model_id} is a {type(model).__name__}; llama.cpp knows other head counts in every layer only for "
            f"models of the types {' and '.join(_FAMILIES)} that write text. Convert the masked variant with "
            "llama.cpp's own script."
        )
    cuts = getattr(config, PRUNING_KEY, None) or {}
    if any(change["behaviour"] == "even_groups" for change in cuts.get("behave", ())):
        raise InvalidInput(
            f"{loaded.model_id} has layers whose groups of queries have different sizes, which llama.cpp cannot read. "
            "Prune with --shape even."
        )
    if (scaling := dict(config.rope_parameters or {}).get("rope_type", "default")) != "default":
        raise InvalidInput(
            f"{loaded.model_id} scales its positions ({scaling}), which is not written to GGUF yet. Convert the masked "
            "variant with llama.cpp's own script."
        )
    width = model.model.layers[0].self_attn.head_dim
    layers = (layer.self_attn for layer in model.model.layers)
    return [(a.q_proj.weight.shape[0] // width, a.k_proj.weight.shape[0] // width) for a in layers]


def _write_settings(writer: GGUFWriter, loaded: LoadedModel, counts: list[tuple[int, int]]) -> None:
    model: Any = loaded.model
    config, width = model.config, model.model.layers[0].self_attn.head_dim
    heads, kv_heads = ([count[part] for count in counts] for part in (0, 1))
    alike = len(set(counts)) == 1
    writer.add_name(loaded.model_id.split("/")[-1])
    writer.add_block_count(len(counts))
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads[0] if alike else heads)
    writer.add_head_count_kv(kv_heads[0] if alike else kv_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)


def _tensors(
    gguf: ModuleType, arch: str, model: Any, counts: list[tuple[int, int]]
) -> Iterator[tuple[str, torch.Tensor]]:
    kind = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(kind, len(counts))
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and tied:
            continue
        known = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if known is None:
            raise InvalidInput(f"llama.cpp has no place for {name} of this {type(model).__name__}.")
        yield known, _reordered(name, weight.detach().float(), counts)


def _reordered(name: str, weight: torch.Tensor, counts: list[tuple[int, int]]) -> torch.Tensor:
    """llama.cpp turns neighbouring features of queries and keys into each other, transformers the two halves."""
    part = 0 if ".q_proj." in name else 1 if ".k_proj." in name else None
    if part is None:
        return weight.contiguous()
    heads = counts[int(name.split(".layers.")[1].split(".")[0])][part]
    halves = weight.view(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape).contiguous()
