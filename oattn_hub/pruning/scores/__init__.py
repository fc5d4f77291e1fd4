"""Head-importance scores under one protocol: the same model, the same inputs, the lowest goes first.

>>> list_scores()
['ablation', 'displacement', 'gradient', 'haar', 'haar-detail', 'haar-output', 'output', 'random', 'shannon', 'weight']
>>> get_score("haar").citation
'Fasina, Pohle, Su, Coifman 2025, arXiv 2506.15541, eq. 21'
"""

from __future__ import annotations

from oattn_hub.errors import InvalidInput
from oattn_hub.pruning.scores.attention import HAAR, HAAR_DETAIL, SHANNON
from oattn_hub.pruning.scores.base import Score as Score
from oattn_hub.pruning.scores.base import Subject as Subject
from oattn_hub.pruning.scores.model import ABLATION, GRADIENT, RANDOM, WEIGHT
from oattn_hub.pruning.scores.output import DISPLACEMENT, HAAR_OUTPUT, OUTPUT

__all__ = ["Score", "Subject", "get_score", "list_scores", "resolve_scores"]

_ALL = (HAAR, HAAR_DETAIL, HAAR_OUTPUT, OUTPUT, DISPLACEMENT, SHANNON, WEIGHT, GRADIENT, ABLATION, RANDOM)
_SCORES = {score.name: score for score in _ALL}


def list_scores() -> list[str]:
    """Names of all scores, sorted."""
    return sorted(_SCORES)


def get_score(name: str) -> Score:
    """The score of that name."""
    if name not in _SCORES:
        raise InvalidInput(f"There is no score {name!r}; choose from {', '.join(list_scores())}.")
    return _SCORES[name]


def resolve_scores(names: str | list[str] | None) -> list[Score]:
    """Scores by name, in the order of the tables; None or ``"all"`` means all of them. Random is always among them."""
    if names is None or names == "all" or names == ["all"]:
        return list(_ALL)
    wanted = [names] if isinstance(names, str) else list(names)
    chosen = {get_score(name).name for name in (*wanted, "random")}
    return [score for score in _ALL if score.name in chosen]
