"""What reads logits on a device, and the same as custom operators, for `torch.compile`."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence

import torch
from torch import Tensor

from ntloss.engine.readout import COMPUTED_IN, Backend, Operators, Readout, Wanted, read_plainly

# Devices whose logits the Triton kernels (kernels.py) read and write, if Triton is installed. Its interpreter
# adds the CPU.
KERNEL_DEVICES: tuple[str, ...] = ()
if importlib.util.find_spec("triton") is not None:
    KERNEL_DEVICES = ("cuda", "xpu", *(["cpu"] if os.environ.get("TRITON_INTERPRET") == "1" else []))


def uses_kernels(device: torch.device) -> bool:
    """Whether the Triton kernels handle logits on a device, or PyTorch's operators."""
    return device.type in KERNEL_DEVICES


def eager_backend(device: torch.device) -> Backend:
    """Return what reads logits on a device."""
    if not uses_kernels(device):
        return Operators()
    from ntloss.engine.kernels import Kernels  # Triton takes long to import

    kernels: Backend = Kernels()
    return kernels


class CustomOperators:
    """The backend in custom operators, which torch.compile calls unchanged.

    On the CPU this is faster than the code that the compiler generates from the same formulas
    (benchmarks/losses.py). In eager mode the backend is called, because calling a custom operator takes
    longer. They take neither records nor a transform, which whole logits do not have.
    """

    def read(
        self, logits: Tensor, labels: Tensor, wanted: Wanted, keep: bool = False, overwrite: bool = False
    ) -> Readout:
        """See `Backend.read`."""
        row_max, shifted_lse, label_logit, number_logits, mean_logit, softmax = _READ(
            logits, labels, wanted.token_ids, wanted.mean, keep
        )
        readout = Readout(row_max, shifted_lse, label_logit, number_logits)
        return readout._replace(
            mean_logit=mean_logit if wanted.mean else None, softmax=softmax if softmax.dim() == 2 else None
        )

    def write(
        self,
        grad: Tensor,
        logits: Tensor,
        labels: Tensor,
        wanted: Wanted,
        readout: Readout,
        grads: Sequence[Tensor],
    ) -> None:
        """See `Backend.write`."""
        of_softmax, read = readout.softmax is not None, list(readout[:4])
        _WRITE(grad, logits, labels, wanted.token_ids, wanted.mean, read, list(grads), of_softmax)


def _read(
    logits: Tensor, labels: Tensor, token_ids: Tensor, mean: bool, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    readout = eager_backend(logits.device).read(logits, labels, Wanted(token_ids, mean), keep)
    # The maximum may be the label's logit, but an operator's outputs must not alias.
    return _without_none(readout._replace(row_max=readout.row_max.clone()), logits)


def _shapes_of_read(
    logits: Tensor, labels: Tensor, token_ids: Tensor, mean: bool, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    keeps = keep and logits.dtype == COMPUTED_IN[logits.dtype] and not uses_kernels(logits.device)
    readout = read_plainly(logits, labels, Wanted(token_ids, mean))
    return _without_none(readout._replace(softmax=torch.empty_like(logits) if keeps else None), logits)


def _without_none(readout: Readout, logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return tuple(logits.new_empty(0) if each is None else each for each in readout)  # type: ignore[return-value]


def _write(
    grad: Tensor,
    logits: Tensor,
    labels: Tensor,
    token_ids: Tensor,
    mean: bool,
    readout: Sequence[Tensor],
    grads: Sequence[Tensor],
    of_softmax: bool,
) -> None:
    read = Readout(*readout)._replace(softmax=grad if of_softmax else None)
    eager_backend(logits.device).write(
        grad, logits, labels, Wanted(token_ids, mean, in_part=True), read, grads
    )


_READ = torch.library.custom_op("ntloss::read", _read, mutates_args=())
_READ.register_fake(_shapes_of_read)
_WRITE = torch.library.custom_op(
    "ntloss::write",
    _write,
    mutates_args=("grad",),
    schema="(Tensor(a!) grad, Tensor logits, Tensor labels, Tensor token_ids, bool mean, Tensor[] readout, "
    "Tensor[] grads, bool of_softmax) -> ()",
)
