"""One tokenization for every objective: each digit of a number is a token of its own.

T5's own tokenizer writes `▁42` and `2019` as one token each; a loss on digits would see almost none of
them.
"""

from __future__ import annotations

import copy
import string
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ntl.errors import UserError

# Every kind of place that a number has in a text of the tasks: start, end, after a sign, a bracket, a point.
PROBES = ("0123456789", "Evaluate -1520 - -1524 - (0 + 2 - 1 - -36).", "12 7 45", "-3.14", "90")


def load_tokenizer(folder: str | Path | None) -> PreTrainedTokenizerFast:
    """The tokenizer of a comparison.

    Args:
        folder: A folder with a T5 tokenizer, whose numbers are then split into digits; None for the small
            tokenizer that ships with the lab.

    Returns:
        A tokenizer that writes every digit as its own bare token, and decodes what it encodes.

    Raises:
        UserError: The folder holds no tokenizer, or one that cannot be made to split digits.
    """
    if folder is None:
        return character_tokenizer()
    if not Path(folder).is_dir():
        raise UserError(
            f"tokenizer={folder} is no folder; expected one with T5's tokenizer.json or spiece.model. "
            "Correct it, or leave it out: a small tokenizer ships with the lab."
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # transformers raises many kinds here, and all mean the same to the user
        raise UserError(
            f"tokenizer={folder} cannot be loaded ({str(error).splitlines()[0]}); expected a folder with "
            "T5's tokenizer.json or spiece.model. Correct it, or leave it out."
        ) from error
    return split_digits(tokenizer)


def split_digits(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """A copy of a tokenizer that writes every digit as a token of its own.

    Args:
        tokenizer: A fast tokenizer; it is not changed.

    Returns:
        The copy. Its vocabulary is the same: `42` becomes `4` and `2`, which T5 has already.

    Raises:
        UserError: It is no fast tokenizer, or the copy does not write the ten digits as ten tokens, or does
            not decode what it encodes.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(
            f"the tokenizer is a {type(tokenizer).__name__}; expected a fast one (with a tokenizer.json), "
            "because digits are split by its pre-tokenizer. Save it with save_pretrained from a fast "
            "tokenizer first."
        )
    tokenizer = copy.deepcopy(tokenizer)
    backend = tokenizer.backend_tokenizer
    digits = pre_tokenizers.Digits(individual_digits=True)
    before = [backend.pre_tokenizer] if backend.pre_tokenizer is not None else []
    backend.pre_tokenizer = pre_tokenizers.Sequence([*before, digits])
    _check(tokenizer)
    return tokenizer


def character_tokenizer() -> PreTrainedTokenizerFast:
    """The small tokenizer that ships with the lab: printable ASCII, one token per character.

    It keeps T5's conventions: pad 0, end 1, unknown 2, `▁` for a space, and the end token after each text.
    Only the `▁` that T5 puts in front of every text is left out: it would cost the decoder a step per
    number.

    Returns:
        A tokenizer with 98 tokens.
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
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    _check(tokenizer)
    return tokenizer


def _check(tokenizer: PreTrainedTokenizerFast) -> None:
    digits = set(tokenizer.convert_tokens_to_ids(list(string.digits)))
    for text in PROBES:
        ids = tokenizer(text)["input_ids"]
        seen, expected = sum(i in digits for i in ids), sum(c in string.digits for c in text)
        decoded = tokenizer.decode(ids, skip_special_tokens=True)
        if len(digits) != 10 or tokenizer.unk_token_id in digits or seen != expected:
            raise UserError(
                f"the tokenizer writes {seen} of the {expected} digits in {text!r} as digit tokens; "
                "expected all. Use one with the ten tokens 0 to 9, as T5's."
            )
        if decoded != text:
            raise UserError(
                f"the tokenizer decodes {text!r} as {decoded!r}; expected the same text. Use one that keeps "
                "text as it is, as T5's."
            )
    if tokenizer.pad_token_id is None or tokenizer(text)["input_ids"][-1] != tokenizer.eos_token_id:
        raise UserError(
            "the tokenizer has no padding token, or writes no end token behind a text; expected both, as "
            "T5's does. Use a T5 tokenizer."
        )
