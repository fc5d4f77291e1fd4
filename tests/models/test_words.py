"""The word-level tokenizer of Transformer-XL."""

import tracemalloc

from transformers import AutoTokenizer

from oattn_hub.models.words import build_word_tokenizer, word_numbers

TEXT = "the cat and the dog\nthe dog <unk> sleeps\n"


def test_words_are_numbered_by_frequency_after_the_end_of_line():
    tokenizer = build_word_tokenizer(TEXT)
    assert tokenizer.convert_ids_to_tokens(range(4)) == ["<eos>", "the", "dog", "cat"]
    assert len(tokenizer) == 7


def test_a_text_becomes_its_words_with_one_end_for_every_line():
    tokenizer = build_word_tokenizer(TEXT)
    words = tokenizer.convert_ids_to_tokens(tokenizer("the dog\n\nsings").input_ids)
    assert words == ["the", "dog", "<eos>", "<eos>", "<unk>"]


def test_a_small_vocabulary_still_has_a_place_for_other_words():
    tokenizer = build_word_tokenizer("a a b c d", max_words=3)
    assert tokenizer("a b d").input_ids == [2, 1, 1]


def test_it_is_found_again_by_auto_tokenizer(tmp_path):
    tokenizer = build_word_tokenizer(TEXT)
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again(TEXT).input_ids == tokenizer(TEXT).input_ids
    assert again.eos_token_id == 0


def test_lines_give_the_numbers_that_the_tokenizer_gives(wikitext_excerpt):
    text = wikitext_excerpt.read_text(encoding="utf-8")
    with wikitext_excerpt.open(encoding="utf-8") as lines:
        tokenizer = build_word_tokenizer(lines, max_words=300)
    assert tokenizer.get_vocab() == build_word_tokenizer(text, max_words=300).get_vocab()
    assert word_numbers(tokenizer, text).tolist() == tokenizer(text).input_ids
    assert word_numbers(tokenizer, text.rstrip("\n")).tolist() == tokenizer(text.rstrip("\n")).input_ids
    assert word_numbers(tokenizer, "").tolist() == []


def test_a_long_text_is_read_in_bounded_memory():
    """4 MB of text took 460 MB when the tokenizer read it at once."""
    line = "the cat and the dog sleep while nobody looks at the clock on the wall\n"
    count = (4 << 20) // len(line)
    tokenizer = build_word_tokenizer(line)
    tracemalloc.start()
    build_word_tokenizer(line for _ in range(count))
    words = word_numbers(tokenizer, (line for _ in range(count)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(words) == count * 16
    assert peak < 3 * words.nbytes
