"""What every page is made with: the templates, our own files, and still figures for light and dark ground."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from oattn_hub.letters import TURNING
from oattn_hub.report.plot import PlannedFigure, render

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup


@dataclass(frozen=True)
class Still:
    """A still figure of the page, as data URLs for light and for dark ground."""

    name: str
    light: str
    dark: str


def stills(planned: Iterable[PlannedFigure]) -> list[Still]:
    """Draw the figures for light and for dark ground."""

    def url(figure: PlannedFigure, dark: bool) -> str:
        return "data:image/png;base64," + base64.b64encode(render(figure, dark)).decode()

    return [Still(figure.name.replace("_", " "), url(figure, False), url(figure, True)) for figure in planned]


def fill(template: str, **values: object) -> str:
    """Fill a template of ``web/``; everything is escaped but our own files, and no name turns the text around it."""
    return TURNING.sub("", _compiled(template).render(css=verbatim(resource("page.css")), **values))


@cache  # compiling one takes longer than filling it
def _compiled(template: str) -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["code"] = _code
    return environment.from_string(resource(template))


def resource(name: str) -> str:
    """One of our own files."""
    return files("oattn_hub.report").joinpath("web", name).read_text(encoding="utf-8")


def verbatim(text: str) -> Markup:
    """Mark our own files as not to be escaped; everything from a report is escaped by Jinja."""
    from markupsafe import Markup

    return Markup(text)


def _code(text: str) -> Markup:
    """A sentence for HTML: escaped, and what stands between `backticks` as code."""
    from markupsafe import Markup, escape

    parts = (
        Markup("<code>{}</code>").format(part) if odd % 2 else escape(part) for odd, part in enumerate(text.split("`"))
    )
    return Markup("").join(parts)
