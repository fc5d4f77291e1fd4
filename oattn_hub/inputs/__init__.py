"""What a model reads while it is measured: calibration text, images and audio.

The names are imported when they are first used, so that a machine that only reads a report needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oattn_hub.lazy import lazy_exports

if TYPE_CHECKING:
    from oattn_hub.inputs.calibration import CalibrationInputs as CalibrationInputs
    from oattn_hub.inputs.calibration import calibration_inputs as calibration_inputs

# public name -> module that defines it
_EXPORTS = {
    "CalibrationInputs": "oattn_hub.inputs.calibration",
    "calibration_inputs": "oattn_hub.inputs.calibration",
}

__all__ = [*_EXPORTS]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
