"""Whole numbers in labels: their tokens, the decimal place of each digit, and numbers of any length."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import tiny_tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers
from tolerances import approx, assert_close, assert_identical

from ntloss import NTLCrossEntropyLoss, NumberVocabulary
from ntloss.criteria.whole_numbers import log_ratio
from ntloss.numbers.grammar import DIGITS
from ntloss.numbers.grammar import find_numbers as find_numbers_of_text
from ntloss.numbers.labels import LabelNumbers, find_numbers, sequence_ids_of
from ntloss.numbers.texts import TokenTexts

TEXTS = [*"0123456789", ".", ",", "-", None, " 4", "12", " 345", "007", "3.14", "-8", "1e3", ".5"]
TEXT = TEXTS.index(None)
VOCABULARY = NumberVocabulary.from_mapping({i: t for i, t in enumerate(TEXTS) if t}, vocab_size=len(TEXTS))
IGNORED = -100


def labels_of(*texts):
    """Rows of labels, where "_" is a text token and "x" is ignored."""
    named = {"_": TEXT, "x": IGNORED}
    return torch.tensor([[named[t] if t in named else TEXTS.index(t) for t in row] for row in texts])


def read(labels, vocabulary=VOCABULARY, sequence_ids=None, **options):
    return LabelNumbers.unpack(find_numbers(torch.as_tensor(labels), vocabulary, sequence_ids, **options))


def digits_of_row(labels, vocabulary, **options):
    """The numbers of a row: lists of each token's digits, the place of its value, and the digits after it."""
    numbers = LabelNumbers(*(column[0] for column in read([labels], vocabulary, **options)))
    texts = {token.token_id: token.text for token in vocabulary.tokens}
    found: list[list[tuple[str, int, int]]] = []
    for t in numbers.length.nonzero()[:, 0].tolist():
        if not numbers.back[t]:
            found.append([])
        text = texts[labels[t]].lower().partition("e")[0]
        digits = "".join(c for c in text if c in DIGITS)[-int(numbers.length[t]) :]
        found[-1].append((digits, int(numbers.place[t]), int(numbers.after[t])))
        assert bool(numbers.starts[t]) == (len(found[-1]) == 1)
    return found


@pytest.mark.parametrize(
    ("row", "decimals", "expected"),
    [
        ("1.2", False, [[0], [0]]),
        ("1.2", True, [[0, -1]]),
        (".2", True, [[-1]]),
        ("_.2", True, [[0]]),  # what stands before the point is not known
        ("12.3.4", True, [[1, 0, -1], [0]]),
        ("1,234.56", False, [[3, 2, 1, 0], [1, 0]]),
        (["12", ",", "007", ".", "5"], True, [[3, 0, -1]]),
        ("-12", False, [[1, 0]]),
        (["1", "2", " 4"], False, [[1, 0], [0]]),
        (["1", ".", " 4"], True, [[0], [0]]),
        ([" 345", "12"], False, [[2, 0]]),
        (["3", "-8"], False, [[0], [0]]),
        (["1e3"], True, [[0]]),
        (["1e3", "1"], True, [[28]]),  # 1e31
        (["1", ".5"], True, [[0, 0]]),
        (["3.14", "1"], True, [[0, -3]]),
        (["1", "3.14"], False, [[1], [0]]),
        ("x1x2x", True, [[0], [0]]),
    ],
)
def test_numbers_of_labels_follow_the_documented_rules(row, decimals, expected):
    found = digits_of_row(labels_of(row)[0].tolist(), VOCABULARY, decimals=decimals)
    assert [[place for _, place, _ in number] for number in found] == expected


WRITTEN = [
    "-3.25", "in 1999, 250 of", "67 million", "3 hundred thousand", "2019-05-01", "007", "-3", "#### 42",
    "x = 9", "word", "the 4th", "No. 12", "72kg",
]  # fmt: skip
# T5 writes some of their digits in tokens that are no numbers, such as `1,`.
JOINED = [
    "[341, 258, 397, 360]", '{"price": 1234.5, "count": 7}', "| 12 | 345,678 | 9.5 |", "$1,234.50", "12:30",
    "0.05", "1/2", "3%-5%",
]  # fmt: skip
MORE = [
    "(512,384)", "<box>120 340 560 780</box>", "US$5m", "€ 3,14", "1.234,56 €", "1\u202f234\u00a0567",
    "1'234.5", "12,34,567", "1{,}234", "2017–2018", "35 m2", "9 J kg-1 K-1", "5 kg CO2", "pIC50 = 7.2", "x1",
    "Qwen2.5", "3k", "10.0.0.1", "−7.25", "3 × 10^5", "2½", "10²", "1２", "5万", "4k7", "1,234 5",
]  # fmt: skip
SPACED = ["5e3", "7 2"]  # which T5 writes with and without a space, if digits were added to it
ALL = [*WRITTEN, *JOINED, *MORE, *SPACED]
BETWEEN, SPACES = ["; ", " and ", ": "], [" ", "\n"]


def with_t5(real_tokenizer, *added):
    tokenizer = real_tokenizer("t5")
    tokenizer.add_tokens([*added])
    return tokenizer


def like_bert():
    """WordPiece, whose words and marks are apart in its tokens, as in its decoder."""
    characters = sorted({*"".join([*WRITTEN, *JOINED, *SPACED]).lower()} - {" "})
    words = ["[UNK]", *characters, *(f"##{c}" for c in characters), "12", "million", "kg", "##kg"]
    tokenizer = tiny_tokenizers._wrapped(
        models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"),
        pre_tokenizers.BertPreTokenizer(),
        decoders.WordPiece(),
        unk_token="[UNK]",
    )
    tokenizer.backend_tokenizer.normalizer = normalizers.BertNormalizer()
    return tokenizer


def of_characters():
    characters = sorted({*"".join([*ALL, *BETWEEN, *SPACES])})
    model = models.WordLevel({c: i for i, c in enumerate(characters)}, unk_token="?")
    return tiny_tokenizers._wrapped(model, pre_tokenizers.Split("", "isolated"), decoders.Fuse())


# Kinds of tokenizers, and texts that each keeps apart from others.
KINDS = {
    "characters": (lambda _: of_characters(), ALL),
    "byte level": (lambda real: real("gpt2"), ALL),
    "three digits": (lambda _: tiny_tokenizers.llama_3_like(), ALL),
    "one digit": (lambda _: tiny_tokenizers.qwen_like(), ALL),
    "byte fallback": (lambda _: tiny_tokenizers.gemma_like(), ALL),
    "Unigram": (lambda real: real("t5"), [*WRITTEN, *SPACED]),
    "Unigram with added digits": (lambda real: with_t5(real, *DIGITS), [*WRITTEN, *JOINED]),
    # `1999, 250` is `1999,250` there.
    "WordPiece": (lambda _: like_bert(), [WRITTEN[0], *WRITTEN[2:], *JOINED[1:], *SPACED]),
}


def digits_of_text(text):
    """The digits of the numbers of a text with their places, one by one."""
    found = []
    for written in find_numbers_of_text(text):
        mantissa, _, power = written.plain.lstrip("-").partition("e")
        digits, whole = mantissa.replace(".", ""), len(mantissa.partition(".")[0])
        found.append([(digit, whole - 1 - k + int(power or 0)) for k, digit in enumerate(digits)])
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_of_labels_are_those_of_the_text(kind, real_tokenizer):
    make, written = KINDS[kind]
    draw, tokenizer = random.Random(kind), make(real_tokenizer)
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, "numbers")
    for _ in range(10):
        between = BETWEEN + (SPACES if "added" not in kind else [])
        texts = ["".join(draw.choice(written) + draw.choice(between) for _ in range(n)) for n in (40, 30)]
        texts[0] += draw.choice(["7", ""])  # a number may end the first of two sequences
        rows = tokenizer(texts, add_special_tokens=False)["input_ids"]
        sequences = torch.tensor([[i for i, row in enumerate(rows) for _ in row]])  # two in one row
        numbers = digits_of_row(rows[0] + rows[1], vocabulary, sequence_ids=sequences)
        found = [
            [(d, place + len(digits) - 1 - i) for digits, place, _ in number for i, d in enumerate(digits)]
            for number in numbers
        ]
        assert found == [number for text in texts for number in digits_of_text(text)]
        for number in numbers:
            lengths = [len(digits) for digits, _, _ in number]
            assert [after for _, _, after in number] == [sum(lengths[i + 1 :]) for i in range(len(number))]


def magnitudes_of(labels, vocabulary):
    """The number of each label that has one, `[rows]` of lists."""
    return [row[row > 0].tolist() for row in read(labels, vocabulary).magnitude]


@pytest.mark.parametrize(
    ("thousands", "expected"), [(" ", {1200, 120.34}), ("", {1, 200, 120, 340}), (",", {1, 200, 120340})]
)
def test_a_separator_that_is_given_is_that_of_labels(thousands, expected):
    tokenizer = tiny_tokenizers.qwen_like()
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, thousands=thousands)
    rows = tokenizer(["1 200; 120,340"], add_special_tokens=False)["input_ids"]
    assert {*magnitudes_of(rows, vocabulary)[0]} == expected


def test_the_ends_of_rows_and_sequences_end_a_number():
    for tokenizer in (of_characters(), tiny_tokenizers.llama_3_like(), tiny_tokenizers.gemma_like()):
        vocabulary = NumberVocabulary.from_tokenizer(tokenizer)
        rows = tokenizer(["1,", "234", "1,234"], add_special_tokens=False)["input_ids"]
        rows = [[IGNORED] * (5 - len(row)) + row for row in rows]
        assert [{*row} for row in magnitudes_of(rows, vocabulary)] == [{1.0}, {234.0}, {1234.0}]
    position_ids = torch.tensor([[0, 1, 2, 0, 0, 1], [3, 4, 5, 6, 7, 8]])
    sequence_ids = sequence_ids_of(position_ids)
    assert sequence_ids.tolist() == [[0, 0, 0, 1, 2, 2], [0] * 6]
    found = read(labels_of("123456", "123456"), sequence_ids=sequence_ids)
    assert found.magnitude.tolist() == [[123, 123, 123, 4, 56, 56], [123456] * 6]


def test_what_is_no_token_of_the_vocabulary_ends_a_number():
    row = labels_of("12_3")
    for label in (-7, len(TEXTS)):
        outside = torch.where(row == TEXT, label, row)
        assert digits_of_row(outside[0].tolist(), VOCABULARY) == digits_of_row(row[0].tolist(), VOCABULARY)
    tokenizer = tiny_tokenizers.llama_like()
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, vocab_size=len(tokenizer) + 7)
    one = tokenizer.convert_tokens_to_ids("1")
    assert magnitudes_of([[one, len(tokenizer) + 5, one]], vocabulary) == [[1.0, 1.0]]


def test_digits_of_special_tokens_are_no_numbers():
    tokenizer = tiny_tokenizers.sentence_piece()
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer)
    ids = tokenizer.convert_tokens_to_ids(["<extra_id_4>", "4", "<7>", "▁42"])
    assert read([ids], vocabulary).magnitude.tolist() == [[0.0, 4.0, 0.0, 42.0]]
    tokenizer = tiny_tokenizers.qwen_like()
    tokenizer.add_special_tokens({"additional_special_tokens": ["7|>"]})
    ids = tokenizer("57|>42", add_special_tokens=False)["input_ids"]
    assert magnitudes_of([ids], NumberVocabulary.from_tokenizer(tokenizer)) == [[5.0, 42.0, 42.0]]


def test_a_token_of_several_numbers_belongs_to_the_last_and_hides_where_it_starts():
    texts = ["1", "7", "1/2", "3:30 4"]
    known = TokenTexts(dict(enumerate(texts)), {}, len(texts))
    digits = NumberVocabulary.from_mapping({0: "1", 1: "7"}, vocab_size=len(texts))
    numbers = read([[2, 1, 0, 2, 0, 3, 0, 0]], replace(digits, _texts=known))
    # 1, 2711, 213, 30, 411: a token that is no number has no loss, and its number no first token.
    assert numbers.length.tolist() == [[0, 1, 1, 0, 1, 0, 1, 1]]
    assert numbers.place.tolist() == [[0, 2, 1, 0, 1, 0, 1, 0]]
    assert not numbers.starts.any()
    assert not read([[1, 2]], replace(digits, _texts=known)).starts.any()  # 71 and 2


def test_what_is_left_of_a_number_is_in_units_of_the_tokens_last_digit():
    numbers = read(labels_of("42.5_07"))
    assert numbers.unit.tolist() == [[10, 1, 0, 0.1, 0, 10, 1]]
    assert numbers.below[0, :2].tolist() == approx([0.255, 0.55])  # 42.5 after 4 begins at 39.95
    assert numbers.above[0, :2].tolist() == approx([0.745, 0.45])
    assert numbers.leads.tolist() == [[1, 0, 0, 0, 0, 0, 0]]
    single = LabelNumbers.unpack(numbers.pack(torch.float32))  # for devices without float64
    for name, column in numbers._asdict().items():
        wanted = column.float() if column.is_floating_point() else column.int()
        assert_identical(getattr(single, name), wanted)


@pytest.mark.parametrize("length", [1, 7, 20, 21, 38, 39, 400, 5000])
def test_log_ratios_of_numbers_of_any_length_match_exact_integers(length):
    generator = np.random.default_rng(length)
    true, other = generator.integers(0, 10, (2, length))
    other[: length // 2] = true[: length // 2]
    for dtype, first in ((torch.float64, true), (torch.float32, np.zeros(length, dtype=int))):
        columns = read(labels_of("".join(map(str, first))))
        numbers = LabelNumbers(*(column[0] for column in columns))
        given = log_ratio(
            torch.tensor(other).to(dtype), torch.tensor(first).to(dtype), numbers.place, numbers, 1.0
        )
        assert given.isfinite().all()
        if length < 4000:
            whole = [int("".join(map(str, digits))) + 1 for digits in (other, first)]
            assert float(given[0]) == approx(math.log(whole[0]) - math.log(whole[1]), dtype=dtype, scale=1)


def test_labels_that_are_masked_after_they_were_prepared_have_no_term():
    labels, logits = labels_of("12.5_99_", "x7_1,234"), torch.randn(2, 8, len(TEXTS), dtype=torch.float64)
    loss = NTLCrossEntropyLoss(VOCABULARY, "number_level")
    prepared = loss.prepare(labels)
    prepared.labels[1] = -1
    assert_close(loss(logits, prepared), loss(logits[:1], labels[:1]))
    with pytest.raises(RuntimeError, match="prepare"):  # labels without values have to be
        loss.to("meta")(logits.to("meta"), labels.to("meta"))


def test_flat_labels_need_sequence_ids():
    labels, loss = labels_of("1_23"), NTLCrossEntropyLoss(VOCABULARY, "number_level")
    logits, hidden, head = torch.randn(1, 4, len(TEXTS)), torch.randn(4, 3), torch.randn(len(TEXTS), 3)
    for call in (lambda: loss(logits[0], labels[0]), lambda: loss.from_hidden(hidden, head, labels[0])):
        with pytest.raises(ValueError, match="sequence_ids"):
            call()
    flat = loss.prepare(labels[0], sequence_ids=torch.zeros(4, dtype=torch.int64))
    assert_close(loss(logits[0], flat), loss(logits, labels))
    with pytest.raises(ValueError, match="sequence_ids"):
        loss.prepare(labels, sequence_ids=torch.zeros(1, 3, dtype=torch.int64))
