"""How close is close enough: the one place for tolerances."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# Relative to the largest magnitude that takes part. Half-precision inputs are compared with the oracle of the
# rounded input, as sums are float32; only their gradients are rounded again, on the way out.
VALUE_TOLERANCE = {
    torch.float64: 1e-11,
    torch.float32: 1e-5,
    torch.bfloat16: 1e-5,
    torch.float16: 1e-5,
}
GRADIENT_TOLERANCE = {
    torch.float64: 1e-11,
    torch.float32: 1e-5,
    torch.bfloat16: 2.0**-8,
    torch.float16: 2.0**-10,
}
# Two orders of the same float32 operations (eager and compiled, ours and the published package's).
SAME_COMPUTATION = 1e-5
# ... and of a gradient that is a difference of almost equal terms, relative to its largest entry.
DIFFERENCE_IN_GRADIENT = 3e-5


def as_float64(x: Tensor | np.ndarray | float) -> np.ndarray:
    """Any array as float64 NumPy (bfloat16 has no NumPy dtype)."""
    return x.detach().double().numpy() if isinstance(x, Tensor) else np.asarray(x, dtype=np.float64)


def assert_near(
    actual: Tensor, expected: Tensor | np.ndarray | float, tolerance: float, scale: float = 0.0
) -> None:
    """Compare with a tolerance relative to `scale` or the largest expected magnitude, whichever is larger."""
    got, wanted = as_float64(actual), as_float64(expected)
    assert got.shape == wanted.shape
    assert np.isfinite(got).all(), got
    if wanted.size:
        allowed = tolerance * max(scale, float(np.abs(wanted).max()), 1e-6)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=allowed)


def assert_matches_oracle(
    loss: Tensor,
    logits: Tensor,
    expected: tuple[np.ndarray, np.ndarray],
    dtype: torch.dtype,
    worst: float,
) -> None:
    """Compare value and gradient of `loss` by `logits`, scaled to the worst cost of one position."""
    value, gradient = expected
    (actual_gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert_near(loss, value, VALUE_TOLERANCE[dtype], worst)
    # float16 has no exponents below -24: what is smaller than that is rounded to a fixed step.
    step = 2.0**-24 / GRADIENT_TOLERANCE[dtype] if dtype == torch.float16 else 0.0
    assert_near(actual_gradient, gradient, GRADIENT_TOLERANCE[dtype], max(worst, step))
