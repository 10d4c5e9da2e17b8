"""Regression losses on the expected value."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss.criteria.criterion import CriterionInput, Needs, check_choice

_LOSSES: dict[str, Callable[..., Tensor]] = {
    "absolute": F.l1_loss,
    "huber": F.huber_loss,
    "squared": F.mse_loss,
}


@dataclass(frozen=True)
class ExpectedValue:
    r"""Regression loss between the expected value of the distribution and the label's value (NTL-L_p).

    $\ell(\sum_j p_j v_j,\; v_k)$. With the squared error it is NTL-MSE. It is 0 whenever the *mean* is right:
    half the probability on 3 and half on 5 costs nothing for a label of 4. Prefer `Wasserstein` or `CRPS`
    unless the mean is what you read out. If the label is uncertain, it is smallest for every distribution
    whose mean is the label's mean (squared error) or median (absolute error).

    Args:
        loss: "squared" (default), "absolute", "huber" (delta 1), or a callable `(prediction, target) ->
            loss` that works element by element. A callable with a `reduction` parameter, such as
            `torch.nn.functional.smooth_l1_loss`, is called with `reduction="none"`.
        over: what the probabilities $p_j$ are normalized over. "numbers" (default): the number tokens.
            "vocabulary": all tokens, so that probability on text pulls the expected value towards 0; this is
            the expectation of regression-aware fine-tuning (RAFT). If every number is one token, the combined
            loss with `mode="replace"` is RAFT's at every number label.

    Raises:
        ValueError: an unknown `loss` or `over`; when called, a callable that does not return one loss for
            each prediction.

    Source: "Regress, Don't Guess", ICML 2025, NTL-MSE; Lukasik et al., "Better autoregressive regression
    with LLMs via regression-aware fine-tuning", ICLR 2025, for `over="vocabulary"`.

    Example:
        >>> from ntloss import CriterionInput, ExpectedValue
        >>> x = CriterionInput(
        ...     log_probs=torch.tensor([[0.5, 0.0, 0.5]]).log(),
        ...     values=torch.tensor([3.0, 4.0, 5.0]),
        ...     target=torch.tensor([0]),
        ...     log_mass=torch.tensor([0.5]).log(),
        ... )
        >>> ExpectedValue("squared")(x)  # the mean is 4, the label 3
        tensor([1.])
        >>> ExpectedValue("squared", over="vocabulary")(x)  # half of it on text: the mean is 2
        tensor([1.])
    """

    loss: str | Callable[..., Tensor] = "squared"
    over: str = "numbers"
    _function: Callable[..., Tensor] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not callable(self.loss) and self.loss not in _LOSSES:
            raise ValueError(
                f"loss={self.loss!r}: expected one of {list(_LOSSES)}, or a callable (prediction, target) -> "
                "loss"
            )
        check_choice("over", self.over, ("numbers", "vocabulary"))
        function = _LOSSES[self.loss] if isinstance(self.loss, str) else self.loss
        if _takes_reduction(function):  # decided here because torch.compile cannot trace inspect
            function = functools.partial(function, reduction="none")
        object.__setattr__(self, "_function", function)

    @property
    def needs(self) -> Needs:
        """The log-normalizer, for an expectation over the vocabulary."""
        return Needs(log_normalizer=self.over == "vocabulary")

    def __call__(self, x: CriterionInput) -> Tensor:
        """Compute the loss of each position: `[positions]`."""
        prediction = (x.probs * x.values).sum(-1)
        if self.over == "vocabulary":
            if x.log_mass is None:
                raise ValueError(f"log_mass is None, but {self!r} needs the probability of all number tokens")
            prediction = prediction * x.log_mass.exp()
        return self._elementwise(prediction, x.target_values)

    def _elementwise(self, prediction: Tensor, target: Tensor) -> Tensor:
        losses = self._function(prediction, target)
        if losses.shape != prediction.shape:
            raise ValueError(
                f"the loss function {self.loss!r} returned shape {tuple(losses.shape)} for predictions of "
                f"shape {tuple(prediction.shape)}: expected one loss for each prediction"
            )
        return losses

    def worst(self, values: Tensor) -> float | None:
        """Return the larger loss of mistaking the smallest value for the largest or vice versa.

        None with `over="vocabulary"`.
        """
        if self.over == "vocabulary":
            return None
        ends = torch.stack([values[0], values[-1]])
        return float(self._elementwise(ends, ends.flip(0)).abs().max())


def _takes_reduction(function: Callable[..., Tensor]) -> bool:
    try:
        return "reduction" in inspect.signature(function).parameters
    except ValueError:  # builtins without a signature
        return False
