r"""The distribution of numbers of any length that a model writes, as a tree of texts.

From the end of the prompt, texts are extended token by token, and each has its exact probability. The
likeliest texts are all followed. The remaining texts are sampled: they are sorted by their numbers, and every
n-th of them is followed with the weight of all texts that it stands for (systematic sampling). The estimate
is unbiased, and it is exact where few texts are likely. A text ends where further characters cannot change
its number.

Source: Fearnhead and Clifford, "On-line inference for hidden Markov models via particle filters", JRSS B 2003
(weights above a threshold are kept, those below resampled).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ntloss.numbers.grammar import count_digits
from ntloss.reading.torch_model import Continuations
from ntloss.reading.writing import Options

_FINER = 8  # a text is certain to be followed if its share is this times smaller than one of the most texts


class Numbers(NamedTuple):
    """The numbers that a model writes after some prompts, each from one text; all `[texts]`."""

    questions: Tensor  # the prompt that each follows, int64
    values: Tensor  # float64, NaN if it has too many digits
    weights: Tensor  # float64, the probability of the text after the prompt
    tied: Tensor  # bool, whether the number is only a part of what is written
    texts: list[str]
    noise: Tensor  # `[questions]`, float64, variance of sampled shares p, at most, as a multiple of p(1 - p)


def numbers_after(
    root: Continuations,
    rows: Tensor,
    options: Options,
    most_texts: int,
    max_digits: int,
    shifts: Tensor,
    kept: Sequence[str] = (),
) -> Numbers:
    """Return the numbers that follow some prompts.

    Args:
        root: the prompts.
        rows: `[questions]`, the rows of `root` that are read.
        options: what may follow a text.
        most_texts: how many texts of each prompt are followed in a pass, at most.
        max_digits: most digits of a number; further decimals are cut off, and larger numbers are NaN.
        shifts: `[n]`, where in the first step of each pass sampling starts, from 0 to 1; of all prompts.
        kept: a text for each prompt that is followed however unlikely it is. Default: none.
    """
    device, count = root.device, len(rows)
    parts: list[tuple[Tensor, list[str], Tensor]] = []  # questions, texts and weights of numbers that ended
    ended = torch.zeros(count, dtype=torch.float64, device=device)
    noise = torch.zeros_like(ended)

    def end(owners: Tensor, texts: list[str], weights: Tensor, which: list[int]) -> None:
        index = torch.tensor(which, dtype=torch.int64, device=device)
        parts.append((owners[index], [texts[i] for i in which], weights[index]))
        ended.index_add_(0, owners[index], weights[index])

    owners, nodes = torch.arange(count, device=device), rows
    weights, texts, last, depth = torch.ones_like(ended), [""] * count, root, 0
    while texts:
        allowed = torch.stack([options.allowed(text) for text in texts]).to(device)
        shares = options.shares(last, nodes, allowed)
        ending = weights * (1 - shares.sum(-1)).clamp(min=0)
        end(
            owners, texts, ending, [i for i, text in enumerate(texts) if options.read(text).value is not None]
        )
        joint = weights[:, None] * shares
        mass = ended.index_add(0, owners, joint.sum(-1))
        is_kept = _leading_to(kept, owners, texts, options, joint)
        shift = float(shifts[depth % len(shifts)])
        step = _steps(joint, owners, mass / (_FINER * most_texts), most_texts, is_kept)
        joint, resampled = _resample(joint, owners, step, shift, is_kept)
        noise += (resampled / mass * step / mass).nan_to_num()
        parents, chosen = joint.nonzero(as_tuple=True)
        pairs = zip(parents.tolist(), chosen.tolist(), strict=True)
        texts = [texts[parent] + options.texts[i] for parent, i in pairs]
        owners, weights = owners[parents], joint[parents, chosen]
        going_on = [options.read(text).open and count_digits(text) <= max_digits for text in texts]
        numbers = [i for i, text in enumerate(texts) if options.read(text).value is not None]
        end(owners, texts, weights, [i for i in numbers if not going_on[i]])
        follow = [i for i, goes in enumerate(going_on) if goes]
        if follow:
            index = torch.tensor(follow, device=device)
            owners, weights = owners[index], weights[index]
            last = last.select(nodes[parents[index]]).extend(options.token_ids[chosen[index]][:, None])
            nodes = torch.arange(len(follow), device=device)
        texts, depth = [texts[i] for i in follow], depth + 1
    texts = [text for _, of_part, _ in parts for text in of_part]
    read = [(_value(options, text, max_digits), options.read(text).tied) for text in texts]
    values = torch.tensor([value for value, _ in read], dtype=torch.float64, device=device)
    return Numbers(
        torch.cat([questions for questions, *_ in parts]),
        values.masked_fill(values.abs() >= 10.0**max_digits, math.nan),
        torch.cat([weights for *_, weights in parts]),
        torch.tensor([tied for _, tied in read], dtype=torch.bool, device=device),
        texts,
        noise,
    )


def _value(options: Options, text: str, max_digits: int) -> float:
    """Return the number of a text; NaN if its digits were too many to be followed to its end.

    A decimal's further digits change little, but those of groups such as `37,200,000,000,0` end another
    number than the one that is read so far.
    """
    number = options.read(text)
    is_long = number.open and count_digits(text) > max_digits
    is_cut = is_long and options.reader.length(text) < len(text)
    return math.nan if is_cut or number.value is None else number.value


def _steps(weights: Tensor, owners: Tensor, finest: Tensor, most: int, kept: Tensor) -> Tensor:
    """Return the weight from which on texts are certain to be followed, `[questions]`.

    It is the `finest`, or more if `most` texts would not suffice for it.
    """
    steps = finest.clone()
    shares = torch.where(kept, 1, (weights / finest[owners][:, None]).clamp(max=1)).nan_to_num().sum(-1)
    for question in (torch.zeros_like(finest).index_add(0, owners, shares) > most).nonzero().flatten():
        own = weights[owners == question].flatten().sort(descending=True).values
        # With the n largest texts kept, the remaining weight is shared by the other texts.
        rest = own.flip(0).cumsum(0).flip(0)
        share = rest[:most] / torch.arange(most, 0, -1, device=own.device)
        fits = (own[:most] <= share).nonzero()
        steps[question] = share[fits[0, 0]] if len(fits) else share[-1]
    return steps


def _resample(
    weights: Tensor, owners: Tensor, step: Tensor, shift: float, kept: Tensor
) -> tuple[Tensor, Tensor]:
    """Keep large weights, and replace small ones by fewer that have the weight of a step; unbiased.

    `weights`, `[rows, options]`, are those of the questions `owners`, `[rows]`, in ascending order; `step` is
    `[questions]`. Return the weights, and how much of each question's was resampled.
    """
    steps = step[owners][:, None]
    small = torch.where((weights < steps) & ~kept, weights, 0)
    resampled = torch.zeros_like(step).index_add_(0, owners, small.sum(-1))
    sums = small.flatten().cumsum(0)
    before = torch.cat([sums.new_zeros(1), sums[:-1]]).view_as(small)
    # Each question is counted from its own start.
    start = torch.full_like(step, math.inf).scatter_reduce(0, owners, before[:, 0], "amin")[owners][:, None]
    above, below = ((of - start) / steps + shift for of in (sums.view_as(small), before))
    taken = torch.where(above.floor() > below.floor(), steps, 0)
    return torch.where(small > 0, taken, weights), resampled


def _leading_to(
    kept: Sequence[str], owners: Tensor, texts: list[str], options: Options, like: Tensor
) -> Tensor:
    """Return which options write a part of each question's kept text, `[rows, options]`, bool."""
    found = torch.zeros_like(like, dtype=torch.bool)
    if kept:
        for row, (owner, text) in enumerate(zip(owners.tolist(), texts, strict=True)):
            begun, whole = text.encode("utf-8", "surrogateescape"), kept[owner].encode()
            rest = whole[len(begun) :] if whole.startswith(begun) else b""
            index = [i for i, option in enumerate(options.written) if rest and rest.startswith(option)]
            found[row, index] = True
    return found


def summarize(numbers: Numbers, levels: Tensor, low: float, high: float) -> dict[str, Any]:
    """Summarize the numbers after each prompt as fields of `NumberQuantiles`.

    Args:
        numbers: the numbers, all of them from `low` to `high`, or NaN.
        levels: `[levels]`, of the quantiles.
        low, high: the range of the numbers, to which the bounds are clamped.
    """
    count, device = len(numbers.noise), numbers.values.device
    rows, distributions = [], []
    for question in range(count):
        own = numbers.questions == question
        values, weights = numbers.values[own], numbers.weights[own]
        begun, read = weights.sum(), ~values.isnan() & (weights > 0)
        values, order = values[read].sort()
        starts = begun.clamp(max=1)  # the sum of sampled weights may be larger
        shares = weights[read][order]
        total = shares.sum()
        continues = (weights * numbers.tied[own])[read].sum() / total
        distinct, index = torch.unique(values, return_inverse=True)
        summed = torch.zeros_like(distinct).index_add_(0, index, shares / total)
        distributions.append((distinct, summed))
        if not len(values):
            nothing = torch.full((3 * len(levels) + 2,), math.nan, dtype=torch.float64, device=device)
            rows.append(torch.cat([nothing, torch.stack([starts, 0 * starts, total * math.nan])]))
            continue
        shares = shares / total
        cumulative = shares.cumsum(0)
        mean = (shares * values).sum()
        spread = (shares * (values - mean).square()).sum().sqrt()
        # Systematic samples vary at most as much as independent ones of what was resampled.
        noise = 1.96 * numbers.noise[question].sqrt()
        off = noise * (levels * (1 - levels)).sqrt()
        at = [
            _quantile(values, cumulative, level).clamp(low, high)
            for level in (levels, levels - off, levels + off)
        ]
        rows.append(torch.cat([*at, torch.stack([mean, noise * spread, starts, total / begun, continues])]))
    table = torch.stack(rows)
    values, lower, upper = table[:, : 3 * len(levels)].view(count, 3, -1).unbind(1)
    names = ("mean", "mean_error", "starts", "ends", "continues")
    return {
        **{"values": values, "lower": lower, "upper": upper},
        **dict(zip(names, table[:, 3 * len(levels) :].unbind(-1), strict=True)),
        "distributions": tuple(distributions),
    }


def _quantile(values: Tensor, cumulative: Tensor, levels: Tensor) -> Tensor:
    """Return the smallest value at which the cumulative share reaches each level, `[levels]`."""
    index = torch.searchsorted(cumulative, levels - 1e-12)
    inside = values[index.clamp(max=len(values) - 1)]
    inside = torch.where(levels >= 1, math.inf, inside)
    return torch.where(levels <= 0, -math.inf, inside)
