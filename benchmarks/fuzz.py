"""Damaged files: every format of ours, mutated at random, is read right or refused in one sentence of our own.

    python benchmarks/fuzz.py --inputs 100000 --seed 0

Counts, for each format: read right (the change did not matter), refused (an ``OattnError``), foreign (any other
exception), silent (read, but not as it was written) and slow (longer than five seconds).
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oattn_hub.analysis.measure import BatchMeasurement, measure_batch
from oattn_hub.analyzer import Analyzer
from oattn_hub.attention.store import AttentionStore, StoreInfo
from oattn_hub.attention.writer import StoreWriter
from oattn_hub.errors import OattnError
from oattn_hub.files import fingerprint, read_sealed, write_sealed
from oattn_hub.pruning.plan import PruningPlan
from oattn_hub.records import ModelInfo
from oattn_hub.report import Report

SLOW_SECONDS = 5.0
OUTCOMES = ("right", "refused", "foreign", "silent", "slow")


@dataclass(frozen=True)
class Target:
    """A file to damage, and how what it belongs to is read: the reader returns a fingerprint of all that it reads."""

    name: str
    file: Path
    read: Callable[[], str]


def make_targets(folder: Path) -> list[Target]:
    """One small specimen of every format."""
    store = _store(folder / "store")
    report = Analyzer(questionnaire={"n_iters": 1}).run(store)
    report.save(folder / "report")
    plan = folder / "plan.json"
    report.plan(heads=[(0, 1)]).save(plan)
    measured = folder / "measured.safetensors"
    measure_batch(store.tensor(0), report.settings).save(measured)
    write_sealed(folder / "request.json", {"run": "0" * 32})
    tensor = next((folder / "store").glob("batch-*/*.safetensors"))

    def read_store() -> str:
        opened = AttentionStore.open(folder / "store")
        arrays = [np.ascontiguousarray(opened.tensor(batch)) for batch in range(opened.n_batches)]
        heads = [[head.layer, head.layer_name, head.head] for head in opened.heads()]
        return fingerprint(opened.info.to_json(), opened.groups, opened.not_run, heads, *arrays)

    def read_measured() -> str:
        return fingerprint(*(_plain(value) for value in vars(BatchMeasurement.load(measured)).values()))

    return [
        Target("store index", folder / "store/index.json", read_store),
        Target("store tensor", tensor, read_store),
        Target("report.json", folder / "report/report.json", lambda: _read_report(folder / "report")),
        Target("report.safetensors", folder / "report/report.safetensors", lambda: _read_report(folder / "report")),
        Target("run.json", folder / "report/run.json", lambda: _read_report(folder / "report")),
        Target("plan", plan, lambda: fingerprint(PruningPlan.load_file(plan).to_json())),
        Target("measurement", measured, read_measured),
        Target("request", folder / "request.json", lambda: fingerprint(read_sealed(folder / "request.json"))),
    ]


def _store(folder: Path) -> AttentionStore:
    writer = StoreWriter(folder, StoreInfo(ModelInfo("tiny"), ("probs",)), resume=False)
    numbers = np.random.default_rng(0)
    for number in range(2):
        batch = writer.begin_batch()
        for layer in range(2):
            batch.add_layer("encoder", 6, 6, layer, f"layer.{layer}", 3)
            batch.add_heads("encoder", "probs", numbers.random((3, 6, 6), dtype=np.float32))
        writer.finish_batch(batch, f"{number:064x}", [])
    return AttentionStore.open(folder)


def _read_report(folder: Path) -> str:
    report = Report.load(folder)
    return fingerprint(report.fingerprint, report.provenance.to_json())


def _plain(value: Any) -> Any:
    return value if isinstance(value, np.ndarray) else repr(value)


def mutate(content: bytes, dice: random.Random) -> bytes:
    """One to three random changes: of bits, of stretches of bytes, or of the values of a JSON text."""
    for _ in range(dice.choice((1, 1, 2, 3))):
        content = dice.choice(_MUTATIONS)(content, dice)
    return content


def _flip_bit(content: bytes, dice: random.Random) -> bytes:
    if not content:
        return content
    place = dice.randrange(len(content))
    return content[:place] + bytes([content[place] ^ (1 << dice.randrange(8))]) + content[place + 1 :]


def _cut_off(content: bytes, dice: random.Random) -> bytes:
    return content[: dice.randrange(len(content) + 1)]


def _remove(content: bytes, dice: random.Random) -> bytes:
    start = dice.randrange(len(content) + 1)
    return content[:start] + content[start + dice.choice((1, 2, 8, 64, 500)) :]


def _insert(content: bytes, dice: random.Random) -> bytes:
    start = dice.randrange(len(content) + 1)
    return content[:start] + dice.choice((dice.randbytes(8), b"\x00" * 64, b"[" * 3000, b"9" * 5000)) + content[start:]


def _repeat(content: bytes, dice: random.Random) -> bytes:
    start = dice.randrange(len(content) + 1)
    stretch = content[start : start + dice.choice((1, 16, 300))]
    return content[:start] + stretch * dice.choice((2, 10)) + content[start:]


def _length(content: bytes, dice: random.Random) -> bytes:
    """What the first eight bytes of safetensors claim."""
    claim = dice.choice((0, 1, 2**31, 2**63 - 1, 2**64 - 1, len(content), dice.randrange(4000)))
    return claim.to_bytes(8, "little") + content[8:]


def _json_value(content: bytes, dice: random.Random) -> bytes:
    """Another value somewhere in a JSON text, or in the header of a safetensors file."""
    start = 0 if content[:1] == b"{" else 8
    end = len(content) if start == 0 else 8 + int.from_bytes(content[:8], "little")
    try:
        document = json.loads(content[start:end])
        places = list(_places(document))
        container, key = dice.choice(places)
    except (ValueError, IndexError, RecursionError):
        return _flip_bit(content, dice)
    values = (None, True, -1, 0, 2**70, 1e308, "", "x" * 100, "../../x", [], {}, [[]], {"a": 1}, container[key])
    action = dice.randrange(4)
    if action == 0 and isinstance(container, dict):
        del container[key]
    elif action == 1 and isinstance(container, dict):
        container["more"] = container[key]
    else:
        container[key] = dice.choice(values)
    text = json.dumps(document).encode()
    return text if start == 0 else len(text).to_bytes(8, "little") + text + content[end:]


def _places(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield value, key
        yield from _places(item)


_MUTATIONS = (_flip_bit, _flip_bit, _cut_off, _remove, _insert, _repeat, _length, _json_value, _json_value, _json_value)


def try_one(target: Target, content: bytes, expected: str) -> tuple[str, str]:
    """Write the damaged content and read it: the outcome, and what is known about it."""
    target.file.write_bytes(content)
    start = time.perf_counter()
    try:
        outcome = ("right", "") if target.read() == expected else ("silent", "")
    except OattnError as error:
        outcome = ("refused", str(error))
    except Exception:  # what this is looking for
        outcome = ("foreign", traceback.format_exc())
    return ("slow", f"{time.perf_counter() - start:.1f} s") if time.perf_counter() - start > SLOW_SECONDS else outcome


def fuzz(inputs: int, seed: int = 0, show: int = 3) -> dict[str, Counter[str]]:
    """Damage each format in turn; how often each outcome came."""
    dice = random.Random(seed)
    counts: dict[str, Counter[str]] = {}
    folder = Path(tempfile.mkdtemp(prefix="oattn-fuzz-"))
    try:
        targets = make_targets(folder)
        whole = {target.name: target.file.read_bytes() for target in targets}
        expected = {target.name: target.read() for target in targets}
        for number in range(inputs):
            target = targets[number % len(targets)]
            content = mutate(whole[target.name], dice)
            outcome, words = try_one(target, content, expected[target.name])
            counts.setdefault(target.name, Counter())[outcome] += 1
            if outcome not in ("right", "refused") and sum(c[outcome] for c in counts.values()) <= show:
                print(f"{outcome}: {target.name}, input {number}\n{words}")
            target.file.write_bytes(whole[target.name])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return counts


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    start = time.perf_counter()
    counts = fuzz(args.inputs, args.seed)
    print(f"| format | {' | '.join(OUTCOMES)} |\n|---|{'---:|' * len(OUTCOMES)}")
    for name, found in {**counts, "all": sum(counts.values(), Counter())}.items():
        print(f"| {name} | {' | '.join(str(found[outcome]) for outcome in OUTCOMES)} |")
    print(f"{args.inputs} inputs, seed {args.seed}, {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
