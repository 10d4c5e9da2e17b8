"""Losses as the paper uses them, where the library's differ."""

import functools
from typing import Any

from torch import Tensor

from ntloss import HLGauss, gaussian_smoothing, smoothed_wasserstein
from ntloss.criteria import Criterion


def in_any_unit(criterion: Criterion) -> Criterion:
    """Allow a criterion on tokens of several digits, whose loss is in units of up to thousands.

    The library refuses NTL-WAS and NTL-MSE there, because they outweigh cross-entropy; the paper's ablation
    with T5's own tokens uses them.
    """
    if isinstance(criterion, HLGauss):
        return criterion

    @functools.wraps(criterion)
    def allowed(**read: Any) -> Tensor:
        return criterion(**read)

    return allowed


def gaussian_and_wasserstein(
    probs: Tensor,
    log_probs: Tensor,
    log_mass: Tensor,
    values: Tensor,
    target: Tensor,
    form_log_probs: Tensor | None = None,
    sigma: float = 1.0,
    weight: float = 0.3,
) -> Tensor:
    """Gaussian label smoothing plus `weight` times the smoothed Wasserstein loss, with one sigma."""
    smoothing = gaussian_smoothing(log_probs, log_mass, values, target, form_log_probs, sigma)
    return smoothing + weight * smoothed_wasserstein(probs, values, target, sigma)
