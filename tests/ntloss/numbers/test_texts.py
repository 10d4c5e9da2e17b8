"""The texts of tokens, from the tokenizers of four libraries, which are never changed."""

import itertools
import os
import pickle
import types
from pathlib import Path

import other_tokenizers
import pytest
import tiny_tokenizers
from tiny_tokenizers import DIGITS, HOME_MADE, NUMBERS_UP_TO_999, saved_bytes
from tokenizers import pre_tokenizers

from ntloss import NTLoss, NTLossDotProduct, NumberVocabulary
from ntloss.numbers.inspection import SENTENCE, inspect_tokenizer
from ntloss.numbers.labels import LabelNumbers, find_numbers

pytestmark = pytest.mark.filterwarnings("ignore:.*tokens count as numbers")


@pytest.fixture(scope="session")
def gsm8k():
    """The test questions of GSM8K as lines of JSON (in NTLOSS_DATA, or `shared` beside the repository)."""
    root = Path(__file__).resolve().parents[3]
    path = Path(os.environ.get("NTLOSS_DATA", root.parent / "shared" / "data")) / "gsm8k" / "test.jsonl"
    if not path.is_file():
        pytest.skip(f"no real data at {path}")
    return path.read_text(encoding="utf-8").splitlines()


def places_of_numbers(tokenizer, text):
    """Decimal places of the digits of each number in a text."""
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, "numbers")
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    numbers = LabelNumbers.unpack(find_numbers(ids, vocabulary))
    places = numbers.place[numbers.length > 0].tolist()
    starts = numbers.starts[numbers.length > 0].nonzero().flatten().tolist()
    return [places[a:b] for a, b in itertools.pairwise([*starts, len(places)])]


def with_pre_tokenizers(tokenizer, *steps):
    """Set the pre-tokenizers of a tokenizer, and return it."""
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(steps))
    return tokenizer


SINGLE_DIGITS = pre_tokenizers.Digits(individual_digits=True)


def test_letters_are_the_tokens_that_continue_a_word(real_tokenizer):
    for tokenizer, letters, others in (
        (real_tokenizer("t5"), ["km", "e"], ["▁km", "3"]),
        (real_tokenizer("gpt2"), ["km", "e"], ["Ġk", "3"]),
        (tiny_tokenizers.word_piece(), [], ["a", "4", "##4"]),
    ):
        found = NumberVocabulary.from_tokenizer(tokenizer).letter_ids
        assert set(tokenizer.convert_tokens_to_ids(letters)) <= set(found)
        assert set(tokenizer.convert_tokens_to_ids(others)).isdisjoint(found)


class TestDecodersThatPutSpacesBetweenTokens:
    @pytest.mark.parametrize("make", HOME_MADE)
    def test_adjacent_digits_form_one_number(self, make):
        tokenizer = HOME_MADE[make]()
        assert tokenizer.convert_tokens_to_string(["1", "2"]) == "1 2"
        vocabulary = NumberVocabulary.from_tokenizer(tokenizer)
        assert [token.text for token in vocabulary.tokens] == DIGITS
        assert not any(token.starts_number for token in vocabulary.tokens)
        ids = tokenizer.convert_tokens_to_ids
        assert vocabulary.point_ids == (ids("."),)
        assert dict(vocabulary.sign_ids) == {ids("-"): -1, ids("+"): 1}
        assert places_of_numbers(tokenizer, "12") == [[1, 0]]
        assert places_of_numbers(tokenizer, "3.14,-2019") == [[0, -1, -2], [3, 2, 1, 0]]

    @pytest.mark.parametrize("make", HOME_MADE)
    def test_a_space_separates_numbers_if_it_is_a_token(self, make):
        tokenizer = HOME_MADE[make]()
        dropped = tokenizer("12 7")["input_ids"] == tokenizer("127")["input_ids"]
        assert dropped == (make == "quick_tour")
        assert places_of_numbers(tokenizer, "12 7") == ([[2, 1, 0]] if dropped else [[1, 0], [0]])

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
    def test_digits_get_their_decimal_places(self, tokenizer, text, tokens, places):
        assert tokenizer.tokenize(text) == tokens
        assert places_of_numbers(tokenizer, text) == places

    @pytest.mark.parametrize("make", ["word_piece", "sentence_piece"])
    def test_an_added_token_does_not_change_the_texts_of_other_tokens(self, make):
        before = tiny_tokenizers.MAKES[make]()
        tokenizer = tiny_tokenizers.MAKES[make]()
        tokenizer.add_tokens(["0"])
        texts, expected = (
            {token.token_id: token.text for token in NumberVocabulary.from_tokenizer(t, "numbers").tokens}
            for t in (tokenizer, before)
        )
        assert texts == expected
        assert any(text.startswith(" ") for text in texts.values())

    @pytest.mark.parametrize("make", HOME_MADE)
    def test_tokenizers_whose_call_needs_more_than_a_text_are_supported(self, make, monkeypatch):
        def needs_boxes(self, text, boxes, **options):
            raise AssertionError

        tokenizer = HOME_MADE[make]()
        monkeypatch.setattr(type(tokenizer), "__call__", needs_boxes)
        assert not any(t.starts_number for t in NumberVocabulary.from_tokenizer(tokenizer).tokens)

    def test_without_an_encoder_the_decoded_spaces_are_kept(self):
        words = tiny_tokenizers.split_words()

        class Words:
            get_vocab, convert_tokens_to_string = words.get_vocab, words.convert_tokens_to_string

            def __len__(self):
                return len(words)

        assert all(token.starts_number for token in NumberVocabulary.from_tokenizer(Words()).tokens)


class TestTiktoken:
    @pytest.fixture(autouse=True)
    def _tiktoken(self):
        pytest.importorskip("tiktoken")

    def test_finds_numbers_and_ignores_special_and_unused_ids(self):
        encoding = other_tokenizers.tiny_encoding()
        vocabulary = NumberVocabulary.from_tokenizer(encoding, "numbers")
        assert vocabulary.vocab_size == 2002
        read = {token.token_id: token.text for token in vocabulary.tokens}
        assert read == {encoding.encode_single_token(n): n for n in (*DIGITS, *NUMBERS_UP_TO_999)}
        assert vocabulary.point_ids == (ord("."),)
        assert dict(vocabulary.sign_ids) == {ord("-"): -1, ord("+"): 1}
        # "42", "3", "14", "201", "9"
        assert vocabulary.coverage(SENTENCE) == 1

    @pytest.mark.parametrize("tokens", ["digits", "numbers"])
    def test_matches_the_vocabulary_of_the_hugging_face_tokenizer(
        self, tokens, real_tokenizer, tokenizer_folder, gsm8k
    ):
        theirs = NumberVocabulary.from_tokenizer(real_tokenizer("gpt2"), tokens)
        ours = NumberVocabulary.from_tokenizer(
            other_tokenizers.gpt2_encoding(tokenizer_folder / "gpt2"), tokens
        )
        for name in ("vocab_size", "tokens", "point_ids", "sign_ids", "pieces", "letter_ids"):
            assert getattr(ours, name) == getattr(theirs, name)
        assert ours.coverage(gsm8k) == theirs.coverage(gsm8k)

    def test_special_tokens_in_a_text_are_encoded_as_text_even_after_unpickling(self):
        vocabulary = NumberVocabulary.from_tokenizer(other_tokenizers.tiny_encoding())
        assert vocabulary.coverage("<|endoftext|> <|4|>") == 1
        assert pickle.loads(pickle.dumps(vocabulary)).coverage("<|endoftext|> <|4|>") == 1


class TestMistralCommon:
    @pytest.fixture(autouse=True)
    def _mistral_common(self):
        pytest.importorskip("mistral_common")

    @pytest.fixture(params=["tekken_file", "sentence_piece_file"])
    def tokenizer(self, request, tmp_path):
        from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

        return MistralTokenizer.from_file(getattr(other_tokenizers, request.param)(tmp_path))

    def test_the_id_of_each_digit_is_the_one_the_tokenizer_encodes_it_to(self, tokenizer):
        inner = tokenizer.instruct_tokenizer.tokenizer
        vocabulary = NumberVocabulary.from_tokenizer(tokenizer, "numbers")
        assert vocabulary.vocab_size == inner.n_words
        assert {token.text: token.token_id for token in vocabulary.tokens} == {
            digit: inner.encode(digit, bos=False, eos=False)[-1] for digit in DIGITS
        }
        assert vocabulary.coverage(SENTENCE) == 1

    def test_all_wrappers_of_a_tokenizer_give_the_same_vocabulary(self, tokenizer):
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

    def test_a_sentence_piece_processor_matches_mistral_common(self, tmp_path):
        import sentencepiece
        from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer

        path = other_tokenizers.sentence_piece_file(tmp_path, split_digits=False)
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        ours = NumberVocabulary.from_tokenizer(processor, "numbers")
        theirs = NumberVocabulary.from_tokenizer(SentencePieceTokenizer(path), "numbers")
        assert ours.tokens == theirs.tokens
        assert max(token.digits for token in ours.tokens) > 1
        assert ours.coverage(SENTENCE) == theirs.coverage(SENTENCE)


def test_sentence_piece_matches_hugging_face_on_t5(real_tokenizer, tokenizer_folder, gsm8k):
    sentencepiece = pytest.importorskip("sentencepiece")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer_folder / "t5" / "spiece.model"))
    ours = NumberVocabulary.from_tokenizer(processor, "numbers")
    theirs = NumberVocabulary.from_tokenizer(real_tokenizer("t5"), "numbers")
    assert ours.tokens == theirs.tokens
    assert ours.coverage(gsm8k) == theirs.coverage(gsm8k)


class TestTheTokenizerIsNeverChanged:
    def test_by_making_a_vocabulary_or_a_loss(self, tiny_tokenizer, tmp_path):
        before = saved_bytes(tiny_tokenizer, tmp_path / "before"), dict(tiny_tokenizer.get_vocab())
        NumberVocabulary.from_tokenizer(tiny_tokenizer, "numbers").coverage([SENTENCE, "", "7"])
        inspect_tokenizer(tiny_tokenizer)
        NTLoss(tiny_tokenizer)
        NTLossDotProduct(tiny_tokenizer, digit_level=False)
        assert before == (saved_bytes(tiny_tokenizer, tmp_path / "after"), dict(tiny_tokenizer.get_vocab()))

    def test_when_digits_are_missing_and_the_error_says_what_to_do(self, tmp_path):
        tokenizer = tiny_tokenizers.sentence_piece(with_plain_digits=False)
        before, length = saved_bytes(tokenizer, tmp_path / "before"), len(tokenizer)
        for make in (NTLoss, lambda tokenizer: NumberVocabulary.from_tokenizer(tokenizer, "digits")):
            with pytest.raises(ValueError, match="add_tokens"):
                make(tokenizer)
        assert saved_bytes(tokenizer, tmp_path / "after") == before
        assert len(tokenizer) == length

    def test_by_coverage_when_it_truncates_and_pads(self, tmp_path):
        tokenizer = tiny_tokenizers.byte_level()
        tokenizer.backend_tokenizer.enable_truncation(4)
        tokenizer.backend_tokenizer.enable_padding(length=20, pad_id=5)
        vocabulary = NumberVocabulary.from_tokenizer(tokenizer)
        before = saved_bytes(tokenizer, tmp_path / "before")
        assert vocabulary.coverage("1234567890") == 1
        assert saved_bytes(tokenizer, tmp_path / "after") == before


def test_a_tokenizer_that_converts_single_characters_only_has_the_digits_of_its_bytes():
    tokenizer = pytest.importorskip("transformers").ByT5Tokenizer()
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer)
    assert [tokenizer.decode([i]) for i in vocabulary.token_ids] == [*DIGITS]
    assert places_of_numbers(tokenizer, "x1 is 12.5, -7") == [[1, 0, -1], [0]]


@pytest.mark.parametrize("given_instead", [None, "t5", {"4": 4}, object()], ids=lambda x: type(x).__name__)
def test_objects_that_are_not_tokenizers_are_an_error_that_says_what_to_pass(given_instead):
    for call in (NumberVocabulary.from_tokenizer, NTLoss, NTLossDotProduct):
        with pytest.raises(TypeError, match=rf"tokenizer.*{type(given_instead).__name__}.*from_mapping"):
            call(given_instead)
