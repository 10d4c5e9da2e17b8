r"""The distribution of numbers of any length that a model writes, as a tree of texts.

From the end of the prompt, texts are extended token by token, and each has its exact probability. The
likeliest texts are all followed. The remaining texts are sampled: they are sorted by their numbers, and every
n-th of them is followed with the weight of all texts that it stands for (systematic sampling). The estimate
is unbiased, and it is exact where few texts are likely. A text ends where further characters cannot change
its number, as the grammar says (`ntloss.numbers.grammar.NumberReader`): a model may write a space, a currency
sign, a sign, digits with separators, an exponent, and what makes the number larger (`67 million`) or a part
of another (`1/2`).

Source: Fearnhead and Clifford, "On-line inference for hidden Markov models via particle filters", JRSS B 2003
(weights above a threshold are kept, those below resampled).
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Sequence
from itertools import compress
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ntloss.numbers.grammar import (
    POINT,
    NumberReader,
    count_digits,
    simplify,
    value_of_token,
    with_ascii_sign,
)
from ntloss.numbers.vocabulary import NumberVocabulary
from ntloss.reading.prompts import Limits
from ntloss.reading.source import Continuations, Text

# Every text with a share of at least 1 / (8 * most_texts) is followed.
_FINER = 8
_LETTER = "qq"  # begins no word of a number, as `q` does; stands for all letters


class Options:
    """What may follow the text of a number, as columns of probabilities.

    After `12`, a model may write a token that changes the number or keeps it open (a column each), a letter
    (one column for all), or anything else, which ends it (one minus the sum). A letter matters where it takes
    something back: `1e3` followed by one has no exponent. Options are in the order of the numbers that they
    lead to, as far as these have one length. A reader without a separator of thousands gets the vocabulary's.
    """

    def __init__(self, vocabulary: NumberVocabulary, reader: NumberReader, device: torch.device) -> None:
        if reader.thousands is None:
            reader = reader._replace(thousands=vocabulary.thousands)
        self.reader, self.pieces = reader, vocabulary.pieces
        known = weakref.proxy(vocabulary)  # which keeps these options
        self.tables = functools.lru_cache(maxsize=8)(lambda format: format.tables(known, device))
        self.read = functools.lru_cache(maxsize=2**15)(reader.read)
        self.after = functools.lru_cache(maxsize=2**15)(self._after)
        pieces = sorted(self.pieces.items(), key=lambda piece: (_place(piece[1]), piece[0]))
        self.token_ids = torch.tensor([i for i, _ in pieces], device=device)
        self.texts = [*(text for _, text in pieces), _LETTER]
        self.digits = torch.tensor([count_digits(text) for text in self.texts], device=device)
        self._patterns = tuple(map(simplify, self.texts))
        self.written = [text.encode("utf-8", "surrogateescape") for text in self.texts]
        letters = [i for i in vocabulary.letter_ids if i not in vocabulary.pieces]
        self._letter_ids = torch.tensor(letters, dtype=torch.int64, device=device)

    def _after(self, text: str) -> tuple[Tensor, Tensor]:
        """Return which options matter after a text, `[tokens + 1]`, and which of these keep its number open.

        The letter is the last. They are the same after all texts of one state.
        """
        return _options_after(self.reader.state(text), self._patterns, self.reader)

    def shares(self, root: Continuations, texts: Sequence[Text], allowed: Tensor) -> Tensor:
        """Return the probabilities of the `allowed` options after texts, `[texts, options]`."""
        # Most options matter after few texts, and some servers return only few tokens a request.
        asked = allowed[:, :-1].any(0).nonzero()[:, 0]
        shares = torch.zeros(allowed.shape, dtype=torch.float64, device=allowed.device)
        letters = self._letter_ids[: None if bool(allowed[:, -1].any()) else 0]
        if len(asked) or len(letters):
            found = root.next_tokens(texts, torch.cat([self.token_ids[asked], letters])).exp()
            shares[:, asked] = found[:, : len(asked)]
            shares[:, -1] = found[:, len(asked) :].sum(-1)
        return torch.where(allowed, shares, 0)

    def further(
        self, root: Continuations, texts: Sequence[Text], written: Sequence[str]
    ) -> tuple[Tensor, Tensor]:
        """Return the probability that each text's number goes on at once, and that it may after one option.

        Both are `[texts, options]`; `written` are the texts as characters.
        """
        after = map(self.after, written)
        allowed, unchanged = (torch.stack(column).to(root.device) for column in zip(*after, strict=True))
        shares = self.shares(root, texts, allowed)
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
    """Return the options of a vocabulary, made once on each device, and kept as long as the vocabulary."""
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


class Numbers(NamedTuple):
    """The numbers that a model writes after some prompts, each from one text; all `[texts]`."""

    prompts: Tensor  # the row of the prompt that each follows, int64
    values: Tensor  # float64, NaN if it has too many digits
    weights: Tensor  # float64, the probability of the text after the prompt
    tied: Tensor  # bool, whether the number is only a part of what is written
    noise: Tensor  # `[prompts]`, float64, variance of sampled shares p, at most, as a multiple of p(1 - p)


class _Texts(NamedTuple):
    """What a model may have written after prompts."""

    prompts: Tensor  # `[texts]`, the row of the prompt that each follows
    weights: Tensor  # `[texts]`, float64, the probability of each, or of all texts that it stands for
    digits: Tensor  # `[texts]`, how many digits each has
    written: list[str]
    tokens: list[Text]

    def take(self, kept: Sequence[bool]) -> _Texts:
        """Return some of them."""
        index = torch.tensor(kept, dtype=torch.bool, device=self.weights.device)
        return _Texts(
            self.prompts[index],
            self.weights[index],
            self.digits[index],
            [*compress(self.written, kept)],
            [*compress(self.tokens, kept)],
        )


def numbers_after(
    root: Continuations,
    options: Options,
    limits: Limits,
    shifts: Tensor,
    kept: Sequence[str] = (),
) -> Numbers:
    """Return the numbers that follow prompts; NaN for those of too many digits.

    `shifts`, `[n]`, say where in the first step of each pass sampling starts, from 0 to 1. `kept` has a text
    for each prompt that is followed however unlikely it is, or is empty.
    """
    most_texts, max_digits = limits.most_texts, limits.max_digits
    rows = torch.arange(len(root), device=root.device)
    ids = [*options.token_ids.tolist(), -1]  # the letter, which nothing follows
    ones = torch.ones(len(root), dtype=torch.float64, device=root.device)
    texts = _Texts(rows, ones, 0 * rows, [""] * len(root), [(row, ()) for row in range(len(root))])
    ended, noise, depth = list[_Texts](), torch.zeros_like(ones), 0
    of_ended = torch.zeros_like(ones)
    while texts.written:
        allowed = torch.stack([options.after(text)[0] for text in texts.written]).to(root.device)
        shares = options.shares(root, texts.tokens, allowed)
        ending = texts._replace(weights=texts.weights * (1 - shares.sum(-1)).clamp(min=0))
        ended.append(ending.take([options.read(text).value is not None for text in texts.written]))
        of_ended.index_add_(0, ended[-1].prompts, ended[-1].weights)
        joint = texts.weights[:, None] * shares
        mass = of_ended.index_add(0, texts.prompts, joint.sum(-1))
        is_kept = torch.zeros_like(joint, dtype=torch.bool)
        if kept:
            _mark_leading_to(kept, texts, options, is_kept)
        step = _steps(joint, texts.prompts, mass / (_FINER * most_texts), most_texts, is_kept)
        shift = float(shifts[depth % len(shifts)])
        joint, resampled = _resample(joint, texts.prompts, step, shift, is_kept)
        noise += (resampled / mass * step / mass).nan_to_num()
        parents, chosen = joint.nonzero(as_tuple=True)
        pairs = [*zip(parents.tolist(), chosen.tolist(), strict=True)]
        written = [texts.written[parent] + options.texts[i] for parent, i in pairs]
        longer = texts.digits[parents] + options.digits[chosen]
        reads = [options.read(text) for text in written]
        fits = (longer <= max_digits).tolist()
        going_on = [read.open and few for read, few in zip(reads, fits, strict=True)]
        is_end = [read.value is not None and not on for read, on in zip(reads, going_on, strict=True)]
        tokens = [(texts.tokens[parent][0], (*texts.tokens[parent][1], ids[i])) for parent, i in pairs]
        after = _Texts(texts.prompts[parents], joint[parents, chosen], longer, written, tokens)
        ended.append(after.take(is_end))
        of_ended.index_add_(0, ended[-1].prompts, ended[-1].weights)
        texts, depth = after.take(going_on), depth + 1
    prompts, weights, digits = (torch.cat(column) for column in list(zip(*ended, strict=True))[:3])
    written = [text for each in ended for text in each.written]
    reads = [options.read(text) for text in written]
    # A decimal's further digits change little, but those of groups such as `37,200,000,000,0` end another
    # number than the one that is read so far.
    lost = [
        read.open and many and options.reader.length(text) < len(text)
        for text, read, many in zip(written, reads, (digits > max_digits).tolist(), strict=True)
    ]
    values = torch.tensor(
        [math.nan if cut else read.value for read, cut in zip(reads, lost, strict=True)],
        dtype=torch.float64,
        device=root.device,
    )
    tied = torch.tensor([read.tied for read in reads], dtype=torch.bool, device=root.device)
    return Numbers(
        prompts, values.masked_fill(values.abs() >= 10.0**max_digits, math.nan), weights, tied, noise
    )


def _steps(weights: Tensor, prompts: Tensor, finest: Tensor, most: int, kept: Tensor) -> Tensor:
    """Return the weight from which on texts are certain to be followed, `[prompts]`.

    It is the `finest`, or more if `most` texts would not suffice for it.
    """
    steps = finest.clone()
    shares = torch.where(kept, 1, (weights / finest[prompts][:, None]).clamp(max=1)).nan_to_num().sum(-1)
    for prompt in (torch.zeros_like(finest).index_add(0, prompts, shares) > most).nonzero().flatten():
        own = weights[prompts == prompt].flatten().sort(descending=True).values
        # With the n largest texts kept, the remaining weight is shared by the other texts.
        rest = own.flip(0).cumsum(0).flip(0)
        share = rest[:most] / torch.arange(most, 0, -1, device=own.device)
        fits = (own[:most] <= share).nonzero()
        steps[prompt] = share[fits[0, 0]] if len(fits) else share[-1]
    return steps


def _resample(
    weights: Tensor, prompts: Tensor, step: Tensor, shift: float, kept: Tensor
) -> tuple[Tensor, Tensor]:
    """Keep large weights, and replace small ones by fewer that have the weight of a step; unbiased.

    `weights`, `[rows, options]`, are those of texts after `prompts`, `[rows]`, in ascending order; `step` is
    `[prompts]`. Return the weights, and how much of each prompt's was resampled.
    """
    steps = step[prompts][:, None]
    small = torch.where((weights < steps) & ~kept, weights, 0)
    resampled = torch.zeros_like(step).index_add_(0, prompts, small.sum(-1))
    sums = small.flatten().cumsum(0)
    before = torch.cat([sums.new_zeros(1), sums[:-1]]).view_as(small)
    # Each prompt is counted from its own start.
    start = torch.full_like(step, math.inf).scatter_reduce(0, prompts, before[:, 0], "amin")[prompts][:, None]
    above, below = ((of - start) / steps + shift for of in (sums.view_as(small), before))
    taken = torch.where(above.floor() > below.floor(), steps, 0)
    return torch.where(small > 0, taken, weights), resampled


def _mark_leading_to(kept: Sequence[str], texts: _Texts, options: Options, is_kept: Tensor) -> None:
    """Mark the options that write a part of each prompt's kept text, `[texts, options]`."""
    for row, (prompt, text) in enumerate(zip(texts.prompts.tolist(), texts.written, strict=True)):
        begun, whole = text.encode("utf-8", "surrogateescape"), kept[prompt].encode()
        rest = whole[len(begun) :] if whole.startswith(begun) else b""
        is_kept[row] = torch.tensor([rest != b"" and rest.startswith(option) for option in options.written])


def summarize(numbers: Numbers, levels: Tensor, limits: Limits) -> dict[str, Any]:
    """Summarize the numbers after each prompt as fields of `NumberQuantiles`, with quantiles at `levels`.

    NaN and numbers out of the range count only for `starts` and `ends`; bounds are clamped to the range.
    """
    rows, distributions, low, high = [], [], limits.low, limits.high
    for prompt in range(len(numbers.noise)):
        own = numbers.prompts == prompt
        values, weights = numbers.values[own], numbers.weights[own]
        begun, read = weights.sum(), (values >= low) & (values <= high) & (weights > 0)
        values, order = values[read].sort()
        shares = weights[read][order]
        total = shares.sum()
        shares = shares / total
        distinct, index = torch.unique(values, return_inverse=True)
        distributions.append((distinct, torch.zeros_like(distinct).index_add_(0, index, shares)))
        nan = torch.full_like(levels, math.nan)
        row = {"values": nan, "lower": nan, "upper": nan, "mean": nan[0], "mean_error": nan[0]}
        ends = torch.zeros_like(begun)
        if len(values):
            cumulative, mean, ends = shares.cumsum(0), (shares * values).sum(), total / begun
            spread = (shares * (values - mean).square()).sum().sqrt()
            # Systematic samples vary at most as much as independent ones of what was resampled.
            noise = 1.96 * numbers.noise[prompt].sqrt()
            off = noise * (levels * (1 - levels)).sqrt()
            for name, of_levels in (("values", levels), ("lower", levels - off), ("upper", levels + off)):
                row[name] = _quantile(values, cumulative, of_levels).clamp(low, high)
            row |= {"mean": mean, "mean_error": noise * spread}
        row["starts"] = begun.clamp(max=1)  # the sum of sampled weights may be larger
        row |= {"ends": ends, "continues": (weights * numbers.tied[own])[read].sum() / total}
        rows.append(row)
    fields = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    return {**fields, "distributions": tuple(distributions)}


def _quantile(values: Tensor, cumulative: Tensor, levels: Tensor) -> Tensor:
    """Return the smallest value at which the cumulative share reaches each level, `[levels]`."""
    index = torch.searchsorted(cumulative, levels - 1e-12)
    inside = values[index.clamp(max=len(values) - 1)]
    inside = torch.where(levels >= 1, math.inf, inside)
    return torch.where(levels <= 0, -math.inf, inside)
