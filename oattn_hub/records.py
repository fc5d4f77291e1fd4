"""Records that every room shares: which model it is, how it was measured, and with what.

A model has one identity, :class:`ModelInfo`: the loader makes it, and the store, the report, the plan and the
checkpoint carry it along unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from oattn_hub.codec import decode, encode_record
from oattn_hub.files import is_folder
from oattn_hub.types import Json, JsonObject

#: (layer, head): the layers of a model are counted in model order, so this names a head everywhere.
Head = tuple[int, int]

#: What a file may say about how its model is loaded. Permissions, tokens, folders and paths come only from the caller.
OPTIONS_FROM_FILES = ("gguf_file", "task")
_COMMIT = re.compile(r"[0-9a-f]{40}")

# What a pruned checkpoint is known by: a key of its config, and its manifest.
PRUNING_KEY = "oattn_pruning"
MANIFEST = "oattn_pruned.json"


class JsonRecord:
    """A dataclass that is read and written as a JSON object; see :mod:`oattn_hub.codec`."""

    def to_json(self) -> JsonObject:
        """The record as a JSON-able dict."""
        return encode_record(self)

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """The record back from :meth:`to_json`; an unknown, missing or mistyped field is a FormatError."""
        return decode(cls, value)


@dataclass(frozen=True)
class ModelInfo(JsonRecord):
    """Which model it is, and what ``load_model`` needs to load it again.

    Attributes:
        id: The name it was asked for by.
        revision: Commit on the Hub, or a fingerprint of the weights.
        source: What to pass to ``load_model``; None for a model object.
        library: ``transformers``, ``timm`` or ``torch``.
        modality: ``text``, ``image``, ``audio``, ``image+text``, or ``tensor`` where nothing is known.
        adapter: Name of the adapter that described it; empty before it was captured.
        architecture: Name of its class.
        n_parameters: How many parameters it has.
        license: What its card says.
        options: How it was loaded, as far as a file may say it (``OPTIONS_FROM_FILES``).
        base_model: The model it was pruned from, if it was.
        removed: Heads that were cut out of ``base_model``, in that model's own numbers.
    """

    id: str
    revision: str | None = None
    source: str | None = None
    library: str = "torch"
    modality: str = "tensor"
    adapter: str = ""
    architecture: str = ""
    n_parameters: int = 0
    license: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    base_model: str | None = None
    removed: tuple[Head, ...] = ()

    @property
    def loading_options(self) -> dict[str, Any]:
        """Arguments of ``load_model`` beside ``source``; never a permission, whatever the file said."""
        options: dict[str, Any] = {name: self.options[name] for name in OPTIONS_FROM_FILES if name in self.options}
        # A commit can be asked for; the fingerprint of a folder's content cannot.
        if self.source is not None and _COMMIT.fullmatch(self.revision or "") and not is_folder(self.source):
            options["revision"] = self.revision
        return options


@dataclass(frozen=True)
class Settings(JsonRecord):
    """Every parameter that changes a number in the report.

    Of more heads than ``landmarks``, so many are organised and the others placed beside them.
    """

    kind: str
    batches: int
    tokens: int
    seed: int
    questionnaire: Mapping[str, Any] = field(default_factory=dict)
    head_functions: int = 400
    network_functions: int = 100
    fraction: float = 0.1
    landmarks: int = 1024


@dataclass(frozen=True)
class Provenance(JsonRecord):
    """What the numbers were made from, and with what.

    ``created`` and ``seconds`` (per stage) differ between two runs of one analysis; they are kept in a file of their
    own (``run.json``), so that equal analyses give equal bytes.
    """

    data: str
    data_fingerprint: str
    command: str
    versions: Mapping[str, str] = field(default_factory=dict)
    created: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
