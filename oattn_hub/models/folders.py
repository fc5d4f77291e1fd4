"""What a folder must hold to be a model, looked at without importing torch."""

from __future__ import annotations

from pathlib import Path

from oattn_hub.errors import LoadError

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
_PICKLES = ("*.bin", "*.bin.index.json", "*.pt", "*.pth", "*.ckpt")


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


def missing_weights(source: str, allow_pickle: bool) -> str:
    """What is wrong with the weights of a folder or a repo that has a config; empty if nothing can be seen from here.

    Args:
        source: A folder; of anything else it is known only that no safetensors were found there.
        allow_pickle: Whether weights may be pickles.
    """
    folder = Path(source)
    if folder.is_dir():
        if _has(folder, _WEIGHTS) or (allow_pickle and _has(folder, _PICKLES)):
            return ""
        if not _has(folder, _PICKLES):
            return f"{source} has a config.json and no weights. Give a folder made by save_pretrained."
    elif allow_pickle:
        return ""
    return f"{source} has no safetensors, only pickles. Convert it, or pass allow_pickle=True (--allow-pickle)."


def _has(folder: Path, patterns: tuple[str, ...]) -> bool:
    return any(any(folder.glob(pattern)) for pattern in patterns)
