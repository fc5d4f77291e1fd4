"""Writing a store as attention streams by, a few heads at a time.

A process may die at any moment and the store stays valid. Tensors are not forced to the platter (that would take longer
than the model); after a power failure, sizes that do not fit the index are reported when a tensor is opened.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np

from oattn_hub.attention.store import DTYPES, FORMAT_NAME, INDEX_NAME, SCHEMA, AttentionStore, StoreInfo
from oattn_hub.errors import CaptureError, InvalidInput
from oattn_hub.files import folder_lock, safe_name, storage_errors, write_sealed
from oattn_hub.types import Array

# A safetensors header gives the tensor's shape, which is known only when the last layer has run. Its place is kept
# free with this many bytes; the format allows trailing spaces.
_HEADER_BYTES = 1024 - 8


class StoreWriter:
    """Creates a store, or goes on with one that was captured in the same way; nobody else can until :meth:`release`."""

    def __init__(self, folder: Path, info: StoreInfo, resume: bool) -> None:
        self.folder = folder
        self._index: dict[str, Any]
        with ExitStack() as held:
            held.enter_context(folder_lock(folder, wait=0))
            if (folder / INDEX_NAME).exists():
                self._index = _reopen(folder, info, resume)
            else:
                self._index = {"format": FORMAT_NAME, "schema": SCHEMA, "info": info.to_json(), "batches": []}
                write_sealed(folder / INDEX_NAME, self._index)
            self.store = AttentionStore(folder, self._index)
            self._held = held.pop_all()

    def release(self) -> None:
        """Let others write into the folder; a second time does nothing."""
        self._held.close()

    def leave_out(self, reasons: Mapping[str, str]) -> None:
        """Name modules that were seen to compute something else than attention between tokens, and why it is not."""
        self._index["info"]["skipped"] = {**self._index["info"]["skipped"], **reasons}

    def begin_batch(self) -> BatchWriter:
        """A writer for the next forward call; nothing of it counts before :meth:`finish_batch`."""
        name = f"batch-{len(self._index['batches']):05d}"
        for leftover in (self.folder / name, self.folder / f"{name}.part"):
            shutil.rmtree(leftover, ignore_errors=True)
        info = self._index["info"]
        return BatchWriter(self.folder / f"{name}.part", name, tuple(info["kinds"]), np.dtype(info["dtype"]))

    def finish_batch(self, batch: BatchWriter, inputs: str, not_run: list[str]) -> None:
        """Close the batch's files, give them their names, and enter them in the index."""
        groups = batch.close()
        self._check_same_heads(groups)
        with storage_errors(self.folder):
            batch.folder.rename(self.folder / batch.name)
        self._index["batches"].append({"inputs": inputs, "not_run": not_run, "groups": groups})
        try:
            write_sealed(self.folder / INDEX_NAME, self._index)
        except BaseException:
            self._index["batches"].pop()
            raise

    def _check_same_heads(self, groups: dict[str, Any]) -> None:
        for name, entry in groups.items():
            for batch in self._index["batches"]:
                known = batch["groups"].get(name)
                if known is not None and known["layers"] != entry["layers"]:
                    raise CaptureError(
                        f"Group {name!r} had {len(known['layers'])} layers in an earlier batch and has "
                        f"{len(entry['layers'])} in this one. Capture the two kinds of input into two stores."
                    )


@dataclass
class _TensorFile:
    """One growing tensor (heads, queries, keys)."""

    path: Path
    kind: str
    stream: BinaryIO
    shape: tuple[int, int]
    n_heads: int = 0
    digest: Any = field(default_factory=hashlib.sha256)  # of the data, as it goes by

    def finish(self, dtype: np.dtype[Any]) -> int:
        """Fill in the header and return the file's size."""
        shape = (self.n_heads, *self.shape)
        n_bytes = int(np.prod(shape)) * dtype.itemsize
        entry = {"dtype": DTYPES[dtype.name], "shape": shape, "data_offsets": [0, n_bytes]}
        header = json.dumps({"__metadata__": {"axes": "head, query, key"}, self.kind: entry}).encode()
        self.stream.seek(0)
        self.stream.write(struct.pack("<Q", _HEADER_BYTES) + header.ljust(_HEADER_BYTES))
        self.stream.close()
        return 8 + _HEADER_BYTES + n_bytes


@dataclass
class BatchWriter:
    """The tensors of one forward call, in a folder that takes its name only when all of them are whole."""

    folder: Path
    name: str
    kinds: tuple[str, ...]
    dtype: np.dtype[Any]
    _files: dict[tuple[str, int, int, str], _TensorFile] = field(default_factory=dict)
    _layers: dict[tuple[str, int, int], list[dict[str, Any]]] = field(default_factory=dict)

    def add_layer(self, group: str, queries: int, keys: int, layer: int, name: str, heads: int) -> None:
        """Announce a layer whose heads follow."""
        self._layers.setdefault((group, queries, keys), []).append({"layer": layer, "name": name, "heads": heads})

    def add_heads(self, group: str, kind: str, block: Array) -> None:
        """Append a block (heads, queries, keys) of the layer announced last."""
        with np.errstate(over="ignore"):  # reported below, with what to do
            data = np.ascontiguousarray(block, dtype=self.dtype)
        if self.dtype == np.float16 and np.isinf(data).any():
            raise CaptureError(f"{kind} exceed the range of float16 ({np.abs(block).max():.3g}). Capture in float32.")
        file = self._file(group, kind, (data.shape[1], data.shape[2]))
        with storage_errors(file.path):
            file.stream.write(data.data)
            file.digest.update(data.data)
        file.n_heads += len(data)

    def renumber(self, places: Mapping[str, tuple[int, str]]) -> None:
        """Give layers that were announced under provisional names their number and name in the model."""
        for layers in self._layers.values():
            for entry in layers:
                entry["layer"], entry["name"] = places[entry["name"]]

    def close(self) -> dict[str, Any]:
        """Finish all files; the groups' entries of the index."""
        groups: dict[str, Any] = {}
        shapes_of = {key[0]: [k for k in self._layers if k[0] == key[0]] for key in self._layers}
        for (group, queries, keys), layers in self._layers.items():
            files = {kind: self._finish(self._files[group, queries, keys, kind]) for kind in self.kinds}
            label = group if len(shapes_of[group]) == 1 else f"{group}-{queries}x{keys}"
            groups[label] = {"queries": queries, "keys": keys, "layers": layers, "files": files}
        return groups

    def discard(self) -> None:
        """Forget the batch: a forward call that failed leaves nothing behind."""
        for file in self._files.values():
            with suppress(
                OSError
            ):  # closing flushes, which fails again on a full disk; the file goes away all the same
                file.stream.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, group: str, kind: str, shape: tuple[int, int]) -> _TensorFile:
        key = (group, *shape, kind)
        if key not in self._files:
            path = self.folder / f"{safe_name(group)}-{shape[0]}x{shape[1]}.{kind}.safetensors"
            with storage_errors(path):
                self.folder.mkdir(parents=True, exist_ok=True)
                stream = path.open("wb")
                stream.write(bytes(8 + _HEADER_BYTES))
            self._files[key] = _TensorFile(path, kind, stream, shape)
        return self._files[key]

    def _finish(self, file: _TensorFile) -> dict[str, Any]:
        with storage_errors(file.path):
            n_bytes = file.finish(self.dtype)
        return {"name": f"{self.name}/{file.path.name}", "bytes": n_bytes, "sha256": file.digest.hexdigest()}


def refuse_to_add(folder: Path) -> NoReturn:
    """Say that a store is there already."""
    raise InvalidInput(
        f"{folder} already holds an attention store of {AttentionStore.open(folder).n_batches} batches. "
        "Choose another folder, or pass resume=True (--resume) to add to it."
    )


def _reopen(folder: Path, info: StoreInfo, resume: bool) -> dict[str, Any]:
    if not resume:
        refuse_to_add(folder)
    index = AttentionStore.open(folder)._index
    ours, theirs = info.to_json(), index["info"]
    if {**theirs["skipped"], **info.skipped} == theirs["skipped"]:  # more is known of a model that ran
        ours["skipped"] = theirs["skipped"]
    different = [key for key in ours if key != "versions" and ours[key] != theirs.get(key)]
    if different:
        changes = "; ".join(f"{key} was {theirs.get(key)!r} and is now {ours[key]!r}" for key in different)
        raise InvalidInput(f"{folder} was captured differently: {changes}. Choose another folder.")
    return index
