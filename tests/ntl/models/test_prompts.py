"""A prompt ends where the answer begins, for base models and for chats."""

import pytest
from model_cases import make, rows_of

from ntl.encodings.digits import character_tokenizer

TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
CHAT = TURNS + "{% if add_generation_prompt %}[bot]{% endif %}"


def written(question, **settings):
    built = make("llama-tiny", family="decoder_only", **settings)
    (row,) = rows_of(built, [question], ["42"])
    assert row["input_ids"][-len(row["labels"]) :] == row["labels"]
    assert built.encoding.decode([row["labels"]]) == ["42"]
    return built.encoding.decode([row["input_ids"]])[0]


def test_a_question_that_ends_in_white_space_has_no_separator_by_default():
    assert written("Price: ") == "Price: 42"
    built = make("llama-tiny", family="decoder_only")
    ids = built.prompts(["Price:", "Price: "])
    assert ids[0][-1] == built.tokenizer.eos_token_id  # the shipped tokenizer has no line break
    assert ids[1] == built.encoding.encode(["Price: "], special_tokens=False)[0]


@pytest.mark.parametrize("separator", [" ", "", " is "])
def test_a_separator_stands_between_question_and_answer(separator):
    assert written("Price ", separator=separator) == f"Price {separator}42"


def test_a_chat_ends_with_the_beginning_of_the_answer(tmp_path):
    tokenizer = character_tokenizer()
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(tmp_path)
    chat = {"tokenizer": str(tmp_path), "chat_template": True}
    assert written("How many?", **chat) == "[user]How many?[bot]42"
    assert written("How many? ", **chat, separator="There are ") == "[user]How many? [bot]There are 42"


@pytest.mark.pretrained
def test_prompts_of_smollm2_end_in_the_space_that_it_writes_before_a_number(smollm2):
    tokenizer, _ = smollm2
    tokens = tokenizer.tokenize("Sentiment (0 to 80): 42")
    assert tokens[-3:] == ["\u0120", "4", "2"]
    assert tokenizer.tokenize("Sentiment (0 to 80): ") == tokens[:-2]
