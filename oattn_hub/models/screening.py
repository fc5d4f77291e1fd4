"""What a model's files ask the libraries underneath to do, looked at before they do it.

``trust_remote_code=False`` keeps transformers from running a repo's Python files. A config can ask for foreign code or
pickles in other ways: by an attention kernel of the Hub, by a timm model within the model, by an index that names
pickled shards, by an adapter that names another model. None of that is for a file to decide.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Unpack

from oattn_hub.errors import FormatError, LoadError
from oattn_hub.files import read_json
from oattn_hub.models.options import HubOptions
from oattn_hub.models.timm_models import timm_arguments

ADAPTER_FILE = "adapter_config.json"
INDEX_FILE = "model.safetensors.index.json"
_TIMM_PLACES = ("hf-hub:", "hf_hub:", "local-dir:")  # how timm is asked to load a model from elsewhere
_FORCE_TENSORS = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
_guard = Lock()
_blocks: list[str | None] = []  # what the variable was for each block that runs, in any thread


def screen_folder(folder: Path, config: object, trust_remote_code: bool = False, allow_pickle: bool = False) -> None:
    """Refuse a folder whose files ask transformers for more than to load this model."""
    if (folder / ADAPTER_FILE).is_file():
        _explain_adapter(folder / ADAPTER_FILE, str(folder))
    if (folder / INDEX_FILE).is_file() and not allow_pickle:
        _check_index(folder / INDEX_FILE)
    if not trust_remote_code:
        _check_config(config, f"{folder}/config.json")


def screen_repo(
    repo_id: str, config: object, trust_remote_code: bool, allow_pickle: bool, **hub_options: Unpack[HubOptions]
) -> None:
    """The same for a repo of the Hub; ``hub_options`` are those of ``hf_hub_download``."""
    if adapter := _repo_file(repo_id, ADAPTER_FILE, hub_options):
        _explain_adapter(adapter, repo_id)
    if not allow_pickle and (index := _repo_file(repo_id, INDEX_FILE, hub_options)):
        _check_index(index)
    if not trust_remote_code:
        _check_config(config, f"{repo_id}/config.json")


def _repo_file(repo_id: str, name: str, hub_options: HubOptions) -> Path | None:
    """A file of the repo; None where there is none. Offline it is looked for where transformers will look, too."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return Path(hf_hub_download(repo_id, name, **hub_options))
    except EntryNotFoundError:
        return None


def _check_config(config: object, place: str) -> None:
    """Refuse a config that asks for code or weights from elsewhere, at any depth."""
    if isinstance(config, list):
        for item in config:
            _check_config(item, place)
    if not isinstance(config, Mapping):
        return
    if config.get("model_type") == "timm_wrapper":
        timm_arguments(config, Path(place))
    for name, value in config.items():
        _check_setting(str(name), value, place)
        _check_config(value, place)


def _check_setting(name: str, value: object, place: str) -> None:
    kernels = value.values() if isinstance(value, Mapping) else [value]
    if "_implementation" in name and any("/" in kernel for kernel in kernels if isinstance(kernel, str)):
        raise LoadError(
            f"{place} sets {name} to {str(value)[:80]!r}, which is code of the Hub. Remove the line, or read that "
            "code, then pass trust_remote_code=True (--trust-remote-code)."
        )
    if name == "transformers_weights" and value is not None and not _is_safetensors(value):
        raise LoadError(f"{place} names the weights {str(value)[:80]!r}, which are no safetensors beside it. Refused.")
    if isinstance(value, str) and value.startswith(_TIMM_PLACES):
        raise LoadError(
            f"{place} sets {name} to {value[:80]!r}, a model from elsewhere. Build the model yourself, if you trust "
            "the file, and pass the module."
        )


def _check_index(index: Path) -> None:
    """Refuse an index of shards that names anything but safetensors of its own folder."""
    document = read_json(index)
    shards = document.get("weight_map") if isinstance(document, Mapping) else None
    if not isinstance(shards, Mapping):
        raise FormatError(f"{index} is damaged: it has no weight_map. Save or download the model again.")
    for shard in set(map(str, shards.values())):
        if not _is_safetensors(shard):
            raise LoadError(f"{index} names the weights {shard[:80]!r}, which are no safetensors beside it. Refused.")


def _is_safetensors(name: object) -> bool:
    return isinstance(name, str) and Path(name).name == name and name.endswith(".safetensors")


def _explain_adapter(adapter: Path, place: str) -> None:
    """Say of an adapter what it is: it holds no model, and names another one."""
    document = read_json(adapter)
    base = document.get("base_model_name_or_path") if isinstance(document, Mapping) else None
    raise LoadError(
        f"{place} is an adapter ({ADAPTER_FILE}) of {str(base)[:80]!r} and no model. Load both with PEFT, "
        "merge_and_unload(), and pass the model."
    )


@contextmanager
def tensors_only() -> Iterator[None]:
    """While the block runs, torch unpickles tensors and nothing else, whatever a library asks it for."""
    with _guard:
        _blocks.append(os.environ.get(_FORCE_TENSORS))
        os.environ[_FORCE_TENSORS] = "1"
    try:
        yield
    finally:
        with _guard:
            before = _blocks.pop()  # the last to leave finds what the first one found
            if not _blocks and before is None:
                del os.environ[_FORCE_TENSORS]
            elif not _blocks:
                os.environ[_FORCE_TENSORS] = str(before)
