"""Noise of one rounding on every matrix product, to run the suite as on a CPU with other kernels.

`pytest --rounding=SEED` (`make test ARGS=--rounding`) moves each element of the result of a matrix product, a
convolution or an attention operator by -1, 0 or 1 units in the last place, drawn anew at each call. A
bitwise comparison of two computations then fails, as it does on some CPUs without the switch.

The noise replaces the CPU kernels of these operators, so it reaches all threads, the backward pass and
compiled code that calls them, also in processes that a test starts if they import this module. It does not
reach products in code that Inductor generates, sums and other reductions. It needs
`torch.library.get_kernel`, which the oldest supported PyTorch does not have.

A test marked `exact_rounding`, with the reason, runs without noise. The marker is for tests of compilation,
memory or time, which would measure the operators of the noise.
"""

import os
import warnings
import zlib

import torch
from torch import Tensor

SEED = "NTLOSS_TEST_ROUNDING"  # an environment variable of processes that tests start
OPERATORS = [
    "mm", "mm.out", "bmm", "bmm.out", "addmm", "addmm.out", "addmm_", "baddbmm", "baddbmm.out", "baddbmm_",
    "addbmm", "addbmm.out", "addbmm_", "addmv", "addmv.out", "addmv_", "dot", "vdot", "_addmm_activation",
    "_addmm_activation.out", "convolution", "convolution_backward",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward",
]  # fmt: skip
# Only its result gets noise: its log-normalizers are not rounded to the inputs' dtype.
ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"


class _Noise:
    """State of this process: whether noise is on, the replaced kernels, and the generator."""

    on = False
    library: torch.library.Library | None = None
    generator = torch.Generator()


def add_noise(result):
    """Move each element of `result`, in place, by -1, 0 or 1 units in the last place."""
    if _Noise.on and isinstance(result, Tensor) and result.is_floating_point() and result.numel():
        steps = torch.randint(
            -1, 2, result.shape, generator=_Noise.generator, dtype=result.dtype, device=result.device
        )
        result.mul_(steps.mul_(torch.finfo(result.dtype).eps).add_(1))


def _with_noise(name):
    kernel = torch.library.get_kernel(f"aten::{name}", "CPU")

    def call(keys, *args, **kwargs):
        results = kernel.call_boxed(keys, *args, **kwargs)
        several = (results,) if isinstance(results, Tensor) else results
        for result in several[:1] if name == ATTENTION else several:
            add_noise(result)
        return results

    return call


def install():
    """Replace the kernels of every product of this process."""
    if _Noise.library is None:
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about replaced kernels
            for name in OPERATORS:
                library.impl(name, _with_noise(name), "CPU", with_keyset=True)
        _Noise.library = library


def restart(seed, test=""):
    """Draw noise from now on, which depends on the seed and the test alone, not on other tests that run."""
    own = zlib.crc32(f"{seed} {test}".encode())
    _Noise.on = True
    _Noise.generator.manual_seed(own)
    os.environ[SEED] = str(own)


def stop():
    """Stop the noise, here and in processes that are started, until the next restart."""
    _Noise.on = False
    os.environ.pop(SEED, None)


def position():
    """Return the state of the noise, for `rewind`."""
    return _Noise.generator.get_state()


def rewind(to):
    """Restore a state, to draw the same noise again."""
    _Noise.generator.set_state(to)


if SEED in os.environ:  # a process that a test started
    install()
    restart(os.environ[SEED])
