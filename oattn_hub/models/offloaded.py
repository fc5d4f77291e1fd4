"""Weights that accelerate keeps outside the model, on the disk or elsewhere: read one at a time, changed on the way.

accelerate leaves a parameter without values in the module (on torch's ``meta`` device), and puts its values there for
as long as the module runs; they come out of the ``weights_map`` of its hook. To change such a weight is to change what
that map hands out: nothing is written to the store, and no more than what runs is in memory.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from oattn_hub.errors import InvalidInput

Change = Callable[[Tensor], Tensor]


def is_offloaded(model: nn.Module) -> bool:
    """Whether accelerate keeps weights of ``model`` outside of it."""
    return any(_store(module) is not None for module in model.modules())


def refuse_gradients(model: nn.Module) -> None:
    """A backward pass keeps every weight that it passes: of an offloaded model, all that do not fit into memory."""
    if is_offloaded(model):
        raise InvalidInput(
            "This needs a backward pass, for which all weights of an offloaded model would have to be in memory at "
            "once. Choose what needs none: score='obs', 'weight', 'ablation', 'haar', or a budget, which takes 'obs'."
        )


def stored(owner: nn.Module, name: str) -> Tensor | None:
    """The values of a weight, wherever they are; None where there are none (a model that was only outlined)."""
    weight: Tensor = getattr(owner, name)
    if not weight.is_meta:
        return weight
    return _store(owner)[name].to(weight.dtype) if has_values(owner, name) else None


def has_values(owner: nn.Module, name: str) -> bool:
    """Whether :func:`stored` finds some."""
    store = _store(owner)
    return not getattr(owner, name).is_meta or (store is not None and name in store)


def replace_weight(owner: nn.Module, name: str, change: Change) -> None:
    """Change a weight for good; one that is outside is changed every time it comes in."""
    weight: Tensor = getattr(owner, name)
    store = _store(owner) if weight.is_meta else None
    if store is not None:
        _set_store(owner, _Changed(store, name, lambda: change(store[name])))
    else:
        with torch.no_grad():
            weight.data.copy_(change(weight.detach()))


@contextmanager
def replaced_weight(owner: nn.Module, name: str, change: Change) -> Iterator[None]:
    """Change a weight while the block runs."""
    store, weight = _store(owner), getattr(owner, name)
    before = weight if weight.is_meta else weight.detach().clone()
    try:
        replace_weight(owner, name, change)
        yield
    finally:
        if weight.is_meta:
            _set_store(owner, store)
        else:
            weight.data.copy_(before)


def add_weight(owner: nn.Module, name: str, value: Tensor) -> None:
    """Give a module a parameter that it has a place for and no value (``bias`` is None)."""
    store, like = _store(owner), next(owner.parameters(recurse=False))
    if store is not None and like.is_meta:
        _set_store(owner, _Changed(store, name, lambda: value))
    setattr(owner, name, nn.Parameter(value.to(like)))


def copied(model: nn.Module, apart: Iterable[nn.Module]) -> nn.Module:
    """A copy of a model; of an offloaded one, only the weights of ``apart`` are copied, all others are shared."""
    if not is_offloaded(model):
        return copy.deepcopy(model)
    own = {id(weight) for module in apart for weight in (*module.parameters(), *module.buffers())}
    shared = {id(weight): weight for weight in (*model.parameters(), *model.buffers()) if id(weight) not in own}
    stores = {id(store): store for module in model.modules() if (store := _store(module)) is not None}
    return copy.deepcopy(model, {**shared, **stores})


def placement_of(model: nn.Module, offload_folder: str) -> dict[str, Any]:
    """Arguments of ``from_pretrained`` that put a model of the same layers where this one is.

    There are none for a model in memory, and for one that was offloaded without a map (``accelerate.cpu_offload``).
    """
    known = getattr(model, "hf_device_map", None)
    if known is None or not is_offloaded(model):
        return {}
    places = {name: place if isinstance(place, int) else str(place) for name, place in known.items()}
    return {"device_map": places, "offload_folder": offload_folder}


@contextmanager
def mapped(model: nn.Module) -> Iterator[None]:
    """Let transformers look for offloaded weights where accelerate keeps them, also where no map says so."""
    if hasattr(model, "hf_device_map") or not is_offloaded(model):
        yield
        return
    setattr(model, "hf_device_map", {"": "disk"})  # noqa: B010 - no attribute that a module declares
    try:
        yield
    finally:
        del model.hf_device_map


class StoredState(Mapping[str, Tensor]):
    """``model.state_dict()`` whose values are read when they are asked for."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self._state = model, model.state_dict()

    def __getitem__(self, name: str) -> Tensor:
        value: Tensor = self._state[name]
        if not getattr(value, "is_meta", False):  # packed (quantised) values are no tensors
            return value
        owner, _, last = name.rpartition(".")
        found = stored(self._model.get_submodule(owner), last)
        return value if found is None else found

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)


def zeros_aside(*shape: int) -> Tensor:
    """Zeros in a file of the temporary folder (TMPDIR), mapped, in double precision: the system keeps what it can."""
    with TemporaryFile() as file:  # the mapping outlives the name, and nothing is left when it ends
        mapped: Any = np.memmap(file, dtype=np.float64, mode="w+", shape=shape)
    return torch.from_numpy(mapped)


class _Changed(Mapping[str, Tensor]):
    """A store of weights that hands out another value under one name."""

    def __init__(self, store: Mapping[str, Tensor], name: str, value: Callable[[], Tensor]) -> None:
        self._store, self._name, self._value = store, name, value

    def __getitem__(self, name: str) -> Tensor:
        return self._value() if name == self._name else self._store[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**dict.fromkeys(self._store), self._name: None})

    def __len__(self) -> int:
        return len(list(iter(self)))


def _hook(owner: nn.Module) -> Any:
    """accelerate's hook on a module that has a store, or None; of several hooks, the one with the store."""
    hook = getattr(owner, "_hf_hook", None)
    parts = getattr(hook, "hooks", (hook,))
    return next((part for part in parts if getattr(part, "weights_map", None) is not None), None)


def _store(owner: nn.Module) -> Any:
    hook = _hook(owner)
    return None if hook is None else hook.weights_map


def _set_store(owner: nn.Module, store: Any) -> None:
    _hook(owner).weights_map = store
