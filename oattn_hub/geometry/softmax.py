"""What softmax does to attention, held against Theorem 1 and Corollary 1 of the paper.

The theorem assumes a head that is mixed alpha-Holder with 0 < alpha < 1/2 after organisation, and says that softmax is
then the second-order expansion plus a residual twice as regular. The corollary sets A' = A'' = 1 in that expansion, so
that softmax would only reweight wavelet coefficients. Both are statements about a limit; here they are
measured on the finite matrix at hand, head by head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oattn_hub.geometry.checks import as_tensor
from oattn_hub.geometry.dyadic import Scales
from oattn_hub.geometry.holder import holder_exponent
from oattn_hub.geometry.organise import OrganisedHead, organise_head
from oattn_hub.geometry.paraproducts import Paraproduct, corollary, paraproduct
from oattn_hub.geometry.questionnaire import Questionnaire
from oattn_hub.geometry.tree import PartitionTree
from oattn_hub.progress import Progress, silent

Float = NDArray[np.float64]

_NOISE = 0.01  # of each head's standard deviation
TOLERANCE = 0.1  # a relative error up to this counts as "holds"
_FEWEST_HEADS = 3  # with fewer there is one pair of heads, and no correlation


@dataclass(frozen=True)
class HeadInvariance:
    """One head against the theorem and the corollary; every exponent is the mixed one of Definition 2.

    Attributes:
        holder_before: exponent in token order.
        holder, holder_low, holder_high, holder_constant: exponent after organisation, its 95 % interval, its constant.
        holder_query, holder_key: exponents along queries and along keys alone, after organisation.
        typical_before, typical: the same from root mean square differences of all pairs instead of the worst steps.
        residual_holder: exponent of what the expansion misses; the theorem says twice ``holder``.
        error: ||softmax - expansion|| / ||softmax||.
        error_as_printed: the same without the boundary terms, which eq. 12 leaves out.
        explained: share of softmax's variance that the expansion explains; negative if its mean would do better.
        corollary_error: ||softmax - eq. 18|| / ||softmax||, f centred as the corollary's proof assumes.
        corollary_error_scaled: the same after multiplying eq. 18 by the best number: the most generous reading.
        mean: the mean of the logits, which the corollary's proof sends to 0.
        coefficient_size: root of the sum of squared mixed coefficients (rms of the doubly centred logits), which it
            sends to infinity.
        slope_low, slope_high: 5 % and 95 % quantile of A' = exp(block mean of the centred logits), which it sets to 1.
    """

    holder_before: float
    holder: float
    holder_low: float
    holder_high: float
    holder_constant: float
    holder_query: float
    holder_key: float
    typical_before: float
    typical: float
    residual_holder: float
    error: float
    error_as_printed: float
    explained: float
    corollary_error: float
    corollary_error_scaled: float
    mean: float
    coefficient_size: float
    slope_low: float
    slope_high: float

    @property
    def assumption_holds(self) -> bool:
        """Whether the organised head is mixed alpha-Holder with alpha in (0, 1/2), as Theorem 1 assumes."""
        return 0 < self.holder < 0.5

    @property
    def expansion_holds(self) -> bool:
        """Whether the expansion gives softmax up to ``TOLERANCE``."""
        return self.error <= TOLERANCE

    @property
    def corollary_holds(self) -> bool:
        """Whether eq. 18, scaled at will, gives softmax up to ``TOLERANCE``."""
        return self.corollary_error_scaled <= TOLERANCE


@dataclass(frozen=True)
class Agreement:
    """How much of the organisation found on the logits is found again on ``source``; 1 is all, 0 is chance.

    Attributes:
        source: "softmax" (of the logits), "expansion" (Theorem 1), "corollary" (eq. 18), "probs" (as captured), or
            "noise": the logits themselves with 1 % of noise, which shows what the organisation could keep at best.
        head_affinity: correlation of the affinities between heads.
        head_tree, query_tree, key_tree: correlation of the tree distances of all pairs.
    """

    source: str
    head_affinity: float
    head_tree: float
    query_tree: float
    key_tree: float


@dataclass(frozen=True, eq=False)
class SoftmaxInvariance:
    """What ``softmax_invariance`` found.

    Attributes:
        heads: one record for each head, in the order of the head axis.
        agreements: one record for each thing compared with the logits; empty for fewer than 3 heads.
        organised: each head's own organisation, from which the records were made.
        softmax: softmax of the logits, (query, key, head), in token order.
        expansion: Theorem 1's approximation of it.
    """

    heads: tuple[HeadInvariance, ...]
    agreements: tuple[Agreement, ...]
    organised: tuple[OrganisedHead, ...]
    softmax: Float
    expansion: Float


def softmax_invariance(
    logits: ArrayLike, probs: ArrayLike | None = None, *, progress: Progress = silent
) -> SoftmaxInvariance:
    """Measure Theorem 1 and Corollary 1 on every head, and whether the organisation survives softmax.

    Args:
        logits: (query, key, head) or one head (query, key), without missing entries. For a causal model the scores
            before the mask: the mask is no smooth function of them and no part of the theorem. Softmax is then taken
            over all keys.
        probs: the attention the model really used; compared with the logits' organisation as well.
        progress: called with the stages "theory: organising heads", "theory: exponents" and "theory: organisation".

    >>> rng = np.random.default_rng(0)
    >>> small = softmax_invariance(0.01 * rng.standard_normal((16, 16, 3)))
    >>> all(head.expansion_holds for head in small.heads), any(head.assumption_holds for head in small.heads)
    (True, False)
    """
    f = as_tensor(logits, name="logits").astype(np.float64)
    f = f.reshape(*f.shape[:2], -1)
    paraproduct(f[:, :, :1], "softmax")  # refuses what cannot be expanded before the long work starts
    organised = _organised(f, progress)
    matrices = np.stack([head.matrix for head in organised], axis=2)
    expanded = paraproduct(matrices, "softmax")
    replaced = corollary(matrices - matrices.mean(axis=(0, 1)))
    heads = _records(_exponents(f, expanded, matrices, progress), _errors(expanded, replaced), _sizes(matrices))
    sources = {
        "softmax": _in_token_order(expanded.value, organised),
        "expansion": _in_token_order(expanded.total, organised),
        "corollary": _in_token_order(replaced, organised),
        "noise": f + _NOISE * f.std(axis=(0, 1)) * np.random.default_rng(0).standard_normal(f.shape),
    }
    if probs is not None:
        sources["probs"] = as_tensor(probs, name="probs").astype(np.float64).reshape(f.shape)
    agreements = _agreements(f, sources, progress)
    return SoftmaxInvariance(heads, agreements, organised, sources["softmax"], sources["expansion"])


def _records(*parts: Mapping[str, ArrayLike]) -> tuple[HeadInvariance, ...]:
    """One record for each head from columns of numbers."""
    columns = {name: np.asarray(column).tolist() for part in parts for name, column in part.items()}
    return tuple(HeadInvariance(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True))


def _exponents(f: Float, expanded: Paraproduct, matrices: Float, progress: Progress) -> dict[str, ArrayLike]:
    residual = expanded.residual
    rows = []
    for i in range(f.shape[2]):
        before, after = f[:, :, i], matrices[:, :, i]
        fit = holder_exponent(after)
        rows.append(
            {
                "holder_before": holder_exponent(before).alpha,
                "holder": fit.alpha,
                "holder_low": fit.low,
                "holder_high": fit.high,
                "holder_constant": fit.constant,
                "holder_query": fit.directions[0].alpha,
                "holder_key": fit.directions[1].alpha,
                "typical_before": holder_exponent(before, method="differences").alpha,
                "typical": holder_exponent(after, method="differences").alpha,
                "residual_holder": holder_exponent(residual[:, :, i]).alpha,
            }
        )
        progress("theory: exponents", i + 1, f.shape[2])
    return {name: [row[name] for row in rows] for name in rows[0]}


def _errors(expanded: Paraproduct, replaced: Float) -> dict[str, ArrayLike]:
    def norm(x: Float) -> Float:
        return np.asarray(np.linalg.norm(x, axis=(0, 1)))

    value = expanded.value
    size = norm(value)
    scale = np.sum(value * replaced, axis=(0, 1)) / np.maximum(np.sum(replaced**2, axis=(0, 1)), np.finfo(float).tiny)
    spread = np.maximum(norm(value - value.mean(axis=(0, 1))), np.finfo(float).tiny)
    return {
        "error": expanded.relative_residual,
        "error_as_printed": norm(value - expanded.first - expanded.second) / size,
        "explained": 1 - (norm(expanded.residual) / spread) ** 2,
        "corollary_error": norm(value - replaced) / size,
        "corollary_error_scaled": norm(value - scale * replaced) / size,
    }


def _sizes(matrices: Float) -> dict[str, ArrayLike]:
    mean = matrices.mean(axis=(0, 1))
    mixed = matrices - matrices.mean(axis=0) - matrices.mean(axis=1, keepdims=True) + mean
    queries, keys = (Scales(PartitionTree.dyadic(n)) for n in matrices.shape[:2])
    rows = queries.averages(matrices - mean, axis=0)[:-1] or [matrices - mean]
    blocks = [block.reshape(-1, block.shape[2]) for row in rows for block in (keys.averages(row, axis=1)[:-1] or [row])]
    low, high = np.exp(np.quantile(np.concatenate(blocks), [0.05, 0.95], axis=0))
    return {
        "mean": mean,
        "coefficient_size": np.sqrt((mixed**2).mean(axis=(0, 1))),
        "slope_low": low,
        "slope_high": high,
    }


def _agreements(f: Float, sources: Mapping[str, Float], progress: Progress) -> tuple[Agreement, ...]:
    if f.shape[2] < _FEWEST_HEADS:
        return ()
    reference = Questionnaire().fit(f)
    progress("theory: organisation", 1, 1 + len(sources))
    found = []
    for done, (source, tensor) in enumerate(sources.items(), start=2):
        other = Questionnaire().fit(tensor)
        trees = {
            axis: _correlation(reference.trees_[axis].distances, other.trees_[axis].distances)
            for axis in ("head", "query", "key")
        }
        affinity = _correlation(reference.affinities_["head"], other.affinities_["head"])
        found.append(Agreement(source, affinity, trees["head"], trees["query"], trees["key"]))
        progress("theory: organisation", done, 1 + len(sources))
    return tuple(found)


def _correlation(a: Float, b: Float) -> float:
    """Pearson correlation of two symmetric matrices over all pairs; nan where one has only equal pairs."""
    pairs = np.triu_indices(len(a), k=1)
    x, y = a[pairs] - a[pairs].mean(), b[pairs] - b[pairs].mean()
    size = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / size if size > 0 else float("nan")


def _organised(f: Float, progress: Progress) -> tuple[OrganisedHead, ...]:
    result = []
    for i in range(f.shape[2]):
        result.append(organise_head(f[:, :, i]))
        progress("theory: organising heads", i + 1, f.shape[2])
    return tuple(result)


def _in_token_order(tensor: Float, organised: tuple[OrganisedHead, ...]) -> Float:
    """Undo each head's own organisation."""
    result = np.empty_like(tensor)
    for i, head in enumerate(organised):
        result[head.query_order[:, None], head.key_order, i] = tensor[:, :, i]
    return result
