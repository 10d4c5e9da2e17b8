"""Weights by place: the leading digits of a number matter more than its last."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ntloss.criteria.record import (
    Criterion,
    Needs,
    NumberRecord,
    needs_of,
    record_of_part,
    spans_of,
    tables_of_parts,
)

_WEIGHTINGS = ("exponential", "linear", "decimal")
_LARGEST_WEIGHT = 1e30


def place_weights(
    record: NumberRecord, criterion: Criterion, weighting: str, place_base: float = 1.2
) -> Tensor:
    r"""Weight of each position by the place of its digit.

    Args:
        record: with spans.
        criterion: who asks, for the error message.
        weighting: "exponential": $b^r$, r digits of the number behind this one (NTIL); "linear": $r + 1$
            (DIST2Loss); "decimal": $2 (place + 1)$ for integer digits, $1.02^{place - 1}$ behind the point,
            where places are -1, -2, ... (DEL).
        place_base: $b$.

    Returns:
        `[positions]`, at most 1e30 (with base 1.2 a number of 379 digits), so that no weight is infinite.

    Raises:
        ValueError: the record has no spans.
    """
    spans = spans_of(record, criterion)
    dtype = record.log_probs.dtype
    behind = spans.place_from_end.to(dtype)
    if weighting == "linear":
        return behind + 1
    if weighting == "exponential":
        return torch.pow(place_base, behind).clamp(max=_LARGEST_WEIGHT)
    place = spans.place.to(dtype)
    return torch.where(place >= 0, 2 * (place + 1), torch.pow(1.02, place - 1))


@dataclass(frozen=True)
class PlaceWeighted:
    r"""Any criterion, weighted by the place of the digit in its number.

    $w(place) \cdot loss$; around `Wasserstein` it is NTIL's token term. Smallest where the
    criterion is; its range is the criterion's times the weights'.
    Use it where a wrong leading digit is worse than a wrong last one. Each position still counts once in
    means.

    Args:
        criterion: what is weighted, one loss per token.
        weighting: "exponential" (default): `place_base` to the count of digits behind this one; "linear":
            that count + 1; "decimal": see `place_weights`.
        place_base: base of the exponential weights, 1 or more. Default: 1.2, as published.
        decimals: a point between two digits belongs to their number. Default: True for "decimal".

    Raises:
        ValueError: an unknown weighting, a base below 1, or a criterion that gives one loss per number.

    Source: NTIL, ACL 2025, the exponential position-based weighting.

    Example:
        >>> import torch
        >>> from ntloss import NumberTokenLoss, NumberVocabulary
        >>> from ntloss.criteria import PlaceWeighted, Wasserstein
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=16)
        >>> loss = NumberTokenLoss(digits, PlaceWeighted(Wasserstein(), place_base=2.0))
        >>> logits = torch.full((1, 3, 16), -1e4)
        >>> logits[..., 4] = 0.0  # certain of 4, three times
        >>> loss(logits, torch.tensor([[5, 5, 5]]), reduction="none")
        tensor([[4., 2., 1.]])
    """

    criterion: Criterion
    weighting: str = "exponential"
    place_base: float = 1.2
    decimals: bool | None = None

    def __post_init__(self) -> None:
        if self.weighting not in _WEIGHTINGS:
            raise ValueError(f"weighting={self.weighting!r}: expected one of {_WEIGHTINGS}")
        if not 1 <= self.place_base < float("inf"):
            raise ValueError(f"place_base={self.place_base!r}: expected a finite number of 1 or more")
        if needs_of(self.criterion).per_number:
            raise ValueError(
                f"criterion={self.criterion!r} gives one loss per number, which has no place. Expected a "
                "criterion on tokens, such as Wasserstein()."
            )

    @property
    def needs(self) -> Needs:
        """Places, and what the criterion needs."""
        decimals = self.weighting == "decimal" if self.decimals is None else self.decimals
        return needs_of(self.criterion).union(Needs(spans=True, decimals=decimals))

    def __call__(self, record: NumberRecord) -> Tensor:
        """Loss of each position, `[positions]`."""
        loss = self.criterion(record_of_part(record, 0))
        return loss * place_weights(record, self, self.weighting, self.place_base)

    def tables(self, values: Tensor) -> dict[str, Tensor]:
        """Those of the criterion."""
        return tables_of_parts((self.criterion,), values)

    def worst(self, values: Tensor) -> None:
        """None: numbers may be of any length, so weights have no bound."""
