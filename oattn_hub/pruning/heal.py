"""Minutes of distillation after a cut: the output projections learn to give the model the unpruned one's outputs.

The loss is the divergence from the unpruned model (KL of logits, 1 - cosine of embeddings), so no label is needed.
The unpruned model's outputs on an input are computed once and kept; of many classes those of the likeliest, and how
likely all others are together. A model that reads from left to right is trained on its longest inputs: they begin like
the short ones, and what a cut costs lies at late positions; and on all the texts of that length that the part of the
data holds which refits see, because few texts are soon known by heart. 16-bit weights are trained in 32 bits where that
is faster.
Every so often it is measured on inputs that are not trained on. Where a look finds nothing better, training goes back
to the best weights seen and on with a third of the rate, because what suits one model tears another apart; where it
helps, the rate grows again, so that one unlucky look does not slow down all that follows. Training ends when several
looks in a row found nothing better, or when the time is over. What comes out is verified like a plan.
In the place of the output projections, low-rank additions to every linear layer of the pruned blocks can be trained
(LoRA, Hu et al. 2021, arXiv 2106.09685, through PEFT); they are merged, so the checkpoint has the same shape.
Distillation: Hinton, Vinyals, Dean 2015 (arXiv 1503.02531).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import nn

from oattn_hub.errors import InvalidInput
from oattn_hub.inputs import CalibrationInputs
from oattn_hub.inputs.types import Data
from oattn_hub.models.load import LoadedModel, Source, load_model
from oattn_hub.models.options import LoadAgain
from oattn_hub.pruning.bench import Bench, Question
from oattn_hub.pruning.origin import Healing
from oattn_hub.pruning.precision import in_fast_precision
from oattn_hub.pruning.roles import all_to_fit
from oattn_hub.pruning.sites import head_sites
from oattn_hub.pruning.stacks import Batch, split, stacks
from oattn_hub.pruning.tasks import CausalTask, Outputs, Task, divergence, without_labels

if TYPE_CHECKING:
    from oattn_hub.pruning.pruned import PrunedModel

# Inputs of one step, steps between two looks, looks without progress that end the training, and inputs of one look.
_BATCH, _STEPS, _PATIENCE, _SEEN = 4, 12, 5, 24
# Long texts to train on at most; more than some minutes get to read.
_TEXTS = 512
# What the rate is divided by where training made nothing better, and multiplied with where it did.
_SLOWER, _FASTER = 3.0, 1.5
# So many of the likeliest classes are kept of the unpruned model's outputs; all of them where there are not many more.
_LIKELIEST = 256


@dataclass(frozen=True)
class Look:
    """The loss on inputs that are not trained on, after so many steps and seconds."""

    step: int
    seconds: float
    loss: float


def heal(
    pruned: PrunedModel,
    model: Source | None = None,
    *,
    data: Data = None,
    calibration: Data = None,
    minutes: float = 5.0,
    inputs: int | None = None,
    tokens: int | None = None,
    lengths: Sequence[int] | None = None,
    rate: float = 3e-4,
    lora: int | None = None,
    seed: int = 0,
    report: Callable[[Look], None] = lambda _: None,
    **permissions: Unpack[LoadAgain],
) -> PrunedModel:
    """Train the output projections of a pruned model for a few minutes and measure what it costs now.

    Args:
        pruned: the model to heal; it is not changed.
        model: the unpruned model; None is the one the plan was made for.
        data, calibration, inputs, tokens, lengths, seed: as for a plan; trained on what a plan would be fitted to.
        minutes: how long at most.
        rate: the learning rate (Adam) at the start; it falls as the time runs out and where it is too high.
        lora: train additions of this rank to all linear layers of the blocks, and no output projection as a whole.
        report: called after every look.
        permissions: what only the caller may grant to load the unpruned model: ``allow_pickle``, ``token`` …
    """
    _check_wish(pruned, minutes, lora)
    teacher = load_model(model, **permissions) if model is not None else pruned.plan.load(**permissions)
    question = Question(None, data, calibration, inputs, tokens, lengths, adapter=pruned.plan.adapter, seed=seed)
    bench = Bench(teacher, question)
    student = replace(pruned.loaded, model=copy.deepcopy(pruned.model).eval())
    wanted = {name: parameter.requires_grad for name, parameter in student.model.named_parameters()}
    train, held_out = _seen(bench)
    with in_fast_precision(teacher.model), in_fast_precision(student.model):
        additions = None if lora is None else Additions(teacher, student, pruned.plan.adapter, lora)
        weights = additions.weights if additions else trained_parameters(teacher, student, pruned.plan.adapter)
        healer = _Healer(teacher, student, bench.task, weights, rate, seed)
        looks = healer.run(train, held_out, 60 * minutes, report)
        if additions:
            additions.merge()
    for name, parameter in student.model.named_parameters():
        parameter.requires_grad_(wanted[name])
    healing: Healing = {
        "trained": additions.description if additions else "output projections of the attention layers",
        "parameters": sum(weight.numel() for weight in weights.values()),
        "trained_on": train.description,
        "inputs": train.fingerprint,
        "steps": looks[-1].step,
        "seconds": round(looks[-1].seconds, 1),
        "rate": rate,
        "before": looks[0].loss,
        "after": min(one.loss for one in looks),
    }
    plan = replace(pruned.plan, cost=bench.cost_of(student), healing=healing, refits=None)
    probe = pruned.probe or without_labels(bench.roles.check[0][0])
    return replace(pruned, model=student.model, plan=plan, loaded=student, probe=probe)


def _seen(bench: Bench) -> tuple[CalibrationInputs, list[Batch]]:
    """What to train on, and what is looked at in between."""
    train, parts = bench.roles.fit, bench.roles.choice
    each = max(1, _SEEN // len(parts))
    if isinstance(bench.whole_task, CausalTask) and len(parts) > 1:  # the same texts at several lengths
        asked = bench.question
        train = all_to_fit(bench.loaded, asked.data, asked.calibration, bench.lengths[-1], asked.seed, _TEXTS)
        parts = parts[-1:]
    return train, [batch for part in parts for batch in part[:each]]


def _check_wish(pruned: PrunedModel, minutes: float, lora: int | None) -> None:
    if not minutes > 0:
        raise InvalidInput(f"minutes is {minutes}; give a time above 0.")
    if not pruned.plan.heads:
        raise InvalidInput("No head was removed from this model, so there is nothing to heal.")
    if lora is not None and lora < 1:
        raise InvalidInput(f"lora is {lora}; give a rank of 1 or more, or None to train the output projections.")


def trained_parameters(teacher: LoadedModel, student: LoadedModel, adapter: str | None) -> dict[str, nn.Parameter]:
    """Weights and biases of the student's output projections, found by their names in the unpruned model."""
    names = {id(parameter): name for name, parameter in teacher.model.named_parameters()}
    found = {names[id(site.output_tensor[0])] for site in head_sites(teacher.model, adapter)}
    found |= {f"{name.removesuffix('weight')}bias" for name in found if name.endswith("weight")}
    own = dict(student.model.named_parameters())
    return {name: own[name] for name in sorted(found & set(own))}


class Additions:
    """Low-rank additions to the linear layers of a student's blocks; trained, then merged into them."""

    def __init__(self, teacher: LoadedModel, student: LoadedModel, adapter: str | None, rank: int) -> None:
        try:
            from peft import LoraConfig, inject_adapter_in_model
        except ImportError as error:
            raise InvalidInput("Training with LoRA needs PEFT: pip install peft.") from error
        blocks = {site.module_name.rpartition(".")[0] for site in head_sites(teacher.model, adapter)}
        names = [
            name
            for name, module in student.model.named_modules()
            if isinstance(module, nn.Linear) and any(name.startswith(f"{block}.") for block in blocks)
        ]
        if not names:
            raise InvalidInput("No linear layer was found in the pruned blocks, so LoRA has nothing to add to.")
        self.model = student.model
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # the additions begin at random, and a healing can be repeated
            inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=rank, target_modules=names), self.model)
        self.weights = {name: one for name, one in self.model.named_parameters() if ".lora_" in name}
        self.description = f"additions of rank {rank} to {len(names)} linear layers, merged afterwards"

    def merge(self) -> None:
        """Add them to the weights and take them off."""
        from peft.tuners.tuners_utils import BaseTunerLayer

        for name, layer in list(self.model.named_modules()):
            if isinstance(layer, BaseTunerLayer):
                layer.merge(safe_merge=False)
                self.model.set_submodule(name, layer.get_base_layer())


class _Teacher:
    """The unpruned model's outputs on each input, computed once and kept in few numbers."""

    def __init__(self, loaded: LoadedModel, task: Task) -> None:
        self.loaded, self.task = loaded, task
        # by the input's identity: the inputs outlive the training
        self.known: dict[int, _Answer] = {}

    def answers(self, inputs: Sequence[Batch]) -> list[_Answer]:
        """For each input."""
        new = [batch for batch in inputs if id(batch) not in self.known]
        with torch.no_grad():
            outputs = [
                one
                for stack, count in stacks(self.loaded, new)
                for one in split(self.task.read(self.loaded, stack), count)
            ]
        self.known |= {id(batch): _Answer.of(one) for batch, one in zip(new, outputs, strict=True)}
        return [self.known[id(batch)] for batch in inputs]


@dataclass(frozen=True, eq=False)
class _Answer:
    """A model's outputs on one input; of many classes the likeliest, and all others together."""

    outputs: Outputs
    places: dict[str, torch.Tensor]

    @classmethod
    def of(cls, outputs: Outputs) -> _Answer:
        """The few numbers of a whole answer."""
        places = {
            name: values.topk(_LIKELIEST, -1).indices
            for name, values in outputs.items()
            if "logits" in name and values.shape[-1] > 2 * _LIKELIEST
        }
        return cls({name: _few(values, places.get(name)) for name, values in outputs.items()}, places)

    def divergence(self, now: Outputs) -> torch.Tensor:
        """How far another answer is from this one."""
        return divergence({name: _few(now[name], self.places.get(name)) for name in self.outputs}, self.outputs)


def _few(values: torch.Tensor, places: torch.Tensor | None) -> torch.Tensor:
    """Logits of some classes, and one of all others; everything where no classes are named."""
    if places is None:
        return values.clone()  # the stack it was cut out of need not be kept
    found = values.gather(-1, places) - values.logsumexp(-1, keepdim=True)
    rest = torch.log1p(-found.exp().sum(-1, keepdim=True).clamp_max(1 - 1e-6))
    return torch.cat([found, rest], -1)


class _Healer:
    """One training run."""

    def __init__(
        self,
        teacher: LoadedModel,
        student: LoadedModel,
        task: Task,
        weights: dict[str, nn.Parameter],
        rate: float,
        seed: int,
    ) -> None:
        self.teacher, self.student, self.task, self.weights = _Teacher(teacher, task), student, task, weights
        self.generator = torch.Generator().manual_seed(seed)
        for name, parameter in student.model.named_parameters():
            parameter.requires_grad_(name in weights)
        # Steps are smaller than what 16 bits can add to a weight, so they are taken in 32.
        self.exact = {name: weight.detach().float().clone() for name, weight in weights.items()}
        self.rate = self.highest = rate
        self.optimiser = torch.optim.Adam(self.exact.values(), lr=rate)

    def run(
        self, train: Sequence[Batch], held_out: Sequence[Batch], seconds: float, report: Callable[[Look], None]
    ) -> list[Look]:
        """Train until the time is over or nothing gets better; the best weights seen stay in the student."""
        start = time.perf_counter()
        looks = [Look(0, 0.0, self._loss(held_out))]
        report(looks[0])
        best, kept = looks[0].loss, self._state()
        while time.perf_counter() - start < seconds and self._may_improve(looks):
            steps = self._steps(train, start, seconds)
            looks.append(Look(looks[-1].step + steps, time.perf_counter() - start, self._loss(held_out)))
            report(looks[-1])
            if looks[-1].loss < best:
                best, kept = looks[-1].loss, self._state()
                self.rate = min(self.highest, _FASTER * self.rate)
            else:
                self._go_back(kept)
        self._go_back(kept)
        return looks

    def _may_improve(self, looks: Sequence[Look]) -> bool:
        best = min(range(len(looks)), key=lambda number: looks[number].loss)
        return len(looks) - 1 - best < _PATIENCE

    def _state(self) -> dict[str, torch.Tensor]:
        return {name: weight.clone() for name, weight in self.exact.items()}

    def _go_back(self, kept: dict[str, torch.Tensor]) -> None:
        """To these weights, with a slower optimiser that remembers nothing."""
        with torch.no_grad():
            for name, weight in self.weights.items():
                self.exact[name].copy_(kept[name])
                weight.copy_(kept[name])
        self.rate /= _SLOWER
        self.optimiser = torch.optim.Adam(self.exact.values(), lr=self.rate)

    def _steps(self, train: Sequence[Batch], start: float, seconds: float) -> int:
        """A few steps on inputs of one length each, drawn anew."""
        for done in range(_STEPS):
            left = 1 - (time.perf_counter() - start) / seconds
            if done and left <= 0:
                return done
            for group in self.optimiser.param_groups:
                group["lr"] = self.rate * max(left, 0.0)
            first = train[int(torch.randint(len(train), (1,), generator=self.generator))]
            alike = [batch for batch in train if _shapes(batch) == _shapes(first)]
            order = torch.randperm(len(alike), generator=self.generator)[:_BATCH].tolist()
            with torch.enable_grad():
                for loss in self._losses([alike[place] for place in order]):
                    (loss / len(order)).backward()
            self._step()
        return _STEPS

    def _step(self) -> None:
        for name, weight in self.weights.items():
            self.exact[name].grad = None if weight.grad is None else weight.grad.float()
            weight.grad = None
        self.optimiser.step()
        with torch.no_grad():
            for name, weight in self.weights.items():
                weight.copy_(self.exact[name])

    def _losses(self, inputs: Sequence[Batch]) -> Iterator[torch.Tensor]:
        """For each stack of inputs the sum of their divergences."""
        before = iter(self.teacher.answers(inputs))
        for stack, count in stacks(self.student, inputs):
            now = split(self.task.read(self.student, stack), count)
            yield torch.stack([next(before).divergence(one) for one in now]).sum()

    def _loss(self, inputs: Sequence[Batch]) -> float:
        with torch.no_grad():
            return sum(float(loss) for loss in self._losses(inputs)) / len(inputs)


def _shapes(batch: Batch) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in batch.items()}


def open_pruned(folder: str | Path) -> PrunedModel:
    """A pruned checkpoint as the object that it was saved from."""
    from oattn_hub.pruning.manifest import read_manifest
    from oattn_hub.pruning.pruned import PrunedModel
    from oattn_hub.records import PRUNING_KEY

    manifest = read_manifest(Path(folder))
    loaded = load_model(folder)
    model: Any = loaded.model
    described = (getattr(getattr(model, "config", None), PRUNING_KEY, None), getattr(model, PRUNING_KEY, None))
    cuts = next((one for one in (*described, manifest.cuts) if one is not None), None)  # a plain config has none
    if cuts is None:
        raise InvalidInput(f"{folder} keeps the original shape (variant {manifest.variant!r}); heal a cut one.")
    return PrunedModel(model, manifest.plan, cuts, manifest.result, loaded)
