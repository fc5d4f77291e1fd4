"""Train a Transformer-XL language model at any size; the defaults are the paper's setting (appendix C.1).

    python examples/paper/train_transfo_xl.py --train TRAIN.txt --test TEST.txt --out FOLDER

The paper: 16 layers x 8 heads, width 410, context 256, WikiText-103, Adam. It prints a learning rate of 2.5e-3; the
published recipe for this size, and the default here, is 2.5e-4. That recipe gives all words one width (`--div-val` 1;
4 is that of the large model on the Hub). Texts are read line by line and kept as numbers of 4 bytes.

`reproduce.py txl` fetches WikiText-103 and calls this. The model of this folder:

    python examples/paper/train_transfo_xl.py --train wikitext-2/valid.txt --test wikitext-2/test.txt --out FOLDER \\
        --layers 4 --width 96 --inner 192 --words 8000 --cutoffs 2000 --div-val 4 --context 64 --memory 128 --batch 4 \\
        --pre-norm --learning-rate 3e-3 --minutes 19 --test-words 20000

The saved config has no memory (`mem_len` 0), because the paper's attention matrices are 256 x 256; to carry memory
from segment to segment set `model.transformer.mem_len`. A run that was stopped goes on from OUT/checkpoint.pt.
"""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from training import Budget

from oattn_hub.models.transfo_xl import TransfoXLConfig, TransfoXLLMHeadModel
from oattn_hub.models.words import build_word_tokenizer, word_numbers


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, required=True, help="text to train on, words separated by blanks")
    parser.add_argument("--test", type=Path, required=True, help="text to measure perplexity on, at the end")
    parser.add_argument("--out", type=Path, required=True, help="folder for the trained model")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=410, help="model dimension")
    parser.add_argument("--inner", type=int, default=2100, help="width of the feed-forward layer")
    parser.add_argument("--words", type=int, help="size of the vocabulary (default: every word of --train)")
    parser.add_argument("--cutoffs", type=int, nargs="*", default=[20000, 40000, 200000], help="adaptive softmax")
    parser.add_argument("--div-val", type=int, default=1, help="how many times narrower each rarer cluster is")
    parser.add_argument("--context", type=int, default=256, help="tokens a segment")
    parser.add_argument("--memory", type=int, default=256, help="remembered tokens while training")
    parser.add_argument("--batch", type=int, default=60, help="parallel streams of text")
    parser.add_argument("--learning-rate", type=float, default=2.5e-4)
    parser.add_argument("--pre-norm", action="store_true", help="normalise before each block: learns faster when small")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--test-words", type=int, help="measure on the first words of --test only (default: all)")
    parser.add_argument("--minutes", type=float, default=1440, help="training time (default: a day)")
    return parser.parse_args(given)


def build_model(options: argparse.Namespace, n_words: int) -> TransfoXLLMHeadModel:
    return TransfoXLLMHeadModel(
        TransfoXLConfig(
            vocab_size=n_words,
            cutoffs=[cutoff for cutoff in options.cutoffs if cutoff < n_words],
            d_model=options.width,
            d_embed=options.width,
            div_val=options.div_val,
            n_head=options.heads,
            d_head=options.width // options.heads,
            d_inner=options.inner,
            n_layer=options.layers,
            mem_len=options.memory,
            same_length=False,
            clamp_len=options.context + options.memory,
            dropout=options.dropout,
            pre_lnorm=options.pre_norm,
            # 0.02 and 0.01, the published values, leave a narrow model at word frequencies for thousands of steps.
            init_std=0.5 * options.width**-0.5,
            proj_init_std=options.width**-0.5,
            dtype="float32",
        )
    )


def segments(words: torch.Tensor, batch: int, context: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Words and the words that follow them, (batch, context) each; every row is one continuous stream."""
    length = (len(words) - 1) // batch
    streams = words[: batch * length].view(batch, length)
    following = words[1 : batch * length + 1].view(batch, length)
    for start in range(0, length, context):
        yield streams[:, start : start + context].long(), following[:, start : start + context].long()


def train(model: Any, words: torch.Tensor, options: argparse.Namespace) -> Budget:
    device = next(model.parameters()).device
    optimiser = torch.optim.Adam(model.parameters(), lr=options.learning_rate)
    budget = Budget(options.minutes, options.learning_rate, options.out / "checkpoint.pt", model, optimiser)
    model.train()
    while budget.is_left:
        # Each epoch cuts the text elsewhere, so that no word is always first in its segment.
        offset = int(torch.randint(options.context, (), generator=torch.Generator().manual_seed(budget.epoch)))
        losses, memory = [], ()
        for inputs, following in segments(words[offset:], options.batch, options.context):
            with budget.step():
                output = model.transformer(inputs.to(device), mems=memory)
                loss = model.crit.losses(output.last_hidden_state, following.to(device)).mean()
                optimiser.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
                optimiser.step()
            memory = output.mems
            losses.append(loss.item())
            if not budget.is_left:
                break
        budget.end_epoch(f"loss {np.mean(losses):.3f}  last 20 steps {np.mean(losses[-20:]):.3f}")
    return budget


@torch.no_grad()
def perplexity(model: Any, words: torch.Tensor, context: int, with_memory: bool) -> float:
    """exp of the mean loss over the text read in segments, each with or without the memory of those before it."""
    model.eval()
    device = next(model.parameters()).device
    total, memory = 0.0, ()
    for inputs, following in segments(words, batch=1, context=context):
        output = model.transformer(inputs.to(device), mems=memory if with_memory else ())
        total += float(model.crit.losses(output.last_hidden_state, following.to(device)).sum())
        memory = output.mems
    return math.exp(total / (len(words) - 1))


def read_words(tokenizer: Any, path: Path) -> torch.Tensor:
    """A text as numbers, (words,), int32."""
    with path.open(encoding="utf-8") as lines:
        return torch.from_numpy(word_numbers(tokenizer, lines))


def main(given: Sequence[str] | None = None) -> None:
    options = arguments(given)
    torch.manual_seed(0)
    options.out.mkdir(parents=True, exist_ok=True)
    with options.train.open(encoding="utf-8") as lines:
        tokenizer = build_word_tokenizer(lines, options.words)
    words, test_words = read_words(tokenizer, options.train), read_words(tokenizer, options.test)[: options.test_words]
    model = build_model(options, len(tokenizer)).to("cuda" if torch.cuda.is_available() else "cpu")
    untrained = perplexity(model, test_words, options.context, with_memory=True)
    budget = train(model, words, options)
    result = {
        "minutes": budget.used / 60,
        "epochs": budget.epoch,
        "untrained_perplexity": untrained,
        "test_perplexity": perplexity(model, test_words, options.context, with_memory=True),
        "test_perplexity_without_memory": perplexity(model, test_words, 256, with_memory=False),
    }
    model.config.mem_len = 0
    model.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    (options.out / "training.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
