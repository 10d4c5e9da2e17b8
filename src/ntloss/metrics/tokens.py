"""Teacher-forced metrics of number tokens, from logits and labels.

They are cheap enough for every evaluation step, and informative before generation works, but do not show how
errors add up over the digits of a generated number: for that, see `NumericMetrics`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ntloss.engine.objective import criterion_input
from ntloss.engine.readout import IDENTITY, Query, summarize_logits
from ntloss.engine.tables import NumberTables
from ntloss.engine.targets import check_labels, check_logits
from ntloss.metrics.accumulator import Accumulator
from ntloss.numbers.vocabulary import NumberVocabulary, as_vocabulary

# Means over the positions whose label is a number, and over those whose label is text.
_OF_NUMBERS = ("token_accuracy", "value_accuracy", "expected_absolute_error", "mass", "cross_entropy")
_OF_TEXT = ("text_mass", "text_cross_entropy")


class TokenMetrics(Accumulator):
    r"""Streaming metrics of number tokens, from logits and labels.

    With the distribution $p$ over the distinct values of number tokens and the label's value $v_k$:

    ========================= ===================================================================
    `number_tokens`           number of positions whose label is a number
    `text_tokens`             number of positions whose label is text
    `token_accuracy`          share of number labels that are the most likely token
    `value_accuracy`          share of number labels whose value is the most likely value: forms of a value
                              (`4`, `▁4`) are merged, and text tokens are excluded
    `expected_absolute_error` mean of $\sum_j p_j |v_j - v_k|$, in the values' units; this is NTL-WAS
    `mass`                    mean total probability of the number tokens where the label is a number
    `cross_entropy`           mean over number labels, in nats
    `text_mass`               mean total probability of the number tokens where the label is text
    `text_cross_entropy`      mean over text labels, in nats
    ========================= ===================================================================

    `update` does not synchronize with the device: sums stay there, in float64, until `compute`.

    Args:
        vocabulary: the number tokens, or a tokenizer, whose default token set is used.
        ignore_index: label of positions to ignore. Default: -100.
        places: decimal places to report separately, such as `range(-2, 6)`: 0 for units, 1 for tens, -1 for
            tenths. Default: none.

    Raises:
        ValueError: `places` are not consecutive.

    Source: expected absolute error: "Regress, Don't Guess", ICML 2025, NTL-WAS.

    Example:
        >>> import torch
        >>> from ntloss import NumberVocabulary
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> metrics = TokenMetrics(digits, places=range(2))
        >>> logits = torch.full((1, 3, 12), -100.0)
        >>> logits[0, [0, 1, 2], [4, 2, 11]] = 0.0  # predicts 4, 2 and a text token
        >>> labels, places = torch.tensor([[4, 5, 11]]), torch.tensor([[1, 0, 0]])
        >>> results = metrics.update(logits, labels, places).compute()
        >>> results["number_tokens"], results["token_accuracy"], results["expected_absolute_error"]
        (2, 0.5, 1.5)
        >>> {place: row["token_accuracy"] for place, row in metrics.compute_by_place().items()}
        {0: 0.0, 1: 1.0}
    """

    def __init__(
        self, vocabulary: NumberVocabulary | Any, *, ignore_index: int = -100, places: range | None = None
    ) -> None:
        if places is not None and places.step != 1:
            raise ValueError(f"places={places!r}: expected consecutive places, such as range(-2, 6)")
        self.ignore_index = ignore_index
        self.places = range(0) if places is None else places
        # Over all positions, then over each decimal place: counts and sums of numbers and of text.
        super().__init__(1 + len(self.places), 2 + len(_OF_NUMBERS) + len(_OF_TEXT))
        self._tables = NumberTables(as_vocabulary(vocabulary))

    @torch.no_grad()
    def update(self, logits: Tensor, labels: Tensor, places: Tensor | None = None) -> TokenMetrics:
        """Add a batch.

        Args:
            logits: `[..., vocab]`, any float dtype.
            labels: `[...]`, token ids; for a causal model, pass `logits[:, :-1]` and `labels[:, 1:]`.
            places: `[...]`, int, decimal place of each label, used at number labels. Required if the
                constructor was given `places`.

        Returns:
            `self`.

        Raises:
            TypeError: logits are not floating-point, or labels are not token ids.
            ValueError: shapes, devices or labels do not match; `places` are missing or unexpected.
        """
        vocab_size = self._tables.vocabulary.vocab_size
        check_logits(logits, vocab_size)
        check_labels(labels, logits, vocab_size, self.ignore_index)
        given = None if places is None else list(places.shape)
        if given != (list(labels.shape) if self.places else None):
            raise ValueError(
                f"update(places=...): given shape {given}, for TokenMetrics(places={self.places!r}). "
                f"Expected a range there and the labels' shape here, {list(labels.shape)}, or neither."
            )
        self._tables.to(logits.device)
        columns, is_number = self._columns(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
        sums = columns.sum(0, keepdim=True)
        if places is not None:
            sums = torch.cat([sums, self._by_place(columns, places.reshape(-1), is_number)])
        self._add(sums)
        return self

    def _columns(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Counts and metrics of each position, `[positions, metrics]`, 0 where they do not apply."""
        tables = self._tables
        counted = labels != self.ignore_index
        label = torch.where(counted, labels, 0)
        value = tables.value_of_token[label]
        target, is_number, is_text = value.clamp(min=0), counted & (value >= 0), counted & (value < 0)
        readout = summarize_logits(rows, Query(label, tables.token_ids, IDENTITY))
        x = criterion_input(tables, readout.number_logits, target, readout[:2])
        assert x.log_mass is not None, "it is computed if the log-normalizer is given"
        mass = x.log_mass.exp()
        cross_entropy = readout.shifted_lse + (readout.row_max - readout.label_logit)
        distance = (x.values - x.target_values.unsqueeze(-1)).abs()
        of_numbers = (
            torch.ones_like(mass),
            rows.argmax(-1) == label,
            x.log_probs.argmax(-1) == target,
            (x.probs * distance).sum(-1),
            mass,
            cross_entropy,
        )
        of_text = (torch.ones_like(mass), mass, cross_entropy)
        columns = [torch.where(is_number, column, 0) for column in of_numbers]
        columns += [torch.where(is_text, column, 0) for column in of_text]
        # float64 for the sums of long evaluations, on devices that support it.
        return torch.stack([column.to(tables.values.dtype) for column in columns], -1), is_number

    def _by_place(self, columns: Tensor, places: Tensor, is_number: Tensor) -> Tensor:
        """Sums over the positions of each decimal place, `[places, metrics]`."""
        count = len(self.places)
        wanted = is_number & (places >= self.places.start) & (places < self.places.stop)
        row = torch.where(wanted, places - self.places.start, count)  # the last row is for all other places
        return columns.new_zeros(count + 1, columns.shape[-1]).index_add(0, row, columns)[:count]

    def compute(self) -> dict[str, float]:
        """Compute the metrics of all batches so far.

        Returns:
            Name to value; NaN for a mean over no positions.
        """
        totals = self._total()[0].tolist()
        of_numbers, of_text = _means(_OF_NUMBERS, totals), _means(_OF_TEXT, totals[1 + len(_OF_NUMBERS) :])
        counts = {"number_tokens": of_numbers.pop("count"), "text_tokens": of_text.pop("count")}
        return {**counts, **of_numbers, **of_text}

    def compute_by_place(self) -> dict[int, dict[str, float]]:
        """Compute the metrics of number tokens for each of the `places`.

        Returns:
            Decimal place to the `count` of its number labels and the means over these.
        """
        rows = self._total()[1:].tolist()
        return {place: _means(_OF_NUMBERS, row) for place, row in zip(self.places, rows, strict=True)}


def _means(names: tuple[str, ...], sums: list[float]) -> dict[str, float]:
    """Divide sums by the count that precedes them."""
    count, *totals = sums[: 1 + len(names)]
    means = (total / count if count else math.nan for total in totals)
    return {"count": int(count), **dict(zip(names, means, strict=True))}
