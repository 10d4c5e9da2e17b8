"""What holds for every model: saving and loading, and batches with nothing to learn."""

import pytest
from model_cases import (
    ANSWERS,
    BEAMS,
    GPT2,
    GREEDY,
    QUESTIONS,
    assert_the_same,
    gradient,
    make,
    overfit,
    rows_of,
    saved,
)
from tolerances import LEARNED, approx

from ntl.models import IGNORE
from ntloss.numbers.parsing import parse_number

DECODER = {"family": "decoder_only"}
XVAL, HEAD = {"encoding": "xval"}, {"head": "regression"}
# Shape, settings, and whether answers are text instead of numbers that a head computes.
MODELS = {
    "t5": ("t5-tiny", {}, True),
    "rt": ("t5-tiny", {"encoding": "rt"}, True),
    "xval": ("t5-tiny", XVAL, False),
    "head": ("t5-tiny", HEAD, False),
    "llama": ("llama-tiny", DECODER, True),
    "mamba": ("mamba-tiny", DECODER, True),
    "gpt2": (GPT2, DECODER, True),
}


def fitted(name):
    shape, settings, _ = MODELS[name]
    built = make(shape, **settings)
    built.fit(ANSWERS)
    return built


@pytest.mark.parametrize("name", MODELS)
def test_an_overfitted_model_still_answers_correctly_after_saving_and_loading(name, tmp_path):
    _, settings, writes = MODELS[name]
    built = overfit(fitted(name))
    for generation in (GREEDY, BEAMS) if writes else (GREEDY,):
        answers = built.answer(built.model, QUESTIONS, *generation)
        if writes:
            assert answers == ANSWERS
        else:
            assert [parse_number(answer, "whole") for answer in answers] == approx(
                [float(answer) for answer in ANSWERS], LEARNED, scale=1
            )
    assert built.model.training
    other = saved(built, tmp_path, settings)
    assert_the_same(built, other, BEAMS if writes else GREEDY)
    if name == "head":  # the statistics of a finished run are kept
        other.fit(["1000"])
        assert other.model.config.ntl == built.model.config.ntl


@pytest.mark.parametrize("name", [name for name in MODELS if "head" not in name])
def test_a_batch_without_numbers_gives_a_finite_loss_with_a_graph(name):
    built = fitted(name)
    rows = rows_of(built, ["a", "b"], ["yes", "no"])
    grads, loss = gradient(built, rows)
    assert grads.isfinite().all()
    assert loss > 0
    if name != "xval":  # whose loss divides by the labels
        masked = [{**row, "labels": [IGNORE] * len(row["labels"])} for row in rows]
        grads, loss = gradient(built, masked)
        assert loss == 0
        assert not grads.any()
