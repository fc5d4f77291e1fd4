"""The word-level tokenizer of Transformer-XL, made from text.

Transformer-XL reads words split at blanks, with `<eos>` at the end of every line, numbered by how often they occur in
the training text (so that the adaptive softmax's first cluster holds the frequent ones). The Hub keeps the
vocabulary of `transfo-xl/transfo-xl-wt103` only as a pickle, which is not read here; the same vocabulary comes out
of `build_word_tokenizer(wiki.train.tokens of WikiText-103)`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

END_OF_LINE = "<eos>"
UNKNOWN = "<unk>"


def build_word_tokenizer(text: str, max_words: int | None = None) -> PreTrainedTokenizerFast:
    r"""A tokenizer of the words of `text`, frequent ones first, at most `max_words` of them.

    >>> tokenizer = build_word_tokenizer("to be or not to be\n", max_words=4)
    >>> tokenizer.convert_ids_to_tokens(tokenizer("to be or what ?\n").input_ids)
    ['to', 'be', '<unk>', '<unk>', '<unk>', '<eos>']
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    counts = Counter(text.split())
    counts.pop(END_OF_LINE, None)
    words = [END_OF_LINE, *(word for word, _ in counts.most_common())]
    if UNKNOWN not in counts:
        words.insert(1, UNKNOWN)
    numbers = {word: number for number, word in enumerate(words[:max_words])}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Replace("\n", f" {END_OF_LINE} ")
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=UNKNOWN, eos_token=END_OF_LINE, pad_token=END_OF_LINE
    )
