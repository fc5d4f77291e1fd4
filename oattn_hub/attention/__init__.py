"""From a model to its attention in a store on disk: hooks, taps, store; loading and calibration inputs.

Reading a store needs no torch; the names that do need it are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oattn_hub.lazy import lazy_exports

if TYPE_CHECKING:
    from oattn_hub.attention.capturing import capture as capture
    from oattn_hub.attention.capturing import capture_inputs as capture_inputs
    from oattn_hub.attention.memory import MemoryStore as MemoryStore
    from oattn_hub.attention.store import AttentionStore as AttentionStore
    from oattn_hub.attention.store import HeadRecord as HeadRecord
    from oattn_hub.attention.store import StoreInfo as StoreInfo
    from oattn_hub.inputs.calibration import CalibrationInputs as CalibrationInputs
    from oattn_hub.inputs.calibration import calibration_inputs as calibration_inputs
    from oattn_hub.models.load import LoadedModel as LoadedModel
    from oattn_hub.models.load import load_model as load_model

# public name -> module that defines it
_EXPORTS = {
    "AttentionStore": "oattn_hub.attention.store",
    "CalibrationInputs": "oattn_hub.inputs.calibration",
    "HeadRecord": "oattn_hub.attention.store",
    "LoadedModel": "oattn_hub.models.load",
    "MemoryStore": "oattn_hub.attention.memory",
    "StoreInfo": "oattn_hub.attention.store",
    "calibration_inputs": "oattn_hub.inputs.calibration",
    "capture": "oattn_hub.attention.capturing",
    "capture_inputs": "oattn_hub.attention.capturing",
    "load_model": "oattn_hub.models.load",
}

__all__ = [*_EXPORTS]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
