"""A sweep: what is not done goes to the engine, what failed and may work later goes again, and files say the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from oattn_hub.errors import InvalidInput
from oattn_hub.progress import Progress, silent
from oattn_hub.sweep.engines import Engine, LocalEngine, RayEngine
from oattn_hub.sweep.leaderboard import Leaderboard
from oattn_hub.sweep.listing import ModelJob, read_models
from oattn_hub.sweep.state import Options, Status, SweepFolder

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class SweepResult:
    """How every model of the list stands, and the leaderboard over them."""

    folder: Path
    statuses: tuple[Status, ...]
    leaderboard: Leaderboard

    def count(self, state: str) -> int:
        """How many models are in a state."""
        return sum(status.state == state for status in self.statuses)


def run_sweep(
    models: str | Path | Iterable[str],
    out: str | Path,
    engine: str | Engine = "local",
    options: Options | None = None,
    *,
    workers: int | None = None,
    retries: int = 2,
    progress: Progress = silent,
    report: Callable[[Status], None] = lambda status: None,
) -> SweepResult:
    """Analyse every model of a list that is not analysed yet.

    Args:
        models: A file with one model a line, or the lines; see ``read_models``.
        out: The sweep's folder. Start again with the same one to go on.
        engine: ``local``, ``ray`` or an object with ``run``.
        options: What is measured; the same for all.
        workers: How many models at once; None: half the cores (local), what Ray finds (ray).
        retries: How often a model that failed, but may not fail again, is tried once more at the end.
        progress: Called with the number of models that are done.
        report: Called with the status of every model that ends.
    """
    options = options or Options()
    jobs, folder = read_models(models), SweepFolder(out)
    folder.agree(options)
    runner = make_engine(engine, workers) if isinstance(engine, str) else engine
    waiting = [job for job in jobs if folder.status(job).state != "done"]
    done = len(jobs) - len(waiting)
    for _ in range(1 + retries):
        progress("models", done, len(jobs))
        again: list[ModelJob] = []
        for job, status in runner.run(folder.root, waiting, options) if waiting else ():
            done += status.state == "done"
            if status.state == "failed" and status.again:
                again.append(job)
            report(status)
            progress("models", done, len(jobs))
        waiting = again
    return summarize(folder, jobs)


def summarize(folder: SweepFolder, jobs: Sequence[ModelJob]) -> SweepResult:
    """What the files say now, with the leaderboard written beside them."""
    leaderboard = Leaderboard.of(folder)
    leaderboard.save(folder.root)
    return SweepResult(folder.root, tuple(folder.status(job) for job in jobs), leaderboard)


def make_engine(name: str, workers: int | None = None) -> Engine:
    """The engine of a name."""
    if name not in ENGINES:
        raise InvalidInput(f"engine is {name!r}; choose one of {', '.join(ENGINES)}.")
    return LocalEngine(workers) if name == "local" else RayEngine(workers)
