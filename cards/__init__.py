"""The words of the model cards, as Jinja templates; what fills them is gathered in ``oattn_hub.hub.card``.

A value that is missing is an error: a card with a hole in it is never written.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, UndefinedError
from markupsafe import Markup

from oattn_hub.errors import InvalidInput
from oattn_hub.letters import CONTROL


def render(template: str, values: Mapping[str, object]) -> str:
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
    environment.filters["inline"] = _inline
    return environment


def _text(value: object) -> object:
    """A value within Markdown: what a file says is shown, and never becomes HTML, a link, a picture or a new line."""
    return markdown_text(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def markdown_text(text: str) -> str:
    r"""A text of somebody else within a line of Markdown.

    >>> markdown_text("<img>\n# ![x](http://x)")
    '&lt;img> # ![x]\\(http://x)'
    """
    return CONTROL.sub(" ", text).replace("<", "&lt;").replace("](", "]\\(").replace("][", "]\\[")


def _code(value: object) -> Markup:
    """A value within code, where nothing is HTML; it ends neither the code it stands in nor our part of a README."""
    text = CONTROL.sub(lambda found: found[0] if found[0] == "\n" else " ", str(value))
    return Markup(text.replace("`", "'").replace("<!--", "< !--"))


def _inline(value: object) -> Markup:
    """A value within code in the middle of a line."""
    return Markup(_code(value).replace("\n", " ").replace("|", "\\|"))


def _cell(value: object) -> str:
    """A value that fits into one cell of a Markdown table."""
    return markdown_text(str(value)).replace("|", "\\|")
