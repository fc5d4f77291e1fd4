"""What a caller may say about loading a model, by name: the keywords that ``analyze``, ``plan`` and others hand on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypedDict

#: Where accelerate puts the parts of a model: ``auto``, or a device (its number or name) for each part.
DeviceMap = str | Mapping[str, int | str]
#: A tokenizer, image processor, feature extractor or processor of transformers; they share no class.
Processor = Callable[..., Mapping[str, object]]


class Access(TypedDict, total=False):
    """How the Hub is reached."""

    token: str | bool | None
    cache_dir: str | None
    local_files_only: bool


class HubOptions(Access, total=False):
    """How a repo is asked for: arguments of ``hf_hub_download`` and ``snapshot_download``."""

    revision: str | None


class Permissions(Access, total=False):
    """What only the caller may grant; no file and no repo ever does."""

    trust_remote_code: bool
    allow_pickle: bool


class Places(TypedDict, total=False):
    """Where the weights go, and in which number format."""

    device: str | None
    device_map: DeviceMap | None
    dtype: str | None
    offload_folder: str | Path | None


class LoadAgain(Permissions, Places, total=False):
    """What the caller still says about a model that a report or a plan names; see ``load_again``."""


class LoadOptions(LoadAgain, total=False):
    """All arguments of ``load_model`` beside the model."""

    revision: str | None
    gguf_file: str | None
    task: str | None
    tokenizer: Processor | None
    processor: Processor | None
