"""Readings of models whose answers are known texts: what may follow a number, large numbers, and ranges."""

import gc
import math
import weakref

import pytest
import torch
from reading_cases import make_model
from tolerances import approx
from transformers import ByT5Tokenizer

from ntloss import NumberVocabulary
from ntloss.numbers import NumberFormat, parse_number
from ntloss.reading import Limits, Question, UnlikelyNumberWarning, number_quantiles, read_number, read_scores
from ntloss.reading.source import Prefixes, Source


def byte_level_tokenizer(*merged):
    """A tokenizer of bytes, and of some texts in one token each."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab, merges = {character: i for i, character in enumerate(alphabet)}, []
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for text in merged:
        ((written, _),) = to_bytes.pre_tokenize_str(text)
        for end in range(2, len(written) + 1):
            if written[:end] not in vocab:
                vocab[written[:end]] = len(vocab)
                merges.append((written[: end - 1], written[end - 1]))
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer, tokenizer.decoder = to_bytes, decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


class Answers(Source):
    """It writes each text with its probability, and then ends.

    Args:
        tokenizer: a tokenizer of transformers with an end token.
        shares: text to its probability.
    """

    def __init__(self, tokenizer, shares):
        end = tokenizer.eos_token_id
        self.tokenizer = tokenizer
        self.rows = [((*tokenizer.encode(text), end), share) for text, share in shares.items()]

    def continuations(self, inputs, texts, prefix_ids=()):
        """Continue prompts, of which only the number counts."""
        return Prefixes(self, [tuple(prefix_ids)] * len(inputs))

    def ask(self, prefixes, token_ids):
        """Return the log-probabilities of tokens after prefixes."""
        rows = []
        for prefix in prefixes:
            shares = dict.fromkeys(range(len(self.tokenizer)), 0.0)
            for ids, share in self.rows:
                if ids[: len(prefix)] == prefix and len(ids) > len(prefix):
                    shares[ids[len(prefix)]] += share
            total = sum(shares.values()) or 1.0
            rows.append([shares[i] / total for i in token_ids])
        return torch.tensor(rows, dtype=torch.float64).view(len(rows), len(token_ids)).log()


BYTES = byte_level_tokenizer()
BYT5 = ByT5Tokenizer()
WORDS = byte_level_tokenizer(
    "万", "万元", "만원", "千克", "亿", "½", "²", "—", "ion", "\u202f", "\uff12", "10", "から", "부터",
    "에서", "到", "ล้าน", "พัน", "mm", "\uff0c", " trillion", " million", " 5", " m", " USD", " dollars",
    " grand", " thousandths",
)  # fmt: skip
PARTS = [
    "5万", "5万元", "5 만", "12亿", "5億", "5천", "2½", "2⅓", "10²", "10⁻³", "1\uff12", "2π", "5 Millionen",
    "3—5", "3～5", "5…7", "1\uff0c000", "1\uff0e5", "1.234(5)", "10^(-3)", "10 ** 3",
    "0.\\overline{3}", "3,14", "1 200", "1/2", "3x4", "1 1/2",
]  # fmt: skip


def read(shares, tokenizer=BYTES, levels=(0.05, 0.5, 0.95), format=None, **limits):
    model = Answers(tokenizer, shares)
    return number_quantiles(model, ["?"], tokenizer, levels, format, limits=Limits(**limits))


@pytest.mark.parametrize(
    ("answer", "tokenizer"),
    [*((part, WORDS) for part in PARTS), *((part, each) for part in PARTS[::4] for each in (BYTES, BYT5))],
)
def test_what_makes_a_number_a_part_of_another_is_asked_about(answer, tokenizer):
    assert parse_number(answer) is None
    with pytest.warns(UnlikelyNumberWarning):
        found = read({answer: 1.0}, tokenizer)
    assert found.continues.item() == approx(1.0)


@pytest.mark.parametrize("answer", ["5万", "5万元", "2½", "3²", "3—5", "1\uff12"])
def test_what_follows_a_number_of_fixed_width_is_asked_about(answer):
    with pytest.warns(UnlikelyNumberWarning):
        found = read({answer: 1.0}, WORDS, format=NumberFormat(1))
    assert found.continues.item() == approx(1.0)


@pytest.mark.parametrize("tokenizer", [BYTES, WORDS, BYT5], ids=["bytes", "words", "ByT5"])
@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("3\u202f000 m", 3000.0),
        ("3\u202f000", 3000.0),
        ("3’s", 3.0),
        ("7é", 7.0),
        ("3\u2009km", 3.0),
        ("5 €", 5.0),
        (r"5\,000", 5000.0),
        ("5 (a)", 5.0),
        ("5(a)", 5.0),
        ("5ล้าน", 5.0),
        ("8 out of 10", 8.0),
    ],
)
def test_what_follows_a_number_and_its_separators_are_read(answer, value, tokenizer):
    found = read({answer: 1.0}, tokenizer)
    assert found.values[0, 1].item() == value
    assert (found.starts.item(), found.continues.item()) == (approx(1.0), 0.0)


@pytest.mark.parametrize("answer", ["37,200,000,000,000", "37\u202f200\u202f000\u202f000\u202f000"])
def test_a_number_with_too_many_digits_is_left_out_with_a_warning_and_is_never_a_part_of_it(answer):
    with pytest.warns(UnlikelyNumberWarning, match="max_digits"):
        found = read({answer: 0.6, "30 trillion": 0.4}, WORDS, max_digits=9)
    assert bool(found.values.isnan().all())
    assert found.ends.item() == approx(0.0, scale=1.0)
    with pytest.warns(UnlikelyNumberWarning, match="max_digits"):
        found = read({answer: 0.6, "30": 0.4}, WORDS, max_digits=9)
    assert found.values[0].tolist() == [30.0] * 3
    assert found.ends.item() == approx(0.4)


@pytest.mark.parametrize(
    ("prompt", "answer", "value"),
    [
        ("is [", "1,234]", 1.0),
        ("is [1,", "234,567]", 234.0),
        ("is [1,\n", "234,567]", 234.0),
        ("is <box>", "1 234</", 1.0),
        ("is (", "1,234 people", 1234.0),
        ("is \\boxed{", "1,234} ", 1234.0),
        ("is ", "1,234", 1234.0),
        ("Rating (0 to 80): ", "1,234", 1234.0),
        # what joins numbers, or ended one before, changes none
        ("On a scale of 10 : ", "5", 5.0),
        ("Width 12\n", "5", 5.0),
        ("Answers:\n- ", "5", 5.0),
    ],
)
def test_a_plain_prompt_is_the_text_before_the_number(prompt, answer, value):
    found = read_number(Answers(BYTES, {answer: 1.0}), BYTES, prompt)
    assert (found.median, found.starts) == (value, approx(1.0))


@pytest.mark.parametrize(
    ("before", "answer", "value"),
    [
        ("is $", "5m", 5e6),
        ("is $", " 5 b", 5e9),
        ("is €", "1.2T", 1.2e12),
        ("is USD ", "5k", 5e3),
        ("is $", "-5m", -5e6),
        # what the sign cannot stand before is read by itself
        ("is $", "$5", 5.0),
        ("is $", "  5", 5.0),
        ("is $", "5 meters", 5.0),
        ("is $", "37,200,000,000", 3.72e10),
        ("is ", "5m", 5.0),
    ],
)
def test_a_currency_before_the_number_makes_letters_magnitudes(before, answer, value):
    model = Answers(BYTES, {answer: 1.0})
    for question in (before, Question("?", prefill=before)):
        found = read_number(model, BYTES, question)
        assert (found.median, found.starts, found.continues) == (value, approx(1.0), 0.0)


def test_each_prompt_is_read_with_the_currency_that_it_ends_in():
    prompts = ["is $", "it is ", "is $"]
    found = read_number(Answers(BYTES, {"5m": 1.0}), BYTES, prompts)
    assert [reading.median for reading in found] == [5e6, 5.0, 5e6]


@pytest.mark.parametrize("prompt", ["is -", "is 3.", "is 1", "is 1 ", "In 2019.\nIt is 1,"])
def test_a_plain_prompt_that_ends_in_a_part_of_the_number_is_an_error(prompt):
    with pytest.raises(ValueError, match="prompt"):
        read_number(Answers(BYTES, {"2": 1.0}), BYTES, prompt)


ANSWERS = {"3": 0.1, "12": 0.2, "40": 0.4, "-7": 0.1, "99": 0.2}


def quantiles(numbers, levels):
    total, found = sum(numbers.values()), []
    for level in levels:
        reached = 0.0
        for number in sorted(numbers):
            reached += numbers[number] / total
            if reached >= level:
                found.append(number)
                break
    return found


@pytest.mark.parametrize(
    ("low", "high"), [(0, 50), (3, 40), (-math.inf, 12), (12, math.inf), (-7, -7), (3.5, 40.0)]
)
def test_quantiles_in_a_range_are_those_given_that_the_number_is_in_it(low, high):
    levels = (0.1, 0.55, 0.8)
    inside = {float(text): share for text, share in ANSWERS.items() if low <= float(text) <= high}
    found = read(ANSWERS, low=low, high=high, levels=levels)
    assert found.values[0].tolist() == quantiles(inside, levels)
    assert found.ends.item() == approx(sum(inside.values()))
    reading = read_number(
        Answers(BYTES, ANSWERS), BYTES, "?", levels=levels, limits=Limits(low=low, high=high)
    )
    assert (reading.low, reading.high) == (found.values[0, 0].item(), found.values[0, -1].item())
    padded = {f"{int(text):+04d}": share for text, share in ANSWERS.items()}
    form = NumberFormat(3, signed=True)
    walked = read(padded, low=low, high=high, levels=levels, format=form)
    assert walked.values[0].tolist() == quantiles(inside, levels)
    assert walked.ends.item() == approx(sum(inside.values()))


def test_a_range_with_none_of_the_models_numbers_is_a_warning_and_an_impossible_one_an_error():
    with pytest.warns(UnlikelyNumberWarning, match="100"):
        found = read(ANSWERS, low=100)
    assert bool(found.values.isnan().all())
    for options in ({"low": 2, "high": 1}, {"low": 100, "format": NumberFormat(2)}, {"low": math.nan}):
        with pytest.raises(ValueError, match="low"):
            read(ANSWERS, **options)


def test_a_reading_does_not_keep_the_tokenizer():
    tokenizer = byte_level_tokenizer()
    model = Answers(tokenizer, ANSWERS)
    first = read_number(model, tokenizer, "?")
    assert str(read_number(model, tokenizer, "?")) == str(first)
    read_scores(model, tokenizer, "?", levels=range(3))
    kept = weakref.ref(tokenizer)
    del tokenizer, model
    gc.collect()
    assert kept() is None


def test_other_tokenizers_stand_for_their_vocabulary():
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([i]): i for i in range(256)}
    encoding = tiktoken.Encoding(
        "bytes", pat_str=r"(?s).", mergeable_ranks=ranks, special_tokens={"<end>": 256}
    )
    model = make_model("llama", 257)
    for _ in range(2):
        found = number_quantiles(
            model, {"input_ids": torch.tensor([[3]])}, encoding, format=NumberFormat(1), levels=(0.5,)
        )
        assert found.values.shape == (1, 1)
    assert encoding.encode("½")[0] in NumberVocabulary.from_tokenizer(encoding).pieces
