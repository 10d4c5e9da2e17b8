import functools
import json
from decimal import Decimal

import pytest
import torch
from approach_cases import (
    ANSWERS,
    BEAMS,
    GREEDY,
    NTL,
    QUESTIONS,
    assert_the_same,
    make,
    overfit,
    rows_of,
    saved,
)
from hypothesis import given
from hypothesis import strategies as st

from ntl.approaches import IGNORE, build_approach
from ntl.config.settings import ModelSettings
from ntl.data import Example, TaskData
from ntl.encodings.digits import TextEncoding, load_tokenizer, split_digits
from ntl.encodings.format_mask import FormatMask
from ntl.encodings.number_format import NumberFormat
from ntl.errors import UserError
from ntl.evaluation import evaluate
from ntl.training.token_cache import tokenize
from tests.ntl.conftest import shared

SHAPES = {"t5-tiny": "t5", "llama-tiny": "decoder_only", "mamba-tiny": "decoder_only"}
TOKENIZERS = {"shipped": None, "t5": "tokenizers/t5", "gpt2": "tokenizers/gpt2"}
FORMATS = (NumberFormat(3), NumberFormat(2, 3, True))


@st.composite
def plain_numbers(draw):
    """Draw a number without leading zeros, and without trailing zeros after the point."""
    whole = str(draw(st.integers(0, 10**30)))
    decimals = draw(st.text("0123456789", max_size=20)).rstrip("0")
    text = whole + ("." + decimals if decimals else "")
    return "-" + text if draw(st.booleans()) and set(text) != {"0"} else text


@given(st.lists(plain_numbers(), min_size=1))
def test_all_numbers_have_the_same_length_and_are_read_back_exactly(numbers):
    number_format = NumberFormat.of_answers(numbers)
    for number in numbers:
        written = number_format.write(number)
        assert len(written) == number_format.length
        assert all(c in number_format.allowed(i) for i, c in enumerate(written))
        assert number_format.read(written) == number
        assert Decimal(written) == Decimal(number)


@given(st.lists(plain_numbers().map(lambda text: text.lstrip("-")), min_size=1))
def test_padded_texts_sort_like_their_numbers(numbers):
    number_format = NumberFormat.of_answers(numbers)
    by_text = sorted(numbers, key=number_format.write)
    assert [Decimal(n) for n in by_text] == sorted(Decimal(n) for n in numbers)


@given(plain_numbers(), st.integers(1, 32), st.integers(0, 22), st.booleans())
def test_a_number_is_written_only_if_no_digit_is_lost(number, width, decimals, signed):
    number_format = NumberFormat(width, decimals, signed)
    whole, _, after = number.lstrip("-").partition(".")
    fits = len(whole) <= width and len(after) <= decimals and (signed or number[0] != "-")
    assert number_format.fits(number) == fits
    if fits:
        assert number_format.read(number_format.write(number)) == number
    else:
        with pytest.raises(UserError, match=f"the answer '{number}' does not fit"):
            number_format.write(number)


@pytest.mark.parametrize(
    ("answers", "written"),
    [
        (["188", "7", "0"], ["188", "007", "000"]),
        (["188", "-7", "0"], ["+188", "-007", "+000"]),
        (["0.5", "12", "-0.25"], ["+00.50", "+12.00", "-00.25"]),
        (["0", "-0", "-0.0"], ["0", "0", "0"]),
        ([" 007 ", "+12", "2.50"], ["07.0", "12.0", "02.5"]),
    ],
)
def test_answers_are_padded_to_the_smallest_common_format(answers, written):
    number_format = NumberFormat.of_answers(answers)
    assert [number_format.write(answer) for answer in answers] == written


def test_both_zeros_are_read_as_zero():
    number_format = NumberFormat(2, 1, True)
    assert {number_format.read(text) for text in ("+00.0", "-00.0")} == {"0"}


def test_width_and_places_can_be_given():
    number_format = NumberFormat.of_answers(["7", "-12"], width=4, decimals=2)
    assert [number_format.write(number) for number in ("7", "-12")] == ["+0007.00", "-0012.00"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"width": 3}, "the answer '-1234' does not fit .* 4 digits before the point; expected at most 3"),
        ({"decimals": 1}, "the answer '0.125' does not fit .* 3 digits after the point; expected at most 1"),
    ],
)
def test_a_training_answer_that_does_not_fit_is_an_error_that_names_it(given, expected):
    with pytest.raises(UserError, match=expected):
        NumberFormat.of_answers(["7", "-1234", "0.125", "20"], **given)


@pytest.mark.parametrize(
    "answer", ["", "a dog | 2 cats", "2 + 3 = 5\n#### 5", "1,000", "1e3", "٣", "1 2", "."]
)
def test_an_answer_that_is_not_a_single_number_is_an_error(answer):
    assert not NumberFormat(9, 9, True).fits(answer)
    with pytest.raises(UserError, match="is not a single number"):
        NumberFormat.of_answers(["1", answer])


def test_a_format_needs_training_answers():
    with pytest.raises(UserError, match="there are none"):
        NumberFormat.of_answers([])


@pytest.mark.parametrize("text", ["12", "+012", "0.12", "01x", "٠١٢"])
def test_a_text_in_another_format_is_not_read(text):
    with pytest.raises(ValueError, match="is not in the number format"):
        NumberFormat(3).read(text)


@functools.cache
def tokenizer_of(name, digits):
    folder = TOKENIZERS[name]
    tokenizer = load_tokenizer(folder and shared(folder))
    return split_digits(tokenizer) if digits else tokenizer


@pytest.mark.parametrize("number_format", FORMATS)
@pytest.mark.parametrize("digits", [True, False])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_mask_allows_numbers_in_the_format_and_nothing_else(name, digits, number_format):
    tokenizer = tokenizer_of(name, digits)
    vocab_size = len(tokenizer) + 3
    mask = FormatMask(number_format, tokenizer, vocab_size, digits)
    random = torch.Generator().manual_seed(0)
    ids = torch.zeros(40, 0, dtype=torch.long)
    for _ in range(mask.longest):
        allowed = mask.rows(ids)
        assert not allowed[:, len(tokenizer) :].any()
        ids = torch.cat([ids, torch.multinomial(allowed.double(), 1, generator=random)], 1)
    assert (ids[:, -1] == tokenizer.eos_token_id).all()
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
    assert len({number_format.read(text) for text in texts}) > 5
    written = [number_format.write(number_format.read(text)) for text in texts]
    for row in TextEncoding(tokenizer).encode(written, special_tokens=False):
        row.append(tokenizer.eos_token_id)
        for i, token in enumerate(row):
            assert mask.rows(torch.tensor([row[:i]], dtype=torch.long))[0, token]


def test_with_digits_as_tokens_no_token_of_several_digits_is_allowed():
    tokenizer = tokenizer_of("t5", True)
    allowed = FormatMask(NumberFormat(3), tokenizer, len(tokenizer), True).allowed.any(0)
    tokens = tokenizer.convert_ids_to_tokens(allowed.nonzero().flatten().tolist())
    assert sorted(tokens) == [*"0123456789", "</s>", "▁"]


def test_a_tokenizer_that_cannot_write_the_format_is_an_error():
    tokenizer = load_tokenizer(None)
    vocabulary = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary["model"]["vocab"]["plus"] = vocabulary["model"]["vocab"].pop("+")
    tokenizer._tokenizer = type(tokenizer.backend_tokenizer).from_str(json.dumps(vocabulary))
    with pytest.raises(UserError, match=r"the tokenizer encodes '\+00' as"):
        FormatMask(NumberFormat(2, signed=True), tokenizer, len(tokenizer), True)


def padded(shape="t5-tiny", answers=ANSWERS, **settings):
    approach = make(shape, family=SHAPES[shape], number_format="padded", **settings)
    approach.fit(answers)
    return approach


@functools.cache
def trained(shape):
    return overfit(padded(shape), steps=200, learning_rate=1e-3)


@pytest.mark.parametrize("shape", SHAPES)
def test_labels_are_padded_and_answers_plain_before_and_after_saving(shape, tmp_path):
    approach = trained(shape)
    labels = [[i for i in row["labels"] if i != IGNORE] for row in rows_of(approach)]
    assert {len(row) for row in labels} == {len("+9801.0") + 1}
    assert approach.encoding.decode(labels)[2:4] == ["+0001.5", "-0015.0"]
    assert approach.answer(approach.model, QUESTIONS, GREEDY) == ANSWERS
    assert approach.answer(approach.model, QUESTIONS, BEAMS) == ANSWERS
    loaded = saved(approach, tmp_path, {"family": SHAPES[shape], "number_format": "padded"})
    assert loaded.number_format == NumberFormat(4, 1, True)
    assert_the_same(approach, loaded)


@pytest.mark.parametrize("generation", [GREEDY, BEAMS])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_model_that_would_write_four_digits_writes_three_in_a_format_of_three(
    shape, generation, monkeypatch
):
    approach = trained(shape)
    ntl = approach.model.config.ntl
    monkeypatch.setattr(approach.model.config, "ntl", {**ntl, "number_format": "plain"})
    free = approach.answer(approach.model, QUESTIONS, generation)
    assert [len(text) for text in free] == [len("+0002.0")] * len(free)
    monkeypatch.setattr(approach.model.config, "ntl", {**ntl, "number_width": 3})
    tokens = []
    decode = approach.encoding.decode
    monkeypatch.setattr(approach.encoding, "decode", lambda rows: tokens.extend(rows) or decode(rows))
    masked = approach.answer(approach.model, QUESTIONS, generation)
    assert [len(text) for text in decode(tokens)] == [len("+002.0")] * len(masked)
    assert all(NumberFormat(3, 1, True).fits(text) for text in masked)


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_an_untrained_model_answers_within_the_format(shape, beams):
    approach = padded(shape, ["7", "188"])
    generation = type(GREEDY)(beams=beams, max_new_tokens=1)
    answers = approach.answer(approach.model, QUESTIONS, generation)
    assert all(NumberFormat(3).fits(answer) for answer in answers)


@pytest.mark.parametrize("generation", [GREEDY, BEAMS])
@pytest.mark.parametrize("shape", ["t5-tiny", "llama-tiny"])
def test_a_model_that_has_diverged_answers_within_the_format(shape, generation):
    approach = padded(shape)
    for parameter in approach.model.parameters():
        parameter.data.fill_(torch.nan)
    answers = approach.answer(approach.model, QUESTIONS, generation)
    assert all(NumberFormat(4, 1, True).fits(answer) for answer in answers)


@pytest.mark.parametrize("family", ["t5", "decoder_only"])
@pytest.mark.parametrize("encoding", ["digits", "auto"])
def test_models_with_tokens_of_several_digits_answer_within_the_format(family, encoding):
    shape, tokenizer = ("t5-tiny", "t5") if family == "t5" else ("llama-tiny", "gpt2")
    approach = padded(shape, encoding=encoding, tokenizer=str(shared(f"tokenizers/{tokenizer}")))
    for generation in (GREEDY, BEAMS):
        answers = approach.answer(approach.model, QUESTIONS, generation)
        assert all(NumberFormat(4, 1, True).fits(answer) for answer in answers)


def test_a_test_answer_that_does_not_fit_is_counted_and_encoded_as_it_is():
    approach = padded(answers=["7", "188"])
    tests = [
        Example("1 + 1", "2"),
        Example("99 * 99", "9801"),
        Example("1 - 2", "-1"),
        Example("1 / 2", "0.5"),
    ]
    labels = [row["labels"] for row in rows_of(approach, *zip(*[e[:2] for e in tests], strict=True))]
    assert approach.encoding.decode(labels) == ["002", "9801", "-1", "0.5"]
    result = evaluate(approach, tests, TaskData([], [], {}), GREEDY)
    assert result.metrics["outside_format"] == 3
    assert result.metrics["invalid"] == 0
    wrong = [p.predicted != p.true for p in result.predictions]
    assert wrong[1:] == [True] * 3


def test_a_plain_model_has_no_count_of_answers_outside_the_format():
    approach = make()
    result = evaluate(approach, [Example("1 + 1", "2")], TaskData([], [], {}), GREEDY)
    assert approach.number_format is None
    assert "outside_format" not in result.metrics


def test_training_on_answers_outside_an_earlier_format_is_an_error(tmp_path):
    settings = {"number_format": "padded"}
    approach = saved(padded(answers=["7", "188"]), tmp_path, settings)
    approach.fit(["12"])
    assert approach.number_format == NumberFormat(3)
    with pytest.raises(UserError, match="the answer '1234' does not fit"):
        approach.fit(["12", "1234"])
    with pytest.raises(UserError, match=r"'-1' does not fit .* it is negative"):
        approach.fit(["-1"])


def test_answering_before_fit_is_an_error_with_padded_answers():
    approach = make(number_format="padded")
    with pytest.raises(UserError, match="has no number format: it is taken from the training answers"):
        approach.answer(approach.model, QUESTIONS, GREEDY)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "was trained with number_format=padded; expected plain"),
        ({"number_format": "padded", "number_width": 3}, "trained with number_width=4; expected 3"),
    ],
)
def test_a_model_is_not_used_with_another_format(settings, expected, tmp_path):
    with pytest.raises(UserError, match=expected):
        saved(padded(), tmp_path, settings)


def test_a_model_saved_before_there_were_formats_writes_plain_numbers(tmp_path):
    saved(make(), tmp_path, {})
    config = json.loads((tmp_path / "config.json").read_text())
    del config["ntl"]["number_format"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    approach = build_approach(ModelSettings(checkpoint=str(tmp_path)), NTL)
    assert approach.number_format is None
    with pytest.raises(UserError, match="was trained with number_format=plain; expected padded"):
        build_approach(ModelSettings(checkpoint=str(tmp_path), number_format="padded"), NTL)


def test_plain_and_padded_labels_are_cached_separately(tmp_path):
    examples = [Example(question, answer) for question, answer in zip(QUESTIONS, ANSWERS, strict=True)]
    lengths = []
    for number_format in ("plain", "padded"):
        settings = ModelSettings(number_format=number_format)
        approach = make(number_format=number_format)
        approach.fit(ANSWERS)
        rows = tokenize(examples, approach, settings, tmp_path)
        lengths.append({len(row["labels"]) for row in rows})
    assert lengths == [{2, 3, 4, 5}, {8}]
