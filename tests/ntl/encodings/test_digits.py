import string

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers_like import tokenizer_like
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ntl.encodings.digits import character_tokenizer, load_tokenizer, split_digits
from ntl.errors import UserError
from ntloss.numbers import inspect_tokenizer

TEXTS = ("12 7 45", "-33", "3.14", "Evaluate -1520 - -1524 - (0 + 2 - 1 - -36).", "0", "90")


def digit_tokens(tokenizer, text):
    return [t for t in tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"]) if t in string.digits]


def test_the_shipped_tokenizer_follows_t5s_conventions():
    tokenizer = character_tokenizer()
    assert [tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id] == [0, 1, 2]
    assert tokenizer("4 é")["input_ids"][-2:] == [2, 1]
    assert inspect_tokenizer(tokenizer, TEXTS).coverage["digits"] == 1


def test_a_saved_tokenizer_still_splits_digits_when_transformers_loads_it(tmp_path):
    whole = load_tokenizer(tokenizer_like("t5"))
    split_digits(whole).save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert "▁2019" in whole.tokenize("and 2019")
    assert digit_tokens(loaded, "and 2019") == ["2", "0", "1", "9"]
    assert loaded.special_tokens_map == whole.special_tokens_map


@pytest.mark.parametrize("text", TEXTS)
def test_a_t5_tokenizer_can_be_made_to_split_digits(text):
    tokenizer = split_digits(load_tokenizer(tokenizer_like("t5")))
    assert digit_tokens(tokenizer, text) == [c for c in text if c.isdigit()]
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def test_a_tokenizer_without_digit_tokens_is_an_error():
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "1": 1}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    with pytest.raises(UserError, match="digits in '0123456789' as digit tokens"):
        split_digits(tokenizer)


def test_a_folder_without_a_tokenizer_is_an_error(tmp_path):
    with pytest.raises(UserError, match="holds no tokenizer"):
        load_tokenizer(tmp_path)
    with pytest.raises(UserError, match="nowhere"):
        load_tokenizer(tmp_path / "nowhere")
