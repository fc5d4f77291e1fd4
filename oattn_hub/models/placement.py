"""Where a model's weights are, and in which number format: one device, or spread by accelerate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from oattn_hub.errors import InvalidInput
from oattn_hub.models.options import DeviceMap

Value = TypeVar("Value")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Placement:
    """What the user asked for; see ``load_model``."""

    device: str | None = None
    device_map: DeviceMap | None = None
    dtype: str | None = None
    offload_folder: str | Path | None = None

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in _DTYPES:
            raise InvalidInput(f"dtype is {self.dtype!r}; choose from {', '.join(_DTYPES)}.")
        if self.device is not None and self.device_map is not None:
            raise InvalidInput(f"device is {self.device!r} and device_map is {self.device_map!r}; give one of them.")
        if self.device is not None:
            try:
                torch.empty(0, device=self.device)
            except (RuntimeError, AssertionError) as error:
                reason = str(error).splitlines()[0]
                raise InvalidInput(f"device is {self.device!r}, which torch cannot use here: {reason}") from error

    @property
    def transformers_options(self) -> dict[str, Any]:
        """Arguments of ``from_pretrained``, which loads straight to where the weights belong."""
        options: dict[str, Any] = {"device_map": self.device_map}
        options["dtype"] = None if self.dtype is None else _DTYPES[self.dtype]
        options["offload_folder"] = None if self.offload_folder is None else str(self.offload_folder)
        return {name: value for name, value in options.items() if value is not None}

    def place(self, model: nn.Module, library: str) -> None:
        """Move a loaded model; a model that accelerate has spread stays as it is."""
        if self.device_map is not None:
            if library != "transformers":
                raise InvalidInput(f"device_map is for transformers models, and this one is of {library}. Give device.")
            return
        if self.device is not None or self.dtype is not None:
            model.to(self.device, None if self.dtype is None else _DTYPES[self.dtype])


def moved_to(model: nn.Module, value: Value) -> Value | Tensor:
    """The tensor on the device of the model's first weights; accelerate moves the inputs of what it keeps elsewhere."""
    device = next((parameter.device for parameter in model.parameters()), None)
    if not isinstance(value, Tensor) or device is None or device.type == "meta":
        return value
    return value.to(device)


def cuda_of(model: nn.Module) -> str | None:
    """The CUDA device that a model's first weights are on, such as ``cuda:0``; None where they are elsewhere."""
    device = next((parameter.device for parameter in model.parameters()), None)
    return str(device) if device is not None and device.type == "cuda" else None
