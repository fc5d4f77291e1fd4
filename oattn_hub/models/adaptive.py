"""Adaptive word embedding and adaptive softmax (Grave et al. 2017) in the layout of Transformer-XL checkpoints.

The vocabulary is sorted by frequency and cut into clusters; `Clusters` says where. The frequent words (cluster 0)
have the full embedding width, each later cluster a width `div_val` times smaller. The softmax over all words is the
softmax over the frequent words and one entry per later cluster, times the softmax inside that cluster.
"""

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Clusters:
    """Where the vocabulary is cut, and how wide each cluster's embedding is.

    >>> Clusters(n_words=100, cutoffs=(20, 60), width=16, div_val=4).widths
    [16, 4, 1]
    """

    n_words: int
    cutoffs: tuple[int, ...]
    width: int
    div_val: int

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """First word and end of each cluster."""
        return list(zip((0, *self.cutoffs), (*self.cutoffs, self.n_words), strict=True))

    @property
    def widths(self) -> list[int]:
        return [self.width // self.div_val**index for index in range(len(self.bounds))]

    @property
    def share_one_table(self) -> bool:
        """With `div_val` 1 all clusters have one width and checkpoints keep them in one table."""
        return self.div_val == 1

    def needs_projection(self, d_model: int) -> bool:
        return not self.share_one_table or self.width != d_model


class AdaptiveEmbedding(nn.Module):
    """Word vectors of width `d_model`, times sqrt(d_model)."""

    def __init__(self, clusters: Clusters, d_model: int) -> None:
        super().__init__()
        self.clusters = clusters
        self.d_model = d_model
        tables = (
            [(clusters.n_words, clusters.width)]
            if clusters.share_one_table
            else [(end - start, width) for (start, end), width in zip(clusters.bounds, clusters.widths, strict=True)]
        )
        self.emb_layers = nn.ModuleList(nn.Embedding(rows, width) for rows, width in tables)
        self.emb_projs = nn.ParameterList(
            nn.Parameter(torch.empty(d_model, width)) for _, width in tables if clusters.needs_projection(d_model)
        )

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        if self.clusters.share_one_table:
            vectors = self._project(self.emb_layers[0](words), 0)
        else:
            vectors = self._from_clusters(words)
        return vectors * math.sqrt(self.d_model)

    def _from_clusters(self, words: torch.Tensor) -> torch.Tensor:
        vectors = next(self.parameters()).new_zeros(*words.shape, self.d_model)
        for index, (start, end) in enumerate(self.clusters.bounds):
            inside = (words >= start) & (words < end)
            vectors[inside] = self._project(self.emb_layers[index](words[inside] - start), index)
        return vectors

    def _project(self, vectors: torch.Tensor, index: int) -> torch.Tensor:
        return functional.linear(vectors, self.emb_projs[index]) if len(self.emb_projs) else vectors


class AdaptiveLogSoftmax(nn.Module):
    """Log probabilities of all words, or only those of the given next words."""

    def __init__(self, clusters: Clusters, d_model: int) -> None:
        super().__init__()
        self.clusters = clusters
        n_tails = len(clusters.cutoffs)
        if n_tails:
            self.cluster_weight = nn.Parameter(torch.zeros(n_tails, clusters.width))
            self.cluster_bias = nn.Parameter(torch.zeros(n_tails))
        self.out_projs = nn.ParameterList(
            nn.Parameter(torch.empty(d_model, width)) for width in clusters.widths if clusters.needs_projection(d_model)
        )
        tables = (
            [(clusters.width, clusters.n_words)]
            if clusters.share_one_table
            else [(width, end - start) for (start, end), width in zip(clusters.bounds, clusters.widths, strict=True)]
        )
        self.out_layers = nn.ModuleList(nn.Linear(width, rows) for width, rows in tables)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Log probabilities (..., word)."""
        head = self._head(hidden)
        n_frequent = self.clusters.bounds[0][1]
        parts = [head[..., :n_frequent]]
        for index in range(1, len(self.clusters.bounds)):
            parts.append(head[..., n_frequent + index - 1, None] + self._inside(hidden, index))
        return torch.cat(parts, dim=-1)

    def losses(self, hidden: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """Negative log probability of each word of `words`; 0 where the word is negative (ignored).

        Only the clusters that occur are computed, so a vocabulary of 267,735 words needs no matrix of that width.
        """
        flat, targets = hidden.reshape(-1, hidden.shape[-1]), words.reshape(-1)
        losses = flat.new_zeros(len(targets))
        n_frequent = self.clusters.bounds[0][1]
        for index, (start, end) in enumerate(self.clusters.bounds):
            rows = ((targets >= start) & (targets < end)).nonzero()[:, 0]
            if not len(rows):
                continue
            head, column = self._head(flat[rows]), (targets[rows] - start)[:, None]
            if index == 0:
                log_probability = head.gather(1, column)
            else:
                inside = self._inside(flat[rows], index).gather(1, column)
                log_probability = head[:, n_frequent + index - 1, None] + inside
            losses = losses.index_copy(0, rows, -log_probability[:, 0])
        return losses.view(words.shape)

    def _head(self, hidden: torch.Tensor) -> torch.Tensor:
        weight, bias = self._table(0)
        if self.clusters.cutoffs:
            weight, bias = torch.cat([weight, self.cluster_weight]), torch.cat([bias, self.cluster_bias])
        return functional.log_softmax(functional.linear(self._project(hidden, 0), weight, bias), dim=-1)

    def _inside(self, hidden: torch.Tensor, index: int) -> torch.Tensor:
        weight, bias = self._table(index)
        return functional.log_softmax(functional.linear(self._project(hidden, index), weight, bias), dim=-1)

    def _table(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.clusters.share_one_table:
            layer = cast(nn.Linear, self.out_layers[index])
            return layer.weight, layer.bias
        layer, rows = cast(nn.Linear, self.out_layers[0]), slice(*self.clusters.bounds[index])
        return layer.weight[rows], layer.bias[rows]

    def _project(self, hidden: torch.Tensor, index: int) -> torch.Tensor:
        return functional.linear(hidden, self.out_projs[index].T) if len(self.out_projs) else hidden
