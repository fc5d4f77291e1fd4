"""Rules of other papers, so that one table compares them on the same model with the same inputs."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial

import numpy as np

from oattn_hub.errors import InvalidInput
from oattn_hub.pruning.scores.attention import HAAR, SHANNON
from oattn_hub.pruning.scores.base import Score, Subject, Values
from oattn_hub.pruning.scores.model import GRADIENT, gate_gradients

# Inputs and queries of each on which heads are compared with each other.
_COMPARED, _ROWS = 4, 32


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


def _complementary(subject: Subject) -> Values:
    """Of the two heads that attend most alike, the less salient one goes; so on until one is left."""
    salience, distances = GRADIENT.measure(subject), _attention_distances(subject)
    left, place = np.ones(len(salience), dtype=bool), np.empty(len(salience))
    for number in range(len(salience)):
        nearest: list[int] = np.argwhere(distances == distances.min())[0].tolist()
        alone = np.isinf(distances.min())  # nothing that is left resembles anything else
        goes = min(np.flatnonzero(left).tolist() if alone else nearest, key=lambda head: float(salience[head]))
        place[goes], left[goes] = number, False
        distances[goes] = distances[:, goes] = np.inf
    return place


def _attention_distances(subject: Subject) -> Values:
    """(heads, heads) Jensen-Shannon divergence of attention rows; infinite with itself and between groups of layers."""
    from oattn_hub.attention import capture_inputs

    position = {head: number for number, head in enumerate(subject.heads)}
    distances = np.full((len(position),) * 2, np.inf)
    with tempfile.TemporaryDirectory(prefix="oattn-") as folder:
        compared = replace(subject.inputs, batches=subject.inputs.batches[:_COMPARED])
        store = capture_inputs(subject.loaded, compared, folder, ("probs",))
        for group in store.groups:
            own = [position[record.layer, record.head] for record in store.heads(group)]
            batches = [_divergences(store.tensor(batch, "probs", group)) for batch in range(store.n_batches)]
            distances[np.ix_(own, own)] = np.mean(batches, axis=0)
    np.fill_diagonal(distances, np.inf)
    return distances


def _divergences(probs: Values) -> Values:
    """(heads, heads) from (queries, keys, heads), over some queries spread evenly."""
    rows = np.linspace(0, len(probs) - 1, min(_ROWS, len(probs))).round().astype(int)
    chosen = np.nan_to_num(probs[rows].astype(np.float64)).transpose(2, 0, 1)
    own = _entropy(chosen)
    return np.stack(
        [_entropy((chosen + one) / 2) - (own + entropy) / 2 for one, entropy in zip(chosen, own, strict=True)]
    )


def _entropy(probs: Values) -> Values:
    """(heads,) Shannon entropy of (heads, queries, keys), averaged over queries."""
    return np.asarray(-(probs * np.log(np.maximum(probs, 1e-30))).sum(-1).mean(-1))


FISHER_DIAGONAL = Score(
    "fisher-diagonal",
    "diagonal Fisher information of the gates",
    "Kwon et al. 2022, arXiv 2204.09656, without its mask tuning",
    "one forward and backward pass per input",
    _fisher_diagonal,
)
LAYER_DROP = Score(
    "layer-drop",
    "1 - cosine of the stream around a layer's attention",
    "He et al. 2024, arXiv 2406.15786; with unit='layers'",
    "one forward pass per input",
    _layer_drop,
)
GRADIENT_SHANNON = Score(
    "gradient-shannon",
    "gradient importance and attention entropy, mean rank",
    "after HIES, arXiv 2510.13832; joined by ranks here",
    "one forward and backward pass per input",
    partial(_joined, SHANNON),
)
GRADIENT_HAAR = Score(
    "gradient-haar",
    "gradient importance and Haar l1 entropy, mean rank",
    "the paper's entropy in the place of HIES's",
    "one forward and backward pass per input, and a report",
    partial(_joined, HAAR),
)
COMPLEMENTARY = Score(
    "complementary",
    "heads that attend alike, the less salient first",
    "after CAHP, arXiv 2606.19150; pairs in the place of its clusters",
    "one forward and backward pass per input",
    _complementary,
)
