"""Quantiles of the number that a model is about to write, of fixed width or of any length, as tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ntloss.callers import UnlikelyNumberWarning, warn_caller
from ntloss.numbers.format import NumberFormat
from ntloss.numbers.grammar import NumberReader
from ntloss.numbers.vocabulary import NumberVocabulary
from ntloss.reading import any_length, fixed_width
from ntloss.reading.prompts import NO_LIMITS, Limits, likeliest_after, vocabulary_of
from ntloss.reading.results import NumberQuantiles
from ntloss.reading.source import Continuations, Source
from ntloss.reading.torch_model import Prompts, TorchModel

_ROWS = 1024  # of a pass after the prompts', at most
_CACHED = 2**15  # tokens whose keys and values are copied for a pass, where each text has a copy
_LEAST_START = 0.1
_MOST_CONTINUING = 0.1
_LEAST_ENDING = 0.9
_PASSES = 64  # after which the places where samples start repeat


def number_quantiles(
    model: Any,
    inputs: Any,
    vocabulary: NumberVocabulary | Any,
    levels: float | Sequence[float] = (0.05, 0.5, 0.95),
    format: NumberFormat | None = None,
    *,
    limits: Limits = NO_LIMITS,
    prefix_ids: Sequence[int] = (),
    generator: torch.Generator | None = None,
    past_key_values: Any = None,
) -> NumberQuantiles:
    r"""Read quantiles of the number that a model is about to write: the tensor form of `read_number`.

    With a format of fixed width, the model is masked at each step to numbers of that width, and one walk
    finds each quantile exactly (`ntloss.reading.fixed_width`). Without, the texts that the model may write
    are followed until their number has ended (`ntloss.reading.any_length`); spaces and a sign of a currency
    in front of the number are skipped. Either way the prompt, or the encoder, is run once. What the prompts
    end in is not looked at, as `read_number` does: after `$`, the 5 of `5m` is no 5 million, and after a
    space that many tokenizers join with a sign, the model hardly writes ` -5`.

    Args:
        model: an encoder-decoder or causal language model of transformers, in evaluation mode; or another
            source of next tokens: a server of `ntloss.reading.served`, or an engine (`from_function`).
        inputs: what a tokenizer returns: `input_ids` and `attention_mask`, `[batch, seq]`; or what a
            processor returns, such as `pixel_values` besides, for a causal model with images. Prompts of a
            causal model are padded on the left, inputs of an encoder on either side. See the server for what
            it takes.
        vocabulary: the number tokens, or the tokenizer. Of tokens that are given by value, one is the number
            if there is no format, and its distribution is exact.
        levels: a level or several, each above 0 and below 1. Default: the median and a 90 % interval.
        format: the fixed width in which numbers are written. Default: none, numbers of any length as
            `parse_numbers` reads them.
        limits: the range of the number, and how exactly it is read. Default: `Limits()`.
        prefix_ids: tokens that every answer starts with, such as that of a space.
        generator: any length: of what is sampled, on the CPU. Default: one with seed 0, so that equal calls
            give equal results.
        past_key_values: a causal model's cache of the first tokens of prompts without images, as `generate`
            takes it; it is not changed. Default: none, and the prompts are run from their start.

    Returns:
        The quantiles.

    Raises:
        TypeError: inputs of another kind, a model that returns no cache, or a cache that is not of attention.
        ValueError: an option is out of range, levels outside (0, 1), prompts padded on the right, tokens of
            an image without the image, a width or a range that the vocabulary cannot write, logits of another
            width than the vocabulary, a cache of other prompts, or a model in training mode.

    Warns:
        UnlikelyNumberWarning: a number starts with a probability below 0.1; with one above 0.1 it has another
            width than the format, more than `max_digits` digits, is outside of the range, or is only a part
            of what the model writes.

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
    limits.check(format)
    if isinstance(model, Source) and past_key_values is not None:
        raise TypeError(
            f"past_key_values: expected none for {type(model).__name__}, which has a cache of its own"
        )
    source = model if isinstance(model, Source) else TorchModel(model, past_key_values)
    points = as_levels(levels)
    known, reader = vocabulary_of(vocabulary, source), NumberReader(limits.thousands)
    return read_quantiles(source, inputs, known, points, format, limits, reader, prefix_ids, generator)


@torch.no_grad()
def read_quantiles(
    source: Source,
    inputs: Any,
    vocabulary: NumberVocabulary,
    levels: tuple[float, ...],
    format: NumberFormat | None,
    limits: Limits,
    reader: NumberReader,
    prefix_ids: Sequence[int],
    generator: torch.Generator | None,
) -> NumberQuantiles:
    """Read quantiles like `number_quantiles`, of prompts whose end decides how their numbers are read."""
    texts = {} if isinstance(source, TorchModel) else texts_of(vocabulary)
    root = source.continuations(inputs, texts, prefix_ids)
    if isinstance(root, Prompts) and root.logits.shape[-1] != vocabulary.vocab_size:
        raise ValueError(
            f"the model's logits are {root.logits.shape[-1]} wide, the vocabulary has "
            f"{vocabulary.vocab_size} tokens. Pass vocab_size=<width of the logits> to the vocabulary."
        )
    points = torch.tensor(levels, dtype=torch.float64, device=root.device)
    options = any_length.options_of(vocabulary, reader, root.device)
    if format is not None:
        fields: dict[str, Any] = _of_fixed_width(root, options, points, format, limits)
    elif vocabulary.value_tokens:
        fields = any_length.summarize(_of_values(root, vocabulary), points, limits)
    else:
        numbers = _of_any_length(root, options, limits, draw_shifts(generator))
        fields = any_length.summarize(numbers, points, limits)
    _warn(root, vocabulary, format, limits, fields)
    passes, rows = root.counts
    return NumberQuantiles(levels, **fields, passes=passes, rows=rows)


def as_levels(given: float | Sequence[float]) -> tuple[float, ...]:
    """Return levels as a tuple; a ValueError if one is not between 0 and 1."""
    levels = tuple(map(float, given if isinstance(given, Iterable) else [given]))
    if not levels or not all(0 < level < 1 for level in levels):
        raise ValueError(f"levels={given!r}: expected one or more numbers above 0 and below 1, such as 0.5")
    return levels


def texts_of(vocabulary: NumberVocabulary) -> dict[int, str]:
    """Return the texts of the tokens that may be asked about."""
    letters = {i: vocabulary.texts[i] for i in vocabulary.letter_ids if i in vocabulary.texts}
    numbers = {token.token_id: token.text for token in vocabulary.tokens}
    return {**numbers, **vocabulary.pieces, **letters}


def draw_shifts(generator: torch.Generator | None) -> Tensor:
    """Draw where the samples of each pass start, with seed 0 by default."""
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    return torch.rand(_PASSES, generator=generator, dtype=torch.float64)


def _of_values(root: Continuations, vocabulary: NumberVocabulary) -> any_length.Numbers:
    """Read the number of one token, of those that are given by value."""
    tokens, device = vocabulary.value_tokens, root.device
    ids = torch.tensor([token.token_id for token in tokens], device=device)
    shares = root.next_tokens([(row, ()) for row in range(len(root))], ids).exp()
    values = torch.tensor([token.value for token in tokens], dtype=torch.float64, device=device)
    return any_length.Numbers(
        prompts=torch.arange(len(root), device=device).repeat_interleave(len(tokens)),
        values=values.repeat(len(root)),
        weights=shares.flatten(),
        tied=torch.zeros(shares.numel(), dtype=torch.bool, device=device),
        noise=shares.new_zeros(len(root)),
    )


def _of_any_length(
    root: Continuations, options: any_length.Options, limits: Limits, shifts: Tensor
) -> any_length.Numbers:
    """Read numbers of any length."""
    parts, first = list[any_length.Numbers](), 0
    for some in _at_once(root, limits.most_texts):
        numbers = any_length.numbers_after(some, options, limits, shifts)
        parts.append(numbers._replace(prompts=numbers.prompts + first))
        first += len(numbers.noise)
    return any_length.Numbers(*map(torch.cat, zip(*parts, strict=True)))


def _at_once(root: Continuations, texts: int) -> Iterable[Continuations]:
    """Return prompts that are read together, each with so many texts: few if each text has a long cache."""
    rows = _ROWS
    if isinstance(root, Prompts) and not root.in_tree:
        rows = min(_ROWS, 1 + _CACHED // root.mask.shape[-1])
    parts = torch.split(torch.arange(len(root), device=root.device), max(1, rows // texts))
    return [root] if len(parts) == 1 else map(root.select, parts)


def _of_fixed_width(
    root: Continuations, options: any_length.Options, levels: Tensor, format: NumberFormat, limits: Limits
) -> dict[str, Tensor]:
    """Read numbers of one width."""
    # What is said of a format is measured along the digits of the median.
    half = levels.new_full((1,), 0.5)
    points, columns = torch.unique(torch.cat([half, levels]), return_inverse=True)
    parts = []
    for some in _at_once(root, len(points)):
        shares = points.expand(len(some), -1)
        inside = torch.ones_like(shares[:, 0])
        if limits.low > -math.inf or limits.high < math.inf:
            # The quantiles of the numbers in the range are others of all numbers.
            below = fixed_width.share_upto(some, options, format, limits.low, included=False)
            upto = fixed_width.share_upto(some, options, format, limits.high)
            inside = upto - below
            shares = torch.where(inside[:, None] > 0, below[:, None] + points * inside[:, None], torch.nan)
        walked = fixed_width.walk(some, options, format, shares, points == 0.5)
        numbers = torch.where(shares.isnan(), torch.nan, walked.numbers.clamp(limits.low, limits.high))
        ends = walked.fits * (1 - walked.continues) * inside
        parts.append((numbers, walked.starts, ends, walked.continues))
    values, starts, ends, continues = (torch.cat(column) for column in zip(*parts, strict=True))
    values = values[:, columns[1:]]
    unknown = torch.full_like(starts, torch.nan)
    return {
        **{"values": values, "lower": values, "upper": values, "mean": unknown, "mean_error": unknown},
        **{"starts": starts, "ends": ends, "continues": continues},
    }


def _warn(
    root: Continuations,
    vocabulary: NumberVocabulary,
    format: NumberFormat | None,
    limits: Limits,
    read: Mapping[str, Tensor],
) -> None:
    """Warn if the model hardly begins a number, writes numbers that are not read, or only a part is read."""
    starts, continues, ends = read["starts"], read["continues"], read["ends"]
    rare = starts < _LEAST_START
    if bool(rare.any()):
        row = int(starts.argmin())
        shown = likeliest_after(root, row, vocabulary)
        warn_caller(
            f"after {int(rare.sum())} of {len(starts)} prompts the model hardly writes such a number (with "
            f"probability {float(starts[row]):.2g} after one, where {shown} is likeliest): "
            "end the prompt where the number begins, such as with the first words of the answer",
            UnlikelyNumberWarning,
        )
    what = f"of more than {limits.max_digits} digits: they are left out, pass Limits(max_digits=...)"
    rest = "what is not read, such as a fraction, a range or a product, so it is only a part"
    if format is not None:
        ends = ends / (1 - continues).clamp(min=1e-9)
        what = f"of fewer digits than {format}: pass the width that it writes, or format=None for any length"
        rest = "further digits, a point or thousands: pass a larger width, or format=None for any length"
    if limits.low > -math.inf or limits.high < math.inf:
        what = f"outside of low={limits.low}, high={limits.high}: they are left out"
    for share, most, said in (
        (1 - ends.nan_to_num(), 1 - _LEAST_ENDING, f"the model writes numbers {what}"),
        (continues, _MOST_CONTINUING, f"the number goes on with {rest}"),
    ):
        rows = ~rare & (share > most)
        if bool(rows.any()):
            warn_caller(
                f"after {int(rows.sum())} of {len(rows)} prompts (with probability "
                f"{float(share[rows].max()):.2g} for one) {said}",
                UnlikelyNumberWarning,
            )
