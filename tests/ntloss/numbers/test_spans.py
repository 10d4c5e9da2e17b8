"""Whole numbers in labels: their tokens, the decimal place of each digit, and numbers of any length."""

import math
import re
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tolerances import approx, assert_close

from ntloss import NTLCrossEntropyLoss, NumberVocabulary
from ntloss.numbers.characters import find_numbers, token_kinds
from ntloss.numbers.grammar import find_in_text
from ntloss.numbers.parsing import parse_numbers
from ntloss.numbers.spans import log_ratio, sequence_ids_of
from ntloss.numbers.texts import TokenTexts

TEXTS = [*"0123456789", ".", ",", "-", None, " 4", "12", " 345", "007", "3.14", "-8", "1e3", ".5"]
TEXT = TEXTS.index(None)
VOCABULARY = NumberVocabulary.from_mapping({i: t for i, t in enumerate(TEXTS) if t}, vocab_size=len(TEXTS))
KINDS = token_kinds(VOCABULARY)
DIGITS_ALONE = NumberVocabulary.from_mapping({d: str(d) for d in range(10)}, vocab_size=len(TEXTS))
IGNORED = -100


def by_digits_after(probs, target, digits_after):
    return (1 - probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)) * (digits_after + 1)


def labels_of(*texts):
    """Rows of labels, where "_" is a text token and "x" is ignored."""
    named = {"_": TEXT, "x": IGNORED}
    return torch.tensor([[named[t] if t in named else TEXTS.index(t) for t in row] for row in texts])


def spans_by_row(labels, **options):
    """The numbers of each row, as lists of (position, place, place from the end)."""
    spans = find_numbers(labels, KINDS, **options)
    found = []
    for row in range(len(labels)):
        numbers: dict[int, list[tuple[int, int, int]]] = {}
        for t in range(labels.shape[1]):
            if spans.digits[row, t]:
                entry = (t, int(spans.place[row, t]), int(spans.place_from_end[row, t]))
                numbers.setdefault(int(spans.number[row, t]), []).append(entry)
                assert bool(spans.starts[row, t]) == (len(numbers[int(spans.number[row, t])]) == 1)
        found.append(list(numbers.values()))
    return found, spans


def places_of(row, **options):
    found, _ = spans_by_row(labels_of(row), **options)
    return [[place for _, place, _ in number] for number in found[0]]


@pytest.mark.parametrize(
    ("row", "decimals", "expected"),
    [
        ("12", False, [[1, 0]]),
        ("1_2", False, [[0], [0]]),
        ("1.2", False, [[0], [0]]),
        ("1.2", True, [[0, -1]]),
        ("12.345", True, [[1, 0, -1, -2, -3]]),
        ("1..2", True, [[0], [0]]),
        (".2", True, [[0]]),
        ("1.x", True, [[0]]),
        ("12.3.4", True, [[1, 0, -1], [0]]),
        ("1.2.3.4.5_6.7", True, [[0, -1], [0, -1], [0], [0, -1]]),
        (["1", ".", "2", ".", " 4", ".", "5"], True, [[0, -1], [0, -1]]),
        ("1,234", False, [[3, 2, 1, 0]]),
        ("1,23", False, [[0], [1, 0]]),
        ("_1,2", True, [[0], [0]]),  # a pair in brackets, or a decimal comma
        (["12", ",", "007", ".", "5"], True, [[3, 0, -1]]),
        ("-12", False, [[1, 0]]),
        (["1", "2", " 4"], False, [[1, 0], [0]]),
        ([" 4", "2"], False, [[1, 0]]),
        (["1", ".", " 4"], True, [[0], [0]]),
        (["12", "007", "3"], False, [[4, 1, 0]]),
        ([" 345", "12"], False, [[2, 0]]),
        (["12", ".", "007"], True, [[0, -3]]),
        (["-8", "2"], False, [[1, 0]]),
        (["3", "-8"], False, [[0], [0]]),
        (["1e3", "1"], True, [[0], [0]]),
        (["1", ".5"], True, [[0, 0]]),
        (["3.14", "1"], True, [[0, -3]]),
    ],
)
def test_spans_follow_the_documented_rules(row, decimals, expected):
    assert places_of(row, decimals=decimals) == expected


@given(st.lists(st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,2}){0,5}", fullmatch=True), min_size=1, max_size=3))
def test_decimal_points_follow_the_rule_of_parse_numbers(texts):
    text = "_".join(texts)
    spans = find_numbers(labels_of(text), KINDS, decimals=True)
    read = dict.fromkeys(spans.number[spans.digits > 0].tolist(), 0.0)
    for t in (spans.digits[0] > 0).nonzero().flatten().tolist():
        read[int(spans.number[0, t])] += int(text[t]) * 10.0 ** int(spans.place[0, t])
    assert list(read.values()) == approx(parse_numbers(text.replace("_", " a ")))


def test_position_ids_give_sequence_ids():
    position_ids = torch.tensor([[0, 1, 2, 0, 0, 1], [3, 4, 5, 6, 7, 8]])
    assert sequence_ids_of(position_ids).tolist() == [[0, 0, 0, 1, 2, 2], [0] * 6]


PIECES = [*"0123456789", *".,' -()/%", "\u00a0", "12", "007", "345", "{,}", " million", "k", " word"]
IN_TEXT = NumberVocabulary.from_mapping(
    {i: text for i, text in enumerate(PIECES) if text != " word"}, vocab_size=len(PIECES)
)
pieces = st.lists(st.sampled_from([*range(10), *range(10), *range(len(PIECES))]), min_size=1, max_size=9)


def numbers_of(labels, vocabulary, **options):
    """The numbers of a row, from the values and places of their tokens."""
    spans = find_numbers(torch.tensor([labels]), token_kinds(vocabulary), decimals=True, **options)
    found: dict[int, Decimal] = {}
    for t in spans.digits[0].nonzero().flatten().tolist():
        number, value, place = (column[0, t].item() for column in (spans.number, spans.value, spans.place))
        found[number] = found.get(number, Decimal(0)) + Decimal(f"{value:.15g}") * Decimal(10) ** place
    return [*found.values()]


@settings(max_examples=300, deadline=None)
@given(st.lists(pieces, min_size=1, max_size=3))
def test_rows_of_labels_are_read_as_their_texts(sequences):
    labels, ids, expected = list[int](), list[int](), list[Decimal]()
    for i, sequence in enumerate(sequences):
        row = [PIECES.index(" word"), PIECES.index(" "), *sequence]
        text = "".join(PIECES[piece] for piece in row)
        found = find_in_text(text)
        # Parts of something else, and magnitudes behind others; what stands behind a word is not known.
        assume(all(number.alone for number in found))
        assume(not re.search(r"(million|k) ?(million|k)|(word|million|k)[0-9]|[(][-0-9{},. ]+([)]|$)", text))
        expected += [abs(Decimal(number.plain)) for number in found]
        labels, ids = labels + row, ids + [i] * len(row)
    assert numbers_of(labels, IN_TEXT, sequence_ids=torch.tensor([ids])) == expected


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("1,234", 1234), ("12,345,678.5", 12345678.5), ("1.234,56", 1234.56), ("1\u00a0234", 1234),
        ("1'234.5", 1234.5), ("12,34,567", 1234567), ("1{,}234", 1234), ("3,14", 3.14), ("67 million", 67e6),
        ("3k", 3000), ("-2018", 2018),
    ],
)  # fmt: skip
def test_tokenizers_of_every_kind_lead_to_the_same_number(written, number, real_tokenizer):
    for name in ("t5", "gpt2"):
        tokenizer = real_tokenizer(name)
        vocabulary = NumberVocabulary.from_tokenizer(tokenizer)
        labels = tokenizer(f"It is {written}.", add_special_tokens=False)["input_ids"]
        if name == "t5" and any(mark in written for mark in "{'\u00a0"):
            continue  # unknown to it, or a space that begins a number
        assert [float(found) for found in numbers_of(labels, vocabulary)] == [number], name


def test_t5_reads_a_range_as_two_years(real_tokenizer):
    tokenizer = real_tokenizer("t5")
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer)
    labels = tokenizer("in 2017-2018", add_special_tokens=False)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(labels)[-1] == "-2018"
    assert dict(zip(vocabulary.token_ids, vocabulary.values, strict=True))[labels[-1]] == 2018
    assert numbers_of(labels, vocabulary) == [2017, 2018]


def test_finding_numbers_is_one_graph():
    torch._dynamo.reset()
    labels = torch.randint(0, len(TEXTS), (3, 40))
    ids = torch.arange(40).div(15, rounding_mode="floor").expand(3, -1)
    compiled = torch.compile(find_numbers, fullgraph=True, backend="aot_eager")
    for found, expected in zip(
        compiled(labels, KINDS, ids, True)[:7], find_numbers(labels, KINDS, ids, True)[:7], strict=True
    ):
        assert found.equal(expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("length", [1, 2, 7, 20, 21, 38, 39, 60, 400, 5000])
def test_log_ratios_of_numbers_of_any_length_match_exact_integers(length, dtype):
    generator = np.random.default_rng(length)
    true, read = generator.integers(0, 10, (2, length))
    read[: length // 2] = true[: length // 2]
    for first in (true, np.zeros(length, dtype=int)):
        labels = labels_of("".join(map(str, first)))
        spans = find_numbers(labels, KINDS).flatten()
        given = log_ratio(
            torch.tensor(read).to(dtype), torch.tensor(first).to(dtype), spans.place, spans, 1.0
        )
        whole = [int("".join(map(str, digits))) + 1 for digits in (read, first)] if length < 4000 else None
        if whole:
            expected = math.log(whole[0]) - math.log(whole[1])
            assert float(given[0]) == approx(expected, dtype=dtype, scale=1)
        assert given.isfinite().all()


@pytest.mark.parametrize("name", ["number_level", "ntil"])
def test_losses_and_gradients_of_very_long_numbers_are_finite(name):
    labels = torch.randint(0, 10, (2, 1500))
    labels[:, 0] = 0
    logits = torch.randn(2, 1500, len(TEXTS)) * 5
    logits[..., :10].masked_fill_(torch.rand(2, 1500, 10) < 0.2, -math.inf)
    logits.requires_grad_()
    loss_fn = NTLCrossEntropyLoss(DIGITS_ALONE, name, mode="replace", return_terms=True)
    terms = loss_fn(logits, labels)
    terms.loss.backward()
    assert terms.ntl.isfinite()
    assert logits.grad.isfinite().all()


def test_leading_zeros_do_not_hide_an_error():
    """The last digit is far below the smallest float32, relative to the first."""
    row = "0" * 80 + "7"
    logits = torch.full((1, 81, len(TEXTS)), -math.inf)
    logits[..., 0] = 0.0
    logits[0, -1] = -math.inf
    logits[0, -1, 3] = 0.0
    loss_fn = NTLCrossEntropyLoss(VOCABULARY, "number_level", reduction="sum", return_terms=True)
    assert float(loss_fn(logits, labels_of(row)).ntl) == approx(4 / 10)


def test_flat_labels_need_sequence_ids():
    labels = labels_of("1_23")
    logits = torch.randn(1, 4, len(TEXTS))
    hidden, head = torch.randn(4, 3), torch.randn(len(TEXTS), 3)
    for criterion in ("number_level", by_digits_after):
        loss_fn = NTLCrossEntropyLoss(VOCABULARY, criterion)
        with pytest.raises(ValueError, match="sequence_ids"):
            loss_fn(logits[0], labels[0])
        with pytest.raises(ValueError, match="sequence_ids"):
            loss_fn.from_hidden(hidden, head, labels[0])
        flat = loss_fn(logits[0], labels[0], sequence_ids=torch.zeros(4, dtype=torch.int64))
        assert_close(flat, loss_fn(logits, labels))
    NTLCrossEntropyLoss(VOCABULARY, "dist2").from_hidden(hidden, head, labels[0])


def test_sequence_ids_of_the_wrong_shape_or_dtype_are_errors():
    loss = NTLCrossEntropyLoss(VOCABULARY, "number_level")
    logits, labels = torch.randn(1, 4, len(TEXTS)), labels_of("1_23")
    with pytest.raises(ValueError, match="sequence_ids"):
        loss(logits, labels, sequence_ids=torch.zeros(1, 3, dtype=torch.int64))
    with pytest.raises(TypeError, match="sequence_ids"):
        loss(logits, labels, sequence_ids=torch.zeros(1, 4))


def test_empty_batches_are_supported():
    spans = find_numbers(torch.zeros(0, 5, dtype=torch.int64), KINDS, decimals=True)
    assert spans.place.shape == (0, 5)
    loss = NTLCrossEntropyLoss(VOCABULARY, "number_level")(
        torch.zeros(2, 0, len(TEXTS), requires_grad=True), torch.zeros(2, 0, dtype=torch.int64)
    )
    loss.backward()
    assert loss == 0


@pytest.mark.parametrize("row", [[2], [2, 2], [0, 2, 1, 3, 2], [3, 3, 3]])
@pytest.mark.parametrize("decimals", [False, True])
def test_tokens_that_hold_several_numbers_belong_to_the_last(row, decimals):
    texts = TokenTexts(dict(enumerate(["1", "7", "1/2", "3:30 4"])), {0: True, 1: True}, 4)
    vocabulary = replace(NumberVocabulary.from_mapping({0: "1", 1: "7"}, vocab_size=4), _texts=texts)
    spans = find_numbers(torch.tensor([row]), token_kinds(vocabulary), decimals=decimals)
    found = [int(n) for n, digits in zip(spans.number[0], spans.digits[0], strict=True) if digits]
    assert found == sorted(found)
    assert max(found) < len(row)
