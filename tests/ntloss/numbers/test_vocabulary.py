"""Number vocabularies from every kind of tokenizer, and from mappings."""

from __future__ import annotations

import enum
import math
import os
import pickle
import re
import time
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import other_tokenizers
import pytest
import tiny_tokenizers
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from tiny_tokenizers import DIGITS, HOME_MADE, NUMBERS, NUMBERS_UP_TO_999, saved_bytes
from tokenizers import normalizers, pre_tokenizers
from tolerances import assert_close

from ntloss import (
    DigitEntropy,
    NTLoss,
    NTLossDotProduct,
    NumberLevel,
    NumberTokenLoss,
    NumberTokensLeftOut,
    NumberVocabulary,
    Wasserstein,
    ntil,
)
from ntloss.criteria import PlaceWeighted
from ntloss.numbers.inspection import SENTENCE, inspect_tokenizer
from ntloss.numbers.spans import find_numbers, token_kinds

VALUES_OF_DIGITS = {d: float(d) for d in DIGITS}
PLAIN = {**VALUES_OF_DIGITS, **NUMBERS}
PLAIN_OF_BYTES = {**VALUES_OF_DIGITS, "42": 42.0}


def marked(marker: str, values: dict[str, float]) -> dict[str, float]:
    return {marker + text: value for text, value in values.items()}


# By the token's own string; the other tokenizers have only the digits.
VALUES_OF_MAKES = {
    "word_level": PLAIN,
    "word_piece": PLAIN | marked("##", PLAIN),
    "sentence_piece": PLAIN | marked("▁", {t: v for t, v in PLAIN.items() if t != "0"}) | {"88": 88.0},
    "byte_level": PLAIN_OF_BYTES | marked("Ġ", PLAIN_OF_BYTES),
    "llama_3_like": VALUES_OF_DIGITS | {text: float(text) for text in NUMBERS_UP_TO_999},
}

pytestmark = pytest.mark.filterwarnings("ignore::ntloss.NumberTokensLeftOut")


def by_raw_text(tokenizer: Any, vocabulary: NumberVocabulary, field: str = "value") -> dict[str, Any]:
    """A field of each number token, by the token's own string including its marker."""
    raw = tokenizer.convert_ids_to_tokens(list(vocabulary.token_ids))
    return dict(zip(raw, fields(vocabulary, field), strict=True))


def fields(vocabulary: NumberVocabulary, field: str) -> list[Any]:
    return [getattr(token, field) for token in vocabulary.tokens]


def warnings_of(call: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(w.message) for w in caught if issubclass(w.category, NumberTokensLeftOut)]


@pytest.fixture(scope="session")
def gsm8k() -> list[str]:
    """The test questions of GSM8K as lines of JSON (in NTLOSS_DATA, or `shared` beside the repository)."""
    root = Path(__file__).resolve().parents[3]
    path = Path(os.environ.get("NTLOSS_DATA", root.parent / "shared" / "data")) / "gsm8k" / "test.jsonl"
    if not path.is_file():
        pytest.skip(f"no real data at {path}")
    return path.read_text(encoding="utf-8").splitlines()


class TestTinyTokenizers:
    @pytest.mark.parametrize("make", tiny_tokenizers.MAKES)
    def test_finds_all_numbers_with_and_without_a_marker_and_nothing_else(self, make: str) -> None:
        # Excludes texts that float() accepts (NOT_NUMBERS), special tokens and bytes such as <0x34>.
        tokenizer = tiny_tokenizers.MAKES[make]()
        vocabulary = NumberVocabulary.from_tokenizer(tokenizer, digit_level=False)
        assert by_raw_text(tokenizer, vocabulary) == VALUES_OF_MAKES.get(make, VALUES_OF_DIGITS)
        assert vocabulary.left_out == ()

    def test_digit_level_keeps_only_the_ten_digits(self, tiny_tokenizer: Any) -> None:
        with_spaces = NumberVocabulary.from_tokenizer(tiny_tokenizer)
        assert with_spaces.distinct_values == tuple(float(d) for d in range(10))
        assert set(fields(with_spaces, "digits")) == {1}
        bare = NumberVocabulary.from_tokenizer(tiny_tokenizer, space_prefixed=False)
        assert by_raw_text(tiny_tokenizer, bare) == VALUES_OF_DIGITS

    def test_digits_counts_the_digits_of_a_token_without_its_exponent(self) -> None:
        tokenizer = tiny_tokenizers.sentence_piece()
        vocabulary = NumberVocabulary.from_tokenizer(tokenizer, digit_level=False)
        counts = {"4": 1, "42": 2, "007": 3, "-3": 1, "+5": 1, "3.14": 3, "3.": 1, ".5": 1, "1e3": 1}
        digits = by_raw_text(tokenizer, vocabulary, "digits")
        for text, count in counts.items():
            assert digits[text] == digits["▁" + text] == count, text

    def test_tokens_with_a_space_or_a_sign_start_a_number(self) -> None:
        tokenizer = tiny_tokenizers.sentence_piece()
        vocabulary = NumberVocabulary.from_tokenizer(tokenizer, digit_level=False)
        starts = by_raw_text(tokenizer, vocabulary, "starts_number")
        assert all(starts[raw] == (raw[0] in "▁-+") for raw in starts)

    def test_points_and_signs_are_found(self) -> None:
        tokenizer = tiny_tokenizers.sentence_piece()
        vocabulary = NumberVocabulary.from_tokenizer(tokenizer)
        ids = tokenizer.convert_tokens_to_ids
        assert vocabulary.point_ids == (ids("."),)
        assert dict(vocabulary.sign_ids) == {ids("-"): -1, ids("▁-"): -1, ids("+"): 1, ids("▁+"): 1}

    def test_special_tokens_are_not_numbers(self) -> None:
        tokenizer = tiny_tokenizers.sentence_piece()
        tokenizer.add_special_tokens({"bos_token": "77"})
        vocabulary = NumberVocabulary.from_tokenizer(tokenizer, digit_level=False)
        assert tokenizer.bos_token_id not in vocabulary.token_ids


def places_of_numbers(tokenizer: Any, text: str) -> list[list[int]]:
    """Decimal places of the digits of each number in a text."""
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, digit_level=False)
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    spans = find_numbers(ids, token_kinds(vocabulary), decimals=True)
    numbers: dict[int, list[int]] = {}
    for number, place, digits in zip(
        spans.number[0].tolist(), spans.place[0].tolist(), spans.digits[0].tolist(), strict=True
    ):
        if digits:
            numbers.setdefault(number, []).append(place)
    return list(numbers.values())


def with_pre_tokenizers(tokenizer: Any, *steps: pre_tokenizers.PreTokenizer) -> Any:
    """Set the pre-tokenizers of a tokenizer, and return it."""
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(steps))
    return tokenizer


SINGLE_DIGITS = pre_tokenizers.Digits(individual_digits=True)


class TestDecodersThatPutSpacesBetweenTokens:
    @pytest.mark.parametrize("make", HOME_MADE)
    def test_adjacent_digits_form_one_number(self, make: str) -> None:
        tokenizer = HOME_MADE[make]()
        assert tokenizer.convert_tokens_to_string(["1", "2"]) == "1 2"
        vocabulary = NumberVocabulary.from_tokenizer(tokenizer)
        assert [token.text for token in vocabulary.tokens] == DIGITS
        assert not any(fields(vocabulary, "starts_number"))
        ids = tokenizer.convert_tokens_to_ids
        assert vocabulary.point_ids == (ids("."),)
        assert dict(vocabulary.sign_ids) == {ids("-"): -1, ids("+"): 1}
        assert places_of_numbers(tokenizer, "12") == [[1, 0]]
        assert places_of_numbers(tokenizer, "3.14,-2019") == [[0, -1, -2], [3, 2, 1, 0]]

    @pytest.mark.parametrize("make", HOME_MADE)
    def test_a_space_separates_numbers_if_it_is_a_token(self, make: str) -> None:
        tokenizer = HOME_MADE[make]()
        dropped = tokenizer("12 7")["input_ids"] == tokenizer("127")["input_ids"]
        assert dropped == (make == "quick_tour")
        assert places_of_numbers(tokenizer, "12 7") == ([[2, 1, 0]] if dropped else [[1, 0], [0]])

    @pytest.mark.parametrize("make", HOME_MADE)
    @pytest.mark.parametrize(
        "criterion",
        [
            NumberLevel(decimals=True),
            PlaceWeighted(Wasserstein()),
            PlaceWeighted(DigitEntropy(), "decimal"),
            ntil(decimals=True),
        ],
        ids=lambda criterion: type(criterion).__name__,
    )
    def test_losses_match_a_vocabulary_from_a_mapping(self, make: str, criterion: Any, batch: Any) -> None:
        tokenizer = HOME_MADE[make]()
        ids = {text: tokenizer.convert_tokens_to_ids(text) for text in [*DIGITS, *".,-+"]}
        by_hand = NumberVocabulary.from_mapping({i: text for text, i in ids.items()}, len(tokenizer))
        labels = torch.tensor([[ids.get(c, 0) for c in "a12.5,-2019a7.04.1"]])
        logits, _ = batch(len(tokenizer), *labels.shape)
        given, expected = (
            NumberTokenLoss(vocabulary, criterion, reweigh=False)(logits, labels, reduction="none")
            for vocabulary in (NumberVocabulary.from_tokenizer(tokenizer), by_hand)
        )
        assert_close(given, expected)

    @pytest.mark.parametrize(
        ("tokenizer", "text", "tokens", "places"),
        [
            (tiny_tokenizers.quick_tour(individual_digits=False), "142", ["14", "2"], [[1, 0]]),
            (
                tiny_tokenizers.quick_tour(individual_digits=False),
                "3.1420",
                ["3", ".", "14", "2", "0"],
                [[0, -2, -3, -4]],
            ),
            # Plain digits begin a word, and marked ones continue it.
            (tiny_tokenizers.word_piece(), "127 3", ["1", "##2", "##7", "3"], [[2, 1, 0], [0]]),
            (
                with_pre_tokenizers(tiny_tokenizers.word_piece(), pre_tokenizers.Whitespace(), SINGLE_DIGITS),
                "12",
                ["1", "2"],
                [[1, 0]],
            ),
            # A space is added before each digit.
            (
                with_pre_tokenizers(tiny_tokenizers.byte_level(), SINGLE_DIGITS, pre_tokenizers.ByteLevel()),
                "12 7",
                ["Ġ1", "Ġ2", "Ġ", "Ġ7"],
                [[1, 0], [0]],
            ),
            (tiny_tokenizers.word_level(), "42 7 1", ["42", "7", "1"], [[0], [0], [0]]),
            (tiny_tokenizers.llama_like(), "12.5", ["▁", "1", "2", ".", "5"], [[1, 0, -1]]),
        ],
    )
    def test_digits_get_their_decimal_places(
        self, tokenizer: Any, text: str, tokens: list[str], places: list[list[int]]
    ) -> None:
        assert tokenizer.tokenize(text) == tokens
        assert places_of_numbers(tokenizer, text) == places

    @pytest.mark.parametrize("make", ["word_piece", "sentence_piece"])
    def test_an_added_token_does_not_change_the_texts_of_other_tokens(self, make: str) -> None:
        before = tiny_tokenizers.MAKES[make]()
        tokenizer = tiny_tokenizers.MAKES[make]()
        tokenizer.add_tokens(["0"])
        texts, expected = (
            {token.token_id: token.text for token in NumberVocabulary.from_tokenizer(t, False).tokens}
            for t in (tokenizer, before)
        )
        assert texts == expected
        assert any(text.startswith(" ") for text in texts.values())

    @pytest.mark.parametrize("make", HOME_MADE)
    def test_tokenizers_whose_call_needs_more_than_a_text_are_supported(
        self, make: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def needs_boxes(self: Any, text: Any, boxes: Any, **options: Any) -> None:
            raise AssertionError

        tokenizer = HOME_MADE[make]()
        monkeypatch.setattr(type(tokenizer), "__call__", needs_boxes)
        assert not any(fields(NumberVocabulary.from_tokenizer(tokenizer), "starts_number"))

    def test_without_an_encoder_the_decoded_spaces_are_kept(self) -> None:
        words = tiny_tokenizers.split_words()

        class Words:
            get_vocab, convert_tokens_to_string = words.get_vocab, words.convert_tokens_to_string

            def __len__(self) -> int:
                return len(words)

        assert all(fields(NumberVocabulary.from_tokenizer(Words()), "starts_number"))


class TestRealTokenizers:
    @pytest.mark.parametrize("name", ["t5", "gpt2"])
    def test_values_match_the_decoded_texts_and_no_plain_number_is_missed(
        self, name: str, real_tokenizer: Any
    ) -> None:
        tokenizer = real_tokenizer(name)
        vocabulary = NumberVocabulary.from_tokenizer(tokenizer, digit_level=False)
        assert len(vocabulary.tokens) > 500
        marker = {"t5": "▁", "gpt2": "Ġ"}[name]
        for raw, value in by_raw_text(tokenizer, vocabulary).items():
            assert float(raw.removeprefix(marker)) == value
        plain = {i for raw, i in tokenizer.get_vocab().items() if raw.isascii() and raw.isdigit()}
        assert plain <= set(vocabulary.token_ids)


class TestTiktoken:
    @pytest.fixture(autouse=True)
    def _tiktoken(self) -> None:
        pytest.importorskip("tiktoken")

    def test_finds_numbers_and_ignores_special_and_unused_ids(self) -> None:
        encoding = other_tokenizers.tiny_encoding()
        vocabulary = NumberVocabulary.from_tokenizer(encoding, digit_level=False)
        assert vocabulary.vocab_size == 2002
        read = {token.token_id: token.text for token in vocabulary.tokens}
        assert read == {encoding.encode_single_token(n): n for n in (*DIGITS, *NUMBERS_UP_TO_999)}
        assert all(token.bare for token in vocabulary.tokens)
        assert vocabulary.point_ids == (ord("."),)
        assert dict(vocabulary.sign_ids) == {ord("-"): -1, ord("+"): 1}
        # "42", "3", "14", "201", "9"
        coverage = vocabulary.coverage(SENTENCE)
        assert (coverage.digits, coverage.seen, coverage.row(True, True).seen) == (9, 9, 2)

    @pytest.mark.parametrize("digit_level", [True, False])
    def test_matches_the_vocabulary_of_the_hugging_face_tokenizer(
        self, digit_level: bool, real_tokenizer: Any, tokenizer_folder: Path, gsm8k: list[str]
    ) -> None:
        theirs = NumberVocabulary.from_tokenizer(real_tokenizer("gpt2"), digit_level)
        ours = NumberVocabulary.from_tokenizer(
            other_tokenizers.gpt2_encoding(tokenizer_folder / "gpt2"), digit_level
        )
        for name in ("vocab_size", "tokens", "left_out", "point_ids", "sign_ids"):
            assert getattr(ours, name) == getattr(theirs, name)
        assert ours.coverage(gsm8k) == theirs.coverage(gsm8k)

    def test_special_tokens_in_a_text_are_encoded_as_text_even_after_unpickling(self) -> None:
        vocabulary = NumberVocabulary.from_tokenizer(other_tokenizers.tiny_encoding())
        assert vocabulary.coverage("<|endoftext|> <|4|>").share == 1
        assert pickle.loads(pickle.dumps(vocabulary)).coverage("<|endoftext|> <|4|>").share == 1


class TestMistralCommon:
    @pytest.fixture(autouse=True)
    def _mistral_common(self) -> None:
        pytest.importorskip("mistral_common")

    @pytest.fixture(params=["tekken_file", "sentence_piece_file"])
    def tokenizer(self, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
        from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

        return MistralTokenizer.from_file(getattr(other_tokenizers, request.param)(tmp_path))

    def test_the_id_of_each_digit_is_the_one_the_tokenizer_encodes_it_to(self, tokenizer: Any) -> None:
        inner = tokenizer.instruct_tokenizer.tokenizer
        vocabulary = NumberVocabulary.from_tokenizer(tokenizer, digit_level=False)
        assert vocabulary.vocab_size == inner.n_words
        assert {token.text: token.token_id for token in vocabulary.tokens} == {
            digit: inner.encode(digit, bos=False, eos=False)[-1] for digit in DIGITS
        }
        assert vocabulary.coverage(SENTENCE).share == 1

    def test_all_wrappers_of_a_tokenizer_give_the_same_vocabulary(self, tokenizer: Any) -> None:
        layers = [
            tokenizer,
            tokenizer.instruct_tokenizer,
            tokenizer.instruct_tokenizer.tokenizer,
            types.SimpleNamespace(tokenizer=tokenizer),  # as transformers' MistralCommonBackend wraps it
        ]
        first, *rest = (NumberVocabulary.from_tokenizer(layer) for layer in layers)
        for other in rest:
            assert (other.tokens, other.vocab_size) == (first.tokens, first.vocab_size)
            for vocabulary in (other, pickle.loads(pickle.dumps(other))):
                assert vocabulary.coverage(SENTENCE) == first.coverage(SENTENCE)

    def test_a_sentence_piece_processor_matches_mistral_common(self, tmp_path: Path) -> None:
        import sentencepiece
        from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer

        path = other_tokenizers.sentence_piece_file(tmp_path, split_digits=False)
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        ours = NumberVocabulary.from_tokenizer(processor, digit_level=False)
        theirs = NumberVocabulary.from_tokenizer(SentencePieceTokenizer(path), digit_level=False)
        assert ours.tokens == theirs.tokens
        assert max(fields(ours, "digits")) > 1
        assert {token.bare for token in ours.tokens} == {True, False}
        assert ours.coverage(SENTENCE) == theirs.coverage(SENTENCE)

    @pytest.mark.parametrize("name", ["tokenizer.model.v1", "tekken_240718.json"])
    def test_real_tokenizers_cover_every_digit_of_a_real_text(self, name: str, gsm8k: list[str]) -> None:
        import mistral_common
        from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

        path = Path(mistral_common.__file__).parent / "data" / name
        if not path.is_file():
            pytest.skip(f"this release of mistral-common comes without {name}")
        vocabulary = NumberVocabulary.from_tokenizer(MistralTokenizer.from_file(path), digit_level=False)
        assert sorted(vocabulary.values) == list(VALUES_OF_DIGITS.values())
        coverage = vocabulary.coverage(gsm8k[:200])
        assert coverage.share == 1
        assert coverage.digits > 5000


def test_sentence_piece_matches_hugging_face_on_t5(
    real_tokenizer: Any, tokenizer_folder: Path, gsm8k: list[str]
) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer_folder / "t5" / "spiece.model"))
    ours = NumberVocabulary.from_tokenizer(processor, digit_level=False)
    theirs = NumberVocabulary.from_tokenizer(real_tokenizer("t5"), digit_level=False)
    assert ours.tokens == theirs.tokens
    assert ours.coverage(gsm8k) == theirs.coverage(gsm8k)


class TestTheTokenizerIsNeverChanged:
    def test_by_making_a_vocabulary_or_a_loss(self, tiny_tokenizer: Any, tmp_path: Path) -> None:
        before = saved_bytes(tiny_tokenizer, tmp_path / "before"), dict(tiny_tokenizer.get_vocab())
        NumberVocabulary.from_tokenizer(tiny_tokenizer, digit_level=False).coverage([SENTENCE, "", "7"])
        inspect_tokenizer(tiny_tokenizer)
        NTLoss(tiny_tokenizer)
        NTLossDotProduct(tiny_tokenizer, digit_level=False)
        assert before == (saved_bytes(tiny_tokenizer, tmp_path / "after"), dict(tiny_tokenizer.get_vocab()))

    def test_when_digits_are_missing_and_the_error_says_what_to_do(self, tmp_path: Path) -> None:
        tokenizer = tiny_tokenizers.sentence_piece(with_plain_digits=False)
        before, length = saved_bytes(tokenizer, tmp_path / "before"), len(tokenizer)
        for make, missing in [(NTLoss, DIGITS), (NumberVocabulary.from_tokenizer, ["0"])]:
            with pytest.raises(ValueError, match=f"digits {', '.join(missing)} have no token") as error:
                make(tokenizer)
            for advice in (
                f"tokenizer.add_tokens({missing})",
                "resize_token_embeddings",
                "digit_level=False",
            ):
                assert advice in str(error.value)
        assert saved_bytes(tokenizer, tmp_path / "after") == before
        assert len(tokenizer) == length

    def test_by_coverage_when_it_truncates(self, tmp_path: Path) -> None:
        # Calling a Hugging Face tokenizer resets its truncation and padding.
        tokenizer = tiny_tokenizers.byte_level()
        tokenizer.backend_tokenizer.enable_truncation(4)
        vocabulary = NumberVocabulary.from_tokenizer(tokenizer)
        before = saved_bytes(tokenizer, tmp_path / "before")
        assert vocabulary.coverage("1234567890").digits == vocabulary.coverage("1234567890").seen
        assert saved_bytes(tokenizer, tmp_path / "after") == before


class TestMissingDigits:
    def test_the_error_for_missing_bare_digits_suggests_space_prefixed(self) -> None:
        mapping = {d: f" {d}" if d in (3, 7) else str(d) for d in range(10)}
        with pytest.raises(ValueError, match=r"digits 3, 7 .*space_prefixed=True"):
            NumberVocabulary.from_mapping(mapping, 10, digit_level=True, space_prefixed=False)

    def test_following_the_advice_of_the_error_works(self) -> None:
        tokenizer = tiny_tokenizers.sentence_piece(with_plain_digits=False)
        tokenizer.add_tokens(DIGITS)
        assert len(NumberVocabulary.from_tokenizer(tokenizer).distinct_values) == 10


class TestVocabSize:
    def test_defaults_to_the_tokenizer_and_may_be_padded(self) -> None:
        tokenizer = tiny_tokenizers.byte_level()
        own = NumberVocabulary.from_tokenizer(tokenizer)
        padded = NumberVocabulary.from_tokenizer(tokenizer, vocab_size=len(tokenizer) + 28)
        assert (own.vocab_size, padded.vocab_size) == (len(tokenizer), len(tokenizer) + 28)
        assert padded.tokens == own.tokens
        with pytest.raises(ValueError, match=r"\b5 tokens.*vocab_size="):
            NumberVocabulary.from_tokenizer(tokenizer, vocab_size=5)

    def test_may_be_smaller_than_the_tokenizer_if_all_numbers_fit(self) -> None:
        # It is common, and harmless, to add a padding token to the tokenizer but not to the model.
        tokenizer = tiny_tokenizers.llama_like()
        vocabulary = NumberVocabulary.from_tokenizer(tokenizer)
        signs = (*vocabulary.point_ids, *vocabulary.sign_ids)
        needed = 1 + max(*vocabulary.token_ids, *signs)
        assert NumberVocabulary.from_tokenizer(tokenizer, vocab_size=needed).vocab_size == needed
        with pytest.raises(ValueError, match="vocab_size"):
            NumberVocabulary.from_tokenizer(tokenizer, vocab_size=needed - 1)

    @pytest.mark.parametrize("size", ["12", 12.5, None, 0, -3])
    def test_must_be_a_positive_int(self, size: Any) -> None:
        with pytest.raises((TypeError, ValueError), match="vocab_size"):
            NumberVocabulary.from_mapping({0: 1.0}, vocab_size=size)


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


class TestFromMapping:
    def test_accepts_values_and_texts(self) -> None:
        mapping = {7: 0.5, 3: "12", 5: " 12", 9: -3, 2: ".", 1: "-", 4: " -", 0: "+", 6: ","}
        vocabulary = NumberVocabulary.from_mapping(mapping, vocab_size=10)
        assert vocabulary.token_ids == (3, 5, 7, 9)
        assert vocabulary.values == (12.0, 12.0, 0.5, -3.0)
        assert fields(vocabulary, "starts_number") == [False, True, False, True]
        assert vocabulary.distinct_values == (-3.0, 0.5, 12.0)
        assert vocabulary.point_ids == (2,)
        assert dict(vocabulary.sign_ids) == {1: -1, 4: -1, 0: 1}

    @pytest.mark.parametrize(
        "text", ["abc", "", " ", "\n4", "4\n", "- ", " .", "１", "²", "nan", "inf", "1e400", "1_000", "1,000"]
    )
    def test_a_text_that_is_not_a_number_is_an_error(self, text: str) -> None:
        with pytest.raises(
            ValueError, match=rf"token 1: .*{re.escape(repr(text))} is not a number.*omit"
        ) as error:
            NumberVocabulary.from_mapping({0: "4", 1: text}, vocab_size=2)
        assert "'.', '-'" in str(error.value)

    @given(text=st.text(alphabet="0123456789+-.eE_naif", min_size=1, max_size=6))
    def test_a_text_is_a_number_if_float_parses_it_and_float32_can_hold_it(self, text: str) -> None:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        mapping = {0: text, 1: "1"}
        if abs(value) <= torch.finfo(torch.float32).max and "_" not in text:
            assert NumberVocabulary.from_mapping(mapping, vocab_size=2).values == (value, 1.0)
        elif text in (".", "-", "+"):
            assert NumberVocabulary.from_mapping(mapping, vocab_size=2).values == (1.0,)
        else:
            with pytest.raises(ValueError, match="token 0"):
                NumberVocabulary.from_mapping(mapping, vocab_size=2)

    @given(text=st.text(min_size=1, max_size=3))
    def test_digits_of_other_scripts_are_an_error(self, text: str) -> None:
        assume(not text.isascii())
        with pytest.raises(ValueError, match="token 0"):
            NumberVocabulary.from_mapping({0: text, 1: "1"}, vocab_size=2)

    def test_minus_zero_is_zero(self) -> None:
        vocabulary = NumberVocabulary.from_mapping({0: -0.0, 1: "-0", 2: 0}, vocab_size=3)
        assert vocabulary.distinct_values == (0.0,)
        assert [math.copysign(1, value) for value in vocabulary.values] == [1, 1, 1]

    @given(value=st.floats(allow_nan=False, allow_infinity=False, width=32))
    def test_values_are_kept_exactly(self, value: float) -> None:
        assert NumberVocabulary.from_mapping({0: value}, vocab_size=1).values == (value,)

    @pytest.mark.parametrize(
        "value", [np.float64(0.5), enum.IntEnum("Id", {"A": 3}).A], ids=["numpy", "enum"]
    )
    def test_numpy_floats_and_enum_ints_are_accepted(self, value: Any) -> None:
        vocabulary = NumberVocabulary.from_mapping({0: value, 1: 1.0}, vocab_size=2)
        assert vocabulary.values == (float(value), 1.0)

    def test_the_value_4_0_is_the_digit_4(self) -> None:
        vocabulary = NumberVocabulary.from_mapping({d: float(d) for d in range(10)}, 10, digit_level=True)
        assert set(fields(vocabulary, "digits")) == {1}
        assert NTLoss(vocabulary).digit_level

    @pytest.mark.parametrize(
        ("mapping", "error", "message"),
        [
            ({"4": 4.0}, TypeError, "token ids are ints.*'4'"),
            ({4.0: 4.0}, TypeError, "token ids are ints.*4.0"),
            ({True: 4.0}, TypeError, "token ids are ints.*True"),
            ({4: None}, TypeError, "token 4.*NoneType"),
            ({4: [4]}, TypeError, "token 4.*list"),
            ({4: True}, TypeError, "token 4.*bool"),
            ({4: b"4"}, TypeError, "token 4.*bytes"),
            ({4: 4j}, TypeError, "token 4.*complex"),
            ({4: math.inf}, ValueError, "token 4.*finite.*inf"),
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
    def test_invalid_mappings_are_errors(self, mapping: Any, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            NumberVocabulary.from_mapping(mapping, vocab_size=10)


@pytest.mark.parametrize("given_instead", [None, "t5", {"4": 4}, object()], ids=lambda x: type(x).__name__)
def test_objects_that_are_not_tokenizers_are_an_error_that_says_what_to_pass(given_instead: Any) -> None:
    for call in (NumberVocabulary.from_tokenizer, NTLoss, NTLossDotProduct):
        with pytest.raises(TypeError, match=rf"tokenizer.*{type(given_instead).__name__}.*from_mapping"):
            call(given_instead)


NO_DIGITS = str.maketrans("0123456789", "ghijklmnop")


@pytest.mark.parametrize("digit_level", [True, False])
def test_a_vocabulary_of_256k_tokens_takes_under_a_second(digit_level: bool) -> None:
    # 4,000 numbers, more than in most real vocabularies, and as many words that contain a digit.
    words = []
    for i in range(256_000):
        word = f"Ġw{i:x}".translate(NO_DIGITS)
        words.append({0: f"{'Ġ' * (i // 64 % 2)}{i}", 1: f"{word}7"}.get(i % 64, word))
    tokenizer = tiny_tokenizers.large(words)
    assert len(tokenizer) > 200_000
    times = []
    for _ in range(3):
        start = time.process_time()
        NumberVocabulary.from_tokenizer(tokenizer, digit_level=digit_level)
        times.append(time.process_time() - start)
    assert min(times) < 1
