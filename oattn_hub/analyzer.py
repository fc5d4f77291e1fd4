"""The analyzer: capture attention, organise it, measure heads, report; ``analyze`` is all of it at once."""

from __future__ import annotations

import copy
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from oattn_hub.analysis.axes import keep_contexts, read_contexts
from oattn_hub.analysis.cache import NOT_IN_NUMBERS, OBJECTS, Request, Run
from oattn_hub.analysis.measure import BatchMeasurement, check_finite, join_batches, measure_batch
from oattn_hub.analysis.samples import room, sample_of, with_samples
from oattn_hub.attention.pooling import PooledStore
from oattn_hub.attention.reading import give_back_freed
from oattn_hub.attention.store import KINDS, AttentionStore
from oattn_hub.errors import InvalidInput
from oattn_hub.geometry import Questionnaire
from oattn_hub.inputs.types import Data
from oattn_hub.lazy import require
from oattn_hub.models.options import LoadOptions
from oattn_hub.progress import Progress, automatic
from oattn_hub.records import Provenance, Settings
from oattn_hub.report import GroupResult, Report
from oattn_hub.versions import versions

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from oattn_hub.inputs import CalibrationInputs
    from oattn_hub.models.load import LoadedModel, Source

PAGE_FILE = "report.html"
_AT_ONCE = 2 << 30  # bytes of captured tensors that may be on the disk together
Measurements = Mapping[str, Sequence[BatchMeasurement]]


def analyze(
    spec: Source | AttentionStore,
    data: Data = None,
    batches: int = 6,
    tokens: int = 128,
    kind: str = "probs",
    seed: int = 0,
    out: str | Path | None = None,
    theory: bool = False,
    *,
    adapter: str | None = None,
    questionnaire: Mapping[str, Any] | None = None,
    progress: Progress = automatic,
    **loading: Unpack[LoadOptions],
) -> Report:
    """Measure which attention heads a model uses, and how sure that is: an :class:`Analyzer` made and run.

    >>> import oattn_hub as oh
    >>> report = oh.analyze("sentence-transformers/all-MiniLM-L6-v2")    # doctest: +SKIP
    >>> min(report.heads, key=lambda record: record.rank).layer          # doctest: +SKIP
    0
    """
    analyzer = Analyzer(kind, seed, questionnaire, theory, adapter=adapter, progress=progress)
    return analyzer.run(spec, data, batches, tokens, out, **loading)


class Analyzer:
    """How heads are measured: settings in the constructor, stages as methods, :meth:`run` for all of them.

    Args:
        kind: ``"probs"`` (after softmax), ``"scores"`` (before the mask) or ``"logits"`` (after it).
        seed: Chooses the contexts and drives everything random.
        questionnaire: Parameters of ``Questionnaire`` that differ from its defaults.
        theory: Also check the paper's theory on this model (softmax invariance, regularity).
        adapter: Name of an adapter; None finds it from the model.
        landmarks: Of more heads than this, so many are compared each with each, and the others placed beside them.
        device: A device of torch that compares heads and tokens, such as ``"cuda"``; None: the GPU that a model of
            :meth:`run` is on, else this processor, which is faster without torch.
        progress: Called with the stage and how much of it is done.

    >>> import numpy as np
    >>> parts = Analyzer(questionnaire={"n_iters": 1}).organise(np.random.default_rng(0).random((8, 8, 6)))
    >>> sorted(parts.trees_)
    ['head', 'key', 'query']
    """

    def __init__(
        self,
        kind: str = "probs",
        seed: int = 0,
        questionnaire: Mapping[str, Any] | None = None,
        theory: bool = False,
        *,
        adapter: str | None = None,
        landmarks: int = Settings.landmarks,
        device: str | None = None,
        progress: Progress = automatic,
    ) -> None:
        if kind not in KINDS:
            raise InvalidInput(f"kind is {kind!r}; choose one of {', '.join(KINDS)}.")
        _check_count("seed", seed, least=0)
        defaults = Questionnaire().get_params()
        if unknown := sorted(set(questionnaire or {}) - set(defaults)):
            raise InvalidInput(f"questionnaire has unknown parameters {unknown}; known are {sorted(defaults)}.")
        self.kind, self.seed, self.theory, self.adapter = kind, seed, theory, adapter
        self.questionnaire = {**defaults, **(questionnaire or {})}
        _check_count("landmarks", landmarks, least=2)
        self.landmarks = landmarks
        self.device = device
        self.progress = progress

    @property
    def kinds(self) -> tuple[str, ...]:
        """What must be captured: the theory is about the step from scores to probs."""
        return tuple(dict.fromkeys((self.kind, *(("scores", "probs") if self.theory else ()))))

    def settings(self, batches: int, tokens: int) -> Settings:
        """Every parameter that changes a number in the report."""
        return Settings(self.kind, batches, tokens, self.seed, self.questionnaire, landmarks=self.landmarks)

    def run(
        self,
        source: Source | AttentionStore,
        data: Data = None,
        batches: int = 6,
        tokens: int = 128,
        out: str | Path | None = None,
        **loading: Unpack[LoadOptions],
    ) -> Report:
        """The report on a model, or on attention that was captured before.

        Finished stages are kept (see ``oattn_hub.analysis.cache``): an interrupted call goes on where it stopped and
        ends with the same bytes as one that was not interrupted; a repeated call returns at once.

        Args:
            source: A Hub id, a folder, a timm name, a torch module, ``(model, tokenizer)``, what ``load_model``
                returned, or an ``AttentionStore`` (or its folder), for which no model is needed.
            data: What the model reads while it is measured; see ``calibration_inputs``. None: bundled text or images.
            batches: How many contexts; intervals and stability need two or more.
            tokens: Tokens per context, for text.
            out: Folder for the report's files and its page; None keeps the report in the cache only.
            loading: Passed to ``load_model``: ``tokenizer`` or ``processor`` for a model that comes without,
                ``revision``, ``token``, ``gguf_file``, ``trust_remote_code`` …
        """
        require("numba", what="Organising heads")  # before a model is loaded and captured
        _check_count("batches", batches, least=1)
        _check_count("tokens", tokens, least=2)
        if out is not None and Path(out).is_file():
            raise InvalidInput(f"out is {out}, which is a file; name a folder.")
        if isinstance(source, str | Path) and AttentionStore.is_store(source):
            source = AttentionStore.open(source)
        if isinstance(source, AttentionStore):
            report = self.report(source, self.measure(source))
        else:
            report = self._run_model(_Call(source, data, self.settings(batches, tokens), loading))
        if out is not None:
            report.save(out)
            report.write_page(Path(out) / PAGE_FILE)
        return report

    # The stages, each usable alone ------------------------------------------------------------------------------------

    def capture(
        self,
        loaded: LoadedModel,
        inputs: CalibrationInputs,
        folder: str | Path | None = None,
        resume: bool = False,
        each: Callable[[AttentionStore, int], None] | None = None,
    ) -> AttentionStore:
        """Run a loaded model on every input; the attention this analyzer needs is in the store.

        ``each`` is called with the store and the number of every batch as soon as it is there.
        """
        from oattn_hub.attention import capture_inputs

        options: dict[str, Any] = {"progress": self.progress, "adapter": self.adapter, "resume": resume, "each": each}
        store = capture_inputs(loaded, inputs, folder, self.kinds, **options)
        keep_contexts(store.folder, loaded, inputs)
        return store

    def organise(self, X: ArrayLike) -> Questionnaire:
        """Trees, affinities and their history of one (query, key, head) tensor (Algorithm 1)."""
        return Questionnaire(**self.questionnaire).fit(X)

    def measure(self, store: AttentionStore, run: Run | None = None) -> Measurements:
        """Every group's batches, each organised and expanded in its Haar bases.

        Args:
            store: What was captured.
            run: Where finished batches are kept and found again; None keeps them in memory only.
        """
        _check_kinds(store, self.kinds)
        store = PooledStore(store)
        settings = self.settings(store.n_batches, 0)
        places = [(group, batch) for group in store.groups for batch in store.batches(group)]
        measured: dict[str, list[BatchMeasurement]] = {group: [] for group in store.groups}
        for done, (group, batch) in enumerate(places):
            self.progress("organise", done, len(places))
            measured[group].append(self._measured(store, group, batch, settings, run))
        self.progress("organise", len(places), len(places))
        return measured

    def report(
        self, store: AttentionStore, measured: Measurements, command: str = "", run: Run | None = None
    ) -> Report:
        """The report from a store and its measurements: ranking with uncertainty, head tree, diffusion map, theory."""
        _check_kinds(store, self.kinds)
        store = PooledStore(store)
        info = store.info
        settings = self.settings(store.n_batches, 0)
        joined = {}
        for done, (name, batches) in enumerate(measured.items()):
            self.progress("controls", done, len(measured))
            joined[name] = self._join(store, name, batches, settings)
        self.progress("controls", len(measured), len(measured))
        groups = with_samples(joined, store, measured, self.kind, run)
        provenance = Provenance(
            data=info.description,
            data_fingerprint=store.fingerprint,
            command=command or _command_for_store(store, self),
            versions=versions(),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        tokens = info.tokens or next(iter(groups.values())).n_queries
        kept = read_contexts(store.folder)
        report = Report(info.model, replace(settings, tokens=tokens), provenance, groups, contexts=kept)
        return self._with_theory(report, store) if self.theory else report

    # ------------------------------------------------------------------------------------------------------------------

    def _measured(
        self, store: AttentionStore, group: str, batch: int, settings: Settings, run: Run | None
    ) -> BatchMeasurement:
        """The measurement of one group and batch, from an earlier run or made now."""
        found = run.measurement(group, batch) if run is not None else None
        if found is None:
            check_finite(store, batch, self.kind, group)
            found = measure_batch(store.tensor(batch, self.kind, group), settings, self.device)
            give_back_freed()
            if run is not None:
                run.keep(group, batch, found)
        return found

    def _give_back(self, run: Run, total: int, store: AttentionStore, batch: int) -> None:
        """Where all batches would take too much room on the disk, organise one as soon as it is there, and delete it.

        The first stays: the controls need it.
        """
        if store.n_bytes(0) * total <= _AT_ONCE:
            return
        read = PooledStore(store)
        n_contexts, per_entry = room(read, total)
        for group in (name for name in store.groups if batch in store.batches(name)):
            found = self._measured(read, group, batch, self.settings(total, 0), run)
            if store.batches(group).index(batch) < n_contexts:
                run.keep_sample(group, batch, sample_of(read, group, batch, found, self.kind, per_entry))
        if batch > 0:
            store.give_back(batch)

    def _join(
        self, store: PooledStore, name: str, batches: Sequence[BatchMeasurement], settings: Settings
    ) -> GroupResult:
        first = store.batches(name)[0]
        sample = store.tensor(first, self.kind, name)
        group = join_batches(name, store.heads(name), sample, batches, settings, self.device)
        return replace(group, pooled=store.pooled(first, name))

    def _with_theory(self, report: Report, store: PooledStore) -> Report:
        """The paper's theory on the first batch of each group: the step from scores to probs, and what survives it."""
        from oattn_hub.analysis.theory import build_theory_section
        from oattn_hub.report.theory import TheorySection

        sections = []
        for group in store.groups:
            scores, probs = (store.tensor(store.batches(group)[0], kind, group) for kind in ("scores", "probs"))
            heads = store.heads(group)
            sections.append(build_theory_section(scores, probs, heads, group=group, progress=self.progress))
        return report.with_theory(TheorySection.join(sections))

    def _run_model(self, call: _Call) -> Report:
        parameters = {**call.settings.to_json(), "theory": self.theory, "adapter": self.adapter}
        request = Request(call.spec, call.data, call.loading, parameters)
        answered = request.answer()
        if answered is not None:
            return answered
        clock = _Clock()
        with clock.stage("load"):
            loaded, inputs = self._load(call)
        info = loaded.info
        how = {name: value for name, value in call.loading.items() if name not in NOT_IN_NUMBERS}
        # the source too: a report names the folder its model came from, so a copy elsewhere gets a report of its own
        run = Run(info.id, info.revision, info.source, inputs.fingerprint, how, parameters)
        with run.lock():  # whoever asks for the same meanwhile waits, and finds the report
            report = run.report() or self._beside(loaded)._run_stages(call, run, loaded, inputs, clock)
        request.remember(run)
        return report

    def _beside(self, loaded: LoadedModel) -> Analyzer:
        """This analyzer, comparing slices on the GPU that the model is on, unless a device was asked for."""
        from oattn_hub.models.placement import cuda_of

        found = copy.copy(self)
        found.device = self.device or cuda_of(loaded.model)
        return found

    def _run_stages(
        self, call: _Call, run: Run, loaded: LoadedModel, inputs: CalibrationInputs, clock: _Clock
    ) -> Report:
        """The method, stage by stage; each picks up what an earlier, interrupted run has finished."""
        run.forget_damaged()
        with clock.stage("capture"):
            store = self.capture(loaded, inputs, run.attention, True, partial(self._give_back, run, len(inputs)))
        with clock.stage("organise"):
            measured = self.measure(store, run)
        with clock.stage("measure"):
            report = self.report(store, measured, _command(call, self), run)
        report = replace(report, provenance=replace(report.provenance, seconds=clock.seconds))
        run.finish(report)
        return report

    def _load(self, call: _Call) -> tuple[LoadedModel, CalibrationInputs]:
        from oattn_hub.inputs import calibration_inputs
        from oattn_hub.models.load import load_model

        known = LoadOptions.__annotations__
        if unknown := sorted(set(call.loading) - set(known)):
            raise InvalidInput(f"Unknown options {unknown}; analyze has its own and, for loading, {', '.join(known)}.")
        self.progress("load", 0, 1)
        loaded = load_model(call.spec, **call.loading)
        settings = call.settings
        inputs = calibration_inputs(loaded, call.data, settings.batches, settings.tokens, settings.seed)
        self.progress("load", 1, 1)
        return loaded, inputs


@dataclass(frozen=True)
class _Call:
    """What the user asked for."""

    spec: Source
    data: Data
    settings: Settings
    loading: LoadOptions = field(default_factory=lambda: LoadOptions())


def _check_kinds(store: AttentionStore, kinds: Sequence[str]) -> None:
    if missing := [kind for kind in kinds if kind not in store.info.kinds]:
        raise InvalidInput(
            f"The store {store.folder} holds {', '.join(store.info.kinds)} and not {', '.join(missing)}. "
            f"Capture with kinds={tuple(kinds)}, or choose another kind."
        )


def _check_count(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidInput(f"{name} is {value!r}; give a whole number, {least} or more.")


def _command(call: _Call, analyzer: Analyzer) -> str:
    """A command that makes this report again, as far as one can."""
    if not isinstance(call.spec, str | Path):
        return "oattn_hub.analyze(<a model object>)"
    if given := [name for name in OBJECTS if call.loading.get(name) is not None]:
        return f"oattn_hub.analyze({str(call.spec)!r}, {given[0]}=<an object>)"
    words = ["oattn", "analyze", str(call.spec)]
    if call.data is not None:
        words += ["--data", str(call.data) if isinstance(call.data, str | Path) else "<given in Python>"]
    values = {"batches": call.settings.batches, "tokens": call.settings.tokens}
    return shlex.join(words + _options({**values, **_chosen(analyzer), **call.loading}))


def _command_for_store(store: AttentionStore, analyzer: Analyzer) -> str:
    return shlex.join(["oattn", "analyze", str(store.folder), *_options(_chosen(analyzer))])


def _chosen(analyzer: Analyzer) -> dict[str, object]:
    return {"kind": analyzer.kind, "seed": analyzer.seed, "adapter": analyzer.adapter, "theory": analyzer.theory}


def _options(values: Mapping[str, object]) -> list[str]:
    words = []
    for name, value in values.items():
        if value is not None and value is not False and name != "token":
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return words


class _Clock:
    """Wall-clock seconds of each stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time the block."""
        start = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - start, 3)
