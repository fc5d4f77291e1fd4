"""What the two training scripts share: a time budget that survives a restart, and the learning rate that follows it."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

WARMUP = 0.04  # share of the budget


class Budget:
    """Minutes given to a training run. The rate falls to 1 % of its peak along a cosine just when they are used up.

    Args:
        minutes: Training time; evaluation and waiting between steps do not count.
        peak: Highest learning rate.
        checkpoint: File that keeps model, optimiser and used time, so that a stopped run goes on.
    """

    def __init__(self, minutes: float, peak: float, checkpoint: Path, model: Any, optimiser: torch.optim.Optimizer):
        self.seconds, self.peak, self.checkpoint = 60 * minutes, peak, checkpoint
        self.model, self.optimiser = model, optimiser
        self.used, self.epoch = 0.0, 0
        if checkpoint.exists():
            state = torch.load(checkpoint, weights_only=True)
            model.load_state_dict(state["model"])
            optimiser.load_state_dict(state["optimiser"])
            self.used, self.epoch = state["used"], state["epoch"]

    @property
    def share(self) -> float:
        """How much of the time is used, 0 to 1."""
        return min(1.0, self.used / self.seconds)

    @property
    def is_left(self) -> bool:
        return self.used < self.seconds

    @contextmanager
    def step(self) -> Iterator[None]:
        """One training step: sets the learning rate, then counts the time of what is inside."""
        rate = self.peak * min(1.0, self.share / WARMUP) * (0.01 + 0.495 * (1 + math.cos(math.pi * self.share)))
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        started = time.monotonic()
        yield
        self.used += time.monotonic() - started

    def end_epoch(self, message: str) -> None:
        """Save the state and say how far the run is."""
        self.epoch += 1
        print(f"{self.used / 60:5.1f} min  epoch {self.epoch}  {message}", flush=True)
        state = {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict()}
        fresh = self.checkpoint.with_suffix(".new")
        torch.save({**state, "used": self.used, "epoch": self.epoch}, fresh)
        fresh.replace(self.checkpoint)
