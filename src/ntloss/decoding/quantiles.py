"""Quantiles of the number that a model is about to write, by either walk, and calibrated intervals."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from ntloss.callers import warn_caller
from ntloss.decoding import any_length, fixed_width
from ntloss.decoding.models import Continuations, run_prompts
from ntloss.decoding.served import ServedModel
from ntloss.numbers.format import NumberFormat
from ntloss.numbers.parsing import as_float
from ntloss.numbers.vocabulary import NumberVocabulary

_ANY_LENGTH = NumberFormat()
_WALKS = 32
_IN_TAIL = 4  # walks beyond the outermost quantile, so that its 95 % bounds are walks too
_LEAST_START = 0.1
_MOST_CUT_OFF = 0.05
_MOST_DIGITS = 18  # of an int64


class UnlikelyNumberWarning(UserWarning):
    """The model hardly writes numbers of the format at the end of a prompt, or goes on after them."""


@dataclass(frozen=True)
class NumberQuantiles:
    """Quantiles of the number that follows each prompt; float64, on the prompts' device.

    All are NaN if the model writes no number. Errors are of the walks only, not of the model.

    Args:
        quantiles: the requested levels, each between 0 and 1.
        values: `[batch, quantiles]`, for each level q the number below which the model's number is with
            probability q.
        lower: `[batch, quantiles]`, lower 95 % bounds of these (binomial, which is conservative for
            stratified walks). Equal to `values` for a fixed width, which is exact. If a server returns its
            likeliest tokens only, they also bound what the others can change.
        upper: `[batch, quantiles]`, upper 95 % bounds.
        mean: `[batch]`, the mean of the numbers; NaN for a fixed width without `walks`.
        mean_error: `[batch]`, any length: 1.96 standard errors of as many independent samples, estimated from
            the walks. It is no bound: where numbers have many lengths, the walks miss rare large ones, and
            the mean is often off by more. For a fixed width it is a bound, see `number_quantiles`.
        starts: `[batch]`, probability that such a number starts here. Fixed width: the probability that the
            format keeps along the median's digits.
        ends: `[batch]`, probability that it also ends here: that no further digits follow the median (fixed
            width), or that it has at most `max_digits` digits.
        passes: number of calls of the model.
        rows: number of rows in all calls.
    """

    quantiles: tuple[float, ...]
    values: Tensor
    lower: Tensor
    upper: Tensor
    mean: Tensor
    mean_error: Tensor
    starts: Tensor
    ends: Tensor
    passes: int
    rows: int


@torch.no_grad()
def number_quantiles(
    model: Any,
    inputs: Mapping[str, Tensor],
    vocabulary: NumberVocabulary | Any,
    quantiles: float | Sequence[float] = (0.05, 0.5, 0.95),
    format: NumberFormat | None = None,
    *,
    walks: int | None = None,
    prefix_ids: Sequence[int] = (),
    rows_per_pass: int = 1024,
    generator: torch.Generator | None = None,
    past_key_values: Any = None,
) -> NumberQuantiles:
    r"""Read quantiles of the number that a model is about to write.

    With a format of fixed width, the model is masked at each step to numbers of that width, and one walk
    finds each quantile exactly (`ntloss.decoding.fixed_width`). Without, walks from stratified points sample
    numbers of any length (`ntloss.decoding.any_length`), which end where text follows; spaces and a sign of a
    currency in front of the number are skipped. Either way the prompt, or the encoder, is run once.

    The number of passes is known: at most one for each slot of the format and three more; or for numbers of
    any length, `max_digits` and about ten more, both times for each `rows_per_pass` walks. A pass holds keys
    and values of `rows_per_pass` walks (see `ntloss.decoding.models`); with tokens of several digits, a walk
    of fixed width has a row for each spelling of its digits.

    Args:
        model: an encoder-decoder or causal language model of transformers, in evaluation mode.
        inputs: what a tokenizer returns: `input_ids` and `attention_mask`, `[batch, seq]`. Prompts of a
            causal model are padded on the left, inputs of an encoder on either side.
        vocabulary: the number tokens. Fixed width: those that may be written. Any length: all its `pieces`,
            because the model may write them. A tokenizer stands for all its number tokens.
        quantiles: a level or several, each above 0 and below 1. Default: the median and a 90 % interval.
        format: how numbers are written. Default: `NumberFormat()`, with any length and thousands separated by
            commas, as `parse_numbers` reads them.
        walks: any length: number of walks, at least four beyond the outermost quantile. Default: 32, or as
            many as that needs (80 for 0.05). Fixed width: number K of further, equally spaced quantiles, for
            the mean; its error bound is then $(Q_K - Q_1)/2K$, for the distribution clipped to its outermost
            of these. Default: 0, no mean.
        prefix_ids: tokens that every answer starts with, such as that of a space.
        rows_per_pass: most walks of one pass, which bounds the memory. Default: 1024.
        generator: of the walks' points, on the CPU. Default: one with seed 0, so that equal calls give equal
            results; one of your own gives other walks.
        past_key_values: a causal model's cache of the first tokens of `inputs`, as `generate` takes it; it is
            not changed. Default: none, and the prompts are run from their start.

    Returns:
        The quantiles.

    Raises:
        TypeError: inputs of another kind, a model that returns no cache, or a cache that is not of attention.
        ValueError: an option is out of range, quantiles outside (0, 1), too few walks, prompts padded on the
            right, a width that the vocabulary cannot write, logits of another width than the vocabulary, a
            cache of other prompts, or a model in training mode.

    Warns:
        UnlikelyNumberWarning: such a number starts with a probability below 0.1; or one of 0.05 and more is
            cut off before further digits, such as thousands after a comma.

    Example:
        >>> import torch
        >>> from transformers import T5Config, T5ForConditionalGeneration
        >>> from ntloss import NumberVocabulary
        >>> from ntloss.numbers import NumberFormat
        >>> digits = NumberVocabulary.from_mapping({d: str(d) for d in range(10)}, vocab_size=12)
        >>> config = T5Config(vocab_size=12, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2,
        ...                   decoder_start_token_id=10, pad_token_id=10, eos_token_id=11)
        >>> model = T5ForConditionalGeneration(config).eval()
        >>> inputs = {"input_ids": torch.tensor([[1, 2], [3, 4]])}
        >>> read = number_quantiles(model, inputs, digits, format=NumberFormat(digits=3))
        >>> read.values.shape, bool((read.values[:, 0] <= read.values[:, 2]).all())
        (torch.Size([2, 3]), True)
    """
    numbers = _ANY_LENGTH if format is None else format
    given = quantiles if isinstance(quantiles, Iterable) else [quantiles]
    quantiles = tuple(as_float(level) for level in given)
    walks = _check_options(quantiles, numbers, walks, rows_per_pass)
    root, vocabulary = _start(model, inputs, vocabulary, prefix_ids, past_key_values)
    device = root.device
    levels = torch.tensor(quantiles, dtype=torch.float64)
    # One point in each of the strata, so that the error is never above that of independent points.
    shifts = torch.full((walks,), 0.5, dtype=torch.float64)
    if numbers.digits is None:
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        shifts = torch.rand(walks, generator=generator, dtype=torch.float64)
    points = (torch.arange(walks) + shifts) / max(walks, 1)
    starts, walk = [points], cast(Callable[..., tuple[Tensor, ...]], any_length.walk)
    if numbers.digits is not None:  # the median stands first
        points = torch.cat([torch.full((1,), 0.5), levels[levels != 0.5], points])
        sides = torch.tensor([0, -1, 1] if root.partial else [0])  # with lower and upper bounds
        starts, walk = [points.repeat(len(sides)), sides.repeat_interleave(len(points))], fixed_width.walk
    parts = [
        walk(
            root,
            vocabulary,
            numbers,
            rows.to(device) // len(starts[0]),
            *(column[rows % len(column)].to(device) for column in starts),
        )
        for rows in torch.split(torch.arange(len(root) * len(starts[0])), rows_per_pass)
    ]
    columns = [torch.cat(column).reshape(len(root), -1, len(points)) for column in zip(*parts, strict=True)]
    if numbers.digits is None:
        found, empty = _of_sample([column[:, 0] for column in columns], levels.to(device), shifts.to(device))
    else:
        found, empty = _of_walks(columns, levels, walks)
    if bool(empty.any()):
        raise ValueError(
            f"the server returns only its likeliest tokens, and these say nothing about quantiles of the "
            f"numbers after prompts {empty.nonzero().squeeze(-1).tolist()}. End the prompts where the number "
            "begins, ask for more of them with ServedModel(url, top=...), or use a server that returns the "
            "tokens that it is asked for, such as vLLM or SGLang."
        )
    _warn_of_starts(root, vocabulary, found["starts"])
    passes, rows = root.counts
    return NumberQuantiles(quantiles, **found, passes=passes, rows=rows)


def _of_walks(walked: list[Tensor], levels: Tensor, walks: int) -> tuple[dict[str, Tensor], Tensor]:
    """Return all fields of the result but the levels and counts, for a fixed width.

    Also whether both bounds of a quantile say nothing, `[batch]`.
    """
    # `[batch, points]`, by the known tokens, and bounds of that; without bounds, these are equal.
    found, starts, ends, empty = (column.expand(-1, 3, -1).unbind(1) for column in walked)
    columns = [0 if q == 0.5 else 1 + int((levels[:i] != 0.5).sum()) for i, q in enumerate(levels.tolist())]
    values, lower, upper = (side[:, columns] for side in found)
    values = torch.where(values.isnan(), (lower + upper) / 2, values)  # digits that were not returned
    means = [side[:, side.shape[-1] - walks :] for side in found]
    mean, low, high = (side.mean(-1) for side in means)
    likely, ended = starts[0][:, 0], ends[0][:, 0]
    if bool((rest := (likely >= _LEAST_START) & (1 - ended >= _MOST_CUT_OFF)).any()):
        warn_caller(
            f"after {int(rest.sum())} of {len(rest)} medians, the model writes further digits, a point or "
            f"thousands (with probability {float((1 - ended)[rest].max()):.2g} for one): pass a format of "
            "more digits or decimals, or format=None for numbers of any length",
            UnlikelyNumberWarning,
        )
    error = torch.maximum(high - mean, mean - low)  # NaN without walks
    if walks:
        error = error + (means[0][:, -1] - means[0][:, 0]) / (2 * walks)
    fields = {"values": values, "lower": lower, "upper": upper, "mean": mean, "mean_error": error}
    return {**fields, "starts": likely, "ends": ended}, (empty[1] & empty[2])[:, columns].any(-1)


def _start(
    model: Any, inputs: Any, vocabulary: NumberVocabulary | Any, prefix_ids: Sequence[int], past: Any
) -> tuple[Continuations, NumberVocabulary]:
    if isinstance(model, ServedModel):
        if past is not None:
            raise TypeError("past_key_values: expected none, because a server has its own cache: omit it")
        vocabulary = _as_vocabulary(vocabulary, None)
        return model.continuations(inputs, vocabulary, prefix_ids), vocabulary
    root = run_prompts(model, inputs, prefix_ids, past)
    width = root.logits.shape[-1]
    if width != (vocabulary := _as_vocabulary(vocabulary, width)).vocab_size:
        raise ValueError(
            f"the model's logits are {width} wide, the vocabulary has {vocabulary.vocab_size} tokens. Pass "
            "vocab_size=<width of the logits> to the vocabulary."
        )
    return root, vocabulary


def _as_vocabulary(given: NumberVocabulary | Any, width: int | None) -> NumberVocabulary:
    """Return a vocabulary as it is; of a tokenizer, make the one that it chooses by itself."""
    if isinstance(given, NumberVocabulary):
        return given
    return NumberVocabulary.from_tokenizer(given, vocab_size=width)


def _of_sample(sample: list[Tensor], levels: Tensor, shifts: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Return the same for numbers of any length."""
    found, weights, cut_off, unknown = sample
    if bool((cut := (weights * cut_off).sum(-1) / weights.sum(-1)).gt(_MOST_CUT_OFF).any()):
        warn_caller(
            f"for {int((cut > _MOST_CUT_OFF).sum())} of {len(cut)} prompts, a comma and thousands follow the "
            f"number (with probability {float(cut.nan_to_num().max()):.2g} for one), and are cut off: pass "
            "format=NumberFormat() to read them",
            UnlikelyNumberWarning,
        )
    kept = torch.where(found.isnan(), 0, weights)
    shares = kept / kept.sum(-1, keepdim=True)  # NaN where there is no number
    order = found.sort(-1)  # NaN comes last
    shares = shares.gather(-1, order.indices)
    above = shares.cumsum(-1)
    # The walk whose place in its stratum is closest to the level.
    place = torch.where(shares > 0, above - shares * (1 - shifts[order.indices]), math.inf)
    nearest = (place[:, None] - levels[:, None]).abs().argmin(-1)
    numbers_or_zero = order.values.nan_to_num()
    mean = (shares * numbers_or_zero).sum(-1)
    spread = (shares * (numbers_or_zero - mean[:, None]).square()).sum(-1).sqrt()
    error = 1.96 * spread * shares.square().sum(-1).sqrt()
    # What a server did not return may be any number.
    lower, upper = (
        _bounds(torch.where(unknown, anything, found), weights, levels)[side]
        for side, anything in enumerate((-math.inf, math.inf))
    )
    table = torch.stack([order.values.gather(-1, nearest), lower, upper], dim=-1)
    values, lower, upper = torch.where(mean.isnan()[:, None, None], math.nan, table).unbind(-1)
    fields = {
        **{"values": values, "lower": lower, "upper": upper, "mean": mean},
        "mean_error": torch.where((unknown & (weights > 0)).any(-1), math.inf, error),
        **{"starts": torch.where(unknown, 0, weights).mean(-1), "ends": kept.sum(-1) / weights.sum(-1)},
    }
    return fields, unknown.any(-1) & (mean.isnan() | (lower.isinf() & upper.isinf()).any(-1))


def _bounds(numbers: Tensor, weights: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
    """Return bounds of the quantiles, `[batch, quantiles]`, from numbers and weights of walks."""
    kept = torch.where(numbers.isnan(), 0, weights)
    shares = kept / kept.sum(-1, keepdim=True)
    order = numbers.sort(-1)
    shares = shares.gather(-1, order.indices)
    count = (1 / shares.square().sum(-1)).nan_to_num().round().int()  # of as many walks of equal weight
    bounds = shares.new_tensor([[_ranks(c, q) for q in levels.tolist()] for c in count.tolist()])
    reached = (shares.cumsum(-1)[:, None, None] < bounds[..., None] - 1e-9).sum(-1)
    inside = order.values.gather(-1, reached.clamp(max=numbers.shape[-1] - 1).flatten(1)).reshape(
        bounds.shape
    )
    outside = bounds.new_tensor([-math.inf, math.inf]).expand_as(bounds)
    lower, upper = torch.where((bounds > 0) & (bounds <= 1), inside, outside).unbind(-1)
    return lower, upper


@functools.lru_cache(maxsize=1024)
def _ranks(number: int, quantile: float) -> tuple[float, float]:
    """Return the shares of a sample between which a quantile lies with 95 % probability.

    0 and above 1: there is no such bound.
    """
    if number == 0:
        return 0.0, 2.0
    below = torch.distributions.Binomial(number, torch.tensor(quantile, dtype=torch.float64))
    log_shares: Tensor = below.log_prob(  # type: ignore[no-untyped-call]
        torch.arange(number + 1, dtype=torch.float64)
    )
    shares = log_shares.exp().cumsum(0)
    return int((shares <= 0.025).sum()) / number, (int((shares < 0.975).sum()) + 1) / number


def _warn_of_starts(root: Continuations, vocabulary: NumberVocabulary, starts: Tensor) -> None:
    if bool((rare := starts < _LEAST_START).any()):
        row = int(starts.argmin())
        token = root.likeliest(row)  # of some servers, its text
        text = vocabulary.text_of(token) if isinstance(token, int) else token
        shown = f"token {token}" if text is None else repr(text)
        is_skipped = token in vocabulary.pieces and not any(c in "+-.,0123456789" for c in text or "")
        skip = f", or pass prefix_ids=tokenizer.encode({shown}, add_special_tokens=False)" * is_skipped
        warn_caller(
            f"after {int(rare.sum())} of {len(starts)} prompts the model hardly writes such a number (with "
            f"probability {float(starts[row]):.2g} after prompt {row}, where {shown} is likeliest): "
            f"end the prompt where the number begins, such as with the first words of the answer{skip}",
            UnlikelyNumberWarning,
        )


def _check_options(
    quantiles: tuple[float, ...], numbers: NumberFormat, walks: int | None, rows_per_pass: int
) -> int:
    """Return the number of walks."""
    if not quantiles or not all(0 < q < 1 for q in quantiles):
        raise ValueError(f"quantiles={quantiles}: expected one or more numbers above 0 and below 1")
    if rows_per_pass < 1 or (walks is not None and walks < 0):
        raise ValueError(
            f"rows_per_pass={rows_per_pass}, walks={walks}: expected rows_per_pass of 1 or more, and walks "
            "of 0 or more"
        )
    if numbers.digits is not None:
        if numbers.digits + numbers.decimals > _MOST_DIGITS:
            raise ValueError(
                f"digits={numbers.digits}, decimals={numbers.decimals}: expected at most {_MOST_DIGITS} in "
                "total"
            )
        return walks or 0
    tail = min(min(q, 1 - q) for q in quantiles)
    needed = math.ceil(_IN_TAIL / tail - 1e-9)
    if walks is not None and walks < needed:
        raise ValueError(
            f"walks={walks}: {walks * tail:.3g} of them lie beyond the outermost of the quantiles "
            f"{tuple(quantiles)}; expected {_IN_TAIL} or more: pass walks={needed}, or None"
        )
    return max(_WALKS, needed) if walks is None else walks


def interval_margin(
    lower: Tensor | Sequence[float],
    upper: Tensor | Sequence[float],
    truths: Tensor | Sequence[float],
    coverage: float,
) -> float:
    r"""Compute the margin by which intervals have to be widened to cover a share of new numbers.

    With $E_i = \max(l_i - y_i, y_i - u_i)$ on n calibration examples, it is the
    $\lceil (n + 1) c \rceil$-th smallest. `[lower - margin, upper + margin]` then covers a new example with
    probability at least c, over the calibration and the new examples together, if these are exchangeable.

    Args:
        lower: `[examples]`, lower ends, of examples that the model was not trained on. NaN is a miss.
        upper: `[examples]`, upper ends.
        truths: `[examples]`, the true numbers.
        coverage: the share c to cover, above 0 and below 1.

    Returns:
        The margin; negative if intervals are too wide, infinite if there are too few examples, or too many
        misses, for that coverage.

    Raises:
        ValueError: a coverage outside (0, 1), no examples, shapes that differ, or a NaN among the truths.

    Source: Romano, Patterson and Candès, "Conformalized quantile regression", 2019, eq. 6 to 8.

    Example:
        >>> interval_margin([0, 0, 0, 0], [10, 10, 10, 10], [5, 9, 11, 14], coverage=0.6)
        1.0
    """
    ends = [torch.as_tensor(x, dtype=torch.float64, device="cpu").detach() for x in (lower, upper, truths)]
    low, high, true = ends
    if not 0 < coverage < 1:
        raise ValueError(f"coverage={coverage}: expected a share above 0 and below 1, such as 0.9")
    if true.dim() != 1 or not len(true) or low.shape != true.shape or high.shape != true.shape:
        raise ValueError(
            f"lower, upper and truths of shapes {[list(end.shape) for end in ends]}: expected [examples] for "
            "each, with at least one example"
        )
    if true.isnan().any():
        raise ValueError(f"{int(true.isnan().sum())} of {len(true)} truths are NaN: leave these examples out")
    scores = torch.maximum(low - true, true - high).nan_to_num(
        nan=math.inf, posinf=math.inf, neginf=-math.inf
    )
    # A product such as 100 * 0.07 exceeds 7 by rounding.
    rank = math.ceil((len(true) + 1) * coverage - 1e-9)
    return math.inf if rank > len(true) else scores.sort().values[rank - 1].item()
