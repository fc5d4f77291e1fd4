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
import torch
from safetensors.torch import load_file
from transformers import BertConfig, BertModel

from oattn_hub.analysis.axes import read_contexts
from oattn_hub.analysis.measure import BatchMeasurement, measure_batch
from oattn_hub.analyzer import Analyzer
from oattn_hub.attention.store import AttentionStore, StoreInfo
from oattn_hub.attention.writer import StoreWriter
from oattn_hub.errors import OattnError
from oattn_hub.files import fingerprint, read_json, read_sealed, write_sealed
from oattn_hub.files.documents import SEAL, blamed_on, sealed
from oattn_hub.hub.push import card_of
from oattn_hub.pruning import checks
from oattn_hub.pruning.compensate import Refit
from oattn_hub.pruning.manifest import read_manifest
from oattn_hub.pruning.plan import PruningPlan
from oattn_hub.pruning.refits import read_refits, write_refits
from oattn_hub.records import ModelInfo
from oattn_hub.report import Report
from oattn_hub.report.contexts import Axis, Context
from oattn_hub.report.findings import answer_sentences, entropy_sentences
from oattn_hub.sweep.listing import ModelJob
from oattn_hub.sweep.state import Options, Status, SweepFolder, read_status

SLOW_SECONDS = 5.0
OUTCOMES = ("right", "refused", "foreign", "silent", "slow")


@dataclass(frozen=True)
class Target:
    """A file to damage, and how what it belongs to is read: the reader returns a fingerprint of all that it reads."""

    name: str
    file: Path
    read: Callable[[], str]
    also_right: str = ""  # what a damaged file may be read as: one that is not there
    resealed: bool = False  # as by an attacker, whose file has a seal that fits: whatever it then says is read right


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
    kept = Context(0, (Axis("input_ids", "text", 6, tokens=tuple("abcdef")),))
    write_sealed(folder / "store/contexts.json", {"contexts": [kept.to_json()]})
    sweep, job = SweepFolder(folder / "sweep"), ModelJob("me/model")
    sweep.agree(Options())
    sweep.write(job, Status("me/model", "failed", 2, "no network", True))
    write_refits(folder / "refits.safetensors", {"layer.0": Refit(torch.eye(4), torch.ones(4))})
    pruned = _checkpoint(folder / "pruned")
    tensor = next((folder / "store").glob("batch-*/*.safetensors"))

    def read_measured() -> str:
        return fingerprint(*(_plain(value) for value in vars(BatchMeasurement.load(measured)).values()))

    def read_status_file() -> str:
        return fingerprint((read_status(sweep.folder(job)) or Status("none")).to_json())

    def read_options() -> str:
        return fingerprint(sweep.agree(Options()))

    def read_kept_refits() -> str:
        refits = read_refits(folder / "refits.safetensors")
        return fingerprint(*(part for name in refits for part in (name, *map(_numbers, vars(refits[name]).values()))))

    checkpoint = [
        Target(f"checkpoint {name}", pruned / name, lambda: _read_checkpoint(pruned))
        for name in ("oattn_pruned.json", "config.json", "model.safetensors")
    ]
    none = fingerprint(Status("none").to_json())
    return [
        *checkpoint,
        Target("kept contexts", folder / "store/contexts.json", lambda: _read_contexts(folder / "store")),
        Target("sweep status", sweep.folder(job) / "status.json", read_status_file, also_right=none),
        Target("sweep options", folder / "sweep/sweep.json", read_options),
        *_hostile_targets(folder, pruned, sweep.folder(job)),
        Target("refits", folder / "refits.safetensors", read_kept_refits),
        Target("store index", folder / "store/index.json", lambda: _read_store(folder)),
        Target("store tensor", tensor, lambda: _read_store(folder)),
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


def _hostile_targets(folder: Path, pruned: Path, swept: Path) -> list[Target]:
    """Files that an attacker wrote and sealed, and what is done with what they say."""

    def use_report() -> str:
        report = Report.load(folder / "report")
        sentences = [*answer_sentences(report), *entropy_sentences(report)]
        plan = report.plan(heads=[(head.layer, head.head) for head in report.heads[:1]])
        return fingerprint(sentences, repr(report.table()), plan.to_json())

    def use_plan() -> str:
        plan = PruningPlan.load_file(folder / "plan.json")
        return fingerprint([plan.fraction, plan.model.loading_options, plan.to_json()])

    return [
        Target("report.json, sealed again", folder / "report/report.json", use_report, resealed=True),
        Target("plan, sealed again", folder / "plan.json", use_plan, resealed=True),
        Target("manifest, sealed again", pruned / "oattn_pruned.json", lambda: card_of(pruned), resealed=True),
        Target("store index, sealed again", folder / "store/index.json", lambda: _read_store(folder), resealed=True),
        Target("sweep status, sealed again", swept / "status.json", lambda: str(read_status(swept)), resealed=True),
    ]


def _read_store(folder: Path) -> str:
    opened = AttentionStore.open(folder / "store")
    arrays = [np.ascontiguousarray(opened.tensor(batch)) for batch in range(opened.n_batches)]
    heads = [[head.layer, head.layer_name, head.head] for head in opened.heads()]
    return fingerprint(opened.info.to_json(), opened.groups, opened.not_run, heads, *arrays)


def _checkpoint(folder: Path) -> Path:
    """A pruned checkpoint of a tiny BERT."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = BertConfig(vocab_size=8, max_position_embeddings=8, **sizes)
    model = BertModel(config).eval()
    PruningPlan.from_heads(model, [(0, 1)]).apply(model, measure=False).save_pretrained(folder)
    return folder


def _read_checkpoint(folder: Path) -> str:
    """All that the loader reads of a checkpoint before it builds the model; the model itself is too slow to build."""
    manifest = read_manifest(folder)
    config = read_json(folder / "config.json")
    with blamed_on(folder):
        checks.check_cuts(config.get("oattn_pruning"), manifest.plan.heads)
    return fingerprint(manifest.to_json(), config, *map(_numbers, load_file(folder / "model.safetensors").values()))


def _read_contexts(folder: Path) -> str:
    return fingerprint([context.to_json() for context in read_contexts(folder)])


def _numbers(value: Any) -> Any:
    return value.numpy() if isinstance(value, torch.Tensor) else value


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


def reseal(content: bytes, dice: random.Random) -> bytes:
    """Other values in a sealed JSON text, under a seal that fits."""
    for _ in range(dice.choice((1, 1, 2, 3))):
        content = _json_value(content, dice)
    document = {name: value for name, value in json.loads(content).items() if name != SEAL}
    return json.dumps(sealed(document)).encode()


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
        found = target.read()
        outcome = ("right", "") if target.resealed or found in (expected, target.also_right) else ("silent", "")
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
            content = reseal(whole[target.name], dice) if target.resealed else mutate(whole[target.name], dice)
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
