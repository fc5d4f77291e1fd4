"""Captured attention on disk: one 3-tensor per batch, kind and group of layers.

A store is a folder with ``index.json`` and a safetensors file per tensor. In a file the head axis comes first, because
layers arrive one after the other; :meth:`AttentionStore.tensor` turns the memory map to ``X[query, key, head]``
without copying. Only batches named in the index count, and the index is written last: a run that dies leaves a store
that opens and holds every batch that was finished.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from oattn_hub.codec import decode, encode_record
from oattn_hub.errors import FormatError, InvalidInput, LoadError
from oattn_hub.files import fingerprint, read_header, read_json, unsealed, write_sealed
from oattn_hub.records import JsonRecord, ModelInfo
from oattn_hub.types import Array

INDEX_NAME = "index.json"
FORMAT_NAME = "oattn_hub.attention"
SCHEMA = 3
KINDS = ("scores", "logits", "probs")
DTYPES = {"float32": "F32", "float16": "F16"}
_FILE = re.compile(r"batch-[0-9]{5,9}/[\w-][\w.-]*\.safetensors", re.ASCII)


@dataclass(frozen=True)
class HeadRecord:
    """One head, in the order of the tensor's head axis."""

    layer: int
    layer_name: str
    head: int


@dataclass(frozen=True)
class StoreInfo(JsonRecord):
    """What was captured, from what, and how.

    Attributes:
        model: The model's identity, so that a report can be made from the store where the model is not.
        kinds: Which of ``scores``, ``logits``, ``probs`` the store holds.
        dtype: ``float32`` or ``float16``.
        pool: How many consecutive tokens were averaged into one; 1 is none.
        skipped: Modules left out on purpose, and why (channel attention is not attention between tokens).
        fingerprint: SHA-256 of the inputs.
        description: What the inputs were and where they came from.
        tokens: Tokens per context, for text.
        versions: Versions of the libraries that ran the model.
    """

    model: ModelInfo
    kinds: tuple[str, ...]
    dtype: str = "float32"
    pool: int = 1
    skipped: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str | None = None
    description: str = ""
    tokens: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def adapter(self) -> str:
        """Name of the adapter that described the model."""
        return self.model.adapter


class AttentionStore:
    """A folder of captured attention, read batch by batch.

    >>> store = AttentionStore.open("captured")                         # doctest: +SKIP
    >>> X = store.tensor(batch=0, kind="probs")                         # doctest: +SKIP
    >>> X.shape, store.heads()[0]                                       # doctest: +SKIP
    ((128, 128, 72), HeadRecord(layer=0, layer_name='encoder.layer.0.attention', head=0))
    """

    def __init__(self, folder: Path, index: dict[str, Any]) -> None:
        self.folder = folder
        self._index = index
        self._sound: set[str] = set()  # files whose SHA-256 was compared

    @classmethod
    def open(cls, folder: str | Path) -> AttentionStore:
        """Open a store, or say what is missing or damaged."""
        path = Path(folder)
        if not cls.is_store(path):
            raise LoadError(f"{path} is not an attention store: it has no {INDEX_NAME}. Make one with oattn capture.")
        index = read_json(path / INDEX_NAME)
        if not isinstance(index, dict) or index.get("format") != FORMAT_NAME:
            raise FormatError(f"{path / INDEX_NAME} is not the index of an attention store. Choose another folder.")
        if index.get("schema") != SCHEMA:
            raise FormatError(f"{path} has schema {index.get('schema')}, this version reads {SCHEMA}. Capture again.")
        return cls(path, _whole_index(unsealed(index, path / INDEX_NAME), path / INDEX_NAME))

    @staticmethod
    def is_store(folder: str | Path) -> bool:
        """Whether there is a folder of that name with an attention store in it."""
        return (Path(folder) / INDEX_NAME).is_file()

    @property
    def info(self) -> StoreInfo:
        """What was captured, from what, and how."""
        return StoreInfo.from_json({**self._index["info"], "fingerprint": self.fingerprint})

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the inputs: the one declared, or else that of the batches seen."""
        declared = self._index["info"]["fingerprint"]
        return str(declared or fingerprint([batch["inputs"] for batch in self._index["batches"]]))

    @property
    def n_batches(self) -> int:
        """How many forward calls were captured whole."""
        return len(self._index["batches"])

    @property
    def groups(self) -> list[str]:
        """Names of the groups of layers with equal (queries, keys), in model order."""
        return list(dict.fromkeys(name for batch in self._index["batches"] for name in batch["groups"]))

    @property
    def not_run(self) -> list[str]:
        """Attention layers of the model that ran in no batch (an image tower given only text)."""
        missing = [set(batch["not_run"]) for batch in self._index["batches"]]
        return sorted(set.intersection(*missing)) if missing else []

    def heads(self, group: str | None = None) -> list[HeadRecord]:
        """The heads of a group, in the order of the tensor's head axis."""
        entry = next(self._group_entries(self._group_name(group)))
        layers = entry["layers"]
        return [HeadRecord(x["layer"], x["name"], head) for x in layers for head in range(x["heads"])]

    def batches(self, group: str | None = None) -> list[int]:
        """Numbers of the forward calls in which a group ran."""
        name = self._group_name(group)
        return [number for number, batch in enumerate(self._index["batches"]) if name in batch["groups"]]

    def shape(self, batch: int, group: str | None = None) -> tuple[int, int, int]:
        """(queries, keys, heads) of one tensor, without opening it."""
        entry = self._entry(batch, self._group_name(group))
        return entry["queries"], entry["keys"], sum(x["heads"] for x in entry["layers"])

    def tensor(self, batch: int, kind: str | None = None, group: str | None = None) -> Array:
        """X[query, key, head] of one batch, memory-mapped and read-only.

        Args:
            batch: Number of the forward call, from 0.
            kind: ``scores``, ``logits`` or ``probs``; may be left out if the store holds one kind.
            group: May be left out if the store has one group.
        """
        name, kind = self._group_name(group), self._kind_name(kind)
        file = self._entry(batch, name)["files"][kind]
        if batch in self.given_back:
            raise InvalidInput(f"Batch {batch} of {self.folder} was organised and given back. Capture it again.")
        queries, keys, heads = self.shape(batch, name)
        place = _TensorPlace(self.folder / file["name"], kind, self._index["info"]["dtype"], (heads, queries, keys))
        if file["name"] not in self._sound:
            place.check(file["bytes"], file["sha256"])
            self._sound.add(file["name"])
        return place.open().transpose(1, 2, 0)

    def verify(self) -> None:
        """Refuse the store if any of its tensors is not, bit for bit, what was written."""
        for group in self.groups:
            for batch in sorted(set(self.batches(group)) - self.given_back):
                for kind in self._index["info"]["kinds"]:
                    self.tensor(batch, kind, group)

    @property
    def given_back(self) -> set[int]:
        """Numbers of the batches of which only the names are left."""
        return {number for number, batch in enumerate(self._index["batches"]) if batch.get("given_back")}

    def n_bytes(self, batch: int) -> int:
        """How much room the tensors of a batch take on the disk."""
        groups = self._index["batches"][batch]["groups"].values()
        return sum(file["bytes"] for group in groups for file in group["files"].values())

    def give_back(self, batch: int) -> None:
        """Delete the tensors of a batch; that it was there, and its heads, stay known."""
        self._index["batches"][batch]["given_back"] = True
        write_sealed(self.folder / INDEX_NAME, self._index)
        for group in self._index["batches"][batch]["groups"].values():
            for file in group["files"].values():
                (self.folder / file["name"]).unlink(missing_ok=True)

    def __repr__(self) -> str:
        kinds = ", ".join(self._index["info"]["kinds"])
        return f"<AttentionStore {self.folder}: {self.n_batches} batches, {kinds}, groups {self.groups}>"

    # ------------------------------------------------------------------------------------------------------------------

    def _group_name(self, group: str | None) -> str:
        if not self.n_batches:
            raise InvalidInput(f"The store {self.folder} holds no batch. Run the model inside the capture block.")
        if group is None and len(self.groups) == 1:
            return self.groups[0]
        if group not in self.groups:
            raise InvalidInput(f"Group {group!r} is not in the store {self.folder}; choose one of {self.groups}.")
        return group

    def _kind_name(self, kind: str | None) -> str:
        kinds = self._index["info"]["kinds"]
        if kind is None and len(kinds) == 1:
            return str(kinds[0])
        if kind is None or kind not in kinds:
            raise InvalidInput(f"Kind {kind!r} was not captured; the store {self.folder} holds {kinds}.")
        return kind

    def _entry(self, batch: int, group: str) -> dict[str, Any]:
        if not 0 <= batch < self.n_batches:
            raise InvalidInput(f"Batch {batch} does not exist; the store {self.folder} has {self.n_batches}.")
        groups = self._index["batches"][batch]["groups"]
        if group not in groups:
            raise InvalidInput(f"Batch {batch} has no group {group!r}; it has {list(groups)}.")
        entry: dict[str, Any] = groups[group]
        return entry

    def _group_entries(self, group: str) -> Iterator[Any]:
        return (batch["groups"][group] for batch in self._index["batches"] if group in batch["groups"])


@dataclass(frozen=True)
class _LayerEntry:
    layer: int
    name: str
    heads: int


@dataclass(frozen=True)
class _FileEntry:
    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class _GroupEntry:
    queries: int
    keys: int
    layers: list[_LayerEntry]
    files: dict[str, _FileEntry]


@dataclass(frozen=True)
class _BatchEntry:
    inputs: str
    not_run: list[str]
    groups: dict[str, _GroupEntry]
    given_back: bool = False


@dataclass(frozen=True)
class _Index:
    format: str
    schema: int
    info: StoreInfo
    batches: list[_BatchEntry]


def _whole_index(index: dict[str, Any], path: Path) -> dict[str, Any]:
    """The index with all its fields; one whose parts do not fit each other is refused before any file is opened."""
    found = decode(_Index, index, str(path))
    kinds = set(found.info.kinds)
    if not kinds or not kinds <= set(KINDS) or found.info.dtype not in DTYPES:
        raise FormatError(f"{path} is damaged: it speaks of {sorted(kinds)} in {found.info.dtype}. Capture again.")
    for group in (group for batch in found.batches for group in batch.groups.values()):
        counts = [group.queries, group.keys, *(layer.heads for layer in group.layers)]
        names = [file.name for file in group.files.values()]
        if min(counts) < 1 or not group.layers or set(group.files) != kinds or not all(map(_FILE.fullmatch, names)):
            raise FormatError(f"{path} is damaged: an entry has no heads, or files of others. Capture again.")
    return encode_record(found)


@dataclass(frozen=True)
class _TensorPlace:
    """The file of one tensor (head, query, key), and what the index says about it."""

    path: Path
    kind: str
    dtype: str
    shape: tuple[int, int, int]

    def check(self, size: int, sha256: str) -> None:
        """Refuse a file that is not, bit for bit, the one that was written."""
        try:
            actual = self.path.stat().st_size
        except OSError as error:
            raise LoadError(f"{self.path} is missing from the store. Capture again into a new folder.") from error
        if actual != size:
            raise FormatError(f"{self.path} is damaged: it has {actual} bytes, {size} were written. Capture again.")
        array = self.open()
        if hashlib.sha256(array.data).hexdigest() != sha256:
            raise FormatError(f"{self.path} is damaged: its SHA-256 is not the one that was written. Capture again.")

    def open(self) -> Array:
        """The tensor, memory-mapped and read-only."""
        header = read_header(self.path)
        entry = header.entries.get(self.kind)
        if entry is None or len(header.entries) != 1 or (entry.dtype, entry.shape) != (DTYPES[self.dtype], self.shape):
            raise FormatError(f"{self.path} is damaged: it is not the {self.kind} of the index. Capture again.")
        return np.memmap(self.path, dtype=self.dtype, mode="r", offset=header.data_start, shape=self.shape)
