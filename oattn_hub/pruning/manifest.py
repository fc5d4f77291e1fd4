"""The manifest of a pruned checkpoint: what its files are, what was cut, and that all of it fits together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import Any, Self

from oattn_hub.codec import decode, encode
from oattn_hub.errors import FormatError
from oattn_hub.files import read_header, read_json, sha256_file, unsealed, write_sealed
from oattn_hub.pruning.costs import PruningResult
from oattn_hub.pruning.plan import PruningPlan
from oattn_hub.records import MANIFEST
from oattn_hub.types import Json

SCHEMA = 1


@dataclass(frozen=True)
class Manifest:
    """What a pruned checkpoint is.

    Attributes:
        variant: ``cut`` (smaller) or ``masked`` (of the original shape).
        library: ``transformers``, ``timm`` or ``torch``.
        class_name: the class of the model; ``class`` in the file.
        plan: which heads went, from which model, and what that was measured to cost.
        result: size and speed before and after.
        sha256: of the files that hold weights, settings or code.
        files: all files of the checkpoint; in the first version's manifests only those of ``sha256`` are named.
        stock: whether it is a plain checkpoint of the original class, which needs no code of ours.
        needs_code_because: why it is not.
        model_type: what transformers calls the family.
        oattn_hub: the version that saved it.
        base_card: library and task as the base model's card names them.
        cuts: the list of cuts of a stock checkpoint, whose config does not hold it.
        verified: what was compared after it was loaded again, by the name of the loader; None if nothing was.
    """

    variant: str
    library: str
    class_name: str
    plan: PruningPlan
    result: PruningResult
    sha256: Mapping[str, str]
    files: tuple[str, ...] = ()
    stock: bool = False
    needs_code_because: str = ""
    model_type: str | None = None
    oattn_hub: str = ""
    base_card: Mapping[str, str] = field(default_factory=dict)
    cuts: dict[str, Any] | None = None
    verified: Mapping[str, str] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The files of the checkpoint, the manifest itself left out."""
        return self.files or tuple(self.sha256)

    def to_json(self) -> dict[str, Json]:
        """The manifest as it is written, without its seal."""
        names = [item.name for item in fields(self) if item.name not in ("class_name", "plan")]
        values = {name: encode(getattr(self, name)) for name in names}
        return {"schema": SCHEMA, "class": self.class_name, "plan": self.plan.to_json(), **values}

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Self:
        """The manifest back from :meth:`to_json`, if its parts are what they should be."""
        plan = PruningPlan.from_json(value.get("plan"))
        rest = {name: entry for name, entry in value.items() if name not in ("schema", "class", "plan")}
        found = decode(cls, {**rest, "class_name": value.get("class")}, "The manifest", plan=plan)
        if outside := [name for name in (*found.sha256, *found.files) if not _is_inside(name)]:
            raise FormatError(f"The manifest names {outside[0][:80]!r}, which is no file of its own.")
        if not found.class_name.isidentifier():  # it stands in the card's Python, which readers copy
            raise FormatError(f"The manifest names the class {found.class_name[:80]!r}, which no class is called.")
        return found

    def write(self, folder: Path) -> None:
        """Write it into the checkpoint's folder, with a seal."""
        write_sealed(folder / MANIFEST, self.to_json())


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a pruned checkpoint, after checking that every file it lists is as it was written."""
    manifest = manifest_of(folder)
    for name, expected in manifest.sha256.items():
        _check_file(folder / name, expected)
        if "/" not in name and name.endswith(".safetensors"):  # what lies deeper belongs to other tools
            read_header(folder / name)
    return manifest


def manifest_of(folder: Path) -> Manifest:
    """The manifest of a folder whose other files are not looked at."""
    place = folder / MANIFEST
    if not place.is_file():
        raise FormatError(
            f"{folder} has no {MANIFEST}, so it is no complete pruned checkpoint. Save or download it again."
        )
    value = read_json(place)
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise FormatError(f"{place} has a schema this version does not read; update oattn_hub.")
    try:
        return Manifest.from_json(unsealed(value, place))
    except FormatError as error:
        raise FormatError(f"{place}: {error} Save or download the checkpoint again.") from error


def _check_file(path: Path, expected: str) -> None:
    if path.suffix == ".py" and not path.exists():
        return  # code is downloaded only on request, and nothing here runs it
    if not path.is_file():
        raise FormatError(f"{path} is missing; the checkpoint is incomplete. Save or download it again.")
    if sha256_file(path) != expected:
        raise FormatError(
            f"{path} was changed after the checkpoint was saved (its SHA-256 differs from the manifest's), "
            "so it is not loaded. Download or save the checkpoint again."
        )


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    plain = 0 < len(name) < 1000 and "\\" not in name and "\0" not in name
    return plain and not path.is_absolute() and ".." not in path.parts
