"""Number vocabularies of mappings and levels, and of the tokenizers of four libraries, which never change."""

import base64
import enum
import itertools
import json
import math
import pickle
import re
import types
import warnings
from functools import partial

import numpy as np
import pytest
import tiny_tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import CUT_OF_LLAMA_3, CUT_OF_QWEN, DIGITS, HOME_MADE, MAKES, NUMBERS, NUMBERS_UP_TO_999
from tokenizers import models, normalizers, pre_tokenizers

from ntloss import NTLCrossEntropyLoss, NTLoss, NTLossDotProduct, NumberVocabulary, number_level
from ntloss.numbers import inspect_tokenizer, texts
from ntloss.numbers.grammar import is_piece
from ntloss.numbers.inspection import SENTENCE
from ntloss.numbers.labels import LabelNumbers, find_numbers

pytestmark = pytest.mark.filterwarnings("ignore:.*tokens count as numbers")

VALUES_OF_DIGITS = {d: float(d) for d in DIGITS}
VALUES = VALUES_OF_DIGITS | NUMBERS


def with_marker(marker, values):
    return values | {marker + text: value for text, value in values.items() if marker + text != "▁0"}


# By the token's own string; the other tokenizers have only the digits.
VALUES_OF_MAKES = {
    "word_level": VALUES,
    "word_piece": with_marker("##", VALUES),
    "sentence_piece": with_marker("▁", VALUES) | {"88": 88.0},
    "byte_level": with_marker("Ġ", VALUES_OF_DIGITS | {"42": 42.0}),
    "llama_3_like": {text: float(text) for text in (*DIGITS, *NUMBERS_UP_TO_999)},
}


def by_raw_text(tokenizer, vocabulary, field="value"):
    """A field of each number token, by the token's own string including its marker."""
    raw = tokenizer.convert_ids_to_tokens(list(vocabulary.token_ids))
    return dict(zip(raw, (getattr(token, field) for token in vocabulary.tokens), strict=True))


def places_of_numbers(tokenizer, text):
    """Decimal places of the digits of each number in a text."""
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, "numbers")
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    numbers = LabelNumbers.unpack(find_numbers(ids, vocabulary))
    places = numbers.place[numbers.length > 0].tolist()
    starts = numbers.starts[numbers.length > 0].nonzero().flatten().tolist()
    return [places[a:b] for a, b in itertools.pairwise([*starts, len(places)])]


def saved_bytes(tokenizer, folder):
    """The content of each file that saving the tokenizer writes."""
    tokenizer.save_pretrained(folder)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("make", MAKES)
def test_all_numbers_and_digits_are_found_and_the_tokenizer_is_not_changed(make, tmp_path):
    # Excludes texts that float() accepts (NOT_NUMBERS), special tokens and bytes such as <0x34>.
    tokenizer = MAKES[make]()
    before = saved_bytes(tokenizer, tmp_path / "before"), dict(tokenizer.get_vocab())
    numbers = NumberVocabulary.from_tokenizer(tokenizer, "numbers")
    assert by_raw_text(tokenizer, numbers) == VALUES_OF_MAKES.get(make, VALUES_OF_DIGITS)
    digits = NumberVocabulary.from_tokenizer(tokenizer, "digits")
    assert digits.distinct_values == tuple(range(10))
    assert digits.is_digits
    chosen, shown = NumberVocabulary.from_tokenizer(tokenizer), ["is 42, 7", "3.14 in 2019"]
    is_by_digit = make not in ("llama_3_like", "word_piece", "word_level", "sentence_piece", "byte_level")
    assert chosen.is_digits == is_by_digit
    with pytest.raises(ValueError, match="tokens"):
        NumberVocabulary.from_tokenizer(tokenizer, "all")
    inspection = inspect_tokenizer(tokenizer, shown)
    assert inspection.tokens == ("digits" if is_by_digit else "numbers")
    assert inspection.number_tokens[inspection.tokens] == len(chosen.tokens)
    drops = tokenizer("12")["input_ids"] == tokenizer("1 2")["input_ids"]
    assert any("cannot tell" in note for note in inspection.notes) == drops
    NTLoss(tokenizer)
    assert before == (saved_bytes(tokenizer, tmp_path / "after"), dict(tokenizer.get_vocab()))


@pytest.mark.parametrize("name", ["t5", "gpt2"])
def test_values_are_the_decoded_texts_and_no_plain_number_is_missed(name, real_tokenizer):
    tokenizer = real_tokenizer(name)
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, "numbers")
    marker = {"t5": "▁", "gpt2": "Ġ"}[name]
    for raw, value in by_raw_text(tokenizer, vocabulary).items():
        assert float(raw.removeprefix(marker).lstrip("-+").replace(",", "")) == value
    plain = {i for raw, i in tokenizer.get_vocab().items() if raw.isascii() and raw.isdigit()}
    assert plain <= set(vocabulary.token_ids)
    letters, others = tokenizer.convert_tokens_to_ids(["km", "e"]), [marker + "km", "3"]
    assert {*letters} <= {*vocabulary.letter_ids}  # the tokens that continue a word
    assert {*tokenizer.convert_tokens_to_ids(others)}.isdisjoint(vocabulary.letter_ids)


def test_tokens_know_their_digits_and_what_starts_a_number():
    tokenizer = tiny_tokenizers.sentence_piece()
    tokenizer.add_special_tokens({"bos_token": "77"})
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, "numbers")
    digits = by_raw_text(tokenizer, vocabulary, "digits")
    for text, count in {"42": 2, "007": 3, "-3": 1, "3.14": 3, "3.": 1, ".5": 1, "2E-1": 1}.items():
        assert digits[text] == digits["▁" + text] == count, text
    starts = by_raw_text(tokenizer, vocabulary, "starts_number")
    assert all(starts[raw] == (raw[0] in "▁-+") for raw in starts)
    ids = tokenizer.convert_tokens_to_ids
    assert vocabulary.point_ids == (ids("."),)
    assert dict(vocabulary.sign_ids) == {ids("-"): -1, ids("▁-"): -1, ids("+"): 1, ids("▁+"): 1}
    assert tokenizer.bos_token_id not in vocabulary.token_ids


def test_the_separator_of_thousands_is_kept():
    for thousands in (None, "", ","):
        assert (
            NumberVocabulary.from_mapping({1: "4"}, vocab_size=2, thousands=thousands).thousands == thousands
        )
    with pytest.raises(ValueError, match="thousands"):
        NumberVocabulary.from_mapping({1: "4"}, vocab_size=2, thousands=";")


def test_decimals_without_a_point_in_the_vocabulary_are_a_warning():
    digits = {i: str(i) for i in range(10)}
    without = NumberVocabulary.from_mapping(digits, vocab_size=12)
    with pytest.warns(UserWarning, match="decimals=True has no effect"):
        NTLCrossEntropyLoss(without, partial(number_level, decimals=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with_point = NumberVocabulary.from_mapping({**digits, 10: "."}, vocab_size=12)
        NTLCrossEntropyLoss(with_point, partial(number_level, decimals=True))
        NTLCrossEntropyLoss(without, number_level)


def test_the_model_may_lack_what_was_added_to_the_tokenizer_alone():
    for make in ("llama_like", "qwen_like", "gemma_like", "llama_3_like"):
        tokenizer = MAKES[make]()
        own, size = NumberVocabulary.from_tokenizer(tokenizer), len(tokenizer)
        tokenizer.add_tokens(["8888", *(f"88{i}88" for i in range(20)), "\u2212", "\u20ac\u20ac"])
        assert NumberVocabulary.from_tokenizer(tokenizer, vocab_size=size + 28).vocab_size == size + 28
        found = NumberVocabulary.from_tokenizer(tokenizer, vocab_size=size)
        for name in ("vocab_size", "tokens", "point_ids", "sign_ids", "pieces"):
            assert getattr(found, name) == getattr(own, name)


def test_a_size_that_leaves_out_a_digit_a_point_or_a_minus_is_an_error():
    tokenizer = tiny_tokenizers.llama_like()
    own = NumberVocabulary.from_tokenizer(tokenizer)
    needed = 1 + max(*own.token_ids, *own.point_ids, *own.sign_ids)
    assert NumberVocabulary.from_tokenizer(tokenizer, vocab_size=needed).vocab_size == needed
    for tokens in (None, "numbers"):
        with pytest.raises(ValueError, match="vocab_size"):
            NumberVocabulary.from_tokenizer(tokenizer, tokens, vocab_size=needed - 1)


class TestFromMapping:
    def test_it_takes_values_and_texts(self):
        mapping = {7: 0.5, 3: "12", 5: " 12", 9: -3, 2: ".", 1: "-", 4: " -", 0: "+", 6: ",", 8: "\u2212"}
        vocabulary = NumberVocabulary.from_mapping({**mapping, 10: "\u22123", 11: "万元"}, vocab_size=12)
        assert vocabulary.token_ids == (3, 5, 7, 9, 10)
        assert vocabulary.values == (12.0, 12.0, 0.5, -3.0, 3.0)  # a sign is no part of a text's value
        assert [token.starts_number for token in vocabulary.tokens] == [False, True, False, True, True]
        assert vocabulary.distinct_values == (-3.0, 0.5, 3.0, 12.0)
        assert vocabulary.point_ids == (2,)
        assert dict(vocabulary.sign_ids) == {1: -1, 4: -1, 0: 1, 8: -1}
        assert vocabulary.pieces[11] == "万元"

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

    @given(value=st.floats(allow_nan=False, allow_infinity=False, width=32))
    def test_values_are_kept_exactly_with_one_zero(self, value):
        (kept,) = NumberVocabulary.from_mapping({0: value}, vocab_size=1).values
        assert kept == value
        assert kept != 0 or math.copysign(1, kept) == 1
        for given_value in (np.float64(0.5), enum.IntEnum("Id", {"A": 3}).A, "-0"):
            (kept, _) = NumberVocabulary.from_mapping({0: given_value, 1: 1.0}, vocab_size=2).values
            assert (kept, math.copysign(1, kept)) == (float(given_value), 1)

    @pytest.mark.parametrize(
        ("mapping", "size", "error", "named"),
        [
            ({"4": 4.0}, 10, TypeError, "'4'"),
            ({True: 4.0}, 10, TypeError, "True"),
            ({4: None}, 10, TypeError, "token 4"),
            ({4: True}, 10, TypeError, "token 4"),
            ({4: math.nan}, 10, ValueError, "token 4.*nan"),
            ({4: 10**400}, 10, ValueError, "token 4"),
            ({-1: 4.0}, 10, ValueError, "token id -1.*vocab_size"),
            ({10: 4.0}, 10, ValueError, "token id 10.*vocab_size"),
            ({4: "."}, 10, ValueError, "no number token"),
            (["4"], 10, TypeError, "mapping"),
            *[({0: 4.0}, size, TypeError, "vocab_size") for size in ("12", 12.5)],
            ({0: 4.0}, 0, ValueError, "vocab_size"),
            *[
                ({0: "4", 1: text}, 2, ValueError, rf"token 1: .*{re.escape(repr(text))}")
                for text in ("abc", "", "\n4", "inf", "1e400", "1_000", "1,00", "3rd", "日x")
            ],
        ],
    )
    def test_invalid_mappings_and_sizes_are_errors(self, mapping, size, error, named):
        with pytest.raises(error, match=named):
            NumberVocabulary.from_mapping(mapping, vocab_size=size)


def tokenizer_of_words(*words):
    tokenizer = tiny_tokenizers.word_level()
    vocab = {word: i for i, word in enumerate(["<unk>", *DIGITS, *words])}
    tokenizer.backend_tokenizer.model = models.WordLevel(vocab, "<unk>")
    return tokenizer


def test_levels_are_number_tokens_of_one_token_each():
    tokenizer = tokenizer_of_words("calm", "angry", "10")
    numbers = NumberVocabulary.from_levels(tokenizer, range(1, 11))
    assert numbers.values == tuple(range(1, 11))
    words = NumberVocabulary.from_levels(tokenizer, {"calm": 0, "angry": 2.5}, vocab_size=99)
    assert (words.values, words.vocab_size) == ((0.0, 2.5), 99)


@pytest.mark.parametrize(
    ("levels", "error"),
    [
        (range(1, 11), ValueError),  # 10 is written with two tokens
        ({"calm": 0, "furious": 1}, ValueError),
        ([3], ValueError),
        ({"calm": math.inf, "angry": 1}, ValueError),
        (["calm", "angry"], TypeError),
    ],
)
def test_levels_without_a_token_or_a_finite_value_are_an_error(levels, error):
    by_digit = isinstance(levels, range)
    tokenizer = tiny_tokenizers.qwen_like() if by_digit else tokenizer_of_words("calm", "angry")
    with pytest.raises(error, match="levels"):
        NumberVocabulary.from_levels(tokenizer, levels)


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({}, ["space_prefixed=True", "digit_level=False"]),
        ({"space_prefixed": True}, ["digit_level=False"]),
        ({"digit_level": False, "space_prefixed": True}, []),
    ],
)
def test_published_classes_warn_once_of_the_options_that_count_the_others(options, advice):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            NTLoss(tiny_tokenizers.byte_level(), **options)
    messages = " ".join(str(warning.message) for warning in caught)
    assert len(caught) == bool(advice)
    assert [a for a in ("space_prefixed=True", "digit_level=False") if a in messages] == advice


SINGLE_DIGITS = pre_tokenizers.Digits(individual_digits=True)
SPACED_DIGITS = (SINGLE_DIGITS, pre_tokenizers.ByteLevel())
TOUR = partial(tiny_tokenizers.quick_tour, individual_digits=False)


class TestDecodersThatPutSpacesBetweenTokens:
    @pytest.mark.parametrize("make", HOME_MADE)
    def test_adjacent_digits_form_one_number_which_a_token_of_a_space_ends(self, make, monkeypatch):
        def needs_boxes(self, text, boxes, **options):
            raise AssertionError

        tokenizer = HOME_MADE[make]()
        dropped = tokenizer("12 7")["input_ids"] == tokenizer("127")["input_ids"]
        assert dropped == (make == "quick_tour")
        assert places_of_numbers(tokenizer, "12 7") == ([[2, 1, 0]] if dropped else [[1, 0], [0]])
        assert places_of_numbers(tokenizer, "3.14,-2019") == [[0, -1, -2], [3, 2, 1, 0]]
        monkeypatch.setattr(type(tokenizer), "__call__", needs_boxes)  # more than a text
        vocabulary = NumberVocabulary.from_tokenizer(tokenizer)
        assert [token.text for token in vocabulary.tokens] == DIGITS

    @pytest.mark.parametrize(
        ("make", "steps", "text", "tokens", "places"),
        [
            (TOUR, (), "3.1420", ["3", ".", "14", "2", "0"], [[0, -2, -3, -4]]),
            # Plain digits begin a word, and marked ones continue it.
            ("word_piece", (), "127 3", ["1", "##2", "##7", "3"], [[2, 1, 0], [0]]),
            ("word_piece", (pre_tokenizers.Whitespace(), SINGLE_DIGITS), "12", ["1", "2"], [[1, 0]]),
            # A space is added before each digit.
            ("byte_level", SPACED_DIGITS, "12 7", ["Ġ1", "Ġ2", "Ġ", "Ġ7"], [[1, 0], [0]]),
            ("word_level", (), "42 7 1", ["42", "7", "1"], [[0], [0], [0]]),
        ],
    )  # fmt: skip
    def test_digits_get_their_decimal_places(self, make, steps, text, tokens, places):
        tokenizer = MAKES[make]() if make in MAKES else make()
        if steps:
            tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(steps))
        assert tokenizer.tokenize(text) == tokens
        assert places_of_numbers(tokenizer, text) == places

    @pytest.mark.parametrize("make", ["word_piece", "sentence_piece"])
    def test_an_added_token_does_not_change_the_texts_of_other_tokens(self, make):
        before, after = MAKES[make](), MAKES[make]()
        after.add_tokens(["0"])
        found, expected = (
            {token.token_id: token.text for token in NumberVocabulary.from_tokenizer(t, "numbers").tokens}
            for t in (after, before)
        )
        assert found == expected
        assert any(text.startswith(" ") for text in found.values())


def tekken_file(folder):
    """A Tekken JSON file with 20 special tokens, all bytes, ` a` and an Arabic digit."""
    written = [bytes([byte]) for byte in range(256)] + [b" a", "٣".encode()]
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(text).decode(), "token_str": None}
        for rank, text in enumerate(written)
    ]
    config = {"pattern": CUT_OF_QWEN, "version": "v3", "default_num_special_tokens": 20}
    config |= {"num_vocab_tokens": len(written), "default_vocab_size": len(written) + 20}
    path = folder / "tekken.json"
    path.write_text(json.dumps({"config": config, "vocab": vocab}), encoding="utf-8")
    return path


class TestOtherLibraries:
    def test_tiktoken(self):
        """Like cl100k_base: numbers of up to three digits; ids 1,400 to 1,999 are unused."""
        tiktoken = pytest.importorskip("tiktoken")
        written = [bytes([b]) for b in range(256)] + [n.encode() for n in (*NUMBERS_UP_TO_999, " a", "²")]
        encoding = tiktoken.Encoding(
            "tiny",
            pat_str=CUT_OF_LLAMA_3,
            mergeable_ranks={text: rank for rank, text in enumerate(written)},
            special_tokens={"<|endoftext|>": 2000, "<|4|>": 2001},
        )
        vocabulary = NumberVocabulary.from_tokenizer(encoding, "numbers")
        assert vocabulary.vocab_size == 2002  # with special and unused ids
        read = {token.token_id: token.text for token in vocabulary.tokens}
        assert read == {encoding.encode_single_token(n): n for n in (*DIGITS, *NUMBERS_UP_TO_999)}
        assert pickle.loads(pickle.dumps(vocabulary)).tokens == vocabulary.tokens
        # Special tokens in a text are text.
        assert inspect_tokenizer(encoding, [SENTENCE, "<|endoftext|> <|4|>"]).coverage["numbers"] == 1
        other = NumberVocabulary.from_tokenizer(tiny_tokenizers.llama_3_like(), "numbers")
        assert {*vocabulary.pieces.values()} - {*other.pieces.values()} == {" a", "²"}

    @pytest.mark.parametrize("make", [tekken_file, tiny_tokenizers.sentence_piece_file])
    def test_mistral_common_with_all_its_wrappers(self, make, tmp_path):
        mistral = pytest.importorskip("mistral_common.tokens.tokenizers.mistral")
        tokenizer = mistral.MistralTokenizer.from_file(make(tmp_path))
        inner = tokenizer.instruct_tokenizer.tokenizer
        layers = [tokenizer, tokenizer.instruct_tokenizer, inner, types.SimpleNamespace(tokenizer=tokenizer)]
        for vocabulary in map(NumberVocabulary.from_tokenizer, layers):
            assert vocabulary.vocab_size == inner.n_words
            assert {token.text: token.token_id for token in vocabulary.tokens} == {
                digit: inner.encode(digit, bos=False, eos=False)[-1] for digit in DIGITS
            }

    def test_sentence_piece(self, tmp_path, real_tokenizer, tokenizer_folder):
        sentencepiece = pytest.importorskip("sentencepiece")
        file = str(tokenizer_folder / "t5" / "spiece.model")
        others = [(sentencepiece.SentencePieceProcessor(model_file=file), real_tokenizer("t5"))]
        with_suppressed = pytest.importorskip("mistral_common.tokens.tokenizers.sentencepiece")
        path = tiny_tokenizers.sentence_piece_file(tmp_path, split_digits=False)
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        others.append((processor, with_suppressed.SentencePieceTokenizer(path)))
        for pair in others:
            ours, theirs = (NumberVocabulary.from_tokenizer(each, "numbers") for each in pair)
            assert ours.tokens == theirs.tokens
            assert max(token.digits for token in ours.tokens) > 1
            assert len({inspect_tokenizer(each).coverage["numbers"] for each in pair}) == 1

    def test_those_that_convert_single_characters_have_the_digits_of_their_bytes(self):
        tokenizer = pytest.importorskip("transformers").ByT5Tokenizer()
        vocabulary = NumberVocabulary.from_tokenizer(tokenizer)
        assert [tokenizer.decode([i]) for i in vocabulary.token_ids] == [*DIGITS]
        assert places_of_numbers(tokenizer, "x1 is 12.5, 1\u202f234, -7") == [[1, 0, -1], [3, 2, 1, 0], [0]]

    @pytest.mark.parametrize("given_instead", [None, "t5", {"4": 4}, 7.5])
    def test_what_is_no_tokenizer_is_an_error(self, given_instead):
        for call in (NumberVocabulary.from_tokenizer, NTLoss, NTLossDotProduct):
            with pytest.raises(TypeError, match=rf"tokenizer.*{type(given_instead).__name__}.*from_mapping"):
                call(given_instead)


def test_a_tokenizer_without_digits_is_not_changed_and_the_advice_works(tmp_path):
    tokenizer = tiny_tokenizers.sentence_piece(with_plain_digits=False)
    before = saved_bytes(tokenizer, tmp_path / "before")
    for make in (NTLoss, lambda tokenizer: NumberVocabulary.from_tokenizer(tokenizer, "digits")):
        with pytest.raises(ValueError, match="digits"):
            make(tokenizer)
    assert not NumberVocabulary.from_tokenizer(tokenizer).is_digits
    assert saved_bytes(tokenizer, tmp_path / "after") == before
    tokenizer.add_tokens(DIGITS)
    assert len(NumberVocabulary.from_tokenizer(tokenizer, "digits").distinct_values) == 10


def test_a_tokenizer_that_truncates_and_pads_still_does(tmp_path):
    tokenizer = tiny_tokenizers.byte_level()
    tokenizer.backend_tokenizer.enable_truncation(4)
    tokenizer.backend_tokenizer.enable_padding(length=20, pad_id=5)
    before = saved_bytes(tokenizer, tmp_path / "before")
    assert inspect_tokenizer(tokenizer, "1234567890").coverage["numbers"] == 1
    assert saved_bytes(tokenizer, tmp_path / "after") == before


class TestInspection:
    @pytest.mark.parametrize(
        ("make", "shown"),
        [
            ("llama_3_like", ["1234567", "123|456|7"]),
            ("byte_level", ["42", "1|2|3|4|5|6|7"]),  # decided by a frequent number
            ("word_level", ["42", "unknown"]),
        ],
    )
    def test_the_verdict_shows_the_number_that_is_written_in_groups(self, make, shown):
        inspection = inspect_tokenizer(MAKES[make]())
        assert all(text in inspection.verdict for text in shown)
        assert str(inspection).startswith(inspection.verdict)

    def test_coverage_is_the_share_of_digits_in_number_tokens(self, monkeypatch):
        # "Ġ42" is one token, "Ġ7" another, "4" a third.
        found = inspect_tokenizer(tiny_tokenizers.byte_level(), (text for text in ["is 42, 7", "4"]))
        assert found.coverage == {"digits": 0.5, "numbers": 1.0}
        tokenizer = tiny_tokenizers.llama_like()
        tokenizer.backend_tokenizer.normalizer = normalizers.NFKC()
        assert inspect_tokenizer(tokenizer, "4 ４５ a²").coverage["digits"] == 1  # those that it makes
        sizes, encode = [], texts.encode_with
        monkeypatch.setattr(texts, "encode_with", lambda *of: (sizes.append(len(of[1])), encode(*of))[1])
        assert inspect_tokenizer(tokenizer, ["is 42", "7"] * 1250).coverage["digits"] == 1
        assert [size for size in sizes if size > 100] == [1000, 1000, 500]  # in batches, to save memory

    def test_what_the_loss_would_not_see_is_a_note(self):
        tokenizer = tiny_tokenizers.word_level()
        for text, noted in (("4 4a 4a 1000 5", "6 of the text's 8 digits"), ("no number", "no digit")):
            assert noted in str(inspect_tokenizer(tokenizer, text))
        assert not inspect_tokenizer(tokenizer, "4 5").notes

    @pytest.mark.parametrize(
        ("given_texts", "error"),
        [(b"12", TypeError), (["12", None], TypeError), *[(e, ValueError) for e in (" \n", [], ["", " "])]],
    )
    def test_what_is_no_text_or_empty_is_an_error(self, given_texts, error):
        with pytest.raises(error, match="texts"):
            inspect_tokenizer(tiny_tokenizers.llama_like(), given_texts)

    def test_a_text_that_the_tokenizer_cannot_encode_is_an_error(self):
        tokenizer = tiny_tokenizers.word_level_without_unknown()
        assert inspect_tokenizer(tokenizer, "the 42 4").coverage["numbers"] == 1
        with pytest.raises(ValueError, match="unknown token"):
            inspect_tokenizer(tokenizer, "a 4")
