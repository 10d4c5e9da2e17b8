"""Maximum mean discrepancy between the predicted distribution and the label's value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ntloss.criteria.criterion import CriterionInput, Tabulated, check_choice, check_positive
from ntloss.criteria.transport import check_squash, squashed


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
        sigma: bandwidth in units of the (squashed) distances, or several, whose kernels are averaged; a
            larger one responds to errors at a larger distance. Default: 2, as published.
        kernel: "gaussian" (default) or "laplace", $\exp(-d_{ij} / \sigma)$.
        form: "both" terms (default), "mmd" (the first alone) or "smoothness" (the second alone).
        alpha: factor of the second term. Default: $1 / (2 \, mean(K 1))$, as published.
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
        >>> loss = NumberTokenLoss(digits, SMMD(form="mmd"))
        >>> round(loss(logits, torch.tensor([4])).item(), 4)  # 2 - 2 exp(-1/8)
        0.235
    """

    sigma: float | tuple[float, ...] = 2.0
    kernel: str = "gaussian"
    form: str = "both"
    alpha: float | None = None
    squash_factor: float | None = 9.0

    def __post_init__(self) -> None:
        if isinstance(self.sigma, Iterable):  # a configuration file has a list
            object.__setattr__(self, "sigma", tuple(self.sigma))
        if not self._bandwidths:
            raise ValueError("sigma=(): expected at least one number above 0")
        for sigma in self._bandwidths:
            check_positive("sigma", sigma)
        check_choice("kernel", self.kernel, ("gaussian", "laplace"))
        check_choice("form", self.form, ("both", "mmd", "smoothness"))
        if self.alpha is not None:
            check_positive("alpha", self.alpha)
        check_squash(self.squash_factor)

    @property
    def _bandwidths(self) -> tuple[float, ...]:
        return self.sigma if isinstance(self.sigma, tuple) else (self.sigma,)

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
        if self.kernel == "gaussian":
            exponents = [distance.square() / (2 * sigma**2) for sigma in self._bandwidths]
        else:
            exponents = [distance / sigma for sigma in self._bandwidths]
        kernel = torch.stack(exponents).neg().exp().mean(0)
        degrees = kernel.sum(-1)
        alpha = 1 / (2 * degrees.mean()) if self.alpha is None else self.alpha
        smoothness = alpha * (degrees.diag() - kernel)
        return {"matrix": {"mmd": kernel, "smoothness": smoothness, "both": kernel + smoothness}[self.form]}

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
