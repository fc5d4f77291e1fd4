"""Geometry of attention tensors: arrays in, arrays out. No model, no file, no network.

=====================  =====================================================================================
``affinity``           cosine and Gaussian affinities between slices, affinity from distances
``markov``             Markov operator, its leading eigenvectors, diffusion map and distance
``canonical``          orders that neither rounding nor numbering decides
``tree``, ``growing``  partition trees; the flexible and the balanced binary tree of an affinity
``published``          the flexible tree as the authors' code grows it
``emd``                tree earth mover's distance between slices; ``on_device`` the same by torch, on a GPU
``questionnaire``      trees on all axes, each from the geometry of the others (Algorithm 1)
``haar``, ``entropy``  Haar bases, fast transforms; entropies of heads and network, sparse approximation
``missing``            what missing entries (NaN) mean
``agreement``          agreement of a per-head score over batches
``organise``           one head's matrix in the order of its own two trees
``holder``             Holder exponents on one or two trees
``dyadic``             averages over all scales of an axis
``nonlinearity``       smooth functions with their derivatives: exp, softmax, tanh, your own
``paraproducts``       the decomposition of A(f) over pairs of scales (Theorem 1)
``softmax``            what softmax does to every head, against Theorem 1 and Corollary 1
=====================  =====================================================================================
"""

from oattn_hub.geometry.affinity import cosine_affinity, distance_affinity, gaussian_affinity
from oattn_hub.geometry.agreement import Stability, stability
from oattn_hub.geometry.emd import tree_emd
from oattn_hub.geometry.entropy import (
    Expansion,
    approximation_errors,
    expansion,
    head_entropies,
    network_entropy,
    sparse_approximation,
)
from oattn_hub.geometry.growing import binary_tree, flexible_tree
from oattn_hub.geometry.haar import HaarFunctions, haar_basis, haar_functions, haar_transform, inverse_haar_transform
from oattn_hub.geometry.holder import HolderFit, holder_exponent
from oattn_hub.geometry.markov import Diffusion, diffusion, diffusion_distance, diffusion_map, markov_matrix
from oattn_hub.geometry.missing import fill_missing
from oattn_hub.geometry.nonlinearity import Nonlinearity
from oattn_hub.geometry.organise import OrganisedHead, organise_head
from oattn_hub.geometry.paraproducts import Paraproduct, paraproduct
from oattn_hub.geometry.questionnaire import Iteration, Questionnaire
from oattn_hub.geometry.softmax import SoftmaxInvariance, softmax_invariance
from oattn_hub.geometry.tree import PartitionTree

__all__ = [
    "Diffusion",
    "Expansion",
    "HaarFunctions",
    "HolderFit",
    "Iteration",
    "Nonlinearity",
    "OrganisedHead",
    "Paraproduct",
    "PartitionTree",
    "Questionnaire",
    "SoftmaxInvariance",
    "Stability",
    "approximation_errors",
    "binary_tree",
    "cosine_affinity",
    "diffusion",
    "diffusion_distance",
    "diffusion_map",
    "distance_affinity",
    "expansion",
    "fill_missing",
    "flexible_tree",
    "gaussian_affinity",
    "haar_basis",
    "haar_functions",
    "haar_transform",
    "head_entropies",
    "holder_exponent",
    "inverse_haar_transform",
    "markov_matrix",
    "network_entropy",
    "organise_head",
    "paraproduct",
    "softmax_invariance",
    "sparse_approximation",
    "stability",
    "tree_emd",
]
