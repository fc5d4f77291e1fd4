"""``capture``: run a model inside the block, and its attention is in the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from oattn_hub.adapters import Adapter, adapt
from oattn_hub.attention.memory import BatchSink
from oattn_hub.attention.store import AttentionStore
from oattn_hub.progress import Progress, silent

if TYPE_CHECKING:
    from oattn_hub.inputs.calibration import CalibrationInputs
    from oattn_hub.models.load import LoadedModel


@contextmanager
def capture(
    model: nn.Module | LoadedModel,
    kinds: Sequence[str] = ("probs",),
    store: str | Path | BatchSink | None = None,
    *,
    adapter: str | Adapter | type[Adapter] | None = None,
    dtype: str = "float32",
    pool: int = 1,
    resume: bool = False,
    allow_partial: bool = False,
    fingerprint: str | None = None,
    description: str = "",
    tokens: int | None = None,
) -> Iterator[AttentionStore]:
    """Write the attention of every forward call of ``model`` inside the block to a store; each call is one batch.

    The model's output is the same, bit for bit, as without. Its hooks go when the block ends, whatever ends it.

    Args:
        model: A torch module, or what :func:`load_model` returned.
        kinds: Any of ``scores`` (before the mask), ``logits`` (after it, masked entries NaN), ``probs``.
        store: Folder to write, or anything else that takes batches (``MemoryStore``); None is a temporary folder that
            lives as long as the store object.
        adapter: Name of an adapter, an adapter, or None to find it from the model.
        dtype: ``float32`` or ``float16``.
        pool: Merge this many consecutive tokens into one (see ``pool_tokens``).
        resume: Add to a store that is already there and was captured in the same way.
        allow_partial: Accept that some layers of a group run and others do not (layer drop); they are named in
            ``store.not_run``. Otherwise that raises.
        fingerprint: SHA-256 of the inputs, if known beforehand; else it is taken from the batches.
        description: What the inputs are, for the record.
        tokens: Tokens per context, for the record.

    >>> import torch, oattn_hub as oh
    >>> encoder = torch.nn.TransformerEncoderLayer(16, nhead=2, batch_first=True).eval()
    >>> with oh.capture(encoder) as store:
    ...     _ = encoder(torch.zeros(1, 5, 16))
    >>> store.tensor(batch=0).shape
    (5, 5, 2)
    """
    module = model if isinstance(model, nn.Module) else model.model
    with adapt(module, adapter).hook(
        store,
        kinds,
        dtype=dtype,
        pool=pool,
        resume=resume,
        allow_partial=allow_partial,
        fingerprint=fingerprint,
        description=description,
        tokens=tokens,
        identity=None if isinstance(model, nn.Module) else model.info,
    ) as handle:
        yield handle.store


def capture_inputs(
    loaded: LoadedModel,
    inputs: CalibrationInputs,
    store: str | Path | BatchSink | None = None,
    kinds: Sequence[str] = ("probs",),
    *,
    progress: Progress = silent,
    each: Callable[[AttentionStore, int], None] | None = None,
    **options: Any,
) -> AttentionStore:
    """Run ``loaded`` on every batch of ``inputs`` and return the store; batches already in it are not run again.

    A run that was cut short goes on where it stopped when the same call is made again with ``resume=True``. ``each`` is
    called with the store and the number of every batch that was captured.
    """
    about: dict[str, Any] = {
        "fingerprint": inputs.fingerprint, "description": inputs.description, "tokens": inputs.tokens
    }  # fmt: skip
    session = capture(loaded, kinds, store, **about, **options)
    # not inference_mode: what a model keeps from it (BEiT its position index) could never be used in training again
    with session as written, torch.no_grad():
        progress("capture", written.n_batches, len(inputs))
        for batch in list(inputs)[written.n_batches :]:
            loaded.forward(batch)
            progress("capture", written.n_batches, len(inputs))
            if each is not None:
                each(written, written.n_batches - 1)
    return written
