"""What each head writes into the residual stream, expanded in the organised geometry of the queries.

Head h of a layer adds o_h(q) to the stream at query q. Divided by the stream's size there, d_h(q) is the displacement
that the head causes, and removing a set S of heads displaces the stream by the SUM of their d_h: heads that write the
same way add up, heads that write against each other cancel. With the Haar basis of a tree on the queries, beta_h,k the
coefficient (a vector) of d_h on function k, and w_k = |support of k| / n, the cost of removing S is

    E(S) = sum_k w_k || sum_{h in S} beta_h,k ||^2 .

The weight says that what a head writes over a whole folder of queries reaches the output, and what it writes in
opposite directions on neighbours mostly averages out. E needs one forward pass and no label, and depends on the
heads only through their Gram matrix G, E(S) = sum_{g,h in S} G_gh. The diagonal of G scores heads one by one;
:func:`removal_order` takes, step by step, the head whose removal adds least.

That the tree helps is not shown: with shuffled leaves, or from the plain Gram matrix without any tree, the order is
about as good (benchmarks/RESULTS.md), so the score's name does not claim the basis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.hooks import RemovableHandle

from oattn_hub.adapters import AttentionSite
from oattn_hub.errors import InvalidInput
from oattn_hub.geometry import cosine_affinity, flexible_tree, haar_functions, haar_transform
from oattn_hub.pruning.masks import watched_outputs
from oattn_hub.pruning.projections import head_rows
from oattn_hub.types import Args, Kwargs

if TYPE_CHECKING:
    from oattn_hub.inputs import CalibrationInputs
    from oattn_hub.models.load import LoadedModel

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class OutputGeometry:
    """How the outputs of all heads lie to each other, averaged over the calibration inputs.

    Attributes:
        gram: (H, H) weighted inner products of the heads' displacements.
        sizes: (H,) root mean square displacement of each head, unweighted.
    """

    gram: Floats
    sizes: Floats


def output_geometry(loaded: LoadedModel, sites: Sequence[AttentionSite], inputs: CalibrationInputs) -> OutputGeometry:
    """Run the model on the inputs and organise what its heads write."""
    closed = [site.name for site in sites if site.output_module is None]
    if closed:
        raise InvalidInput(
            f"{closed[0]} does not call its output projection as a module, so what its heads write cannot be watched. "
            "Choose a score that does not need it, e.g. score='ablation'."
        )
    n_heads = sum(site.n_heads for site in sites)
    gram, sizes = np.zeros((n_heads, n_heads)), np.zeros(n_heads)
    for batch in inputs:
        for rows, fields in _streams(displacements(loaded, sites, batch)):
            gram[np.ix_(rows, rows)] += weighted_gram(fields) / len(inputs)
            sizes[rows] += np.sqrt(np.mean(np.sum(fields**2, axis=2), axis=1)) / len(inputs)
    return OutputGeometry(gram, sizes)


def weighted_gram(fields: Floats) -> Floats:
    """Gram matrix of displacement fields (head, query, width) in the Haar basis of their query tree."""
    n_heads, n_queries, _ = fields.shape
    by_query = np.moveaxis(fields, 1, 0).reshape(n_queries, -1)
    if n_queries == 1:
        coefficients, weights = by_query, np.ones(1)
    else:
        tree = flexible_tree(cosine_affinity(by_query, axis=0))
        coefficients = haar_transform(by_query, tree)
        weights = haar_functions(tree).supports / n_queries
    scaled = coefficients * np.sqrt(weights / n_queries)[:, None]
    rows = np.moveaxis(scaled.reshape(n_queries, n_heads, -1), 1, 0).reshape(n_heads, -1)
    return np.asarray(rows @ rows.T)


def removal_order(gram: Floats) -> NDArray[np.intp]:
    """(H,) heads in the order in which removing one more of them adds least to E.

    >>> removal_order(np.array([[1.0, -1.0, 0.0], [-1.0, 1.1, 0.0], [0.0, 0.0, 0.5]])).tolist()
    [2, 0, 1]
    """
    left = np.ones(len(gram), dtype=bool)
    joint = np.zeros(len(gram))  # inner product of each head with the sum of those removed
    order = []
    for _ in range(len(gram)):
        added = np.where(left, np.diag(gram) + 2 * joint, np.inf)
        chosen = int(np.argmin(added))
        order.append(chosen)
        left[chosen] = False
        joint += gram[chosen]
    return np.array(order)


def displacements(
    loaded: LoadedModel, sites: Sequence[AttentionSite], batch: dict[str, torch.Tensor]
) -> list[tuple[str, Floats]]:
    """For every site: its group, and (head, query, width) what its heads write, relative to the stream's size."""
    written: dict[int, torch.Tensor] = {}
    streams: dict[int, float] = {}
    with ExitStack() as stack, torch.no_grad():
        for site in sites:
            stack.enter_context(watched_outputs(loaded.model, site, _keeper(written, site.layer)))
            stack.enter_context(_watched_stream(loaded.model, site, streams))
        loaded.forward({name: value for name, value in batch.items() if name != "labels"})
    return [(site.group, _displacement(site, written[site.layer], streams)) for site in sites]


def _displacement(site: AttentionSite, features: torch.Tensor, streams: dict[int, float]) -> Floats:
    if isinstance(site.output_module, torch.nn.Conv1d | torch.nn.Conv2d):
        features = features.flatten(2).transpose(1, 2)
    features = features.flatten(0, -3).float() if features.dim() > 2 else features.float()[None]
    weight = head_rows(site).float()
    heads = []
    for head in range(site.n_heads):
        places = site.features([head])
        # Contexts of one call (windows) are averaged, as in the store.
        heads.append((features[..., places].mean(0) @ weight[places]).double().cpu().numpy())
    fields = np.stack(heads)
    total = np.sqrt(np.mean(np.sum(fields.sum(axis=0) ** 2, axis=1)))
    return np.asarray(fields / (streams.get(site.layer, 0.0) or total or 1.0))


def _keeper(written: dict[int, torch.Tensor], layer: int) -> Callable[[torch.Tensor], None]:
    def keep(features: torch.Tensor) -> None:
        written[layer] = features.detach()

    return keep


def _watched_stream(model: torch.nn.Module, site: AttentionSite, streams: dict[int, float]) -> RemovableHandle:
    """Note the typical size of the residual stream: the median token of the input of the block around the attention."""
    parent = site.module_name.rpartition(".")[0]
    width = site.output_weight.shape[1]

    def hook(_: torch.nn.Module, args: Args, kwargs: Kwargs) -> None:
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.shape[-1:] == (width,):
                streams[site.layer] = float(value.detach().float().norm(dim=-1).median())
                return

    return model.get_submodule(parent).register_forward_pre_hook(hook, with_kwargs=True)


def _streams(found: Sequence[tuple[str, Floats]]) -> list[tuple[list[int], Floats]]:
    """Heads that write into one stream (same group, queries and width), with their positions in model order."""
    groups: dict[tuple[str, int, int], tuple[list[int], list[Floats]]] = {}
    position = 0
    for group, fields in found:
        rows, parts = groups.setdefault((group, *fields.shape[1:]), ([], []))
        rows += range(position, position + len(fields))
        parts.append(fields)
        position += len(fields)
    return [(rows, np.concatenate(parts)) for rows, parts in groups.values()]
