"""The Markov operator of an affinity, its leading eigenvectors, diffusion map and diffusion distance."""

from __future__ import annotations

from collections.abc import Sequence
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
        return _distances(self.coordinates(t))

    def relative_coordinates(self, t: float = 1.0) -> Matrix:
        """(n, k - 1) the same without the first, in units of the slowest decay.

        So late times differ as clearly as early ones. Eigenvalues that are zero but for rounding count as zero.
        """
        values = np.where(self.values[1:] > NEGLIGIBLE, self.values[1:], 0.0)
        slowest = values.max(initial=0.0)
        return np.asarray(self.vectors[:, 1:] * (values / (slowest or 1.0)) ** t)


@dataclass(frozen=True)
class Component:
    """Points that are linked, directly or through others, with the geometry they have among themselves."""

    members: NDArray[np.intp]
    """Ascending."""
    geometry: Diffusion
    """Of the members alone; every eigenvector but the first distinguishes members."""
    mass: float
    """Their part of the stationary distribution, not normalised."""


def _distances(coordinates: Matrix) -> Matrix:
    from scipy.spatial.distance import pdist, squareform

    return np.asarray(squareform(pdist(coordinates)), dtype=np.float64)


def markov_matrix(affinity: ArrayLike, normalisation: str = "density") -> tuple[Matrix, Matrix]:
    """The symmetric matrix similar to the Markov operator of an affinity, and its known top eigenvector.

    ``"row"`` is line 7 as printed, D^-1 G. ``"density"`` first divides out the density: W = D^-1 G D^-1, then
    diag(d)^-1/2 W diag(d)^-1/2 with d = W 1. Both have top eigenvalue 1 with eigenvector sqrt(d). Affinities up to
    1e-8 are no link. A point without any link is a component of its own.

    Returns:
        The (n, n) symmetric matrix and its (n,) top eigenvector, of norm 1.
    """
    graph = _links(affinity)
    matrix, root = _symmetric(graph, normalisation)
    return matrix, root / np.linalg.norm(root)


def diffusion(affinity: ArrayLike, n_eigenvectors: int = 12, normalisation: str = "density") -> Diffusion:
    """The leading eigenpairs of the Markov operator of an affinity.

    A graph of several components has eigenvalue 1 several times. Components are found first and each is solved on its
    own, with its top eigenvector known in closed form, so that no rounding mixes them: the eigenvectors of eigenvalue
    1 are constant on every component (the first compares the heaviest one with the others, and so on), all others are
    zero outside one. Signs make the sum of the cubes positive, or the first large entry where that sum is zero.
    """
    at_least("n_eigenvectors", n_eigenvectors, 1)
    return join_components(components(affinity, n_eigenvectors, normalisation), n_eigenvectors)


def components(affinity: ArrayLike, n_eigenvectors: int = 12, normalisation: str = "density") -> list[Component]:
    """The components of the graph of an affinity, in the order of their first members, with their own eigenpairs.

    Each has up to ``n_eigenvectors`` of them, and more where further eigenvalues equal the last one.
    """
    graph = _links(affinity)
    labels = connected(graph > 0.0)
    groups = [np.flatnonzero(labels == number) for number in range(labels.max() + 1)]
    return [_component(graph, members, n_eigenvectors, normalisation) for members in groups]


def connected(links: NDArray[np.bool_]) -> NDArray[np.intp]:
    """(n,) number of the component of each point, in the order of their first points."""
    from scipy.sparse.csgraph import connected_components

    if links.all():
        return np.zeros(len(links), dtype=np.intp)
    return np.asarray(connected_components(links, directed=False)[1], dtype=np.intp)


def _component(graph: Matrix, members: NDArray[np.intp], n_eigenvectors: int, normalisation: str) -> Component:
    whole = len(members) == len(graph)
    matrix, root = _symmetric(graph if whole else graph[np.ix_(members, members)], normalisation)
    mass = float(root @ root)
    top = root / np.sqrt(mass)
    for row, value in zip(matrix, top, strict=True):  # what is left without the top eigenvector
        row -= value * top
    values, vectors = _largest(matrix, min(int(n_eigenvectors), len(top)) - 1)
    scaled = vectors / top[:, None]
    geometry = Diffusion(
        values=np.concatenate([[1.0], np.minimum(np.abs(values), 1.0)]),
        vectors=np.column_stack([np.ones(len(top)), scaled * _signs(scaled)]),
    )
    return Component(members, geometry, mass)


def join_components(parts: Sequence[Component], n_eigenvectors: int) -> Diffusion:
    """The leading eigenpairs of a graph from those of its components."""
    joined = parts[0].geometry if len(parts) == 1 else _joined(parts)
    count = min(int(n_eigenvectors), len(joined.vectors))
    return Diffusion(joined.values[:count], joined.vectors[:, :count])


def _joined(parts: Sequence[Component]) -> Diffusion:
    n = sum(len(part.members) for part in parts)
    parts = sorted(parts, key=lambda part: -part.mass)  # sorted keeps the order of equally heavy ones
    masses = np.array([part.mass for part in parts])
    masses /= masses.sum()
    values = [np.ones(len(parts))]
    vectors = np.zeros((n, len(parts)))
    vectors[:, 0] = 1.0
    for place, (part, mass) in enumerate(zip(parts, masses, strict=True)):
        if place < len(parts) - 1:  # 1 on this component, -1 on the later ones, scaled to mean 0 and norm 1
            together = mass + masses[place + 1 :].sum()
            later = np.concatenate([other.members for other in parts[place + 1 :]])
            vectors[part.members, place + 1] = np.sqrt((together - mass) / (mass * together))
            vectors[later, place + 1] = -np.sqrt(mass / ((together - mass) * together))
        values.append(part.geometry.values[1:])
    inside = []
    for part, mass in zip(parts, masses, strict=True):
        block = np.zeros((n, part.geometry.vectors.shape[1] - 1))
        block[part.members] = part.geometry.vectors[:, 1:] / np.sqrt(mass)
        inside.append(block)
    order = np.argsort(-np.concatenate(values), kind="stable")
    return Diffusion(np.concatenate(values)[order], np.column_stack([vectors, *inside])[:, order])


def _links(affinity: ArrayLike) -> Matrix:
    """The affinity, exactly symmetric, with nothing where there is no link; a point without any is linked to itself."""
    graph = as_square(affinity, "affinity")
    graph = graph + graph.T
    graph /= 2
    if graph.min() < -NEGLIGIBLE:
        raise InvalidInput(f"affinity has the negative entry {graph.min():g}. Set negative affinities to 0 first.")
    graph[graph <= NEGLIGIBLE] = 0.0
    alone = np.flatnonzero(~graph.any(axis=1))
    graph[alone, alone] = 1.0
    return graph


def _symmetric(graph: Matrix, normalisation: str) -> tuple[Matrix, Matrix]:
    """The symmetric matrix similar to the Markov operator, and its top eigenvector, the square root of the degrees.

    The matrix takes the place of the graph: with many points, few such matrices fit into memory.
    """
    one_of("normalisation", normalisation, NORMALISATIONS)
    degree = graph.sum(axis=1)
    if normalisation == "density":
        _divide_by_outer(graph, degree)
        degree = graph.sum(axis=1)
    root = np.sqrt(degree)
    _divide_by_outer(graph, root)
    return graph, root


def _divide_by_outer(matrix: Matrix, vector: Matrix) -> None:
    """matrix[i, j] /= vector[i] * vector[j]."""
    for row, value in zip(matrix, vector, strict=True):
        row /= value * vector


def _largest(matrix: Matrix, count: int) -> tuple[Matrix, Matrix]:
    """The ``count`` eigenpairs of largest magnitude of a symmetric matrix, and all further ones that equal the last.

    A cut between equal eigenvalues would keep an arbitrary part of their space.
    """
    from scipy.linalg import eigh
    from scipy.sparse.linalg import eigsh

    if count == 0:
        return np.empty(0), np.empty((len(matrix), 0))
    if len(matrix) > _DENSE_UP_TO:
        # a fixed start vector makes Lanczos deterministic; a ramp is no symmetric or constant accident
        values, vectors = eigsh(matrix, k=count, which="LM", v0=np.linspace(1.0, 2.0, len(matrix)))
    elif (upper := _upper(matrix, count)) is not None:
        return upper
    else:
        # transposed, as LAPACK stores it: no copy; divide and conquer takes half the time of the driver used otherwise
        values, vectors = eigh(matrix.T, overwrite_a=True, driver="evd")
    falling = np.argsort(-np.abs(values), kind="stable")
    last = abs(values[falling[count - 1]])
    leading = falling[: max(count, np.count_nonzero(np.abs(values) > last - NEGLIGIBLE))]
    leading = leading if last > NEGLIGIBLE else leading[:count]  # zero but for rounding: of no weight
    return values[leading], vectors[:, leading]


def _upper(matrix: Matrix, count: int) -> tuple[Matrix, Matrix] | None:
    """The ``count`` largest eigenpairs where they are those of largest magnitude and no further one equals the last.

    Affinities of distances have hardly a negative eigenvalue, and a few eigenpairs take half the time of all. None
    where there may be others of such magnitude.
    """
    from scipy.linalg import eigh
    from scipy.linalg.lapack import dpotrf

    n = len(matrix)
    if n < 4 * count:
        return None
    values, vectors = eigh(matrix.T, driver="evr", subset_by_index=[n - count - 1, n - 1])
    least = values[1] - NEGLIGIBLE
    if least < max(values[0], NEGLIGIBLE):
        return None
    shifted = matrix.T.copy(order="F")
    shifted.flat[:: n + 1] += least
    if dpotrf(shifted, overwrite_a=True, clean=False)[1]:  # not positive definite: there is an eigenvalue below -least
        return None
    return values[:0:-1], vectors[:, :0:-1]


def _signs(vectors: Matrix) -> Matrix:
    """The sign of each column: that of the sum of its cubes; where it is zero, of the first entry of full size."""
    skew = np.sum(vectors**3, axis=0)
    sizes = np.abs(vectors)
    peaks = np.argmax(sizes > sizes.max(axis=0, initial=0.0) * (1 - 1e-6), axis=0) if vectors.size else np.arange(0)
    first = vectors[peaks, np.arange(vectors.shape[1])]
    clear = np.abs(skew) > 1e-6 * np.sum(sizes**3, axis=0)
    return np.where(np.where(clear, skew, first) < 0, -1.0, 1.0)


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
