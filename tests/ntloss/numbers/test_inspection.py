"""Coverage of texts, and reports of `ntloss inspect` for each kind of tokenizer."""

import math
import pickle

import pytest
import tiny_tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, normalizers

from ntloss import NumberVocabulary
from ntloss.numbers import inspect_tokenizer, texts


class TestCoverage:
    def test_is_the_share_of_digits_in_number_tokens(self):
        vocabulary = NumberVocabulary.from_tokenizer(tiny_tokenizers.byte_level(), "digits")
        # "Ġ42" is one token, "Ġ7" another, "4" a third.
        assert vocabulary.coverage(text for text in ["is 42, 7", "4"]) == 0.5

    @pytest.mark.parametrize("texts", ["", "no digit", [], [""]])
    def test_of_a_text_without_digits_is_nan(self, texts):
        assert math.isnan(NumberVocabulary.from_tokenizer(tiny_tokenizers.byte_level()).coverage(texts))

    @given(text=st.text(alphabet="0123456789 a.,-", max_size=30))
    def test_of_a_tokenizer_with_all_digits_is_complete(self, text):
        vocabulary = NumberVocabulary.from_tokenizer(tiny_tokenizers.byte_level(), "numbers")
        assert vocabulary.coverage(f"7{text}") == 1

    def test_counts_the_ascii_digits_that_normalization_makes(self):
        tokenizer = tiny_tokenizers.llama_like()
        tokenizer.backend_tokenizer.normalizer = normalizers.NFKC()
        vocabulary = pickle.loads(pickle.dumps(NumberVocabulary.from_tokenizer(tokenizer)))
        assert vocabulary.coverage("4 ４５ a²") == 1

    def test_counts_the_digits_of_an_exponent(self):
        vocabulary = NumberVocabulary.from_mapping({0: "1e3"}, vocab_size=1, encode=lambda _: [0])
        assert vocabulary.coverage("1e3") == 1

    def test_without_an_encoder_is_an_error(self):
        with pytest.raises(ValueError, match="encode="):
            NumberVocabulary.from_mapping({0: 1.0}, vocab_size=1).coverage("1")


@pytest.mark.parametrize(
    ("thousands", "numbers"),
    [
        (None, [(1234,), (1, 234), (120, 340)]),
        ("", [(1, 234), (1, 234), (120, 340)]),
        (",", [(1234,), (1234,), (120340,)]),
    ],
)
def test_it_says_how_lists_are_read(thousands, numbers):
    inspection = inspect_tokenizer(tiny_tokenizers.qwen_like(), thousands=thousands)
    assert list(inspection.reads.values()) == numbers
    assert all(text in str(inspection) for text in inspection.reads)


@pytest.mark.parametrize("make", tiny_tokenizers.MAKES)
def test_it_reports_the_vocabulary_that_is_chosen(make):
    tokenizer = tiny_tokenizers.MAKES[make]()
    inspection = inspect_tokenizer(tokenizer, ["is 42, 7", "3.14 in 2019"])
    chosen = NumberVocabulary.from_tokenizer(tokenizer)
    assert inspection.number_tokens[inspection.tokens] == len(chosen.tokens)
    assert (inspection.tokens == "digits") == chosen.is_digits
    assert inspection.coverage[inspection.tokens] == chosen.coverage(["is 42, 7", "3.14 in 2019"])


@pytest.mark.parametrize(
    ("name", "writes", "tokens"), [("t5", "▁ 123 45 67", 729), ("gpt2", "123 45 67", 1691)]
)
def test_the_first_line_is_a_verdict(name, writes, tokens, real_tokenizer):
    inspection = inspect_tokenizer(real_tokenizer(name))
    assert inspection.tokens == "numbers"
    assert inspection.number_tokens == {"digits": {"t5": 19, "gpt2": 20}[name], "numbers": tokens}
    assert inspection.coverage["numbers"] == 1
    assert str(inspection).startswith(inspection.verdict)
    assert "HLGauss" in inspection.verdict


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        ("llama_3_like", ["1234567", "123|456|7"]),
        ("byte_level", ["42", "1|2|3|4|5|6|7"]),  # decided by a frequent number
        ("word_level", ["42", "1234567"]),  # which is unknown
    ],
)
def test_the_verdict_shows_the_number_that_is_written_in_groups(make, shown):
    verdict = inspect_tokenizer(tiny_tokenizers.MAKES[make]()).verdict
    assert all(text in verdict for text in shown)


def test_a_tokenizer_that_writes_no_number_shows_none():
    tokenizer = tiny_tokenizers.word_level()
    words = {word: i for i, word in enumerate(["<unk>", *tiny_tokenizers.DIGITS])}
    tokenizer.backend_tokenizer.model = models.WordLevel(words, "<unk>")
    inspection = inspect_tokenizer(tokenizer, "the 1")
    assert inspection.writes == ()
    assert "1234567" not in inspection.verdict


NOTES: dict[str, tuple[str, str, str]] = {
    # make, a text that gets the note, and another one that does not
    "6 of the text's 8 digits": ("word_level", "4 4a 4a 1000 5", "4 5"),
    "no digit": ("llama_3_like", "no number here", "2"),
}


@pytest.mark.parametrize("note", NOTES)
def test_what_the_loss_would_not_see_is_a_note(note):
    make, text, other = NOTES[note]
    tokenizer = getattr(tiny_tokenizers, make)()
    assert sum(note in found for found in inspect_tokenizer(tokenizer, text).notes) == 1
    assert note in str(inspect_tokenizer(tokenizer, text))
    assert not any(note in found for found in inspect_tokenizer(tokenizer, other).notes)


def test_tokenizers_that_cannot_tell_spaces_get_a_note(tiny_tokenizer):
    drops = tiny_tokenizer("12")["input_ids"] == tiny_tokenizer("1 2")["input_ids"]
    assert any("cannot tell" in note for note in inspect_tokenizer(tiny_tokenizer).notes) == drops


@pytest.mark.parametrize("texts", [None, 5, b"12", [None], ["4", 5], [["4"]]])
def test_what_is_no_text_is_an_error(texts):
    tokenizer = tiny_tokenizers.llama_like()
    for count in (lambda: inspect_tokenizer(tokenizer, texts), lambda: coverage(tokenizer, texts)):
        with pytest.raises(TypeError, match="text"):
            count()


def test_a_text_that_the_tokenizer_cannot_encode_is_an_error():
    tokenizer = tiny_tokenizers.word_level_without_unknown()
    assert inspect_tokenizer(tokenizer, "the 42 4").coverage["numbers"] == 1
    for count in (lambda: inspect_tokenizer(tokenizer, "a 4"), lambda: coverage(tokenizer, "a 4")):
        with pytest.raises(ValueError, match="unknown token"):
            count()


def coverage(tokenizer, texts):
    return NumberVocabulary.from_tokenizer(tokenizer).coverage(texts)


@pytest.mark.parametrize("texts", ["", " \n", [], ["", " "]], ids=["none", "blank", "no-texts", "blanks"])
def test_an_empty_text_is_an_error(texts):
    with pytest.raises(ValueError, match="text"):
        inspect_tokenizer(tiny_tokenizers.llama_like(), texts)


def test_long_texts_are_encoded_in_batches(monkeypatch):
    sizes = []

    def counted(tokenizer, batch, encode=texts.encode_with):
        sizes.append(len(batch))
        return encode(tokenizer, batch)

    monkeypatch.setattr(texts, "encode_with", counted)
    tokenizer = tiny_tokenizers.llama_like()
    assert NumberVocabulary.from_tokenizer(tokenizer).coverage(["is 42", "7"] * 1250) == 1
    # Encodings take some fifty times the memory of a text.
    assert [size for size in sizes if size > 100] == [1000, 1000, 500]
