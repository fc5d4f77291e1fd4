"""Heads while they learn: every N steps the same inputs are captured, measured and logged.

:class:`HeadWatch` is a callback of transformers' ``Trainer``; in a loop of your own call :meth:`HeadWatch.step`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler

from oattn_hub.analyzer import Analyzer
from oattn_hub.errors import InvalidInput
from oattn_hub.files import read_json, write_json
from oattn_hub.inputs import CalibrationInputs, calibration_inputs
from oattn_hub.inputs.types import Data
from oattn_hub.models.load import LoadedModel, load_model
from oattn_hub.models.options import Processor
from oattn_hub.report import GroupResult, Report
from oattn_hub.report.training_page import write_training_page
from oattn_hub.types import Array

HISTORY_FILE = "history.json"
PAGE_FILE = "training.html"


@dataclass(frozen=True)
class Moment:
    """The heads at one step: the report, and the numbers that were logged."""

    step: int
    report: Report
    logged: Mapping[str, float]


class HeadWatch(TrainerCallback):
    """Measures the heads of a model in training on inputs that stay the same, so that only the model changes.

    Logged, for each group of heads (its name is left out where there is one): ``heads/entropy`` (mean head entropy) and
    the same for each layer, ``heads/network_entropy``, ``heads/stability`` (Spearman correlation between batches),
    and the drift since the last moment and since the first: ``heads/drift`` is 1 minus the rank correlation of the head
    entropies, ``heads/tree_drift`` 1 minus the correlation of the distances between heads in the head tree. 0 is no
    drift. Training is not touched: no random number is drawn and no mode, gradient or buffer of the model changes.

    Args:
        data: What the model reads; see ``calibration_inputs``. None: bundled text or images.
        every: Measure at each multiple of this many steps, and before the first.
        out: Folder for one report per moment (``step-000100/``), ``history.json`` and ``training.html``, a page that
            plays the training; None keeps the moments in memory only.
        batches: How many contexts; fewer than in ``analyze``, because it runs again and again.
        tokens: Tokens per context.
        kind: As in ``analyze``.
        seed: As in ``analyze``.
        processor: Tokenizer or image processor; the Trainer gives its own.

    >>> watch = HeadWatch(every=500, out="heads")                  # doctest: +SKIP
    >>> Trainer(model, args, callbacks=[watch], ...).train()       # doctest: +SKIP
    >>> watch.moments[-1].logged["heads/drift"]                    # doctest: +SKIP
    """

    def __init__(
        self,
        data: Data = None,
        every: int = 100,
        out: str | Path | None = None,
        *,
        batches: int = 4,
        tokens: int = 64,
        kind: str = "probs",
        seed: int = 0,
        processor: Processor | None = None,
    ) -> None:
        if every < 1:
            raise InvalidInput(f"every is {every}; give a number of steps, 1 or more.")
        self.every = every
        self.moments: list[Moment] = []
        self._data, self._batches, self._tokens, self._processor = data, batches, tokens, processor
        self._analyzer = Analyzer(kind, seed)
        self._out = None if out is None else Path(out)
        self._inputs: CalibrationInputs | None = None
        self._unlogged: dict[str, float] = {}

    # In any loop ------------------------------------------------------------------------------------------------------

    def step(self, model: nn.Module, step: int) -> dict[str, float] | None:
        """Call it after every optimiser step; what to log at this step, or None between two moments."""
        return dict(self.observe(model, step).logged) if step % self.every == 0 else None

    def observe(self, model: nn.Module, step: int) -> Moment:
        """Measure the heads now."""
        with _undisturbed(model):
            loaded = load_model((model, self._processor))
            report = self._measure(loaded)
        moment = Moment(step, report, self._numbers(report))
        self.moments.append(moment)
        if self._out is not None:
            self._keep(moment, self._out)
        return moment

    def write_page(self, path: str | Path) -> Path:
        """Write a page that plays the training so far: the map of heads and the numbers, moment by moment."""
        return write_training_page([(m.step, m.report, m.logged) for m in self.moments], Path(path))

    # As a callback of Trainer -----------------------------------------------------------------------------------------

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        """The moment before the first step, unless training goes on from a checkpoint."""
        _go_first(self, inspect.currentframe())
        if self._processor is None:
            self._processor = parts.get("processing_class")
        if state.is_world_process_zero and state.global_step == 0:
            self.observe(parts["model"], 0)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> TrainerControl:
        """Measure, and have the Trainer log at this step."""
        if state.is_world_process_zero:
            logged = self.step(parts["model"], state.global_step)
            if logged is not None:
                self._unlogged = logged
                control.should_log = True
        return control

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        """Write the page that plays the training."""
        if self._out is not None and self.moments:
            self.write_page(self._out / PAGE_FILE)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **parts: Any,
    ) -> None:
        """Put the numbers into what the Trainer sends to its loggers and writes to its history."""
        if logs is not None and self._unlogged:
            logs.update(self._unlogged)
            if state.log_history:
                state.log_history[-1].update(self._unlogged)
            self._unlogged = {}

    # ------------------------------------------------------------------------------------------------------------------

    def _measure(self, loaded: LoadedModel) -> Report:
        if self._inputs is None:
            seed = self._analyzer.seed
            self._inputs = calibration_inputs(loaded, self._data, self._batches, self._tokens, seed)
        store = self._analyzer.capture(loaded, self._inputs)  # in a temporary folder, which goes away with the store
        return self._analyzer.report(store, self._analyzer.measure(store), "oattn_hub.HeadWatch")

    def _numbers(self, report: Report) -> dict[str, float]:
        numbers: dict[str, float] = {}
        for name, group in report.groups.items():
            prefix = "heads/" if len(report.groups) == 1 else f"heads/{name}/"
            values = _now(group) | _drift(group, name, self.moments)
            numbers |= {f"{prefix}{key}": value for key, value in values.items() if np.isfinite(value)}
        return numbers

    def _keep(self, moment: Moment, out: Path) -> None:
        moment.report.save(out / f"step-{moment.step:06d}")
        file = out / HISTORY_FILE
        earlier = [entry for entry in (read_json(file) if file.exists() else []) if entry["step"] < moment.step]
        write_json(file, [*earlier, {"step": moment.step, **moment.logged}])


def _now(group: GroupResult) -> dict[str, float]:
    entropies = group.haar.mean_entropies
    layers = {
        f"entropy/layer_{layer}": float(entropies[group.layers == layer].mean()) for layer in set(group.layers.tolist())
    }
    return {
        "entropy": float(entropies.mean()),
        **layers,
        "network_entropy": float(group.haar.network_entropies.mean()),
        "stability": float(group.ranking.spearman),
    }


def _drift(group: GroupResult, name: str, moments: list[Moment]) -> dict[str, float]:
    drift = {}
    for since, moment in (("", moments[-1:]), ("_from_start", moments[:1])):
        for earlier in moment:
            before = earlier.report.groups[name]
            ranks = _correlation(before.haar.mean_entropies, group.haar.mean_entropies)
            drift[f"drift{since}"] = 1 - ranks
            drift[f"tree_drift{since}"] = 1 - _correlation(_tree_distances(before), _tree_distances(group))
    return drift


def _correlation(a: Array, b: Array) -> float:
    """Spearman's; NaN where one of the two is constant."""
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(spearmanr(a, b).statistic)


def _tree_distances(group: GroupResult) -> Array:
    """For every pair of heads, the part of the tree's levels on which they lie in different folders."""
    labels = group.geometry.head_labels
    rows, columns = np.triu_indices(group.n_heads, k=1)
    distances: Array = np.mean([level[rows] != level[columns] for level in labels], axis=0)
    return distances


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards every module has the mode and torch the random state they had before."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        with torch.random.fork_rng(devices=[]):
            model.eval()
            yield
    finally:
        for module, training in modes:
            module.training = training


def _go_first(watch: HeadWatch, frame: FrameType | None) -> None:
    """Move before the loggers, which the Trainer calls in the order of its list and puts before its users' callbacks.

    A callback does not know who calls it, and what it adds to the logs after the loggers have run is lost; so the
    handler is taken from the frame that called. Moving forward while that list is walked skips nobody.
    """
    handler = frame.f_back.f_locals.get("self") if frame is not None and frame.f_back is not None else None
    if isinstance(handler, CallbackHandler) and watch in handler.callbacks:
        handler.callbacks.remove(watch)
        handler.callbacks.insert(0, watch)
