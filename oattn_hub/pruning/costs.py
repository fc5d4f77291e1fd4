"""What a model costs to keep and to run: parameters, FLOPs, cached bytes per token, latency; before a cut and after."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from oattn_hub.errors import InvalidInput
from oattn_hub.models.describe import pretrained
from oattn_hub.models.load import LoadedModel
from oattn_hub.types import JsonObject

Batch = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class PruningResult:
    """Size and speed before and after; what could not be measured is None.

    Attributes:
        flops_before: of one forward call on ``tokens`` tokens (for a generator: of the prefill).
        seconds_before: of the same call.
        seconds_change_low: the least relative change that any turn of the two models saw; with the highest, how sure.
        kv_bytes_before: what the key/value cache of a generator holds for one more token.
        decode_seconds_before: of generating one more token after ``tokens`` tokens.
    """

    heads_before: int
    heads_after: int
    parameters_before: int
    parameters_after: int
    tokens: int | None = None
    flops_before: int | None = None
    flops_after: int | None = None
    seconds_before: float | None = None
    seconds_after: float | None = None
    seconds_change_low: float | None = None
    seconds_change_high: float | None = None
    kv_bytes_before: int | None = None
    kv_bytes_after: int | None = None
    decode_seconds_before: float | None = None
    decode_seconds_after: float | None = None
    decode_seconds_change_low: float | None = None
    decode_seconds_change_high: float | None = None

    def to_json(self) -> JsonObject:
        """The result as a JSON-able dict."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(f"{row.name}: {row.before} -> {row.after} ({row.change})" for row in saving_rows(self))


@dataclass(frozen=True)
class Saving:
    """One line of a before-and-after table, in words."""

    name: str
    before: str
    after: str
    change: str


def saving_rows(result: PruningResult) -> list[Saving]:
    """Before and after of everything that was measured, for cards and the command line."""
    at = f" for {result.tokens} tokens" if result.tokens else ""
    generates = result.decode_seconds_before is not None
    rows = [
        ("attention heads", "heads", "{:,}", 1),
        ("parameters", "parameters", "{:,}", 1),
        (f"FLOPs{at}", "flops", "{:,}", 1),
        ("KV cache per token", "kv_bytes", "{:,} bytes", 1),
        (f"{'prefill' if generates else 'latency'}{at}", "seconds", "{:.1f} ms", 1000),
        ("decoding one token", "decode_seconds", "{:.1f} ms", 1000),
    ]
    found = []
    for name, key, words, scale in rows:
        before, after = getattr(result, f"{key}_before"), getattr(result, f"{key}_after")
        if before and after is not None:
            change = f"{100 * (after / before - 1):+.1f} %{_doubt(result, key)}"
            found.append(Saving(name, words.format(scale * before), words.format(scale * after), change))
    return found


def _doubt(result: PruningResult, key: str) -> str:
    """A busy machine has called two of 72 heads a fifth of the time, so it stands there how far the turns agree."""
    low, high = getattr(result, f"{key}_change_low", None), getattr(result, f"{key}_change_high", None)
    if low is None or high is None:
        return ""
    return ", within its noise" if low <= 0 <= high else f", single turns {100 * low:+.0f} to {100 * high:+.0f} %"


def measure(before: LoadedModel, after: LoadedModel, batch: Batch, tokens: int | None) -> dict[str, Any]:
    """The fields of a PruningResult that take running both models."""
    both = [before, after]
    found: dict[str, Any] = {"tokens": tokens}
    found |= _pair("flops", [count_flops(loaded, batch) for loaded in both])
    found |= _speed("seconds", call_times(both, batch))
    if generates(before, batch):
        found |= _decoding(both, batch)
    return found


def _decoding(both: Sequence[LoadedModel], batch: Batch) -> dict[str, Any]:
    """Cache and latency of writing; nothing for a decoder behind an encoder that wants to be called in another way."""
    try:
        return {
            **_pair("kv_bytes", [kv_bytes_per_token(loaded, batch) for loaded in both]),
            **_speed("decode_seconds", decode_times(both, batch)),
        }
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
        if "decoder_input_ids" not in batch:
            raise
        return {}


def _pair(name: str, values: Sequence[float]) -> dict[str, float]:
    return {f"{name}_before": values[0], f"{name}_after": values[1]}


def _speed(name: str, times: Sequence[Sequence[float]]) -> dict[str, float]:
    """Medians, and between which changes the turns were: of 7 turns that interval holds the median in 98 % of cases."""
    changes = [after / before - 1 for before, after in zip(*times, strict=True)]
    spread = {f"{name}_change_low": min(changes), f"{name}_change_high": max(changes)}
    return {**_pair(name, [statistics.median(found) for found in times]), **spread}


def count_flops(loaded: LoadedModel, batch: Batch) -> int:
    """Floating point operations of one forward call, as torch counts them."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        loaded.forward(batch)
    return int(counter.get_total_flops())


def generates(loaded: LoadedModel, batch: Batch) -> bool:
    """Whether the model writes text token by token, alone or behind an encoder."""
    if loaded.library != "transformers" or loaded.modality not in ("text", "audio"):
        return False
    model = pretrained(loaded.model)
    written = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
    return bool(model.can_generate()) and written in batch


def kv_bytes_per_token(loaded: LoadedModel, batch: Batch) -> int:
    """Bytes that one more token adds to the key/value cache, measured on a real cache.

    What a decoder keeps of its encoder's output does not grow with the tokens, and is not counted.
    """
    with torch.no_grad():
        cache = loaded.model(**batch, use_cache=True).past_key_values
    own = getattr(cache, "self_attention_cache", cache)
    return sum(tensor.nbytes // (tensor.shape[0] * tensor.shape[-2]) for tensor in cached_tensors(own))


def cached_tensors(cache: object) -> Iterator[torch.Tensor]:
    """Keys and values of every layer that keeps some."""
    for layer in getattr(cache, "layers", ()):
        for tensor in (getattr(layer, "keys", None), getattr(layer, "values", None)):
            if isinstance(tensor, torch.Tensor) and tensor.numel():
                yield tensor


def latencies(models: Sequence[LoadedModel], batch: Batch, repeats: int = 7) -> list[float]:
    """Median seconds of a forward call of each model."""
    return [statistics.median(found) for found in call_times(models, batch, repeats)]


def call_times(models: Sequence[LoadedModel], batch: Batch, repeats: int = 7) -> list[list[float]]:
    """Seconds of forward calls of each model, turn by turn."""
    calls = [partial(loaded.forward, batch) for loaded in models]
    return _times(calls, repeats)


def decode_times(models: Sequence[LoadedModel], batch: Batch, repeats: int = 7) -> list[list[float]]:
    """Seconds of writing one more token after ``batch``, for each model, turn by turn."""
    with torch.no_grad():
        outputs = [loaded.model(**batch, use_cache=True) for loaded in models]
    name = "decoder_input_ids" if "decoder_input_ids" in batch else "input_ids"
    token = batch[name][:, -1:]

    def step(loaded: LoadedModel, output: Any) -> object:
        encoded = getattr(output, "encoder_last_hidden_state", None)
        behind = {} if encoded is None else {"encoder_outputs": (encoded,)}
        return loaded.model(**{name: token}, **behind, past_key_values=output.past_key_values, use_cache=True)

    calls = [lambda one=one, output=output: step(one, output) for one, output in zip(models, outputs, strict=True)]
    return _times(calls, repeats)


def _times(calls: Sequence[Callable[[], object]], repeats: int) -> list[list[float]]:
    """Seconds of each call, measured in turn so that a busy machine is unfair to none."""
    if repeats < 1:
        raise InvalidInput(f"repeats is {repeats}; it is a count, 1 or more.")
    seconds: list[list[float]] = [[] for _ in calls]
    with torch.no_grad():
        for turn in range(repeats + 1):
            for call, found in zip(calls, seconds, strict=True):
                start = time.perf_counter()
                call()
                if turn:  # the first call warms up
                    found.append(time.perf_counter() - start)
    return seconds
