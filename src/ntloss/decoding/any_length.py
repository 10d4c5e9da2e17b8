r"""A sample of the numbers of any length that a model writes, from walks at stratified points.

Each walk starts with a point of [0, 1). At each token it takes the option at which the cumulative probability
crosses the remaining point, $r \leftarrow (r - F_{before}) / p$, so that a uniform point makes a fair sample.
The options are in the order of the numbers, as far as these have one length: a point is then close to the
quantile that it stands for, and stratified points leave far less noise than independent ones.

The walks of a question share the passes over equal prefixes. A walk is masked only before the first digit, to
what may lead to a number; the probability of that is its weight.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

import torch
from torch import Tensor

from ntloss.decoding.fixed_width import choose
from ntloss.decoding.models import Continuations, advance
from ntloss.numbers.format import NumberFormat
from ntloss.numbers.grammar import DIGITS, POINT, count_digits, read_prefix, with_ascii_sign
from ntloss.numbers.vocabulary import NumberVocabulary

_NEGATIVE = re.compile(f"[^{DIGITS}]*-")
_LETTER = "q"  # stands for all that begin no word of numbers


class Sample(NamedTuple):
    """The numbers of some walks; all `[walks]`."""

    numbers: Tensor  # float64, NaN if it has too many digits, or the model rules out every number
    weights: Tensor  # float64, the probability that the walk's number starts
    cut_off: Tensor  # bool, whether thousands follow that the format does not read
    unknown: Tensor  # bool, whether it goes on with tokens that a server did not return


def walk(
    root: Continuations,
    vocabulary: NumberVocabulary,
    numbers: NumberFormat,
    questions: Tensor,
    points: Tensor,
) -> Sample:
    """Walk from each of the `points`, `[walks]`, until the number that it writes has ended.

    `questions`, `[walks]`, are the rows of `root` that the walks continue.
    """
    device = root.device
    # Without separators, walks go on after a comma to see whether thousands follow that are not read.
    separator = numbers.thousands or (None if numbers.thousands is None else ",")
    options, texts = _Options(vocabulary, separator, device), [""] * len(points)
    weights, remaining = torch.ones_like(points), points
    unknown = torch.zeros_like(points, dtype=torch.bool)
    alive, nodes, last = list(range(len(texts))), questions, root
    while True:
        rows = torch.tensor(alive, device=device)
        allowed = torch.stack([options.allowed(texts[row]) for row in alive]).to(device)
        shares = options.shares(last, nodes, allowed)
        inside, may_end = shares.sum(-1), allowed[:, options.end]
        weights[rows] *= torch.where(may_end, 1, inside)
        shares[:, options.end] = torch.where(may_end, (1 - inside).clamp(min=0), 0)
        negative = [_NEGATIVE.match(with_ascii_sign(texts[row])) is not None for row in alive]
        chosen, remaining, share = choose(shares, remaining, torch.tensor(negative, device=device))
        weights[rows] = torch.where(share > 0, weights[rows], 0)
        going_on = []
        for i, (row, option) in enumerate(zip(alive, chosen.tolist(), strict=True)):
            texts[row] += options.texts[option]
            unknown[row] = option == len(options.texts) - 1
            fits = count_digits(texts[row]) <= numbers.max_digits
            ends = option == options.end or bool(unknown[row])
            if not ends and fits and read_prefix(texts[row], separator).open and weights[row] > 0:
                going_on.append(i)
        if not going_on:
            break
        index = torch.tensor(going_on, device=device)
        alive, remaining = [alive[i] for i in going_on], remaining[index]
        last, nodes = advance(last, root, nodes[index], options.token_ids[chosen[index]])
    read = [read_prefix(text, numbers.thousands).value for text in texts]
    largest = 10.0**numbers.max_digits
    kept = [math.nan if number is None or abs(number) >= largest else number for number in read]
    cut_off = [number != read_prefix(text, separator).value for number, text in zip(read, texts, strict=True)]
    found = torch.tensor(kept, dtype=torch.float64, device=device)
    unknown &= weights > 0
    found = torch.where((weights > 0) & ~unknown, found, math.nan)
    return Sample(found, weights, torch.tensor(cut_off, device=device), unknown)


class _Options:
    """What may follow the text of a walk: tokens in the order of the numbers, the end, any letter, others.

    A token may continue the number, end it behind further digits (`3.`), or change it by what it makes of the
    text before it (`1e3` followed by `e`, or by a letter). All other tokens are the end. The others are those
    of the number that a server did not return.
    """

    def __init__(self, vocabulary: NumberVocabulary, thousands: str | None, device: torch.device) -> None:
        pieces = sorted(vocabulary.pieces.items(), key=lambda piece: _place(piece[1]))
        self.thousands = thousands
        self.end = sum(_place(text) < _END for _, text in pieces)
        pieces.insert(self.end, (0, ""))
        self.texts = [*(text for _, text in pieces), _LETTER, ""]
        self.token_ids = torch.tensor([i for i, _ in pieces], device=device)
        self.is_token = torch.tensor([i != self.end for i in range(len(pieces))], device=device)
        self.letter_ids = torch.tensor(
            [i for i in vocabulary.letter_ids if i not in vocabulary.pieces], dtype=torch.int64, device=device
        )
        self._known: dict[str, Tensor] = {}

    def allowed(self, text: str) -> Tensor:
        """Return which options may follow what a walk has written, `[options]`, bool."""
        # Which digits were written makes no difference, except a zero in front.
        key = re.sub("(?<=[0-9])[0-9]", "0", re.sub("[1-9]", "1", text))
        if key not in self._known:
            now = read_prefix(key, self.thousands)
            after = [read_prefix(key + text, self.thousands) for text in self.texts[:-1]]
            allowed = [then.open or then[:2] != now[:2] for then in after]
            allowed[self.end] = now.value is not None
            self._known[key] = torch.tensor(allowed)
        return self._known[key]

    def shares(self, last: Continuations, nodes: Tensor, allowed: Tensor) -> Tensor:
        """Return the probabilities of the options of some walks, `[walks, options]`, with 0 for the end."""
        tokens = last.next_tokens(self.token_ids[self.is_token])
        shares = torch.zeros(len(last), len(self.is_token), dtype=torch.float64, device=last.device)
        shares[:, self.is_token] = tokens.log_probs.exp()
        letter = torch.zeros_like(shares[:, :1])
        if bool(allowed[:, -1].any()):
            letter = last.next_tokens(self.letter_ids).log_probs.exp().sum(-1, keepdim=True)
        shares = torch.where(allowed, torch.cat([shares, letter], dim=-1)[nodes], 0)
        missing = tokens.missing(nodes, allowed[:, :-1][:, self.is_token])
        return torch.cat([shares, missing[:, None]], dim=-1)


_END = (1, 0.0)  # the place of the end among the options


def _place(piece: str) -> tuple[int, float]:
    """Return the place of a token among the options, in the order of the numbers that it begins."""
    text = with_ascii_sign(piece.strip())
    number = read_prefix(text, "").value
    if text.startswith("-"):
        return 0, -math.inf if number is None else number
    if text.startswith(POINT):
        return 1, 1 + (number or 0)
    return (3, 0) if number is None or text[0] == "," else (2, number)
