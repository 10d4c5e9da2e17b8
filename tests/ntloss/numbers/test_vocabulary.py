"""Number vocabularies from every kind of tokenizer, and from mappings."""

import enum
import math
import pickle
import re
import time
import warnings
from functools import partial

import numpy as np
import pytest
import tiny_tokenizers
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from tiny_tokenizers import DIGITS, VALUES_OF_MAKES

from ntloss import NTLCrossEntropyLoss, NTLoss, NTLossDotProduct, NumberVocabulary, number_level
from ntloss.numbers import NumberFormat
from ntloss.numbers.grammar import is_piece

pytestmark = pytest.mark.filterwarnings("ignore:.*tokens count as numbers")


VALUES_OF_DIGITS = {d: float(d) for d in DIGITS}


def fields(vocabulary, field):
    return [getattr(token, field) for token in vocabulary.tokens]


def by_raw_text(tokenizer, vocabulary, field="value"):
    """A field of each number token, by the token's own string including its marker."""
    raw = tokenizer.convert_ids_to_tokens(list(vocabulary.token_ids))
    return dict(zip(raw, fields(vocabulary, field), strict=True))


class TestTinyTokenizers:
    @pytest.mark.parametrize("make", tiny_tokenizers.MAKES)
    def test_finds_all_numbers_with_and_without_a_marker_and_nothing_else(self, make):
        # Excludes texts that float() accepts (NOT_NUMBERS), special tokens and bytes such as <0x34>.
        tokenizer = tiny_tokenizers.MAKES[make]()
        vocabulary = NumberVocabulary.from_tokenizer(tokenizer, "numbers")
        assert by_raw_text(tokenizer, vocabulary) == VALUES_OF_MAKES.get(make, VALUES_OF_DIGITS)

    def test_digits_are_the_ten_digits_with_and_without_a_marker(self, tiny_tokenizer):
        digits = NumberVocabulary.from_tokenizer(tiny_tokenizer, "digits")
        assert digits.distinct_values == tuple(float(d) for d in range(10))
        assert set(fields(digits, "digits")) == {1}
        assert digits.is_digits
        with pytest.raises(ValueError, match="tokens"):
            NumberVocabulary.from_tokenizer(tiny_tokenizer, "all")

    @pytest.mark.parametrize(
        ("make", "by_digit"),
        [("llama_like", True), ("qwen_like", True), ("llama_3_like", False), ("word_piece", False)],
    )
    def test_digits_are_chosen_where_the_tokenizer_writes_digit_by_digit(self, make, by_digit):
        tokenizer = tiny_tokenizers.MAKES[make]()
        assert NumberVocabulary.from_tokenizer(tokenizer).is_digits == by_digit

    def test_a_vocabulary_prints_as_one_short_line(self, tiny_tokenizer):
        shown = repr(NumberVocabulary.from_tokenizer(tiny_tokenizer, "numbers"))
        assert "\n" not in shown
        assert len(shown) < 100

    @pytest.mark.parametrize("thousands", [None, "", ","])
    def test_the_separator_of_thousands_is_kept(self, thousands):
        tokenizer = tiny_tokenizers.qwen_like()
        of_tokenizer = NumberVocabulary.from_tokenizer(tokenizer, thousands=thousands)
        listed = NumberVocabulary.from_mapping({1: "4"}, vocab_size=2, thousands=thousands)
        for vocabulary in (of_tokenizer, listed, pickle.loads(pickle.dumps(listed))):
            assert vocabulary.thousands == thousands
            assert ("thousands" in repr(vocabulary)) == (thousands is not None)

    @pytest.mark.parametrize("thousands", [";", 3, True, [","]])
    def test_another_separator_of_thousands_is_an_error(self, thousands):
        with pytest.raises(ValueError, match="thousands"):
            NumberVocabulary.from_mapping({1: "4"}, vocab_size=2, thousands=thousands)

    def test_digits_counts_the_digits_of_a_token_without_its_exponent(self):
        tokenizer = tiny_tokenizers.sentence_piece()
        vocabulary = NumberVocabulary.from_tokenizer(tokenizer, "numbers")
        digits = by_raw_text(tokenizer, vocabulary, "digits")
        for text, count in {"42": 2, "007": 3, "-3": 1, "3.14": 3, "3.": 1, ".5": 1, "2E-1": 1}.items():
            assert digits[text] == digits["▁" + text] == count, text

    def test_tokens_with_a_space_or_a_sign_start_a_number(self):
        tokenizer = tiny_tokenizers.sentence_piece()
        vocabulary = NumberVocabulary.from_tokenizer(tokenizer, "numbers")
        starts = by_raw_text(tokenizer, vocabulary, "starts_number")
        assert all(starts[raw] == (raw[0] in "▁-+") for raw in starts)

    def test_points_and_signs_are_found(self):
        tokenizer = tiny_tokenizers.sentence_piece()
        vocabulary = NumberVocabulary.from_tokenizer(tokenizer)
        ids = tokenizer.convert_tokens_to_ids
        assert vocabulary.point_ids == (ids("."),)
        assert dict(vocabulary.sign_ids) == {ids("-"): -1, ids("▁-"): -1, ids("+"): 1, ids("▁+"): 1}

    def test_special_tokens_are_not_numbers(self):
        tokenizer = tiny_tokenizers.sentence_piece()
        tokenizer.add_special_tokens({"bos_token": "77"})
        vocabulary = NumberVocabulary.from_tokenizer(tokenizer, "numbers")
        assert tokenizer.bos_token_id not in vocabulary.token_ids


class TestRealTokenizers:
    @pytest.mark.parametrize("name", ["t5", "gpt2"])
    def test_values_match_the_decoded_texts_and_no_plain_number_is_missed(self, name, real_tokenizer):
        tokenizer = real_tokenizer(name)
        vocabulary = NumberVocabulary.from_tokenizer(tokenizer, "numbers")
        assert len(vocabulary.tokens) > 500
        marker = {"t5": "▁", "gpt2": "Ġ"}[name]
        for raw, value in by_raw_text(tokenizer, vocabulary).items():
            assert float(raw.removeprefix(marker).lstrip("-+").replace(",", "")) == value
        plain = {i for raw, i in tokenizer.get_vocab().items() if raw.isascii() and raw.isdigit()}
        assert plain <= set(vocabulary.token_ids)


class TestVocabSize:
    def test_defaults_to_the_tokenizer_and_may_be_padded(self):
        tokenizer = tiny_tokenizers.byte_level()
        own = NumberVocabulary.from_tokenizer(tokenizer)
        padded = NumberVocabulary.from_tokenizer(tokenizer, vocab_size=len(tokenizer) + 28)
        assert (own.vocab_size, padded.vocab_size) == (len(tokenizer), len(tokenizer) + 28)
        assert padded.tokens == own.tokens
        with pytest.raises(ValueError, match=r"\b5 tokens.*vocab_size="):
            NumberVocabulary.from_tokenizer(tokenizer, vocab_size=5)

    def test_may_be_smaller_than_the_tokenizer_if_all_numbers_fit(self):
        # It is common, and harmless, to add a padding token to the tokenizer but not to the model.
        tokenizer = tiny_tokenizers.llama_like()
        vocabulary = NumberVocabulary.from_tokenizer(tokenizer)
        signs = (*vocabulary.point_ids, *vocabulary.sign_ids)
        needed = 1 + max(*vocabulary.token_ids, *signs)
        assert NumberVocabulary.from_tokenizer(tokenizer, vocab_size=needed).vocab_size == needed
        with pytest.raises(ValueError, match="vocab_size"):
            NumberVocabulary.from_tokenizer(tokenizer, vocab_size=needed - 1)

    @pytest.mark.parametrize("tokens", [None, "numbers"])
    @pytest.mark.parametrize("kind", ["qwen_like", "gemma_like", "llama_3_like"])
    def test_leaves_out_tokens_that_only_the_tokenizer_has(self, kind, tokens):
        tokenizer = getattr(tiny_tokenizers, kind)()
        size = len(tokenizer)
        before = NumberVocabulary.from_tokenizer(tokenizer, tokens)
        tokenizer.add_tokens(["8888", "\u2212", "\u20ac\u20ac"])
        after = NumberVocabulary.from_tokenizer(tokenizer, tokens, vocab_size=size)
        for name in ("tokens", "point_ids", "sign_ids", "pieces", "vocab_size"):
            assert getattr(after, name) == getattr(before, name)

    def test_that_leaves_out_many_numbers_is_an_error(self):
        tokenizer = tiny_tokenizers.llama_3_like()  # whose groups of digits come last
        for tokens in (None, "numbers"):
            with pytest.raises(ValueError, match="vocab_size"):
                NumberVocabulary.from_tokenizer(tokenizer, tokens, vocab_size=len(tokenizer) - 100)

    @pytest.mark.parametrize("size", ["12", 12.5, None, 0, -3])
    def test_must_be_a_positive_int(self, size):
        with pytest.raises((TypeError, ValueError), match="vocab_size"):
            NumberVocabulary.from_mapping({0: 1.0}, vocab_size=size)


def test_decimals_without_a_point_in_the_vocabulary_are_a_warning():
    digits = {i: str(i) for i in range(10)}
    with pytest.warns(UserWarning, match="decimals=True has no effect"):
        NTLCrossEntropyLoss(
            NumberVocabulary.from_mapping(digits, vocab_size=12), partial(number_level, decimals=True)
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with_point = NumberVocabulary.from_mapping({**digits, 10: "."}, vocab_size=12)
        NTLCrossEntropyLoss(with_point, partial(number_level, decimals=True))
        NTLCrossEntropyLoss(NumberVocabulary.from_mapping(digits, vocab_size=12), number_level)


class TestFromMapping:
    def test_accepts_values_and_texts(self):
        mapping = {7: 0.5, 3: "12", 5: " 12", 9: -3, 2: ".", 1: "-", 4: " -", 0: "+", 6: ",", 8: "\u2212"}
        vocabulary = NumberVocabulary.from_mapping(mapping, vocab_size=10)
        assert vocabulary.token_ids == (3, 5, 7, 9)
        assert vocabulary.values == (12.0, 12.0, 0.5, -3.0)
        assert fields(vocabulary, "starts_number") == [False, True, False, True]
        assert vocabulary.distinct_values == (-3.0, 0.5, 12.0)
        assert vocabulary.point_ids == (2,)
        assert dict(vocabulary.sign_ids) == {1: -1, 4: -1, 0: 1, 8: -1}

    def test_a_sign_in_a_text_is_no_part_of_the_value_but_one_in_a_value_is(self):
        vocabulary = NumberVocabulary.from_mapping({0: "-3", 1: " -2018", 2: -3}, vocab_size=3)
        assert vocabulary.values == (3.0, 2018.0, -3.0)

    def test_the_minus_sign_of_typography_is_a_minus_sign(self):
        mapping = {0: "\u22123", 1: "3", 2: "\u2212", 3: " \u22123"}
        vocabulary = NumberVocabulary.from_mapping(mapping, vocab_size=4)
        assert vocabulary.values == (3.0, 3.0, 3.0)
        assert fields(vocabulary, "starts_number") == [True, False, True]
        assert [len(tokens) for tokens in NumberFormat(1, signed=True).tokens(vocabulary)] == [4, 1]

    @pytest.mark.parametrize(
        "text",
        ["abc", "", "\n4", "4\n", "nan", "inf", "1e400", "1_000", "1,00", "3rd"],
    )
    def test_a_text_that_is_not_a_number_is_an_error(self, text):
        with pytest.raises(ValueError, match=rf"token 1: .*{re.escape(repr(text))}"):
            NumberVocabulary.from_mapping({0: "4", 1: text}, vocab_size=2)

    @given(text=st.text(alphabet="0123456789+-.eE_naif", min_size=1, max_size=6))
    def test_a_text_is_a_number_if_float_parses_it_and_float32_can_hold_it(self, text):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        mapping = {0: text, 1: "1"}
        if abs(value) <= torch.finfo(torch.float32).max and "_" not in text:
            assert NumberVocabulary.from_mapping(mapping, vocab_size=2).values == (abs(value), 1.0)
        elif is_piece(text) and not any(c in "0123456789" for c in text):
            assert NumberVocabulary.from_mapping(mapping, vocab_size=2).values == (1.0,)
        else:
            with pytest.raises(ValueError, match="token 0"):
                NumberVocabulary.from_mapping(mapping, vocab_size=2)

    @given(text=st.text(min_size=1, max_size=3))
    def test_digits_of_other_scripts_are_an_error(self, text):
        assume(not text.isascii() and not is_piece(text))
        with pytest.raises(ValueError, match="token 0"):
            NumberVocabulary.from_mapping({0: text, 1: "1"}, vocab_size=2)

    def test_tokens_that_begin_with_a_magnitude_may_follow_a_number(self):
        texts = ["1", "万元", " 億円"]
        vocabulary = NumberVocabulary.from_mapping(dict(enumerate(texts)), vocab_size=3)
        assert [*vocabulary.pieces.values()] == texts

    def test_minus_zero_is_zero(self):
        vocabulary = NumberVocabulary.from_mapping({0: -0.0, 1: "-0", 2: 0}, vocab_size=3)
        assert vocabulary.distinct_values == (0.0,)
        assert [math.copysign(1, value) for value in vocabulary.values] == [1, 1, 1]

    @given(value=st.floats(allow_nan=False, allow_infinity=False, width=32))
    def test_values_are_kept_exactly(self, value):
        assert NumberVocabulary.from_mapping({0: value}, vocab_size=1).values == (value,)

    @pytest.mark.parametrize(
        "value", [np.float64(0.5), enum.IntEnum("Id", {"A": 3}).A], ids=["numpy", "enum"]
    )
    def test_numpy_floats_and_enum_ints_are_accepted(self, value):
        vocabulary = NumberVocabulary.from_mapping({0: value, 1: 1.0}, vocab_size=2)
        assert vocabulary.values == (float(value), 1.0)

    @pytest.mark.parametrize(
        ("mapping", "error", "message"),
        [
            ({"4": 4.0}, TypeError, "token ids are ints.*'4'"),
            ({True: 4.0}, TypeError, "token ids are ints.*True"),
            ({4: None}, TypeError, "token 4.*NoneType"),
            ({4: True}, TypeError, "token 4.*bool"),
            ({4: math.nan}, ValueError, "token 4.*finite.*nan"),
            ({4: 10**400}, ValueError, "token 4.*finite"),
            ({-1: 4.0}, ValueError, "token id -1.*10 tokens.*vocab_size"),
            ({10: 4.0}, ValueError, "token id 10.*10 tokens.*vocab_size"),
            ({}, ValueError, "no number token among 10"),
            ({4: "."}, ValueError, "no number token among 10"),
            (["4"], TypeError, "mapping.*list"),
        ],
        ids=lambda x: f"{x!s:.20}" if isinstance(x, (dict, list)) else None,
    )
    def test_invalid_mappings_are_errors(self, mapping, error, message):
        with pytest.raises(error, match=message):
            NumberVocabulary.from_mapping(mapping, vocab_size=10)


NO_DIGITS = str.maketrans("0123456789", "ghijklmnop")


@pytest.mark.parametrize("tokens", [None, "digits", "numbers"])
def test_a_vocabulary_of_256k_tokens_takes_a_few_times_as_long_as_to_list_its_tokens(tokens):
    # 4,000 numbers, more than in most real vocabularies, and as many words that contain a digit.
    words = []
    for i in range(256_000):
        word = f"Ġw{i:x}".translate(NO_DIGITS)
        words.append({0: f"{'Ġ' * (i // 64 % 2)}{i}", 1: f"{word}7"}.get(i % 64, word))
    tokenizer = tiny_tokenizers.large(words)
    assert len(tokenizer) > 200_000

    def seconds(call, *given):
        start = time.process_time()
        call(*given)
        return time.process_time() - start

    # To decode all tokens would take many times as long.
    listed = min(seconds(tokenizer.get_vocab) for _ in range(3))
    assert min(seconds(NumberVocabulary.from_tokenizer, tokenizer, tokens) for _ in range(3)) < 8 * listed


def test_missing_digits_are_an_error_whose_advice_works():
    tokenizer = tiny_tokenizers.sentence_piece(with_plain_digits=False)
    assert not NumberVocabulary.from_tokenizer(tokenizer).is_digits
    with pytest.raises(ValueError, match="digits"):
        NumberVocabulary.from_tokenizer(tokenizer, "digits")
    tokenizer.add_tokens(DIGITS)
    assert len(NumberVocabulary.from_tokenizer(tokenizer, "digits").distinct_values) == 10


class TestPublishedTokens:
    """The published classes choose tokens by options of their own."""

    @pytest.mark.parametrize(
        ("options", "advice"),
        [
            ({}, ["space_prefixed=True", "digit_level=False"]),
            ({"space_prefixed": True}, ["digit_level=False"]),
            ({"digit_level": False}, ["space_prefixed=True"]),
            ({"digit_level": False, "space_prefixed": True}, []),
        ],
    )
    def test_one_warning_names_the_options_that_count_the_others(self, options, advice):
        tokenizer = tiny_tokenizers.byte_level()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                NTLoss(tokenizer, **options)
        messages = " ".join(str(warning.message) for warning in caught)
        assert len(caught) == bool(advice)
        assert [a for a in ("space_prefixed=True", "digit_level=False") if a in messages] == advice

    def test_digits_with_a_marker_alone_are_an_error_that_names_the_option(self):
        tokenizer = tiny_tokenizers.sentence_piece(with_plain_digits=False)
        with pytest.raises(ValueError, match="digits"):
            NTLoss(tokenizer)

    def test_they_default_to_bare_digits(self):
        tokenizer = tiny_tokenizers.byte_level()
        for kind in (NTLoss, NTLossDotProduct):
            assert kind(tokenizer).number_token_ids.tolist() == sorted(
                tokenizer.convert_tokens_to_ids(DIGITS)
            )
            assert len(kind(tokenizer, space_prefixed=True).number_token_ids) == 20

    def test_a_sign_belongs_to_the_value(self):
        tokenizer = tiny_tokenizers.sentence_piece()
        loss = NTLoss(tokenizer, digit_level=False)
        assert loss.number_values[tokenizer.convert_tokens_to_ids(["-3"])].item() == -3


def levels_tokenizer(*words):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {word: i for i, word in enumerate(["<|endoftext|>", *"0123456789", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocab, "<|endoftext|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<|endoftext|>")


def test_levels_are_number_tokens_of_one_token_each():
    tokenizer = levels_tokenizer("calm", "angry")
    digits = NumberVocabulary.from_levels(tokenizer, range(1, 6))
    assert dict(zip(digits.token_ids, digits.values, strict=True)) == {i + 1: float(i) for i in range(1, 6)}
    words = NumberVocabulary.from_levels(tokenizer, {"calm": 0, "angry": 2.5}, vocab_size=99)
    assert (words.values, words.vocab_size) == ((0.0, 2.5), 99)
    ten = NumberVocabulary.from_levels(levels_tokenizer("10"), range(1, 11))
    assert ten.distinct_values[-1] == 10.0


@pytest.mark.parametrize("levels", [range(1, 11), {"calm": 0, "furious": 1}])
def test_levels_without_a_token_of_their_own_are_an_error(levels):
    with pytest.raises(ValueError, match="levels"):
        NumberVocabulary.from_levels(levels_tokenizer("calm"), levels)


@pytest.mark.parametrize(
    ("levels", "error"),
    [
        ([3], ValueError),
        ({"calm": None, "angry": 1}, TypeError),
        ({"calm": math.inf, "angry": 1}, ValueError),
        (["calm", "angry"], TypeError),
        (5, TypeError),
    ],
)
def test_levels_of_a_vocabulary_are_two_or_more_with_finite_values(levels, error):
    with pytest.raises(error, match="levels"):
        NumberVocabulary.from_levels(levels_tokenizer("calm", "angry"), levels)
