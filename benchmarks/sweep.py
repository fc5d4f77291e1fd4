"""A sweep over many tiny models with workers killed at random, and a soak: many analyses in one process.

    python benchmarks/sweep.py --models 200 --engine ray --kills 10 --soak 500 --out benchmarks/results/sweep.md

The overhead of a sweep is its CPU time per model, all processes counted, less that of a warm ``oh.analyze`` of one such
model in this process. Each worker that starts, also in place of a killed one, imports everything anew.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import threading
import time
from pathlib import Path

from pages import write_page

import oattn_hub as oh
from oattn_hub.sweep import SweepResult, run_sweep
from oattn_hub.sweep.state import Options

TEXT = "the cat sat on the mat and the dog lay by the door while the rain fell on the roof of the old house " * 40
_EVERY = 0.5  # seconds between two looks at the processes
SMALL = Options(batches=2, tokens=16)


def make_models(folder: Path, count: int) -> list[str]:
    """Folders of tiny BERTs, each with weights of its own."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *sorted(set(TEXT.split()))]
    words = {word: number for number, word in enumerate(known)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    for number in range(count):
        torch.manual_seed(number)
        model = BertModel(BertConfig(vocab_size=len(words), max_position_embeddings=32, **sizes))
        model.save_pretrained(folder / f"model-{number:04d}")
        fast.save_pretrained(folder / f"model-{number:04d}")
    return [str(folder / f"model-{number:04d}") for number in range(count)]


def descendants(root: int) -> dict[tuple[int, int], float]:
    """(process, its start) -> CPU seconds so far, of all processes below one, by Linux' list of processes."""
    parents: dict[int, int] = {}
    found: dict[int, tuple[tuple[int, int], float]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:  # ended meanwhile
                continue
            number = int(entry.name)
            parents[number] = int(words[1])
            found[number] = ((number, int(words[19])), (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK"))
    below: list[int] = []
    level = {root}
    while level := {number for number, parent in parents.items() if parent in level}:
        below += level
    return dict(found[number] for number in below)


def workers_below(root: int) -> list[int]:
    """The processes below one that analyse models."""
    return [number for number, _ in descendants(root) if _is_worker(number)]


def _is_worker(number: int) -> bool:
    try:
        command = Path(f"/proc/{number}/cmdline").read_bytes()
    except OSError:
        return False
    return b"spawn_main" in command or b"ray::work_on" in command


def kill_now_and_then(times: int, every: float, ended: threading.Event, killed: list[int]) -> None:
    """Kill a random worker of this process, again and again."""
    chance = random.Random(0)
    while len(killed) < times and not ended.wait(every * chance.uniform(0.5, 1.5)):
        if workers := workers_below(os.getpid()):
            killed.append(chance.choice(workers))
            os.kill(killed[-1], signal.SIGKILL)


class ProcessesBelow:
    """CPU seconds of all processes below this one, also of those that nobody waits for, as Ray's workers."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], float] = {}
        self._before = descendants(os.getpid())
        self._looking = 0.0
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._look)
        self._watch.start()

    def _look(self) -> None:
        while not self._ended.wait(_EVERY):
            self._seen.update(descendants(os.getpid()))
        self._looking = time.thread_time()

    def seconds(self) -> float:
        """Until now, less what the looking took in this process; looking ends.

        What a process does between the last look and its end is not seen.
        """
        self._ended.set()
        self._watch.join()
        self._seen.update(descendants(os.getpid()))
        return sum(used - self._before.get(process, 0.0) for process, used in self._seen.items()) - self._looking


def swept(
    models: list[str], out: Path, engine: str, workers: int, kills: int, every: float
) -> tuple[SweepResult, float, int]:
    """The result of a sweep, its CPU seconds, and how many workers were killed meanwhile."""
    killed: list[int] = []
    ended = threading.Event()
    killer = threading.Thread(target=kill_now_and_then, args=(kills, every, ended, killed))
    below, before = ProcessesBelow(), time.process_time()
    killer.start()
    try:
        result = run_sweep(models, out, engine, SMALL, workers=workers, retries=5)
    finally:
        ended.set()
        killer.join()
    return result, time.process_time() - before + below.seconds(), len(killed)


def warm_call(models: list[str]) -> float:
    """CPU seconds of a warm ``oh.analyze`` with its report and page, mean over some models."""
    with tempfile.TemporaryDirectory() as folder:
        words = {"batches": SMALL.batches, "tokens": SMALL.tokens, "progress": lambda *_: None}
        oh.analyze(models[0], out=Path(folder) / "first", **words)
        before = time.process_time()
        for number, model in enumerate(models[1:11]):
            oh.analyze(model, out=Path(folder) / str(number), **words)
        return (time.process_time() - before) / len(models[1:11])


def soak(models: list[str], times: int) -> tuple[float, float]:
    """MB of resident memory after a fifth of the analyses, and after all of them."""
    after_first = 0.0
    for number in range(times):
        # another seed is another analysis, so that none is found in the cache
        oh.analyze(models[number % len(models)], batches=2, tokens=16, seed=1 + number, progress=lambda *_: None)
        if number == times // 5:
            after_first = _resident()
    return after_first, _resident()


def _resident() -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def main() -> None:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--engine", choices=("local", "ray"), default="ray")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--every", type=float, default=6.0, help="seconds between two kills, on average")
    parser.add_argument("--soak", type=int, default=500, help="analyses in one process; 0 is none")
    parser.add_argument("--out", type=Path, help="a Markdown page; what is written by hand at its end is kept")
    options = parser.parse_args()
    lines = ["# Many models", "", "| what | found | goal |", "|---|---|---|"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["OATTN_HOME"] = str(folder / "home")
        models = make_models(folder / "models", options.models)
        result, cpu, killed = swept(
            models, folder / "out", options.engine, options.workers, options.kills, options.every
        )
        own = warm_call(models)
        tries = sum(status.tries for status in result.statuses)
        lines += [
            f"| models on {options.engine}, {options.workers} workers, {killed} workers killed: done "
            f"| {result.count('done')} of {len(models)} ({tries} tries) | all |",
            f"| CPU s per model, all processes; of which a warm call | {cpu / len(models):.2f}; {own:.2f} | |",
            f"| overhead per model, CPU s | {cpu / len(models) - own:.2f} | 0.3 |",
        ]
        print("\n".join(lines), flush=True)
        if options.soak:
            first, last = soak(models, options.soak)
            lines.append(
                f"| memory after {options.soak // 5} and {options.soak} analyses in one process, MB "
                f"| {first:.0f}, {last:.0f} ({100 * (last / first - 1):+.1f} %) | within 5 % |"
            )
    page = "\n".join([*lines, ""])
    print(page)
    if options.out:
        write_page(options.out, page, "sweep.py")


if __name__ == "__main__":
    main()
