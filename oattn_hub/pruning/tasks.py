"""What a model is for, and how much worse it does it: label-free divergence for any model, and the task's own metric.

A task runs the model on every input (``observe``) and compares its outputs with those of the unpruned model.
Every metric is one number per input, so that intervals come by bootstrap over inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from oattn_hub.inputs import CalibrationInputs
from oattn_hub.models.load import LoadedModel
from oattn_hub.pruning.readout import readout
from oattn_hub.pruning.stacks import fitting, split, stacks

Values = NDArray[np.float64]
Batch = Mapping[str, torch.Tensor]
Outputs = dict[str, torch.Tensor]


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
TOKEN_LOSS = Metric("loss", "loss per token (nats)")
LABEL_LOSS = Metric("loss", "cross entropy")
ACCURACY = Metric("accuracy", "accuracy", higher_is_better=True)
RETRIEVAL = Metric("mrr", "mean reciprocal rank of a text's other half", higher_is_better=True)
RETRIEVAL_LOSS = Metric("loss", "retrieval loss of a text's other half")
PAIR_RETRIEVAL = Metric("mrr", "mean reciprocal rank of a text's partner", higher_is_better=True)
PAIR_LOSS = Metric("loss", "retrieval loss of a text's partner")
# Metrics that count right answers: a few hundred inputs move them by per cents, so they cannot separate two rankings.
COUNTED = ("accuracy", "mrr")
# Similarities are multiplied by this before the softmax, as sentence embedders are trained.
_SCALE = 20.0
# Masked tokens that the loss of a text is taken from, in several draws if the text is short.
_FILLED = 48
# Random directions of an embedding that its curvature is taken from.
_DIRECTIONS = 4
# What an embedder says about the halves of a text: for retrieval, no part of the divergence.
_HALVES = ("first", "second")


class Task:
    """A model with logits or embeddings and nothing more known about it; others build on it."""

    metrics: tuple[Metric, ...] = (DIVERGENCE_KL,)

    @property
    def primary(self) -> Metric:
        """The metric a budget is about: the task's loss where there is one. Smooth, unlike ranks and accuracies."""
        return self.metrics[-1]

    def about(self, metric: Metric) -> Task:
        """The task that measures this metric, and no more than it needs to."""
        return self

    def shown(self, inputs: CalibrationInputs) -> CalibrationInputs:
        """What the model is given of each input, for those who watch it at work."""
        return inputs

    def observe(self, loaded: LoadedModel, inputs: Iterable[Batch]) -> list[Outputs]:
        """The model's outputs on each input."""
        with torch.no_grad():
            found = [split(self.read(loaded, stack), count) for stack, count in stacks(loaded, inputs)]
        return [outputs for part in found for outputs in part]

    def read(self, loaded: LoadedModel, batch: Batch) -> Outputs:
        """One forward call; rows of several inputs come in the inputs' order."""
        return readout(loaded, without_labels(batch))

    def divergence(self, seen: Sequence[Outputs], reference: Sequence[Outputs]) -> Values:
        """(inputs,) how far the outputs are from the unpruned model's."""
        return np.array([float(divergence(now, before)) for now, before in zip(seen, reference, strict=True)])

    def loss(self, seen: Sequence[Outputs], inputs: Sequence[Batch]) -> torch.Tensor:
        """(inputs,) the task's own loss, which has a slope."""
        raise NotImplementedError(f"{type(self).__name__} has no loss of its own.")

    def samples(
        self, metric: Metric, seen: Sequence[Outputs], inputs: Sequence[Batch], seed: int
    ) -> list[torch.Tensor]:
        """Random scalars whose squared slopes are, in the mean, the metric's curvature; each a sum over inputs.

        A loss or a divergence is a mean over rows (tokens). Signs are drawn for the rows, so that products of slopes
        of different rows cancel in the mean over draws.
        """
        drawn = [
            self._scalars(metric, outputs, batch, torch.Generator().manual_seed(seed + number))
            for number, (outputs, batch) in enumerate(zip(seen, inputs, strict=True))
        ]
        return [torch.stack(parts).sum() for parts in zip(*drawn, strict=True)]

    def _scalars(
        self, metric: Metric, outputs: Outputs, batch: Batch, generator: torch.Generator
    ) -> list[torch.Tensor]:
        of_parts = [
            _curvature_scalars(name, value, generator) for name, value in outputs.items() if name not in _HALVES
        ]
        return [torch.stack(parts).sum() / len(parts) ** 0.5 for parts in zip(*of_parts, strict=True)]

    def measure(
        self, seen: Sequence[Outputs], reference: Sequence[Outputs], inputs: Sequence[Batch]
    ) -> dict[str, Values]:
        """Every metric, one value per input."""
        return {"divergence": self.divergence(seen, reference)}

    def losses(self, loaded: LoadedModel, batch: Batch, seed: int) -> list[torch.Tensor]:
        """Scalars to take gradients of; without a loss of its own, the task asks what moves its output at all."""
        outputs = readout(loaded, without_labels(batch))
        return [loss for name, values in outputs.items() for loss in probes(name, values, seed)]


class LossTask(Task):
    """A task with a loss that each input has by itself."""

    def row_losses(self, outputs: Outputs, batch: Batch) -> torch.Tensor:
        """(rows,) the loss of each token, or of each label, of one input."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its loss is.")

    def loss(self, seen: Sequence[Outputs], inputs: Sequence[Batch]) -> torch.Tensor:
        """(inputs,) the mean over rows."""
        return torch.stack([self.row_losses(now, batch).mean() for now, batch in zip(seen, inputs, strict=True)])

    def _scalars(
        self, metric: Metric, outputs: Outputs, batch: Batch, generator: torch.Generator
    ) -> list[torch.Tensor]:
        if metric.name == "divergence":
            return super()._scalars(metric, outputs, batch, generator)
        return [_signed_sum(self.row_losses(outputs, batch), generator)]

    def measure(
        self, seen: Sequence[Outputs], reference: Sequence[Outputs], inputs: Sequence[Batch]
    ) -> dict[str, Values]:
        """Divergence and loss."""
        return {**super().measure(seen, reference, inputs), "loss": self.loss(seen, inputs).double().numpy()}

    def losses(self, loaded: LoadedModel, batch: Batch, seed: int) -> list[torch.Tensor]:
        """The task's own loss."""
        return list(self.loss([self.read(loaded, batch)], [batch]))

    def about(self, metric: Metric) -> Task:
        """If only the loss counts, nothing else is kept or computed."""
        return LossOnly(self, metric) if metric.name == "loss" else self


class LossOnly(Task):
    """A task of which only the loss counts: the model's outputs are turned into it at once.

    Logits of a large vocabulary would fill the memory, and their divergence takes longer than the model itself.
    Slopes are those of ``whole``; the loss is that of ``measured``, if that is another.
    """

    def __init__(self, whole: LossTask, metric: Metric, measured: LossTask | None = None) -> None:
        self.whole, self.metrics = measured or whole, (metric,)
        self.read, self.samples, self.losses = whole.read, whole.samples, whole.losses  # type: ignore[method-assign]

    def observe(self, loaded: LoadedModel, inputs: Iterable[Batch]) -> list[Outputs]:
        """The loss of each input."""
        left = iter(inputs)
        found: list[Outputs] = []
        with torch.no_grad():
            for stack, count in stacks(loaded, inputs):
                outputs = split(self.whole.read(loaded, stack), count)
                losses = self.whole.loss(outputs, [next(left) for _ in range(count)])
                found += [{self.primary.name: loss} for loss in losses]
        return found

    def measure(
        self, seen: Sequence[Outputs], reference: Sequence[Outputs], inputs: Sequence[Batch]
    ) -> dict[str, Values]:
        """The losses as they are."""
        return {self.primary.name: np.array([float(one[self.primary.name]) for one in seen])}


class LabelledTask(LossTask):
    """A model with logits on inputs that come with ``labels``: a class, or the tokens of a transcript."""

    metrics = (DIVERGENCE_KL, ACCURACY, LABEL_LOSS)

    def measure(
        self, seen: Sequence[Outputs], reference: Sequence[Outputs], inputs: Sequence[Batch]
    ) -> dict[str, Values]:
        """Divergence, cross entropy and accuracy."""
        pairs = [self._counted(now, batch) for now, batch in zip(seen, inputs, strict=True)]
        right = [float((logits.argmax(-1) == labels).float().mean()) for logits, labels in pairs]
        return {**super().measure(seen, reference, inputs), "accuracy": np.array(right)}

    def row_losses(self, outputs: Outputs, batch: Batch) -> torch.Tensor:
        """(rows,) cross entropy."""
        return functional.cross_entropy(*self._counted(outputs, batch), reduction="none")

    def _counted(self, outputs: Outputs, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and labels of the rows that have one; others are marked by a negative number."""
        labels = batch["labels"].reshape(-1)
        return outputs["logits"][labels >= 0], labels[labels >= 0]


class CausalTask(LossTask):
    """A language model that predicts the next token."""

    metrics = (DIVERGENCE_KL, TOKEN_LOSS)

    def row_losses(self, outputs: Outputs, batch: Batch) -> torch.Tensor:
        """(tokens - 1,) next-token loss; the exponential of its mean is the perplexity."""
        return functional.cross_entropy(outputs["logits"][:-1], batch["input_ids"].reshape(-1)[1:], reduction="none")


@dataclass(frozen=True)
class MaskedTask(LossTask):
    """A language model that fills in masked tokens; which 15 % are masked is drawn from each input itself."""

    mask_token_id: int
    share: float = 0.15

    metrics = (DIVERGENCE_KL, TOKEN_LOSS)

    def shown(self, inputs: CalibrationInputs) -> CalibrationInputs:
        """With masked tokens: what heads say there is what the loss hears, and unmasked text holds none of it."""
        masked = tuple({**batch, "input_ids": self._hidden(batch)} for batch in inputs)
        return CalibrationInputs(masked, f"{inputs.description}, {self.share:.0%} of it masked", inputs.tokens)

    def read(self, loaded: LoadedModel, batch: Batch) -> Outputs:
        """One forward call on the masked inputs."""
        return readout(loaded, {**without_labels(batch), "input_ids": self._hidden(batch)})

    def _hidden(self, batch: Batch) -> torch.Tensor:
        ids = batch["input_ids"].clone()
        for row in ids:
            row[self._masked(row)] = self.mask_token_id
        return ids

    def row_losses(self, outputs: Outputs, batch: Batch) -> torch.Tensor:
        """(masked tokens,) their loss."""
        ids = batch["input_ids"][0]
        places = self._masked(ids)
        return functional.cross_entropy(outputs["logits"][places], ids[places], reduction="none")

    def about(self, metric: Metric) -> Task:
        """The loss alone is measured at more tokens of the same texts."""
        measured = FilledTask(self.mask_token_id, self.share)
        return LossOnly(self, metric, measured) if metric.name == "loss" else self

    def _masked(self, ids: torch.Tensor, draw: int = 0) -> torch.Tensor:
        """The places of one draw; draws of one text share none."""
        drawn = torch.randperm(len(ids) - 2, generator=torch.Generator().manual_seed(int(ids.sum())))
        count = self._count(ids)
        return 1 + drawn[draw * count : (draw + 1) * count].sort().values

    def _count(self, ids: torch.Tensor) -> int:
        return max(1, round(self.share * (len(ids) - 2)))


class FilledTask(MaskedTask):
    """The same loss from several draws of masked tokens for each text, and nothing but their logits.

    A short text has few masked tokens: a sequence of 45 tokens has six, and a bound from 64 such texts is so wide that
    it allows no head, however little that head costs. Every draw masks other tokens.
    """

    def read(self, loaded: LoadedModel, batch: Batch) -> Outputs:
        """(masked tokens of the first input, of the second, ...; vocabulary)."""
        ids = batch["input_ids"]
        places = torch.stack([one for row in ids for one in self._places(row)])
        draws = len(places) // len(ids)
        rows = {name: value.repeat_interleave(draws, 0) for name, value in without_labels(batch).items()}
        rows["input_ids"].scatter_(1, places, self.mask_token_id)
        size = fitting(batch, len(places))
        found = []
        for start in range(0, len(places), size):
            at = places[start : start + size]
            said = readout(loaded, {name: value[start : start + size] for name, value in rows.items()})["logits"]
            found.append(said.unflatten(0, (len(at), -1)).take_along_dim(at[..., None].to(said.device), 1))
        return {"logits": torch.cat(found).flatten(0, 1)}

    def row_losses(self, outputs: Outputs, batch: Batch) -> torch.Tensor:
        """(masked tokens of all draws,) their loss."""
        wanted = torch.cat([row[at] for row in batch["input_ids"] for at in self._places(row)])
        return functional.cross_entropy(outputs["logits"], wanted, reduction="none")

    def _places(self, ids: torch.Tensor) -> list[torch.Tensor]:
        return [self._masked(ids, draw) for draw in range(self._draws(ids))]

    def _draws(self, ids: torch.Tensor) -> int:
        """As many as give _FILLED masked tokens, if the text has so many."""
        count = self._count(ids)
        return max(1, min(-(-_FILLED // count), (len(ids) - 2) // count))


class EmbeddingTask(Task):
    """An embedder: whole inputs, as its users embed them."""

    metrics: tuple[Metric, ...] = (DIVERGENCE_COSINE,)


class RetrievalTask(EmbeddingTask):
    """A text embedder whose texts can be halved: the first half of a text must find its second among all texts'.

    The budget is about the embeddings of whole texts: how well halves are found depends on the text, and on some text
    not on the model. (On the bundled play MiniLM finds halves worse than chance, and "improves" without its heads.)
    """

    metrics = (DIVERGENCE_COSINE, RETRIEVAL, RETRIEVAL_LOSS)

    @property
    def primary(self) -> Metric:
        """The embeddings themselves."""
        return DIVERGENCE_COSINE

    def about(self, metric: Metric) -> Task:
        """Without the halves, if the metric does not need them: a third of the work."""
        return EmbeddingTask() if metric.name == "divergence" else self

    def read(self, loaded: LoadedModel, batch: Batch) -> Outputs:
        """Embeddings of each input and of its two halves, (inputs, width)."""
        first, second = (readout(loaded, half)["embedding"] for half in _halves(batch))
        return {**readout(loaded, without_labels(batch)), "first": first, "second": second}

    def measure(
        self, seen: Sequence[Outputs], reference: Sequence[Outputs], inputs: Sequence[Batch]
    ) -> dict[str, Values]:
        """Divergence of whole texts, reciprocal rank, and the loss of picking the right half by similarity."""
        similarity = _similarity(seen)
        ranks = (similarity >= similarity.diagonal()[:, None]).sum(1)
        own = {"mrr": 1.0 / ranks.double().numpy(), "loss": self.loss(seen, inputs).double().numpy()}
        return {**super().measure(seen, reference, inputs), **own}

    def loss(self, seen: Sequence[Outputs], inputs: Sequence[Batch]) -> torch.Tensor:
        """(inputs,) loss of picking the right half by similarity."""
        return -functional.log_softmax(_SCALE * _similarity(seen), dim=1).diagonal()


class PairsTask(RetrievalTask):
    """An embedder on texts that come with a partner: a text must find its own among all partners."""

    metrics = (DIVERGENCE_COSINE, PAIR_RETRIEVAL, PAIR_LOSS)

    def read(self, loaded: LoadedModel, batch: Batch) -> Outputs:
        """Embeddings of each text and of its partner, whose tokens lie under ``labels``."""
        text = readout(loaded, without_labels(batch))
        return {
            **text,
            "first": text["embedding"],
            "second": readout(loaded, {"input_ids": batch["labels"]})["embedding"],
        }


def _similarity(seen: Sequence[Outputs]) -> torch.Tensor:
    """Cosines of every first half with every second half."""
    first, second = (functional.normalize(torch.cat([s[half] for s in seen]), dim=-1) for half in _HALVES)
    return first @ second.T


def find_task(loaded: LoadedModel, inputs: CalibrationInputs) -> Task:
    """The task of a model, from its class and from what its inputs carry."""
    name = type(loaded.model).__name__
    if "labels" in inputs[0]:
        with torch.no_grad():
            outputs = readout(loaded, without_labels(inputs[0]))
        return PairsTask() if "embedding" in outputs else LabelledTask()
    if loaded.library == "transformers" and name.endswith(("ForCausalLM", "LMHeadModel")):
        return CausalTask()
    mask = getattr(loaded.processor, "mask_token_id", None)
    if loaded.library == "transformers" and name.endswith("ForMaskedLM") and mask is not None:
        return MaskedTask(mask)
    with torch.no_grad():
        outputs = readout(loaded, without_labels(inputs[0]))
    if "embedding" in outputs:
        length = inputs[0]["input_ids"].shape[-1] if set(inputs[0]) <= _HALVED and "input_ids" in inputs[0] else 0
        return RetrievalTask() if length >= 8 and len(inputs) > 1 else EmbeddingTask()
    return Task()


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


def _signed_sum(losses: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    signs: torch.Tensor = torch.randint(0, 2, losses.shape, generator=generator).to(losses) * 2 - 1
    return (losses * signs).sum() / math.sqrt(len(losses))


def _curvature_scalars(name: str, values: torch.Tensor, generator: torch.Generator) -> list[torch.Tensor]:
    """For logits the loss of classes drawn from the prediction itself, for embeddings random directions."""
    if "logits" in name:
        drawn = torch.multinomial(values.detach().softmax(-1).cpu(), 1, generator=generator)[:, 0].to(values.device)
        return [_signed_sum(functional.cross_entropy(values, drawn, reduction="none"), generator)]
    directions = torch.randn((_DIRECTIONS, *values.shape), generator=generator).to(values)
    unit = functional.normalize(values, dim=-1)
    return [(unit * direction).sum() / len(values) ** 0.5 for direction in directions]


def divergence(now: Outputs, before: Outputs) -> torch.Tensor:
    """KL(before || now) of logits, 1 - cosine of embeddings; the mean over rows and over the model's outputs."""
    found = []
    for name, old in before.items():
        if name in _HALVES:
            continue
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
