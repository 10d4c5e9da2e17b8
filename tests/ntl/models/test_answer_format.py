import functools
import json
from dataclasses import replace

import pytest
import torch
from model_cases import (
    ANSWERS,
    BEAMS,
    GREEDY,
    QUESTIONS,
    make,
    rows_of,
    saved,
)
from tokenizers_like import tokenizer_like

from ntl.data import Example, TaskData
from ntl.encodings.digits import TextEncoding, load_tokenizer, split_digits
from ntl.errors import UserError
from ntl.evaluate import Evaluation, score_answers
from ntl.models.answer_format import FormatProcessor
from ntloss import NumberVocabulary
from ntloss.numbers import NumberFormat

SHAPES = {"t5-tiny": "t5", "llama-tiny": "decoder_only", "mamba-tiny": "decoder_only"}
TOKENIZERS = {"shipped": None, "t5": "t5", "gpt2": "gpt2"}
FORMATS = (NumberFormat(3), NumberFormat(2, 3, True))


@functools.cache
def tokenizer_of(name, digits):
    folder = TOKENIZERS[name]
    tokenizer = load_tokenizer(folder and tokenizer_like(folder))
    return split_digits(tokenizer) if digits else tokenizer


def number_tokens(tokenizer, digits, size):
    found = NumberVocabulary.from_tokenizer(tokenizer, "digits" if digits else "numbers", size)
    return replace(found, tokens=[each for each in found.tokens if not (digits and each.starts_number)])


@pytest.mark.parametrize("number_format", FORMATS)
@pytest.mark.parametrize("digits", [True, False])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_mask_allows_numbers_in_the_format_and_nothing_else(name, digits, number_format):
    tokenizer = tokenizer_of(name, digits)
    vocabulary = number_tokens(tokenizer, digits, len(tokenizer) + 3)
    mask = FormatProcessor(number_format, tokenizer, vocabulary)
    random = torch.Generator().manual_seed(0)
    ids = torch.zeros(40, 0, dtype=torch.long)
    for _ in range(mask.longest):
        allowed = mask.rows(ids)
        assert not allowed[:, len(tokenizer) :].any()
        ids = torch.cat([ids, torch.multinomial(allowed.double(), 1, generator=random)], 1)
    assert (ids[:, -1] == tokenizer.eos_token_id).all()
    texts = [text.strip() for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]
    assert len({number_format.read(text) for text in texts}) > 5
    written = [number_format.write(str(number_format.read(text))) for text in texts]
    for row in TextEncoding(tokenizer).encode(written, special_tokens=False):
        row.append(tokenizer.eos_token_id)
        for i, token in enumerate(row):
            assert mask.rows(torch.tensor([row[:i]], dtype=torch.long))[0, token]


def test_with_digits_as_tokens_no_token_of_several_digits_is_allowed():
    tokenizer = tokenizer_of("t5", True)
    mask = FormatProcessor(NumberFormat(3), tokenizer, number_tokens(tokenizer, True, len(tokenizer)))
    (digit,) = tokenizer.convert_tokens_to_ids(["4"])
    allowed = torch.cat([mask.rows(torch.tensor([[digit] * i], dtype=torch.long)) for i in range(4)])
    tokens = tokenizer.convert_ids_to_tokens(allowed.any(0).nonzero().flatten().tolist())
    assert sorted(tokens) == [*"0123456789", "</s>", "▁"]


def test_a_tokenizer_that_cannot_write_the_format_is_an_error():
    tokenizer = load_tokenizer(None)
    vocabulary = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary["model"]["vocab"]["plus"] = vocabulary["model"]["vocab"].pop("+")
    tokenizer._tokenizer = type(tokenizer.backend_tokenizer).from_str(json.dumps(vocabulary))
    with pytest.raises(UserError, match=r"the tokenizer encodes '\+00' as"):
        FormatProcessor(
            NumberFormat(2, signed=True), tokenizer, number_tokens(tokenizer, True, len(tokenizer))
        )


def padded(shape="t5-tiny", answers=ANSWERS, **settings):
    built = make(shape, family=SHAPES[shape], number_format="padded", **settings)
    built.fit(answers)
    return built


@pytest.mark.parametrize("family", ["t5", "decoder_only"])
@pytest.mark.parametrize("encoding", ["digits", "auto"])
def test_models_with_tokens_of_several_digits_answer_within_the_format(family, encoding):
    shape, tokenizer = ("t5-tiny", "t5") if family == "t5" else ("llama-tiny", "gpt2")
    built = padded(shape, encoding=encoding, tokenizer=tokenizer_like(tokenizer))
    for generation in (GREEDY, BEAMS):
        answers = built.answer(QUESTIONS, *generation)
        assert all(NumberFormat(4, 1, True).fits(answer) for answer in answers)


def test_a_test_answer_that_does_not_fit_is_counted_and_encoded_as_it_is():
    built = padded(answers=["7", "188"])
    tests = [
        Example("1 + 1", "2"),
        Example("99 * 99", "9801"),
        Example("1 - 2", "-1"),
        Example("1 / 2", "0.5"),
    ]
    labels = [row["labels"] for row in rows_of(built, *zip(*[e[:2] for e in tests], strict=True))]
    assert built.encoding.decode(labels) == ["002", "9801", "-1", "0.5"]
    result = score_answers(built, tests, TaskData([], [], {}), Evaluation(beams=1, max_new_tokens=12))
    assert result.metrics["outside_format"] == 3
    assert result.metrics["invalid"] == 0
    wrong = [p["predicted"] != p["true"] for p in result.predictions]
    assert wrong[1:] == [True] * 3


def test_training_on_answers_outside_an_earlier_format_is_an_error(tmp_path):
    settings = {"number_format": "padded"}
    built = saved(padded(answers=["7", "188"]), tmp_path, settings)
    built.fit(["12"])
    assert built.answer_format.form.numbers == NumberFormat(3)
    with pytest.raises(UserError, match="'1234' does not fit"):
        built.fit(["12", "1234"])
    with pytest.raises(UserError, match=r"'-1' does not fit .* it is negative"):
        built.fit(["-1"])


def test_answering_before_fit_is_an_error_with_padded_answers():
    built = make(number_format="padded")
    with pytest.raises(UserError, match="has no number format: it is taken from the training answers"):
        built.answer(QUESTIONS, *GREEDY)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "was trained with number_format=padded; expected plain"),
        ({"number_format": "padded", "number_digits": 3}, "trained with number_digits=None; expected 3"),
    ],
)
def test_a_model_is_not_used_with_another_format(settings, expected, tmp_path):
    with pytest.raises(UserError, match=expected):
        saved(padded(), tmp_path, settings)


def test_the_end_of_a_complete_number_does_not_rank_beams():
    tokenizer = tokenizer_of("t5", True)
    mask = FormatProcessor(NumberFormat(2), tokenizer, number_tokens(tokenizer, True, len(tokenizer)))
    (digit,) = tokenizer.convert_tokens_to_ids(["4"])
    scores = torch.full((1, len(tokenizer)), -9.0)
    assert mask(torch.tensor([[digit] * 2]), scores)[0, tokenizer.eos_token_id] == 0
    assert mask(torch.tensor([[digit]]), scores)[0, tokenizer.eos_token_id] == -float("inf")
