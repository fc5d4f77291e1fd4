"""The paper's Transformer-XL experiment on WikiText.

    python examples/paper/transfo_xl.py --data test.txt               # the model of this folder, 32 heads, 256 tokens
    python examples/paper/transfo_xl.py --data test.txt --model transfo-xl/transfo-xl-wt103 --vocabulary TRAIN.txt

The Hub keeps the vocabulary of transfo-xl-wt103 only as a pickle, which is not read: `--vocabulary` builds it again
from the training text of WikiText-103. Contexts are read without memory, so that attention is square as in the paper.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import experiment

from oattn_hub.attention import calibration_inputs, load_model
from oattn_hub.models.words import build_word_tokenizer


def main(given: Sequence[str] | None = None) -> None:
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="text, words separated by blanks as in WikiText")
    parser.add_argument("--model", default=str(here / "transfo_xl_wikitext2"), help="Hub id or folder")
    parser.add_argument("--vocabulary", type=Path, help="text to number the words by, for a model without tokenizer")
    parser.add_argument("--allow-pickle", action="store_true", help="also load weights that are a pickle (.bin)")
    parser.add_argument("--batches", type=int, default=experiment.BATCHES, help="contexts")
    parser.add_argument("--tokens", type=int, default=256, help="tokens a context")
    parser.add_argument("--out", type=Path, default=Path("paper-transfo-xl"), help="folder for results.md and figures")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(given)

    loaded = load_model(options.model, allow_pickle=options.allow_pickle)
    loaded.model.transformer.forget_memory()
    if options.vocabulary is not None:
        with options.vocabulary.open(encoding="utf-8") as lines:
            loaded = replace(loaded, processor=build_word_tokenizer(lines))
    inputs = calibration_inputs(loaded, options.data, options.batches, options.tokens, options.seed)
    print(experiment.run(experiment.TRANSFORMER_XL, loaded, inputs, options.out, options.seed))


if __name__ == "__main__":
    main()
