"""The word-level tokenizer of Transformer-XL."""

from transformers import AutoTokenizer

from oattn_hub.models.words import build_word_tokenizer

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
