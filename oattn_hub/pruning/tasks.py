"""What a model is for, and how much worse it does it: label-free divergence for any model, and the task's own metric.

A task runs the model on every input (``observe``) and compares what it said with what the unpruned model said.
Every metric is one number an input, so that intervals come by bootstrap over inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from oattn_hub.inputs import CalibrationInputs
from oattn_hub.models.load import LoadedModel
from oattn_hub.pruning.readout import readout
from oattn_hub.pruning.stacks import split, stacks

Values = NDArray[np.float64]
Batch = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Metric:
    """A number that pruning should not change. ``relative`` budgets are parts of the unpruned value."""

    name: str
    title: str
    higher_is_better: bool = False
    relative: bool = True

    def increase(self, before: float, after: float) -> float:
        """How much worse: as a part of the unpruned value, or absolutely for a divergence, which starts at zero."""
        worse = before - after if self.higher_is_better else after - before
        return worse / max(abs(before), 1e-12) if self.relative else worse


DIVERGENCE_KL = Metric("divergence", "KL divergence from the unpruned model", relative=False)
DIVERGENCE_COSINE = Metric("divergence", "1 - cosine with the unpruned embedding", relative=False)
TOKEN_LOSS = Metric("loss", "loss a token (nats)")
LABEL_LOSS = Metric("loss", "cross entropy")
ACCURACY = Metric("accuracy", "accuracy", higher_is_better=True)
RETRIEVAL = Metric("mrr", "mean reciprocal rank of a text's other half", higher_is_better=True)
RETRIEVAL_LOSS = Metric("loss", "retrieval loss of a text's other half")
# Similarities are multiplied by this before the softmax, as sentence embedders are trained.
_SCALE = 20.0


class Task:
    """A model with logits or embeddings and nothing more known about it; others build on it."""

    metrics: tuple[Metric, ...] = (DIVERGENCE_KL,)

    @property
    def primary(self) -> Metric:
        """The metric a budget is about: the task's loss where there is one. Smooth, unlike ranks and accuracies."""
        return self.metrics[-1]

    def observe(self, loaded: LoadedModel, inputs: Iterable[Batch]) -> list[Any]:
        """What the model says on each input."""
        with torch.no_grad():
            found = [split(self.read(loaded, stack), count) for stack, count in stacks(loaded, inputs)]
        return [said for part in found for said in part]

    def read(self, loaded: LoadedModel, batch: Batch) -> dict[str, torch.Tensor]:
        """One forward call; rows of several inputs come in the inputs' order."""
        return readout(loaded, without_labels(batch))

    def divergence(self, seen: Sequence[Any], reference: Sequence[Any]) -> Values:
        """(inputs,) how far the outputs are from the unpruned model's."""
        return np.array([float(divergence(now, before)) for now, before in zip(seen, reference, strict=True)])

    def loss(self, seen: Sequence[Any], inputs: Sequence[Batch]) -> torch.Tensor:
        """(inputs,) the task's own loss, which has a slope."""
        raise NotImplementedError(f"{type(self).__name__} has no loss of its own.")

    def measure(self, seen: Sequence[Any], reference: Sequence[Any], inputs: Sequence[Batch]) -> dict[str, Values]:
        """Every metric, one value an input."""
        return {"divergence": self.divergence(seen, reference)}

    def losses(self, loaded: LoadedModel, batch: Batch, seed: int) -> list[torch.Tensor]:
        """Scalars to take gradients of; without a loss of its own, the task asks what moves its output at all."""
        return [loss for name, values in self.read(loaded, batch).items() for loss in probes(name, values, seed)]


class LossTask(Task):
    """A task with a loss that each input has by itself."""

    def measure(self, seen: Sequence[Any], reference: Sequence[Any], inputs: Sequence[Batch]) -> dict[str, Values]:
        """Divergence and loss."""
        return {**super().measure(seen, reference, inputs), "loss": self.loss(seen, inputs).double().numpy()}

    def losses(self, loaded: LoadedModel, batch: Batch, seed: int) -> list[torch.Tensor]:
        """The task's own loss."""
        return list(self.loss([self.read(loaded, batch)], [batch]))


class LabelledTask(LossTask):
    """A classifier on inputs that come with ``labels``."""

    metrics = (DIVERGENCE_KL, ACCURACY, LABEL_LOSS)

    def measure(self, seen: Sequence[Any], reference: Sequence[Any], inputs: Sequence[Batch]) -> dict[str, Values]:
        """Divergence, cross entropy and accuracy."""
        pairs = [(now["logits"], batch["labels"].reshape(-1)) for now, batch in zip(seen, inputs, strict=True)]
        right = [float((logits.argmax(-1) == labels).float().mean()) for logits, labels in pairs]
        return {**super().measure(seen, reference, inputs), "accuracy": np.array(right)}

    def loss(self, seen: Sequence[Any], inputs: Sequence[Batch]) -> torch.Tensor:
        """(inputs,) cross entropy."""
        pairs = zip(seen, inputs, strict=True)
        return torch.stack(
            [functional.cross_entropy(now["logits"], batch["labels"].reshape(-1)) for now, batch in pairs]
        )


class CausalTask(LossTask):
    """A language model that predicts the next token."""

    metrics = (DIVERGENCE_KL, TOKEN_LOSS)

    def loss(self, seen: Sequence[Any], inputs: Sequence[Batch]) -> torch.Tensor:
        """(inputs,) next-token loss, whose exponential is the perplexity."""
        return torch.stack([_next_token_loss(now["logits"], batch) for now, batch in zip(seen, inputs, strict=True)])


@dataclass(frozen=True)
class MaskedTask(LossTask):
    """A language model that fills in masked tokens; which 15 % are masked is drawn from each input itself."""

    mask_token_id: int
    share: float = 0.15

    metrics = (DIVERGENCE_KL, TOKEN_LOSS)

    def read(self, loaded: LoadedModel, batch: Batch) -> dict[str, torch.Tensor]:
        """One forward call on the masked inputs."""
        ids = batch["input_ids"].clone()
        for row in ids:
            row[self._masked(row)] = self.mask_token_id
        return readout(loaded, {**without_labels(batch), "input_ids": ids})

    def loss(self, seen: Sequence[Any], inputs: Sequence[Batch]) -> torch.Tensor:
        """(inputs,) loss of the masked tokens."""
        return torch.stack([self._loss(now["logits"], batch) for now, batch in zip(seen, inputs, strict=True)])

    def _loss(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        ids = batch["input_ids"][0]
        places = self._masked(ids)
        return functional.cross_entropy(logits[places], ids[places])

    def _masked(self, ids: torch.Tensor) -> torch.Tensor:
        length = len(ids)
        generator = torch.Generator().manual_seed(int(ids.sum()))
        count = max(1, round(self.share * (length - 2)))
        return 1 + torch.randperm(length - 2, generator=generator)[:count].sort().values


class RetrievalTask(Task):
    """A text embedder: the first half of a text must find its second half among those of all texts."""

    metrics = (DIVERGENCE_COSINE, RETRIEVAL, RETRIEVAL_LOSS)

    @property
    def primary(self) -> Metric:
        """The embeddings themselves: how well halves are found depends on the text, and on some text not on the model.

        (On the bundled play MiniLM finds halves worse than chance, and "improves" when all its heads go.)
        """
        return DIVERGENCE_COSINE

    def read(self, loaded: LoadedModel, batch: Batch) -> dict[str, torch.Tensor]:
        """Embeddings of the two halves of each input, (2 x inputs, width)."""
        halves = [readout(loaded, half)["embedding"] for half in _halves(batch)]
        return {"embedding": torch.stack(halves, dim=1).flatten(0, 1)}

    def measure(self, seen: Sequence[Any], reference: Sequence[Any], inputs: Sequence[Batch]) -> dict[str, Values]:
        """Divergence, reciprocal rank, and the loss of picking the right half by similarity."""
        similarity = _similarity(seen)
        ranks = (similarity >= similarity.diagonal()[:, None]).sum(1)
        own = {"mrr": 1.0 / ranks.double().numpy(), "loss": self.loss(seen, inputs).double().numpy()}
        return {**super().measure(seen, reference, inputs), **own}

    def loss(self, seen: Sequence[Any], inputs: Sequence[Batch]) -> torch.Tensor:
        """(inputs,) loss of picking the right half by similarity."""
        return -functional.log_softmax(_SCALE * _similarity(seen), dim=1).diagonal()


def _similarity(seen: Sequence[Any]) -> torch.Tensor:
    """Cosines of every first half with every second half."""
    first, second = (functional.normalize(torch.stack([s["embedding"][i] for s in seen]), dim=-1) for i in (0, 1))
    return first @ second.T


def find_task(loaded: LoadedModel, inputs: CalibrationInputs) -> Task:
    """The task of a model, from its class and from what its inputs carry."""
    name = type(loaded.model).__name__
    if "labels" in inputs[0]:
        return LabelledTask()
    if loaded.library == "transformers" and name.endswith(("ForCausalLM", "LMHeadModel")):
        return CausalTask()
    mask = getattr(loaded.processor, "mask_token_id", None)
    if loaded.library == "transformers" and name.endswith("ForMaskedLM") and mask is not None:
        return MaskedTask(mask)
    with torch.no_grad():
        said = readout(loaded, without_labels(inputs[0]))
    if "embedding" in said:
        length = inputs[0]["input_ids"].shape[-1] if set(inputs[0]) <= _HALVED and "input_ids" in inputs[0] else 0
        return RetrievalTask() if length >= 8 and len(inputs) > 1 else _EmbeddingTask()
    return Task()


class _EmbeddingTask(Task):
    metrics = (DIVERGENCE_COSINE,)


# Arguments of text models that can be cut in two along the tokens.
_HALVED = {"input_ids", "attention_mask", "token_type_ids"}


def _halves(batch: Batch) -> list[dict[str, torch.Tensor]]:
    """Both halves of a text, each between the special tokens that began and ended the whole."""
    length = batch["input_ids"].shape[-1]
    middle = length // 2
    first = [*range(middle), length - 1]
    second = [0, *range(middle, length)]
    return [{name: value[..., places] for name, value in batch.items()} for places in (first, second)]


def without_labels(batch: Batch) -> dict[str, torch.Tensor]:
    """The arguments of the forward call."""
    return {name: value for name, value in batch.items() if name != "labels"}


def _next_token_loss(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    return functional.cross_entropy(logits[:-1], batch["input_ids"].reshape(-1)[1:])


def divergence(now: dict[str, torch.Tensor], before: dict[str, torch.Tensor]) -> torch.Tensor:
    """KL(before || now) of logits, 1 - cosine of embeddings; the mean over rows and over what the model says."""
    found = []
    for name, old in before.items():
        new = now[name]
        if "logits" in name:
            old_log, new_log = functional.log_softmax(old, -1), functional.log_softmax(new, -1)
            found.append((old_log.exp() * (old_log - new_log)).sum(-1).mean())
        else:
            found.append(1 - functional.cosine_similarity(old, new, dim=-1).mean())
    return torch.stack(found).mean()


def probes(name: str, values: torch.Tensor, seed: int) -> list[torch.Tensor]:
    """Scalars whose squared gradients add up to how much a small change moves the output, at no label's word.

    For logits, the loss of a class drawn from the model's own prediction (its squared gradient is the Fisher
    information); for embeddings, random directions.
    """
    generator = torch.Generator().manual_seed(seed)
    if "logits" in name:
        drawn = torch.multinomial(values.detach().softmax(-1).cpu(), 1, generator=generator).to(values.device)
        return [functional.cross_entropy(values, drawn[:, 0])]
    directions = torch.randn((4, *values.shape), generator=generator).to(values)
    return [(functional.normalize(values, dim=-1) * direction).sum() for direction in directions]
