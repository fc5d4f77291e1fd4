"""A report in plain sentences, each with its numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oattn_hub.report.records import StabilityRecord

if TYPE_CHECKING:
    from oattn_hub.report.report import Report

_NAMED = 8  # heads named in a sentence before it says "and n more"


def findings(report: Report) -> list[str]:
    """What the report says, most useful first."""
    sentences = []
    several = len(report.groups) > 1
    for record, network in zip(report.stability, report.network, strict=True):
        place = f"In {record.group}, " if several else ""
        sentences += [_capital(place + text) for text in (_lowest(record), _agreement(record, network.n_heads)) if text]
        low, high = min(network.entropies), max(network.entropies)
        sentences.append(_capital(f"{place}the network entropy of the batches runs from {low:.4g} to {high:.4g}."))
    return sentences


def _lowest(record: StabilityRecord) -> str:
    percent = f"{100 * record.fraction:.0f} %"
    if record.n_batches == 1:
        return f"only one batch was measured, so nothing is known about stability; {percent} marks are of that batch."
    bottom, top = record.always_bottom, record.always_top
    count = f"all {record.n_batches} batches"
    if not bottom:
        return f"no head lies in the lowest {percent} of {count}: the batches do not agree on what is removable."
    verb = "head lies" if len(bottom) == 1 else "heads lie"
    highest = f"; in the highest {percent}: {_name_heads(top)}" if top else ""
    return f"{len(bottom)} {verb} in the lowest {percent} of {count}: {_name_heads(bottom)}{highest}."


def _agreement(record: StabilityRecord, n_heads: int) -> str:
    if record.jaccard is None or record.spearman is None:
        return ""
    return (
        f"two batches rank the {n_heads} heads alike with a mean Spearman correlation of {record.spearman:.2f}; their "
        f"lowest {100 * record.fraction:.0f} % share {100 * record.jaccard:.0f} % of their heads (Jaccard)."
    )


def _name_heads(heads: tuple[tuple[int, int], ...]) -> str:
    named = ", ".join(f"{layer}.{head}" for layer, head in heads[:_NAMED])
    return named + (f" and {len(heads) - _NAMED} more" if len(heads) > _NAMED else "")


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
