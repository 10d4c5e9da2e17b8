"""Quantiles of numbers of any length, against every token sequence of a tiny vocabulary."""

from __future__ import annotations

import math

import pytest
import torch
from decoding_cases import FixedModel, any_length, batch_of, make_model, next_token
from hypothesis import given
from hypothesis import strategies as st
from tolerances import approx

from ntloss import NumberVocabulary
from ntloss.decoding import UnlikelyNumberWarning, number_quantiles
from ntloss.numbers import NumberFormat, parse_numbers
from ntloss.numbers.parsing import grammar

QUESTIONS = [[3, 4, 5], [10, 2, 3, 7, 6, 11, 4], [8]]
QUANTILES = (0.05, 0.3, 0.5, 0.95)
# Ids from 13 are text.
SPELLINGS = NumberVocabulary.from_mapping(
    {2: "0", 3: "1", 4: "2", 5: "+", 6: "-", 7: ".", 8: " 2", 9: "12", 10: "1.", 11: ",", 12: "1e3"},
    vocab_size=14,
)
WALKS = 2000
# A point in each of the strata leaves an error of about one stratum for each spelling of a number.
ALLOWED = 0.02
pytestmark = pytest.mark.filterwarnings("ignore::ntloss.decoding.UnlikelyNumberWarning")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("kind", "thousands"), [("t5", ","), ("llama", ","), ("llama", ""), ("gpt2", ","), ("mamba", ".")]
)
def test_walks_sample_the_numbers_that_the_model_writes(kind: str, thousands: str) -> None:
    model, width = make_model(kind, SPELLINGS.vocab_size), NumberFormat(max_digits=2, thousands=thousands)
    found = number_quantiles(
        model, batch_of(QUESTIONS), SPELLINGS, QUANTILES, width, walks=WALKS, generator=seeded()
    )
    for i, question in enumerate(QUESTIONS):
        behind = next_token(model, torch.tensor(question))
        numbers, starts = any_length(behind, SPELLINGS, 2, thousands)
        total = sum(numbers.values())
        assert found.starts[i].item() == approx(starts, ALLOWED, scale=0.05)
        assert found.ends[i].item() == approx(total / starts, ALLOWED, scale=1.0)
        mean = sum(x * p for x, p in numbers.items()) / total
        assert abs(found.mean[i].item() - mean) <= found.mean_error[i].item()
        for k, quantile in enumerate(QUANTILES):
            value = found.values[i, k].item()
            assert value in numbers
            below = sum(p for x, p in numbers.items() if x < value) / total
            assert below - ALLOWED <= quantile <= below + numbers[value] / total + ALLOWED
            true = min(x for x in numbers if sum(p for y, p in numbers.items() if y <= x) >= quantile * total)
            assert found.lower[i, k] <= true <= found.upper[i, k]


def test_the_same_seed_gives_the_same_numbers() -> None:
    model = make_model("llama", SPELLINGS.vocab_size)
    one, again, other = (
        number_quantiles(model, batch_of(QUESTIONS), SPELLINGS, generator=seeded(seed)) for seed in (1, 1, 2)
    )
    assert one.values.tolist() == again.values.tolist()
    assert one.mean.tolist() != other.mean.tolist()


def test_the_number_of_walks_follows_from_the_outermost_quantile() -> None:
    model = make_model("llama", SPELLINGS.vocab_size)
    rows = [
        number_quantiles(model, batch_of(QUESTIONS), SPELLINGS, (level,), generator=seeded()).rows
        for level in (0.5, 0.005)
    ]
    assert rows[0] < rows[1]
    with pytest.raises(ValueError, match=r"walks=32: 0.16 of them .* pass walks=800"):
        number_quantiles(model, batch_of(QUESTIONS), SPELLINGS, (0.5, 0.995), walks=32)


def test_a_model_that_never_ends_a_number_takes_a_bounded_number_of_passes() -> None:
    ones = torch.zeros(1, 4)
    ones[0, 0] = 1.0
    digits = NumberVocabulary.from_mapping({0: "1", 1: "."}, vocab_size=4)
    prompt = {"input_ids": torch.tensor([[3]])}
    read = number_quantiles(FixedModel(ones, {}), prompt, digits, (0.5,))
    assert read.passes == 13
    assert read.values.isnan().all()
    assert read.ends.item() == 0
    ones[0, 1] = 1e-9  # a point, behind which digits are cut off
    ones = torch.tensor([[0.0, 1, 0, 0], [1.0, 0, 0, 0]])
    read = number_quantiles(FixedModel(ones, {1: 1, 0: 1}), prompt, digits, (0.5,))
    assert read.values.item() == approx(1 / 9, 1e-9)


def chain(text: str, end: str = ";") -> FixedModel:
    """A model that writes the characters of a text, which are distinct, and then text."""
    characters = ["<", *text, end]
    probabilities = torch.zeros(len(characters), len(characters))
    probabilities[torch.arange(len(text) + 1), torch.arange(len(text) + 1) + 1] = 1.0
    probabilities[-1, -1] = 1.0
    return FixedModel(probabilities, {i: i for i in range(len(characters))})


def read_of(text: str, number_format: NumberFormat | None = None) -> float:
    mapping = {1 + i: character for i, character in enumerate(text)}
    vocabulary = NumberVocabulary.from_mapping(mapping, vocab_size=len(text) + 2)
    prompt = {"input_ids": torch.tensor([[0]])}
    found = number_quantiles(chain(text), prompt, vocabulary, (0.5,), number_format, generator=seeded())
    assert found.starts.item() == approx(1.0)
    return found.values.item()


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("20,000", 20000.0),
        ("10,222,222", 10222222.0),
        ("8,848.5", 8848.5),
        (" $42", 42.0),
        ("$1,250", 1250.0),
        ("-7.25", -7.25),
        ("42.", 42.0),
        ("20,30", 20.0),
        ("1.5e3", 1500.0),
    ],
)
def test_numbers_are_read_as_metrics_read_them(text: str, number: float) -> None:
    assert read_of(text) == number
    assert parse_numbers(text)[0] == number


def test_thousands_that_are_cut_off_are_a_warning() -> None:
    with pytest.warns(UnlikelyNumberWarning, match="a comma and thousands follow"):
        assert read_of("20,000", NumberFormat(thousands="")) == 20
    assert read_of("1.234,5", NumberFormat(thousands=".")) == 1234.5
    assert read_of("10 222 222", NumberFormat(thousands=" ")) == 10222222


@given(st.text("01 2,.-e$x", max_size=9), st.sampled_from([",", "", ".", " "]))
def test_text_behind_the_beginning_of_a_number_does_not_change_it(text: str, thousands: str) -> None:
    rule = grammar(thousands)
    longest = next((i for i in range(len(text)) if rule.begun.fullmatch(text[: i + 1]) is None), len(text))
    begun = text[:longest]
    whole, number = rule.number.search(text), rule.number.search(begun)
    if number is None or "e" in text or rule.begun.fullmatch(begun + "0") is None:
        return
    assert whole is not None
    assert math.isclose(float(rule.plain(whole.group())), float(rule.plain(number.group())))
