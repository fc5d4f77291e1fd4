"""What belongs to a model besides its weights: every other file of the base model's folder or repo travels along.

Tokenizers, processors, chat templates, the modules of sentence-transformers, licences: a pruned model is used in the
same places as its base, and there they are looked for.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from glob import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from oattn_hub.errors import FormatError
from oattn_hub.files import read_json
from oattn_hub.files.front_matter import card_metadata
from oattn_hub.models.identify import is_hub_repo
from oattn_hub.models.load import LoadedModel
from oattn_hub.records import MANIFEST
from oattn_hub.tokens import default_token

# Weights in any format, pickles and archives that can hide one, code, and what tools leave behind.
_LEFT_BEHIND = re.compile(
    r"\.(safetensors|bin|pt|pth|ckpt|h5|msgpack|onnx|onnx_data|gguf|ggml|ot|tflite|mlmodel|pb|pkl|pickle|joblib|dill|npy"
    r"|npz|nemo|arrow|parquet|zip|tar|gz|xz|7z|py|pyc|so|dll|exe|sh|xml|ipynb|lock|index\.json)$"
)
_OTHER_FOLDERS = ("onnx", "openvino", "coreml", "tensorrt", "runs", "wandb", "logs", "checkpoint-*")
_OWN = (
    "README.md", "config.json", MANIFEST, "evaluation.json", "benchmarks.json", "report.json",
    "trainer_state.json",
)  # fmt: skip
_LARGEST = 64 * 2**20  # a tokenizer for 250,000 words has 17 MB; what is larger is no belonging
_MODULES = "modules.json"  # of sentence-transformers
_SENTENCE_ENCODER = {"library_name": "sentence-transformers", "pipeline_tag": "sentence-similarity"}


def copy_belongings(loaded: LoadedModel, folder: Path) -> list[str]:
    """Copy the base model's other files to ``folder``, where nothing is overwritten; returns all that belong there."""
    names: list[str] = []
    with _base_folders(loaded) as bases:
        for base in bases:
            # the modules of one embedding model must not be mixed with those of another
            others = _sentence_modules(base) if _MODULES in names else set()
            paths = [
                path for path in sorted(_belongings(base)) if path.parent.relative_to(base).as_posix() not in others
            ]
            names += [_copy(path, base, folder) for path in paths]
    return names


def _copy(path: Path, base: Path, folder: Path) -> str:
    name = path.relative_to(base).as_posix()
    target = folder / name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return name


@contextmanager
def _base_folders(loaded: LoadedModel) -> Iterator[list[Path]]:
    """Where the base model's files lie, the nearest first: an embedding model in memory may differ from its files."""
    with TemporaryDirectory() as scratch:
        found = [base_folder(loaded)]
        if loaded.sentence_encoder is not None:
            loaded.sentence_encoder.save(scratch, create_model_card=False)
            found.insert(0, Path(scratch))
        yield [folder for folder in found if folder is not None]


def base_card(loaded: LoadedModel) -> dict[str, Any]:
    """Library and task as the base model's card names them; without a card, those of a sentence encoder or nothing."""
    base = base_folder(loaded)
    found = _named_by_card(base) if base is not None else {}
    if loaded.sentence_encoder is not None or (base is not None and (base / _MODULES).is_file()):
        return _SENTENCE_ENCODER | found
    return found


def _named_by_card(base: Path) -> dict[str, Any]:
    found = card_metadata(base / "README.md") if _stays_inside(base, base / "README.md") else {}
    return {name: found[name] for name in ("library_name", "pipeline_tag") if isinstance(found.get(name), str)}


def base_folder(loaded: LoadedModel) -> Path | None:
    """Where the base model's files lie: its folder, or the Hub's cache (small files are downloaded if they can be)."""
    named = loaded.source or getattr(getattr(loaded.model, "config", None), "_name_or_path", None)
    if not named:
        return None
    if Path(named).is_dir():
        return Path(named)
    repo = named.removeprefix("hf-hub:").removeprefix("hf_hub:")
    if not is_hub_repo(repo):
        return None
    asked = {name: value for name, value in loaded.hub_options.items() if name in ("token", "cache_dir")}
    asked.setdefault("token", default_token(None))
    return _snapshot(repo, loaded.revision if loaded.source else None, asked)


def _snapshot(repo: str, revision: str | None, asked: dict[str, Any]) -> Path | None:
    from huggingface_hub import snapshot_download

    commit = revision if revision and len(revision) == 40 else None  # anything else is a fingerprint of weights
    for local in (False, True):
        try:
            wanted = None if local else _small_files(repo, commit, asked["token"])
            place = snapshot_download(repo, revision=commit, local_files_only=local, allow_patterns=wanted, **asked)
            return Path(place)
        except Exception:  # no connection, no such repo, not in the cache: a dozen unrelated classes
            continue
    return None


def _small_files(repo: str, commit: str | None, token: str | bool | None) -> list[str]:
    from huggingface_hub import HfApi, constants

    names = HfApi(constants.ENDPOINT, token).list_repo_files(repo, revision=commit)
    modules = {name for name in names if re.fullmatch(r"\d+_\w+/model\.safetensors", name)}
    return [escape(name) for name in names if name in modules or not _LEFT_BEHIND.search(name)]


def _belongings(base: Path) -> Iterator[Path]:
    modules = _sentence_modules(base)
    for path in base.rglob("*"):
        inside = path.relative_to(base)
        hidden = any(part.startswith(".") or part == "__pycache__" for part in inside.parts)
        elsewhere = any(fnmatch(inside.parts[0], folder) for folder in _OTHER_FOLDERS)
        if hidden or elsewhere or inside.as_posix() in _OWN or not path.is_file():
            continue
        # the weights of a Dense layer that follows the transformer are part of an embedding model
        module_weights = path.suffix == ".safetensors" and inside.parent.as_posix() in modules
        left = _LEFT_BEHIND.search(path.name)
        if (module_weights or not left) and _stays_inside(base, path) and path.stat().st_size <= _LARGEST:
            yield path


def _sentence_modules(base: Path) -> set[str]:
    """Folders of sentence-transformers' modules other than the transformer itself."""
    if not (base / _MODULES).is_file():
        return set()
    modules = read_json(base / _MODULES)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise FormatError(f"{base / _MODULES} is not a list of modules. Mend or remove it.")
    return {str(module["path"]) for module in modules if module.get("path")}


def _stays_inside(base: Path | None, path: Path) -> bool:
    """Whether a file is where it seems to be; the Hub's cache links from snapshots to blobs."""
    if base is None:
        return False
    roots = [base.resolve()]
    if base.parent.name == "snapshots":
        roots.append((base.parents[1] / "blobs").resolve())
    return any(path.resolve().is_relative_to(root) for root in roots)
