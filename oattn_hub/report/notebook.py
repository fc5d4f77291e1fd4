"""How a report shows itself in a notebook: the answer in sentences and the map of each group."""

from __future__ import annotations

import base64
from functools import partial
from html import escape
from typing import TYPE_CHECKING

from oattn_hub.report.answer import answer
from oattn_hub.report.figures import draw_heads
from oattn_hub.report.findings import answer_sentences
from oattn_hub.report.plot import Panel, PlannedFigure, render

if TYPE_CHECKING:
    from oattn_hub.report.report import Report


def report_html(report: Report) -> str:
    """A short self-contained piece of HTML; needs no script and no network."""
    found = answer(report)
    first, *others = (escape(sentence) for sentence in answer_sentences(report))
    maps = [
        PlannedFigure(name, (7, 3.6), (Panel(partial(draw_heads, group=group, found=found)),))
        for name, group in report.groups.items()
    ]
    images = "".join(
        f'<img alt="map of the heads of {escape(planned.name)}" style="max-width:100%;width:620px;display:block" '
        f'src="data:image/png;base64,{base64.b64encode(render(planned)).decode()}">'
        for planned in maps
    )
    rest = "".join(f"<p>{sentence}</p>" for sentence in others)
    head = f"<p><b>{escape(report.model.id)}: {first}</b></p>"
    return f"<div>{head}{rest}{images}<p><code>{escape(repr(report))}</code></p></div>"
