"""What holds for every model: it learns to answer, also after saving, and batches with nothing to learn.

Only a model that has learned its answers shows that they are read as they are written, so each of the ten
kinds is overfitted once.
"""

import functools

import pytest
from model_cases import (
    ANSWERS,
    BEAMS,
    GPT2,
    GREEDY,
    QUESTIONS,
    gradient,
    loss_of,
    make,
    overfit,
    rows_of,
    saved,
)
from tolerances import LEARNED, ONE_COMPUTATION, TRAINED_BY_ADAM, approx, assert_close, assert_identical

from ntl.models import IGNORE
from ntl.models.answer_format import ENTRY, WrittenAnswers
from ntloss.numbers import NumberFormat
from ntloss.numbers.parsing import parse_number

DECODER = {"family": "decoder_only"}
XVAL, HEAD = {"encoding": "xval"}, {"head": "regression"}
PADDED = {"number_format": "padded"}
# Shape, settings, and whether answers are text instead of numbers that a head computes.
MODELS = {
    "t5": ("t5-tiny", PADDED, True),
    "rt": ("t5-tiny", {"encoding": "rt"}, True),
    "xval": ("t5-tiny", XVAL, False),
    "llama-xval": ("llama-tiny", DECODER | XVAL, False),
    "head": ("t5-tiny", HEAD, False),
    "llama-head": ("llama-tiny", DECODER | HEAD, False),
    "llama": ("llama-tiny", DECODER | PADDED, True),
    "mamba": ("mamba-tiny", DECODER | PADDED, True),
    "gpt2": (GPT2, DECODER, True),
    "rt_llama": ("llama-tiny", DECODER | {"encoding": "rt"}, True),
}
FIXED_WIDTH = [name for name, (_, settings, _) in MODELS.items() if "number_format" in settings]


def fitted(name):
    shape, settings, _ = MODELS[name]
    built = make(shape, **settings)
    built.fit(ANSWERS)
    return built


@functools.cache
def overfitted(name):
    return overfit(fitted(name), until=0.01 if MODELS[name][2] else 0.0)  # of a mean squared error


def numbers(built):
    return [parse_number(answer, "whole") for answer in built.answer(QUESTIONS, *GREEDY)]


@pytest.mark.parametrize("name", MODELS)
def test_an_overfitted_model_still_answers_correctly_after_saving_and_loading(name, tmp_path):
    _, settings, writes = MODELS[name]
    built = overfitted(name)
    if writes:
        assert built.answer(QUESTIONS, *GREEDY) == built.answer(QUESTIONS, *BEAMS) == ANSWERS
    answers = numbers(built)
    assert answers == approx([float(answer) for answer in ANSWERS], LEARNED, scale=1)
    assert built.model.training
    other = saved(built, tmp_path, settings)
    assert_close(other.collate(rows_of(other)), built.collate(rows_of(built)))
    assert_identical(other.model.state_dict(), built.model.state_dict())
    losses = [loss_of(each, rows_of(each)) for each in (other, built)]
    assert_close(*losses, ONE_COMPUTATION, scale=1)  # an overfitted model's loss is almost zero
    assert numbers(other) == approx(answers, TRAINED_BY_ADAM, scale=1)
    if name == "head":  # the statistics of a finished run are kept
        other.fit(["1000"])
        assert other.model.config.ntl == built.model.config.ntl


@pytest.mark.parametrize("generation", [GREEDY, BEAMS])
@pytest.mark.parametrize("name", FIXED_WIDTH)
def test_a_model_that_would_write_four_digits_writes_three_in_a_format_of_three(
    name, generation, monkeypatch
):
    built = overfitted(name)
    monkeypatch.setattr(built, "answer_format", None)
    free = built.answer(QUESTIONS, *generation)
    assert all(len(text) >= len("+0002.0") for text in free)  # a decoder has not learned where to stop
    ntl = {**built.model.config.ntl, ENTRY: [3, 1, True, False]}
    monkeypatch.setattr(built.model.config, "ntl", ntl)
    built.answer_format = WrittenAnswers(built.model, built.tokenizer, built.vocabulary)
    tokens = []
    decode = built.encoding.decode
    monkeypatch.setattr(built.encoding, "decode", lambda rows: tokens.extend(rows) or decode(rows))
    masked = built.answer(QUESTIONS, *generation)
    assert [len(text) for text in decode(tokens)] == [len("+002.0")] * len(masked)
    assert all(NumberFormat(3, 1, True).write(text) for text in masked)  # an error if one does not fit


@pytest.mark.parametrize("name", [name for name in MODELS if "head" not in name])
def test_a_batch_without_numbers_gives_a_finite_loss_with_a_graph(name):
    built = fitted(name)
    rows = rows_of(built, ["a", "b"], ["yes", "no"])
    grads, loss = gradient(built, rows)
    assert grads.isfinite().all()
    assert loss > 0
    if "xval" not in name:  # whose loss divides by the labels
        masked = [{**row, "labels": [IGNORE] * len(row["labels"])} for row in rows]
        grads, loss = gradient(built, masked)
        assert loss == 0
        assert not grads.any()
