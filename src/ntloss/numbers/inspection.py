"""How a tokenizer writes numbers, and what to train with: `ntloss inspect`."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ntloss.numbers.grammar import count_digits
from ntloss.numbers.vocabulary import (
    LONG_NUMBER,
    TOKENS,
    NumberVocabulary,
    choose_tokens,
    missing_digits,
    writings_of,
)

SENTENCE = "The answer is 42, or 3.14 in 2019."
_BATCH = 1000  # texts; encodings take some fifty times the memory of their texts
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
        notes: further findings, a sentence each.
    """

    tokenizer: str
    vocab_size: int
    verdict: str
    tokens: str
    writes: tuple[str, ...]
    number_tokens: Mapping[str, int]
    coverage: Mapping[str, float | None]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        lines = [self.verdict, f"{self.tokenizer}, {self.vocab_size:,} tokens:"]
        for tokens in TOKENS:
            share = self.coverage[tokens]
            covered = "" if share is None else f", {share:.1%} of the text's digits"
            chosen = "  (chosen)" if tokens == self.tokens else ""
            lines.append(f"  {tokens:<8}{self.number_tokens[tokens]:>6,} tokens{covered}{chosen}")
        return "\n".join([*lines, *self.notes])


def inspect_tokenizer(tokenizer: Any, texts: str | Iterable[str] = SENTENCE) -> Inspection:
    """Report how a tokenizer writes numbers, without changing it.

    Args:
        tokenizer: see `NumberVocabulary.from_tokenizer`.
        texts: a text, or several, like the model's training data. Default: a sentence with nine digits.

    Returns:
        The findings.

    Raises:
        TypeError: `tokenizer` is not a tokenizer, or the texts are not texts.
        ValueError: none of its tokens is a number, or the texts are empty or cannot be encoded.

    Example:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> from transformers import PreTrainedTokenizerFast
        >>> vocab = {text: i for i, text in enumerate(["?", *"0123456789"])}
        >>> backend = Tokenizer(models.WordLevel(vocab, "?"))
        >>> backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        >>> print(inspect_tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="?")).verdict)
        Numbers are written digit by digit. Train with HLGauss.for_answers(answers); crps and ntl_was work.
    """
    texts = [texts] if isinstance(texts, str) else list(texts)
    if odd := [text for text in texts if not isinstance(text, str)]:
        raise TypeError(f"texts: expected a text, or a list of texts, given {odd[0]!r:.100}")
    if not any(text.strip() for text in texts):
        raise ValueError("texts: all are empty; expected a text like the model's training data, or several")
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, "numbers")
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
    used: Counter[int] = Counter()
    for start in range(0, len(texts), _BATCH):
        used.update(itertools.chain.from_iterable(known.encode(texts[start : start + _BATCH])))
    covered = {
        name: sum(used[token.token_id] * count_digits(token.text) for token in some)
        for name, some in sets.items()
    }
    # A tokenizer may normalize `４²` to `42`, and tokens then have more digits than the texts.
    of_tokens = sum(n * count_digits(known.decoded.get(token_id, "")) for token_id, n in used.items())
    digits = max(of_tokens, sum(map(count_digits, texts)))
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
        notes=tuple(notes),
    )
