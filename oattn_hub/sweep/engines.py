"""Where models are analysed: warm processes of this machine, or the workers of Ray.

An engine takes jobs and hands each back with its status, in the order in which they end. A worker that dies costs its
own model a try and nothing else.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from oattn_hub.errors import InvalidInput, MissingDependency
from oattn_hub.sweep.listing import ModelJob
from oattn_hub.sweep.state import Options, Status, SweepFolder
from oattn_hub.sweep.work import prepare_worker, work_on

_DIED = "Its worker died (out of memory, or killed from outside)"


class Engine(Protocol):
    """Runs every job and says how it ended."""

    def run(self, root: Path, jobs: Sequence[ModelJob], options: Options) -> Iterator[tuple[ModelJob, Status]]: ...


class LocalEngine:
    """Processes of this machine, which import everything once and then take one model after another."""

    def __init__(self, workers: int | None = None) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.workers = max(1, cores // 2) if workers is None else workers
        if self.workers < 1:
            raise InvalidInput(f"workers is {workers}; give a whole number, 1 or more.")
        self._threads = max(1, math.ceil(cores / self.workers))

    def run(self, root: Path, jobs: Sequence[ModelJob], options: Options) -> Iterator[tuple[ModelJob, Status]]:
        """Each of the threads below does nothing but wait for a process of its own."""
        idle: SimpleQueue[_WarmProcess] = SimpleQueue()
        processes = [_WarmProcess(self._threads) for _ in range(min(self.workers, len(jobs)))]
        for process in processes:
            idle.put(process)

        def work(job: ModelJob) -> Status:
            process = idle.get()
            try:
                return process.work(root, job, options)
            finally:
                idle.put(process)

        threads = ThreadPoolExecutor(len(processes))
        try:
            waiting = {threads.submit(work, job): job for job in jobs}
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.end()


class _WarmProcess:
    """A pool of one process: when it dies, it is known which model it was working on."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool: ProcessPoolExecutor | None = None
        self._ended = False

    def work(self, root: Path, job: ModelJob, options: Options) -> Status:
        if self._pool is None:
            # spawn: a forked copy of torch's threads may hang
            context = get_context("spawn")
            self._pool = ProcessPoolExecutor(1, context, initializer=prepare_worker, initargs=(self._threads,))
        try:
            return self._pool.submit(work_on, root, job, options).result()
        except BrokenProcessPool:
            self._pool = None
            return SweepFolder(root).status(job) if self._ended else _note_death(root, job, _DIED)

    def end(self) -> None:
        """Stop the process, also in the middle of a model, whose status file then still says ``running``."""
        self._ended = True
        pool = self._pool
        if pool is not None:
            for number in list(pool._processes or {}):
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGTERM)
            pool.shutdown(wait=True, cancel_futures=True)


class RayEngine:
    """Tasks of Ray, on this machine or on the cluster that ``RAY_ADDRESS`` names; all nodes must see the folder."""

    def __init__(self, workers: int | None = None) -> None:
        self._ray = _import_ray()
        self._workers = workers

    def run(self, root: Path, jobs: Sequence[ModelJob], options: Options) -> Iterator[tuple[ModelJob, Status]]:
        """Ray keeps its worker processes, so that they stay warm, and decides which job runs where."""
        ray = self._ray
        ours = not ray.is_initialized()
        if ours:
            cpus = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": self._workers}
            ray.init(include_dashboard=False, log_to_driver=False, **cpus)
        try:
            task = ray.remote(max_retries=0)(work_on)  # tries are counted in the files
            waiting = {task.options(**_reserved(job)).remote(root, job, options): job for job in jobs}
            while waiting:
                (ready,), _ = ray.wait(list(waiting), num_returns=1)
                job = waiting.pop(ready)
                try:
                    yield job, ray.get(ready)
                except ray.exceptions.RayError as error:
                    yield job, _note_death(root, job, f"{_DIED}: {type(error).__name__}")
        finally:
            if ours:  # its daemons would live as long as this process
                ray.shutdown()


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingDependency("The engine ray needs Ray: pip install 'oattn_hub[ray]', or take local.") from error
    return ray


def _reserved(job: ModelJob) -> dict[str, float]:
    names = {"cpus": "num_cpus", "gpus": "num_gpus", "memory_gb": "memory"}
    values = {names[name]: float(value) for name, value in job.resources.items() if name in names}
    return {**values, "memory": values["memory"] * 2**30} if "memory" in values else values


def _note_death(root: Path, job: ModelJob, reason: str) -> Status:
    sweep = SweepFolder(root)
    return sweep.write(job, sweep.status(job).failed(f"{reason}.", again=True))
