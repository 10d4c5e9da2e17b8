"""Token sets, and how many digits of a text each covers."""

from __future__ import annotations

import math
import pickle
import warnings
from typing import Any

import pytest
import tiny_tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import DIGITS
from tokenizers import normalizers

from ntloss import NTLoss, NTLossDotProduct, NumberVocabulary
from ntloss.numbers import NumberTokensLeftOutWarning

pytestmark = pytest.mark.filterwarnings("ignore::ntloss.numbers.NumberTokensLeftOutWarning")


def warnings_of(call: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(w.message) for w in caught if issubclass(w.category, NumberTokensLeftOutWarning)]


class TestMissingDigits:
    def test_the_error_for_missing_bare_digits_suggests_space_prefixed(self) -> None:
        mapping = {d: f" {d}" if d in (3, 7) else str(d) for d in range(10)}
        with pytest.raises(ValueError, match=r"digits 3, 7 .*space_prefixed=True"):
            NumberVocabulary.from_mapping(mapping, 10, digit_level=True, space_prefixed=False)

    def test_following_the_advice_of_the_error_works(self) -> None:
        tokenizer = tiny_tokenizers.sentence_piece(with_plain_digits=False)
        tokenizer.add_tokens(DIGITS)
        assert len(NumberVocabulary.from_tokenizer(tokenizer).distinct_values) == 10


class TestWarningForTokensLeftOut:
    def test_is_given_once_with_counts_and_advice(self) -> None:
        tokenizer = tiny_tokenizers.byte_level()
        first = warnings_of(lambda: NTLoss(tokenizer))
        assert len(first) == 1
        for part in ("10 tokens count", "12 more", "10 with a marker", "2 that are not a single digit"):
            assert part in first[0]
        assert "space_prefixed=True" in first[0]
        assert "digit_level=False" in first[0]
        assert warnings_of(lambda: NTLoss(tokenizer)) == []

    def test_is_not_given_if_nothing_is_left_out(self) -> None:
        tokenizer = tiny_tokenizers.byte_level()
        call = lambda: NumberVocabulary.from_tokenizer(tokenizer, digit_level=False)  # noqa: E731
        assert warnings_of(call) == []
        assert warnings_of(lambda: NTLoss(tiny_tokenizers.llama_like())) == []

    def test_gives_only_advice_that_helps(self) -> None:
        tokenizer = tiny_tokenizers.byte_level()
        (message,) = warnings_of(lambda: NumberVocabulary.from_tokenizer(tokenizer))
        assert "digit_level=False" in message
        assert "space_prefixed" not in message
        (message,) = warnings_of(lambda: NTLoss(tokenizer, digit_level=False))
        assert "space_prefixed=True" in message
        assert "digit_level" not in message

    def test_the_drop_in_classes_default_to_bare_digits(self) -> None:
        tokenizer = tiny_tokenizers.byte_level()
        for kind in (NTLoss, NTLossDotProduct):
            assert kind(tokenizer).number_token_ids.tolist() == sorted(
                tokenizer.convert_tokens_to_ids(DIGITS)
            )
            assert len(kind(tokenizer, space_prefixed=True).number_token_ids) == 20


class TestCoverage:
    def test_counts_digits_for_each_token_set(self) -> None:
        vocabulary = NumberVocabulary.from_tokenizer(tiny_tokenizers.byte_level())
        coverage = vocabulary.coverage(text for text in ["is 42, 7", "4"])
        # "Ġ42" is one token, "Ġ7" another, "4" a third.
        assert coverage.digits == 4
        assert coverage.seen == 2
        assert {(row.digit_level, row.space_prefixed): row.seen for row in coverage.rows} == {
            (True, False): 1, (True, True): 2, (False, False): 1, (False, True): 4,
        }  # fmt: skip
        assert "2 of 4 digits" in str(coverage)

    @pytest.mark.parametrize("texts", ["", "no digit", [], [""]])
    def test_of_a_text_without_digits_is_nan_and_can_be_printed(self, texts: Any) -> None:
        coverage = NumberVocabulary.from_tokenizer(tiny_tokenizers.byte_level()).coverage(texts)
        assert math.isnan(coverage.share)
        assert "0 of 0" in str(coverage)

    @given(text=st.text(alphabet="0123456789 a.,-", max_size=30))
    def test_of_a_tokenizer_with_all_digits_is_complete(self, text: str) -> None:
        vocabulary = NumberVocabulary.from_tokenizer(tiny_tokenizers.byte_level(), digit_level=False)
        coverage = vocabulary.coverage(text)
        assert coverage.digits == sum(c in "0123456789" for c in text)
        assert coverage.seen == coverage.digits

    def test_counts_the_ascii_digits_that_normalization_makes(self) -> None:
        tokenizer = tiny_tokenizers.llama_like()
        tokenizer.backend_tokenizer.normalizer = normalizers.NFKC()
        vocabulary = pickle.loads(pickle.dumps(NumberVocabulary.from_tokenizer(tokenizer)))
        coverage = vocabulary.coverage("4 ４５ a²")
        assert (coverage.digits, coverage.share) == (4, 1.0)

    def test_counts_the_digits_of_an_exponent(self) -> None:
        vocabulary = NumberVocabulary.from_mapping({0: "1e3"}, vocab_size=1, encode=lambda _: [0])
        assert vocabulary.coverage("1e3").share == 1

    def test_without_an_encoder_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="encode="):
            NumberVocabulary.from_mapping({0: 1.0}, vocab_size=1).coverage("1")
