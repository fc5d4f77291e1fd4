"""What is traced: a model as a function of a plain list of tensors, with names and moving axes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn

from oattn_hub.errors import InvalidInput

if TYPE_CHECKING:
    from torch.onnx import ONNXProgram
    from transformers import PreTrainedModel

_MOVES = torch.export.Dim.DYNAMIC
_TRACED_BATCH, _TRACED_PAST, _TRACED_TOKENS = 2, 5, 3  # different, so that the exporter takes no two axes for one


class Graph(nn.Module):
    """A model as ``graph(tensors) -> tensors``."""

    model: PreTrainedModel
    example: list[torch.Tensor]
    shapes: list[dict[int, object]]
    input_names: list[str]
    output_names: list[str]

    def other_example(self) -> list[torch.Tensor]:
        """Inputs of another shape than ``example``."""
        raise NotImplementedError

    def settings(self) -> dict[str, int]:
        """What the config must say for tools that make inputs from it."""
        return {}

    def mend(self, program: ONNXProgram) -> None:
        """Change what the exporter wrote, where tools need it otherwise."""


class PlainGraph(Graph):
    """A model without a cache: what it reads in, every tensor that it returns out."""

    def __init__(self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        batch = {**batch, **_sent_by_tokenizers(model, batch)}
        self.model, self.input_names = model, list(batch)
        self.example = [value.repeat(_TRACED_BATCH, *[1] * (value.dim() - 1)) for value in batch.values()]
        texts = batch["input_ids"].shape if "input_ids" in batch else None
        self.shapes = [{0: _MOVES} | ({1: _MOVES} if value.shape == texts else {}) for value in batch.values()]
        with torch.no_grad():
            found = self.model(**batch)
        self.output_names = [name for name, value in found.items() if isinstance(value, torch.Tensor) and value.dim()]

    def forward(self, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        found = self.model(**dict(zip(self.input_names, tensors, strict=True)))
        return tuple(found[name] for name in self.output_names)

    def other_example(self) -> list[torch.Tensor]:
        """One input, and of a text all tokens but the first."""
        return [
            value[:1, 1:].contiguous() if 1 in axes else value[:1]
            for value, axes in zip(self.example, self.shapes, strict=True)
        ]


def _sent_by_tokenizers(model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What comes beside the tokens of a text, as far as the model takes it; the last token is masked."""
    taken, ids = inspect.signature(model.forward).parameters, batch.get("input_ids")
    if ids is None:
        return {}
    mask = torch.ones_like(ids)
    mask[:, -1] = 0
    sent = {"attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    return {name: value for name, value in sent.items() if name in taken}


class CachedGraph(Graph):
    """A model that writes text: it reads new tokens and what it kept of earlier ones.

    Tools make the first, empty cache from the config, which knows one number of key/value heads. Layers that keep
    fewer get theirs filled up with zeros outside of the model.
    """

    def __init__(self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.model = model
        self.kept = _cache_shapes(model, batch["input_ids"])
        self.heads = max(heads for heads, _ in self.kept)
        if not hasattr(model.config, "num_key_value_heads"):  # tools take the number of all heads
            self.heads = max(self.heads, int(model.config.num_attention_heads))
        takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        self.own = ["input_ids", "attention_mask", *(["position_ids"] if takes_positions else [])]
        slots = [f"{layer}.{part}" for layer in range(len(self.kept)) for part in ("key", "value")]
        self.input_names = [*self.own, *(f"past_key_values.{slot}" for slot in slots)]
        self.output_names = ["logits", *(f"present.{slot}" for slot in slots)]
        self.ids = batch["input_ids"]
        self.example = self._tensors(_TRACED_BATCH, _TRACED_PAST, _TRACED_TOKENS)
        own = [{0: _MOVES, 1: _MOVES} for _ in self.own]
        self.shapes = [*own, *({0: _MOVES, 2: _MOVES} for _ in slots)]

    def forward(self, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        from transformers import DynamicCache

        cache, past = DynamicCache(), tensors[len(self.own) :]
        for layer, (heads, _) in enumerate(self.kept):
            cache.update(past[2 * layer][:, :heads], past[2 * layer + 1][:, :heads], layer)
        own = dict(zip(self.own, tensors, strict=False))
        found = self.model(**own, past_key_values=cache, use_cache=True)
        kept = found.past_key_values.layers
        full = (self._filled(part) for layer in kept for part in (layer.keys, layer.values))
        return (found.logits, *full)

    def other_example(self) -> list[torch.Tensor]:
        """A first call: nothing is kept yet."""
        return self._tensors(1, 0, 7)

    def mend(self, program: ONNXProgram) -> None:
        """Read the size of the batch off the tokens: the empty cache that transformers.js starts with has none."""
        graph = program.model.graph
        for node in graph:
            asked = node.inputs[0].name if node.op_type == "Shape" and node.inputs[0] is not None else None
            if asked is not None and asked.startswith("past_") and not node.attributes["start"].value:
                node.replace_input_with(0, graph.inputs[0])

    def settings(self) -> dict[str, int]:
        """The cache's shape, where a config can say it."""
        named = {"num_key_value_heads": self.heads} if hasattr(self.model.config, "num_key_value_heads") else {}
        return {**named, "head_dim": self.kept[0][1]} if named else {}

    def _filled(self, part: torch.Tensor) -> torch.Tensor:
        missing = self.heads - part.shape[1]
        batch, _, past, width = part.shape
        return torch.cat([part, part.new_zeros(batch, missing, past, width)], dim=1) if missing else part

    def _tensors(self, batch: int, past: int, tokens: int) -> list[torch.Tensor]:
        ids = self.ids.flatten().repeat(batch * (past + tokens))[: batch * tokens].view(batch, tokens)
        positions = torch.arange(past, past + tokens).repeat(batch, 1)
        own = [ids, torch.ones(batch, past + tokens, dtype=torch.long), positions][: len(self.own)]
        numbers = torch.Generator().manual_seed(0)
        return own + [
            self._filled(torch.randn(batch, heads, past, width, generator=numbers))
            for heads, width in self.kept
            for _ in ("key", "value")
        ]


def _cache_shapes(model: PreTrainedModel, ids: torch.Tensor) -> list[tuple[int, int]]:
    """Key/value heads and their width, of every layer, as the model itself keeps them."""
    with torch.no_grad():
        cache = model(input_ids=ids, use_cache=True).past_key_values
    layers = getattr(cache, "layers", None)
    if not layers or any(getattr(layer, "keys", None) is None for layer in layers):
        raise InvalidInput(
            f"{type(model).__name__} keeps something else than keys and values of every layer between tokens "
            f"({type(cache).__name__}), which the tools have no word for. Export its masked variant with optimum."
        )
    return [(layer.keys.shape[1], layer.keys.shape[3]) for layer in layers]
