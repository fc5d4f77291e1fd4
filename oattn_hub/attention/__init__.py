"""From a model to its attention in a store on disk: hooks, taps, store; loading and calibration inputs.

Reading a store needs no torch; the names that do need it are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oattn_hub.attention.inputs import CalibrationInputs as CalibrationInputs
    from oattn_hub.attention.inputs import calibration_inputs as calibration_inputs
    from oattn_hub.attention.loading import LoadedModel as LoadedModel
    from oattn_hub.attention.loading import load_model as load_model
    from oattn_hub.attention.recorder import capture as capture
    from oattn_hub.attention.recorder import capture_inputs as capture_inputs
    from oattn_hub.attention.store import AttentionStore as AttentionStore
    from oattn_hub.attention.store import HeadRecord as HeadRecord
    from oattn_hub.attention.store import StoreInfo as StoreInfo

# public name -> module that defines it
_EXPORTS = {
    "AttentionStore": "store",
    "CalibrationInputs": "inputs",
    "HeadRecord": "store",
    "LoadedModel": "loading",
    "StoreInfo": "store",
    "calibration_inputs": "inputs",
    "capture": "recorder",
    "capture_inputs": "recorder",
    "load_model": "loading",
}

__all__ = [*_EXPORTS]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'oattn_hub.attention' has no attribute {name!r}; it has {', '.join(_EXPORTS)}")
    return getattr(import_module(f"oattn_hub.attention.{_EXPORTS[name]}"), name)
