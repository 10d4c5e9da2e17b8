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
from ntloss.numbers.parsing import Grammar, grammar
from ntloss.numbers.vocabulary import NumberVocabulary

_NEGATIVE = re.compile("[^0-9]*[-\u2212]")
_DIGIT = re.compile("[0-9]")


class Sample(NamedTuple):
    """The numbers of some walks; all `[walks]`."""

    numbers: Tensor  # float64, NaN if it has too many digits, or the model rules out every number
    weights: Tensor  # float64, the probability that the walk's number starts
    cut_off: Tensor  # bool, whether thousands follow that the format does not read
    unknown: Tensor  # bool, whether the number continues with tokens that a server did not return


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
    rule, reader = grammar(numbers.thousands or ","), grammar(numbers.thousands)
    pieces = sorted(vocabulary.pieces.items(), key=_place)
    end = sum(_place(piece) < (1, 0) for piece in pieces)  # where ending stands among the options
    ids, texts = torch.tensor([i for i, _ in pieces], device=device), [""] * len(points)
    known: dict[str, Tensor] = {}
    weights, remaining = torch.ones_like(points), points
    alive, nodes, last = list(range(len(texts))), questions, root
    unknown = torch.zeros(len(texts), dtype=torch.bool, device=device)
    while True:
        rows = torch.tensor(alive, device=device)
        allowed = torch.stack([_options(texts[row], pieces, end, rule, known) for row in alive]).to(device)
        tokens = last.next_tokens(ids)
        missing = tokens.missing(nodes, torch.cat([allowed[:, :end], allowed[:, end + 1 :]], dim=-1))
        shares = tokens.log_probs.exp()[nodes]
        shares = torch.cat([shares[:, :end], torch.zeros_like(shares[:, :1]), shares[:, end:]], dim=-1)
        shares = torch.cat([torch.where(allowed, shares, 0), missing[:, None]], dim=-1)
        inside, may_end = shares.sum(-1), allowed[:, end]
        weights[rows] *= torch.where(may_end, 1, inside)
        shares[:, end] = torch.where(may_end, (1 - inside).clamp(min=0), 0)
        negative = torch.tensor([_NEGATIVE.match(texts[row]) is not None for row in alive], device=device)
        chosen, remaining, share = choose(shares, remaining, negative)
        weights[rows] = torch.where(share > 0, weights[rows], 0)
        going_on = []
        for i, (row, option) in enumerate(zip(alive, chosen.tolist(), strict=True)):
            if option > len(pieces):
                unknown[row] = True
            elif option != end:
                texts[row] += pieces[option - (option > end)][1]
                if len(_DIGIT.findall(texts[row])) <= numbers.max_digits and weights[row] > 0:
                    going_on.append(i)
        if not going_on:
            break
        index = torch.tensor(going_on, device=device)
        alive, remaining, chosen = [alive[i] for i in going_on], remaining[index], chosen[index]
        last, nodes = advance(last, root, nodes[index], ids[chosen - (chosen > end).long()])
    read = [reader.first(text) for text in texts]
    largest = 10.0**numbers.max_digits
    kept = [math.nan if number is None or abs(number) >= largest else number for number in read]
    cut_off = [number != rule.first(text) for number, text in zip(read, texts, strict=True)]
    found = torch.tensor(kept, dtype=torch.float64, device=device)
    unknown &= weights > 0
    found = torch.where((weights > 0) & ~unknown, found, math.nan)
    return Sample(found, weights, torch.tensor(cut_off, device=device), unknown)


def _place(piece: tuple[int, str]) -> tuple[int, float]:
    """Return the place of a token among the options, in the order of the numbers that it begins."""
    text = piece[1].strip()
    number = grammar("").first(text)
    if text[:1] in ("-", "\u2212"):
        return 0, -math.inf if number is None else number
    if text[:1] == ".":
        return 1, 1 + (number or 0)  # the end is at (1, 0)
    return (3, 0) if number is None or text[0] == "," else (2, number)


def _options(
    text: str, pieces: list[tuple[int, str]], end: int, rule: Grammar, known: dict[str, Tensor]
) -> Tensor:
    """Return which tokens, or the end, may follow what a walk has written, `[options]`, bool."""
    # Which digits were written makes no difference, except a zero in front.
    key = re.sub("(?<=[0-9])[0-9]", "0", re.sub("[1-9]", "1", text))
    if key not in known:
        allowed = [rule.begun.fullmatch(key + piece) is not None for _, piece in pieces]
        allowed.insert(end, rule.first(key) is not None)
        known[key] = torch.tensor(allowed)
    return known[key]
