"""What a worker does: one model, whatever happens to it, ends as a status file. Imports nothing heavy by itself."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from multiprocessing import parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oattn_hub import errors
from oattn_hub.files import exists_here
from oattn_hub.sweep.listing import ModelJob
from oattn_hub.sweep.state import Options, Status, SweepFolder

if TYPE_CHECKING:
    from oattn_hub.report import Report

# What a second try cannot change; anything else may be the network, the disk or the memory.
_LASTING = (
    errors.InvalidInput,
    errors.MissingDependency,
    errors.FormatError,
    errors.AdapterError,
    errors.CaptureError,
    errors.HubNotFound,
    errors.HubAuthError,
)


def prepare_worker(threads: int) -> None:
    """Bound the threads before any numerical library starts, and end with the process that started this one."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(name, str(threads))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def work_on(root: Path, job: ModelJob, options: Options) -> Status:
    """Analyse one model into its folder; never raises but for an interrupt."""
    sweep = SweepFolder(root)
    try:
        with sweep.hold(job, wait=0):
            before = sweep.status(job)
            if before.state == "done":  # another sweep on this folder was faster
                return before
            running = sweep.write(job, replace(before, state="running", tries=before.tries + 1, error=""))
            return sweep.write(job, _try(job, options, sweep.folder(job), running))
    except errors.FolderInUse:
        return replace(sweep.status(job), state="busy")
    except errors.StorageError as error:
        return sweep.status(job).failed(str(error), again=True)


def _try(job: ModelJob, options: Options, folder: Path, running: Status) -> Status:
    start = time.perf_counter()
    try:
        _measure(job, options, folder)
    except Exception as error:
        sentence = str(error) if isinstance(error, errors.OattnError) else f"{type(error).__name__}: {error}"
        return running.failed(sentence, again=_may_pass(error, job.model))
    return replace(running, state="done", again=False, seconds=round(time.perf_counter() - start, 3))


def _may_pass(error: Exception, model: str) -> bool:
    """Whether another try may help; a folder of this disk that cannot be loaded is the same a minute later."""
    on_this_disk = exists_here(model) or model.startswith(("/", ".", "~"))
    return not isinstance(error, _LASTING) and not (on_this_disk and isinstance(error, errors.LoadError))


def _measure(job: ModelJob, options: Options, folder: Path) -> Report:
    from oattn_hub.analyzer import PAGE_FILE, analyze

    loading: dict[str, Any] = {**job.loading, "trust_remote_code": options.trust_remote_code}
    report = analyze(
        job.model,
        options.data,
        options.batches,
        options.tokens,
        options.kind,
        options.seed,
        None if options.evaluate else folder,
        **loading,
    )
    if options.evaluate:
        from oattn_hub.pruning import evaluate

        section = evaluate(report, tokens=min(options.tokens, 64), seed=options.seed)
        report = report.with_evaluation(section)
        report.save(folder)
        report.write_page(folder / PAGE_FILE)
    return report
