"""What a plan says about its cost and its weights, in sentences; for the command line and the card alike."""

from __future__ import annotations

from typing import Literal

from oattn_hub.pruning.plan import PruningPlan
from oattn_hub.report.cost import Cost, Look
from oattn_hub.report.evaluation_words import increase_words, rounded_up


def amount(cost: Look, name: Literal["increase", "upper"]) -> str:
    """One number of a cost in its unit: per cent of a loss, or a divergence as it is. Bounds are rounded up.

    >>> amount({"metric": "loss", "upper": 0.0084}, "upper"), amount({"metric": "divergence", "upper": 0.0084}, "upper")
    ('0.84 %', '0.0084')
    >>> look = {"metric": "loss", "increase": 0.014238, "upper": 0.014238}
    >>> amount(look, "increase"), amount(look, "upper")
    ('1.42 %', '1.43 %')
    """
    divergence = cost["metric"] == "divergence"
    value, digits = (cost[name], 4) if divergence else (100 * cost[name], 2)
    shown = rounded_up(value, digits) if name == "upper" else value
    return f"{shown:.{digits}f}" + ("" if divergence else " %")


def cost_lines(plan: PruningPlan) -> list[str]:
    """What was measured on exactly these heads: at every length, the promise, and the last look."""
    cost = plan.cost
    if not cost:
        reason = plan.chosen_by.get("not_measured")
        return [f"The cost of these heads was not measured{f': {reason}' if reason else ''}"]
    where = "on inputs that also chose the ranking" if "compared" in cost else "on inputs that chose nothing"
    lines = [_look(look, where) for look in cost.get("lengths", [cost])]
    if "max_loss_increase" in plan.chosen_by and "upper" in cost:
        lines.append(_promise(plan, cost))
    lines += [_look(look, "last look, on inputs that decided nothing") for look in cost.get("last_look", [])]
    return lines


def _look(look: Look, where: str) -> str:
    at = f"at {look['tokens']} tokens, " if look.get("tokens") else ""
    bound = f", at most {amount(look, 'upper')} with 95 % confidence" if "upper" in look else ""
    interval = increase_words(look) if "low" in look else f"worse by {amount(look, 'increase')}"
    return (
        f"{look['title']}, {at}{where}: {_plain(look['before'])} -> {_plain(look['after'])}, {interval}{bound} "
        f"({look['n_inputs']} inputs: {look['verified_on']})"
    )


def _plain(value: float) -> str:
    """Four digits; what rounding left of a zero has no sign.

    >>> _plain(-3e-8), _plain(0.01364)
    ('0.0000', '0.0136')
    """
    return f"{value if abs(value) >= 5e-5 else 0.0:.4f}"


def _promise(plan: PruningPlan, cost: Cost) -> str:
    how = plan.chosen_by
    if not plan.heads:
        return f"No plan was shown to keep the budget of {how['unit_of_budget']}, so no head goes."
    worst = max(cost["lengths"], key=lambda look: float(look["upper"]))
    if plan.healing or worst["upper"] > how["max_loss_increase"]:  # other weights, or other inputs, than were searched
        holds = "holds" if worst["upper"] <= how["max_loss_increase"] else "was NOT shown to hold"
        return (
            f"As it is now, the budget of {how['unit_of_budget']} {holds} on inputs like these with 95 % confidence: "
            f"the cost is at most {amount(worst, 'upper')}"
        )
    return (
        f"The budget of {how['unit_of_budget']} holds on inputs like these with 95 % confidence: at most "
        f"{amount(worst, 'upper')} ({how['verifications']} plans tested from few heads to many, each once)"
    )


def weights_words(plan: PruningPlan) -> str:
    """What was done to the weights that stay."""
    fit, healing = plan.compensation, plan.healing
    sentences = []
    if fit:
        what = {"bias": "The biases", "scale": "The factors of the heads"}.get(fit["kind"], "The weights")
        sentences.append(
            f"{what} of {fit['layers']} output projections were refitted in closed form on {fit['fitted_on']}; "
            "no gradient training."
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
