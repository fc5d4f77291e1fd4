"""The one call: load a model, capture its attention, organise it, measure its heads, report."""

from __future__ import annotations

import inspect
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oattn_hub.analysis.cache import Request, Run, versions
from oattn_hub.analysis.measure import BatchMeasurement, join_batches, measure_batch
from oattn_hub.attention.store import KINDS, AttentionStore
from oattn_hub.errors import InvalidInput
from oattn_hub.geometry import Questionnaire
from oattn_hub.progress import Progress, silent
from oattn_hub.report import GroupResult, ModelInfo, Provenance, Report, Settings

if TYPE_CHECKING:
    from torch import nn

    from oattn_hub.inputs import CalibrationInputs
    from oattn_hub.models.load import LoadedModel

PAGE_FILE = "report.html"


def analyze(
    spec: str | Path | nn.Module | LoadedModel,
    data: Any = None,
    batches: int = 6,
    tokens: int = 128,
    kind: str = "probs",
    seed: int = 0,
    out: str | Path | None = None,
    theory: bool = False,
    *,
    adapter: str | None = None,
    questionnaire: Mapping[str, Any] | None = None,
    progress: Progress = silent,
    **loading: Any,
) -> Report:
    """Measure which attention heads a model uses, and how sure that is.

    Finished stages are kept (see ``oattn_hub.analysis.cache``): an interrupted call goes on where it stopped and ends
    with the same bytes as one that was not interrupted; a repeated call returns at once.

    Args:
        spec: A Hub id, a local folder, a timm name, a torch module, or what ``load_model`` returned.
        data: What the model reads while it is measured; see ``calibration_inputs``. None: bundled text or images.
        batches: How many contexts; intervals and stability need two or more.
        tokens: Tokens per context, for text.
        kind: ``"probs"`` (after softmax), ``"scores"`` (before the mask) or ``"logits"`` (after it).
        seed: Chooses the contexts and drives the bootstrap.
        out: Folder for the report's files and its page; None keeps the report in the cache only.
        theory: Also check the paper's theory on this model (softmax invariance, regularity).
        adapter: Name of an adapter; None finds it from the model.
        questionnaire: Parameters of ``Questionnaire`` that differ from its defaults.
        progress: Told the stage and how much of it is done.
        loading: Passed to ``load_model``: ``revision``, ``token``, ``gguf_file``, ``trust_remote_code`` …

    >>> import oattn_hub as oh
    >>> report = oh.analyze("sentence-transformers/all-MiniLM-L6-v2")    # doctest: +SKIP
    >>> min(report.heads, key=lambda record: record.rank).layer          # doctest: +SKIP
    0
    """
    settings = _checked_settings(kind, batches, tokens, seed, questionnaire)
    if out is not None and Path(out).is_file():
        raise InvalidInput(f"out is {out}, which is a file; name a folder.")
    call = _Call(spec, data, settings, theory, adapter, loading)
    request = Request(spec, data, loading, call.parameters)
    report = request.answer() or _run(call, request, progress)
    if out is not None:
        report.save(out)
        report.write_page(Path(out) / PAGE_FILE)
    return report


@dataclass(frozen=True)
class _Call:
    """What the user asked for."""

    spec: Any
    data: Any
    settings: Settings
    theory: bool
    adapter: str | None
    loading: Mapping[str, Any]

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything but model and data that decides about the numbers."""
        return {**self.settings.to_json(), "theory": self.theory, "adapter": self.adapter}

    @property
    def kinds(self) -> tuple[str, ...]:
        """What must be captured: the theory is about the step from scores to probs."""
        return tuple(dict.fromkeys((self.settings.kind, *(("scores", "probs") if self.theory else ()))))


def _run(call: _Call, request: Request, progress: Progress) -> Report:
    """The method, stage by stage; each picks up what an earlier, interrupted run has finished."""
    clock = _Clock()
    with clock.stage("load"):
        loaded, inputs = _load(call, progress)
    # the source too: a report names the folder its model came from, so a copy elsewhere gets a report of its own
    place = (loaded.model_id, loaded.revision, _absolute(loaded.source))
    run = Run(*place, inputs.fingerprint, dict(call.loading, token=None), call.parameters)
    finished = run.report()
    if finished is None:
        with clock.stage("capture"):
            store = _capture(loaded, inputs, call, run, progress)
        with clock.stage("organise"):
            measured = _organise(store, call.settings, run, progress)
        with clock.stage("measure"):
            groups = _measure(store, measured, call.settings)
        report = _report(loaded, inputs, store, groups, call, clock)
        if call.theory:
            with clock.stage("theory"):
                report = _with_theory(report, store, progress)
        run.finish(report)
        finished = report
    request.remember(run)
    return finished


def _load(call: _Call, progress: Progress) -> tuple[LoadedModel, CalibrationInputs]:
    from oattn_hub.inputs import calibration_inputs
    from oattn_hub.models.load import load_model

    known = [name for name in inspect.signature(load_model).parameters if name != "spec"]
    if unknown := sorted(set(call.loading) - set(known)):
        raise InvalidInput(f"Unknown options {unknown}; analyze has its own and, for loading, {', '.join(known)}.")
    progress("load", 0, 1)
    loaded = load_model(call.spec, **call.loading)
    settings = call.settings
    inputs = calibration_inputs(loaded, call.data, settings.batches, settings.tokens, settings.seed)
    progress("load", 1, 1)
    return loaded, inputs


def _capture(
    loaded: LoadedModel, inputs: CalibrationInputs, call: _Call, run: Run, progress: Progress
) -> AttentionStore:
    from oattn_hub.attention import capture_inputs

    return capture_inputs(
        loaded, inputs, run.attention, call.kinds, progress=progress, adapter=call.adapter, resume=True
    )


def _organise(
    store: AttentionStore, settings: Settings, run: Run, progress: Progress
) -> dict[str, list[BatchMeasurement]]:
    """Every group's batches, each organised by the questionnaire and expanded in its Haar bases."""
    places = [(group, batch) for group in store.groups for batch in store.batches(group)]
    measured: dict[str, list[BatchMeasurement]] = {group: [] for group in store.groups}
    for done, (group, batch) in enumerate(places):
        progress("organise", done, len(places))
        file = run.measured(group, batch)
        if not file.exists():
            measure_batch(store.tensor(batch, settings.kind, group), settings).save(file)
        measured[group].append(BatchMeasurement.load(file))
    progress("organise", len(places), len(places))
    return measured


def _measure(
    store: AttentionStore, measured: Mapping[str, list[BatchMeasurement]], settings: Settings
) -> dict[str, GroupResult]:
    """Ranking with uncertainty, head tree and diffusion map of each group."""
    groups = {}
    for name, batches in measured.items():
        sample = store.tensor(store.batches(name)[0], settings.kind, name)
        groups[name] = join_batches(name, store.heads(name), sample, batches, settings)
    return groups


def _with_theory(report: Report, store: AttentionStore, progress: Progress) -> Report:
    """The paper's theory on the first batch of each group: the step from scores to probs, and what survives it."""
    from oattn_hub.analysis.theory import build_theory_section
    from oattn_hub.report.theory import TheorySection

    sections = []
    for group in store.groups:
        scores, probs = (store.tensor(store.batches(group)[0], kind, group) for kind in ("scores", "probs"))
        sections.append(build_theory_section(scores, probs, store.heads(group), group=group, progress=progress))
    return report.with_theory(TheorySection.join(sections))


def _report(
    loaded: LoadedModel,
    inputs: CalibrationInputs,
    store: AttentionStore,
    groups: Mapping[str, GroupResult],
    call: _Call,
    clock: _Clock,
) -> Report:
    from oattn_hub.hub.license import license_of

    model = ModelInfo(
        id=loaded.model_id,
        revision=loaded.revision,
        source=_absolute(loaded.source),
        library=loaded.library,
        modality=loaded.modality,
        adapter=store.info.adapter,
        architecture=type(loaded.model).__name__,
        n_parameters=sum(parameter.numel() for parameter in loaded.model.parameters()),
        license=license_of(loaded.source),
        options={name: value for name, value in call.loading.items() if name != "token"},
    )
    provenance = Provenance(
        data=inputs.description,
        data_fingerprint=inputs.fingerprint,
        command=_command(call),
        versions=versions(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=clock.seconds,
    )
    tokens = inputs.tokens or next(iter(groups.values())).n_queries
    return Report(model, replace(call.settings, batches=len(inputs), tokens=tokens), provenance, groups)


def _absolute(source: str | None) -> str | None:
    """A folder's whole path, so that the model is found again from anywhere; anything else as it is."""
    return str(Path(source).resolve()) if source is not None and Path(source).is_dir() else source


def _command(call: _Call) -> str:
    """A command that makes this report again, as far as one can."""
    if not isinstance(call.spec, str | Path):
        return "oattn_hub.analyze(<a model object>)"
    words = ["oattn", "analyze", str(call.spec)]
    if call.data is not None:
        words += ["--data", str(call.data) if isinstance(call.data, str | Path) else "<given in Python>"]
    settings = call.settings
    values = {"batches": settings.batches, "tokens": settings.tokens, "kind": settings.kind, "seed": settings.seed}
    for name, value in {**values, "adapter": call.adapter, **call.loading}.items():
        if value is not None and value is not False and name != "token":
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join(words + (["--theory"] if call.theory else []))


def _checked_settings(
    kind: str, batches: int, tokens: int, seed: int, questionnaire: Mapping[str, Any] | None
) -> Settings:
    if kind not in KINDS:
        raise InvalidInput(f"kind is {kind!r}; choose one of {', '.join(KINDS)}.")
    for name, value, least in (("batches", batches, 1), ("tokens", tokens, 2), ("seed", seed, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InvalidInput(f"{name} is {value!r}; give a whole number, {least} or more.")
    defaults = Questionnaire().get_params()
    if unknown := sorted(set(questionnaire or {}) - set(defaults)):
        raise InvalidInput(f"questionnaire has unknown parameters {unknown}; known are {sorted(defaults)}.")
    return Settings(kind, batches, tokens, seed, {**defaults, **(questionnaire or {})})


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
