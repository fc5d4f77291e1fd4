"""The words of the model cards, as Jinja templates; what fills them is gathered in ``oattn_hub.hub.card``.

A value that is missing is an error: a card with a hole in it is never written.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, UndefinedError
from markupsafe import Markup

from oattn_hub.errors import InvalidInput


def render(template: str, values: dict[str, Any]) -> str:
    """Fill a template of this folder.

    >>> render("citation.md.j2", {})[:12]
    '## Citation\\n'
    """
    try:
        return _environment().get_template(template).render(values)
    except UndefinedError as error:
        raise InvalidInput(f"The card {template} cannot be written: {error}. Give that value and try again.") from error


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown, not HTML
        finalize=_text,
    )
    environment.filters["cell"] = _cell
    environment.filters["code"] = _code
    return environment


def _text(value: Any) -> Any:
    """A value within Markdown: HTML in what a file says is shown, and never becomes HTML."""
    return value.replace("<", "&lt;") if isinstance(value, str) and not isinstance(value, Markup) else value


def _code(value: Any) -> Markup:
    """A value within code, where nothing is HTML; it cannot end the code it stands in."""
    return Markup(str(value).replace("`", "'"))


def _cell(value: Any) -> str:
    """A value that fits into one cell of a Markdown table."""
    return str(value).replace("\n", " ").replace("|", "\\|").replace("<", "&lt;")
