"""Which models are served: every transformers model type and timm family, tiny, captured, verified and cut.

    python benchmarks/model_coverage.py [--only PATTERN] [--library transformers|timm] [--json FILE] [--out FILE]

Truth for capture: the same weights with eager attention and ``output_attentions``. Truth for a cut: the masked model.
Truth for a saved checkpoint: the cut model in memory. Results are lines of the JSON file; a run that was stopped goes
on where it was.
"""

from __future__ import annotations

import argparse
import copy
import fnmatch
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parent))
SECONDS = 90  # of work for one type
MEMORY = 8 << 30  # bytes of address space


class OutOfTime(BaseException):
    """A type took too long; not an Exception, since those are caught on the way."""


def tensors(output: Any) -> list[Any]:
    """All tensors of a model's output."""
    import torch
    from torch.utils._pytree import tree_leaves

    plain = output
    if hasattr(output, "items"):  # weights that are returned have fewer heads after a cut
        plain = [value for name, value in output.items() if "attention" not in name]
    return [leaf for leaf in tree_leaves(plain) if isinstance(leaf, torch.Tensor)]


def difference(one: Any, other: Any) -> float:
    """The largest difference between two outputs, by the size of the output."""
    worst = 0.0
    for a, b in zip(tensors(one), tensors(other), strict=True):
        if a.is_floating_point() and a.numel():
            scale = max(float(a.abs().max()), 1e-6)
            worst = max(worst, float((a - b).abs().max()) / scale if a.shape == b.shape else float("inf"))
    return worst


def captured(model: Any, inputs: dict[str, Any], result: dict[str, Any]) -> Any:
    """Capture one forward call; the output must be bit-identical."""
    import torch

    import oattn_hub as oh
    from oattn_hub.attention import MemoryStore

    store = MemoryStore()
    with torch.no_grad():
        before = call(model, inputs)
        with oh.adapt(model).hook(store):
            after = call(model, inputs)
    same = [torch.equal(a, b) for a, b in zip(tensors(before), tensors(after), strict=True)]
    result["bit_identical"] = all(same)
    result["adapter"] = oh.adapt(model).name
    result["layers"] = len(oh.adapt(model).sites)
    result["left_out"] = len(oh.adapt(model).left_out)
    return store


def call(model: Any, inputs: dict[str, Any]) -> Any:
    """Run a model, always with the same random numbers; timm takes its image by position."""
    import torch

    torch.manual_seed(0)
    return model(*inputs.values()) if "x" in inputs else model(**inputs)


def verified(model: Any, inputs: dict[str, Any], store: Any) -> str:
    """Whether all attention is in the store: what the model returns, and what it multiplies its values with."""
    import torch
    from attention_truth import ValueProducts, missing_products, planes_of

    import oattn_hub as oh

    adapter, products = oh.adapt(model), ValueProducts()
    with torch.no_grad(), products.without(model.get_submodule(name) for name in adapter.left_out), products:
        call(model, inputs)
    counts = {site.n_heads for site in adapter.sites}
    lost = missing_products(products.weights, planes_of(store), counts)
    if lost:
        return f"gap: {lost} of {len(products.weights)} products with values are not in the store"
    own = as_returned(model, inputs, store)
    if own.startswith("no truth") and products.weights:
        return f"equal by its values ({len(products.weights)} products; {own})"
    return own


def as_returned(model: Any, inputs: dict[str, Any], store: Any) -> str:
    """Whether each of the model's own attention weights, as it returns them with eager attention, is in the store."""
    import torch
    from attention_truth import is_distribution, is_in, means, means_of_layers, planes_of, returned_weights

    import oattn_hub as oh
    from oattn_hub.attention import MemoryStore

    own = MemoryStore()
    try:
        eager = with_eager_attention(model)
        with torch.no_grad():
            plain, same = call(model, inputs), call(eager, inputs)
            with oh.adapt(eager).hook(own):
                output = call(eager, {**inputs, "output_attentions": True, "return_dict": True})
    except Exception as error:
        return f"no truth ({type(error).__name__})"
    returned = returned_weights(output)
    if returned and not all(is_distribution(weights) for weights in returned):
        return "no truth (what it returns as attention are not weights)"
    if not returned:
        return "no truth (returns no weights)"
    other = difference(plain, same) > 1e-3  # the two implementations of the model do not compute the same
    planes = planes_of(own if other else store)
    planes += means_of_layers(planes, {site.n_heads for site in oh.adapt(model).sites})
    found = [
        any(all(any(is_in(head, mine) for mine in planes) for head in heads) for heads in means(weights))
        for weights in returned
    ]
    if not all(found):
        return f"{found.count(False)} of {len(found)} returned weights differ"
    return "equal (eager and default attention of the model differ)" if other else "equal"


def with_eager_attention(model: Any) -> Any:
    """The same weights in a model whose attention is computed step by step."""
    config = copy.deepcopy(model.config)
    config._attn_implementation = "eager"
    eager = type(model)(config).eval()
    eager.load_state_dict(model.state_dict())
    return eager.to(next(model.parameters()).dtype)


def cut_and_compared(model: Any, inputs: dict[str, Any], result: dict[str, Any]) -> str:
    """Cut a head of every layer with several, and compare with the masked model."""
    import torch

    import oattn_hub as oh
    from oattn_hub.pruning.masks import masked

    sites = [site for site in oh.adapt(model).sites if site.n_heads > 1]
    if not sites:
        return "no layer has several heads"
    heads = [(site.layer, site.n_heads - 1) for site in sites]
    before = weights_of(model)
    try:
        smaller = oh.PruningPlan.from_heads(model, heads).apply(model, inputs=[inputs], measure=False)
    finally:
        result["left_as_it_was"] = weights_of(model) == before
    with torch.no_grad():
        plain = call(model, inputs)
        with masked(model, heads):
            expected = call(model, inputs)
        found = call(smaller.model, inputs)
    if difference(plain, expected) == 0:
        return "masking changes nothing"
    result["reloaded"] = attempt(lambda: reloaded_and_compared(smaller, inputs))
    return "equal" if difference(expected, found) <= 1e-4 else f"differs by {difference(expected, found):.2g}"


def weights_of(model: Any) -> dict[str, tuple[Any, ...]]:
    """Shape, version and a sum of every parameter: what a cut that failed must not have touched."""
    return {name: (tuple(p.shape), float(p.detach().double().nansum())) for name, p in model.named_parameters()}


def reloaded_and_compared(pruned: Any, inputs: dict[str, Any]) -> str:
    """Save a cut model, load it again, and compare the outputs."""
    import torch

    import oattn_hub as oh
    from oattn_hub.pruning import proof

    arguments = {}
    if "x" in inputs and inputs["x"].shape[1:] != torch.Size(pruned.model.pretrained_cfg["input_size"]):
        arguments = {"model_args": {"img_size": inputs["x"].shape[-1]}}  # as build_timm made it
    # proved by our loader only: a fresh process for each type would take most of the time
    with tempfile.TemporaryDirectory() as folder, patch.object(proof, "stock_loader", lambda *_: None):
        pruned.save_pretrained(f"{folder}/cut", **arguments)
        again = oh.from_pretrained(f"{folder}/cut")
        again = getattr(again, "model", again) if not isinstance(again, type(pruned.model)) else again
    with torch.no_grad():
        worst = difference(call(pruned.model, inputs), call(again.eval(), inputs))
    return "equal" if worst <= 1e-5 else f"differs by {worst:.2g}"


def measure(kind: str, name: str) -> dict[str, Any]:
    """Everything about one type."""
    from tiny_models import build, build_timm

    result: dict[str, Any] = {"library": kind, "name": name}
    try:
        model, inputs = build(name) if kind == "transformers" else build_timm(name)
    except Exception as error:
        return {**result, "built": f"{type(error).__name__}: {error}"[:300]}
    result.update(built="yes", architecture=type(model).__name__, inputs=sorted(inputs))
    stores: list[Any] = []
    result["captured"] = attempt(lambda: stores.append(captured(model, inputs, result)) or "yes")
    if stores:
        result["verified"] = attempt(lambda: verified(model, inputs, stores[0]))
        result["cut"] = attempt(lambda: cut_and_compared(model, inputs, result))
    return result


def attempt(run: Any) -> Any:
    """What a step returns, or why it failed; an exception that is not ours is marked."""
    from oattn_hub.errors import OattnError

    folders = re.escape(tempfile.gettempdir()) + r"/[^/\s]+/"  # of this machine
    try:
        return run()
    except OattnError as error:
        return re.sub(folders, "", f"refused: {error}")[:300]
    except Exception as error:
        return re.sub(folders, "", f"FOREIGN {type(error).__name__}: {error}")[:300]


def _worker(names: list[tuple[str, str]]) -> None:
    """Measure some types in this process, a line of JSON for each."""
    import resource

    import torch
    import transformers

    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    def stop(*_: Any) -> None:
        raise OutOfTime(f"longer than {SECONDS} s")

    signal.signal(signal.SIGPROF, stop)  # seconds of work, not of the clock: the machine may be busy
    for kind, name in names:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            result = measure(kind, name)
        except OutOfTime as error:
            result = {"library": kind, "name": name, "built": str(error)}
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(result), flush=True)


def all_names(library: str, pattern: str) -> list[tuple[str, str]]:
    """(library, name) of everything that is tried."""
    from tiny_models import timm_names
    from transformers import CONFIG_MAPPING

    found = [("transformers", name) for name in sorted(CONFIG_MAPPING.keys())] if library != "timm" else []
    found += [("timm", name) for name in timm_names()] if library != "transformers" else []
    return [(kind, name) for kind, name in found if any(fnmatch.fnmatch(name, part) for part in pattern.split(","))]


PER_PROCESS = 25  # types measured by one process: memory and imported modules add up


def run_all(names: list[tuple[str, str]], file: Path) -> list[dict[str, Any]]:
    """Measure what the file has no line for yet, in processes of their own; a type that kills one is noted."""
    results = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {(result["library"], result["name"]) for result in results}
    left = [name for name in names if tuple(name) not in done]
    with file.open("a") as log:
        while left:
            count = 0
            for result in _measured_apart(left[:PER_PROCESS]):
                log.write(json.dumps(result) + "\n")
                log.flush()
                results.append(result)
                count += 1
            left = left[count:]
    wanted = {tuple(name) for name in names}
    return sorted((r for r in results if (r["library"], r["name"]) in wanted), key=lambda r: (r["library"], r["name"]))


def _measured_apart(names: list[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """What a process of its own measures, line by line; the type that kills it is the last."""
    command = [sys.executable, __file__, "--worker", json.dumps(names)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    left = list(names)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as worker:
        assert worker.stdout is not None
        for line in worker.stdout:
            if line.startswith("{"):
                left.pop(0)
                result = json.loads(line)
                print(summary(result), file=sys.stderr, flush=True)
                yield result
    if left:
        yield {"library": left[0][0], "name": left[0][1], "built": "the process died"}


def summary(result: dict[str, Any]) -> str:
    """One line about one type."""
    steps = ("name", "adapter", "built", "captured", "verified", "cut", "reloaded")
    return " | ".join(str(result.get(step, ""))[:120] for step in steps)


def main() -> None:
    """Measure, print the totals, and write the table if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*")
    parser.add_argument("--library", default="both")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--out")
    parser.add_argument("--worker")
    args = parser.parse_args()
    if args.worker:
        _worker(json.loads(args.worker))
        return
    with tempfile.TemporaryDirectory() as folder:
        results = run_all(all_names(args.library, args.only), args.json or Path(folder, "results.jsonl"))
    if args.out:
        Path(args.out).write_text(table(results))
    print(totals(results))


_STEPS = ("captured", "verified", "cut", "reloaded")
_HOW = """Verified means: every attention weight that the model returns with eager attention is in the capture to 1e-4,
and so is every matrix that values are multiplied with while it runs, seen without the capture's own code
(`benchmarks/attention_truth.py`): fused kernels are asked again with unit vectors as values, so that their output is
the weights; in plain code it is every operand of a product whose rows are distributions. "By its values" is the second
alone, for models that return no weights.

Every type of transformers is tried with a tiny model of random weights; timm by the smallest model of every family
whose attention is built differently. One head of every layer is cut at once, so one layer that cannot be cut refuses
the type. What is refused at saving leaves nothing on the disk."""


def table(results: list[dict[str, Any]]) -> str:
    """docs/coverage.md: the totals, and a line for every type."""
    import timm
    import transformers

    built = [result for result in results if result["built"] == "yes"]
    made = "Made by `python benchmarks/model_coverage.py --out docs/coverage.md`"
    of = f"with transformers {transformers.__version__} and timm {timm.__version__}"
    lines = ["# Which models are served", "", f"{made} {of}.", _HOW, ""]
    columns = [counts([r for r in results if r["library"] == library]) for library in ("transformers", "timm")]
    lines += ["| | transformers | timm |", "|---|---|---|"]
    lines += [f"| {what} | {columns[0][what]} | {columns[1][what]} |" for what in columns[0]]
    lines += ["", "| type | class | adapter | captured | verified | cut | reloaded |", "|---|---|---|---|---|---|---|"]
    for result in built:
        cells = [result["name"], result["architecture"], result.get("adapter", "")]
        cells += [" ".join(str(result.get(step, "")).split())[:160].replace("|", "/") for step in _STEPS]
        lines.append("| " + " | ".join(cells) + " |")
    no_model = [result["name"] for result in results if result["built"].startswith("NotAModel")]
    lines += ["", f"Only parts of other types' configs: {', '.join(no_model)}."]
    names = ", ".join(
        result["name"] for result in results if result["built"] != "yes" and result["name"] not in no_model
    )
    return "\n".join([*lines, "", f"Could not be built by the rules of `benchmarks/tiny_models.py`: {names}.", ""])


def counts(results: list[dict[str, Any]]) -> dict[str, int]:
    """How many types came how far."""
    built = [result for result in results if result["built"] == "yes"]
    attending = [result for result in built if "has no attention" not in result["captured"]]
    by_values = _count(attending, "verified", "equal by its values")
    return {
        "tried": len(results),
        "built, and ran": len(built),
        "with attention between tokens": len(attending),
        "captured": _count(attending, "captured", "yes"),
        "captured and verified": _count(attending, "verified", "equal"),
        "- by the weights that the model returns": _count(attending, "verified", "equal") - by_values,
        "- by its values": by_values,
        "captured, and nothing to compare with": _count(attending, "verified", "no truth"),
        "silent gaps (values multiplied with weights that were not captured)": _count(attending, "verified", "gap"),
        "capture refused with a sentence of ours": _count(attending, "captured", "refused"),
        "cut, and equal to the masked model": _count(attending, "cut", "equal"),
        "cut refused with a sentence of ours": _count(attending, "cut", "refused"),
        "cut, saved and loaded again with equal outputs": _count(attending, "reloaded", "equal"),
        "cut, but saving refused with a sentence of ours": _count(attending, "reloaded", "refused"),
        "saved, and loaded again with other outputs": _count(attending, "reloaded", "differs"),
        "returned weights that were not found in the capture, or a cut that differs": sum(
            str(result.get(step, "")).startswith(tuple("0123456789dm")) for result in built for step in _STEPS[:3]
        ),
        "foreign exceptions": sum("FOREIGN" in str(result) for result in built),
    }


def _count(results: list[dict[str, Any]], step: str, word: str) -> int:
    return sum(str(result.get(step, "")).startswith(word) for result in results)


def totals(results: list[dict[str, Any]]) -> str:
    """How many of each, by cause."""
    built = [result for result in results if result["built"] == "yes"]
    words = [
        (
            result["captured"].split(":")[0],
            result.get("verified", "").split(" (")[0],
            result.get("cut", "").split(":")[0],
        )
        for result in built
    ]
    lines = [f"{len(built)} of {len(results)} built"]
    return "\n".join(lines + [f"{count:4} {' / '.join(word)[:150]}" for word, count in Counter(words).most_common()])


if __name__ == "__main__":
    main()
