"""Small tokenizers of T5's and GPT-2's kinds, built here so that nothing is downloaded."""

import functools
import string
import tempfile

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast, T5Tokenizer

WORDS = (
    "what", "is", "the", "value", "of", "in", "it", "was", "and", "a", "number", "sum", "answer", "evaluate",
    "calculate",
)  # fmt: skip
END = "<|endoftext|>"


@functools.cache
def tokenizer_like(kind):
    """Return the folder of a tokenizer: of the kind `t5`, SentencePiece, or `gpt2`, byte-level."""
    folder = tempfile.mkdtemp(prefix=kind)
    {"t5": t5, "gpt2": gpt2}[kind]().save_pretrained(folder)
    return folder


def t5():
    """Pieces of words and of numbers with up to four digits, some after a space, and single characters."""
    numbers = [*map(str, range(10, 200)), "00", "000", "2019", "1520", "1524"]
    pieces = [*WORDS, *map(str.capitalize, WORDS), *numbers]
    pieces += [f"▁{piece}" for piece in (*pieces, *string.digits, "+")]  # T5's has ▁+, and no ▁-
    single = ["▁", *(c for c in string.printable[:95] if c != " ")]
    scored = [(piece, -1.0) for piece in pieces] + [(piece, -3.0) for piece in single]
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -20.0)]
    return T5Tokenizer(vocab=[*special, *scored], extra_ids=2)


def gpt2():
    """Merges of the bytes of words and numbers, some after a space."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    words = [*WORDS, *map(str.capitalize, WORDS), *map(str, range(10, 200)), "000", "2019", "1520", "-1524"]
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[END],
        show_progress=False,
    )
    tokenizer.train_from_iterator([f"{word} {word}" for word in words] * 2, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END, eos_token=END, unk_token=END)
