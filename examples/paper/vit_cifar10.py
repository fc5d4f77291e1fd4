"""The paper's ViT experiment on CIFAR-10 images.

    python examples/paper/vit_cifar10.py --data FOLDER                     # the ViT of this folder, 48 heads, 65 tokens
    python examples/paper/vit_cifar10.py --data FOLDER --model google/vit-base-patch16-224     # the paper's, 144 heads

FOLDER holds `cifar10-test.npz` (`images` uint8 (n, 32, 32, 3)). The paper fine-tuned ViT-B/16 for one epoch on
CIFAR-10; any transformers or timm vision model can be given.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import experiment
import numpy as np
from PIL import Image

from oattn_hub.attention import calibration_inputs, load_model


def main(given: Sequence[str] | None = None) -> None:
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of cifar10-test.npz")
    parser.add_argument("--model", default=str(here / "vit_cifar10"), help="Hub id, folder or timm name")
    parser.add_argument("--batches", type=int, default=experiment.BATCHES, help="images, one context each")
    parser.add_argument("--out", type=Path, default=Path("paper-vit"), help="folder for results.md and the figures")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(given)

    loaded = load_model(options.model)
    with np.load(options.data / "cifar10-test.npz") as file:
        images = file["images"]
    chosen = np.random.default_rng(options.seed).choice(len(images), options.batches, replace=False)
    inputs = calibration_inputs(loaded, [Image.fromarray(images[index]) for index in chosen], options.batches)
    print(experiment.run(experiment.VIT, loaded, inputs, options.out, options.seed))


if __name__ == "__main__":
    main()
