"""Put a report to the test: regularity and stability of its low heads, and their removal against random draws."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import numpy as np
from numpy.typing import NDArray

from oattn_hub.analysis.validity import domain_agreement, regularity
from oattn_hub.analyzer import Analyzer
from oattn_hub.errors import InvalidInput
from oattn_hub.geometry.agreement import FEWEST_BATCHES
from oattn_hub.inputs import CalibrationInputs
from oattn_hub.inputs.types import Data
from oattn_hub.models.options import LoadAgain
from oattn_hub.models.placement import cuda_of
from oattn_hub.progress import Progress, silent
from oattn_hub.pruning.evaluation import Evaluator, disjoint_inputs, load_subject
from oattn_hub.pruning.sites import check_report, head_sites
from oattn_hub.pruning.tasks import Metric, Task, find_task
from oattn_hub.report.validation import (
    OWN,
    BetweenDomains,
    Domain,
    Regularity,
    RemovalTrial,
    ValidationSection,
    WithinDomain,
    removable_counts,
)

if TYPE_CHECKING:
    from oattn_hub.models.load import LoadedModel, Source
    from oattn_hub.records import Head
    from oattn_hub.report import Report
    from oattn_hub.report.group import GroupResult

REMOVE = (1, 2, 3, 4, 5)
_REGULAR_INPUTS = 4  # exponents of single inputs scatter less than heads do
_BOOTSTRAP = 2000
Values = NDArray[np.float64]


def validate(
    report: Report,
    model: Source | None = None,
    domains: Sequence[Data] | None = None,
    *,
    batches: int = 20,
    remove: Sequence[int] = REMOVE,
    draws: int = 20,
    inputs: int = 16,
    seed: int = 0,
    adapter: str | None = None,
    progress: Progress = silent,
    **permissions: Unpack[LoadAgain],
) -> ValidationSection:
    """Check what a report says about its low heads: are they regular, stable, and cheap to lose?

    Args:
        report: The report to check; its ranking says which heads are lowest.
        model: A module, a loaded model or a spec; None loads the report's model.
        domains: Data of different kinds, each as ``analyze`` takes it; None takes the bundled data. One half of each
            ranks heads again, the other measures costs.
        batches: Inputs of each domain that rank the heads.
        remove: How many of the lowest heads to remove, one trial for each number.
        draws: Random sets to compare each trial with.
        inputs: Inputs that costs are measured on, over all domains.
        seed: Of inputs, draws and bootstrap.
        adapter: Name of the adapter, if the model's own choice is not wanted.
        progress: Called with each stage.
        permissions: What only the caller may grant to load the model: ``trust_remote_code``, ``token`` …
    """
    counts = _checked(report, domains, batches, remove, draws, inputs)
    loaded = load_subject(report, model, **permissions)
    given = list(domains) if domains is not None else [None]
    each = -(-inputs // len(given))
    tokens = report.settings.tokens
    halves = [disjoint_inputs(loaded, None, data, batches, each, tokens, seed) for data in given]
    _check_different(halves)
    names = _names(given)
    analyzer = _as_before(report, seed, adapter, cuda_of(loaded.model), progress)
    ranked = [_rank(analyzer, loaded, seen, report, first=not number) for number, (seen, _) in enumerate(halves)]
    check_report(head_sites(loaded.model, adapter), report)  # known by now: some attention is only seen when it runs
    own = Domain(OWN, report.provenance.data, report.provenance.data_fingerprint, report.settings.batches)
    others = [Domain(name, s.description, s.fingerprint, len(s)) for name, (s, _) in zip(names, halves, strict=True)]
    within, between = _agreements(report, dict(zip(names, ranked, strict=True)), seed)
    held_out = _joined([held for _, held in halves])
    return ValidationSection(
        domains=(own, *others),
        within=within,
        between=between,
        regularity=ranked[0].regularity,
        removals=tuple(_trials(report, loaded, held_out, counts, draws, seed, adapter, progress)),
        fraction=report.settings.fraction,
        evaluation=held_out.description,
        evaluation_fingerprint=held_out.fingerprint,
        n_inputs=len(held_out),
        seed=seed,
    )


def _checked(
    report: Report, domains: Sequence[Data] | None, batches: int, remove: Sequence[int], draws: int, inputs: int
) -> list[int]:
    """The numbers of heads to remove, after refusing what cannot be a check."""
    if isinstance(domains, str | Path | CalibrationInputs) or (domains is not None and len(domains) == 0):
        raise InvalidInput(f"domains is {domains!r}; give a list of one or more data sets, such as ['a.txt', 'b.txt'].")
    if batches < FEWEST_BATCHES:
        raise InvalidInput(f"batches is {batches}; with fewer than {FEWEST_BATCHES} stability is not known. Give 20.")
    if draws < 5:
        raise InvalidInput(f"draws is {draws}; random removal needs at least 5 to be a comparison.")
    if inputs < 2:
        raise InvalidInput(f"inputs is {inputs}; an interval over inputs needs at least 2.")
    return removable_counts(remove, report)


def _check_different(halves: Sequence[tuple[CalibrationInputs, CalibrationInputs]]) -> None:
    fingerprints = [seen.fingerprint for seen, _ in halves]
    if len(set(fingerprints)) < len(fingerprints):
        raise InvalidInput("Two of the domains are the same data, which would agree by itself. Name each once.")


def _names(given: Sequence[Data]) -> list[str]:
    """What the domains are called: a file by its name, without the way to it; others by their number."""
    names = []
    for number, data in enumerate(given):
        if data is None:
            names.append("the bundled data")
            continue
        name = Path(data).name if isinstance(data, str | Path) else f"domain {number + 1}"
        names.append(name if name not in names else f"{name} ({number + 1})")
    return names


# ---------------------------------------------------------------- ranking heads again


@dataclass(frozen=True, eq=False)
class _Ranked:
    """One domain measured: entropies of each group (inputs, heads), and exponents of the first domain only."""

    entropies: Mapping[str, Values]
    regularity: tuple[Regularity, ...]


def _as_before(report: Report, seed: int, adapter: str | None, device: str | None, progress: Progress) -> Analyzer:
    """An analyzer that measures as the report's did, on other inputs, and where the model is if that is a GPU."""
    done = report.settings
    return Analyzer(
        done.kind,
        seed,
        done.questionnaire,
        adapter=adapter,
        landmarks=done.landmarks,
        device=device,
        progress=progress,
    )


def _rank(analyzer: Analyzer, loaded: LoadedModel, inputs: CalibrationInputs, report: Report, first: bool) -> _Ranked:
    with tempfile.TemporaryDirectory(prefix="oattn-") as folder:
        store = analyzer.capture(loaded, inputs, folder)
        measured = analyzer.measure(store)
        if set(measured) != set(report.groups):
            raise InvalidInput(
                f"These inputs have the groups {sorted(measured)}, the report has {sorted(report.groups)}. Give the "
                "model and the kind of data that the report was made from."
            )
        found = []
        for name, batches in measured.items() if first else ():
            some = store.batches(name)[:_REGULAR_INPUTS]
            tensors = [store.tensor(batch, analyzer.kind, name) for batch in some]
            keys = [(place.layer, place.head) for place in store.heads(name)]
            found.append(regularity(name, keys, tensors, batches[: len(some)], report.settings.fraction))
    entropies = {name: np.stack([one.entropies for one in batches]) for name, batches in measured.items()}
    return _Ranked(entropies, tuple(found))


def _agreements(
    report: Report, ranked: Mapping[str, _Ranked], seed: int
) -> tuple[tuple[WithinDomain, ...], tuple[BetweenDomains, ...]]:
    """How well the entropies of every group agree within the report and each domain, and between them."""
    within: list[WithinDomain] = []
    between: list[BetweenDomains] = []
    for name, group in report.groups.items():
        entropies = {OWN: group.haar.entropies, **{domain: one.entropies[name] for domain, one in ranked.items()}}
        inside, across = domain_agreement(name, entropies, report.settings.fraction, seed)
        within += inside
        between += across
    return tuple(within), tuple(between)


# ---------------------------------------------------------------- removing them


def _trials(
    report: Report,
    loaded: LoadedModel,
    inputs: CalibrationInputs,
    counts: Sequence[int],
    draws: int,
    seed: int,
    adapter: str | None,
    progress: Progress,
) -> list[RemovalTrial]:
    """For every group, metric and number of heads: the lowest against the draws."""
    task = find_task(loaded, inputs)
    sites = head_sites(loaded.model, adapter)
    evaluator = Evaluator(loaded, sites, inputs, task)
    done, total = 0, len(report.groups) * len(counts) * (1 + draws)
    trials: list[RemovalTrial] = []
    for group in report.groups.values():
        orders = _orders(group, draws, seed)
        costs: list[list[dict[str, Values]]] = []
        for count in counts:
            costs.append([])
            for order in orders:
                progress("removals", done, total)
                costs[-1].append(evaluator.without(order[:count]))
                done += 1
        for metric in _metrics(task):
            before = evaluator.baseline[metric.name]
            trials += [
                _trial(group.name, orders[0][:count], metric, before, [one[metric.name] for one in found], seed)
                for count, found in zip(counts, costs, strict=True)
            ]
    progress("removals", total, total)
    return trials


def _orders(group: GroupResult, draws: int, seed: int) -> list[list[Head]]:
    """The group's heads from the lowest entropy up, and then in random orders: trials remove the first of each."""
    keys, rng = group.head_keys(), np.random.default_rng(seed)
    lowest = np.argsort(group.ranking.ranks, kind="stable")
    return [[keys[index] for index in order] for order in (lowest, *(rng.permutation(len(keys)) for _ in range(draws)))]


def _metrics(task: Task) -> list[Metric]:
    """How far the outputs move, and the task's own loss where it has one."""
    return list(dict.fromkeys([task.metrics[0], task.metrics[-1]]))


def _trial(
    group: str, heads: Sequence[Head], metric: Metric, before: Values, after: Sequence[Values], seed: int
) -> RemovalTrial:
    """``after`` holds the metric on every input: first without the lowest heads, then without each draw's."""
    sign = -1.0 if metric.higher_is_better else 1.0
    worse = sign * (np.stack(after) - before)
    lowest, random = worse[0], worse[1:]
    rng = np.random.default_rng(seed)
    taken = rng.integers(len(lowest), size=(_BOOTSTRAP, len(lowest)))
    sets = rng.integers(len(random), size=(_BOOTSTRAP, len(random)))
    weights = np.stack([np.bincount(row, minlength=len(lowest)) for row in taken]) / len(lowest)
    shares = np.stack([np.bincount(row, minlength=len(random)) for row in sets]) / len(random)
    costs = weights @ lowest
    differences = costs - np.einsum("bi,bi->b", shares @ random, weights)
    cost_low, cost_high = np.quantile(costs, [0.025, 0.975])
    low, high = np.quantile(differences, [0.025, 0.975])
    return RemovalTrial(
        group=group,
        heads=tuple(heads),
        metric=metric.name,
        title=metric.title,
        cost=float(lowest.mean()),
        cost_low=float(cost_low),
        cost_high=float(cost_high),
        random=tuple(random.mean(axis=1).tolist()),
        difference=float(lowest.mean() - random.mean()),
        low=float(low),
        high=float(high),
    )


def _joined(parts: Sequence[CalibrationInputs]) -> CalibrationInputs:
    if len(parts) == 1:
        return parts[0]
    description = "; ".join(part.description for part in parts)
    return CalibrationInputs(tuple(batch for part in parts for batch in part), description, parts[0].tokens)
