"""Digits as tokens: each digit of a number is one token.

T5's own tokenizer encodes `▁42` and `2019` as one token each, so a loss on digit tokens would miss most
digits.
"""

import copy
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ntl.encodings.locate import TOKENIZERS, loading, locate
from ntl.errors import UserError

# Numbers in all positions that occur in the tasks: at the start, at the end, after a sign, bracket or point.
PROBES = ("0123456789", "Evaluate -1520 - -1524 - (0 + 2 - 1 - -36).", "12 7 45", "-3.14", "90")


@dataclass(eq=False)
class TextEncoding:
    """Encodes texts with a tokenizer, unchanged.

    Args:
        tokenizer: Any fast tokenizer, such as one from `split_digits` that makes each digit one token.
    """

    tokenizer: PreTrainedTokenizerFast

    def encode(self, texts: Sequence[str], special_tokens: bool = True) -> list[list[int]]:
        """Turn texts into one list of ids each, by default with special tokens such as the end token."""
        if not texts:
            return []
        encoded = self.tokenizer(
            list(texts), add_special_tokens=special_tokens, return_attention_mask=False, verbose=False
        )
        return encoded["input_ids"]

    def decode(self, rows: list[list[int]]) -> list[str]:
        """Turn lists of token ids into texts, without special tokens."""
        return self.tokenizer.batch_decode(rows, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def load_tokenizer(name: str | Path | None, key: str = "tokenizer") -> PreTrainedTokenizerFast:
    """Load a tokenizer.

    Args:
        name: A folder or a name on the hub. None loads the small tokenizer that ships with the lab.
        key: The user's name for this setting, used in error messages.

    Returns:
        The tokenizer, unchanged.
    """
    if name is None:
        return character_tokenizer()
    folder = Path(name).expanduser()
    if folder.is_dir() and not any((folder / file).exists() for file in TOKENIZERS):
        # transformers would build an empty tokenizer from the model's configuration.
        raise UserError(
            f"{key}={name} holds no tokenizer; expected one of the files {', '.join(TOKENIZERS)}. Correct "
            "it, or name another folder for the tokenizer."
        )
    with loading(key, name, "a folder with tokenizer.json or spiece.model, or a name on the hub"):
        tokenizer: Any = AutoTokenizer.from_pretrained(locate(name, TOKENIZERS), trust_remote_code=False)
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(f"{key}={name} is a {type(tokenizer).__name__}; expected one with a tokenizer.json.")
    return tokenizer


def split_digits(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """Copy a tokenizer and make the copy encode every digit as one token.

    Args:
        tokenizer: A fast tokenizer, SentencePiece or byte-level; it is not changed.

    Returns:
        The copy, with the same vocabulary. It encodes `42` as the tokens `4` and `2`, which the vocabularies
        of T5 and GPT-2 already contain. It is a plain fast tokenizer, because `T5Tokenizer` forgets the
        splitting when it is saved and loaded.

    Raises:
        UserError: The copy does not encode each digit as one token, or decodes a text differently.
    """
    backend = copy.deepcopy(tokenizer.backend_tokenizer)
    # ASCII only, and last: a byte-level tokenizer represents bytes of other scripts by characters such as ².
    digits = pre_tokenizers.Split(Regex("[0-9]"), "isolated")
    before = [backend.pre_tokenizer] if backend.pre_tokenizer is not None else []
    backend.pre_tokenizer = pre_tokenizers.Sequence([*before, digits])
    copied = {
        name: getattr(tokenizer, name) for name in ("model_max_length", "padding_side", "truncation_side")
    }
    split = PreTrainedTokenizerFast(tokenizer_object=backend, **copied, **tokenizer.special_tokens_map)
    split.chat_template = tokenizer.chat_template
    ids_of_digits: Any = split.convert_tokens_to_ids([*string.digits])
    digits_known = {*ids_of_digits}
    for text in PROBES:
        ids = split(text)["input_ids"]
        seen, expected = sum(i in digits_known for i in ids), sum(c in string.digits for c in text)
        decoded = split.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        is_split = len(digits_known) == 10 and split.unk_token_id not in digits_known and seen == expected
        if not is_split or decoded != text:
            raise UserError(
                f"the tokenizer encodes {seen} of the {expected} digits in {text!r} as digit tokens, and "
                f"decodes the text as {decoded!r}; expected all, and the same text. Use one with the ten "
                "tokens 0 to 9, such as T5's."
            )
    return split


def character_tokenizer() -> PreTrainedTokenizerFast:
    """Make the small tokenizer that ships with the lab: printable ASCII, one token per character, 98 tokens.

    It follows T5's conventions: pad 0, end 1, unknown 2, `▁` for a space, and the end token after each text.
    Unlike T5's, it adds no `▁` in front of a text, which would cost the decoder one step per number.
    """
    characters = [c for c in string.printable[:95] if c != " "]
    vocabulary = {t: i for i, t in enumerate(["<pad>", "</s>", "<unk>", "▁", *characters])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(prepend_scheme="never", split=False),
            pre_tokenizers.Split(Regex("."), "isolated"),
        ]
    )
    backend.decoder = decoders.Metaspace(prepend_scheme="never")
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
