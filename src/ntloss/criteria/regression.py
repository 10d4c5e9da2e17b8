"""Losses on the expected value."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss.criteria.criterion import CriterionInput

_EXPECTED_VALUE_LOSSES: dict[str, Callable[..., Tensor]] = {
    "squared": F.mse_loss,
    "absolute": F.l1_loss,
    "huber": F.huber_loss,
}


@dataclass(frozen=True)
class ExpectedValue:
    r"""Regression loss between the expected value of the distribution and the label's value (NTL-L_p).

    $\ell(\sum_j p_j v_j,\; v_k)$. With the squared error it is NTL-MSE. It is zero wherever the *mean* is
    right, so half the probability on 3 and half on 5 costs nothing for a label of 4: prefer `Wasserstein`
    unless the mean is what you read out. Where the label is uncertain, best is any distribution with the
    label's mean (squared error) or median (absolute error) as its mean.

    Args:
        loss: "squared" (default), "absolute", "huber" (delta 1), or a callable `(prediction, target) ->
            loss` that works element by element. One that has a `reduction` parameter, such as
            `torch.nn.functional.smooth_l1_loss`, is called with `reduction="none"`.

    Source: "Regress, Don't Guess", ICML 2025, NTL-MSE.

    Example:
        >>> import torch
        >>> x = CriterionInput(
        ...     log_probs=torch.tensor([[0.5, 0.0, 0.5]]).log(),
        ...     values=torch.tensor([3.0, 4.0, 5.0]),
        ...     target=torch.tensor([0]),
        ... )
        >>> ExpectedValue("squared")(x)
        tensor([1.])
    """

    loss: str | Callable[..., Tensor] = "squared"
    _function: Callable[..., Tensor] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not callable(self.loss) and self.loss not in _EXPECTED_VALUE_LOSSES:
            raise ValueError(
                f"loss={self.loss!r}: expected one of {sorted(_EXPECTED_VALUE_LOSSES)}, or a callable "
                "(prediction, target) -> loss"
            )
        function = _EXPECTED_VALUE_LOSSES[self.loss] if isinstance(self.loss, str) else self.loss
        if _takes_reduction(function):  # asked once: torch.compile cannot trace inspect
            function = functools.partial(function, reduction="none")
        object.__setattr__(self, "_function", function)

    def __call__(self, x: CriterionInput) -> Tensor:
        """Loss of each position, `[positions]`, in the units of `loss`."""
        return self.elementwise((x.probs * x.values).sum(-1), x.target_values)

    def elementwise(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Apply the regression loss to each pair; both and the result are `[positions]`.

        Raises:
            ValueError: the callable gave another shape than it was given.
        """
        losses = self._function(prediction, target)
        if losses.shape != prediction.shape:
            raise ValueError(
                f"the loss function {self.loss!r} gave shape {tuple(losses.shape)} for predictions of "
                f"shape {tuple(prediction.shape)}. Expected one loss for each."
            )
        return losses

    def worst(self, values: Tensor) -> float:
        """The larger loss of taking the smallest value for the largest, or the other way round."""
        ends = torch.stack([values[0], values[-1]])
        return float(self.elementwise(ends, ends.flip(0)).abs().max())


def _takes_reduction(function: Callable[..., Tensor]) -> bool:
    try:
        return "reduction" in inspect.signature(function).parameters
    except ValueError:  # builtins without a signature
        return False
