"""Which scores exist: those of the package, those a user registered, and those of installed packages."""

from __future__ import annotations

import warnings
from functools import cache
from importlib.metadata import entry_points

from oattn_hub.errors import InvalidInput
from oattn_hub.pruning.scores.base import Score

ENTRY_POINT_GROUP = "oattn_hub.scores"
_SCORES: dict[str, Score] = {}
_BY_DEFAULT: set[str] = set()


def register(score: Score, by_default: bool = False) -> Score:
    """Make a score known by its name; a second one of that name raises.

    Args:
        score: the rule.
        by_default: whether evaluations that name no score use it.
    """
    if score.name in _SCORES:
        raise InvalidInput(f"There is already a score called {score.name!r}. Choose another name.")
    _SCORES[score.name] = score
    if by_default:
        _BY_DEFAULT.add(score.name)
    return score


def list_scores() -> list[str]:
    """Names of all scores, sorted."""
    _load_installed()
    return sorted(_SCORES)


def get_score(name: str) -> Score:
    """The score of that name."""
    _load_installed()
    if name not in _SCORES:
        raise InvalidInput(f"There is no score {name!r}; choose from {', '.join(list_scores())}.")
    return _SCORES[name]


def resolve_scores(names: str | list[str] | None) -> list[Score]:
    """Scores by name, in the order of the tables; None or ``"all"`` means the usual ones. Random is always there."""
    _load_installed()
    if names is None or names == "all" or names == ["all"]:
        chosen = _BY_DEFAULT
    else:
        wanted = [names] if isinstance(names, str) else list(names)
        chosen = {get_score(name).name for name in (*wanted, "random")}
    return [score for score in _SCORES.values() if score.name in chosen]


@cache
def _load_installed() -> None:
    """Scores of installed packages: an entry point is a Score, or a module that registers some."""
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        try:
            found = entry.load()
            if isinstance(found, Score) and found.name not in _SCORES:
                register(found)
        except Exception as error:  # somebody else's package must not stop ours
            warnings.warn(f"The scores of {entry.value} cannot be loaded: {error!r}", RuntimeWarning, stacklevel=2)
