"""Losses that measure how far the predicted distribution is from the label's value."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss.criteria.criterion import (
    Criterion,
    CriterionInput,
    Needs,
    Tabulated,
    check_choice,
    check_positive,
)


@dataclass(frozen=True)
class Wasserstein:
    r"""Wasserstein-1 distance between the predicted distribution and the label's value (NTL-WAS).

    $\sum_j p_j \, |v_j - v_k|$ for a label of value $v_k$: the expected absolute error of a number drawn
    from the model. It ranges from 0 to the range of the values and is 0 only if all probability is on the
    label's value. If the label is uncertain, it is smallest with all probability on the label's median, so
    it sharpens the distribution beyond the truth; `CRPS` does not.

    Args:
        squash_factor: ratio of the largest to the smallest cost of a wrong value, above 1. The cost becomes
            $1 + (|v_j - v_k| - c_{min})(s - 1)/(c_{max} - c_{min})$ with $c_{min}$ and $c_{max}$ the smallest
            non-zero and the largest distance between two values. Use it for irregularly spaced or very large
            values. Default: None, the plain distance.

    Raises:
        ValueError: `squash_factor` is not a finite number above 1.

    Source: "Regress, Don't Guess", ICML 2025, NTL-WAS; the squashing is from the package ntloss.

    Example:
        >>> from ntloss import CriterionInput, Wasserstein
        >>> probs, values = torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([0.0, 1.0, 2.0])
        >>> Wasserstein()(CriterionInput(probs.log(), values, target=torch.tensor([0])))
        tensor([0.7500])
    """

    squash_factor: float | None = None

    def __post_init__(self) -> None:
        check_squash(self.squash_factor)

    def __call__(self, x: CriterionInput) -> Tensor:
        """Compute the loss of each position: `[positions]`."""
        return self.bind(x.values, x.log_probs)(x)

    def bind(self, values: Tensor, like: Tensor) -> Criterion:
        """Return the loss; a ValueError if the distances between the values cannot be squashed."""
        # Here rather than at each call, because reading values synchronizes an accelerator.
        check_squash(self.squash_factor, values)
        return self._loss

    def _loss(self, x: CriterionInput) -> Tensor:
        cost = (x.values - x.values[x.target].unsqueeze(-1)).abs()
        if self.squash_factor is not None:
            cost = squashed(cost, x.values, self.squash_factor)
        return (x.log_probs.exp() * cost).sum(-1)

    def worst(self, values: Tensor) -> float:
        """Return the largest cost between two values of the vocabulary."""
        check_squash(self.squash_factor, values)
        return float(values[-1] - values[0] if self.squash_factor is None else self.squash_factor)


def squashed(distance: Tensor, values: Tensor, factor: float) -> Tensor:
    """Map non-zero distances between ascending `values` to the range from 1 to `factor`."""
    smallest, largest = values.diff().min(), values[-1] - values[0]
    stretched = 1 + (distance - smallest) * ((factor - 1) / (largest - smallest))
    return torch.where(distance == 0, 0.0, stretched)


def check_squash(factor: float | None, values: Tensor | None = None) -> None:
    """Raise a ValueError unless a squash factor is above 1 or None, and the distances of `values` differ."""
    if factor is None:
        return
    if not 1 < factor < math.inf:
        raise ValueError(
            f"squash_factor={factor!r}: expected a finite number above 1 (at 1 every wrong value costs the "
            "same), or None for the plain distance"
        )
    if values is not None and (len(values) < 2 or values.diff().min() == values[-1] - values[0]):
        raise ValueError(
            f"squash_factor={factor} needs at least three distinct values, or distances that "
            f"differ; the vocabulary has the values {values.tolist()}. Pass squash_factor=None."
        )


@dataclass(frozen=True)
class CRPS:
    r"""Continuous ranked probability score between the predicted distribution and the label's value.

    $\sum_j (F_j - 1[v_j \ge v_k])^2 (v_{j+1} - v_j)$ with $F$ the cumulative probability over the sorted
    values, which is $E|X - v_k| - \frac{1}{2} E|X - X'|$ for two independent draws $X$ and $X'$ from the
    model. It ranges from 0 to the range of the values and is 0 only if all probability is on the label's
    value. It is a strictly proper score: if the label is uncertain, it is smallest exactly at the label's
    own distribution, among all distributions over the numbers. With `Reweighed` it is not proper.

    Source: Matheson and Winkler, Management Science 1976; the second form is from Gneiting and Raftery,
    "Strictly Proper Scoring Rules, Prediction, and Estimation", JASA 2007, equation 21.

    Example:
        >>> from ntloss import CRPS, CriterionInput
        >>> probs, values = torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([0.0, 1.0, 2.0])
        >>> CRPS()(CriterionInput(probs.log(), values, target=torch.tensor([0])))  # 0.5 ** 2 + 0.25 ** 2
        tensor([0.3125])
    """

    def __call__(self, x: CriterionInput) -> Tensor:
        """Compute the loss of each position: `[positions]`."""
        below = torch.arange(len(x.values) - 1, device=x.target.device)
        step = (below >= x.target.unsqueeze(-1)).to(x.log_probs.dtype)
        apart = x.probs.cumsum(-1)[:, :-1] - step
        return (apart.square() * x.values.diff()).sum(-1)

    def worst(self, values: Tensor) -> float:
        """Return the range of the values."""
        return float(values[-1] - values[0])


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


@dataclass(frozen=True)
class SMMD(Tabulated):
    r"""Squared maximum mean discrepancy with a smoothness term (SMMD).

    $r^T K r + \alpha \, r^T (D - K) r$ with $r = p - e_k$ the error of the distribution,
    $K_{ij} = \exp(-d_{ij}^2 / 2\sigma^2)$ the kernel of the values, $D = diag(K 1)$ and
    $\alpha = 1 / (2 \, mean(K 1))$. It ranges from 0 to a few units, and is zero exactly if all probability
    is on the label's value. If the label is uncertain, its own distribution is optimal, as for cross-entropy.
    The kernel treats errors at neighboring values as nearly the same; the second term penalizes differences
    between the errors of neighbors.

    Use it for a smooth loss with a bounded gradient. Its cost grows with the square of the number of values:
    one product with a matrix `[values, values]` per position.

    Args:
        sigma: bandwidth of the kernel in units of the (squashed) distances; a larger one responds to errors
            at a larger distance. Default: 2, as published.
        squash_factor: ratio of the largest to the smallest distance after squashing (`Wasserstein`), or None
            for plain distances. Default: 9, as published, which changes nothing on digits.

    Raises:
        ValueError: an option is out of range.

    Source: SMMD, ICML 2026.

    Example:
        >>> from ntloss import SMMD, NumberTokenLoss, NumberVocabulary
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=16)
        >>> logits = torch.full((1, 16), -1e4)
        >>> logits[0, 3] = 0.0  # certain of 3
        >>> loss = NumberTokenLoss(digits, SMMD())
        >>> round(loss(logits, torch.tensor([4])).item(), 4)  # of which 2 - 2 exp(-1/8) is the first term
        1.3608
    """

    sigma: float = 2.0
    squash_factor: float | None = 9.0

    def __post_init__(self) -> None:
        check_positive("sigma", self.sigma)
        check_squash(self.squash_factor)

    def _loss(self, x: CriterionInput, matrix: Tensor) -> Tensor:
        step = torch.full_like(x.target, -1, dtype=x.log_probs.dtype)
        error = x.probs.scatter_add(-1, x.target.unsqueeze(-1), step.unsqueeze(-1))
        if torch._C._are_functorch_transforms_active():  # they cannot call it
            return (error * (error @ matrix)).sum(-1)
        loss: Tensor = _QuadraticForm.apply(error, matrix)  # type: ignore[no-untyped-call]
        return loss

    def _tables(self, values: Tensor) -> dict[str, Tensor]:
        check_squash(self.squash_factor, values)
        distance = (values - values.unsqueeze(-1)).abs()
        if self.squash_factor is not None:
            distance = squashed(distance, values, self.squash_factor)
        kernel = torch.exp(-distance.square() / (2 * self.sigma**2))
        degrees = kernel.sum(-1)
        return {"matrix": kernel + (degrees.diag() - kernel) / (2 * degrees.mean())}

    def worst(self, values: Tensor) -> float:
        """Compute the largest loss with all probability on one value."""
        matrix = self._tables(values)["matrix"]
        own = matrix.diagonal()
        return float((own + own.unsqueeze(-1) - 2 * matrix).max())


class _QuadraticForm(torch.autograd.Function):
    """`rᵀ M r` of each row, M symmetric, with one product with M instead of autograd's three."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, matrix: Tensor) -> Tensor:
        products = rows @ matrix
        ctx.save_for_backward(rows, matrix, products)
        return (rows * products).sum(-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        rows, matrix, products = ctx.saved_tensors
        if torch.is_grad_enabled():  # with create_graph=True, the gradient needs a graph of its own
            products = rows @ matrix
        return 2 * grad.unsqueeze(-1) * products, None
