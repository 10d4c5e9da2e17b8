"""The tokens that matter for a number which a model is writing, as the grammar says.

A model may write a space, a currency sign, a sign, digits with separators, an exponent, and what makes the
number larger (`67 million`) or a part of another (`1/2`). A reading follows a text as long as further
characters may change its number (`ntloss.numbers.grammar.NumberReader`).
"""

from __future__ import annotations

import functools
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ntloss.numbers.grammar import POINT, NumberReader, simplify, value_of_token, with_ascii_sign
from ntloss.numbers.vocabulary import NumberVocabulary
from ntloss.reading.torch_model import Continuations

_LETTER = "qq"  # begins no word of a number, as `q` does; stands for all letters


class Options:
    """What may follow the text of a number: the tokens that matter, any letter, and the end, all else.

    After `12`, a model may write a token that changes the number or keeps it open (a column each), a letter
    (one column for all), or anything else, which ends it (one minus the sum). A letter matters where it takes
    something back: `1e3` followed by one has no exponent. Options are in the order of the numbers that they
    lead to, as far as these have one length.

    Args:
        vocabulary: the tokens.
        reader: reads the text, given what stands before it.
        device: where the results are.
    """

    def __init__(self, vocabulary: NumberVocabulary, reader: NumberReader, device: torch.device) -> None:
        self.reader = reader
        self.read = functools.lru_cache(maxsize=2**15)(reader.read)
        pieces = sorted(vocabulary.pieces.items(), key=lambda piece: _place(piece[1]))
        self.token_ids = torch.tensor([i for i, _ in pieces], device=device)
        self.texts = [*(text for _, text in pieces), _LETTER]
        self._patterns = tuple(map(simplify, self.texts))
        self.written = [text.encode("utf-8", "surrogateescape") for text in self.texts]
        letters = [i for i in vocabulary.letter_ids if i not in vocabulary.pieces]
        self._letter_ids = torch.tensor(letters, dtype=torch.int64, device=device)

    def allowed(self, text: str) -> Tensor:
        """Return which options matter after a text, `[tokens + 1]`, bool; the letter is the last."""
        return self._after(text)[0]

    def _after(self, text: str) -> tuple[Tensor, Tensor]:
        """Return which options matter after a text, and which of these keep its number, but open."""
        return _options_after(self.reader.state(text), self._patterns, self.reader)

    def shares(self, last: Continuations, nodes: Tensor, allowed: Tensor) -> Tensor:
        """Return the probabilities of the allowed options after some texts, `[texts, options]`.

        `nodes` are the rows of the model's last pass that the texts belong to.
        """
        # Most options matter after few texts, and some servers return only few tokens a request.
        asked = allowed[:, :-1].any(0).nonzero()[:, 0]
        shares = torch.zeros(allowed.shape, dtype=torch.float64, device=allowed.device)
        letters = self._letter_ids[: None if bool(allowed[:, -1].any()) else 0]
        if len(asked) or len(letters):
            found = last.next_tokens(torch.cat([self.token_ids[asked], letters])).exp()
            shares[:, asked] = found[nodes, : len(asked)]
            shares[:, -1] = found[:, len(asked) :].sum(-1)[nodes]
        return torch.where(allowed, shares, 0)

    def further(self, last: Continuations, nodes: Tensor, texts: list[str]) -> tuple[Tensor, Tensor]:
        """Return the probability that each text's number goes on at once, and that it may after one option.

        Both are `[texts, options]`; `nodes` are the rows of the last pass that the texts belong to.
        """
        after = [self._after(text) for text in texts]
        allowed, unchanged = (torch.stack(column).to(last.device) for column in zip(*after, strict=True))
        shares = self.shares(last, nodes, allowed)
        return torch.where(unchanged, 0, shares), torch.where(unchanged, shares, 0)


@functools.lru_cache(maxsize=2**12)
def _options_after(state: str, options: tuple[str, ...], reader: NumberReader) -> tuple[Tensor, Tensor]:
    """Return which options matter after a state, and which of these keep its number, but open."""
    now = reader.read(state)
    after = functools.cache(lambda text: reader.read(state + text))

    def matters(option: str) -> tuple[bool, bool]:
        """Return whether an option matters, and whether it keeps the number, but open."""
        for n in range(1, len(option) + 1):
            read = after(option[:n])
            if not read.open:  # what begins with an end of the number ends it
                break
        kept = read[:2] == now[:2]
        return read.open or not kept, read.open and kept

    found = {option: matters(option) for option in dict.fromkeys(options)}
    matter, kept = torch.tensor([found[option] for option in options]).unbind(-1)
    return matter, kept


_of_vocabulary: WeakKeyDictionary[NumberVocabulary, dict[tuple[NumberReader, torch.device], Options]] = (
    WeakKeyDictionary()
)


def options_of(vocabulary: NumberVocabulary, reader: NumberReader, device: torch.device) -> Options:
    """Return the options of a vocabulary, made once on each device.

    Without a separator of thousands before the number, the vocabulary's is used.
    """
    if reader.thousands is None:
        reader = reader._replace(thousands=vocabulary.thousands)
    made = _of_vocabulary.setdefault(vocabulary, {})
    if (reader, device) not in made:
        made[reader, device] = Options(vocabulary, reader, device)
    return made[reader, device]


def _place(piece: str) -> tuple[int, float]:
    """Return the place of a token among the options, in the order of the numbers that it begins."""
    text = with_ascii_sign(piece.strip())
    number = value_of_token(text)
    if text.startswith("-"):
        return 0, -(number or 0.0)
    if text.startswith(POINT):
        return 1, number or 0.0
    return (3, 0.0) if number is None else (2, number)
