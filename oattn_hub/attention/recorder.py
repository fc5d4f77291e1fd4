"""What the forward hooks do: from modules that run to batches of attention in a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from oattn_hub.attention import native
from oattn_hub.attention.calls import AttentionCall, HeadsCall, JoinedCall, QueriesCall
from oattn_hub.attention.contexts import mean_over_contexts, pool_tokens, real_tokens, tokens_of_lengths
from oattn_hub.attention.hooks import FAST_PATH, ForwardHooks, Uncompiled, is_running
from oattn_hub.attention.memory import Batches, MemoryStore, OpenBatch
from oattn_hub.attention.passes import SitePass
from oattn_hub.attention.running import arguments_of, calling_frame, given_to, running_modules
from oattn_hub.attention.store import StoreInfo
from oattn_hub.attention.tap import Tap, come_back, step_aside
from oattn_hub.attention.writer import StoreWriter
from oattn_hub.errors import CaptureError
from oattn_hub.models.identify import batch_fingerprint
from oattn_hub.types import Args, Function, Kwargs

if TYPE_CHECKING:
    from oattn_hub.adapters import Adapter, AttentionSite


class Recorder:
    """Forward hooks on a model's attention modules and on everything that holds some of them.

    The outermost module that runs is the forward call, and a batch: usually the model, or its encoder alone, as
    ``generate`` calls it.
    """

    def __init__(self, adapter: Adapter, batches: Batches, info: StoreInfo, allow_partial: bool) -> None:
        self._model, self._adapter, self._batches, self._info = adapter.model, adapter, batches, info
        self._allow_partial = allow_partial
        self._tap = Tap(info.kinds != ("probs",), self._unclaimed, self._note_unweighted)
        self._not_weights: dict[str, str] = {}  # module -> why what it multiplies values with are no weights of tokens
        self._batch: OpenBatch | None = None
        self._outermost: FrameType | None = None  # the call that opened the batch
        self._names = {module: name for name, module in adapter.model.named_modules()}
        self._device = next((value.device for value in adapter.model.parameters()), torch.device("cpu"))
        self._depth = 0  # how many holders run inside each other
        self._aside = 0  # how many modules with a fast path do
        self._calls_of: dict[str, int] = {}  # site name -> attention calls seen
        self._idle: set[str] = set()  # sites that were called and computed nothing
        self._unrecognised: dict[str, str] = {}
        self._inputs: Mapping[str, object] = {}
        self._loose: tuple[FrameType, SitePass] | None = None  # the pass of a module that has no hooks yet
        self._uncompiled = Uncompiled(self._model)
        self._inner = native.InnerForwards(self._model.modules(), self._run_inner)
        self._attach()

    def _attach(self) -> None:
        self._sites = self._adapter.sites
        self._by_module: dict[nn.Module, list[AttentionSite]] = {}
        for site in self._sites:
            self._by_module.setdefault(site.module, []).append(site)
        self._holders = _holders(self._model, self._by_module)
        hooked = [
            module
            for module in self._model.modules()
            if module in self._holders or module in self._by_module or isinstance(module, FAST_PATH)
        ]
        self._hooks = ForwardHooks(hooked, self._before, self._after)

    def detach(self) -> None:
        """Take the hooks off and forget a call that never ended."""
        self._hooks.remove()
        self._uncompiled.restore()
        self._inner.restore()
        self._abandon()

    # Around modules ---------------------------------------------------------------------------------------------------

    def _before(self, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        if self._batch is not None and self._outermost is not None and not is_running(self._outermost):
            self._abandon()  # Ctrl-C ended the last call
        if module in self._holders:
            self._begin(module, args, kwargs)
        if self._batch is None:
            self._refuse_alone(module)
        elif native.takes_other_arguments(module):
            self._end_loose_pass()
        elif isinstance(module, FAST_PATH):
            self._aside += 1
            step_aside()
        elif module in self._by_module:
            self._end_loose_pass()
            self._tap.enter(SitePass(self._next_turn(module), given=given_to(args, kwargs)))

    def _after(self, module: nn.Module, args: Args, kwargs: Kwargs, well: bool) -> None:
        if self._batch is None:
            return
        if native.takes_other_arguments(module):
            self._end_loose_pass()
        elif isinstance(module, FAST_PATH):
            self._aside -= 1
            come_back()
            if well:
                self._read_fast_path(module, native.arguments(module.forward, args, kwargs))
        elif module in self._by_module:
            ended = self._tap.leave()
            if well:
                self._write_pass(ended)
        if module in self._holders:
            self._depth -= 1
            if not well:
                self._abandon()
            elif self._depth == 0:
                self._finish(native.arguments(module.forward, args, kwargs))

    def _refuse_alone(self, module: nn.Module) -> None:
        if module in self._by_module:
            raise CaptureError(
                f"{self._by_module[module][0].name} ran outside a forward call of the captured "
                f"{type(self._model).__qualname__}. Call the model itself, or capture the part that is called."
            )

    # One forward call, one batch --------------------------------------------------------------------------------------

    def _begin(self, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        self._depth += 1
        if self._batch is not None:
            return
        self._inputs = native.arguments(module.forward, args, kwargs)
        self._calls_of, self._unrecognised, self._idle, self._not_weights = {}, {}, set(), {}
        self._outermost = calling_frame()
        self._batch = self._batches.begin_batch()
        self._tap.open()

    def _finish(self, inputs: Mapping[str, object]) -> None:
        """Written whole or not at all."""
        batch = self._batch
        assert batch is not None
        try:
            self._end_loose_pass()
            self._tap.close()
            self._check_complete()
            self._learn(batch)
            not_run = [site.name for site in self._sites if not self._calls_of.get(site.name)]
            if self._not_weights and isinstance(self._batches, StoreWriter | MemoryStore):
                self._batches.leave_out(self._not_weights)
            self._batches.finish_batch(batch, batch_fingerprint(inputs), not_run)
        except BaseException:
            self._abandon()
            raise
        self._batch = self._outermost = None

    def _abandon(self) -> None:
        """A call that failed leaves nothing behind."""
        if self._batch is None:
            return
        batch, self._batch, self._outermost, self._depth = self._batch, None, None, 0
        self._loose = None
        self._tap.close()
        for _ in range(self._aside):
            come_back()
        self._aside = 0
        batch.discard()

    # One attention layer ----------------------------------------------------------------------------------------------

    def _next_turn(self, module: nn.Module) -> AttentionSite:
        """The next of the layers that a module serves; one that runs more often than is known serves one more."""
        sites = self._by_module[module]
        site = next((site for site in sites if site.name not in self._calls_of), None)
        if site is None:
            turn = len(sites)
            site = replace(sites[-1], name=f"{sites[-1].module_name}#{turn}", turn=turn, layer=-1)
            sites.append(site)
        self._calls_of[site.name] = 0
        return site

    def _unclaimed(self, frame: FrameType, shape: Sequence[int], n_kv_heads: int) -> SitePass | None:
        """A pass for attention in a module that no adapter knows: it is a site from now on."""
        running = running_modules(frame, self._names)
        if not running:
            return None
        left_out = next((m for m, _ in running if self._names[m] in self._adapter.left_out), None)
        if left_out is not None:  # named already; what it computes goes nowhere
            return SitePass(self._adapter.site_of_call(self._names[left_out], left_out, shape, n_kv_heads))
        tokens = given_to(*arguments_of(running[0][1])).tokens
        choice = self._adapter.choose([module for module, _ in running], shape, tokens)
        module, call = running[choice]
        if self._loose is not None and self._loose[0] is call:
            return self._loose[1]
        self._end_loose_pass()
        sites, name = self._by_module.get(module, []), self._names[module]
        given = given_to(*arguments_of(call))
        unseen = next((site for site in sites if site.name not in self._calls_of), None)
        if unseen is not None:
            site = unseen
        elif sites:
            site = replace(sites[-1], name=f"{name}#{len(sites)}", turn=len(sites), layer=-1)
        else:
            site = self._adapter.site_of_call(name, module, shape, n_kv_heads, given.tokens)
        self._loose = (call, SitePass(site, given=given))
        return self._loose[1]

    def _end_loose_pass(self) -> None:
        loose, self._loose = self._loose, None
        if loose is None:
            return
        ended = loose[1]
        ended.without_sinks()
        ended.pending.clear()  # a softmax that no product uses chooses experts or classes
        if ended.unrecognised:
            self._tap.outside.append(f"{ended.site.name}: {ended.unrecognised[0]}")
        elif ended.calls and _between_channels(ended):
            self._not_weights[ended.site.name] = _CHANNELS
        elif ended.calls:
            known = self._by_module.setdefault(ended.site.module, [])
            if not any(site is ended.site for site in known):
                known.append(ended.site)
            self._write_pass(ended)

    def _note_unweighted(self, frame: FrameType, shape: Sequence[int]) -> None:
        """Products that meet values without a softmax, in a module that no adapter knows."""
        running = running_modules(frame, self._names)
        if running and not any(self._names[module] in self._adapter.left_out for module, _ in running):
            self._not_weights.setdefault(
                self._names[running[0][0]],
                f"products {tuple(shape)} meet values without a softmax: linear attention, or weights of another kind",
            )

    def _learn(self, batch: OpenBatch) -> None:
        """Number all layers anew if modules were met that have no number yet."""
        new = [(module, sites) for module, sites in self._by_module.items() if any(site.layer < 0 for site in sites)]
        if not new:
            return
        for module, sites in new:
            if sites[0].layer < 0:
                self._adapter.learn(self._names[module], n_heads=sites[0].n_heads, n_kv_heads=sites[0].n_kv_heads)
            self._adapter.learn(self._names[module], passes=len(sites))
        before = {(site.module, site.turn): site.name for sites in self._by_module.values() for site in sites}
        self._hooks.remove()
        self._attach()
        places = {
            before[site.module, site.turn]: (site.layer, site.name)
            for site in self._sites
            if (site.module, site.turn) in before
        }
        self._calls_of = {places[name][1]: calls for name, calls in self._calls_of.items()}
        batch.renumber(places)

    def _run_inner(self, module: nn.Module, forward: Function, args: Args, kwargs: Kwargs) -> Any:
        """Run torch's forward of a module that has another one around it."""
        if self._batch is None:
            return forward(*args, **kwargs)
        self._aside += 1
        step_aside()
        try:
            result = forward(*args, **kwargs)
        finally:
            self._aside -= 1
            come_back()
        self._read_fast_path(module, native.arguments(forward, args, kwargs))
        return result

    def _read_fast_path(self, module: nn.Module, given: Kwargs) -> None:
        """Attention of torch's own modules, from the arguments they were called with."""
        if isinstance(module, nn.MultiheadAttention) and module in self._by_module:
            self._write_native(module, lambda: native.call_of_module(module, given))
        elif isinstance(module, nn.TransformerEncoderLayer) and self._has_turns_left(module.self_attn):
            # On its fast path an encoder layer never runs its attention module.
            self._write_native(module.self_attn, lambda: native.call_of_layer(module, given))

    def _has_turns_left(self, module: nn.Module) -> bool:
        return any(site.name not in self._calls_of for site in self._by_module.get(module, []))

    def _write_native(self, module: nn.Module, read: Callable[[], AttentionCall]) -> None:
        with torch.no_grad(), torch._C.DisableTorchFunction():
            self._write_pass(SitePass(self._next_turn(module), [read()]))

    def _write_pass(self, ended: SitePass) -> None:
        """Everything that one run of a module computed."""
        site = ended.site
        calls = ended.calls or ended.pending
        if ended.idle and not calls:
            self._idle.add(site.name)
        self._calls_of[site.name] = len(calls)
        if ended.unrecognised:
            self._unrecognised[site.name] = ended.unrecognised[0]
        with torch.no_grad(), torch._C.DisableTorchFunction():
            for group, call in self._contexts_or_streams(ended, calls):
                self._write_call(site, group, call)

    def _contexts_or_streams(self, ended: SitePass, calls: list[AttentionCall]) -> list[tuple[str, AttentionCall]]:
        """Several calls of one pass: contexts if each has tokens of its own, streams if each has all of them."""
        site = ended.site
        named = (site.group, *site.streams)
        if len(calls) <= len(named):
            return list(zip(named, calls, strict=False))
        tokens, rows = [call.shape[0] * call.shape[2] for call in calls], ended.given.rows
        # parts that look at themselves, or all at the same keys; others are streams (ProphetNet's predictions)
        alike = len({call.shape[3] for call in calls}) == 1 or all(call.shape[2] == call.shape[3] for call in calls)
        if (heads := HeadsCall.of(calls, site.n_heads)) is not None:
            return [(site.group, heads)]
        if (joined := QueriesCall.of(calls)) is not None and sum(tokens) in rows:
            return [(site.group, joined)]
        if sum(tokens) in rows and alike:
            return [(site.group, JoinedCall.of(calls))]
        whole = [count in rows or call.shape[3] in rows for count, call in zip(tokens, calls, strict=True)]
        if sum(tokens) in rows or all(whole) or len({call.shape for call in calls}) == 1:
            return [(f"{site.group}_{number}" if number > 1 else site.group, c) for number, c in enumerate(calls, 1)]
        shapes = ", ".join(str(call.shape) for call in calls[:3])
        raise CaptureError(
            f"{site.name} computed attention {len(calls)} times in one pass, over parts of its tokens ({shapes}), and "
            "how they belong together is not known. Block-sparse attention can often be switched off in the config "
            "(attention_type='original_full'), or name the streams in an adapter of your own (`streams`)."
        )

    def _write_call(self, site: AttentionSite, group: str, call: AttentionCall) -> None:
        assert self._batch is not None
        # In a further stream (XLNet's) a key hidden from all queries may be the very token that is asked for.
        hidden = call.masked if group == site.group else None
        if isinstance(call, JoinedCall):
            real = tokens_of_lengths(call.lengths(2), call.lengths(3), self._device)
        else:
            real = real_tokens(site.group, call.shape, hidden, self._inputs)
        announced = False
        for block in call.blocks(self._info.kinds):
            for kind, values in block.items():
                pooled = pool_tokens(mean_over_contexts(values, kind, real), kind, self._info.pool)
                if pooled.is_meta:
                    raise CaptureError(
                        f"{site.name} computed on the meta device, where tensors have no values. Load its weights."
                    )
                if not announced:
                    _, queries, keys = pooled.shape
                    self._batch.add_layer(group, queries, keys, site.layer, site.name, call.shape[1])
                    announced = True
                self._batch.add_heads(group, kind, pooled.cpu().numpy())
        if not announced:
            raise CaptureError(f"{site.name} attended over an empty batch {call.shape}. Give every call a context.")

    # Never silent -----------------------------------------------------------------------------------------------------

    def _check_complete(self) -> None:
        lost = [name for name in self._unrecognised if name in self._calls_of]
        blind = [name for name, calls in self._calls_of.items() if calls == 0 and name not in self._idle]
        if blind or lost:
            first = (blind or lost)[0]
            seen = f" It computed {self._unrecognised[first]}." if first in self._unrecognised else ""
            raise CaptureError(
                f"{len(blind or lost)} of {len(self._calls_of)} attention modules ran but showed no attention, first "
                f"{first}.{seen} "
                'A flash or compiled kernel hides it: load the model with attn_implementation="sdpa" or "eager", '
                "or name another adapter."
            )
        if self._tap.hidden:
            raise CaptureError(
                f"The model {self._tap.hidden[0]}, which never shows its weights. Let it compute attention with "
                'scaled_dot_product_attention (attn_implementation="sdpa" in transformers) or step by step ("eager").'
            )
        if self._tap.outside:
            raise CaptureError(
                f"{len(self._tap.outside)} attention calls ({self._tap.outside[0]}) were made outside the modules that "
                f"adapter {self._adapter.name!r} knows, and cannot be placed. Describe the model in an adapter."
            )
        self._check_partial()

    def _check_partial(self) -> None:
        if not self._calls_of and not self._sites:
            left_out = self._adapter.left_out
            for name, reason in self._not_weights.items():
                raise CaptureError(
                    f"{type(self._model).__qualname__} shows no softmax between tokens: in {name or 'it'} {reason}. "
                    "Such a model has no attention weights to capture."
                )
            first = next((f", first {name}: {reason}" for name, reason in left_out.items()), "")
            raise CaptureError(
                f"{type(self._model).__qualname__} has no attention between tokens, so there is nothing to capture "
                f"({len(left_out)} modules were left out{first})."
            )
        if not any(self._calls_of.values()):
            raise CaptureError(
                f"None of the {len(self._sites)} attention modules ran in this forward call, first "
                f"{self._sites[0].name}. Were they bypassed by a fused path, or is another part of the model used?"
            )
        ran = {site.group for site in self._sites if site.name in self._calls_of}
        missing = [site.name for site in self._sites if site.group in ran and site.name not in self._calls_of]
        if missing and not self._allow_partial:
            raise CaptureError(
                f"Only {len(self._calls_of)} of {len(self._sites)} attention layers ran; {len(missing)} did not, first "
                f"{missing[0]}. Put the model in eval mode, or pass allow_partial=True."
            )


def _holders(model: nn.Module, inside: Mapping[nn.Module, Any]) -> set[nn.Module]:
    """The model, and every module that holds an attention module."""
    held = {model}
    for module in model.modules():
        if any(child in inside for child in module.modules() if child is not module):
            held.add(module)
    return held


_CHANNELS = "attention between channels, not between tokens"


def _between_channels(ended: SitePass) -> bool:
    """Whether there is a weight for every two features of a head, as many as the features that the module was given."""
    contexts, heads, queries, keys = ended.calls[0].shape
    square, rows = queries == keys, contexts * heads * queries
    return square and heads * queries in ended.given.widths and all(rows % count for count in ended.given.tokens)
