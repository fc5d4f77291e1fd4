"""Colours and type of the figures, light and dark; colour-blind safe throughout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

from oattn_hub.lazy import require

ENTROPY_MAP = "viridis"
COST_MAP = "YlOrRd"
LAYER_MAP = "plasma"
MATRIX_MAP = "magma"
# Okabe and Ito's palette without its yellow and black, which vanish on white and on dark ground
SERIES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")


@dataclass(frozen=True)
class Theme:
    """The few colours that change between light and dark."""

    background: str
    text: str
    faint: str
    missing: str


LIGHT = Theme(background="#ffffff", text="#1f2328", faint="#c3cad2", missing="#e6e9ed")
DARK = Theme(background="#0d1117", text="#e6edf3", faint="#3d444d", missing="#262c34")


@contextmanager
def figure_style(dark: bool = False) -> Iterator[Theme]:
    """Draw inside this block to get the project's look; nothing stays set afterwards."""
    require("matplotlib", what="Drawing figures")
    import matplotlib as mpl

    theme = DARK if dark else LIGHT
    with mpl.rc_context(_settings(theme)):
        yield theme


def show_letters(figure: Figure) -> None:
    """Draw every text letter by letter: names come out of files, and a dollar sign in one starts no formula.

    The powers of ten of a logarithmic axis are formulas of matplotlib's own, and stay so.
    """
    from matplotlib.text import Text
    from matplotlib.ticker import LogFormatter

    powers: set[object] = set()
    for axis in (axis for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)):
        labels = [*axis.get_ticklabels(), *axis.get_ticklabels(minor=True)]
        powers |= set(labels) if isinstance(axis.get_major_formatter(), LogFormatter) else set()
    for text in figure.findobj(Text):
        if text not in powers and isinstance(text, Text):
            text.set_parse_math(False)


def _settings(theme: Theme) -> Any:  # matplotlib names all keys in one Literal type
    text = dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color", "legend.labelcolor"),
        theme.text,
    )
    ground = dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), theme.background)
    return {
        **text,
        **ground,
        "axes.edgecolor": theme.faint,
        "grid.color": theme.faint,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 11,
        "axes.titlelocation": "left",
        "axes.titleweight": "bold",
        "axes.labelsize": 10,
        "xtick.labelsize": 9,
        "ytick.labelsize": 9,
        "legend.fontsize": 9,
        "legend.frameon": False,
        "figure.dpi": 110,
        "savefig.dpi": 150,
        "svg.hashsalt": "oattn_hub",  # the same figure gives the same bytes
    }
