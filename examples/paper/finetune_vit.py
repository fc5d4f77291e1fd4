"""Fine-tune a pretrained vision transformer on CIFAR-10 as the paper did: one epoch, Adam, 3e-5, cross entropy.

    python examples/paper/finetune_vit.py --data FOLDER --out FOLDER [--model google/vit-base-patch16-224-in21k]

FOLDER holds `cifar10-train.npz` and `cifar10-test.npz`. `reproduce.py vit` fetches them and calls this. A run that was
stopped goes on from OUT/checkpoint.pt.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import AutoImageProcessor, AutoModelForImageClassification

MODEL = "google/vit-base-patch16-224-in21k"
SAVE_EVERY = 200  # steps


def load(path: Path) -> tuple[np.ndarray, torch.Tensor, list[str]]:
    with np.load(path) as file:
        return file["images"], torch.from_numpy(file["labels"]).long(), [str(name) for name in file["classes"]]


def pixels(processor: Any, images: np.ndarray, device: torch.device) -> torch.Tensor:
    """Images as the pretrained model wants them: its own size, mean and deviation."""
    return processor(images=list(images), return_tensors="pt").pixel_values.to(device)


class Progress:
    """How many steps are done, with the state that lets a stopped run go on."""

    def __init__(self, path: Path, model: Any, optimiser: torch.optim.Optimizer) -> None:
        self.path, self.model, self.optimiser, self.steps = path, model, optimiser, 0
        if path.exists():
            state = torch.load(path, weights_only=True, map_location=model.device)
            model.load_state_dict(state["model"])
            optimiser.load_state_dict(state["optimiser"])
            self.steps = state["steps"]

    def save(self) -> None:
        fresh = self.path.with_suffix(".new")
        state = {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict(), "steps": self.steps}
        torch.save(state, fresh)
        fresh.replace(self.path)


def train(model: Any, processor: Any, images: np.ndarray, labels: torch.Tensor, options: argparse.Namespace) -> int:
    """One pass over the images in random order; returns the number of steps."""
    optimiser = torch.optim.Adam(model.parameters(), lr=options.learning_rate)
    progress = Progress(options.out / "checkpoint.pt", model, optimiser)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).split(options.batch)
    model.train()
    for rows in order[progress.steps :]:
        logits = model(pixels(processor, images[rows.numpy()], model.device)).logits
        loss = functional.cross_entropy(logits, labels[rows].to(model.device))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        progress.steps += 1
        if progress.steps % SAVE_EVERY == 0 or progress.steps == len(order):
            print(f"step {progress.steps} of {len(order)}  loss {loss.item():.3f}", flush=True)
            progress.save()
    return progress.steps


@torch.no_grad()
def accuracy(model: Any, processor: Any, images: np.ndarray, labels: torch.Tensor, batch: int) -> float:
    model.eval()
    rows = torch.arange(len(images)).split(batch)
    hits = [
        int((model(pixels(processor, images[some.numpy()], model.device)).logits.argmax(1).cpu() == labels[some]).sum())
        for some in rows
    ]
    return sum(hits) / len(images)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of cifar10-train.npz and cifar10-test.npz")
    parser.add_argument("--out", type=Path, required=True, help="folder for the trained model")
    parser.add_argument("--model", default=MODEL, help="Hub id or folder of a pretrained vision transformer")
    parser.add_argument("--batch", type=int, default=32, help="images a step")
    parser.add_argument("--learning-rate", type=float, default=3e-5)
    parser.add_argument("--images", type=int, help="train on the first images only (default: all)")
    parser.add_argument("--test-images", type=int, help="measure on the first images only (default: all)")
    options = parser.parse_args(given)

    torch.manual_seed(0)
    options.out.mkdir(parents=True, exist_ok=True)
    images, labels, classes = load(options.data / "cifar10-train.npz")
    processor = AutoImageProcessor.from_pretrained(options.model)
    names = dict(enumerate(classes))
    model: Any = AutoModelForImageClassification.from_pretrained(
        options.model, id2label=names, label2id={name: index for index, name in names.items()}
    ).to("cuda" if torch.cuda.is_available() else "cpu")
    steps = train(model, processor, images[: options.images], labels[: options.images], options)
    test_images, test_labels, _ = load(options.data / "cifar10-test.npz")
    some = slice(options.test_images)
    result = {
        "model": options.model,
        "steps": steps,
        "learning_rate": options.learning_rate,
        "test_accuracy": accuracy(model, processor, test_images[some], test_labels[some], options.batch),
    }
    model.save_pretrained(options.out)
    processor.save_pretrained(options.out)
    (options.out / "training.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
