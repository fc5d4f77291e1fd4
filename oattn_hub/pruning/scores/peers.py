"""Rules of other papers, so that one table compares them on the same model with the same inputs."""

from __future__ import annotations

from functools import partial

import numpy as np

from oattn_hub.errors import InvalidInput
from oattn_hub.pruning.scores.attention import HAAR, SHANNON
from oattn_hub.pruning.scores.base import Score, Subject, Values
from oattn_hub.pruning.scores.model import GRADIENT, gate_gradients


def _fisher_diagonal(subject: Subject) -> Values:
    """Mean over inputs of (d loss / d gate)^2."""
    total = np.zeros(len(subject.heads))
    for number, batch in enumerate(subject.inputs):
        losses = partial(subject.task.losses, subject.loaded, batch, seed=subject.seed + number)
        total += np.mean(gate_gradients(subject.loaded, subject.sites, losses)[:, 0] ** 2, axis=0)
    return total / len(subject.inputs)


def _layer_drop(subject: Subject) -> Values:
    """1 - cosine of the residual stream before and after a layer's attention; the same for all its heads."""
    from torch.nn.functional import cosine_similarity

    from oattn_hub.pruning.compensate import streams_around

    total = {site.layer: 0.0 for site in subject.sites}
    for batch in subject.inputs:
        seen = streams_around(subject.loaded, subject.sites, batch)
        if missing := [site.name for site in subject.sites if site.layer not in seen]:
            raise InvalidInput(f"The residual stream around {missing[0]} was not found.")
        for layer, (before, written) in seen.items():
            cosine = cosine_similarity(before, before + written, dim=-1)
            total[layer] += float(1 - cosine.mean())
    return np.array([total[layer] for layer, _ in subject.heads]) / len(subject.inputs)


def _joined(entropy: Score, subject: Subject) -> Values:
    """The mean of two ranks: a head that is unimportant by its gradient AND has a low value of the other score."""
    ranks = [np.argsort(np.argsort(score.measure(subject), kind="stable")) for score in (GRADIENT, entropy)]
    return np.asarray(sum(ranks) / 2, dtype=np.float64)


FISHER_DIAGONAL = Score(
    "fisher-diagonal",
    "diagonal Fisher information of the gates",
    "Kwon et al. 2022, arXiv 2204.09656, without its mask tuning",
    "one forward and backward pass an input",
    _fisher_diagonal,
)
LAYER_DROP = Score(
    "layer-drop",
    "1 - cosine of the stream around a layer's attention",
    "He et al. 2024, arXiv 2406.15786; with unit='layers'",
    "one forward pass an input",
    _layer_drop,
)
GRADIENT_SHANNON = Score(
    "gradient-shannon",
    "gradient importance and attention entropy, mean rank",
    "after HIES, arXiv 2510.13832; joined by ranks here",
    "one forward and backward pass an input",
    partial(_joined, SHANNON),
)
GRADIENT_HAAR = Score(
    "gradient-haar",
    "gradient importance and Haar l1 entropy, mean rank",
    "the paper's entropy in the place of HIES's",
    "one forward and backward pass an input, and a report",
    partial(_joined, HAAR),
)
