"""Where captured attention can go: what takes batches, and a store that keeps them in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from oattn_hub.attention.store import AttentionStore, StoreInfo
from oattn_hub.errors import InvalidInput
from oattn_hub.types import Array


class OpenBatch(Protocol):
    """The attention of one forward call while it runs."""

    def add_layer(self, group: str, queries: int, keys: int, layer: int, name: str, heads: int) -> None:
        """Announce a layer whose heads follow."""

    def add_heads(self, group: str, kind: str, block: Array) -> None:
        """Append a block (heads, queries, keys) of the layer announced last."""

    def renumber(self, places: Mapping[str, tuple[int, str]]) -> None:
        """Layers were announced under provisional names: name -> number and name in the model."""

    def discard(self) -> None:
        """The forward call failed: forget the batch."""


class Batches(Protocol):
    """Takes the batches of one capture."""

    def begin_batch(self) -> OpenBatch:
        """A forward call begins."""

    def finish_batch(self, batch: Any, inputs: str, not_run: list[str]) -> None:
        """It ended well: ``inputs`` is its fingerprint, ``not_run`` names the layers that did not run."""


class BatchSink(Protocol):
    """Anything that attention can be streamed into."""

    def start(self, info: StoreInfo) -> Batches:
        """Hooks were registered: what takes the batches of what ``info`` describes."""


class MemoryStore(AttentionStore):
    """A store that lives in memory and is read like one on disk.

    >>> import torch, oattn_hub as oh
    >>> encoder, store = torch.nn.TransformerEncoderLayer(16, nhead=2, batch_first=True).eval(), MemoryStore()
    >>> with oh.adapt(encoder).hook(store):
    ...     _ = encoder(torch.zeros(1, 5, 16))
    >>> store.tensor(batch=0).shape
    (5, 5, 2)
    """

    def __init__(self) -> None:
        super().__init__(Path("(memory)"), {"info": {}, "batches": []})

    def leave_out(self, reasons: Mapping[str, str]) -> None:
        """Name modules that were seen to compute something else than attention between tokens, and why it is not."""
        self._index["info"]["skipped"] = {**self._index["info"]["skipped"], **reasons}

    def start(self, info: StoreInfo) -> MemoryStore:
        """Take the batches of a capture; a store takes those of the same kinds only."""
        described = info.to_json()
        if self.n_batches and self._index["info"]["kinds"] != described["kinds"]:
            raise InvalidInput(f"This store holds {self._index['info']['kinds']}; take a new one for {info.kinds}.")
        self._index["info"] = described
        return self

    def begin_batch(self) -> _MemoryBatch:
        """The next forward call."""
        return _MemoryBatch(np.dtype(self._index["info"]["dtype"]))

    def finish_batch(self, batch: _MemoryBatch, inputs: str, not_run: list[str]) -> None:
        """Keep a batch."""
        self._index["batches"].append({"inputs": inputs, "not_run": not_run, "groups": batch.groups()})

    def tensor(self, batch: int, kind: str | None = None, group: str | None = None) -> Array:
        """X[query, key, head] of one batch."""
        entry = self._entry(batch, self._group_name(group))
        tensor: Array = entry["files"][self._kind_name(kind)]
        return tensor.transpose(1, 2, 0)


@dataclass
class _MemoryBatch:
    dtype: np.dtype[Any]
    _layers: dict[tuple[str, int, int], list[dict[str, Any]]] = field(default_factory=dict)
    _blocks: dict[tuple[str, int, int, str], list[Array]] = field(default_factory=dict)

    def add_layer(self, group: str, queries: int, keys: int, layer: int, name: str, heads: int) -> None:
        self._layers.setdefault((group, queries, keys), []).append({"layer": layer, "name": name, "heads": heads})

    def add_heads(self, group: str, kind: str, block: Array) -> None:
        copied = np.array(block, dtype=self.dtype, order="C")
        self._blocks.setdefault((group, *block.shape[1:], kind), []).append(copied)

    def renumber(self, places: Mapping[str, tuple[int, str]]) -> None:
        for layers in self._layers.values():
            for entry in layers:
                entry["layer"], entry["name"] = places[entry["name"]]

    def discard(self) -> None:
        self._blocks.clear()

    def groups(self) -> dict[str, Any]:
        """The groups by name, distinguished by their shape where one name has several."""
        names = [group for group, _, _ in self._layers]
        found = {}
        for (group, queries, keys), layers in self._layers.items():
            tensors = {
                kind: np.concatenate(blocks)
                for (*where, kind), blocks in self._blocks.items()
                if tuple(where) == (group, queries, keys)
            }
            label = group if names.count(group) == 1 else f"{group}-{queries}x{keys}"
            found[label] = {"queries": queries, "keys": keys, "layers": layers, "files": tensors}
        return found
