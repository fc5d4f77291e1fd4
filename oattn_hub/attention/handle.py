"""Hooks put on a model and taken off again: what is asked for is checked, and a place for the attention is opened."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FunctionType, TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn

from oattn_hub.attention.memory import Batches, BatchSink
from oattn_hub.attention.recorder import Recorder
from oattn_hub.attention.store import DTYPES, KINDS, AttentionStore, StoreInfo
from oattn_hub.attention.writer import StoreWriter
from oattn_hub.errors import CaptureError, InvalidInput
from oattn_hub.records import ModelInfo
from oattn_hub.versions import versions

if TYPE_CHECKING:
    from oattn_hub.adapters import Adapter


class HookHandle:
    """Forward hooks on a model; the end of its with-block, or :meth:`remove`, takes them off.

    Attributes:
        store: Where the attention goes.
    """

    def __init__(self, recorder: Recorder, batches: Batches, store: Any) -> None:
        self._recorder = recorder
        self._batches = batches
        self.store = store

    def remove(self) -> None:
        """Take the hooks off; a second time does nothing."""
        self._recorder.detach()
        if isinstance(self._batches, StoreWriter):
            self._batches.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def hook_model(
    adapter: Adapter,
    store: str | Path | BatchSink | None,
    kinds: Sequence[str],
    *,
    dtype: str = "float32",
    pool: int = 1,
    resume: bool = False,
    allow_partial: bool = False,
    identity: ModelInfo | None = None,
    fingerprint: str | None = None,
    description: str = "",
    tokens: int | None = None,
) -> HookHandle:
    """Register the hooks of ``adapter``'s model; see ``Adapter.hook`` and ``capture``."""
    info = StoreInfo(
        model=replace(identity or _identity(adapter.model), adapter=adapter.name),
        kinds=_checked_kinds(kinds),
        dtype=_checked_choice("dtype", dtype, tuple(DTYPES)),
        pool=_checked_pool(pool),
        skipped=adapter.left_out,
        fingerprint=fingerprint,
        description=description,
        tokens=tokens,
        versions=versions(),
    )
    _refuse_compiled(adapter.model)
    _refuse_scripted(adapter.model)
    batches, reader = _open_sink(store, info, resume)
    return HookHandle(Recorder(adapter, batches, info, allow_partial), batches, reader)


def _identity(model: nn.Module) -> ModelInfo:
    """A bare module is known by its class only, since hashing its weights may take long."""
    return ModelInfo(type(model).__qualname__, architecture=type(model).__name__)


def _open_sink(store: str | Path | BatchSink | None, info: StoreInfo, resume: bool) -> tuple[Batches, Any]:
    """What takes the batches, and what the caller reads them from."""
    if isinstance(store, str | Path | None):
        folder = Path(store) if store is not None else Path(tempfile.mkdtemp(prefix="oattn-"))
        writer = StoreWriter(folder, info, resume)
        if store is None:
            weakref.finalize(writer.store, shutil.rmtree, folder, ignore_errors=True)
        return writer, writer.store
    if hasattr(store, "start"):
        return store.start(info), store
    if isinstance(store, AttentionStore):  # a store on disk that was opened: go on with it
        writer = StoreWriter(store.folder, info, resume=True)
        return writer, writer.store
    raise InvalidInput(
        f"Attention cannot be streamed into {type(store).__qualname__}. Give a folder, a MemoryStore, or an object "
        "that takes batches (see oattn_hub.attention.memory.BatchSink)."
    )


def _refuse_compiled(model: nn.Module) -> None:
    if hasattr(model, "_orig_mod"):
        raise CaptureError("A compiled model's attention cannot be seen. Capture the module that was compiled.")


def _refuse_scripted(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule) and "softmax" in str(module.inlined_graph):
            raise CaptureError(
                f"{name or 'The model'} is TorchScript, which runs where its attention cannot be seen. Capture the "
                "module that was scripted."
            )
    for kind in dict.fromkeys(type(module) for module in model.modules()):  # many layers share a class
        for function in _scripted_functions(kind):
            raise CaptureError(
                f"{kind.__name__} calls {function.name}, which is TorchScript and runs where its attention "
                "cannot be seen. Capture the model with the function that was scripted."
            )


def _scripted_functions(kind: type[nn.Module]) -> list[torch.jit.ScriptFunction[Any, Any]]:
    """Functions with attention in TorchScript that the methods of a class name, or functions of its file they name."""
    found, seen = [], set()
    left = [each for owner in kind.__mro__[:-2] for each in vars(owner).values() if isinstance(each, FunctionType)]
    while left:
        function = left.pop()
        named = [function.__globals__.get(name) for name in function.__code__.co_names]
        for value in (value for value in named if id(value) not in seen):
            seen.add(id(value))
            if isinstance(value, torch.jit.ScriptFunction) and _attends(value):
                found.append(value)
            elif isinstance(value, FunctionType) and value.__module__ == function.__module__:
                left.append(value)
    return found


def _attends(function: torch.jit.ScriptFunction[Any, Any]) -> bool:
    graph = str(function.inlined_graph)
    return "scaled_dot_product" in graph or ("softmax" in graph and ("matmul" in graph or "bmm" in graph))


def _checked_kinds(kinds: Iterable[str]) -> tuple[str, ...]:
    chosen = (kinds,) if isinstance(kinds, str) else tuple(dict.fromkeys(kinds))
    if not chosen:
        raise InvalidInput(f"No kind of attention was asked for; choose from {', '.join(KINDS)}.")
    return tuple(_checked_choice("kind", kind, KINDS) for kind in chosen)


def _checked_choice(what: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise InvalidInput(f"{what} is {value!r}; choose from {', '.join(choices)}.")
    return value


def _checked_pool(pool: int) -> int:
    if pool < 1:
        raise InvalidInput(f"pool is {pool}; it is a number of tokens, 1 or more.")
    return pool
