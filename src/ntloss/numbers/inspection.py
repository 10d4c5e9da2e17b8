"""How a tokenizer writes numbers, and what to train with: `ntloss inspect`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ntloss.numbers.grammar import check_thousands
from ntloss.numbers.parsing import parse_numbers
from ntloss.numbers.texts import as_texts, texts_of_tokenizer
from ntloss.numbers.vocabulary import (
    LONG_NUMBER,
    TOKENS,
    choose_tokens,
    count_digits_of,
    find_number_tokens,
    make_vocabulary,
    missing_digits,
    numbers_in_groups,
    writing_of,
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
    check_thousands(thousands)
    texts = as_texts(texts)
    if not any(text.strip() for text in texts):
        raise ValueError("the text is empty. Expected a text like the model's training data.")
    known = texts_of_tokenizer(tokenizer)
    numbers = find_number_tokens(known)
    make_vocabulary(known, numbers, known.vocab_size)  # an error if there are none
    sets = {"digits": [token for token in numbers if token.is_digit], "numbers": numbers}
    tokens, writes = choose_tokens(known, numbers), writing_of(known)
    used, digits = known.count(texts)
    covered = {name: count_digits_of(some, used) for name, some in sets.items()}
    if tokens == "digits":
        how = "Numbers are written digit by digit."
    elif missing := missing_digits(numbers):
        how = f"There is no token for {', '.join(missing)}; {len(numbers):,} tokens are numbers."
    else:
        how = _groups(known, writes, len(numbers))
    notes = []
    if not digits:
        notes.append("The text has no digit 0 to 9.")
    elif covered[tokens] < _ENOUGH * digits:
        unseen = digits - covered[tokens]
        notes.append(
            f"{unseen:,} of the text's {digits:,} digits are in tokens that are no numbers, or unknown: a "
            "number token loss does not see them."
        )
    return Inspection(
        tokenizer=type(tokenizer).__name__,
        vocab_size=known.vocab_size,
        verdict=f"{how} {_CRITERIA[tokens]}",
        tokens=tokens,
        writes=tuple(writes),
        number_tokens={name: len(some) for name, some in sets.items()},
        coverage={name: count / digits if digits else None for name, count in covered.items()},
        reads={text: tuple(parse_numbers(text, thousands)) for text in LISTS},
        notes=(*notes, *_note_on_spaces(known, writes)),
    )


def _groups(known: Any, writes: list[str], count: int) -> str:
    """Say in which groups numbers are written, by the number that shows it."""
    number, written = next(numbers_in_groups(known), (LONG_NUMBER, []))
    if not written:
        return f"Numbers of several digits are written in none of the {count:,} tokens that are numbers."
    groups = f"{number} is {_joined(written)}" if len(written) > 1 else f"{number} is one token"
    if number == LONG_NUMBER:
        return f"Numbers are written in groups of digits: {groups}."
    if not writes:
        return f"Some numbers are tokens: {groups}, but {LONG_NUMBER} is unknown."
    return f"Some numbers are written in groups of digits: {groups}, but {LONG_NUMBER} is {_joined(writes)}."


def _joined(texts: list[str]) -> str:
    return "|".join(text.strip() for text in texts)


def _note_on_spaces(known: Any, writes: list[str]) -> list[str]:
    """Say so if adjacent numbers have the tokens of one number."""
    spaced = " ".join(writes).removeprefix(" ")
    if "".join(writes).removeprefix(" ") == LONG_NUMBER != spaced:
        one, several = known.encode([LONG_NUMBER, spaced])
        if list(one) == list(several):
            return [
                f"The tokenizer cannot tell {LONG_NUMBER!r} from {spaced!r}: both have the same ids. "
                "Separate numbers by more than a space, such as a comma."
            ]
    return []
