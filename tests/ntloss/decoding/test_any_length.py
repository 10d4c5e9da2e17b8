"""Quantiles of numbers of any length, against every token sequence of a tiny vocabulary."""

import itertools
from dataclasses import replace
from random import Random

import pytest
import torch
from decoding_cases import FixedModel, any_length, batch_of, make_model, next_token
from hypothesis import given
from hypothesis import strategies as st
from tolerances import approx

from ntloss import NumberVocabulary
from ntloss.decoding import UnlikelyNumberWarning, number_quantiles
from ntloss.numbers import NumberFormat, parse_numbers
from ntloss.numbers.grammar import read_prefix

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


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("kind", "thousands"), [("t5", ","), ("llama", ","), ("llama", ""), ("gpt2", ","), ("mamba", ".")]
)
def test_walks_sample_the_numbers_that_the_model_writes(kind, thousands):
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


def test_walks_differ_only_with_a_generator_of_ones_own():
    model = make_model("llama", SPELLINGS.vocab_size)
    one, again, other = (
        number_quantiles(model, batch_of(QUESTIONS), SPELLINGS, generator=generator)
        for generator in (None, None, seeded(2))
    )
    assert one.values.tolist() == again.values.tolist()
    assert one.mean.tolist() != other.mean.tolist()


def test_the_number_of_walks_follows_from_the_outermost_quantile():
    model = make_model("llama", SPELLINGS.vocab_size)
    rows = [
        number_quantiles(model, batch_of(QUESTIONS), SPELLINGS, (level,), generator=seeded()).rows
        for level in (0.5, 0.005)
    ]
    assert rows[0] < rows[1]
    with pytest.raises(ValueError, match=r"walks=32: 0.16 of them .* pass walks=800"):
        number_quantiles(model, batch_of(QUESTIONS), SPELLINGS, (0.5, 0.995), walks=32)


def test_a_model_that_never_ends_a_number_takes_a_bounded_number_of_passes():
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


def read_rows(vocabulary, rows, number_format=None):
    """What walks read if a model is sure to write each row of tokens, and then text."""
    ends = list(itertools.accumulate(len(row) + 2 for row in rows))
    # Each token of each row has an id of its own, behind that of the row's prompt.
    ids = [range(end - len(row) - 1, end - 1) for row, end in zip(rows, ends, strict=True)]
    own = [*zip(itertools.chain(*ids), itertools.chain(*rows), strict=True)]
    of_token = {token.token_id: token for token in vocabulary.tokens}
    chained = NumberVocabulary(
        vocab_size=ends[-1],
        tokens=tuple(replace(of_token[i], token_id=new) for new, i in own if i in of_token),
        pieces={new: vocabulary.pieces[i] for new, i in own if i in vocabulary.pieces},
        letter_ids=tuple(new for new, i in own if i in vocabulary.letter_ids),
    )
    probabilities = torch.eye(ends[-1]).roll(1, -1)
    last = torch.tensor(ends) - 1
    probabilities[last] = torch.eye(ends[-1])[last]
    model = FixedModel(probabilities, {i: i for i in range(ends[-1])})
    prompts = {"input_ids": torch.tensor([[own_ids[0] - 1] for own_ids in ids])}
    found = number_quantiles(model, prompts, chained, (0.5,), number_format, walks=8, generator=seeded())
    assert found.starts.tolist() == approx([1.0] * len(rows))
    values: list[float] = found.values[:, 0].tolist()
    return values


def read_of(text, number_format=None):
    vocabulary = NumberVocabulary.from_mapping(dict(enumerate(text)), vocab_size=len(text))
    return read_rows(vocabulary, [list(range(len(text)))], number_format)[0]


def texts_with_a_number_in_front(seed, count):
    random = Random(seed)
    parts = [*"0123456789.,eE-+x%) $\u2212", "12", "000", "2024", "e3", ".5", " It", "km", "rd", ", ", ". "]
    texts = [f"{random.randrange(1000)}.{random.randrange(10)}. It is so." for _ in range(count)]
    for _ in range(count):
        sign, number = random.choice(["", "-", "$"]), random.choice(["9", "047", "1,250", "0", ".5", "3e3"])
        texts.append(sign + number + "".join(random.choices(parts, k=random.randrange(6))))
    return texts


@pytest.mark.parametrize("name", ["t5", "gpt2", "smollm2"])
@pytest.mark.parametrize("thousands", [",", "", ".", " "])
@pytest.mark.filterwarnings("ignore:.*tokens count as numbers")
def test_numbers_of_real_tokenizers_are_read_as_metrics_read_them(name, thousands, real_tokenizer, request):
    tokenizer = request.getfixturevalue("smollm2")[0] if name == "smollm2" else real_tokenizer(name)
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, "numbers")
    given = texts_with_a_number_in_front(seed=len(name + thousands), count=75)
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in given]
    written = [tokenizer.convert_tokens_to_string(tokenizer.convert_ids_to_tokens(row)) for row in rows]
    expected = [parse_numbers(text, thousands)[0] for text in written]
    begins = [
        read_prefix(text, thousands).value is not None for text in written
    ]  # ".5" does not, with points
    kept = [i for i, number in enumerate(expected) if begins[i] and abs(number) < 1e300]
    assert len(kept) > 120
    read = read_rows(vocabulary, [rows[i] for i in kept], NumberFormat(max_digits=300, thousands=thousands))
    wrong = [
        (written[i], r, expected[i]) for i, r in zip(kept, read, strict=True) if r != approx(expected[i])
    ]
    assert not wrong


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
        ("20,30", 20.3),
        ("045.", 45.0),
        ("1.5e3", 1500.0),
        ("\u22123", -3.0),
    ],
)
def test_numbers_are_read_as_metrics_read_them(text, number):
    assert read_of(text) == number
    assert parse_numbers(text)[0] == number


def test_thousands_that_are_cut_off_are_a_warning():
    with pytest.warns(UnlikelyNumberWarning, match="a comma and thousands follow"):
        assert read_of("20,000", NumberFormat(thousands="")) == 20
    assert read_of("1.234,5", NumberFormat(thousands=".")) == 1234.5
    assert read_of("10 222 222", NumberFormat(thousands=" ")) == 10222222


@given(st.text("01 2,.-e$x", max_size=9), st.sampled_from([",", "", ".", " "]))
def test_text_behind_a_number_that_has_ended_does_not_change_it(text, thousands):
    prefixes = [read_prefix(text[: i + 1], thousands) for i in range(len(text))]
    ended = [prefix for prefix in prefixes if not prefix.open]
    assert len({prefix[:2] for prefix in ended}) <= 1
    if ended and ended[0].value is not None:
        assert ended[0].value == parse_numbers(text, thousands)[0]
