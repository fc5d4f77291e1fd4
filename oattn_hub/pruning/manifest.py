"""The manifest of a pruned checkpoint: what its files are, what was cut, and that all of it fits together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from oattn_hub.errors import FormatError
from oattn_hub.files import read_header, read_json, sha256_file, unsealed
from oattn_hub.records import MANIFEST, ModelInfo

_KINDS: dict[str, Any] = {
    "variant": str, "library": str, "class": str, "plan": dict, "result": dict, "sha256": dict, "stock": bool,
    "needs_code_because": str, "oattn_hub": str, "base_card": dict, "files": list, "model_type": (str, type(None)),
    "cuts": (dict, type(None)), "verified": (dict, type(None)),
}  # fmt: skip
_REQUIRED = ("variant", "library", "class", "plan", "result", "sha256")
_NUMBERS = (int, float, type(None))


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a pruned checkpoint, after checking that every file it lists is as it was written."""
    place = folder / MANIFEST
    if not place.is_file():
        raise FormatError(
            f"{folder} has no {MANIFEST}, so it is no complete pruned checkpoint. Save or download it again."
        )
    manifest = check_manifest(read_json(place), place)
    for name, expected in manifest["sha256"].items():
        _check_file(folder / name, expected)
        if "/" not in name and name.endswith(".safetensors"):  # what lies deeper belongs to other tools
            read_header(folder / name)
    return manifest


def check_manifest(manifest: Any, place: Path) -> dict[str, Any]:
    """The manifest that a file holds, without its seal, if its parts are what they should be."""
    if not isinstance(manifest, dict) or manifest.get("schema") != 1:
        raise FormatError(f"{place} has a schema this version does not read; update oattn_hub.")
    manifest = unsealed(manifest, place)
    if reason := _misfit(manifest):
        raise FormatError(f"{place} is damaged: {reason}. Save or download the checkpoint again.")
    plan = {**manifest["plan"], "model": ModelInfo.from_json(manifest["plan"]["model"]).to_json()}
    return {**manifest, "plan": plan}


def _check_file(path: Path, expected: Any) -> None:
    if path.suffix == ".py" and not path.exists():
        return  # code is downloaded only on request, and nothing here runs it
    if not path.is_file():
        raise FormatError(f"{path} is missing; the checkpoint is incomplete. Save or download it again.")
    if sha256_file(path) != expected:
        raise FormatError(
            f"{path} was changed after the checkpoint was saved (its SHA-256 differs from the manifest's), "
            "so it is not loaded. Download or save the checkpoint again."
        )


def _misfit(manifest: Mapping[str, Any]) -> str:
    """What does not fit in a manifest out of a file; empty if all does."""
    if missing := [name for name in _REQUIRED if name not in manifest]:
        return f"it lacks {', '.join(missing)}"
    if wrong := [name for name, kind in _KINDS.items() if name in manifest and not isinstance(manifest[name], kind)]:
        return f"its {wrong[0]} is {str(manifest[wrong[0]])[:40]!r}"
    names = [*manifest["sha256"], *manifest.get("files", ())]
    if outside := [name for name in names if not _is_inside(name)]:
        return f"it names {str(outside[0])[:80]!r}, which is no file of its own"
    if wrong := [name for name, value in manifest["result"].items() if not isinstance(value, _NUMBERS)]:
        return f"its result says {wrong[0]} is {str(manifest['result'][wrong[0]])[:40]!r}"
    return _plan_misfit(manifest["plan"])


def _is_inside(name: Any) -> bool:
    path = PurePosixPath(str(name))
    plain = isinstance(name, str) and 0 < len(name) < 1000 and "\\" not in name and "\0" not in name
    return plain and not path.is_absolute() and ".." not in path.parts


def _plan_misfit(plan: Mapping[str, Any]) -> str:
    heads, total = plan.get("heads"), plan.get("n_heads")
    if not isinstance(heads, list) or not all(_is_head(head) for head in heads):
        return "its plan names no heads as [layer, head]"
    if not isinstance(total, int) or not len(heads) <= total or total < 1:
        return f"its plan removes {len(heads)} of {str(total)[:20]} heads"
    ModelInfo.from_json(plan.get("model"))
    return ""


def _is_head(head: Any) -> bool:
    return isinstance(head, list) and len(head) == 2 and all(type(part) is int and part >= 0 for part in head)
