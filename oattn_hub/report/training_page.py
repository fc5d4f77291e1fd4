"""A page that plays a training: the map of heads at every moment, and the numbers over the steps beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from oattn_hub.errors import InvalidInput
from oattn_hub.files import write_text
from oattn_hub.report.web_page import fill, resource, verbatim

if TYPE_CHECKING:
    from oattn_hub.report.group import GroupResult
    from oattn_hub.report.report import Report


def write_training_page(moments: Sequence[tuple[int, Report, Mapping[str, float]]], path: Path) -> Path:
    """Write the page of moments in training, each a step, its report and its numbers; returns the path."""
    if not moments:
        raise InvalidInput("Nothing was measured yet, so there is nothing to show. Train for a while first.")
    steps = [step for step, _, _ in moments]
    names = list(dict.fromkeys(name for _, _, logged in moments for name in logged))
    numbers = {name: [logged.get(name) for _, _, logged in moments] for name in names}
    last = moments[-1][1]
    data = {
        "steps": steps,
        "numbers": numbers,
        "groups": [_group_data(name, [report.groups[name] for _, report, _ in moments]) for name in last.groups],
    }
    shown = [name for name in names if "/layer_" not in name]
    text = fill(
        "training.html.j2",
        model=last.model.id,
        steps=steps,
        numbers=[(name, [_words(value) for value in numbers[name]]) for name in shown],
        kind=last.settings.kind,
        batches=last.settings.batches,
        tokens=last.settings.tokens,
        data=verbatim(
            json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False).replace("<", "\\u003c")
        ),
        script=verbatim(resource("training.js")),
    )
    write_text(path, text)
    return path


def _group_data(name: str, moments: Sequence[GroupResult]) -> dict[str, object]:
    """Where each head stands on the map, and its entropy and rank (0 is lowest) at every moment."""
    last = moments[-1]
    entropies = [group.haar.mean_entropies for group in moments]
    return {
        "name": name,
        "layers": last.layers.tolist(),
        "heads": last.heads.tolist(),
        "entropies": [[float(f"{value:.5g}") for value in values] for values in entropies],
        "ranks": [np.argsort(np.argsort(values, kind="stable")).tolist() for values in entropies],
    }


def _words(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
