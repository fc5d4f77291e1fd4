"""A report in plain sentences, each with its numbers; the answer comes first. Every reader of the project (page, card,
command line, notebook) gets these same sentences."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from oattn_hub.records import Head
from oattn_hub.report.answer import TOLERANCE, UNSURE, Answer, Removal, answer
from oattn_hub.report.contexts import LINEAR_CODES, bytes_per_entry
from oattn_hub.report.control_words import WHAT_RANKS_SAY, control_sentences, limit_sentences
from oattn_hub.report.cost import Cost, Look, together
from oattn_hub.report.evaluation_words import increase_words, rounded_up
from oattn_hub.report.records import StabilityRecord

if TYPE_CHECKING:
    from oattn_hub.report.group import GroupResult
    from oattn_hub.report.report import Report

_NAMED = 12  # heads named in a sentence before it says "and n more"

PAPER = "https://arxiv.org/abs/2506.15541"
PROJECT: str | None = None  # the project has no address of its own yet

GLOSSARY = (
    ("layer.head", "The name of a head: 3.7 is head 7 of layer 3. Both are counted from 0."),
    (
        "entropy",
        "How much structure a head's attention has: the sum of the sizes of its coefficients in a basis that fits the "
        "organised attention. Low: smooth and diffuse. High: many sharp changes. It says how a head attends, not what "
        "the model loses without it.",
    ),
    ("network entropy", "The same for all heads of a group at once, with the tree of the heads as third side."),
    ("organised", "Queries and keys put in another order, so that those which attend alike lie side by side."),
    ("folder", "A branch of the tree of heads: heads in one folder attend alike."),
    ("batch", "What the model read in one call, such as 128 tokens of text. Each batch is organised by itself."),
    (
        "divergence",
        "How far the outputs move when heads are removed. 0 is no change. For models that give probabilities it is the "
        "KL divergence in nats, for embedders 1 minus the cosine.",
    ),
    ("ablation", "A head removed alone, all others kept; its cost is the divergence then."),
    (
        "rank correlation",
        "How far two lists order the heads alike (Spearman's): 1 is the same order, 0 unrelated, -1 the opposite one.",
    ),
    ("Jaccard", "How much two sets of heads have in common: 100 % are the same set, 0 % share no head."),
    (
        "95 %",
        "An interval that holds the true value in about 95 of 100 cases: of entropies by Student's t over the batches, "
        'of costs by drawing the inputs again. Where a cost is "at most" something, only its upper end is said.',
    ),
)


def findings(report: Report) -> list[str]:
    """What the report says, most useful first."""
    return [*answer_sentences(report), *entropy_sentences(report)]


# ---------------------------------------------------------------- the answer


def answer_sentences(report: Report) -> list[str]:
    """Which heads can go, at what cost, which must stay, and what is not known."""
    found = answer(report)
    if not found.measured:
        return [_not_measured(report)]
    return [headline(found), *_stay(found), *_unsure(found)]


def headline(found: Answer, named: bool = True) -> str:
    """The first sentence: how many heads can go, at what cost and, if ``named``, which."""
    total = len(found.heads)
    if found.removal is None:
        return _none_cheap(found, total)
    removal = found.removal
    if not removal.heads:
        return f"None of the {total} heads can go within the budget that was asked for."
    start = f"{len(removal.heads)} of {total} heads can go"
    return f"{start} {at_a_cost(removal)}{': ' + name_heads(removal.heads) if named else ''}."


def at_a_cost(removal: Removal) -> str:
    """Ends a sentence: the cost, who measured it and on what it holds."""
    cost = removal.cost
    if not cost:
        return "by a plan whose cost was not measured"
    title = cost.get("title", cost.get("metric", "cost"))
    if removal.bound is None:
        return f"by a plan; {title} goes from {cost['before']:.4g} to {cost['after']:.4g}"
    at = f", at {' and '.join(map(str, removal.lengths))} tokens" if removal.lengths else ""
    return f"at a cost of at most {amount(removal.bound, cost.get('metric'))} (measured, 95 %; {title}{at})"


def amount(value: float, metric: object) -> str:
    """A bound as it is read: a divergence as it is, everything else in per cent of the unpruned value.

    Rounded up, because "at most 1.4 %" would be less than what was shown of 1.42 %.

    >>> amount(0.01234, "divergence"), amount(0.01, "loss"), amount(1.234, "loss")
    ('0.013', '1 %', '130 %')
    """
    shown = value if metric == "divergence" else 100 * value
    unit = "" if metric == "divergence" else " %"
    digits = 1 - math.floor(math.log10(abs(shown))) if shown else 0
    return f"{rounded_up(shown, digits):g}{unit}"


def _none_cheap(found: Answer, total: int) -> str:
    if not found.prices:
        return f"Which of the {total} heads can go was not measured; {_alone_words(found)}"
    first = found.prices[0]
    return (
        f"No measured set of the {total} heads can go at a cost of at most {TOLERANCE:g}: already the "
        f"{len(first.heads)} that cost least cost up to {amount(first.bound or 0.0, first.cost['metric'])} "
        f"(measured, 95 %; {first.cost['title']})."
    )


def _alone_words(found: Answer) -> str:
    small = sum(cost <= TOLERANCE for cost in found.alone.values())
    return f"each of {small} alone costs at most {TOLERANCE:g}."


def _stay(found: Answer) -> list[str]:
    if not found.stay:
        return []
    subject = "1 head must stay" if len(found.stay) == 1 else f"{len(found.stay)} heads must stay"
    which = "it" if len(found.stay) == 1 else "each"
    sure = " (95 %)" if found.intervals else ""
    why = f"{which}, removed alone, costs more than {TOLERANCE:g}{sure}"
    return [f"{subject}, because {why}: {name_heads(found.stay)}."]


def _unsure(found: Answer) -> list[str]:
    rest = sum(verdict == UNSURE for verdict in found.verdicts.values())
    if not rest:
        return []
    which = "the other head" if rest == 1 else f"{'all' if rest == len(found.heads) else 'the other'} {rest} heads"
    return [f"Of {which} we are not sure: {unsure_words(found)}."]


def unsure_words(found: Answer) -> str:
    """Why nothing is said of the heads that neither can go nor must stay."""
    together = "not in the plan" if found.planned else "together not measured to be cheap"
    if not found.alone:
        return f"they are {together}, and what one of them costs alone was not measured"
    unclear = len(found.unclear)
    cheap = sum(verdict == UNSURE for verdict in found.verdicts.values()) - unclear
    if not unclear:
        return f"removed alone they cost little, but they are {together}"
    if not cheap:
        return f"removed alone each may cost less or more than {TOLERANCE:g}, which is in its interval"
    its = "in its interval" if unclear == 1 else "in their intervals"
    return (
        f"removed alone {cheap} of them cost little, but are {together}; {unclear} may cost less or more than "
        f"{TOLERANCE:g}, which is {its}"
    )


def _not_measured(report: Report) -> str:
    return (
        f"Only entropy was measured on these {len(report.heads)} heads, and entropy does not say what a head is worth. "
        "What removal costs is measured by `oattn evaluate RUN`, RUN being the folder of this report."
    )


def cost_words(removal: Removal) -> list[str]:
    """What a plan's cost was measured to be, with its interval, on what and at which length."""
    cost = removal.cost
    if not cost or removal.bound is None or not removal.heads:
        return []
    title = _capital(str(cost.get("title", "cost")))
    looks = "; ".join(f"{_at(look)}{increase_words(look)}" for look in removal.looks)
    words = [f"Chosen by {chooser(removal.chosen_by)}{_among(cost)}. {title}: {looks}."]
    if "verified_on" in cost:
        measured_on = together([look["verified_on"] for look in removal.looks])
        other = "" if "compared" in cost else " that did not choose the heads"
        words.append(f"Measured on inputs{other}: {measured_on}.")
    return words


def _at(look: Look) -> str:
    return f"at {look['tokens']} tokens " if look.get("tokens") else ""


def _among(cost: Cost) -> str:
    """Inputs that chose among rankings flatter the one they chose, so that is said."""
    return f", the cheapest of {cost['compared']} rankings on these inputs" if cost.get("compared", 1) > 1 else ""


def chooser(score: str) -> str:
    """What stands after "chosen by": a score's name, a search, or a hand.

    >>> chooser("by hand"), chooser("haar")
    ('hand', 'haar')
    """
    return {"search": "a search"}.get(score, score.removeprefix("by "))


# ---------------------------------------------------------------- around the answer


def links(report: Report) -> dict[str, str | None]:
    """Where to read on: the model if the Hub has it, and the paper."""
    model = report.model
    on_hub = model.library != "timm" and model.source == model.id and model.id.count("/") == 1
    return {"model": f"https://huggingface.co/{model.id}" if on_hub else None, "paper": PAPER, "project": PROJECT}


def next_steps(report: Report) -> list[dict[str, str]]:
    """Commands that lead from this report to the pruned model."""
    steps = [("Make this report again, in the folder `run`.", f"{report.provenance.command} --out run")]
    on = _own_data(report.provenance.command)
    if report.evaluation is None:
        measure = "Measure what removing heads costs; the report then answers the question."
        steps.append((measure, f"oattn evaluate run{on}"))
    removal = answer(report).removal
    if removal is not None and removal.heads:
        named = name_heads(removal.heads, most=len(removal.heads)).replace(" ", "")
        without = "this head" if len(removal.heads) == 1 else f"these {len(removal.heads)} heads"
        steps.append(
            (f"Get the smaller model, without {without}.", f"oattn prune run --heads {named}{on} --out pruned")
        )
    let = "Or let" if removal is not None and removal.heads else "Let"
    steps += [
        (
            f"{let} a search remove as many heads as a verified 1 % allows.",
            f"oattn prune run --budget 1%{on} --out pruned",
        ),
        ("Use it in Python.", 'import oattn_hub as oh\nmodel = oh.from_pretrained("pruned")'),
    ]
    return [{"words": words, "command": command} for words, command in steps]


def _own_data(command: str) -> str:
    """The data option of the command that made a report, for the commands that go on from it.

    >>> _own_data("oattn analyze me/model --data 'my texts.txt' --seed 0"), _own_data("oattn analyze me/model")
    (" --data 'my texts.txt'", '')
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return ""
    return next((f" --data {shlex.quote(value)}" for name, value in pairwise(words) if name == "--data"), "")


def card_table(measured: bool, shown: int, total: int) -> str:
    """What stands above a card's table of heads."""
    if measured:
        return "Heads that can go and heads that must stay, as far as measured; of all others we are not sure."
    return (
        f"The {shown} of {total} heads with the lowest entropy. The paper takes a low entropy for a candidate for "
        "removal; whether removing these costs much was not measured."
    )


def guessed(report: Report) -> str:
    """What had to be guessed to feed the model; empty if nothing was."""
    image = report.model.modality.startswith("image") and report.model.library == "transformers"
    if image and "without a processor" in report.provenance.data:
        return "The model came without an image processor, so the normalisation of its pixels was guessed."
    return ""


def sample_note(report: Report) -> str:
    """What the attention pictures are made of."""
    shapes = [(group.n_queries, group.n_keys, group.n_heads) for group in report.groups.values()]
    n_contexts = max(len(group.samples) for group in report.groups.values())
    if not n_contexts:
        return ""
    exact = "about 12 %" if report.settings.kind == "probs" else f"1/{LINEAR_CODES - 1} of a head's range"
    smoothed = (
        "; where little happens, neighbours may share their mean" if bytes_per_entry(shapes, n_contexts) < 1 else ""
    )
    shown = (group.samples[0].matrix(0) for group in report.groups.values() if group.samples)
    masked = " Grey is masked." if any(np.isnan(matrix).any() for matrix in shown) else ""
    return f"Values are kept to {exact}{smoothed}.{masked}"


def about(report: Report) -> list[tuple[str, str]]:
    """Where the numbers come from, as names and values."""
    model, settings, provenance = report.model, report.settings, report.provenance
    questionnaire = ", ".join(f"{name}={value}" for name, value in settings.questionnaire.items())
    return [
        ("Model", f"{model.id} at {model.revision} ({model.library}, adapter {model.adapter})"),
        ("Licence of the model", model.license or "not stated"),
        ("Data", f"{provenance.data} (SHA-256 {provenance.data_fingerprint})"),
        ("Questionnaire", questionnaire),
        ("Entropies", f"sum of |coefficient| over the {settings.head_functions} widest query-key Haar functions"),
        ("Versions", ", ".join(f"{name} {version}" for name, version in provenance.versions.items())),
        ("Method", "Fasina, Pohle, Su, Coifman: Intrinsic and Extrinsic Organized Attention, arXiv 2506.15541"),
    ]


# ---------------------------------------------------------------- entropies


def entropy_sentences(report: Report) -> list[str]:
    """Which heads have the lowest entropy, how far the batches agree, and what else decides the ranking."""
    return [*agreement_sentences(report), *method_sentences(report)]


def agreement_sentences(report: Report) -> list[str]:
    """Which heads have the lowest entropy, how far the batches agree, and what was measured otherwise than usual."""
    sentences = []
    for record, network in zip(report.stability, report.network, strict=True):
        group = report.groups[record.group]
        alike = _all_alike(group)
        texts = [alike] if alike else [_lowest(record), _agreement(record, network.n_heads), *limit_sentences(group)]
        sentences += [_in_group(report, group, text) for text in texts if text]
    return sentences


def method_sentences(report: Report) -> list[str]:
    """What the ranking owes to the method's own choices, and what no ranking says."""
    groups = [group for group in report.groups.values() if not _all_alike(group)]
    sentences = [_in_group(report, group, text) for group in groups for text in control_sentences(group)]
    return [*sentences, WHAT_RANKS_SAY] if any(group.haar.controls is not None for group in groups) else sentences


def _in_group(report: Report, group: GroupResult, text: str) -> str:
    return _capital(f"In {group.name}, {text}" if len(report.groups) > 1 else text)


def _all_alike(group: GroupResult) -> str:
    """Said in place of a ranking where there is none: of one position, all heads attend alike."""
    if group.n_heads < 2 or float(np.ptp(group.haar.entropies, axis=1).max()) > 1e-9 * float(
        np.abs(group.haar.entropies).max()
    ):
        return ""
    return (
        f"all {group.n_heads} heads have the same entropy on contexts of {group.n_queries} x {group.n_keys} positions, "
        "so nothing ranks them; longer contexts may."
    )


def _lowest(record: StabilityRecord) -> str:
    percent = f"{100 * record.fraction:.0f} %"
    if record.n_batches == 1:
        return f"only one batch was measured, so nothing is known about stability; {percent} marks are of that batch."
    bottom, top = record.always_bottom, record.always_top
    count = f"all {record.n_batches} batches"
    if not bottom:
        return f"no head has an entropy in the lowest {percent} of {count}: the batches do not agree on the lowest."
    verb = "head has" if len(bottom) == 1 else "heads have"
    highest = f"; in the highest {percent}: {name_heads(top)}" if top else ""
    return f"{len(bottom)} {verb} an entropy in the lowest {percent} of {count}: {name_heads(bottom)}{highest}."


def _agreement(record: StabilityRecord, n_heads: int) -> str:
    if record.jaccard is None or record.spearman is None:
        return ""
    return (
        f"two batches rank the {n_heads} heads alike with a mean Spearman correlation of {record.spearman:.2f}; their "
        f"lowest {100 * record.fraction:.0f} % share {100 * record.jaccard:.0f} % of their heads (Jaccard)."
    )


def name_heads(heads: Sequence[Head], most: int = _NAMED) -> str:
    """Heads as layer.head, the first few of them by name.

    >>> name_heads([(0, 1), (3, 12)])
    '0.1, 3.12'
    """
    named = ", ".join(f"{layer}.{head}" for layer, head in heads[:most])
    return named + (f" and {len(heads) - most} more" if len(heads) > most else "")


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
