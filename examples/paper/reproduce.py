"""The paper at full scale, one command a model: fetch the data, train, organise, write tables and figures.

    python examples/paper/reproduce.py vit     # ViT-B/16 of ImageNet-21k, one epoch on CIFAR-10, Adam 3e-5
    python examples/paper/reproduce.py txl     # Transformer-XL, 16 layers x 8 heads, context 256, WikiText-103

Results are in OUT: `results.md`, Figures 1-6, the trained model in `model`, the data in `data`. For a machine with a
GPU; `--data FOLDER` takes data that is there already (`cifar10-{train,test}.npz`, or `train.txt` and `test.txt`). What
was done is not done again. All other options go to the training script (`finetune_vit.py`, `train_transfo_xl.py`):

    python examples/paper/reproduce.py txl --data wikitext-2 --layers 2 --width 64 --minutes 5
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import experiment
import fetch
import finetune_vit
import train_transfo_xl
import transfo_xl
import vit_cifar10


def vit(options: argparse.Namespace, training: list[str]) -> None:
    data = options.data or fetch.cifar10(options.out / "data")
    trained = options.out / "model"
    if not (trained / "training.json").exists():
        finetune_vit.main(["--data", str(data), "--out", str(trained), *training])
    measured = ["--data", str(data), "--model", str(trained), "--out", str(options.out)]
    vit_cifar10.main([*measured, "--batches", str(options.batches)])


def txl(options: argparse.Namespace, training: list[str]) -> None:
    data = options.data or fetch.wikitext103(options.out / "data")
    trained = options.out / "model"
    if not (trained / "training.json").exists():
        texts = ["--train", str(data / "train.txt"), "--test", str(data / "test.txt")]
        train_transfo_xl.main([*texts, "--out", str(trained), *training])
    measured = ["--data", str(data / "test.txt"), "--model", str(trained), "--out", str(options.out)]
    transfo_xl.main([*measured, "--batches", str(options.batches), "--tokens", str(options.tokens)])


def main(given: Sequence[str] | None = None) -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form, allow_abbrev=False)
    parser.add_argument("model", choices=("vit", "txl"), help="which of the paper's two networks")
    parser.add_argument("--out", type=Path, help="folder for everything (default: paper-vit, paper-txl)")
    parser.add_argument("--data", type=Path, help="folder of the data (default: fetched from the Hub into OUT/data)")
    parser.add_argument("--batches", type=int, default=experiment.BATCHES, help="contexts to measure")
    parser.add_argument("--tokens", type=int, default=256, help="tokens a context of Transformer-XL")
    options, training = parser.parse_known_args(given)
    options.out = options.out or Path(f"paper-{options.model}")
    {"vit": vit, "txl": txl}[options.model](options, training)


if __name__ == "__main__":
    main()
