"""What holds for every approach: any split of a batch, saving and loading, batches with nothing to learn."""

import pytest
import torch
from approach_cases import (
    ANSWERS,
    BEAMS,
    CE,
    GPT2,
    GREEDY,
    QUESTIONS,
    assert_split_does_not_matter,
    assert_the_same,
    gradient,
    make,
    overfit,
    rows_of,
    saved,
)
from tolerances import LEARNED, TWO_PATHS, approx

from ntl.approaches import IGNORE
from ntloss.numbers.parsing import parse_number

DECODER = {"family": "decoder_only"}
XVAL, HEAD = {"encoding": "xval"}, {"head": "regression"}
# Shape, settings, and whether answers are text instead of numbers that a head computes.
APPROACHES = {
    "t5": ("t5-tiny", {}, True),
    "rt": ("t5-tiny", {"encoding": "rt"}, True),
    "xval": ("t5-tiny", XVAL, False),
    "xval, linear": ("t5-tiny", {**XVAL, "log_scale": False}, False),
    "head": ("t5-tiny", HEAD, False),
    "head, linear": ("t5-tiny", {**HEAD, "log_scale": False}, False),
    "llama": ("llama-tiny", DECODER, True),
    "mamba": ("mamba-tiny", DECODER, True),
    "gpt2": (GPT2, DECODER, True),
}


def built(name):
    shape, settings, writes = APPROACHES[name]
    approach = make(shape, **({} if writes else {"loss": CE}), **settings)
    approach.fit(ANSWERS)
    return approach


@pytest.mark.parametrize("name", APPROACHES)
def test_the_update_does_not_depend_on_the_split_into_micro_batches(name):
    approach = built(name)
    more = (["no number"], ["none"]) if "xval" in name else ([], [])
    rows = rows_of(approach, [*QUESTIONS, *more[0]], [*ANSWERS, *more[1]])
    # Mamba computes its scan in float32, whatever the dtype of its weights.
    assert_split_does_not_matter(approach, rows, TWO_PATHS[torch.float32] if name == "mamba" else TWO_PATHS)


# The log scale learns; test_xval.py saves the linear one.
@pytest.mark.parametrize("name", [name for name in APPROACHES if "linear" not in name])
def test_an_overfitted_model_still_answers_correctly_after_saving_and_loading(name, tmp_path):
    _, settings, writes = APPROACHES[name]
    approach = overfit(built(name))
    for generation in (GREEDY, BEAMS) if writes else (GREEDY,):
        answers = approach.answer(approach.model, QUESTIONS, generation)
        if writes:
            assert answers == ANSWERS
        else:
            assert [parse_number(answer, "whole") for answer in answers] == approx(
                [float(answer) for answer in ANSWERS], LEARNED, scale=1
            )
    assert approach.model.training
    assert approach.ill_formed == (0 if name == "rt" else None)
    other = saved(approach, tmp_path, settings, *([] if writes else [CE]))
    assert_the_same(approach, other, BEAMS if writes else GREEDY)
    if name == "head":  # the statistics of a finished run are kept
        other.fit(["1000"])
        assert other.model.config.ntl == approach.model.config.ntl


@pytest.mark.parametrize("name", [name for name in APPROACHES if "head" not in name])
def test_a_batch_without_numbers_or_labels_gives_a_finite_loss_with_a_graph(name):
    approach = built(name)
    rows = rows_of(approach, ["a", "b"], ["yes", "no"])
    grads, _, terms = gradient(approach, rows, 2)
    assert terms["number" if "xval" in name else "ntl"] == 0
    assert grads.isfinite().all()
    masked = [{**row, "labels": [IGNORE] * len(row["labels"])} for row in rows]
    grads, loss, _ = gradient(approach, masked, 2)
    assert loss == 0
    assert not grads.any()
