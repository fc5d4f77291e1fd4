"""What a folder must hold to be a model, looked at without importing torch."""

from __future__ import annotations

from pathlib import Path

from oattn_hub.errors import LoadError


def check_model_folder(folder: Path, gguf_file: str | None = None) -> str | None:
    """Refuse what cannot be a model; returns the GGUF file to load, if there is one to load.

    An adapter without its model passes: what to do with it is said where models are loaded.

    Args:
        folder: A path that exists.
        gguf_file: Which of the folder's GGUF files, if the user says so.
    """
    if folder.is_file():
        raise LoadError(f"{folder} is a file, not a folder. Give the folder that holds config.json and the weights.")
    found = sorted(path.name for path in folder.glob("*.gguf"))
    if gguf_file is not None:
        if not (folder / gguf_file).is_file():
            raise LoadError(f"{folder} has no file {gguf_file}. Its GGUF files: {', '.join(found) or 'none'}.")
        return gguf_file
    if found and not any(folder.glob("*.safetensors")):
        if len(found) > 1:
            raise LoadError(f"{folder} has {len(found)} GGUF files. Choose one with gguf_file: {found}.")
        return found[0]
    if not any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
        raise LoadError(f"{folder} has no config.json, so it is not a model. Give a folder made by save_pretrained.")
    return None
