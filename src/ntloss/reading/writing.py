"""The tokens that matter for a number which a model is writing, as the grammar says.

A model may write a space, a currency sign, a sign, digits with separators, an exponent, and what makes the
number larger (`67 million`) or a part of another (`1/2`). A reading follows a text as long as further
characters may change its number (`ntloss.numbers.grammar.read_prefix`).
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ntloss.numbers.alphabet import POINT, with_ascii_sign
from ntloss.numbers.grammar import Prefix, ends_in_currency, length_of_prefix, read_prefix
from ntloss.numbers.lists import thousands_at
from ntloss.numbers.pieces import characters
from ntloss.numbers.vocabulary import NumberVocabulary
from ntloss.reading.torch_model import Continuations

_PART = re.compile("[\udc80-\udcff]+$")
_MONEY = "$"  # stands for all currencies
_LETTER = "qq"  # begins no word of a number, as `q` does; stands for all letters


class Before(NamedTuple):
    """What the text before a number decides of it.

    Args:
        thousands: the separator of thousands, see `parse_numbers`. Default: None, the number decides.
        money: whether the text ends in a sign of a currency, after which `5m` is 5 million. Default: False.
    """

    thousands: str | None = None
    money: bool = False

    @classmethod
    def of(cls, text: str, thousands: str | None) -> Before:
        """Find what a text decides of the number after it, given the separator of thousands in the text."""
        return cls(thousands_at(text, len(text), thousands), ends_in_currency(text))


class Options:
    """What may follow the text of a number: the tokens that matter, any letter, and the end, all else.

    A token matters if the text stays open, or if it changes the number (a `.5`, or `3.` before other text). A
    letter can, too: `1e3` followed by one has no exponent. Options are in the order of the numbers that they
    lead to, as far as these have one length.

    Args:
        vocabulary: the tokens.
        before: what stands before the text.
        device: where the results are.
    """

    def __init__(self, vocabulary: NumberVocabulary, before: Before, device: torch.device) -> None:
        self.before = before
        self.read = functools.lru_cache(maxsize=2**15)(functools.partial(read_begun, before=before))
        tokens = [*vocabulary.pieces.items(), *vocabulary.parts.items()]
        pieces = sorted(tokens, key=lambda piece: _place(piece[1]))
        self.token_ids = torch.tensor([i for i, _ in pieces], device=device)
        self.texts = [*(text for _, text in pieces), _LETTER]
        self._patterns = tuple(re.sub("[1-9]", "1", text) for text in self.texts)
        self.written = [text.encode("utf-8", "surrogateescape") for text in self.texts]
        letters = [i for i in vocabulary.letter_ids if i not in vocabulary.pieces]
        self._letter_ids = torch.tensor(letters, dtype=torch.int64, device=device)

    def allowed(self, text: str) -> Tensor:
        """Return which options matter after a text, `[tokens + 1]`, bool; the letter is the last."""
        return self._after(text)[0]

    def _after(self, text: str) -> tuple[Tensor, Tensor]:
        """Return which options matter after a text, and which of these keep its number, but open."""
        # Which digits were written makes no difference, except a zero in front; which follow, except zeros.
        key = re.sub("(?<=[0-9])[0-9]", "0", re.sub("[1-9]", "1", text))
        return _options_after(key, self._patterns, self.before)

    def length(self, text: str) -> int:
        """Return how many characters of a text its number takes, with what stands before it."""
        thousands, money = self.before
        if money and (length := length_of_prefix(_MONEY + text, thousands)):
            return length - len(_MONEY)
        return length_of_prefix(text, thousands)

    def shares(self, last: Continuations, nodes: Tensor, allowed: Tensor) -> Tensor:
        """Return the probabilities of the allowed options after some texts, `[texts, options]`.

        `nodes` are the rows of the model's last pass that the texts belong to.
        """
        # Most options matter after few texts, and some servers return only few tokens a request.
        asked = allowed[:, :-1].any(0).nonzero()[:, 0]
        shares = torch.zeros(allowed.shape, dtype=torch.float64, device=allowed.device)
        if len(asked):
            shares[:, asked] = last.next_tokens(self.token_ids[asked]).exp()[nodes]
        if bool(allowed[:, -1].any()):
            shares[:, -1] = last.next_tokens(self._letter_ids).exp().sum(-1)[nodes]
        return torch.where(allowed, shares, 0)

    def further(self, last: Continuations, nodes: Tensor, texts: list[str]) -> tuple[Tensor, Tensor]:
        """Return the probability that each text's number goes on at once, and that it may after one option.

        Both are `[texts, options]`; `nodes` are the rows of the last pass that the texts belong to.
        """
        after = [self._after(text) for text in texts]
        allowed, unchanged = (torch.stack(column).to(last.device) for column in zip(*after, strict=True))
        shares = self.shares(last, nodes, allowed)
        return torch.where(unchanged, 0, shares), torch.where(unchanged, shares, 0)


@functools.lru_cache(
    maxsize=2**11
)  # most of the time of reading a number, and the same for all of its models
def _options_after(text: str, options: tuple[str, ...], before: Before) -> tuple[Tensor, Tensor]:
    """Return which options matter after a text, and which of these keep its number, but open."""
    now = read_begun(text, before)
    found = {option: read_begun(text + option, before) for option in dict.fromkeys(options)}
    changes = torch.tensor([found[option][:2] != now[:2] for option in options])
    matters = torch.tensor([found[option].open for option in options]) | changes
    return matters, matters & ~changes


_of_vocabulary: WeakKeyDictionary[NumberVocabulary, dict[tuple[Before, torch.device], Options]] = (
    WeakKeyDictionary()
)


def options_of(vocabulary: NumberVocabulary, before: Before, device: torch.device) -> Options:
    """Return the options of a vocabulary, made once on each device.

    Without a separator of thousands before the number, the vocabulary's is used.
    """
    if before.thousands is None:
        before = before._replace(thousands=vocabulary.thousands)
    made = _of_vocabulary.setdefault(vocabulary, {})
    if (before, device) not in made:
        made[before, device] = Options(vocabulary, before, device)
    return made[before, device]


def read_begun(text: str, before: Before) -> Prefix:
    """Read a text that may end in a part of a character, whose bytes are surrogates; see `read_prefix`.

    Of money, the sign of a currency stands before it, unless the text cannot continue one (`\\$5`).
    """
    thousands, money = before
    if money and (amount := read_begun(_MONEY + text, Before(thousands))).value is not None:
        return amount
    if text.isascii():
        return read_prefix(text, thousands)
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    whole = _PART.sub("", text)
    now = read_prefix(whole, thousands)
    if whole == text:
        return now
    possible = _characters_from(text[len(whole) :].encode("utf-8", "surrogateescape"))
    then = [read_prefix(whole + character, thousands) for character in possible]
    return Prefix(now.value, now.joined, any(each.open or each[:2] != now[:2] for each in then))


@functools.cache
def _characters_from(begun: bytes) -> tuple[str, ...]:
    """Return the characters of numbers, but ASCII ones, whose UTF-8 begins with these bytes."""
    return tuple(c for c in characters() if not c.isascii() and c.encode().startswith(begun))


def _place(piece: str) -> tuple[int, float]:
    """Return the place of a token among the options, in the order of the numbers that it begins."""
    text = with_ascii_sign(piece.strip())
    number = read_prefix(text, "").value
    if text.startswith("-"):
        return 0, number or 0.0
    if text.startswith(POINT):
        return 1, number or 0.0
    return (3, 0.0) if number is None or text[0] == "," else (2, number)
