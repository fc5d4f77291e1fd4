"""What users give a model to read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeGuard, TypeVar

from oattn_hub.types import Array

Item = TypeVar("Item")

#: A file, a folder, a Hub dataset (``dataset:…``), token ids, a list of texts, files, images or ready-made batches; or
#: None for what is bundled. Which of them it is, and whether the model can read it, is looked at where it is read.
Data = str | Path | Array | Sequence[object] | None


def all_are(data: object, kind: type[Item]) -> TypeGuard[Sequence[Item]]:
    """Whether data is a list of one or more, all of this kind; a text is not taken for a list of letters.

    >>> all_are(["a", "b"], str), all_are("ab", str), all_are([], str)
    (True, False, False)
    """
    if not isinstance(data, Sequence) or isinstance(data, str) or not data:
        return False
    return all(isinstance(item, kind) for item in data)
