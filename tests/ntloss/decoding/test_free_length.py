"""Quantiles of numbers of any length, against every token sequence of a tiny vocabulary."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from decoding_cases import assert_quantile, batch_of, free_length, make_model, next_token, texts_of
from hypothesis import given
from hypothesis import strategies as st
from tolerances import DISTRIBUTION, approx, assert_close

from ntloss import NumberVocabulary
from ntloss.decoding import grammar, number_quantiles
from ntloss.decoding.brackets import ROUNDING, Known, brackets, modes

MODELS = ["t5", "llama", "gpt2", "mamba"]
QUESTIONS = [[3, 4, 5], [10, 2, 3, 7, 6, 11, 4], [8]]
QUANTILES = (0.05, 0.3, 0.5, 0.95)
# Ids from 11 are text; a comma and an exponent end a number.
SPELLINGS = NumberVocabulary.from_mapping(
    {2: "0", 3: "1", 4: "2", 5: "+", 6: "-", 7: ".", 8: " 2", 9: "12", 10: "1.", 11: ",", 12: "1e3"},
    vocab_size=14,
)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", MODELS)
def test_quantiles_are_those_of_all_complete_numbers(kind: str, seed: int) -> None:
    model = make_model(kind, SPELLINGS.vocab_size, seed)
    found = number_quantiles(model, batch_of(QUESTIONS), SPELLINGS, QUANTILES, max_digits=2, rows_per_pass=7)
    for i, question in enumerate(QUESTIONS):
        numbers = free_length(next_token(model, torch.tensor(question)), texts_of(SPELLINGS), 2)
        for k, quantile in enumerate(QUANTILES):
            assert_quantile(found.values[i, k].item(), quantile, numbers, DISTRIBUTION[torch.float32])
        assert found.mass[i].item() >= sum(numbers.values()) * (1 - DISTRIBUTION[torch.float32])
        if found.mode_exact[i]:
            likeliest = max(numbers.values())
            assert numbers[found.mode[i].item()] == approx(likeliest, DISTRIBUTION[torch.float32])
    assert found.exact.all()
    assert found.mode_exact.any()


def test_half_precision_is_as_close_as_its_rounding() -> None:
    model = make_model("llama", SPELLINGS.vocab_size).to(torch.bfloat16)
    found = number_quantiles(model, batch_of(QUESTIONS), SPELLINGS, QUANTILES, max_digits=2)
    for i, question in enumerate(QUESTIONS):
        numbers = free_length(next_token(model, torch.tensor(question)), texts_of(SPELLINGS), 2)
        for k, quantile in enumerate(QUANTILES):
            assert_quantile(found.values[i, k].item(), quantile, numbers, DISTRIBUTION[torch.bfloat16])


def test_multi_digit_tokens_that_a_vocabulary_leaves_out_are_read() -> None:
    texts = {2 + d: str(d) for d in range(10)} | {12: "12", 13: "07"}
    with pytest.warns(UserWarning, match="left out"):
        vocabulary = NumberVocabulary.from_mapping(texts, vocab_size=16, digit_level=True)
    model = make_model("t5", 16, seed=4)
    found = number_quantiles(model, batch_of(QUESTIONS), vocabulary, QUANTILES, max_digits=2)
    for i, question in enumerate(QUESTIONS):
        numbers = free_length(next_token(model, torch.tensor(question)), texts, 2)
        for k, quantile in enumerate(QUANTILES):
            assert_quantile(found.values[i, k].item(), quantile, numbers, DISTRIBUTION[torch.float32])


@pytest.mark.parametrize("max_rows", [3, 4, 10, 30, 100])
def test_brackets_hold_wherever_the_search_is_stopped(max_rows: int) -> None:
    model = make_model("gpt2", SPELLINGS.vocab_size, seed=3).double()
    options: dict[str, Any] = {"quantiles": QUANTILES, "max_digits": 3, "rows_per_pass": 2}
    true = number_quantiles(model, batch_of(QUESTIONS), SPELLINGS, **options)
    found = number_quantiles(model, batch_of(QUESTIONS), SPELLINGS, max_rows=max_rows, **options)
    assert found.rows <= max_rows * len(QUESTIONS)
    assert ((found.lower <= true.values) & (true.values <= found.upper)).all()
    assert ((found.lower <= found.values) & (found.values <= found.upper)).all()
    assert (found.exact == (found.lower == found.upper)).all()
    assert (found.mass >= true.mass - DISTRIBUTION[torch.float64]).all()


@pytest.mark.parametrize("max_rows", [5, 20])
@pytest.mark.parametrize("kind", MODELS)
def test_batching_does_not_change_brackets_that_ran_out_of_rows(kind: str, max_rows: int) -> None:
    model = make_model(kind, SPELLINGS.vocab_size, seed=3, scale=2.0).double()
    options: dict[str, Any] = {"quantiles": QUANTILES, "max_digits": 3, "max_rows": max_rows}
    together = number_quantiles(model, batch_of(QUESTIONS), SPELLINGS, rows_per_pass=16, **options)
    assert not together.exact.all()
    for i, question in enumerate(QUESTIONS):
        alone = number_quantiles(model, batch_of([question]), SPELLINGS, rows_per_pass=16, **options)
        assert alone.exact.all() or alone.rows >= max_rows
        for name in ("values", "lower", "upper", "mass"):
            assert_close(getattr(together, name)[i], getattr(alone, name)[0], DISTRIBUTION[torch.float64])


def test_every_question_of_a_large_batch_gets_its_full_row_budget() -> None:
    model = make_model("gpt2", SPELLINGS.vocab_size, seed=3, scale=0.5).double()
    questions = [[8, i] for i in range(2, 8)]
    batch = batch_of(questions)
    options: dict[str, Any] = {"quantiles": QUANTILES, "rows_per_pass": 2}
    prompts = number_quantiles(model, batch, SPELLINGS, max_rows=1, **options)
    found = number_quantiles(model, batch, SPELLINGS, max_rows=20, **options)
    assert prompts.rows == len(questions)
    assert not found.exact.all(-1).any()
    assert found.rows == 20 * len(questions)
    assert (found.mass < prompts.mass).all()


def test_a_tolerance_ends_the_search_sooner() -> None:
    model = make_model("gpt2", SPELLINGS.vocab_size, seed=3)
    options: dict[str, Any] = {"quantiles": (0.5, 0.9), "max_digits": 8, "rows_per_pass": 1}
    loose = {"atol": 2.0, "rtol": 1.0}
    exact = number_quantiles(model, batch_of(QUESTIONS[:1]), SPELLINGS, **options)
    wide = number_quantiles(model, batch_of(QUESTIONS[:1]), SPELLINGS, **loose, **options)
    assert wide.rows < exact.rows
    assert (wide.upper - wide.lower <= 2 + wide.values.abs()).all()
    assert not wide.exact.all()


def test_more_rows_in_a_pass_find_the_same_in_fewer_passes() -> None:
    model = make_model("llama", SPELLINGS.vocab_size, seed=5).double()
    one, many = (
        number_quantiles(model, batch_of(QUESTIONS), SPELLINGS, max_digits=3, rows_per_pass=rows)
        for rows in (3, 256)
    )
    assert torch.equal(one.values, many.values)
    assert many.passes < one.passes
    assert one.rows < many.rows


# --- grammar --------------------------------------------------------------------------------------------


def read(tokens: list[int], max_digits: int = 12) -> grammar.Prefixes | None:
    """The prefix that these tokens write, or None where they cannot continue a number."""
    tables, prefix = grammar.continuations(SPELLINGS), grammar.start(1)
    for token in tokens:
        table = tables[int(prefix.state)]
        index = (table.token_ids == token).nonzero().squeeze(-1)
        if not len(index):
            return None
        prefix = grammar.extend(prefix, grammar.Continuations(*(column[index] for column in table)))
    return prefix


@pytest.mark.parametrize(
    ("tokens", "value"),
    [
        ([3, 9], 112.0),
        ([2, 2, 4], 2.0),
        ([6, 4, 7, 3], -2.1),
        ([5, 3], 1.0),
        ([8, 7], 2.0),  # the point may end a sentence
        ([10, 9], 1.12),
        ([4, 10, 2], 21.0),
        ([6, 2], 0.0),
        ([3, 8], None),  # a space
        ([3, 6], None),  # a sign
        ([3, 7, 7], None),
        ([3, 7, 10], None),
        ([6, 8], None),
        ([7, 3], None),  # no digit in front of the point
        ([3, 11], None),
        ([12], None),
    ],
)
def test_the_grammar_reads_numbers_as_documented(tokens: list[int], value: float | None) -> None:
    prefix = read(tokens)
    assert (None if prefix is None else prefix.numbers().item()) == value
    if prefix is not None:
        assert math.copysign(1, prefix.numbers().item()) == (-1 if value is not None and value < 0 else 1)


@given(st.lists(st.sampled_from([2, 3, 4, 5, 6, 7, 9, 10]), min_size=1, max_size=5), st.data())
def test_all_numbers_that_begin_with_a_prefix_lie_in_its_bounds(tokens: list[int], data: Any) -> None:
    cut = data.draw(st.integers(1, len(tokens)))
    whole, begin = read(tokens), read(tokens[:cut])
    if whole is None or begin is None or int(whole.state) not in grammar.COMPLETE:
        return
    low, high = begin.bounds(max_digits=int(whole.digits) + data.draw(st.integers(0, 3)))
    assert low <= whole.numbers() <= high


# --- brackets -------------------------------------------------------------------------------------------

masses = st.integers(0, 6).map(float)
ranges = st.lists(
    st.tuples(st.integers(-5, 5), st.integers(0, 4), masses, st.booleans()), min_size=1, max_size=6
)


@given(st.lists(ranges, min_size=1, max_size=3), st.sampled_from([0.1, 0.5, 0.77]), st.randoms())
def test_brackets_hold_wherever_the_mass_lies_in_its_ranges(
    entries: Any, quantile: float, random: Any
) -> None:
    rows = [
        (question, mass, low, low if number else low + width, number)
        for question, found in enumerate(entries)
        for low, width, mass, number in found
    ]
    question, mass, low, high, number = map(torch.tensor, zip(*rows, strict=True))
    low, high, mass = low.double(), high.double(), mass.double()
    known = Known(question, mass, low, high, low, number)
    values, lower, upper = brackets(known, torch.tensor([quantile], dtype=torch.float64), len(entries))
    for i, found in enumerate(entries):
        outcome: dict[float, float] = {}
        for start, width, weight, complete in found:
            # A range is spread over its numbers, or partly over none.
            for _ in range(1 if complete else random.randint(0, 3)):
                at = start if complete else start + random.randint(0, width)
                outcome[at] = outcome.get(at, 0.0) + (weight if complete else weight / 3)
        if not sum(outcome.values()):
            continue
        inside = [x for x in sorted(outcome) if sum(p for y, p in outcome.items() if y <= x)
                  >= (quantile - ROUNDING) * sum(outcome.values())]  # fmt: skip
        assert lower[i] <= inside[0] <= upper[i]
        assert lower[i] <= values[i] <= upper[i]


def test_the_median_of_two_equal_halves_is_the_smaller_number() -> None:
    half = torch.tensor([0.5, 0.5 - 1e-13, 1e-13], dtype=torch.float64)
    low, high = torch.tensor([[3.0, 7.0, 0.0], [3.0, 7.0, 9.0]], dtype=torch.float64)
    known = Known(torch.zeros(3, dtype=torch.int64), half, low, high, low, torch.tensor([True, True, False]))
    values, lower, upper = brackets(known, torch.tensor([0.5], dtype=torch.float64), 1)
    assert values.item() == lower.item() == upper.item() == 3


def test_a_mode_is_exact_if_no_unexplored_mass_can_exceed_it() -> None:
    question = torch.tensor([0, 0, 0, 2, 2])
    value = torch.tensor([5.0, 4.0, 5.0, 1.0, 2.0], dtype=torch.float64)
    mass = torch.tensor([0.2, 0.3, 0.2, 0.5, 0.3], dtype=torch.float64)
    found, certain = modes(question, value, mass, torch.tensor([0.05, 0.4, 0.25], dtype=torch.float64))
    assert found[[0, 2]].tolist() == [5.0, 1.0]
    assert found[1].isnan()
    assert certain.tolist() == [True, False, False]
