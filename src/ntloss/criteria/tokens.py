"""Criteria with one loss for each number token.

Each function reads the distribution p over the values v_j of the number tokens at the positions whose label
is a number, of value v_k, and returns one loss for each position. The names of its parameters say what it
reads (`ntloss.criteria.READABLE`); those with a default are options. docs/criteria.md compares the criteria,
and says which distribution minimizes each of them if the label is uncertain.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss.criteria.targets import (
    check_positive,
    cramer_distance,
    cross_entropy,
    exponential,
    facts,
    gaussian,
    kl_divergence,
    made_once,
    mixture,
    wasserstein_distance,
)

__all__ = [
    "ntl_was",
    "ntl_mse",
    "ntl_mae",
    "ntl_huber",
    "crps",
    "gaussian_smoothing",
    "smoothed_wasserstein",
    "dist2",
    "del_loss",
    "smmd",
    "raft",
]


@facts("NTL-WAS", in_units=True, expected_cost=True)
def ntl_was(
    probs: Tensor,
    values: Tensor,
    target: Tensor,
    target_probs: Tensor | None = None,
    squash: float | None = None,
) -> Tensor:
    """NTL-WAS: the Wasserstein-1 distance between the predicted distribution and the label's value.

    sum_j p_j |v_j - v_k| is the expected absolute error of a number drawn from the model. It sharpens the
    distribution beyond the truth, which `crps` does not. For a soft label it is the Wasserstein-1 distance to
    the label's distribution.

    Args:
        probs, values, target, target_probs: see `ntloss.criteria.READABLE`.
        squash: ratio s of the largest to the smallest cost of a wrong value, above 1, for irregularly spaced
            or very large values. The cost becomes 1 + (|v_j - v_k| - c_min) (s - 1) / (c_max - c_min) with
            c_min and c_max the smallest and largest distance of two values. Default: None, plain distances.

    Returns:
        `[positions]`, from 0 to the range of the values, in their unit.

    Raises:
        ValueError: `squash` is not a finite number above 1, or there are fewer than three distinct values,
            or it is given with soft labels.

    Source: "Regress, Don't Guess", ICML 2025, NTL-WAS; the squashing is from the package ntloss.

    Example:
        >>> probs, values = torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([0.0, 1.0, 2.0])
        >>> ntl_was(probs, values, target=torch.tensor([0]))
        tensor([0.7500])
    """
    if target_probs is not None:
        if squash is not None:
            raise ValueError(f"squash={squash} with soft labels, which have no squashed cost: pass None")
        return wasserstein_distance(target_probs, probs, values)
    if squash is None:
        cost = (values - values[target].unsqueeze(-1)).abs()
    else:
        cost = squashed_distances(values, squash)[target]
    return (probs * cost).sum(-1)


@made_once
def squashed_distances(values: Tensor, squash: float | None) -> Tensor:
    """Compute the distances of all values, `[values, values]`, squashed as in `ntl_was` if that is given."""
    distances = (values - values.unsqueeze(-1)).abs()
    if squash is None:
        return distances
    if not 1 < squash < float("inf") or len(values) < 3:
        raise ValueError(
            f"squash={squash!r} with {len(values)} distinct values: expected a finite number above 1 (at 1 "
            "every wrong value costs the same) and at least three values, or None for the plain distance"
        )
    smallest, largest = values.diff().min(), values[-1] - values[0]
    stretched = 1 + (distances - smallest) * ((squash - 1) / (largest - smallest))
    return torch.where(distances == 0, 0.0, stretched)


@facts("NTL-MSE", in_units=True)
def ntl_mse(probs: Tensor, values: Tensor, target: Tensor) -> Tensor:
    """NTL-MSE: the squared error of the expected value, (sum_j p_j v_j - v_k)^2.

    It is 0 whenever the *mean* is right: half the probability on 3 and half on 5 costs nothing for a label of
    4. Prefer `ntl_was` or `crps` unless the mean is what you read out.

    Args:
        probs, values, target: see `ntloss.criteria.READABLE`.

    Returns:
        `[positions]`, in the squared unit of the values.

    Source: "Regress, Don't Guess", ICML 2025, NTL-MSE.

    Example:
        >>> probs, values = torch.tensor([[0.5, 0.0, 0.5]]), torch.tensor([3.0, 4.0, 5.0])
        >>> ntl_mse(probs, values, target=torch.tensor([0]))  # the mean is 4, the label 3
        tensor([1.])
    """
    return ((probs * values).sum(-1) - values[target]).square()


@facts("NTL-MAE", in_units=True)
def ntl_mae(probs: Tensor, values: Tensor, target: Tensor) -> Tensor:
    """NTL-MAE: the absolute error of the expected value, |sum_j p_j v_j - v_k|, 0 where the mean is right.

    Args:
        probs, values, target: see `ntloss.criteria.READABLE`.

    Returns:
        `[positions]`, in the unit of the values.

    Source: "Regress, Don't Guess", ICML 2025.

    Example:
        >>> probs, values = torch.tensor([[0.5, 0.0, 0.5]]), torch.tensor([3.0, 4.0, 5.0])
        >>> ntl_mae(probs, values, target=torch.tensor([2]))
        tensor([1.])
    """
    return ((probs * values).sum(-1) - values[target]).abs()


@facts("NTL-Huber", in_units=True)
def ntl_huber(probs: Tensor, values: Tensor, target: Tensor, delta: float = 1.0) -> Tensor:
    """NTL-Huber: the Huber loss of the expected value, squared up to `delta` and absolute beyond it.

    Args:
        probs, values, target: see `ntloss.criteria.READABLE`.
        delta: error at which the loss turns from squared to absolute. Default: 1.

    Returns:
        `[positions]`.

    Source: "Regress, Don't Guess", ICML 2025.

    Example:
        >>> probs, values = torch.tensor([[0.5, 0.0, 0.5]]), torch.tensor([3.0, 4.0, 5.0])
        >>> ntl_huber(probs, values, target=torch.tensor([2]))
        tensor([0.5000])
    """
    return F.huber_loss((probs * values).sum(-1), values[target], reduction="none", delta=delta)


@facts("RAFT", replaces=True)
def raft(probs: Tensor, log_mass: Tensor, values: Tensor, target: Tensor) -> Tensor:
    """RAFT: the squared error of the expected value over the whole vocabulary, where text counts as 0.

    (m sum_j p_j v_j - v_k)^2 with m the total probability of the number tokens takes the place of
    cross-entropy at number labels. Where every number is one token, it is the loss of the paper; where
    numbers have several tokens, it treats each of them as a number.

    Args:
        probs, log_mass, values, target: see `ntloss.criteria.READABLE`.

    Returns:
        `[positions]`, in the squared unit of the values.

    Source: Lukasik et al., "Better autoregressive regression with LLMs via regression-aware fine-tuning",
    ICLR 2025.

    Example:
        >>> probs, values = torch.tensor([[0.5, 0.0, 0.5]]), torch.tensor([3.0, 4.0, 5.0])
        >>> half_on_text = torch.tensor([0.5]).log()
        >>> raft(probs, half_on_text, values, target=torch.tensor([0]))  # 0.5 * 4 - 3
        tensor([1.])
    """
    return ((probs * values).sum(-1) * log_mass.exp() - values[target]).square()


@facts("CRPS", in_units=True, expected_cost=True, spread=True)
def crps(probs: Tensor, values: Tensor, target: Tensor, target_probs: Tensor | None = None) -> Tensor:
    """Continuous ranked probability score: the Cramér distance between prediction and label.

    sum_j (F_j - 1[v_j >= v_k])^2 (v_{j+1} - v_j) with F the cumulative probability, which is
    E|X - v_k| - E|X - X'| / 2 for two independent draws X and X' from the model. It is a strictly proper
    score: if the label is uncertain, it is smallest exactly at the label's own distribution. On the levels of
    a rating it is the ranked probability score. For a soft label it is the Cramér distance to the label's
    distribution, with the same gradient as the mean over labels drawn from it.

    Args:
        probs, values, target, target_probs: see `ntloss.criteria.READABLE`.

    Returns:
        `[positions]`, from 0 to the range of the values, in their unit.

    Source: Matheson and Winkler, Management Science 1976; the second form is from Gneiting and Raftery,
    "Strictly Proper Scoring Rules, Prediction, and Estimation", JASA 2007, equation 21.

    Example:
        >>> probs, values = torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([0.0, 1.0, 2.0])
        >>> crps(probs, values, target=torch.tensor([0]))  # 0.5 ** 2 + 0.25 ** 2
        tensor([0.3125])
    """
    if target_probs is not None:
        return cramer_distance(target_probs, probs, values)
    step = torch.arange(len(values) - 1, device=target.device) >= target.unsqueeze(-1)
    return ((probs.cumsum(-1)[:, :-1] - step.to(probs)).square() * values.diff()).sum(-1)


@facts("Gaussian smoothing", replaces=True, fixed_target=True)
def gaussian_smoothing(
    vocab_log_probs: Tensor,
    values: Tensor,
    target: Tensor,
    target_probs: Tensor | None = None,
    sigma: float = 1.0,
) -> Tensor:
    """Gaussian label smoothing: cross-entropy with the label spread over values near it, in nats.

    -sum_j q_j log(m p_j) with q_j proportional to exp(-(v_j - v_k)^2 / (2 sigma^2)) and m the probability of
    all number tokens, so probability on text costs, too. It takes the place of cross-entropy at number
    labels. Use it where near misses are acceptable, not where answers are either right or wrong.

    Args:
        vocab_log_probs, values, target, target_probs: see `ntloss.criteria.READABLE`. For a soft label, q is
            the mixture of the targets of its values.
        sigma: standard deviation of the target, in the unit of the values. As sigma decreases, the loss
            approaches cross-entropy. Default: 1, as published.

    Returns:
        `[positions]`, from the entropy of q.

    Raises:
        ValueError: `sigma` is not above 0.

    Source: "Regress, Don't Guess", ICML 2025, baseline.

    Example:
        >>> probs, values = torch.tensor([[0.5, 0.5]]), torch.tensor([0.0, 1.0])
        >>> gaussian_smoothing(probs.log(), values, torch.tensor([0]))  # log(2)
        tensor([0.6931])
    """
    return cross_entropy(mixture(gaussian(values, sigma), target, target_probs), vocab_log_probs)


@facts("smoothed NTL-WAS", in_units=True)
def smoothed_wasserstein(
    probs: Tensor,
    values: Tensor,
    target: Tensor,
    target_probs: Tensor | None = None,
    sigma: float = 1.0,
) -> Tensor:
    """Wasserstein-1 distance between the predicted distribution and a Gaussian around the label's value.

    The target is that of `gaussian_smoothing`. The model is asked to spread its probability: its most likely
    value is the label's, but its mean and median move inwards for labels near the ends. `ntl_was` is the
    limit for small sigma.

    Args:
        probs, values, target, target_probs, sigma: see `gaussian_smoothing`.

    Returns:
        `[positions]`, in the unit of the values, 0 exactly if the probabilities are the target.

    Raises:
        ValueError: `sigma` is not above 0.

    Source: "Regress, Don't Guess", ICML 2025, baseline.

    Example:
        >>> probs, values = torch.tensor([[0.0, 1.0, 0.0]]), torch.tensor([0.0, 1.0, 2.0])
        >>> smoothed_wasserstein(probs, values, torch.tensor([1]))  # 1 - 1 / (1 + 2 exp(-1/2))
        tensor([0.5481])
    """
    return wasserstein_distance(mixture(gaussian(values, sigma), target, target_probs), probs, values)


@facts("DIST2", fixed_target=True)
def dist2(
    log_probs: Tensor,
    values: Tensor,
    target: Tensor,
    target_probs: Tensor | None = None,
    tau: float = 1.0,
) -> Tensor:
    """DIST2Loss: the Kullback-Leibler divergence from a target that decays with the distance, in nats.

    KL(q || p) with q_j proportional to exp(-(v_j - v_k)^2 / tau). It sees only the distribution among the
    number tokens; cross-entropy beside it covers the rest. The paper weights each digit by its place:
    `dist2(log_probs, values, target) * (digits_after + 1)`.

    Args:
        log_probs, values, target, target_probs: see `ntloss.criteria.READABLE`. For a soft label, q is the
            mixture of the targets of its values.
        tau: temperature of the target; as it approaches 0, the loss becomes cross-entropy among the number
            tokens. Default: 1, as published.

    Returns:
        `[positions]`, 0 exactly if p = q.

    Raises:
        ValueError: `tau` is not above 0.

    Source: DIST2Loss, ICLR 2026.

    Example:
        >>> probs, values = torch.tensor([[0.5, 0.5]]), torch.tensor([0.0, 1.0])
        >>> dist2(probs.log(), values, torch.tensor([0]))  # q = [0.7311, 0.2689]
        tensor([0.1109])
    """
    return kl_divergence(mixture(exponential(values, tau), target, target_probs), log_probs)


@facts("DEL")
def del_loss(probs: Tensor, logits: Tensor, target: Tensor) -> Tensor:
    """Digit entropy loss (DEL): binary cross-entropy of each digit's logit, weighted with its probability.

    0.01 mean_j p_j (softplus(z_j) - [j = k] z_j) penalizes likely digits other than the label's. Unlike all
    other criteria it depends on the level of the logits: it also tends to zero if all probability is on a
    *wrong* digit and all logits are far below zero. So use it beside cross-entropy with weight 1, as
    published. The paper multiplies it by 2 (place + 1) for digits before the point, and by 1.02^(place - 1)
    after it.

    Args:
        probs, logits, target: see `ntloss.criteria.READABLE`.

    Returns:
        `[positions]`, 0 or more.

    Source: DEL, 2026.

    Example:
        >>> probs, logits = torch.full((1, 10), 0.1), torch.zeros(1, 10)
        >>> del_loss(probs, logits, torch.tensor([4])) * 1000  # 0.01 * log(2) / 10
        tensor([0.6931])
    """
    # softplus(-z) is softplus(z) - z without the difference of large numbers.
    target = target.unsqueeze(-1)
    signed = logits.scatter(-1, target, -logits.gather(-1, target))
    return 0.01 * (probs * F.softplus(signed)).mean(-1)


@facts("SMMD")
def smmd(
    probs: Tensor,
    values: Tensor,
    target: Tensor,
    target_probs: Tensor | None = None,
    sigma: float = 2.0,
    squash: float | None = 9.0,
) -> Tensor:
    """Squared maximum mean discrepancy with a smoothness term (SMMD).

    r' K r + alpha r' (D - K) r with r = p - e_k the error of the distribution, K_ij = exp(-d_ij^2 / (2
    sigma^2)) the kernel of the values, D = diag(K 1) and alpha = 1 / (2 mean(K 1)). The kernel treats errors
    at neighboring values as nearly the same; the second term penalizes differences between the errors of
    neighbors. Its cost grows with the square of the number of values: one product with a matrix
    `[values, values]` for each position.

    Args:
        probs, values, target, target_probs: see `ntloss.criteria.READABLE`. For a soft label, r is the
            difference of the two distributions.
        sigma: bandwidth of the kernel in units of the (squashed) distances. Default: 2, as published.
        squash: ratio of the largest to the smallest distance after squashing (`ntl_was`), or None for plain
            distances. Default: 9, as published, which changes nothing on digits.

    Returns:
        `[positions]`, from 0, exactly if all probability is on the label's value, to a few units.

    Raises:
        ValueError: an option is out of range.

    Source: SMMD, ICML 2026.

    Example:
        >>> probs, values = F.one_hot(torch.tensor([3]), 10).float(), torch.arange(10.0)
        >>> smmd(probs, values, torch.tensor([4]))  # of which 2 - 2 exp(-1/8) is the first term
        tensor([1.3608])
    """
    error = probs - (F.one_hot(target, len(values)).to(probs) if target_probs is None else target_probs)
    products = error @ _smmd_matrix(values, sigma, squash)
    if not torch._C._are_functorch_transforms_active():
        # The matrix M is symmetric, so the gradient of r' M r is 2 M r. This form has it without a product in
        # the backward pass, which autocast would compute in bfloat16.
        error, products = 2 * error - error.detach(), products.detach()
    return (error * products).sum(-1)


@made_once
def _smmd_matrix(values: Tensor, sigma: float, squash: float | None) -> Tensor:
    check_positive("sigma", sigma)
    kernel = torch.exp(-squashed_distances(values, squash).square() / (2 * sigma**2))
    degrees = kernel.sum(-1)
    return kernel + (degrees.diag() - kernel) / (2 * degrees.mean())
