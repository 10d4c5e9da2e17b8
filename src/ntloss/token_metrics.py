"""How well a model predicts number tokens, teacher-forced: metrics of logits and labels.

Cheap enough for every evaluation step, and there long before generated answers are any good. What they do
not see is how errors add up over the digits of a generated number: for that, see `ntloss.metrics`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ntloss.engine.readout import check_logits, read_logits
from ntloss.engine.tables import NumberTables
from ntloss.engine.targets import check_labels, check_values, shift_left
from ntloss.metrics import gather
from ntloss.vocabulary import NumberVocabulary, as_vocabulary

# Each is a mean over positions whose label is a number, or over those whose label is text.
_OF_NUMBERS = ("token_accuracy", "value_accuracy", "expected_absolute_error", "mass", "cross_entropy")
_OF_TEXT = ("text_mass", "text_cross_entropy")


class TokenMetrics:
    r"""Streaming metrics of number tokens from logits and labels; mergeable over ranks.

    With $p$ the distribution over the distinct values of number tokens and $v_k$ the label's value:

    ========================= ===================================================================
    `number_tokens`           count of positions whose label is a number
    `text_tokens`             count of the others that are not ignored
    `token_accuracy`          share of number labels that are the likeliest token of all
    `value_accuracy`          share whose value is the likeliest number: forms of a value (`4`, `▁4`) are
                              one, and text is left aside
    `expected_absolute_error` mean of $\sum_j p_j |v_j - v_k|$, in the values' units: NTL-WAS itself
    `mass`                    mean probability of all number tokens together
    `cross_entropy`           mean over number labels, nats
    `text_mass`               mean probability of number tokens where the label is text
    `text_cross_entropy`      mean over text labels, nats
    ========================= ===================================================================

    `update` never waits for the device: sums stay there, in float64, until `compute`.

    Args:
        vocabulary: the number tokens; of a tokenizer, its default reading.
        ignore_index: label of positions that do not count. Default: -100.
        shift: labels are those of the inputs, as for causal models; see `NTLCrossEntropyLoss`. Default:
            labels are compared as they stand.
        places: places of a digit in its number to tell apart, such as `range(-2, 6)`: 0 is the unit, 1 the
            tens, -1 the tenths. Default: none. Others count in the totals alone.

    Raises:
        ValueError: `places` that are not consecutive.

    Source: expected absolute error: "Regress, Don't Guess", ICML 2025, NTL-WAS.

    Example:
        >>> import torch
        >>> from ntloss import NumberVocabulary
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> metrics = TokenMetrics(digits, places=range(2))
        >>> logits = torch.full((1, 3, 12), -100.0)
        >>> logits[0, [0, 1, 2], [4, 2, 11]] = 0.0  # certain of 4, of 2, and of a text
        >>> labels, places = torch.tensor([[4, 5, 11]]), torch.tensor([[1, 0, 0]])
        >>> results = metrics.update(logits, labels, places).compute()
        >>> results["number_tokens"], results["token_accuracy"], results["expected_absolute_error"]
        (2, 0.5, 1.5)
        >>> {place: row["token_accuracy"] for place, row in metrics.compute_by_place().items()}
        {0: 0.0, 1: 1.0}
    """

    def __init__(
        self,
        vocabulary: NumberVocabulary | Any,
        *,
        ignore_index: int = -100,
        shift: bool = False,
        places: range | None = None,
    ) -> None:
        if places is not None and places.step != 1:
            raise ValueError(f"places={places!r}: expected consecutive places, such as range(-2, 6)")
        self.ignore_index = ignore_index
        self.shift = shift
        self.places = range(0) if places is None else places
        self._tables = NumberTables(as_vocabulary(vocabulary))
        self._sums: Tensor | None = None

    @property
    def vocabulary(self) -> NumberVocabulary:
        """The number tokens."""
        return self._tables.vocabulary

    @torch.no_grad()
    def update(self, logits: Tensor, labels: Tensor, places: Tensor | None = None) -> TokenMetrics:
        """Add a batch.

        Args:
            logits: `[..., vocab]`, any float dtype.
            labels: `[...]`, token ids.
            places: `[...]`, whole numbers: place of each label in its number; read at number labels alone,
                and shifted with the labels.

        Returns:
            Itself.

        Raises:
            TypeError: logits that are not floating-point, labels that are not token ids.
            ValueError: shapes, devices or labels that do not fit; places missing, or given where none were
                announced.
        """
        check_logits(logits, self.vocabulary.vocab_size)
        check_labels(labels, logits)
        check_values(labels, None, self.vocabulary.vocab_size, self.ignore_index, None)
        if (places is None) != (len(self.places) == 0) or (
            places is not None and places.shape != labels.shape
        ):
            given = None if places is None else f"shape {list(places.shape)}"
            raise ValueError(
                f"places: given {given}, announced {self.places!r}. Expected TokenMetrics(..., "
                f"places=range(...)) and places of the labels' shape, {list(labels.shape)}, or neither."
            )
        self._tables.to(logits.device)
        if self.shift:
            labels, places = shift_left(labels, places, self.ignore_index)
        columns, is_number = self._columns(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
        sums = columns.sum(0, keepdim=True)
        if places is not None:
            sums = torch.cat([sums, self._by_place(columns, places.reshape(-1), is_number)])
        self._sums = sums if self._sums is None else self._sums.to(sums) + sums
        return self

    def _columns(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """`[positions, metrics]`: counts and metrics of each position, 0 where they do not apply."""
        tables = self._tables
        target, is_number = tables.lookup(labels, self.ignore_index)
        is_text = (labels != self.ignore_index) & ~is_number
        label = torch.where(labels != self.ignore_index, labels, 0)
        readout = read_logits(rows, label, tables.token_ids)
        x = tables.criterion_input(readout.number_logits, target, readout[:2])
        assert x.log_mass is not None, "it is computed if the log-normalizer is given"
        mass = x.log_mass.exp()
        cross_entropy = readout.log_sum + (readout.level - readout.label_logit)
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
        # Sums of long evaluations in float64, where the device has it.
        return torch.stack([column.to(tables.values.dtype) for column in columns], -1), is_number

    def _by_place(self, columns: Tensor, places: Tensor, is_number: Tensor) -> Tensor:
        """`[places, metrics]`, sums over the positions of each place."""
        count = len(self.places)
        wanted = is_number & (places >= self.places.start) & (places < self.places.stop)
        row = torch.where(wanted, places - self.places.start, count)  # the last one is for all else
        return columns.new_zeros(count + 1, columns.shape[-1]).index_add(0, row, columns)[:count]

    def compute(self) -> dict[str, float]:
        """Compute the metrics of all batches so far; more may follow. Waits for the device.

        Returns:
            Metric by name; NaN where there is nothing to average over.
        """
        totals = self._totals()[0].tolist()
        of_text = totals[1 + len(_OF_NUMBERS) :]
        results = _means(_OF_NUMBERS, totals)
        return {
            "number_tokens": results.pop("count"),
            "text_tokens": int(of_text[0]),
            **results,
            **{name: mean for name, mean in _means(_OF_TEXT, of_text).items() if name != "count"},
        }

    def compute_by_place(self) -> dict[int, dict[str, float]]:
        """Compute the metrics of number tokens for each place that was announced.

        Returns:
            For each place the `count` of its number labels, and the metrics that are means over these.
        """
        rows = self._totals()[1:].tolist()
        return {place: _means(_OF_NUMBERS, row) for place, row in zip(self.places, rows, strict=True)}

    def _totals(self) -> Tensor:
        """`[1 + places, metrics]`, on the CPU."""
        if self._sums is None:
            return torch.zeros(
                1 + len(self.places), 2 + len(_OF_NUMBERS) + len(_OF_TEXT), dtype=torch.float64
            )
        return self._sums.to("cpu", copy=True).to(torch.float64)

    def reset(self) -> None:
        """Forget all batches."""
        self._sums = None

    def merge(self, other: TokenMetrics) -> TokenMetrics:
        """Add the batches of another one.

        Args:
            other: of the same places; left as it is.

        Returns:
            Itself.

        Raises:
            ValueError: it has other places.
        """
        if other.places != self.places:
            raise ValueError(f"places {other.places!r} to be merged into {self.places!r}: expected the same")
        self._sums = self._totals() + other._totals()
        return self

    def gathered(self, group: dist.ProcessGroup | None = None) -> TokenMetrics:
        """The metrics of all ranks; each rank must call it, and each gets the same.

        Args:
            group: of processes. Default: all; without `torch.distributed`, this process alone.

        Returns:
            A new one, so that this one can go on.
        """
        result = copy.copy(self)
        result._sums = torch.stack(gather(self._totals(), group)).sum(0)
        return result

    def state_dict(self) -> dict[str, Tensor]:
        """What to save: `sums`, `[1 + places, metrics]`, float64."""
        return {"sums": self._totals()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take back what `state_dict` gave, in place of all batches so far.

        Raises:
            ValueError: it is not of this kind, or of other places.
        """
        expected = self.state_dict()["sums"].shape
        if "sums" not in state or state["sums"].shape != expected:
            raise ValueError(
                f"state with {sorted(state)}: expected 'sums' of shape {list(expected)}, as state_dict gives"
            )
        self._sums = state["sums"].clone()


def _means(names: tuple[str, ...], sums: list[float]) -> dict[str, float]:
    """The count that comes first, and the sums after it over that count."""
    count, *totals = sums[: 1 + len(names)]
    means = (total / count if count else math.nan for total in totals)
    return {"count": int(count), **dict(zip(names, means, strict=True))}
