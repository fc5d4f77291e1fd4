"""Inputs for the parts of a search that must not share any: what ranks and refits, what measures, what verifies.

========== ============================================================ =====================================
part        what it decides                                              where it comes from
========== ============================================================ =====================================
fit         refits                                                       first third of the calibration data
rank        which heads go next                                          its second third, up to one half
choice      which ranking, which compensation, how far to go             its second half
check       whether the budget holds, each plan tested once              first half of the evaluation data
last        nothing: one last look                                       its second half
========== ============================================================ =====================================

``choice``, ``check`` and ``last`` come once for every length; ``fit`` and ``rank`` mix the lengths. A ranking on the
inputs of the refit would believe that the refit does as well on others. A refit needs many texts and no more than one
forward pass, so ``fit`` has more inputs than the others where the model is small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oattn_hub.errors import InvalidInput
from oattn_hub.inputs import CalibrationInputs, calibration_inputs
from oattn_hub.inputs.calibration import available_inputs, has_own_lengths, takes_whole_texts
from oattn_hub.inputs.texts import longest_context
from oattn_hub.inputs.types import Data
from oattn_hub.models.identify import batch_fingerprint
from oattn_hub.models.load import LoadedModel
from oattn_hub.pruning.evaluation import alternating, is_ready_made
from oattn_hub.report.cost import together

# Tokens of an input, and inputs to verify on, where the user names none. The search has half as many: what a bound
# allows depends on how many inputs it rests on, and a plan is verified less often than it is changed.
TOKENS, INPUTS = 128, 64
# A bound from fewer inputs than this is wide, so longer inputs are not made fewer than this.
_FEWEST = 16
# Inputs shorter than TOKENS are made so many times as many at most.
_MORE = 4
# Refits see so many times as many inputs at most, and so many only as parameters x tokens allow: half a minute's work.
_FIT_TIMES, _FIT_WORK = 16, 4e12


@dataclass(frozen=True)
class Roles:
    """Who sees which inputs; ``lengths`` names the tokens of ``choice``, ``check`` and ``last``."""

    fit: CalibrationInputs
    rank: CalibrationInputs
    choice: list[CalibrationInputs]
    check: list[CalibrationInputs]
    last: list[CalibrationInputs]

    @property
    def searched_on(self) -> str:
        """Everything the search has seen."""
        return together([part.description for part in (self.fit, self.rank, *self.choice)])


def context_lengths(
    loaded: LoadedModel, data: Data, tokens: int | None = None, lengths: Sequence[int] | None = None
) -> list[int]:
    """The lengths to search and verify at: those named; else the one asked for and four times as many tokens.

    Never more than the model takes; ready-made inputs, images and sounds have the one length that they have, and texts
    that are inputs one by one are whole, or cut at the lengths named.
    """
    if takes_whole_texts(loaded, data):
        return sorted(set(lengths)) if lengths else [tokens or longest_context(loaded) or TOKENS]
    if has_own_lengths(loaded, data):
        return [tokens or min(TOKENS, longest_context(loaded) or TOKENS) if loaded.modality == "text" else TOKENS]
    if lengths:
        return sorted({int(length) for length in lengths})
    limit = longest_context(loaded) or 10**9
    first = tokens or min(TOKENS, limit)
    return sorted({first, min(4 * first, limit)} if first <= limit else {first})


def share_out(
    loaded: LoadedModel, data: Data, calibration: Data, inputs: int | None, lengths: Sequence[int], seed: int
) -> Roles:
    """Inputs for every role, checked to have nothing in common."""
    if is_ready_made(data) or (data is None and is_ready_made(calibration)):
        roles = _from_ready_made(loaded, data, calibration, inputs, lengths, seed)
    else:
        own = calibration is not None
        seen, end = _searched(data, calibration)
        if is_ready_made(calibration):
            fit, rank, choice = _shared(calibration_inputs(loaded, calibration))
            choices = [choice]
        else:
            half = None if inputs is None else -(-inputs // 2)
            most = _fit_times(loaded, half, lengths)
            fit = _joined(_by_length(loaded, seen, half, lengths, (0.0, end / 3), seed, INPUTS // 2, most))
            rank = _joined(_by_length(loaded, seen, half, lengths, (end / 3, end / 2), seed, INPUTS // 2))
            choices = _by_length(loaded, seen, half, lengths, (end / 2, end), seed, INPUTS // 2)
        third, fourth = ((0.0, 0.5), (0.5, 1.0)) if own and data is not None else ((0.5, 0.75), (0.75, 1.0))
        check = _by_length(loaded, data, inputs, lengths, third, seed)
        roles = Roles(fit, rank, choices, check, _by_length(loaded, data, inputs, lengths, fourth, seed))
    _refuse_overlap(roles)
    return roles


def all_to_fit(
    loaded: LoadedModel, data: Data, calibration: Data, tokens: int, seed: int, most: int
) -> CalibrationInputs:
    """Texts of one length, as many as the part of the data has that refits see.

    A refit reads all its inputs before it says anything; a training reads as many as its time allows, and one more text
    costs it no more than one text again.
    """
    seen, end = _searched(data, calibration)
    part = (0.0, end / 3)
    available = available_inputs(loaded, seen, tokens, part)
    return _inputs(loaded, seen, max(1, min(most, available or most)), tokens, seed, part)


def _searched(data: Data, calibration: Data) -> tuple[Data, float]:
    """Where the search's inputs come from, and up to where: of one text, the second half is to measure on."""
    return (calibration, 1.0) if calibration is not None else (data, 0.5)


def _fit_times(loaded: LoadedModel, inputs: int | None, lengths: Sequence[int]) -> int:
    """How many times as many inputs a refit gets."""
    work = float(loaded.info.n_parameters) * (inputs or INPUTS // 2) * lengths[0] * len(lengths)
    return int(max(1, min(_FIT_TIMES, _FIT_WORK / max(work, 1.0))))


def _by_length(
    loaded: LoadedModel,
    data: Data,
    inputs: int | None,
    lengths: Sequence[int],
    part: tuple[float, float],
    seed: int,
    usual: int = INPUTS,
    times: int = 1,
) -> list[CalibrationInputs]:
    """Inputs of every length; with ``times``, more of them where the data has more."""
    found = []
    for length in lengths:
        count = _count(loaded, data, inputs, usual, lengths[0], length, part)
        if times > 1:  # as many tokens of every length
            wanted = max(count, times * (inputs or usual) * lengths[0] // length)
            count = max(count, min(wanted, available_inputs(loaded, data, length, part) or wanted))
        found.append(_inputs(loaded, data, count, length, seed, part))
    return found


def _inputs(
    loaded: LoadedModel, data: Data, count: int, tokens: int, seed: int, part: tuple[float, float]
) -> CalibrationInputs:
    return calibration_inputs(loaded, data, count, tokens, seed, part, labels=True)


def _count(
    loaded: LoadedModel, data: Data, inputs: int | None, usual: int, first: int, length: int, part: tuple[float, float]
) -> int:
    """As many as asked for; longer inputs are fewer, for twice as many tokens. By default no more than there are.

    A bound rests on the number of inputs, and short ones take little time: by default there are more of them.
    """
    wanted = inputs or usual
    reference = first if inputs is not None else max(first, TOKENS)
    if length > reference:
        wanted = min(wanted, max(_FEWEST, 2 * wanted * reference // length))
    elif length < reference:
        wanted *= min(_MORE, reference // length)
    most = available_inputs(loaded, data, length, part) if inputs is None else None
    return wanted if most is None else min(wanted, max(1, most))


def _joined(parts: Sequence[CalibrationInputs]) -> CalibrationInputs:
    batches = tuple(batch for part in parts for batch in part)
    return CalibrationInputs(batches, together([part.description for part in parts]), parts[0].tokens)


def _from_ready_made(
    loaded: LoadedModel, data: Data, calibration: Data, inputs: int | None, lengths: Sequence[int], seed: int
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
    fit, rank, choice = _shared(seen)
    last = _slice(held_out, middle, min(middle + most, len(held_out)))
    return Roles(fit, rank, [choice], [_slice(held_out, first, middle)], [last])


def _shared(inputs: CalibrationInputs) -> tuple[CalibrationInputs, CalibrationInputs, CalibrationInputs]:
    """Half fits, a quarter ranks and a quarter chooses; few inputs are halved, and rank what they fit."""
    if len(inputs) < 8:
        fit, choice = alternating(inputs)
        return fit, fit, choice
    fit, rank, choice = (
        CalibrationInputs(
            tuple(inputs[start::step]), f"each {step}th input from {start} of {inputs.description}", inputs.tokens
        )
        for start, step in ((0, 2), (1, 4), (3, 4))
    )
    return fit, rank, choice


def _slice(inputs: CalibrationInputs, start: int, stop: int) -> CalibrationInputs:
    described = f"inputs {start} to {stop - 1} of {inputs.description}"
    return CalibrationInputs(tuple(inputs[start:stop]), described, inputs.tokens)


def _refuse_overlap(roles: Roles) -> None:
    parts = {
        "search": {batch_fingerprint(batch) for part in (roles.fit, roles.rank, *roles.choice) for batch in part},
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
