"""Head-importance scores under one protocol: the same model, the same inputs, the lowest goes first.

A score is added by ``register(Score(...))``, or by an installed package through the entry point group
``oattn_hub.scores``.

>>> resolve_scores("gradient")[0].citation
'Michel, Levy, Neubig 2019, arXiv 1905.10650'
>>> get_score("haar").citation
'Fasina, Pohle, Su, Coifman 2025, arXiv 2506.15541, eq. 21'
"""

from __future__ import annotations

from oattn_hub.pruning.scores.attention import HAAR, HAAR_DETAIL, SHANNON
from oattn_hub.pruning.scores.base import Score as Score
from oattn_hub.pruning.scores.base import Subject as Subject
from oattn_hub.pruning.scores.model import ABLATION, GRADIENT, RANDOM, WEIGHT
from oattn_hub.pruning.scores.output import DISPLACEMENT, HAAR_OUTPUT, OUTPUT
from oattn_hub.pruning.scores.peers import COMPLEMENTARY, FISHER_DIAGONAL, GRADIENT_HAAR, GRADIENT_SHANNON, LAYER_DROP
from oattn_hub.pruning.scores.registry import get_score, list_scores, register, resolve_scores

__all__ = ["Score", "Subject", "get_score", "list_scores", "register", "resolve_scores"]

for _score in (HAAR, HAAR_DETAIL, HAAR_OUTPUT, OUTPUT, DISPLACEMENT, SHANNON, WEIGHT, GRADIENT, ABLATION, RANDOM):
    register(_score, by_default=True)
for _score in (FISHER_DIAGONAL, LAYER_DROP, GRADIENT_SHANNON, GRADIENT_HAAR, COMPLEMENTARY):
    register(_score)
