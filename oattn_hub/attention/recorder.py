"""``capture``: run a model inside the block, and its attention is in the store."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from oattn_hub.adapters import Adapter, AttentionSite, find_adapter
from oattn_hub.attention import native
from oattn_hub.attention.calls import AttentionCall
from oattn_hub.attention.contexts import mean_over_contexts, pool_tokens, real_tokens
from oattn_hub.attention.hooks import Forward, surrounded
from oattn_hub.attention.store import DTYPES, KINDS, AttentionStore, StoreInfo
from oattn_hub.attention.tap import Tap
from oattn_hub.attention.writer import BatchWriter, StoreWriter
from oattn_hub.errors import CaptureError, InvalidInput
from oattn_hub.models.identify import batch_fingerprint
from oattn_hub.progress import Progress, silent
from oattn_hub.records import ModelInfo
from oattn_hub.versions import versions

if TYPE_CHECKING:
    from oattn_hub.inputs.calibration import CalibrationInputs
    from oattn_hub.models.load import LoadedModel


@contextmanager
def capture(
    model: nn.Module | LoadedModel,
    kinds: Sequence[str] = ("probs",),
    store: str | Path | None = None,
    *,
    adapter: str | Adapter | None = None,
    dtype: str = "float32",
    pool: int = 1,
    resume: bool = False,
    allow_partial: bool = False,
    fingerprint: str | None = None,
    description: str = "",
    tokens: int | None = None,
) -> Iterator[AttentionStore]:
    """Write the attention of every forward call of ``model`` inside the block to a store; each call is one batch.

    The model's output is the same, bit for bit, as without. Its hooks are gone when the block ends, whatever ends it.

    Args:
        model: A torch module, or what :func:`load_model` returned.
        kinds: Any of ``scores`` (before the mask), ``logits`` (after it, masked entries NaN), ``probs``.
        store: Folder to write; None is a temporary one that lives as long as the store object.
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
    chosen = adapter if isinstance(adapter, Adapter) else find_adapter(module, adapter)
    info = StoreInfo(
        model=replace(_identity(model), adapter=chosen.name),
        kinds=_checked_kinds(kinds),
        dtype=_checked_choice("dtype", dtype, tuple(DTYPES)),
        pool=_checked_pool(pool),
        skipped=chosen.not_attention(module),
        fingerprint=fingerprint,
        description=description,
        tokens=tokens,
        versions=versions(),
    )
    folder = Path(store) if store is not None else Path(tempfile.mkdtemp(prefix="oattn-"))
    writer = StoreWriter(folder, info, resume)
    if store is None:
        weakref.finalize(writer.store, shutil.rmtree, folder, ignore_errors=True)
    with _Recorder(module, chosen, writer, allow_partial).attached():
        yield writer.store


def capture_inputs(
    loaded: LoadedModel,
    inputs: CalibrationInputs,
    store: str | Path | None = None,
    kinds: Sequence[str] = ("probs",),
    *,
    progress: Progress = silent,
    **options: Any,
) -> AttentionStore:
    """Run ``loaded`` on every batch of ``inputs`` and return the store; batches already in it are not run again.

    A run that was cut short goes on where it stopped when the same call is made again with ``resume=True``.
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
    return written


class _Recorder:
    """What happens around the model, its attention modules and torch's own modules while they run."""

    def __init__(self, model: nn.Module, adapter: Adapter, writer: StoreWriter, allow_partial: bool) -> None:
        self._model = model
        self._adapter = adapter
        self._writer = writer
        self._info = writer.store.info
        self._allow_partial = allow_partial
        self._sites = _checked_sites(model, adapter)
        self._tap = Tap(self._emit, adapter.masked_below, needs_scores=self._info.kinds != ("probs",))
        self._batch: BatchWriter | None = None
        self._entered: dict[str, int] = {}  # site name -> attention calls seen
        self._inputs: Mapping[str, Any] = {}

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Stand around the modules for as long as the block lasts."""
        by_module: dict[nn.Module, list[AttentionSite]] = {}
        for site in self._sites:
            by_module.setdefault(site.module, []).append(site)
        with ExitStack() as stack:
            for module, sites in by_module.items():
                stack.enter_context(surrounded(module, partial(self._around_site, sites)))
            for module in self._model.modules():
                if isinstance(module, nn.TransformerEncoderLayer) and module.self_attn in by_module:
                    around_layer = partial(self._around_encoder_layer, module, by_module[module.self_attn])
                    stack.enter_context(surrounded(module, around_layer))
                if isinstance(module, native.WATCH_SHY):
                    stack.enter_context(surrounded(module, self._around_shy))
            # Outermost, even if the model is an attention module itself.
            stack.enter_context(surrounded(self._model, self._around_model))
            yield

    def _around_model(self, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One forward call, one batch: written whole or not at all."""
        if self._batch is not None:
            return forward(*args, **kwargs)  # a model that calls itself
        self._inputs = native.arguments(forward, args, kwargs)
        self._entered = {}
        self._batch = self._writer.begin_batch()
        try:
            with self._tap.watching():
                result = forward(*args, **kwargs)
            self._check_complete()
            not_run = [site.name for site in self._sites if site.name not in self._entered]
            self._writer.finish_batch(self._batch, batch_fingerprint(self._inputs), not_run)
        except BaseException:
            self._batch.discard()
            raise
        finally:
            self._batch = None
        return result

    def _around_site(
        self, sites: list[AttentionSite], forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Attention computed while the module runs belongs to its layer."""
        site = self._enter(sites)
        if isinstance(site.module, nn.MultiheadAttention):
            self._emit_native(site, native.call_of_module(site.module, native.arguments(forward, args, kwargs)))
            return forward(*args, **kwargs)
        with self._tap.at(site):
            return forward(*args, **kwargs)

    def _around_encoder_layer(
        self,
        layer: nn.TransformerEncoderLayer,
        sites: list[AttentionSite],
        forward: Forward,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """On its fast path an encoder layer never runs its attention module."""
        result = forward(*args, **kwargs)
        if any(site.name not in self._entered for site in sites):
            self._emit_native(self._enter(sites), native.call_of_layer(layer, native.arguments(forward, args, kwargs)))
        return result

    def _around_shy(self, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._tap.looking_away():
            return forward(*args, **kwargs)

    # One attention layer ----------------------------------------------------------------------------------------------

    def _enter(self, sites: list[AttentionSite]) -> AttentionSite:
        if self._batch is None:
            raise CaptureError(
                f"{sites[0].name} ran outside a forward call of the captured {type(self._model).__qualname__}. "
                "Call the model itself, or capture the part that is called."
            )
        site = next((site for site in sites if site.name not in self._entered), None)
        if site is None:
            raise CaptureError(
                f"{sites[0].name} ran more than {len(sites)} times in one forward call, so its layers cannot be told "
                "apart. Override `passes` in an adapter of your own to say how many layers it serves."
            )
        self._entered[site.name] = 0
        return site

    def _emit_native(self, site: AttentionSite, call: AttentionCall) -> None:
        with torch.no_grad(), torch._C.DisableTorchFunction():
            self._emit(site, call)

    def _emit(self, site: AttentionSite, call: AttentionCall) -> None:
        assert self._batch is not None
        self._entered[site.name] += 1
        group = self._group(site, self._entered[site.name])
        # In a further stream (XLNet's) a key hidden from all queries may be the very token that is asked for.
        hidden = call.masked if group == site.group else None
        real = real_tokens(site.group, call.shape, hidden, self._inputs)
        announced = False
        for block in call.blocks(self._info.kinds):
            for kind, values in block.items():
                pooled = pool_tokens(mean_over_contexts(values, kind, real), kind, self._info.pool)
                if not announced:
                    _, queries, keys = pooled.shape
                    self._batch.add_layer(group, queries, keys, site.layer, site.name, call.shape[1])
                    announced = True
                self._batch.add_heads(group, kind, pooled.cpu().numpy())
        if not announced:
            raise CaptureError(f"{site.name} attended over an empty batch {call.shape}. Give every call a context.")

    # Never silent -----------------------------------------------------------------------------------------------------

    def _group(self, site: AttentionSite, call_number: int) -> str:
        """The group of a layer's n-th attention call; further calls are streams that the adapter names."""
        names = (site.group, *self._adapter.streams)
        if call_number > len(names):
            raise CaptureError(
                f"{site.name} computed attention {call_number} times in one pass; adapter {self._adapter.name!r} "
                f"expects {len(names)}. Name the streams in an adapter of your own (`streams`)."
            )
        return names[call_number - 1]

    def _check_complete(self) -> None:
        blind = [name for name, calls in self._entered.items() if calls == 0]
        if blind:
            seen = f" It computed {self._tap.unrecognised[blind[0]]}." if blind[0] in self._tap.unrecognised else ""
            raise CaptureError(
                f"{len(blind)} of {len(self._entered)} attention modules ran but showed no attention, first {blind[0]}."
                f"{seen} "
                'A flash or compiled kernel hides it: load the model with attn_implementation="sdpa" or "eager", '
                "or name another adapter."
            )
        if self._tap.outside:
            raise CaptureError(
                f"{len(self._tap.outside)} attention calls ({self._tap.outside[0]}) were made outside the modules that "
                f"adapter {self._adapter.name!r} knows. Try adapter='generic', or describe the model in an adapter."
            )
        self._check_partial()

    def _check_partial(self) -> None:
        if not self._entered:
            raise CaptureError(
                f"None of the {len(self._sites)} attention modules ran in this forward call, first "
                f"{self._sites[0].name}. Were they bypassed by a fused path, or is another part of the model used?"
            )
        ran = {site.group for site in self._sites if site.name in self._entered}
        missing = [site.name for site in self._sites if site.group in ran and site.name not in self._entered]
        if missing and not self._allow_partial:
            raise CaptureError(
                f"Only {len(self._entered)} of {len(self._sites)} attention layers ran; {len(missing)} did not, first "
                f"{missing[0]}. Put the model in eval mode, or pass allow_partial=True."
            )


def _identity(model: nn.Module | LoadedModel) -> ModelInfo:
    """Who the model is; a bare module is known by its class only, since hashing its weights may take long."""
    if isinstance(model, nn.Module):
        return ModelInfo(type(model).__qualname__, architecture=type(model).__name__)
    return model.info


def _checked_sites(model: nn.Module, adapter: Adapter) -> list[AttentionSite]:
    if hasattr(model, "_orig_mod"):
        raise CaptureError("A compiled model's attention cannot be seen. Capture the module that was compiled.")
    sites = adapter.sites(model)
    if not sites:
        left_out = adapter.not_attention(model)
        first = next((f", first {name}: {reason}" for name, reason in left_out.items()), "")
        raise CaptureError(
            f"{type(model).__qualname__} has no attention between tokens, so there is nothing to capture "
            f"({len(left_out)} modules were left out{first})."
        )
    return sites


def _checked_kinds(kinds: Iterable[str]) -> tuple[str, ...]:
    chosen = (kinds,) if isinstance(kinds, str) else tuple(dict.fromkeys(kinds))
    if not chosen:
        raise InvalidInput(f"No kind of attention was asked for; choose from {', '.join(KINDS)}.")
    return tuple(_checked_choice("kind", kind, KINDS) for kind in chosen)


def _checked_choice(what: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise InvalidInput(f"{what} is {value!r}; choose from {', '.join(choices)}.")
    return value


def _checked_pool(pool: int) -> int:
    if pool < 1:
        raise InvalidInput(f"pool is {pool}; it is a number of tokens, 1 or more.")
    return pool
