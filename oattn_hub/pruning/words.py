"""What a plan says about its cost and its weights, in sentences; for the command line and the card alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from oattn_hub.pruning.plan import PruningPlan
from oattn_hub.report.cost import Cost, Look, together
from oattn_hub.report.evaluation_words import interval_words, rounded_up


def amount(cost: Look, name: Literal["increase", "upper"]) -> str:
    """One number of a cost in its unit: per cent of a loss, or a divergence as it is. Bounds are rounded up.

    >>> amount({"metric": "loss", "upper": 0.0084}, "upper"), amount({"metric": "divergence", "upper": 0.0084}, "upper")
    ('0.84 %', '0.0084')
    >>> look = {"metric": "loss", "increase": 0.014238, "upper": 0.014238}
    >>> amount(look, "increase"), amount(look, "upper")
    ('1.42 %', '1.43 %')
    >>> amount({"metric": "loss", "upper": 0.00011}, "upper"), amount({"metric": "loss", "increase": -1e-6}, "increase")
    ('0.011 %', '0.00 %')
    """
    divergence = cost["metric"] == "divergence"
    value, digits = (cost[name], 4) if divergence else (100 * cost[name], 2)
    if name == "upper" and 0 < abs(value) < 1:
        digits = max(digits, 1 - math.floor(math.log10(abs(value))))  # two digits that count
    shown = rounded_up(value, digits) if name == "upper" else value
    text = f"{shown:.{digits}f}"
    return (text.removeprefix("-") if float(text) == 0 else text) + ("" if divergence else " %")


def cost_table(plan: PruningPlan) -> tuple[list[str], list[list[str]]]:
    """What was measured on exactly these heads, a row for every length and then for the last look: columns and rows."""
    if not plan.cost:
        return [], []
    cost = plan.cost
    rows = [_look(look) for look in cost.get("lengths", [cost])]
    rows += [_look(look, "last look") for look in cost.get("last_look", [])]
    columns = [cost["title"], "before", "after", "worse by (95 %)", "at most", "inputs"]
    kept = [place for place in range(len(columns)) if place == 0 or any(row[place] for row in rows)]
    return [columns[place] for place in kept], [[row[place] for place in kept] for row in rows]


def _look(look: Look, name: str = "") -> list[str]:
    at = f"{look['tokens']} tokens" if look.get("tokens") else ""
    worse = amount(look, "increase") if "increase" in look else ""
    return [
        ", ".join(part for part in (name, at) if part) or "all inputs",
        plain(look["before"]),
        plain(look["after"]),
        f"{worse} ({interval_words(look)})" if "low" in look else worse,
        amount(look, "upper") if "upper" in look else "",
        str(look.get("n_inputs", "")),
    ]


def cost_lines(plan: PruningPlan) -> list[str]:
    """The promise of a plan, and on which inputs its cost was measured."""
    cost = plan.cost
    if not cost:
        reason = plan.chosen_by.get("not_measured")
        return [f"The cost of these heads was not measured{f': {reason}' if reason else ''}."]
    lines = [_promise(plan, cost)] if "max_loss_increase" in plan.chosen_by and "upper" in cost else []
    what = "also chose the ranking" if "compared" in cost else "chose nothing"
    lines += _measured_on(f"Measured on inputs that {what}", cost.get("lengths", [cost]))
    return lines + _measured_on("The last look is at inputs that decided nothing", cost.get("last_look", []))


def _measured_on(start: str, looks: Sequence[Look]) -> list[str]:
    described = [look["verified_on"] for look in looks if "verified_on" in look]
    return [f"{start}: {together(described)}."] if described else []


def plain(value: float) -> str:
    """Four digits that count; what rounding left of a zero is 0.

    >>> plain(-3e-8), plain(0.013641), plain(3.42167)
    ('0', '0.01364', '3.422')
    """
    return f"{value:.4g}" if abs(value) > 1e-6 else "0"


def _promise(plan: PruningPlan, cost: Cost) -> str:
    how = plan.chosen_by
    if not plan.heads:
        return f"No plan was shown to keep the budget of {how['unit_of_budget']}, so no head goes."
    worst = max(cost["lengths"], key=lambda look: float(look["upper"]))
    if plan.healing or worst["upper"] > how["max_loss_increase"]:  # other weights, or other inputs, than were searched
        holds = "holds" if worst["upper"] <= how["max_loss_increase"] else "was NOT shown to hold"
        return (
            f"As it is now, the budget of {how['unit_of_budget']} {holds} on inputs like these with 95 % confidence: "
            f"the cost is at most {amount(worst, 'upper')}."
        )
    return (
        f"The budget of {how['unit_of_budget']} holds on inputs like these with 95 % confidence: at most "
        f"{amount(worst, 'upper')} ({how['verifications']} plans tested from few heads to many, each once)."
    )


def weights_words(plan: PruningPlan) -> str:
    """What was done to the weights that stay."""
    fit, healing = plan.compensation, plan.healing
    sentences = []
    if fit:
        what = {"bias": "The biases", "scale": "The factors of the heads"}.get(fit["kind"], "The weights")
        layers = "1 output projection" if fit["layers"] == 1 else f"{fit['layers']} output projections"
        sentences.append(
            f"{what} of {layers} were refitted in closed form on {fit['fitted_on']}; no gradient training."
        )
    if healing:
        change = f"loss {healing['before']:.4g} -> {healing['after']:.4g} on inputs that were not trained on"
        if not healing["after"] < healing["before"]:
            change = "none of which helped on other inputs, so the weights before them were kept"
        sentences.append(
            f"Then {healing['parameters']:,} parameters ({healing['trained']}) were trained for "
            f"{healing['seconds']:.0f} s to give the unpruned model's outputs, on {healing['trained_on']}: "
            f"{healing['steps']} steps, {change}."
        )
    return " ".join(sentences) or "Nothing was refitted or trained afterwards."
