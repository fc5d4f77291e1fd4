"""The Markov operator of an affinity, its leading eigenvectors, diffusion map and diffusion distance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry.checks import as_square, at_least, one_of

NORMALISATIONS = ("density", "row")
NEGLIGIBLE = 1e-8  # affinities up to this are no link, as in the authors' code
_DENSE_UP_TO = 1500  # eigh is faster than Lanczos below this size

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Diffusion:
    """Leading eigenpairs of a Markov operator, by falling magnitude of the eigenvalue.

    ``vectors`` are right eigenvectors, divided by the first so that it is constant 1 and none depends on the density.
    """

    values: Matrix
    """(k,) magnitudes of the eigenvalues; the first is 1."""
    vectors: Matrix
    """(n, k), first column constant 1."""

    def coordinates(self, t: float = 1.0) -> Matrix:
        """(n, k) eigenvectors scaled by the eigenvalues to the power ``t``."""
        return self.vectors * self.values**t

    def distances(self, t: float = 1.0) -> Matrix:
        """(n, n) diffusion distances at time ``t``."""
        from scipy.spatial.distance import pdist, squareform

        return np.asarray(squareform(pdist(self.coordinates(t))), dtype=np.float64)


def markov_matrix(affinity: ArrayLike, normalisation: str = "density") -> tuple[Matrix, Matrix]:
    """The symmetric matrix similar to the Markov operator of an affinity, and its known top eigenvector.

    ``"row"`` is line 7 as printed, D^-1 G. ``"density"`` first divides out the density: W = D^-1 G D^-1, then
    diag(d)^-1/2 W diag(d)^-1/2 with d = W 1. Both have top eigenvalue 1 with eigenvector sqrt(d). Affinities up to
    1e-8 are no link. A point without any link is a component of its own.

    Returns:
        The (n, n) symmetric matrix and its (n,) top eigenvector, of norm 1.
    """
    one_of("normalisation", normalisation, NORMALISATIONS)
    graph = as_square(affinity, "affinity")
    graph = (graph + graph.T) / 2
    if graph.min() < -NEGLIGIBLE:
        raise InvalidInput(f"affinity has the negative entry {graph.min():g}. Set negative affinities to 0 first.")
    graph = np.where(graph > NEGLIGIBLE, graph, 0.0)
    degree = graph.sum(axis=1)
    alone = degree == 0.0
    graph[alone, alone] = degree[alone] = 1.0
    if normalisation == "density":
        graph = graph / np.outer(degree, degree)
        degree = graph.sum(axis=1)
    root = np.sqrt(degree)
    return graph / np.outer(root, root), root / np.linalg.norm(root)


def diffusion(affinity: ArrayLike, n_eigenvectors: int = 12, normalisation: str = "density") -> Diffusion:
    """The leading eigenpairs of the Markov operator of an affinity.

    The top eigenvector is the one known in closed form; it is taken out of the matrix and the others are computed
    from the rest. So a graph of several components (eigenvalue 1 several times) needs no luck: dividing by the known
    positive vector cannot blow up. Each eigenvector's sign is such that its entry of largest magnitude is positive
    (the first of them, up to rounding).
    """
    at_least("n_eigenvectors", n_eigenvectors, 1)
    matrix, top = markov_matrix(affinity, normalisation)
    count = min(int(n_eigenvectors), len(top)) - 1
    values, vectors = _largest(matrix - np.outer(top, top), count)
    scaled = vectors / top[:, None]
    peaks = np.argmax(np.abs(scaled) > np.abs(scaled).max(axis=0) * (1 - 1e-9), axis=0)
    scaled *= np.where(scaled[peaks, np.arange(count)] < 0, -1.0, 1.0)
    return Diffusion(
        values=np.concatenate([[1.0], np.minimum(np.abs(values), 1.0)]),
        vectors=np.column_stack([np.ones(len(top)), scaled]),
    )


def _largest(matrix: Matrix, count: int) -> tuple[Matrix, Matrix]:
    """The ``count`` eigenpairs of largest magnitude of a symmetric matrix."""
    from scipy.linalg import eigh
    from scipy.sparse.linalg import eigsh

    if count == 0:
        return np.empty(0), np.empty((len(matrix), 0))
    if len(matrix) > _DENSE_UP_TO:
        # a fixed start vector makes Lanczos deterministic; a ramp is no symmetric or constant accident
        values, vectors = eigsh(matrix, k=count, which="LM", v0=np.linspace(1.0, 2.0, len(matrix)))
    else:
        values, vectors = eigh(matrix)
    leading = np.argsort(-np.abs(values), kind="stable")[:count]
    return values[leading], vectors[:, leading]


def diffusion_map(
    affinity: ArrayLike, n_components: int = 3, t: float = 1.0, normalisation: str = "density"
) -> NDArray[np.float64]:
    """(n, n_components) leading NON-trivial eigenvectors of the Markov operator, scaled by eigenvalue^t.

    >>> two_groups = np.kron(np.eye(2), np.ones((2, 2))) + 0.1
    >>> np.sign(diffusion_map(two_groups, n_components=1)).ravel().tolist()
    [1.0, 1.0, -1.0, -1.0]
    """
    at_least("n_components", n_components, 1)
    at_least("t", t, 0)
    n = len(as_square(affinity, "affinity"))
    if n_components > n - 1:
        raise InvalidInput(
            f"n_components={n_components} is too many: {n} points have {n - 1} non-trivial eigenvectors."
        )
    return diffusion(affinity, n_components + 1, normalisation).coordinates(t)[:, 1:]


def diffusion_distance(affinity: ArrayLike, t: float = 1.0, n_eigenvectors: int = 12) -> NDArray[np.float64]:
    """(n, n) diffusion distances at time ``t``, from the leading eigenvectors."""
    at_least("t", t, 0)
    return diffusion(affinity, n_eigenvectors).distances(t)
