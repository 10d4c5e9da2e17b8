"""How a tokenizer writes numbers, and what to train with: `ntloss inspect`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ntloss.numbers.parsing import parse_numbers
from ntloss.numbers.texts import as_texts
from ntloss.numbers.vocabulary import (
    LONG_NUMBER,
    TOKENS,
    NumberVocabulary,
    choose_tokens,
    count_digits_of,
    missing_digits,
    writings_of,
)

SENTENCE = "The answer is 42, or 3.14 in 2019."
LISTS = ("1,234", "(1,234)", "[120,340]")
_ENOUGH = 0.95  # of a text's digits
_CRITERIA = {
    "digits": "Train with HLGauss.for_answers(answers); crps and ntl_was work.",
    "numbers": "Train with HLGauss.for_answers(answers), which knows the place of a token's digits: ntl_was, "
    "ntl_mse and crps are in units of the tokens' values, and would outweigh cross-entropy.",
}


@dataclass(frozen=True)
class Inspection:
    """The findings of `inspect_tokenizer`; `str` makes the report of `ntloss inspect`.

    Args:
        tokenizer: name of its class.
        vocab_size: its largest token id plus 1.
        verdict: how it writes numbers and what to train with, in words.
        tokens: what `NumberVocabulary.from_tokenizer` chooses by itself, "digits" or "numbers".
        writes: the tokens' texts in which it writes 1234567.
        number_tokens: how many tokens are digits, and how many are numbers.
        coverage: the share of the text's digits that are in tokens of each kind; None without digits.
        reads: texts in which a comma may group thousands or separate numbers, with their numbers.
        notes: further findings, a sentence each.
    """

    tokenizer: str
    vocab_size: int
    verdict: str
    tokens: str
    writes: tuple[str, ...]
    number_tokens: Mapping[str, int]
    coverage: Mapping[str, float | None]
    reads: Mapping[str, tuple[float, ...]]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        lines = [self.verdict, f"{self.tokenizer}, {self.vocab_size:,} tokens:"]
        for tokens in TOKENS:
            share = self.coverage[tokens]
            covered = "" if share is None else f", {share:.1%} of the text's digits"
            chosen = "  (chosen)" if tokens == self.tokens else ""
            lines.append(f"  {tokens:<8}{self.number_tokens[tokens]:>6,} tokens{covered}{chosen}")
        read = [f"{text} as {' and '.join(f'{x:.15g}' for x in found)}" for text, found in self.reads.items()]
        lines.append(f"Reads {', '.join(read)}; the option thousands changes this.")
        return "\n".join([*lines, *self.notes])


def inspect_tokenizer(
    tokenizer: Any, texts: str | Iterable[str] = SENTENCE, *, thousands: str | None = None
) -> Inspection:
    """Report how a tokenizer writes numbers, without changing it.

    Args:
        tokenizer: see `NumberVocabulary.from_tokenizer`.
        texts: a text, or several. Default: a sentence with nine digits.
        thousands: the separator of thousands, see `parse_numbers`. Default: each text decides.

    Returns:
        The findings.

    Raises:
        TypeError: `tokenizer` is not a tokenizer, or the texts are not texts.
        ValueError: none of its tokens is a number, the texts are empty or cannot be encoded, or `thousands`
            is no separator.

    Example:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> from transformers import PreTrainedTokenizerFast
        >>> vocab = {text: i for i, text in enumerate(["?", *"0123456789"])}
        >>> backend = Tokenizer(models.WordLevel(vocab, "?"))
        >>> backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        >>> print(inspect_tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="?")).verdict)
        Numbers are written digit by digit. Train with HLGauss.for_answers(answers); crps and ntl_was work.
    """
    texts = as_texts(texts)
    if not any(text.strip() for text in texts):
        raise ValueError("the text is empty. Expected a text like the model's training data.")
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, "numbers", thousands=thousands)
    known, numbers = vocabulary._texts, vocabulary.tokens
    sets = {"digits": [token for token in numbers if token.is_digit], "numbers": numbers}
    written = writings_of(known)
    tokens = choose_tokens(written, numbers)
    groups = [number for number, pieces in written.items() if max(map(len, pieces), default=1) > 1]
    if tokens == "digits":
        how = "Numbers are written digit by digit."
    elif missing := missing_digits(numbers):
        how = f"There is no token for {', '.join(missing)}; {len(numbers):,} tokens are numbers."
    elif not groups:
        how = f"Numbers of several digits are in none of the {len(numbers):,} tokens that are numbers."
    else:
        numbers_shown = dict.fromkeys([groups[0], LONG_NUMBER])
        shown = [f"{number} is {'|'.join(written[number]) or 'unknown'}" for number in numbers_shown]
        how = f"Numbers are written in groups of digits: {', but '.join(shown)}."
    used, digits = known.count(texts)
    covered = {name: count_digits_of(some, used) for name, some in sets.items()}
    notes = []
    if not digits:
        notes.append("The text has no digit 0 to 9.")
    elif covered[tokens] < _ENOUGH * digits:
        unseen = digits - covered[tokens]
        notes.append(
            f"{unseen:,} of the text's {digits:,} digits are in tokens that are no numbers, or unknown: a "
            "number token loss does not see them."
        )
    spaced = " ".join(written[LONG_NUMBER])
    if spaced != LONG_NUMBER and spaced.replace(" ", "") == LONG_NUMBER:
        one, several = map(list, known.encode([LONG_NUMBER, spaced]))
        if one == several:
            notes.append(
                f"The tokenizer cannot tell {LONG_NUMBER!r} from {spaced!r}: both have the same ids. "
                "Separate numbers by more than a space, such as a comma."
            )
    return Inspection(
        tokenizer=type(tokenizer).__name__,
        vocab_size=known.vocab_size,
        verdict=f"{how} {_CRITERIA[tokens]}",
        tokens=tokens,
        writes=tuple(written[LONG_NUMBER]),
        number_tokens={name: len(some) for name, some in sets.items()},
        coverage={name: count / digits if digits else None for name, count in covered.items()},
        reads={text: tuple(parse_numbers(text, thousands)) for text in LISTS},
        notes=tuple(notes),
    )
