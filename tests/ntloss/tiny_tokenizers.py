"""Small tokenizers of every kind, built here so that nothing is downloaded."""

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

DIGITS = [str(d) for d in range(10)]
# Texts that are numbers, and their values; a sign is no part of a token's.
NUMBERS = {
    "42": 42.0,
    "007": 7.0,
    "-3": 3.0,
    "+5": 5.0,
    "3.14": 3.14,
    "3.": 3.0,
    ".5": 0.5,
    "1e3": 1000.0,
    "2E-1": 0.2,
    "1,000": 1000.0,
}
# Most of these pass Python's float() or str.isdigit().
NOT_NUMBERS = [
    "1_000", "nan", "NaN", "inf", "-inf", "Infinity", "²", "٣", "１", "४", "1e400", "0x10", "½",
    "3.1.4", "--3", "e3", "1e", "4a", "-", "+", ",", "4)", "Ⅳ", "1２",
]  # fmt: skip
TEXTS = [*DIGITS, *NUMBERS, *NOT_NUMBERS, ".", "a", "the"]
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_JOINED_PIECES = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]


def _wrapped(model, pre_tokenizer=None, decoder=None, **special):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoder
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def _ids(texts):
    return {text: i for i, text in enumerate(texts)}


def word_level():
    """Whole words, without a decoder."""
    model = models.WordLevel(_ids(["<unk>", *TEXTS]), unk_token="<unk>")
    return _wrapped(model, pre_tokenizers.WhitespaceSplit(), unk_token="<unk>")


def word_level_without_unknown():
    """Whole words, without a decoder or an unknown token: any other word is an error."""
    return _wrapped(models.WordLevel(_ids(["the", *DIGITS, "42"])), pre_tokenizers.WhitespaceSplit())


def word_piece():
    """Like BERT's: `##4` continues a word."""
    texts = ["[UNK]", *TEXTS, *("##" + text for text in TEXTS)]
    model = models.WordPiece(_ids(texts), unk_token="[UNK]")
    decoder = decoders.WordPiece(cleanup=False)
    return _wrapped(model, pre_tokenizers.WhitespaceSplit(), decoder, unk_token="[UNK]")


def sentence_piece(with_plain_digits=True):
    """Like T5's: `▁4` begins with a space; with byte fallback, special tokens with digits, an added token."""
    texts = [t for t in TEXTS if with_plain_digits or t not in DIGITS]
    pieces = [("<pad>", 0.0), ("<unk>", 0.0), ("▁", -3.0)]
    pieces += [(text, -2.0) for text in texts] + [("▁" + text, -1.5) for text in TEXTS if text != "0"]
    pieces += [(byte, -9.0) for byte in _BYTES]
    wrapped = _wrapped(
        models.Unigram(pieces, unk_id=1, byte_fallback=True),
        pre_tokenizers.Metaspace(),
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
        unk_token="<unk>",
        pad_token="<pad>",
        additional_special_tokens=["<extra_id_4>", "<7>"],
    )
    wrapped.add_tokens(["88"])
    return wrapped


def byte_level():
    """Like GPT-2's: bytes are written as characters; `Ġ4` begins with a space, `Ċ4` with a newline."""
    texts = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", d) for d in DIGITS] + [("4", "2"), ("Ġ4", "2"), ("Ċ", "4"), ("Ġ", "Ġ"), ("ĠĠ", "4")]
    texts += ["".join(pair) for pair in merges]
    pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return _wrapped(models.BPE(_ids(texts), merges), pre_tokenizer, decoders.ByteLevel())


def llama_like():
    """Like Llama's: single digits, byte fallback, and a decoder that strips the first space of a text."""
    texts = ["<unk>", *_BYTES, "▁", *DIGITS, ".", "-", ",", "a", "▁a"]
    model = models.BPE(_ids(texts), [("▁", "a")], byte_fallback=True, unk_token="<unk>")
    decoder = decoders.Sequence([*_JOINED_PIECES, decoders.Strip(content=" ", left=1)])
    return _wrapped(model, pre_tokenizers.Metaspace(split=False), decoder, unk_token="<unk>")


# The pre-tokenization of Llama 3 and Qwen 2, which differ in the number of digits that stay together.
_CUT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{%s}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
CUT_OF_LLAMA_3 = _CUT % "1,3"
CUT_OF_QWEN = _CUT % "1"
NUMBERS_UP_TO_999 = [f"{n:0{width}d}" for width in (2, 3) for n in range(10**width)]


def _cut_bytes(pattern, merges):
    texts = sorted(pre_tokenizers.ByteLevel.alphabet()) + ["".join(pair) for pair in merges]
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return _wrapped(
        models.BPE(_ids(texts), merges, ignore_merges=True),
        pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), as_bytes]),
        decoders.ByteLevel(),
    )


def llama_3_like():
    """Like Llama 3's: byte-level; each number of up to three digits is a token, without a space."""
    return _cut_bytes(CUT_OF_LLAMA_3, [(n[:-1], n[-1]) for n in NUMBERS_UP_TO_999])


def qwen_like():
    """Like Qwen 2's: byte-level; each digit is a token, also `Ù£` (an Arabic digit)."""
    return _cut_bytes(CUT_OF_QWEN, [("Ġ", "a"), ("Ù", "£")])


def gemma_like():
    """Like Gemma's: byte fallback, no space added before a text; each digit is a token."""
    texts = ["<pad>", "<unk>", *_BYTES, "▁", "▁▁", *DIGITS, *"٣.,-a"]
    merges = [("▁", "▁")]
    model = models.BPE(_ids(texts), merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    decoder = decoders.Sequence(_JOINED_PIECES)
    tokenizer = _wrapped(model, decoder=decoder, unk_token="<unk>", pad_token="<pad>")
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace(" ", "▁")
    return tokenizer


CHARACTERS = ["<unk>", *DIGITS, *".,-+a"]


def split_words():
    """Each character is a word, spaces are unknown; without a decoder."""
    model = models.WordLevel(_ids(CHARACTERS), unk_token="<unk>")
    return _wrapped(model, pre_tokenizers.Split("", "isolated"), unk_token="<unk>")


def quick_tour(individual_digits=True):
    """The tokenizer of the tokenizers library's quick tour, without a decoder; it drops spaces.

    Args:
        individual_digits: False leaves digits together, and adds the merges `14` and `42`.
    """
    merges = [] if individual_digits else [("1", "4"), ("4", "2")]
    texts = [*CHARACTERS, *("".join(pair) for pair in merges)]
    words_and_digits = [pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits)]
    model = models.BPE(_ids(texts), merges, unk_token="<unk>")
    return _wrapped(model, pre_tokenizers.Sequence(words_and_digits), unk_token="<unk>")


class PythonCharacters(PreTrainedTokenizer):
    """Each character, including the space, is a token; with the default `convert_tokens_to_string`."""

    def __init__(self, **options):
        self.ids = _ids([*CHARACTERS, " "])
        super().__init__(**{"unk_token": "<unk>", **options})

    @property
    def vocab_size(self):
        return len(self.ids)

    def get_vocab(self):
        return {**self.ids, **self.added_tokens_encoder}

    def _tokenize(self, text, **options):
        return list(text)

    def _convert_token_to_id(self, token):
        return self.ids.get(token, 0)

    def _convert_id_to_token(self, index):
        return list(self.ids)[index]

    def save_vocabulary(self, save_directory, filename_prefix=None):
        path = Path(save_directory) / f"{filename_prefix or ''}vocab.json"
        path.write_text(json.dumps(self.ids), encoding="utf-8")
        return (str(path),)


# Their decoders add a space before each token.
HOME_MADE = {"split_words": split_words, "quick_tour": quick_tour, "python_characters": PythonCharacters}
_OTHERS = (
    word_level, word_piece, sentence_piece, byte_level, llama_like, llama_3_like, qwen_like, gemma_like
)  # fmt: skip
MAKES = {**HOME_MADE, **{make.__name__: make for make in _OTHERS}}


def sentence_piece_file(folder, split_digits=True):
    """A SentencePiece model, trained here, with byte fallback; it adds a space before a text."""
    import sentencepiece

    path = folder / "tokenizer.model.v1"
    sentences = [f"the answer is {n}, or {n / 7:.2f} in {1900 + n % 130}." for n in range(0, 2000, 3)]
    options = {"vocab_size": 340, "hard_vocab_limit": False, "byte_fallback": True, "model_type": "bpe"}
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=file,
            split_digits=split_digits,
            num_threads=1,
            minloglevel=2,
            **options,
        )
    return path
