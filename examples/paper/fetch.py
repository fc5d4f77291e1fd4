"""The paper's data from the Hub, as the files that the other scripts read. Needs `pip install oattn_hub[datasets]`."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

CIFAR_10 = "uoft-cs/cifar10"
WIKITEXT = "Salesforce/wikitext"
WIKITEXT_103 = "wikitext-103-v1"  # words separated by blanks, rare ones <unk>: what Transformer-XL was trained on


def cifar10(folder: Path) -> Path:
    """`cifar10-train.npz` and `cifar10-test.npz` in `folder`; what is there already is kept."""
    for split in ("train", "test"):
        _once(folder / f"cifar10-{split}.npz", lambda file, split=split: _write_images(split, file))
    return folder


def wikitext103(folder: Path) -> Path:
    """`train.txt` and `test.txt` in `folder`, written row by row."""
    for split in ("train", "test"):
        _once(folder / f"{split}.txt", lambda file, split=split: _write_lines(split, file))
    return folder


def _once(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file whole or not at all."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"part-{path.name}")
    write(part)
    part.replace(path)


def _write_images(split: str, path: Path) -> None:
    rows = _rows(CIFAR_10, None, split)
    images, labels = zip(*((np.asarray(row["img"].convert("RGB")), row["label"]) for row in rows), strict=True)
    classes = rows.features["label"].names
    np.savez(path, images=np.stack(images), labels=np.array(labels, dtype=np.uint8), classes=np.array(classes))


def _write_lines(split: str, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(_ended(row["text"] for row in _rows(WIKITEXT, WIKITEXT_103, split)))


def _ended(lines: Iterable[str]) -> Iterable[str]:
    """Every row is one line; the Hub keeps the end of some and not of others."""
    return (line.rstrip("\n") + "\n" for line in lines)


def _rows(name: str, config: str | None, split: str) -> Any:
    try:
        from datasets import load_dataset
    except ImportError:
        raise SystemExit(f"{name} comes from the Hub: pip install oattn_hub[datasets], or give --data.") from None
    return load_dataset(name, config, split=split)
