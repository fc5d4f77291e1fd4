"""Which adapters exist, and which one serves a model."""

from __future__ import annotations

import warnings
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, TypeVar

from oattn_hub.adapters.base import Adapter
from oattn_hub.adapters.composite import CompositeAdapter
from oattn_hub.errors import AdapterError

if TYPE_CHECKING:
    from torch import nn

ENTRY_POINT_GROUP = "oattn_hub.adapters"

# Modules of the families that come with the package; importing one registers it.
_NATIVE = (
    "albert",
    "bart",
    "bert",
    "clip",
    "deberta",
    "generic",
    "gpt2",
    "gpt_neox",
    "gptj",
    "llama",
    "swin",
    "t5",
    "timm_pyramid",
    "timm_vit",
    "torch_native",
    "torchvision",
    "vit",
    "whisper",
    "xlnet",
)

_REGISTRY: dict[str, type[Adapter]] = {}

AdapterClass = TypeVar("AdapterClass", bound=type[Adapter])


def register(adapter_class: AdapterClass) -> AdapterClass:
    """Class decorator that makes an adapter known by its ``name``; a second one of that name raises."""
    name = adapter_class.name
    if name in _REGISTRY:
        raise AdapterError(
            f"There is already an adapter called {name!r} ({_REGISTRY[name].__qualname__}). Choose another name."
        )
    _REGISTRY[name] = adapter_class
    return adapter_class


def list_adapters(pattern: str = "*") -> list[str]:
    """Names of the known adapters that match a glob, sorted."""
    _load_all()
    return sorted(name for name in _REGISTRY if fnmatchcase(name, pattern))


def get_adapter(name: str) -> type[Adapter]:
    """The adapter class of that name."""
    _load_all()
    if name not in _REGISTRY:
        raise AdapterError(f"No adapter is called {name!r}. Known: {', '.join(list_adapters())}.")
    return _REGISTRY[name]


def adapt(model: nn.Module, adapter: str | Adapter | type[Adapter] | None = None) -> Adapter:
    """The adapter that serves ``model``, bound to it: the one given, or the one that knows its modules.

    A model whose parts belong to several families gets them all (``clip+torch``); a model no family describes falls to
    ``generic``. Attention in modules that nobody described is found by the first forward call that is captured.

    >>> import torch
    >>> [site.n_heads for site in adapt(torch.nn.TransformerEncoderLayer(16, nhead=2)).sites]
    [2]
    """
    return _bind(model, _best_match(model) if adapter is None else adapter)


def _bind(model: nn.Module, adapter: str | Adapter | type[Adapter]) -> Adapter:
    if isinstance(adapter, Adapter):
        return adapter if adapter._model is model else adapter.bind(model)
    if not isinstance(adapter, str):
        return adapter(model)
    families = [get_adapter(part) for part in adapter.split("+")]
    return families[0](model) if len(families) == 1 else CompositeAdapter(families, model)


def _best_match(model: nn.Module) -> str:
    _load_all()
    claims = {name: family(model).claims() for name, family in sorted(_REGISTRY.items())}
    claimed = sorted((name for name in claims if claims[name]), key=lambda name: -claims[name])
    return "+".join(claimed) if claimed else "generic"


@cache
def _load_all() -> None:
    for module in _NATIVE:
        import_module(f"oattn_hub.adapters.{module}")
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if entry.name in _REGISTRY:
            distribution = entry.dist.name if entry.dist else "unknown"
            warnings.warn(
                f"Package {distribution!r} offers an adapter {entry.name!r}; oattn_hub has one, so it is ignored.",
                stacklevel=2,
            )
            continue
        loaded = entry.load()
        if loaded.name not in _REGISTRY:  # a module that used @register has done so while loading
            register(loaded)
