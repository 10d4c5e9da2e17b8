"""NumberLevelLoss: equal to the published class where that is right, and right where it is not."""

import inspect
import re

import numpy as np
import oracle
import published_side
import pytest
import tiny_tokenizers
import torch
from tolerances import approx, assert_close

import ntloss
from ntloss import NTLossDotProduct, NumberLevelLoss, NumberVocabulary

TEXTS = [*"0123456789", ".", "a", "b", None]
VOCABULARY = NumberVocabulary.from_mapping(dict(enumerate(TEXTS[:11])), vocab_size=len(TEXTS))


def texts_to_labels(*rows):
    return torch.tensor([[TEXTS.index(c) if c != "x" else -100 for c in row] for row in rows])


def one_point_each(labels):
    """Replace a second point by text, because 0.3.2 reads 12.3.4 as 1234."""
    named = [[TEXTS[i] or "b" if i >= 0 else "x" for i in row] for row in labels.tolist()]
    rows = [re.sub(r"(?<=[0-9x])\.([0-9]+)\.(?=[0-9])", r".\1a", "".join(row)) for row in named]
    return texts_to_labels(*rows)


def published_cases():
    """Make random batches with all options, and numbers of 1 to 20 digits."""
    generator = torch.Generator().manual_seed(0)
    cases = []
    for float_level in (False, True):
        for reweigh in (True, False):
            for reduction in ("mean", "sum", "none"):
                labels = torch.randint(0, 14, (4, 24), generator=generator)
                labels[labels == 13] = -100
                if float_level:
                    labels[0, :9] = texts_to_labels("1.25..4.5")[0]
                    labels = one_point_each(labels)
                call = {"reduction": reduction}
                if reduction == "mean":
                    call["loss_weights"] = torch.rand(4, 24, generator=generator)
                cases.append((float_level, reweigh, labels, call))
    for length in range(1, 21):
        row = "9" + "0123456789" * 2
        labels = texts_to_labels(row[:length] + "a" * (21 - length))
        cases.append((False, bool(length % 2), labels, {"reduction": "none"}))
    cases.append((False, True, texts_to_labels("000a0a00"), {"reduction": "none"}))
    made = []
    for float_level, reweigh, labels, call in cases:
        logits = 3 * torch.randn(*labels.shape, len(TEXTS), generator=generator)
        options = {"float_level": float_level, "reweigh": reweigh}
        made.append({"logits": logits, "labels": labels, "options": options, "call": call})
    return made


def home_made_cases():
    """Make batches with custom tokenizers whose decoders put spaces between digits."""
    generator = torch.Generator().manual_seed(1)
    texts = ["12", "12,-2019a,7.04.", "12 7 1 9.5"]
    cases = []
    for make in tiny_tokenizers.HOME_MADE:
        tokenizer = tiny_tokenizers.HOME_MADE[make]()
        for text in texts:
            labels = torch.tensor([tokenizer(text)["input_ids"]])
            for float_level in (False, True):
                logits = 3 * torch.randn(*labels.shape, len(tokenizer), generator=generator)
                options = {"float_level": float_level}
                call = {"reduction": "none"}
                case = {"logits": logits, "labels": labels, "options": options, "call": call, "make": make}
                cases.append(case)
    return cases


def test_equals_the_published_loss_in_value_and_gradient(published, tmp_path):
    requests = [*published_cases(), *home_made_cases()]
    theirs = published_side.answers_of_published(published, requests, tmp_path)
    for request, expected in zip(requests, theirs, strict=True):
        found = published_side.answer_number_level(request, ntloss, lambda _: VOCABULARY)
        assert_close(found, expected)


def test_accepts_the_published_arguments():
    parameters = inspect.signature(NumberLevelLoss).parameters
    published = {"vocab_size": None, "float_level": False, "reweigh": True, "max_number_length": 20}
    assert list(parameters)[:5] == ["tokenizer", *published]
    assert {name: parameters[name].default for name in published} == published
    loss = NumberLevelLoss(VOCABULARY, None, True, False, 7)
    assert isinstance(loss, NTLossDotProduct)
    assert (loss.float_level, loss.reweigh, loss.max_number_length) == (True, False, 7)
    assert float(loss.max_dist) == 1.0
    prediction, mass = loss.predict_numbers(torch.zeros(1, 1, len(TEXTS)))
    assert float(prediction) == approx(4.5)
    assert float(mass) == approx(10 / 14)


def number_levels(logits, labels, decimals=False):
    term = oracle.Term(oracle.number_level, reweigh=False, decimals=decimals)
    options = oracle.Combined(
        term, weight=1.0, reduction="none", cross_entropy=0.0, texts=dict(enumerate(TEXTS[:11]))
    )
    values = {digit: float(digit) for digit in range(10)}
    return oracle.combined(np.asarray(logits), np.asarray(labels), values, options).ntl


@pytest.mark.parametrize("length", [*range(1, 61, 7), 21, 25, 40, 60])
@pytest.mark.parametrize("float_level", [False, True])
def test_numbers_of_1_to_60_digits_equal_the_oracle(length, float_level):
    generator = torch.Generator().manual_seed(length)
    digits = torch.randint(0, 10, (1, length), generator=generator)
    text = "".join(map(str, digits[0].tolist()))
    row = "a" + (f"{text[:2]}.{text[2:]}" if float_level and length > 2 else text) + "b"
    labels = texts_to_labels(row)
    logits = 3 * torch.randn(*labels.shape, len(TEXTS), generator=generator, dtype=torch.float64)
    logits[0, : length // 2].scatter_(-1, labels[0, : length // 2, None], 30.0)
    loss = NumberLevelLoss(VOCABULARY, float_level=float_level, reweigh=False)(
        logits, labels, reduction="none"
    )
    expected = number_levels(logits, labels, float_level)
    assert (expected != 0).sum() == 1
    assert_close(loss, expected, scale=1.0)  # an error is from 0 to 1


def test_numbers_longer_than_max_number_length_are_not_clamped():
    certain = torch.full((1, 30, len(TEXTS)), -1e4)
    certain[0, range(30), [2, *[0] * 29]] = 0.0  # 2 * 10^29
    labels = texts_to_labels("1" + "0" * 29)
    loss = NumberLevelLoss(VOCABULARY, max_number_length=5)(certain, labels)
    assert float(loss) == approx(1 / 3)
