"""The validation section in plain sentences and as a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oattn_hub.report.validation import (
        BetweenDomains,
        Regularity,
        RemovalTrial,
        ValidationSection,
        Verdict,
        WithinDomain,
    )


def findings(section: ValidationSection) -> list[str]:
    """The costs first, which people ask for, then stability and regularity; each with its numbers."""
    several = len({trial.group for trial in section.removals}) > 1
    sentences = [
        *_removals(section, several),
        *(_prefix(found.group, several) + _within(found, section.fraction) for found in section.within),
        *(
            _prefix(found.group, several) + _between(found, section.fraction, section.one_source(found))
            for found in section.between
        ),
        *(_prefix(found.group, several) + _regularity(found) for found in section.regularity),
    ]
    if len(section.domains) < 3:  # the report's own and one more
        sentences.append("Two domains of your own, such as `--domains a.txt,b.txt`, say more than one does.")
    return [sentence[:1].upper() + sentence[1:] for sentence in sentences]


def table(section: ValidationSection) -> tuple[list[str], list[list[str]]]:
    """One row for each number of heads removed and each metric."""
    several = len({trial.group for trial in section.removals}) > 1
    columns = [
        "heads",
        "metric",
        "cost of the lowest [95 %]",
        "random, mean",
        "difference [95 %]",
        "random draws that cost less",
    ]
    rows = [
        [
            str(trial.count),
            trial.title,
            f"{trial.cost:.3g} [{trial.cost_low:.2g}, {trial.cost_high:.2g}]",
            f"{_mean(trial.random):.3g}",
            f"{trial.difference:+.3g} [{trial.low:+.2g}, {trial.high:+.2g}]",
            f"{trial.cheaper_draws} of {len(trial.random)}",
        ]
        for trial in section.removals
    ]
    if several:
        return ["group", *columns], [[t.group, *row] for t, row in zip(section.removals, rows, strict=True)]
    return columns, rows


def _removals(section: ValidationSection, several: bool) -> Iterator[str]:
    for (group, _), found in groupby(section.removals, key=lambda trial: (trial.group, trial.metric)):
        trials = list(found)
        yield _prefix(group, several) + _removal(trials)
    if section.removals:
        yield f"costs were measured on {section.n_inputs} inputs that ranked no head here: {section.evaluation}."


def _removal(trials: Sequence[RemovalTrial]) -> str:
    last = trials[-1]
    verdicts = "; ".join(_verdict(verdict, [t for t in trials if t.verdict == verdict]) for verdict in _seen(trials))
    return (
        f"by {last.title}, {verdicts}. Without the {_heads(last.count)} of lowest entropy it gets {_worse(last.cost)} "
        f"[{last.cost_low:.3g}, {last.cost_high:.3g}], without {last.count} drawn at random "
        f"{_worse(_mean(last.random))} on average; {last.cheaper_draws} of {len(last.random)} draws cost less."
    )


def _worse(cost: float) -> str:
    """A cost in words; heads that a model is better without have a negative one, which the interval shows too.

    >>> _worse(0.0262), _worse(-0.00425)
    ('worse by 0.0262', 'better by 0.00425 (a cost of -0.00425)')
    """
    return f"worse by {cost:.3g}" if cost >= 0 else f"better by {-cost:.3g} (a cost of {cost:.3g})"


def _seen(trials: Iterable[RemovalTrial]) -> list[Verdict]:
    return list(dict.fromkeys(trial.verdict for trial in trials))


def _verdict(verdict: Verdict, trials: Sequence[RemovalTrial]) -> str:
    counts = _listed([str(trial.count) for trial in trials])
    words = {
        "less": "cost less than random ones (95 %, paired)",
        "more": "cost MORE than random ones (95 %, paired)",
        "undecided": "cannot be distinguished from random ones",
    }
    verb = words[verdict]
    if counts == "1":
        return f"the lowest head {verb.replace('cost ', 'costs ').replace('random ones', 'a random one')}"
    return f"the {counts} lowest {verb}"


def _within(found: WithinDomain, fraction: float) -> str:
    if found.spearman is None or found.jaccard is None:
        return f"on {found.domain} there is one input, so nothing is known about stability."
    return (
        f"on {found.n_inputs} inputs of {found.domain} two inputs rank the heads alike with a mean Spearman "
        f"correlation of {found.spearman:.2f}; their lowest {100 * fraction:.0f} % share {100 * found.jaccard:.0f} % "
        "(Jaccard)."
    )


def _between(found: BetweenDomains, fraction: float, one_source: bool) -> str:
    alike = (
        "" if found.spearman is None else f"mean entropies rank the heads with a correlation of {found.spearman:.2f}, "
    )
    verdict = "the domain matters" if found.domain_matters else "for these two the domain hardly matters"
    if one_source:
        verdict = "both are inputs of the same data, so this says nothing about other data"
    return (
        f"between {found.first} and {found.second} {alike}the lowest {100 * fraction:.0f} % share "
        f"{100 * found.jaccard:.0f} % (Jaccard), and 95 % intervals from {found.first} hold the other's mean for "
        f"{100 * found.coverage:.0f} % of the heads ({100 * found.expected:.0f} % if the domain did not matter), the "
        f"other way for {100 * found.coverage_back:.0f} % ({100 * found.expected_back:.0f} %): {verdict}."
    )


def _regularity(found: Regularity) -> str:
    words = {
        "more": "are more regular than the others, as the method says",
        "less": "are LESS regular than the others, against what the method says",
        "undecided": "are neither more nor less regular than the others, as far as was measured",
    }
    chance = "" if found.p_value is None else f" (Mann-Whitney p = {found.p_value:.2g})"
    along = "" if found.spearman is None else f"; over all heads exponent and entropy correlate {found.spearman:.2f}"
    return (
        f"the {_heads(found.n_lowest)} of lowest entropy {words[found.verdict]}: median mixed Hölder exponent "
        f"{found.lowest:.2f} against {found.others:.2f}{chance}{along} ({_inputs(found.n_inputs)}; large is regular)."
    )


def _listed(words: Sequence[str]) -> str:
    """Words as one says them.

    >>> _listed(["2"]), _listed(["1", "4", "5"])
    ('2', '1, 4 and 5')
    """
    return " and ".join([*filter(None, [", ".join(words[:-1])]), words[-1]])


def _prefix(group: str, several: bool) -> str:
    return f"in {group}, " if several else ""


def _heads(count: int) -> str:
    return "head" if count == 1 else f"{count} heads"


def _inputs(count: int) -> str:
    return "1 input" if count == 1 else f"{count} inputs"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
