"""How close is close enough: the one place for the tolerances of computed floats.

CPUs round matrix products differently, and one CPU rounds them differently from call to call, so what two
computations give is compared within a tolerance (`assert_close`, `approx`). To the bit are saved bytes and
integers (`assert_identical`), and the very same calls repeated (`assert_repeats`). `pytest --rounding` checks
that (rounding.py).

A tolerance is relative to the largest magnitude that takes part.
"""

from collections.abc import Mapping

import numpy as np
import pytest
import rounding
import torch
from torch import Tensor

# One computation done twice: from the same inputs, with or without gradients, by a copy, in another process.
ONE_COMPUTATION = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-9}
# Two paths of one formula: its terms in another order, in chunks, compiled, or on several ranks.
TWO_PATHS = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-9}
# Losses and weights of a few steps of training, each of which amplifies the rounding of those before it.
TRAINED = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 2.0**-5, torch.float16: 2.0**-7}
# ... with Adam, which divides gradients by their size and makes steps of the rounding of small ones.
TRAINED_BY_ADAM = 1e-4

# The float64 oracle of the same inputs. It is told the rounded logits and sums are float32, so half precision
# rounds gradients only: those of the logits, then those of a product.
VALUE_TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 1e-5, torch.float16: 1e-5}
GRADIENT_TOLERANCE = {
    torch.float64: 1e-11,
    torch.float32: 1e-5,
    torch.bfloat16: 2.0**-7,
    torch.float16: 2.0**-10,
}
# The loss of logits of a dtype, against that of the same logits in float64.
OF_LOGITS = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}
# A parameter that is fitted to drawn rows, against the one that they were drawn with.
OF_DRAWN_ROWS = 0.03
# The standard deviation of 500 draws, against that of the distribution.
OF_DRAWS = 0.1
# Readings of one distribution with vocabularies of which one has a token more.
OTHER_TOKENS = 0.04
# A float32 gradient that is a difference of almost equal terms.
DIFFERENCE_IN_GRADIENT = 3e-5
# Float32 gradients of all parameters of a model by two paths: each layer adds its rounding.
GRADIENT_OF_MODEL = 5e-5
# A float64 result that cancellation leaves fewer digits of.
CANCELLATION = 1e-9
# Float32 losses of logits in the thousands: a value, and a gradient in units of the largest that a position
# can have. Torch's own cross-entropy, which is measured beside it, is off by about 1e-7.
LARGE_LOGITS = 1e-6
# A model whose products are rounded to bfloat16 (a few of its roundings), against the same in float32.
HALF_PRECISION = 2.0**-5
# ... and its gradients, through logits in the tens, whose last place is worth 0.1; --rounding may move one by
# two places.
HALF_PRECISION_GRADIENT = 3 * 2.0**-4
# What a small model has learned by heart against what it was taught.
LEARNED = 0.1
# Of the share of numbers whose rare texts are sampled: which ones are may turn on one rounding.
SAMPLED_TEXTS = 0.02
# A distribution function of numbers, which adds up probabilities of tokens after several passes of a model.
DISTRIBUTION = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 2.0**-4}
# Probabilities of llama.cpp, whose cache of keys and values is float16, against torch's in float32.
LLAMA_CPP = 1e-2
# The interactive page's JavaScript and Python, both in float64; also its file of cases.
PAGE = 1e-5
# What pages say that SmolLM2 answers, with two digits or three.
SAID = 0.05


def tolerance_of(x, tolerance):
    """The tolerance for the dtype of `x`; a Python float was computed in float32 unless told otherwise."""
    if not isinstance(tolerance, Mapping):
        return tolerance
    if isinstance(x, np.ndarray):
        return tolerance[torch.from_numpy(np.zeros(0, x.dtype)).dtype]
    return tolerance[x.dtype if isinstance(x, Tensor) else torch.float32]


def as_float64(x):
    """Any array as float64 NumPy (bfloat16 has no NumPy dtype)."""
    return x.detach().double().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x, dtype=np.float64)


def largest(x):
    """Largest finite magnitude in a tensor, or in the tensors of a mapping or sequence."""
    if isinstance(x, Mapping):
        x = list(x.values())
    if isinstance(x, list | tuple):
        return max(map(largest, x), default=0.0)
    if not isinstance(x, Tensor | np.ndarray):
        return 0.0
    magnitudes = np.abs(as_float64(x))
    return float(magnitudes.max(initial=0.0, where=np.isfinite(magnitudes)))


def assert_close(actual, expected, tolerance=TWO_PATHS, what="", *, scale=0.0):
    """Compare tensors, or mappings or sequences of them.

    Args:
        actual: Tensor, array, number, or a mapping or sequence of them.
        expected: The same; infinities and NaN have to be where they are expected.
        tolerance: For the dtype of `actual`, relative to the largest magnitude in the tensors of `expected`,
            or to a number itself.
        what: Begins the message of a failure.
        scale: Where magnitudes are compared with at least this.
    """
    scale = max(scale, largest(expected))
    if isinstance(expected, Mapping):
        assert actual.keys() == expected.keys(), what
        for name in expected:
            assert_close(actual[name], expected[name], tolerance, f"{what} {name}", scale=scale)
    elif isinstance(expected, tuple) or (isinstance(expected, list) and isinstance(actual, list | tuple)):
        assert len(actual) == len(expected), what
        for i, pair in enumerate(zip(actual, expected, strict=True)):
            assert_close(*pair, tolerance, f"{what} [{i}]", scale=scale)
    elif expected is None or isinstance(expected, str):
        assert actual == expected, what
    elif isinstance(expected, Tensor) and not expected.is_floating_point():
        assert torch.equal(actual, expected), what
    else:
        if isinstance(actual, Tensor) and isinstance(expected, Tensor):
            # A reference may be in float64 where the result is not.
            assert actual.dtype == expected.dtype or expected.dtype == torch.float64, (
                f"{what}: {actual.dtype}"
            )
        got, wanted = as_float64(actual), as_float64(expected)
        assert got.shape == wanted.shape, f"{what}: {got.shape}, expected {wanted.shape}"
        finite = np.isfinite(wanted)
        allowed = tolerance_of(actual, tolerance) * max(scale, largest(wanted), 1e-6)
        np.testing.assert_array_equal(got[~finite], wanted[~finite], err_msg=what)
        np.testing.assert_allclose(got[finite], wanted[finite], rtol=0, atol=allowed, err_msg=what)


def approx(expected, tolerance=TWO_PATHS, *, dtype=torch.float32, scale=0.0):
    """`pytest.approx` of numbers that were computed in `dtype`; with `scale`, relative to at least that."""
    relative = tolerance if not isinstance(tolerance, Mapping) else tolerance[dtype]
    return pytest.approx(expected, rel=relative, abs=relative * scale if scale else None, nan_ok=True)


def assert_identical(actual, expected, what=""):
    """Compare saved or copied tensors, or mappings or sequences of them, to the bit; NaN is NaN."""
    message = (lambda found: f"{what}: {found}") if what else None
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True, msg=message)


def assert_repeats(call, *others):
    """What `call` returns; it, or `others` that make the very same calls, return the same to the bit.

    Under `--rounding` each starts from the same noise.
    """
    start = rounding.position()
    result = call()
    for other in others or (call,):
        rounding.rewind(start)
        assert_identical(other(), result)
    return result
