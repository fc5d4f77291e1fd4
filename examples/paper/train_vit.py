"""Train the small CIFAR-10 vision transformer of this folder: 6 layers x 8 heads, 65 tokens, under 5 MB.

    python examples/paper/train_vit.py --data FOLDER --out examples/paper/vit_cifar10 --minutes 65

FOLDER holds `cifar10-train.npz` and `cifar10-test.npz` (`images` uint8 (n, 32, 32, 3), `labels`, `classes`).
The budget is time, not epochs: learning rate and token dropping follow the share of `--minutes` used, so that the
schedule ends on time on a busy machine. A run that was stopped goes on from `--checkpoint`. The test images are
looked at once, at the end; 500 training images are kept back for watching.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from training import Budget
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

BATCH = 64
HELD_OUT = 500
PEAK_LEARNING_RATE = 1e-3
ALL_TOKENS_FROM = 0.75  # before this share of the budget half of the patches are dropped: twice the images a second
MEAN, STD = (0.491, 0.482, 0.447), (0.247, 0.243, 0.262)


def build_model(classes: list[str]) -> ViTForImageClassification:
    """An untrained model; attention starts near the identity (mimetic initialisation, Trockman and Kolter 2023)."""
    config = ViTConfig(
        image_size=32,
        patch_size=4,
        hidden_size=128,
        num_hidden_layers=6,
        num_attention_heads=8,
        intermediate_size=256,
        id2label=dict(enumerate(classes)),
        label2id={name: index for index, name in enumerate(classes)},
    )
    model = ViTForImageClassification(config)
    with torch.no_grad():
        model.vit.embeddings.position_embeddings[0, 1:] = sinusoids(side=8, width=config.hidden_size)
        for layer in model.vit.layers:
            start_near_identity(layer.attention, config.num_attention_heads)
    return model


def sinusoids(side: int, width: int) -> torch.Tensor:
    """Fixed two-dimensional position waves, (side * side, width)."""
    frequency = 1 / 10000 ** (torch.arange(width // 4) / (width // 4))
    angle = torch.arange(side)[:, None] * frequency
    wave = torch.cat([angle.sin(), angle.cos()], dim=1)
    rows, columns = wave[:, None].expand(side, side, -1), wave[None].expand(side, side, -1)
    return torch.cat([rows, columns], dim=2).reshape(side * side, width)


def start_near_identity(attention: Any, n_heads: int) -> None:
    """Set q'k of each head near +0.7 I and v'o near -0.4 I, which trains faster on few images."""
    width = attention.q_proj.in_features
    head_dim = width // n_heads
    identity = torch.eye(width)

    def noise() -> torch.Tensor:
        return torch.randn(width, width) / math.sqrt(width)

    for head in range(n_heads):
        left, size, right = torch.linalg.svd(0.7 * noise() + 0.7 * identity)
        rows, root = slice(head * head_dim, (head + 1) * head_dim), size[:head_dim].sqrt()
        attention.q_proj.weight[rows] = (left[:, :head_dim] * root).T
        attention.k_proj.weight[rows] = right[:head_dim] * root[:, None]
    left, size, right = torch.linalg.svd(0.4 * noise() - 0.4 * identity)
    attention.v_proj.weight.copy_((left * size.sqrt()).T)
    attention.o_proj.weight.copy_((size.sqrt()[:, None] * right).T)


def classify(model: Any, pixels: torch.Tensor, keep: int | None = None) -> torch.Tensor:
    """Class logits; with `keep`, from the class token and that many random patches of each image."""
    tokens = model.vit.embeddings(pixels)
    if keep is not None:
        chosen = torch.rand(len(tokens), tokens.shape[1] - 1).argsort(1)[:, :keep] + 1
        chosen = torch.cat([torch.zeros(len(tokens), 1, dtype=torch.long), chosen], dim=1)
        tokens = tokens.gather(1, chosen[:, :, None].expand(-1, -1, tokens.shape[2]))
    for layer in model.vit.layers:
        tokens = layer(tokens)
    return model.classifier(model.vit.layernorm(tokens[:, 0]))


def normalise(images: torch.Tensor) -> torch.Tensor:
    return (images.float() / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]


def augment(images: torch.Tensor) -> torch.Tensor:
    """Random crop after reflecting 4 pixels, mirror, brightness and contrast, each image on its own."""
    n = len(images)
    padded = functional.pad(images.float(), (4, 4, 4, 4), mode="reflect")
    window = torch.arange(32)
    rows, columns = torch.randint(0, 9, (n, 1)) + window, torch.randint(0, 9, (n, 1)) + window
    columns = torch.where(torch.rand(n, 1) < 0.5, columns.flip(1), columns)
    cut = padded[torch.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    gain, shift = 1 + 0.5 * (torch.rand(n, 1, 1, 1) - 0.5), 60 * (torch.rand(n, 1, 1, 1) - 0.5)
    return ((cut - 128) * gain + 128 + shift).clamp(0, 255)


@torch.no_grad()
def accuracy(model: Any, images: torch.Tensor, labels: torch.Tensor) -> float:
    model.eval()
    hits = [
        (classify(model, normalise(x)).argmax(1) == y).sum()
        for x, y in zip(images.split(250), labels.split(250), strict=True)
    ]
    model.train()
    return float(sum(hits)) / len(labels)


def load(path: Path) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    with np.load(path) as file:
        images = torch.from_numpy(file["images"]).permute(0, 3, 1, 2).contiguous()
        return images, torch.from_numpy(file["labels"]).long(), [str(name) for name in file["classes"]]


def train(model: Any, images: torch.Tensor, labels: torch.Tensor, minutes: float, checkpoint: Path) -> dict[str, float]:
    """Train until the budget is used; returns what there is to say about the run."""
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimiser = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}])
    budget = Budget(minutes, PEAK_LEARNING_RATE, checkpoint, model, optimiser)
    watch = images[:HELD_OUT], labels[:HELD_OUT]
    images, labels = images[HELD_OUT:], labels[HELD_OUT:]
    model.train()
    while budget.is_left:
        torch.manual_seed(budget.epoch)
        losses = []
        for rows in torch.randperm(len(images)).split(BATCH):
            with budget.step():
                keep = None if budget.share > ALL_TOKENS_FROM else 32
                logits = classify(model, normalise(augment(images[rows])), keep)
                loss = functional.cross_entropy(logits, labels[rows], label_smoothing=0.1)
                optimiser.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimiser.step()
                losses.append(loss.item())
            if not budget.is_left:
                break
        budget.end_epoch(f"loss {np.mean(losses):.3f}  held-out accuracy {accuracy(model, *watch):.3f}")
    return {"minutes": budget.used / 60, "epochs": budget.epoch, "held_out_accuracy": accuracy(model, *watch)}


def save(model: ViTForImageClassification, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    model.eval().save_pretrained(out)
    ViTImageProcessor(size={"height": 32, "width": 32}, image_mean=MEAN, image_std=STD).save_pretrained(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of cifar10-train.npz and cifar10-test.npz")
    parser.add_argument("--out", type=Path, required=True, help="folder for the trained model")
    parser.add_argument("--minutes", type=float, default=65, help="training time (default 65)")
    parser.add_argument("--checkpoint", type=Path, help="state of a stopped run (default: OUT/checkpoint.pt)")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    arguments.out.mkdir(parents=True, exist_ok=True)
    images, labels, classes = load(arguments.data / "cifar10-train.npz")
    model = build_model(classes)
    checkpoint = arguments.checkpoint or arguments.out / "checkpoint.pt"
    result: dict[str, float] = train(model, images, labels, arguments.minutes, checkpoint)
    save(model, arguments.out)
    test_images, test_labels, _ = load(arguments.data / "cifar10-test.npz")
    result["test_accuracy"] = accuracy(model, test_images, test_labels)
    (arguments.out / "training.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
