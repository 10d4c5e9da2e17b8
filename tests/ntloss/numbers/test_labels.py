"""Whole numbers in labels: their tokens, the decimal place of each digit, and numbers of any length."""

import math
import pickle
import random
from dataclasses import replace

import numpy as np
import pytest
import tiny_tokenizers
import torch
from graphs import Watch
from tokenizers import decoders, models, normalizers, pre_tokenizers
from tolerances import approx, assert_close, assert_identical

from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary
from ntloss.criteria.whole_numbers import log_ratio
from ntloss.numbers.grammar import DIGITS
from ntloss.numbers.grammar import find_numbers as find_numbers_of_text
from ntloss.numbers.labels import LabelNumbers, find_numbers, sequence_ids_of
from ntloss.numbers.texts import TokenTexts

TEXTS = [*"0123456789", ".", ",", "-", None, " 4", "12", " 345", "007", "3.14", "-8", "1e3", ".5"]
TEXT = TEXTS.index(None)
VOCABULARY = NumberVocabulary.from_mapping({i: t for i, t in enumerate(TEXTS) if t}, vocab_size=len(TEXTS))
DIGITS_ALONE = NumberVocabulary.from_mapping({d: str(d) for d in range(10)}, vocab_size=len(TEXTS))
IGNORED = -100


def by_digits_after(probs, target, digits_after):
    return (1 - probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)) * (digits_after + 1)


def labels_of(*texts):
    """Rows of labels, where "_" is a text token and "x" is ignored."""
    named = {"_": TEXT, "x": IGNORED}
    return torch.tensor([[named[t] if t in named else TEXTS.index(t) for t in row] for row in texts])


def digits_of_row(labels, vocabulary, **options):
    """The numbers of a row: lists of each token's digits, the place of its value, and the digits after it."""
    packed = find_numbers(torch.tensor([labels]), vocabulary, **options)[0]
    numbers = LabelNumbers.unpack(packed)
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


def places_of(row, **options):
    found = digits_of_row(labels_of(row)[0].tolist(), VOCABULARY, **options)
    return [[place for _, place, _ in number] for number in found]


@pytest.mark.parametrize(
    ("row", "decimals", "expected"),
    [
        ("12", False, [[1, 0]]),
        ("1_2", False, [[0], [0]]),
        ("1.2", False, [[0], [0]]),
        ("1.2", True, [[0, -1]]),
        ("12.345", True, [[1, 0, -1, -2, -3]]),
        ("1..2", True, [[0], [0]]),
        (".2", True, [[-1]]),
        ("_.2", True, [[0]]),  # what stands before the point is not known
        ("1.x", True, [[0]]),
        ("12.3.4", True, [[1, 0, -1], [0]]),
        ("1.2.3.4.5_6.7", True, [[0, -1], [0, -1], [0], [0, -1]]),
        (["1", ".", "2", ".", " 4", ".", "5"], True, [[0, -1], [0, -1]]),
        ("1,234", False, [[3, 2, 1, 0]]),
        ("1,23", True, [[0], [1, 0]]),
        ("1,234.56", False, [[3, 2, 1, 0], [1, 0]]),
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
        (["1e3"], True, [[0]]),
        (["1e3", "1"], True, [[28]]),  # 1e31
        (["1", ".5"], True, [[0, 0]]),
        (["3.14", "1"], True, [[0, -3]]),
        (["1", "3.14"], False, [[1], [0]]),
        ("x1x2x", True, [[0], [0]]),
    ],
)
def test_numbers_of_labels_follow_the_documented_rules(row, decimals, expected):
    assert places_of(row, decimals=decimals) == expected


def test_position_ids_give_sequence_ids():
    position_ids = torch.tensor([[0, 1, 2, 0, 0, 1], [3, 4, 5, 6, 7, 8]])
    assert sequence_ids_of(position_ids).tolist() == [[0, 0, 0, 1, 2, 2], [0] * 6]


WRITTEN = [
    "[341, 258, 397, 360]", '{"price": 1234.5, "count": 7}', "| 12 | 345,678 | 9.5 |", "$1,234.50", "-3.25",
    "in 1999, 250 of", "67 million", "3 hundred thousand", "5e3", "12:30", "2019-05-01", "0.05", "007", "-3",
    "1/2", "#### 42", "x = 9", "word", "the 4th", "No. 12", "3%-5%", "72kg", "7 2",
]  # fmt: skip
MORE = [
    "(512,384)", "<box>120 340 560 780</box>", "US$5m", "€ 3,14", "1.234,56 €", "1\u202f234\u00a0567",
    "1'234.5", "12,34,567", "1{,}234", "2017–2018", "35 m2", "9 J kg-1 K-1", "5 kg CO2", "pIC50 = 7.2", "x1",
    "Qwen2.5", "3k", "10.0.0.1", "−7.25", "3 × 10^5", "2½", "10²", "1２", "5万", "4k7", "1,234 5",
]  # fmt: skip
BETWEEN = ["; ", " and ", ": "]
SPACES = [" ", "\n"]  # which T5 drops between added digits
# T5 writes some of their digits in tokens that are no numbers, such as `1,`.
JOINED_BY_T5 = [
    "[341, 258, 397, 360]", '{"price": 1234.5, "count": 7}', "| 12 | 345,678 | 9.5 |", "$1,234.50", "12:30",
    "0.05", "1/2", "3%-5%",
]  # fmt: skip


def with_t5(real_tokenizer, *added):
    tokenizer = real_tokenizer("t5")
    tokenizer.add_tokens([*added])
    return tokenizer


def like_bert():
    """WordPiece, whose words and marks are apart in its tokens, as in its decoder."""
    characters = sorted({*"".join(WRITTEN).lower()} - {" "})
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
    model = models.WordLevel(
        {c: i for i, c in enumerate(sorted({*"".join(WRITTEN + MORE + BETWEEN + SPACES)}))}, unk_token="?"
    )
    return tiny_tokenizers._wrapped(model, pre_tokenizers.Split("", "isolated"), decoders.Fuse())


# Kinds of tokenizers, and texts that each keeps apart from others.
KINDS = {
    "characters": (lambda _: of_characters(), WRITTEN + MORE),
    "byte level": (lambda real: real("gpt2"), WRITTEN + MORE),
    "three digits": (lambda _: tiny_tokenizers.llama_3_like(), WRITTEN + MORE),
    "one digit": (lambda _: tiny_tokenizers.qwen_like(), WRITTEN + MORE),
    "byte fallback": (lambda _: tiny_tokenizers.gemma_like(), WRITTEN + MORE),
    "Unigram": (lambda real: real("t5"), [text for text in WRITTEN if text not in JOINED_BY_T5]),
    # Between a digit and a letter, T5 with added digits drops spaces, so `5e3` is `5 e3`.
    "Unigram with added digits": (
        lambda real: with_t5(real, *DIGITS),
        [text for text in WRITTEN if text not in ("5e3", "7 2")],
    ),
    "WordPiece": (lambda _: like_bert(), [*WRITTEN[1:5], *WRITTEN[6:]]),
}


def digits_of_text(text, thousands=None):
    """The digits of the numbers of a text with their places, one by one."""
    found = []
    for written in find_numbers_of_text(text, thousands):
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
        rows = tokenizer(texts, add_special_tokens=False)["input_ids"]
        sequences = torch.tensor([[i for i, row in enumerate(rows) for _ in row]])  # two in one row
        read = digits_of_row(rows[0] + rows[1], vocabulary, sequence_ids=sequences)
        found = [
            [(d, place + len(digits) - 1 - i) for digits, place, _ in number for i, d in enumerate(digits)]
            for number in read
        ]
        assert found == [number for text in texts for number in digits_of_text(text)]
        for number in read:
            lengths = [len(digits) for digits, _, _ in number]
            assert [after for _, _, after in number] == [sum(lengths[i + 1 :]) for i in range(len(number))]


def test_a_separator_that_is_given_is_that_of_labels():
    tokenizer = tiny_tokenizers.qwen_like()
    (row,) = tokenizer(["1 200; 120,340"], add_special_tokens=False)["input_ids"]
    for thousands, numbers in ((" ", {1200, 120.34}), ("", {1, 200, 120, 340}), (",", {1, 200, 120340})):
        vocabulary = NumberVocabulary.from_tokenizer(tokenizer, thousands=thousands)
        assert {*magnitudes_of([row], vocabulary)[0]} == numbers


def magnitudes_of(labels, vocabulary):
    """The number of each label that has one, `[rows]` of lists."""
    numbers = LabelNumbers.unpack(find_numbers(torch.tensor(labels), vocabulary))
    return [row[row > 0].tolist() for row in numbers.magnitude]


def test_a_row_ends_its_last_number():
    for tokenizer in (of_characters(), tiny_tokenizers.llama_3_like(), tiny_tokenizers.gemma_like()):
        rows = tokenizer(["1,", "234", "1,234"], add_special_tokens=False)["input_ids"]
        rows = [[IGNORED] * (5 - len(row)) + row for row in rows]
        found = magnitudes_of(rows, NumberVocabulary.from_tokenizer(tokenizer))
        assert [{*row} for row in found] == [{1.0}, {234.0}, {1234.0}]


def test_t5_reads_a_range_as_two_years(real_tokenizer):
    tokenizer = real_tokenizer("t5")
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer)
    labels = tokenizer("in 2017-2018", add_special_tokens=False)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(labels)[-1] == "-2018"
    assert dict(zip(vocabulary.token_ids, vocabulary.values, strict=True))[labels[-1]] == 2018
    assert magnitudes_of([labels], vocabulary) == [[2017.0, 2018.0]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("length", [1, 2, 7, 20, 21, 38, 39, 60, 400, 5000])
def test_log_ratios_of_numbers_of_any_length_match_exact_integers(length, dtype):
    generator = np.random.default_rng(length)
    true, read = generator.integers(0, 10, (2, length))
    read[: length // 2] = true[: length // 2]
    for first in (true, np.zeros(length, dtype=int)):
        labels = labels_of("".join(map(str, first)))
        numbers = LabelNumbers.unpack(find_numbers(labels, VOCABULARY)[0])
        given = log_ratio(
            torch.tensor(read).to(dtype), torch.tensor(first).to(dtype), numbers.place, numbers, 1.0
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
    loss_fn = NTLCrossEntropyLoss(DIGITS_ALONE, name, mode="replace")
    terms = loss_fn.terms(logits, labels)
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
    loss_fn = NTLCrossEntropyLoss(VOCABULARY, "number_level", reduction="sum")
    assert float(loss_fn.terms(logits, labels_of(row)).ntl) == approx(4 / 10)


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
        flat = loss_fn.prepare(labels[0], sequence_ids=torch.zeros(4, dtype=torch.int64))
        assert_close(loss_fn(logits[0], flat), loss_fn(logits, labels))
    NTLCrossEntropyLoss(VOCABULARY, "dist2").from_hidden(hidden, head, labels[0])


def test_sequence_ids_of_the_wrong_shape_or_dtype_are_errors():
    loss = NTLCrossEntropyLoss(VOCABULARY, "number_level")
    labels = labels_of("1_23")
    with pytest.raises(ValueError, match="sequence_ids"):
        loss.prepare(labels, sequence_ids=torch.zeros(1, 3, dtype=torch.int64))
    with pytest.raises(TypeError, match="sequence_ids"):
        loss.prepare(labels, sequence_ids=torch.zeros(1, 4))


def test_empty_batches_are_supported():
    for shape in ((0, 5), (2, 0)):
        numbers = LabelNumbers.unpack(find_numbers(torch.zeros(shape, dtype=torch.int64), VOCABULARY))
        assert numbers.place.shape == shape
    loss = NTLCrossEntropyLoss(VOCABULARY, "number_level")(
        torch.zeros(2, 0, len(TEXTS), requires_grad=True), torch.zeros(2, 0, dtype=torch.int64)
    )
    loss.backward()
    assert loss == 0


def with_texts(**texts):
    known = TokenTexts(dict(enumerate(texts.values())), {}, len(texts))
    ids = dict(zip(texts, range(len(texts)), strict=True))
    numbers = {ids[name]: text for name, text in texts.items() if text.isdigit()}
    return ids, replace(NumberVocabulary.from_mapping(numbers, vocab_size=len(texts)), _texts=known)


def test_tokens_that_hold_several_numbers_belong_to_the_last():
    ids, vocabulary = with_texts(one="1", seven="7", half="1/2", time="3:30 4")
    row = [ids[name] for name in ("half", "seven", "one", "half", "one", "time", "one", "one")]
    numbers = LabelNumbers.unpack(find_numbers(torch.tensor([row]), vocabulary)[0])
    # 1, 2711, 213, 30, 411: a token that is no number has no loss, and its number no first token.
    assert numbers.length.tolist() == [0, 1, 1, 0, 1, 0, 1, 1]
    assert numbers.place.tolist() == [0, 2, 1, 0, 1, 0, 1, 0]
    assert not numbers.starts.any()


def test_digits_in_special_tokens_are_no_numbers():
    tokenizer = tiny_tokenizers.sentence_piece()
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer)
    ids = tokenizer.convert_tokens_to_ids(["<extra_id_4>", "4", "<7>", "▁42"])
    numbers = LabelNumbers.unpack(find_numbers(torch.tensor([ids]), vocabulary)[0])
    assert numbers.magnitude.tolist() == [0.0, 4.0, 0.0, 42.0]


def test_numbers_are_found_whatever_the_default_device():
    labels, ids = labels_of("12.5_7"), torch.tensor([[0, 0, 0, 0, 1, 1]])
    expected = find_numbers(labels, VOCABULARY, ids)
    with torch.device("meta"):  # as after torch.set_default_device("cuda")
        assert_identical(find_numbers(labels, VOCABULARY, ids), expected)


def test_labels_outside_of_the_vocabulary_end_a_number():
    row = labels_of("12_3")
    outside = row.clone()
    for label in (-7, len(TEXTS)):
        outside[row == TEXT] = label
        assert digits_of_row(outside[0].tolist(), VOCABULARY) == digits_of_row(row[0].tolist(), VOCABULARY)


def test_ids_without_a_token_end_a_number():
    tokenizer = tiny_tokenizers.llama_like()
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, vocab_size=len(tokenizer) + 7)
    one = tokenizer.convert_tokens_to_ids("1")
    numbers = LabelNumbers.unpack(find_numbers(torch.tensor([[one, len(tokenizer) + 5, one]]), vocabulary))
    assert numbers.magnitude.tolist() == [[1.0, 0.0, 1.0]]


class TestRecord:
    """The numbers of labels as a tensor that travels with a batch."""

    LOSS = NTLCrossEntropyLoss(VOCABULARY, HLGauss(2.0, relative=0.1), shift=True)
    LABELS = labels_of("12.5_99_", "x7_1,234")

    def test_it_may_be_split_gathered_and_pickled(self):
        whole = self.LOSS.prepare(self.LABELS).numbers
        assert whole.shape[:-1] == self.LABELS.shape
        assert_identical(pickle.loads(pickle.dumps(whole)), whole)
        parts = [self.LOSS.prepare(row[None]).numbers for row in self.LABELS]
        assert_identical(torch.cat(parts), whole)

    def test_a_loss_with_it_is_that_without(self):
        logits = torch.randn(*self.LABELS.shape, len(TEXTS), dtype=torch.float64)
        hidden, head = torch.randn(*self.LABELS.shape, 4), torch.randn(len(TEXTS), 4)
        for criterion in (self.LOSS.criterion, "number_level", by_digits_after):
            loss = NTLCrossEntropyLoss(VOCABULARY, criterion, shift=True)
            prepared = loss.prepare(self.LABELS)
            assert_close(loss(logits, prepared), loss(logits, self.LABELS))
            with Watch() as watch:
                found = loss.from_hidden(hidden, head, prepared)
            assert_close(found, loss.from_hidden(hidden, head, self.LABELS))
            assert "searchsorted" not in watch.operators

    def test_in_single_precision_it_holds_the_same(self):
        numbers = LabelNumbers.unpack(self.LOSS.prepare(self.LABELS).numbers)
        single = LabelNumbers.unpack(numbers.pack(torch.float32))
        for name, column in numbers._asdict().items():
            expected = column.float() if column.is_floating_point() else column.int()
            assert_identical(getattr(single, name), expected)

    def test_labels_that_were_masked_afterwards_have_no_term(self):
        logits, labels = torch.randn(*self.LABELS.shape, len(TEXTS)), self.LABELS.clone()
        for criterion in ("hl_gauss", "number_level"):
            given = {"name": criterion, "sigma": 2.0} if criterion == "hl_gauss" else criterion
            loss = NTLCrossEntropyLoss(VOCABULARY, given)
            prepared = loss.prepare(labels)
            prepared.labels[1] = -1
            alone = loss(logits[:1], prepared.map(lambda column: column[:1]))
            assert_close(loss(logits, prepared), alone)

    def test_that_of_other_labels_is_an_error(self):
        logits = torch.randn(*self.LABELS.shape, len(TEXTS))
        with pytest.raises(ValueError, match="labels"):
            self.LOSS(logits, self.LOSS.prepare(self.LABELS[:, 1:]))

    def test_labels_without_values_need_it(self):
        meta = NTLCrossEntropyLoss(VOCABULARY, "number_level").to("meta")
        logits = torch.randn(*self.LABELS.shape, len(TEXTS), device="meta")
        with pytest.raises(RuntimeError, match="prepare"):
            meta(logits, self.LABELS.to("meta"))
