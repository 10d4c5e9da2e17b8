"""Coverage of texts, and reports of `ntloss inspect` for each kind of tokenizer."""

import math
import pickle

import pytest
import tiny_tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers

from ntloss import NumberVocabulary
from ntloss.numbers import texts
from ntloss.numbers.inspection import inspect_tokenizer
from ntloss.numbers.vocabulary import as_vocabulary

pytestmark = pytest.mark.filterwarnings("ignore::ntloss.numbers.NumberTokensLeftOutWarning")


def seen(inspection):
    """For single digits, without and with those after a space, and for all numbers, likewise."""
    return [row.seen for row in inspection.token_sets]


class TestCoverage:
    def test_counts_the_digits_of_number_tokens(self):
        vocabulary = NumberVocabulary.from_tokenizer(tiny_tokenizers.byte_level())
        # "Ġ42" is one token, "Ġ7" another, "4" a third.
        coverage = vocabulary.coverage(text for text in ["is 42, 7", "4"])
        assert (coverage.digits, coverage.seen, coverage.share) == (4, 2, 0.5)

    @pytest.mark.parametrize("texts", ["", "no digit", [], [""]])
    def test_of_a_text_without_digits_is_nan(self, texts):
        coverage = NumberVocabulary.from_tokenizer(tiny_tokenizers.byte_level()).coverage(texts)
        assert math.isnan(coverage.share)

    @given(text=st.text(alphabet="0123456789 a.,-", max_size=30))
    def test_of_a_tokenizer_with_all_digits_is_complete(self, text):
        vocabulary = NumberVocabulary.from_tokenizer(tiny_tokenizers.byte_level(), digit_level=False)
        coverage = vocabulary.coverage(text)
        assert coverage.digits == coverage.seen == sum(c in "0123456789" for c in text)

    def test_counts_the_ascii_digits_that_normalization_makes(self):
        tokenizer = tiny_tokenizers.llama_like()
        tokenizer.backend_tokenizer.normalizer = normalizers.NFKC()
        vocabulary = pickle.loads(pickle.dumps(NumberVocabulary.from_tokenizer(tokenizer)))
        coverage = vocabulary.coverage("4 ４５ a²")
        assert (coverage.digits, coverage.share) == (4, 1.0)

    def test_counts_the_digits_of_an_exponent(self):
        vocabulary = NumberVocabulary.from_mapping({0: "1e3"}, vocab_size=1, encode=lambda _: [0])
        assert vocabulary.coverage("1e3").share == 1

    def test_without_an_encoder_is_an_error(self):
        with pytest.raises(ValueError, match="encode="):
            NumberVocabulary.from_mapping({0: 1.0}, vocab_size=1).coverage("1")


def test_each_token_set_is_counted():
    assert seen(inspect_tokenizer(tiny_tokenizers.byte_level(), ["is 42, 7", "4"])) == [1, 2, 1, 4]


@pytest.mark.parametrize(
    ("make", "text", "digit_level"),
    [
        ("llama_like", "42 3.14 -3", True),
        ("qwen_like", "42 3.14 -3", True),
        ("llama_3_like", "42 3.14 -3", False),
        ("word_piece", "42 3.14 2 -3 42 007 1e3", False),
        ("byte_level", "7 8 9", True),  # no token of the text is a longer number
        ("byte_level", "is 42", False),
    ],
)
def test_a_token_set_that_covers_the_text_is_recommended(make, text, digit_level):
    tokenizer = tiny_tokenizers.MAKES[make]()
    inspection = inspect_tokenizer(tokenizer, text)
    assert inspection.recommended is not None
    assert inspection.recommended.digit_level is digit_level
    made = eval(inspection.code, {"NumberVocabulary": NumberVocabulary, "tokenizer": tokenizer})
    assert len(made.tokens) == inspection.recommended.tokens


def test_each_token_set_is_a_vocabulary(tiny_tokenizer):
    texts = ["is 42, 7", "3.14 in 2019"]
    inspection = inspect_tokenizer(tiny_tokenizer, texts)
    assert inspection.recommended is not None
    assert inspection.recommended.seen >= 0.9 * max(seen(inspection)) > 0
    for row in inspection.token_sets:
        vocabulary = NumberVocabulary.from_tokenizer(tiny_tokenizer, row.digit_level, row.space_prefixed)
        coverage = vocabulary.coverage(texts)
        assert (row.seen, inspection.digits) == (coverage.seen, coverage.digits)
        assert (row.tokens, row.values) == (len(vocabulary.tokens), len(vocabulary.distinct_values))
        assert inspection.vocab_size == vocabulary.vocab_size


@pytest.mark.parametrize(
    ("name", "counts", "tokens"), [("t5", [0, 0, 2, 9], 704), ("gpt2", [0, 1, 2, 9], 1691)]
)
def test_real_tokenizers_need_all_their_number_tokens(name, counts, tokens, real_tokenizer):
    inspection = inspect_tokenizer(real_tokenizer(name))
    assert seen(inspection) == counts
    assert inspection.recommended == inspection.token_sets[-1]
    assert inspection.recommended.tokens == tokens


def test_a_token_set_with_missing_digits_is_unusable_and_says_why():
    inspection = inspect_tokenizer(tiny_tokenizers.sentence_piece(with_plain_digits=False), "1 2 3")
    problem = "the digits 0 have no token in this vocabulary"
    assert [row.problem for row in inspection.token_sets][1::2] == [problem, None]
    assert problem in inspection.notes[0]
    assert "unusable" in str(inspection)


NOTES: dict[str, tuple[str, str, str]] = {
    # make, a text that gets the note, and another one that does not
    "2 numbers of the text have separators": ("byte_level", "1,234 or 5,678.9, 12", "1234, 12,34"),
    "covers 6 of the digits": ("word_level", "4 4a 4a 1,000 5", "4 5"),
    "would be zero": ("word_level", "999", "4"),
    "0 to 999": ("llama_3_like", "2019 is 365 days", "1 2 3"),
    "The text has no digit": ("llama_3_like", "no number here", "2"),
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
    for count in (inspect_tokenizer, lambda tokenizer, text: as_vocabulary(tokenizer).coverage(text)):
        with pytest.raises(TypeError, match="expected a text, or a list of texts, given"):
            count(tiny_tokenizers.llama_like(), texts)


def test_a_text_that_the_tokenizer_cannot_encode_is_an_error():
    tokenizer = tiny_tokenizers.word_level_without_unknown()
    assert inspect_tokenizer(tokenizer, "the 42 4").digits == 3
    for count in (inspect_tokenizer, lambda tokenizer, text: as_vocabulary(tokenizer).coverage(text)):
        with pytest.raises(ValueError, match=r"cannot encode the text: .*UNK.* give it an unknown token"):
            count(tokenizer, "a 4")


@pytest.mark.parametrize("texts", ["", " \n", [], ["", " "]], ids=["none", "blank", "no-texts", "blanks"])
def test_an_empty_text_is_an_error(texts):
    with pytest.raises(ValueError, match="empty"):
        inspect_tokenizer(tiny_tokenizers.llama_like(), texts)


def test_long_texts_are_encoded_in_batches(monkeypatch):
    sizes = []

    def counted(tokenizer, batch, encode=texts.encode_with):
        sizes.append(len(batch))
        return encode(tokenizer, batch)

    monkeypatch.setattr(texts, "encode_with", counted)
    tokenizer = tiny_tokenizers.llama_like()
    assert NumberVocabulary.from_tokenizer(tokenizer).coverage(["is 42", "7"] * 1250).share == 1
    # Encodings take some fifty times the memory of a text.
    assert [size for size in sizes if size > 1] == [1000, 1000, 500]
