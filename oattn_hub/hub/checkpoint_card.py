"""The card of a pruned checkpoint: what the template needs, gathered from the folder that is published."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oattn_hub.cards import render
from oattn_hub.files import read_json
from oattn_hub.hub.card import evaluation_values, hub_id
from oattn_hub.hub.readme import build_readme
from oattn_hub.hub.tasks import task_of_class
from oattn_hub.pruning.words import cost_lines, cost_table, weights_words
from oattn_hub.records import Head
from oattn_hub.report.answer import Removal
from oattn_hub.report.cost import Cost
from oattn_hub.report.findings import at_a_cost, name_heads

if TYPE_CHECKING:
    from oattn_hub.pruning.manifest import Manifest
    from oattn_hub.pruning.plan import PruningPlan
    from oattn_hub.report.evaluation import EvaluationSection
    from oattn_hub.trials.scores import TrialScore

_LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEAD_KEYS = ("num_attention_heads", "n_head", "n_heads", "num_heads")


def checkpoint_readme(
    folder: Path,
    manifest: Manifest,
    *,
    repo_id: str | None = None,
    license: str | None = None,
    evaluation: EvaluationSection | None = None,
    figures: Iterable[str] = (),
    base_model: str | None = None,
) -> str:
    """The README of a checkpoint repo, from its manifest, its config and what was measured.

    ``base_model`` is what the unpruned model is called on the Hub, if it was loaded from elsewhere.
    """
    from oattn_hub.pruning.costs import saving_rows  # needs torch; a report is published without
    from oattn_hub.trials.scores import kept_scores
    from oattn_hub.trials.words import score_cells

    config = read_json(folder / "config.json")
    plan, trials = manifest.plan, kept_scores(folder, manifest)
    base = hub_id(plan.model.id, plan.model.source, base_model)
    removed, total = len(plan.heads), plan.n_heads
    summary = f"{removed} of {total} heads removed, {manifest.variant}" if removed else "no head removed"
    metadata: dict[str, object] = {
        "library_name": _library(manifest),
        **({"base_model": base} if base else {}),
        **({"license": license} if license else {}),
        **_task(manifest),
        "tags": ["oattn_hub", "pruned", "attention-head-pruning"],
        "oattn_hub": {"kind": "checkpoint", "summary": summary},
        **_results(manifest, repo_id, evaluation, trials),
    }
    values = {
        "title": repo_id.split("/")[1] if repo_id else _title(base or plan.model.id, base is not None, removed),
        "base": base_model or plan.model.id or manifest.class_name,
        "removed": removed,
        "n_heads": total,
        "at_a_cost": at_a_cost(Removal.of_plan(plan)),
        "cut": manifest.variant == "cut",
        "stock": manifest.stock,
        "needs_code_because": manifest.needs_code_because,
        "verified": _verified(manifest),
        "outputs_compared": any("outputs" in line for line in _verified(manifest)),
        **_snippets(manifest, config, repo_id or "."),
        "savings": saving_rows(manifest.result),
        "latency": manifest.result.seconds_before is not None,
        "how_chosen": _how_chosen(plan, evaluation),
        "head_map": _head_map(plan.heads, total, config, manifest.stock),
        "removed_by_layer": _by_layer(plan.heads),
        "evaluation": evaluation_values(evaluation, figures) if evaluation else None,
        "ranked": evaluation is not None and plan.score in {score.name for score in evaluation.scores},
        "cost": _cost(plan, evaluation),
        "trials": [score_cells(score) for score in trials],
        "weights_words": weights_words(plan),
        "healed": plan.healing is not None,
        "provenance": _provenance(manifest, license),
    }
    return build_readme(metadata, render("checkpoint.md.j2", values))


def _title(model_id: str, on_hub: bool, removed: int) -> str:
    """Of a folder the last part alone may be just "model"."""
    name = model_id.split("/")[-1] if on_hub else model_id
    return f"{name} without {removed} head{'s' if removed > 1 else ''}" if removed else name


def _library(manifest: Manifest) -> str:
    """What loads it: the library that the base model's card names, or the one it was loaded with."""
    named = manifest.base_card.get("library_name")
    loads = manifest.library if manifest.library in ("transformers", "timm") else "oattn_hub"
    return str(named) if named and loads != "oattn_hub" else loads


def _task(manifest: Manifest) -> dict[str, str]:
    """The base model's task as its card names it, or what its class is for; nothing where neither says it."""
    named = manifest.base_card.get("pipeline_tag")
    task = named or task_of_class(manifest.class_name, manifest.library)
    return {"pipeline_tag": task} if task else {}


def _results(
    manifest: Manifest,
    repo_id: str | None,
    evaluation: EvaluationSection | None,
    trials: Iterable[TrialScore],
) -> dict[str, object]:
    """The measured values in the form that the Hub's metadata and its client know."""
    from huggingface_hub import EvalResult, ModelCardData

    cost, task = manifest.plan.cost, _task(manifest).get("pipeline_tag", "other")
    results = [
        EvalResult(
            task_type=task,
            dataset_type="custom",
            dataset_name=_inputs_of(cost, evaluation),
            metric_type=cost["metric"],
            metric_name=cost["title"],
            metric_value=cost["after"],
        )
        for cost in ([cost] if cost else [])
    ]
    results += [
        EvalResult(
            task_type=task,
            dataset_type=score.dataset or "custom",
            dataset_name=score.task,
            metric_type=score.metric,
            metric_name=f"{score.metric} ({score.tool})",
            metric_value=score.after,
        )
        for score in trials
    ]
    if not results:
        return {}
    name = repo_id or manifest.plan.model.id or manifest.class_name
    data: Any = ModelCardData(model_name=name.split("/")[-1], eval_results=results)
    metrics = list(dict.fromkeys(result.metric_type for result in results))
    return {"metrics": metrics, "model-index": data.to_dict()["model-index"]}


def _cost(plan: PruningPlan, evaluation: EvaluationSection | None) -> dict[str, object] | None:
    """What the removal was measured to cost, and how sure that is."""
    cost = plan.cost
    if not cost:
        return None
    columns, rows = cost_table(plan)
    lines = cost_lines(plan)
    if "verified_on" not in cost:
        lines += [_uncertainty(plan, cost, evaluation), f"Measured on {_inputs_of(cost, evaluation)}."]
    known = [line for line in lines if line]
    return {"columns": columns, "rows": rows, "lines": known, "intervals": "at most" in columns}


def _uncertainty(plan: PruningPlan, cost: Cost, evaluation: EvaluationSection | None) -> str:
    """The interval at the nearest measured fraction, if there is one, for a plan that was not verified."""
    if not evaluation or plan.score not in {score.name for score in evaluation.scores}:
        return ""
    curve = evaluation.score(plan.score).curves.get(cost["metric"])
    share = len(plan.heads) / plan.n_heads
    nearest = min(range(len(evaluation.fractions)), key=lambda i: abs(evaluation.fractions[i] - share))
    if not curve or abs(evaluation.fractions[nearest] - share) >= 0.01:
        return ""
    interval = f"{curve.low[nearest]:.4g} to {curve.high[nearest]:.4g}"
    return f"After the removal the 95 % interval over inputs is {interval}."


def _inputs_of(cost: Cost, evaluation: EvaluationSection | None) -> str:
    if "verified_on" in cost:
        return cost["verified_on"]
    if evaluation and evaluation.evaluation_fingerprint == cost["inputs"]:
        return evaluation.evaluation
    return f"inputs with the SHA-256 {cost['inputs'][:16]}…"


def _verified(manifest: Manifest) -> list[str]:
    """What the checkpoint was loaded with and compared on before it was published; empty if it was not."""
    return [f"`{loader}`: {what}" for loader, what in (manifest.verified or {}).items()]


def _snippets(manifest: Manifest, config: Mapping[str, Any], place: str) -> dict[str, str]:
    ours = f'import oattn_hub as oh\n\nmodel = oh.from_pretrained("{place}")'
    cut = manifest.variant == "cut" and not manifest.stock
    plain = ""
    if manifest.library == "transformers":
        # readers copy these lines: nothing but a name of a class may come into them out of a file
        autos = [auto for auto in config.get("auto_map", {}) if auto != "AutoConfig" and auto.isidentifier()]
        auto = next(iter(autos), None) if cut else manifest.class_name
        trust = ", trust_remote_code=True" if cut else ""
        if auto:
            plain = f'from transformers import {auto}\n\nmodel = {auto}.from_pretrained("{place}"{trust})'
    elif manifest.library == "timm" and not cut:
        spec = f"hf-hub:{place}" if place != "." else "local-dir:."
        plain = f'import timm\n\nmodel = timm.create_model("{spec}", pretrained=True).eval()'
    return {"snippet": ours, "plain_snippet": plain}


def _how_chosen(plan: PruningPlan, evaluation: EvaluationSection | None) -> str:
    if plan.score == "by hand":
        return "The heads were named by hand."
    how = plan.chosen_by
    tried = f" {plan.evaluations} masked models were evaluated for this." if plan.evaluations else ""
    if "max_loss_increase" in how:
        limit = how["max_loss_increase"]
        allowed = f"at most {limit:g}" if how["metric"] == "divergence" else f"at most {100 * limit:g} % worse"
        measured = plan.cost["title"] if plan.cost else how["metric"]
        reason = f"as many as keep the {measured} {allowed}"
    else:
        reason = f"the {100 * how['fraction']:g} % lowest" if "fraction" in how else "named one by one"
    kept = how.get("alignment_heads")
    stay = f" Heads that times of words are read off stay: {name_heads(kept, most=40)}." if kept else ""
    best = ", the score that was measured to cost least on this model" if how.get("score_by") == "measured" else ""
    ranking = how.get("ranking", "") if plan.score == "search" else plan.score
    if plan.score == "search" or ranking in _PREDICTED:
        predicted = _PREDICTED.get(ranking, f"were lowest by {ranking}")
        share = f"{100 * how['fraction']:g} % of all heads{best}" if "fraction" in how else reason
        searched = f"The {_units(how)} were searched for in rounds. Each round removed those that {predicted}"
        return f"{searched}: {share}.{stay}{tried}"
    titles = {score.name: score.title for score in evaluation.scores} if evaluation else {}
    ranked = titles.get(plan.score, plan.score)
    return f"The {_units(how)} were ranked by {ranked}{best}; {reason} went.{stay}{tried}"


# how a search ranks the heads it removes next, for the model as it is at that step
_PREDICTED = {
    "fisher": "were predicted to cost least, by gradients of the cost along what removal and refit change",
    "obs": "move the output of their layer least once the layer is refitted",
}


def _units(how: Mapping[str, Any]) -> str:
    """What went as a whole, and in which shape."""
    unit = {"groups": "key/value groups", "layers": "attention layers"}.get(how.get("unit", ""), "heads")
    shape = {"even": ", equally many of every key/value group of a layer,", "uniform": ", equally many in every layer,"}
    return unit + shape.get(how.get("shape", ""), "")


def _command(plan: PruningPlan) -> str:
    """What makes this checkpoint again from the model's report."""
    how, lengths = plan.chosen_by, (plan.cost or {}).get("lengths", [])
    score = None if plan.score in ("search", "by hand") else plan.score
    options: dict[str, Any] = {}
    if "max_loss_increase" in how:
        options |= {"budget": f"{how['max_loss_increase']:g}", "metric": how["metric"], "score": score}
    elif "fraction" in how:
        options |= {"fraction": f"{how['fraction']:g}", "score": score}
    else:
        options["heads"] = _named(plan.heads)
    options |= {
        "unit": how.get("unit"),
        "shape": how.get("shape"),
        "min-heads-per-layer": how.get("min_heads_per_layer"),
        "keep": _named(how.get("keep", ())),
        "compensate": plan.compensation["kind"] if plan.compensation else None,
        "lengths": ",".join(str(look["tokens"]) for look in lengths if look.get("tokens")),
    }
    return " ".join(["oattn prune REPORT", *(f"--{name} {value}" for name, value in options.items() if value)])


def _named(heads: Iterable[Head]) -> str:
    return ",".join(f"{layer}.{head}" for layer, head in heads)


def _by_layer(heads: Iterable[Head]) -> list[tuple[int, list[int]]]:
    layers: dict[int, list[int]] = {}
    for layer, head in heads:
        layers.setdefault(layer, []).append(head)
    return sorted(layers.items())


def _head_map(heads: Iterable[Head], total: int, config: Mapping[str, Any], stock: bool = False) -> str:
    """Layers as lines and heads as signs, where the config says that all layers are alike."""
    layers = next((config[key] for key in _LAYER_KEYS if isinstance(config.get(key), int)), 0)
    per_layer = next((config[key] for key in _HEAD_KEYS if isinstance(config.get(key), int)), 0)
    if stock and layers:  # its config has the number of heads that is left
        per_layer = total // layers
    if layers * per_layer != total:
        return ""
    removed = set(heads)
    width = len(str(layers - 1))
    lines = ("".join("X" if (layer, head) in removed else "·" for head in range(per_layer)) for layer in range(layers))
    return "\n".join(f"{layer:>{width}}  {line}" for layer, line in enumerate(lines))


def _provenance(manifest: Manifest, license: str | None) -> list[tuple[str, str]]:
    plan = manifest.plan
    packages = ["torch", *([manifest.library] if manifest.library in ("transformers", "timm") else [])]
    versions = [f"oattn_hub {manifest.oattn_hub}", *(f"{name} {version(name)}" for name in packages)]
    return [
        ("base model", plan.model.id or "a model object"),
        ("revision of the base model", plan.model.revision or "not known"),
        ("licence of the base model", license or "not stated by the model"),
        ("class", manifest.class_name),
        ("score", plan.score),
        ("chosen by", f"`{json.dumps(plan.chosen_by)}`"),
        ("command", f"`{_command(plan)}`"),
        ("fingerprint of the heads' layout", plan.structure),
        ("versions", ", ".join(versions)),
    ]
