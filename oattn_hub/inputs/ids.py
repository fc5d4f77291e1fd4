"""Token ids as data, for models that come without a tokenizer: an array, or a ``.npy`` file of one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from oattn_hub.errors import InvalidInput, LoadError
from oattn_hub.types import Array

if TYPE_CHECKING:
    from torch import Tensor

_MAGIC = b"\x93NUMPY"


def are_ids(data: object) -> TypeGuard[str | Path | Array | Tensor]:
    """Whether data is token ids and not text.

    >>> are_ids("ids.npy"), are_ids(np.arange(4)), are_ids("text.txt")
    (True, True, False)
    """
    if isinstance(data, str | Path):
        return Path(data).suffix == ".npy"
    return isinstance(data, np.ndarray) or _is_tensor(data)


def _is_tensor(data: object) -> TypeGuard[Tensor]:
    """Without importing torch: the command line looks at files of ids before it, and who has a tensor has torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(data, torch.Tensor)


def read_ids(data: str | Path | Array | Tensor, n_words: int | None) -> tuple[np.ndarray, str]:
    """One stream of ids, or one row for each context, and where they come from.

    Args:
        data: The array or the file.
        n_words: How many ids the model knows; None if it does not say.
    """
    if isinstance(data, str | Path):
        ids, origin = _load(Path(data)), Path(data).name
    else:
        ids, origin = data if isinstance(data, np.ndarray) else data.detach().cpu().numpy(), "token ids"
    if ids.dtype.kind not in "iu" or ids.ndim not in (1, 2) or ids.size == 0:
        raise InvalidInput(
            f"Token ids ({origin}) are {ids.dtype} of shape {ids.shape}. Give whole numbers: one long row, or one row "
            "for each context."
        )
    if ids.min() < 0 or (n_words is not None and ids.max() >= n_words):
        raise InvalidInput(
            f"Token ids ({origin}) go from {ids.min()} to {ids.max()}, and "
            f"{'ids begin at 0' if n_words is None else f'the model knows 0 to {n_words - 1}'}. "
            "Give ids of the model's own tokenizer."
        )
    return ids.astype(np.int64), origin


def _load(path: Path) -> np.ndarray:
    try:
        with path.open("rb") as stream:
            start = stream.read(len(_MAGIC))
        if start.startswith(b"PK"):
            raise ValueError("it is an archive of arrays")
        if start != _MAGIC:
            raise ValueError("it does not begin as one")
        # mapped, so that a header which claims more than the file has takes no memory
        found: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # what is no array is reported by numpy and by Python's own tokenizer, in many classes
        raise LoadError(
            f"{path} cannot be read as an array of token ids ({error}). Save them alone, with numpy.save."
        ) from error
    return found
