"""The word-level tokenizer of Transformer-XL, made from text.

Transformer-XL reads words split at blanks, with `<eos>` at the end of every line, numbered by how often they occur in
the training text (so that the adaptive softmax's first cluster holds the frequent ones). The Hub keeps the
vocabulary of `transfo-xl/transfo-xl-wt103` only as a pickle, which is not read here; the same vocabulary comes out
of `build_word_tokenizer` on the lines of WikiText-103's training text.

Both functions take an open file, too, and read it line by line: the 540 MB of WikiText-103 need 0.5 GB as numbers.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from io import StringIO
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

END_OF_LINE = "<eos>"
UNKNOWN = "<unk>"


def build_word_tokenizer(text: str | Iterable[str], max_words: int | None = None) -> PreTrainedTokenizerFast:
    r"""A tokenizer of the words of a text, or of its lines, frequent ones first, at most `max_words` of them.

    >>> tokenizer = build_word_tokenizer("to be or not to be\n", max_words=4)
    >>> tokenizer.convert_ids_to_tokens(tokenizer("to be or what ?\n").input_ids)
    ['to', 'be', '<unk>', '<unk>', '<unk>', '<eos>']
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    counts: Counter[str] = Counter()
    for line in _lines(text):
        counts.update(line.split())
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


def word_numbers(tokenizer: PreTrainedTokenizerFast, text: str | Iterable[str]) -> NDArray[np.int32]:
    r"""The numbers that the tokenizer gives to the words of a text, or of its lines, in 4 bytes a word.

    >>> tokenizer = build_word_tokenizer("to be or not to be\n")
    >>> word_numbers(tokenizer, "be not afraid\n").tolist() == tokenizer("be not afraid\n").input_ids
    True
    """
    numbers = tokenizer.get_vocab()
    unknown, end = numbers[UNKNOWN], numbers[END_OF_LINE]
    found = array("i")
    for line in _lines(text):
        found.extend(numbers.get(word, unknown) for word in line.split())
        if line.endswith("\n"):
            found.append(end)
    return np.asarray(found, dtype=np.int32)


def _lines(text: str | Iterable[str]) -> Iterable[str]:
    return StringIO(text) if isinstance(text, str) else text
