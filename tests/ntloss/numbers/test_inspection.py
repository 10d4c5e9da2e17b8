"""Reports and errors of `ntloss inspect` for each kind of tokenizer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import other_tokenizers
import pytest
import tiny_tokenizers
from tokenizers import normalizers
from transformers import BertGenerationTokenizer

from ntloss import NumberVocabulary
from ntloss.cli import describe
from ntloss.numbers import texts
from ntloss.numbers.inspection import SENTENCE, Inspection, inspect_tokenizer
from ntloss.numbers.vocabulary import as_vocabulary

pytestmark = pytest.mark.filterwarnings("ignore::ntloss.numbers.NumberTokensLeftOutWarning")


def shares(inspection: Inspection) -> dict[tuple[bool, bool], float]:
    coverage = inspection.coverage
    return {(row.digit_level, row.space_prefixed): row.seen / coverage.digits for row in coverage.rows}


def counts(inspection: Inspection) -> dict[str, dict[str, int]]:
    return {
        shape: {marker: group.count for marker, group in groups.items()}
        for shape, groups in inspection.forms.items()
    }


OF_ALL_SHAPES = {"several digits": (2, 2), "decimal": (3, 3), "signed": (2, 2), "exponent": (2, 2)}


def run_code(inspection: Inspection, tokenizer: Any) -> NumberVocabulary:
    return eval(
        inspection.recommendation.code, {"NumberVocabulary": NumberVocabulary, "tokenizer": tokenizer}
    )


def forms(marker: str, numbers: dict[str, tuple[int, ...]]) -> dict[str, dict[str, int]]:
    """Counts of each shape, without and with the marker."""
    return {shape: dict(zip(("plain", marker), each, strict=False)) for shape, each in numbers.items()}


class TestKindsOfTokenizers:
    @pytest.mark.parametrize(
        ("make", "marker", "numbers", "digit_level"),
        [
            *((f"{make}_like", "none", {"one digit": (10,)}, True) for make in ("llama", "qwen", "gemma")),
            ("llama_3_like", "none", {"one digit": (10,), "several digits": (1100,)}, False),
            ("byte_level", "after a space", {"one digit": (10, 10), "several digits": (1, 1)}, True),
            (
                "sentence_piece",
                "after a space",
                {"one digit": (10, 9), **OF_ALL_SHAPES, "several digits": (3, 2)},
                False,
            ),
            ("word_piece", "inside a word", {"one digit": (10, 10), **OF_ALL_SHAPES}, False),
        ],
    )
    def test_counts_the_forms_and_recommends_a_token_set(
        self, make: str, marker: str, numbers: Any, digit_level: bool
    ) -> None:
        tokenizer = tiny_tokenizers.MAKES[make]()
        text = "1 2 3 in 2019 or 4 5 6 7 8 9" if make == "byte_level" else "42 3.14 2 -3 42 007 1e3"
        inspection = inspect_tokenizer(tokenizer, text)
        assert counts(inspection) == forms(marker, numbers)
        assert inspection.number_tokens == sum(sum(each) for each in numbers.values())
        assert inspection.recommendation.digit_level is digit_level

    def test_a_space_that_only_the_decoder_adds_is_not_shown(self) -> None:
        inspection = inspect_tokenizer(tiny_tokenizers.word_piece(), "42")
        shown = inspection.forms["several digits"]
        assert shown["plain"].samples == shown["inside a word"].samples == ("42", "007")
        assert "such as '42'" in inspection.recommendation.reason

    def test_each_coverage_row_matches_the_vocabulary_of_its_token_set(self, tiny_tokenizer: Any) -> None:
        texts = ["is 42, 7", "3.14 in 2019"]
        inspection = inspect_tokenizer(tiny_tokenizer, texts)
        chosen = inspection.recommendation
        best = max(row.seen for row in inspection.coverage.rows)
        assert inspection.coverage.row(chosen.digit_level, chosen.space_prefixed).seen >= 0.9 * best > 0
        for row in inspection.coverage.rows:
            vocabulary = NumberVocabulary.from_tokenizer(tiny_tokenizer, row.digit_level, row.space_prefixed)
            coverage = vocabulary.coverage(texts)
            assert (row.seen, inspection.coverage.digits) == (coverage.seen, coverage.digits)
            assert coverage.rows == inspection.coverage.rows
            assert (row.tokens, row.values) == (len(vocabulary.tokens), len(vocabulary.distinct_values))
            assert row.longer_left_out + row.marked_left_out == len(vocabulary.left_out)
            assert inspection.vocab_size == vocabulary.vocab_size

    @pytest.mark.parametrize(
        ("name", "digits_after_a_space", "numbers"),
        [
            (
                "t5",
                0,
                {"one digit": (10, 9), "several digits": (316, 194), "decimal": (106, 37), "signed": (32,)},
            ),
            ("gpt2", 1 / 9, {"one digit": (10, 10), "several digits": (984, 687)}),
        ],
    )
    def test_shares_and_recommendation_for_real_tokenizers(
        self, name: str, digits_after_a_space: float, numbers: Any, real_tokenizer: Callable[[str], Any]
    ) -> None:
        inspection = inspect_tokenizer(real_tokenizer(name))
        of_digits = {(True, False): 0, (True, True): digits_after_a_space}
        assert shares(inspection) == {**of_digits, (False, False): 2 / 9, (False, True): 1}
        assert counts(inspection) == forms("after a space", numbers)
        chosen = inspection.recommendation
        assert (chosen.digit_level, chosen.space_prefixed) == (False, True)
        assert not any("cannot tell" in note for note in inspection.notes)


class TestDigitsOutsideOfAllTokenSets:
    def test_digit_tokens_of_other_scripts_are_reported(self) -> None:
        inspection = inspect_tokenizer(tiny_tokenizers.sentence_piece())
        assert (inspection.mixed.count, inspection.mixed.samples[0]) == (22, "1_000")
        assert inspection.number_tokens == 10 + 9 + 2 * 9 + 1
        found = inspection.other_scripts
        assert found.count == 8
        assert found.samples == ("²", "٣", "１", "४", " ²")
        assert inspect_tokenizer(tiny_tokenizers.qwen_like()).other_scripts.samples == ("٣",)
        mapped = tiny_tokenizers.word_level()
        before = inspect_tokenizer(mapped).other_scripts.count
        mapped.add_tokens(["⒈", "①"])  # digits with punctuation in one character
        assert inspect_tokenizer(mapped).other_scripts.count == before + 2
        pytest.importorskip("tiktoken")
        assert inspect_tokenizer(other_tokenizers.tiny_encoding()).other_scripts.samples == ("²",)

    def test_digits_of_other_scripts_in_a_text_are_counted(self) -> None:
        inspection = inspect_tokenizer(tiny_tokenizers.qwen_like(), "4 and ٣٤")
        assert (inspection.coverage.digits, inspection.other_digits) == (1, 2)
        assert any("other scripts" in note and ": 2." in note for note in inspection.notes)

    @pytest.mark.parametrize("make", ["fast", "pieces", "python"])
    def test_digits_that_normalization_makes_ascii_are_counted_as_ascii(
        self, make: str, tmp_path: Path
    ) -> None:
        if make == "fast":
            tokenizer: Any = tiny_tokenizers.sentence_piece()
            tokenizer.backend_tokenizer.normalizer = normalizers.NFKC()
        else:
            sentencepiece = pytest.importorskip("sentencepiece")
            path = str(other_tokenizers.sentence_piece_file(tmp_path))
            tokenizer = sentencepiece.SentencePieceProcessor(model_file=path)
            if make == "python":  # wraps such a processor
                tokenizer = BertGenerationTokenizer(path)
        inspection = inspect_tokenizer(tokenizer, "4 ４５ m² and ٣")
        assert (inspection.coverage.digits, inspection.other_digits) == (4, 1)
        assert shares(inspection)[False, True] == 1
        assert not any("No token set covers" in note for note in inspection.notes)

    def test_digits_in_tokens_with_other_characters_are_reported(self) -> None:
        inspection = inspect_tokenizer(tiny_tokenizers.word_level(), "4 4a 4a 1,000 5")
        assert inspection.unseen == {"1,000": 4, "4a": 2}
        assert any("6 of the digits (75.0%)" in note and "'4a'" in note for note in inspection.notes)

    def test_digits_in_unknown_tokens_are_reported(self) -> None:
        inspection = inspect_tokenizer(tiny_tokenizers.word_level(), "4 999 5")
        assert inspection.unseen == {}
        assert any("3 of the digits (60.0%)" in note and "unknown" in note for note in inspection.notes)

    def test_digits_in_special_tokens_are_reported(self) -> None:
        tokenizer = tiny_tokenizers.word_level()
        tokenizer.add_special_tokens({"additional_special_tokens": ["7"]})
        assert any("special or byte tokens" in note for note in inspect_tokenizer(tokenizer, "4 7").notes)

    def test_there_is_no_recommendation_if_no_token_set_covers_a_digit(self) -> None:
        inspection = inspect_tokenizer(tiny_tokenizers.word_level(), "999")
        assert inspection.recommendation is None
        assert any("would be zero" in note for note in inspection.notes)
        assert "Choose" not in describe(inspection, "x", "y")


SAME_IDS = "cannot tell '1234567' from '1 2 3 4 5 6 7'"


class TestSpacesBetweenNumbers:
    def test_a_tokenizer_that_drops_spaces_gets_a_note(
        self, tmp_path: Path, run_inspect: Callable[..., str]
    ) -> None:
        tiny_tokenizers.quick_tour().save_pretrained(tmp_path)
        assert SAME_IDS in run_inspect(str(tmp_path))
        notes = json.loads(run_inspect(str(tmp_path), "--json"))["notes"]
        assert sum(SAME_IDS in note and "one number" in note for note in notes) == 1

    def test_a_tokenizer_that_keeps_spaces_gets_no_note(self, tiny_tokenizer: Any) -> None:
        drops = tiny_tokenizer("12")["input_ids"] == tiny_tokenizer("1 2")["input_ids"]
        notes = inspect_tokenizer(tiny_tokenizer).notes
        assert any(SAME_IDS in note for note in notes) == drops
        assert any("cannot tell" in note for note in notes) == drops

    def test_the_note_shows_a_number_that_is_not_a_single_token(self) -> None:
        tokenizer = tiny_tokenizers.quick_tour(individual_digits=False)
        tokenizer.add_tokens(["12"])
        notes = inspect_tokenizer(tokenizer).notes
        assert any("cannot tell '1234567' from '12 3 4 5 6 7'" in note for note in notes)


class TestRecommendation:
    def test_a_token_set_with_missing_digits_is_unusable_and_says_why(self) -> None:
        tokenizer = tiny_tokenizers.sentence_piece(with_plain_digits=False)
        inspection = inspect_tokenizer(tokenizer, "1 2 3")
        problems = {(row.digit_level, row.space_prefixed): row.problem for row in inspection.coverage.rows}
        assert problems[False, True] is None
        assert problems[True, True] == "the digits 0 have no token in this vocabulary"
        assert not inspection.recommendation.digit_level
        assert "digits 0 have no token" in inspection.recommendation.reason
        run_code(inspection, tokenizer)
        assert "unusable" in describe(inspection, "x", "y")

    def test_depends_on_the_longer_numbers_of_the_text(self) -> None:
        tokenizer = tiny_tokenizers.byte_level()
        by_text = {text: inspect_tokenizer(tokenizer, text).recommendation for text in ("7 8 9", "is 42")}
        assert by_text["7 8 9"].digit_level
        assert not by_text["is 42"].digit_level
        assert "' 42'" in by_text["is 42"].reason

    def test_explains_the_effect_of_space_prefixed(self) -> None:
        with_marker = inspect_tokenizer(tiny_tokenizers.byte_level(), "is 7 8").recommendation
        effect = (
            "10 of these tokens occur after a space (such as ' 7'), and without them the share would be 0.0%"
        )
        assert effect in with_marker.reason
        without = inspect_tokenizer(tiny_tokenizers.llama_like()).recommendation
        assert "space_prefixed changes nothing" in without.reason

    def test_large_values_get_a_note_on_the_criterion(self) -> None:
        tokenizer = tiny_tokenizers.llama_3_like()
        inspection = inspect_tokenizer(tokenizer, "2019 is 365 days")
        assert any("0 to 999" in note and "criterion=NumberLevel()" in note for note in inspection.notes)
        assert not any("criterion=" in note for note in inspect_tokenizer(tokenizer, "1 2 3").notes)

    def test_is_based_on_the_default_sentence_for_a_text_without_digits(self) -> None:
        inspection = inspect_tokenizer(tiny_tokenizers.llama_3_like(), "no number here")
        assert inspection.coverage.digits == 0
        assert any("has no digit" in note and SENTENCE in note for note in inspection.notes)
        assert inspection.recommendation == inspect_tokenizer(tiny_tokenizers.llama_3_like()).recommendation

    @pytest.mark.parametrize("texts", [None, 5, b"12", [None], ["4", 5], [["4"]]])
    def test_what_is_no_text_is_an_error(self, texts: Any) -> None:
        for count in (inspect_tokenizer, lambda tokenizer, text: as_vocabulary(tokenizer).coverage(text)):
            with pytest.raises(TypeError, match="expected a text, or a list of texts, given"):
                count(tiny_tokenizers.llama_like(), texts)

    def test_a_text_that_the_tokenizer_cannot_encode_is_an_error(self) -> None:
        tokenizer = tiny_tokenizers.word_level_without_unknown()
        assert inspect_tokenizer(tokenizer, "the 42 4").coverage.digits == 3
        for count in (inspect_tokenizer, lambda tokenizer, text: as_vocabulary(tokenizer).coverage(text)):
            with pytest.raises(ValueError, match=r"cannot encode the text: .*UNK.* give it an unknown token"):
                count(tokenizer, "a 4")

    @pytest.mark.parametrize("texts", ["", " \n", [], ["", " "]], ids=["none", "blank", "no-texts", "blanks"])
    def test_an_empty_text_is_an_error(self, texts: Any) -> None:
        with pytest.raises(ValueError, match="empty"):
            inspect_tokenizer(tiny_tokenizers.llama_like(), texts)


def test_long_texts_are_encoded_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def counted(tokenizer: Any, batch: list[str], encode: Any = texts.encode_with) -> Any:
        sizes.append(len(batch))
        return encode(tokenizer, batch)

    monkeypatch.setattr(texts, "encode_with", counted)
    tokenizer = tiny_tokenizers.llama_like()
    inspection = inspect_tokenizer(tokenizer, ["is 42", "7"] * 1250)
    assert inspection.coverage.digits == inspection.coverage.row(True, False).seen == 3 * 1250
    assert NumberVocabulary.from_tokenizer(tokenizer).coverage(["is 42", "7"] * 1250).share == 1
    # Not counting the short texts that test for spaces. Encodings take some fifty times the memory of a text.
    assert [size for size in sizes if size > 1] == [1000, 1000, 500] * 2


def test_inspecting_256k_tokens_of_many_scripts_takes_under_10_seconds() -> None:
    # Half of the tokens are not ASCII, as in Gemma's vocabulary.
    words = [f"Ġw{i:x}" if i % 2 else f"Ù£w{i:x}" for i in range(256_000)]
    tokenizer = tiny_tokenizers.large(words)
    start = time.process_time()
    inspect_tokenizer(tokenizer, "4")
    assert time.process_time() - start < 10
