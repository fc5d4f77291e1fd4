"""Inputs for the parts of a search that must not share any: what ranks and refits, what measures, what verifies.

========== ============================================================ =====================================
part        what it decides                                              where it comes from
========== ============================================================ =====================================
fit         rankings and refits                                          first half of the calibration data
choice      which ranking, which compensation, how far to go             its second half
check       whether the budget holds, each plan tested once              first half of the evaluation data
last        nothing: one last look                                       its second half
========== ============================================================ =====================================

All but ``fit`` come once for every length; ``fit`` mixes the lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from oattn_hub.errors import InvalidInput
from oattn_hub.inputs import CalibrationInputs, calibration_inputs
from oattn_hub.inputs.texts import available, longest_context
from oattn_hub.models.identify import batch_fingerprint
from oattn_hub.models.load import LoadedModel
from oattn_hub.pruning.evaluation import alternating, is_ready_made

# Tokens of an input, and inputs a part, where the user names none.
TOKENS, INPUTS = 128, 32
# A bound from fewer inputs than this is wide, so longer inputs are not made fewer than this.
_FEWEST = 16


@dataclass(frozen=True)
class Roles:
    """Who sees which inputs; ``lengths`` names the tokens of ``choice``, ``check`` and ``last``."""

    fit: CalibrationInputs
    choice: list[CalibrationInputs]
    check: list[CalibrationInputs]
    last: list[CalibrationInputs]

    @property
    def searched_on(self) -> str:
        """Everything the search has seen."""
        return "; ".join(part.description for part in (self.fit, *self.choice))


def context_lengths(
    loaded: LoadedModel, data: Any, tokens: int | None = None, lengths: Sequence[int] | None = None
) -> list[int]:
    """The lengths to search and verify at: those named; else the one asked for and four times as many tokens.

    Never more than the model takes; ready-made inputs, images and sounds have the one length that they have.
    """
    if loaded.modality != "text" or is_ready_made(data):
        return [tokens or TOKENS]
    if lengths:
        return sorted({int(length) for length in lengths})
    limit = longest_context(loaded) or 10**9
    first = tokens or min(TOKENS, limit)
    return sorted({first, min(4 * first, limit)} if first <= limit else {first})


def share_out(
    loaded: LoadedModel, data: Any, calibration: Any, inputs: int | None, lengths: Sequence[int], seed: int
) -> Roles:
    """Inputs for every role, checked to have nothing in common."""
    if is_ready_made(data) or (data is None and is_ready_made(calibration)):
        roles = _from_ready_made(loaded, data, calibration, inputs, lengths, seed)
    else:
        own = calibration is not None
        first, second = ((0.0, 0.5), (0.5, 1.0)) if own else ((0.0, 0.25), (0.25, 0.5))
        seen = calibration if own else data
        if is_ready_made(calibration):
            fit, choice = alternating(calibration_inputs(loaded, calibration))
            choices = [choice]
        else:
            fit = _joined(_by_length(loaded, seen, inputs, lengths, first, seed))
            choices = _by_length(loaded, seen, inputs, lengths, second, seed)
        third, fourth = ((0.0, 0.5), (0.5, 1.0)) if own and data is not None else ((0.5, 0.75), (0.75, 1.0))
        check = _by_length(loaded, data, inputs, lengths, third, seed)
        roles = Roles(fit, choices, check, _by_length(loaded, data, inputs, lengths, fourth, seed))
    _refuse_overlap(roles)
    return roles


def _by_length(
    loaded: LoadedModel, data: Any, inputs: int | None, lengths: Sequence[int], part: tuple[float, float], seed: int
) -> list[CalibrationInputs]:
    return [
        calibration_inputs(loaded, data, _count(loaded, data, inputs, lengths[0], length, part), length, seed, part)
        for length in lengths
    ]


def _count(
    loaded: LoadedModel, data: Any, inputs: int | None, first: int, length: int, part: tuple[float, float]
) -> int:
    """As many as asked for; longer inputs are fewer, for about as many tokens. By default no more than there are."""
    wanted = inputs or INPUTS
    if length > first:
        wanted = min(wanted, max(_FEWEST, wanted * first // length))
    if inputs is None and loaded.modality == "text":
        wanted = min(wanted, max(1, available(loaded, data, length, part)))
    return wanted


def _joined(parts: Sequence[CalibrationInputs]) -> CalibrationInputs:
    batches = tuple(batch for part in parts for batch in part)
    return CalibrationInputs(batches, "; ".join(part.description for part in parts), parts[0].tokens)


def _from_ready_made(
    loaded: LoadedModel, data: Any, calibration: Any, inputs: int | None, lengths: Sequence[int], seed: int
) -> Roles:
    """Of ready-made batches a third is for the search, unless it has its own; two thirds of the rest for the check."""
    held_out = calibration_inputs(loaded, data, inputs or INPUTS, lengths[0], seed)
    first = 0
    if calibration is None:
        first = len(held_out) // 3
        seen = _slice(held_out, 0, first)
    else:
        seen = calibration_inputs(loaded, calibration, 2 * (inputs or INPUTS), lengths[0], seed)
    if len(held_out) - first < 3 or len(seen) < 2:
        raise InvalidInput(
            f"{len(held_out)} ready-made inputs are too few to search on some, verify on others and look once more on "
            "the rest; give at least 9, and for a bound that says something 50 or more."
        )
    most = inputs or len(held_out)
    middle = first + min(most, -(-2 * (len(held_out) - first) // 3))
    fit, choice = alternating(seen)
    last = _slice(held_out, middle, min(middle + most, len(held_out)))
    return Roles(fit, [choice], [_slice(held_out, first, middle)], [last])


def _slice(inputs: CalibrationInputs, start: int, stop: int) -> CalibrationInputs:
    described = f"inputs {start} to {stop - 1} of {inputs.description}"
    return CalibrationInputs(tuple(inputs[start:stop]), described, inputs.tokens)


def _refuse_overlap(roles: Roles) -> None:
    parts = {
        "search": {batch_fingerprint(batch) for part in (roles.fit, *roles.choice) for batch in part},
        "verification": {batch_fingerprint(batch) for part in roles.check for batch in part},
        "last look": {batch_fingerprint(batch) for part in roles.last for batch in part},
    }
    names = list(parts)
    for number, name in enumerate(names):
        for other in names[number + 1 :]:
            if shared := parts[name] & parts[other]:
                raise InvalidInput(
                    f"{len(shared)} inputs are used for the {name} and for the {other}, which flatters the result. "
                    "Give other data for one of the two."
                )
