"""Quantiles of the number that a model is about to write: the entry point of both algorithms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ntloss.decoding.fixed_width import walk
from ntloss.decoding.formats import number_format
from ntloss.decoding.free_length import Limits, search
from ntloss.decoding.models import Prompt, end_tokens
from ntloss.numbers.vocabulary import NumberVocabulary


@dataclass(frozen=True)
class NumberQuantiles:
    """Quantiles of the number that follows each prompt, on the prompts' device.

    Args:
        quantiles: the requested levels, each between 0 and 1.
        values: `[batch, quantiles]`, float64: for each q the smallest number x with P(number <= x) >= q. NaN
            if the model writes no number.
        lower: `[batch, quantiles]`, float64, lower bound when the search ended.
        upper: `[batch, quantiles]`, float64, upper bound.
        exact: `[batch, quantiles]`, bool, whether `lower` equals `upper`.
        mass: `[batch]`, float64, from 0 to 1. Fixed width: the product of the probabilities of all allowed
            tokens along the median's digits, end token included. Free length: an upper bound of the
            probability that the model writes a number.
        mode: `[batch]`, float64, the likeliest of the numbers that the search completed; NaN for a fixed
            width, whose walk does not find it.
        mode_exact: `[batch]`, bool, whether no other number can be likelier.
        passes: number of calls of the model.
        rows: number of rows in all calls. A recurrent model takes one call for each token of a prefix.
    """

    quantiles: tuple[float, ...]
    values: Tensor
    lower: Tensor
    upper: Tensor
    exact: Tensor
    mass: Tensor
    mode: Tensor
    mode_exact: Tensor
    passes: int
    rows: int

    def mean(self, count: int) -> tuple[Tensor, Tensor]:
        r"""Estimate the mean as the average of `count` equally spaced quantiles.

        Args:
            count: K; the quantiles $(k - \frac12) / K$, k = 1 to K, must be among the requested levels.

        Returns:
            The estimates and their largest errors, `[batch]` each. The error is $(Q_K - Q_1)/2K$, from the
            outer ends of their brackets, plus the mean distance from a value to the farther end of its
            bracket. It bounds the error for the distribution with its tails clipped to $[Q_1, Q_K]$.

        Raises:
            ValueError: one of these quantiles was not requested.

        Example:
            >>> [(k + 0.5) / 20 for k in range(20)][:3]  # the levels to request for mean(20)
            [0.025, 0.075, 0.125]
        """
        columns = [self._column((k + 0.5) / count, count) for k in range(count)]
        values, lower, upper = (table[:, columns] for table in (self.values, self.lower, self.upper))
        brackets = torch.maximum(upper - values, values - lower).mean(-1)
        return values.mean(-1), (upper[:, -1] - lower[:, 0]) / (2 * count) + brackets

    def _column(self, quantile: float, count: int) -> int:
        for i, given in enumerate(self.quantiles):
            if math.isclose(given, quantile, rel_tol=1e-9):
                return i
        raise ValueError(
            f"mean({count}) needs the quantile {quantile:g}, given {self.quantiles}. Call number_quantiles "
            f"with quantiles=[(k + 0.5) / {count} for k in range({count})]."
        )


@torch.no_grad()
def number_quantiles(
    model: Any,
    inputs: Mapping[str, Tensor],
    vocabulary: NumberVocabulary,
    quantiles: Sequence[float] = (0.05, 0.5, 0.95),
    *,
    digits: int | None = None,
    decimals: int = 0,
    signed: bool = False,
    max_digits: int = 12,
    prefix_ids: Sequence[int] = (),
    eos_token_id: int | Sequence[int] | None = None,
    rtol: float = 0.0,
    atol: float = 0.0,
    rows_per_pass: int = 256,
    max_rows: int | None = None,
) -> NumberQuantiles:
    r"""Find quantiles of the number that a model is about to write, without sampling.

    With `digits`, the model is masked at each step to numbers of that width, and each quantile costs one
    decoding (`ntloss.decoding.fixed_width`). Without, the distribution over numbers of any length is
    bracketed by a best-first search (`ntloss.decoding.free_length`, which also documents what counts as a
    number). Either way the prompt, or the encoder, is run once, and the probabilities of all spellings of a
    number are added.

    Args:
        model: an encoder-decoder or causal language model of transformers, in evaluation mode.
        inputs: what a tokenizer returns: `input_ids` and `attention_mask`, `[batch, seq]`. Prompts of a
            causal model are padded on the left, inputs of an encoder on either side.
        vocabulary: the number tokens. Fixed width: those that may be written. Free length: the tokens that it
            leaves out are read as numbers too, because the model may write them.
        quantiles: each above 0 and below 1. Default: the median and a 90 % interval.
        digits: number of digits before the point, 1 to 18; None (default) for numbers of any length.
        decimals: number of digits after the point; an error without `digits`.
        signed: whether the number may begin with a sign; an error without `digits`.
        max_digits: free length: most digits of a number, 1 to 18; longer numbers are not counted. Default:
            12. No effect with `digits`.
        prefix_ids: tokens that every answer starts with, such as that of a space.
        eos_token_id: fixed width: the tokens that end an answer. Default: the model's. No effect without
            `digits`.
        rtol: free length: the search ends at brackets of width `atol + rtol * |value|`. Default: 0, until the
            quantile is exact. No effect with `digits`.
        atol: see `rtol`; in the numbers' units. Default: 0. No effect with `digits`.
        rows_per_pass: free length: most prefixes that one pass of the model expands. Default: 256. No effect
            with `digits`.
        max_rows: free length: rows per question after which its search ends: its prompt and each prefix that
            is expanded count one. Default: no limit. Set one for a model that has not learned to write
            numbers. No effect with `digits`.

    Returns:
        The quantiles.

    Raises:
        TypeError: inputs of another kind, or a model that returns no cache.
        ValueError: an option is out of range, quantiles outside (0, 1), prompts padded on the right, a width
            that the vocabulary cannot write, no known end token, logits of another width than the vocabulary,
            or a model in training mode.

    Example:
        >>> import torch
        >>> from transformers import T5Config, T5ForConditionalGeneration
        >>> from ntloss import NumberVocabulary
        >>> digits = NumberVocabulary.from_mapping({d: str(d) for d in range(10)}, vocab_size=12)
        >>> config = T5Config(vocab_size=12, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2,
        ...                   decoder_start_token_id=10, pad_token_id=10, eos_token_id=11)
        >>> model = T5ForConditionalGeneration(config).eval()
        >>> read = number_quantiles(model, {"input_ids": torch.tensor([[1, 2], [3, 4]])}, digits, digits=3)
        >>> read.values.shape, bool((read.values[:, 0] <= read.values[:, 2]).all())
        (torch.Size([2, 3]), True)
    """
    _check_options(quantiles, digits, decimals, signed, rows_per_pass, max_rows)
    asked = torch.tensor(list(quantiles), dtype=torch.float64)
    if digits is None:
        limits = Limits(max_digits, rtol, atol, rows_per_pass, max_rows)
        prompt = _run(model, inputs, vocabulary, prefix_ids)
        found = search(prompt, vocabulary, asked, limits)
        tables = {name: table.to(prompt.logits.device) for name, table in found._asdict().items()}
        return NumberQuantiles(
            tuple(quantiles), **tables, passes=prompt.counts.passes, rows=prompt.counts.rows
        )
    ends = end_tokens(model, eos_token_id)
    prompt = _run(model, inputs, vocabulary, prefix_ids)
    numbers = number_format(vocabulary, digits, decimals, signed, prompt.logits.device)
    # The median's walk comes first, for the mass.
    values, mass = walk(prompt, numbers, ends, torch.cat([asked.new_tensor([0.5]), asked[asked != 0.5]]))
    order = [0 if q == 0.5 else 1 + int((asked[:i] != 0.5).sum()) for i, q in enumerate(asked.tolist())]
    values = values[:, order]
    nothing = torch.full_like(mass, math.nan)
    return NumberQuantiles(
        tuple(quantiles), values, values, values, values.isfinite(), mass, nothing, mass < 0,
        prompt.counts.passes, prompt.counts.rows,
    )  # fmt: skip


def _run(
    model: Any, inputs: Mapping[str, Tensor], vocabulary: NumberVocabulary, prefix_ids: Sequence[int]
) -> Prompt:
    prompt = Prompt(model, inputs, prefix_ids)
    if prompt.logits.shape[-1] != vocabulary.vocab_size:
        raise ValueError(
            f"the model's logits are {prompt.logits.shape[-1]} wide, the vocabulary has "
            f"{vocabulary.vocab_size} tokens. Pass vocab_size=<width of the logits> to the vocabulary."
        )
    return prompt


def _check_options(
    quantiles: Sequence[float],
    digits: int | None,
    decimals: int,
    signed: bool,
    rows_per_pass: int,
    max_rows: Any,
) -> None:
    if not len(quantiles) or not all(0 < q < 1 for q in quantiles):
        raise ValueError(f"quantiles={tuple(quantiles)}: expected one or more numbers above 0 and below 1")
    if digits is None and (decimals or signed):
        raise ValueError(
            f"decimals={decimals}, signed={signed} apply to a fixed width only: pass digits=<digits before "
            "the point>. Without it, numbers may have any sign and decimals."
        )
    if rows_per_pass < 1 or (max_rows is not None and max_rows < 1):
        raise ValueError(f"rows_per_pass={rows_per_pass}, max_rows={max_rows}: expected 1 or more")
