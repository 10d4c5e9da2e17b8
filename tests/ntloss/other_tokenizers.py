"""Tokenizers of other libraries than Hugging Face's, built here or loaded from local files."""

import base64
import json

from tiny_tokenizers import CUT_OF_LLAMA_3, CUT_OF_QWEN, NUMBERS_UP_TO_999
from tokenizers import pre_tokenizers

SPECIAL = {"<|endoftext|>": 2000, "<|4|>": 2001}


def tiny_encoding():
    """An encoding like cl100k_base: numbers of up to three digits; ids 1,400 to 1,999 are unused."""
    import tiktoken

    texts = (
        [bytes([byte]) for byte in range(256)]
        + [n.encode() for n in NUMBERS_UP_TO_999]
        + [b" a", "²".encode()]
    )
    ranks = {text: rank for rank, text in enumerate(texts)}
    return tiktoken.Encoding("tiny", pat_str=CUT_OF_LLAMA_3, mergeable_ranks=ranks, special_tokens=SPECIAL)


def gpt2_encoding(folder):
    """GPT-2's tiktoken encoding, built from the files of the Hugging Face tokenizer, with the same ids."""
    import tiktoken

    # Printable bytes are written as themselves, and the others as the characters from 256 on.
    printable = [b for b in range(256) if chr(b) in pre_tokenizers.ByteLevel.alphabet()]
    others = [b for b in range(256) if b not in printable]
    byte_of = {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    end = vocab.pop("<|endoftext|>")
    ranks = {bytes(byte_of[letter] for letter in raw): token_id for raw, token_id in vocab.items()}
    cut = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    return tiktoken.Encoding(
        "gpt2-here", pat_str=cut, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": end}
    )


def tekken_file(folder):
    """A Tekken JSON file with 20 special tokens, all bytes, ` a` and an Arabic digit."""
    texts = [bytes([byte]) for byte in range(256)] + [b" a", "٣".encode()]
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(text).decode(), "token_str": None}
        for rank, text in enumerate(texts)
    ]
    config = {
        "pattern": CUT_OF_QWEN,
        "num_vocab_tokens": len(texts),
        "default_vocab_size": len(texts) + 20,
        "default_num_special_tokens": 20,
        "version": "v3",
    }
    path = folder / "tekken.json"
    path.write_text(json.dumps({"config": config, "vocab": vocab}), encoding="utf-8")
    return path


def sentence_piece_file(folder, split_digits=True):
    """A SentencePiece model, trained here, with byte fallback; it adds a space before a text."""
    import sentencepiece

    path = folder / "tokenizer.model.v1"
    sentences = [f"the answer is {n}, or {n / 7:.2f} in {1900 + n % 130}." for n in range(0, 2000, 3)]
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=file,
            model_type="bpe",
            vocab_size=340,
            hard_vocab_limit=False,
            split_digits=split_digits,
            byte_fallback=True,
            num_threads=1,
            minloglevel=2,
        )
    return path
