"""What reads logits on a device, and the same as custom operators, for `torch.compile`."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence

import torch
from torch import Tensor

from ntloss.engine.readout import COMPUTED_IN, Backend, Grads, Operators, Readout, Wanted, read_plainly
from ntloss.engine.shards import Shard, Sharded

# Devices whose logits the Triton kernels (kernels.py) read and write, if Triton is installed. Its interpreter
# adds the CPU.
KERNEL_DEVICES: tuple[str, ...] = ()
if importlib.util.find_spec("triton") is not None:
    KERNEL_DEVICES = ("cuda", "xpu", *(["cpu"] if os.environ.get("TRITON_INTERPRET") == "1" else []))


def backend_of(device: torch.device, shard: Shard | None = None, traced: bool = False) -> Backend:
    """Return what reads logits on a device, or a shard's columns; `traced` says that a compiler traces it."""
    backend: Backend = Operators()
    if traced:
        backend = CustomOperators()
    elif device.type in KERNEL_DEVICES:
        from ntloss.engine.kernels import Kernels  # Triton takes long to import

        backend = Kernels()
    return backend if shard is None else Sharded(backend, shard)


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
        found, count = _READ(logits, labels, wanted.token_ids, wanted.mean, keep), 4 + wanted.mean
        readout = Readout(*found[:count])
        return readout._replace(softmax=found[count]) if len(found) > count else readout

    def write(
        self, grad: Tensor, logits: Tensor, labels: Tensor, wanted: Wanted, readout: Readout, grads: Grads
    ) -> None:
        """See `Backend.write`."""
        of_softmax, read = readout.softmax is not None, list(readout[:4])
        _WRITE(grad, logits, labels, wanted.token_ids, wanted.mean, read, list(grads), of_softmax)


def _read(logits: Tensor, labels: Tensor, token_ids: Tensor, mean: bool, keep: bool) -> list[Tensor]:
    row_max, *others = backend_of(logits.device).read(logits, labels, Wanted(token_ids, mean), keep)
    # The maximum may be the label's logit, but an operator's outputs must not alias.
    return [row_max.clone(), *(each for each in others if each is not None)]


def _shapes_of_read(
    logits: Tensor, labels: Tensor, token_ids: Tensor, mean: bool, keep: bool
) -> list[Tensor]:
    keeps = keep and logits.dtype == COMPUTED_IN[logits.dtype] and logits.device.type not in KERNEL_DEVICES
    readout = read_plainly(logits, labels, Wanted(token_ids, mean))
    return [*readout[: 4 + mean], *([torch.empty_like(logits)] if keeps else [])]  # type: ignore[list-item]


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
    wanted = Wanted(token_ids, mean, in_part=True)
    read = Readout(*readout)._replace(softmax=grad if of_softmax else None)
    backend_of(logits.device).write(grad, logits, labels, wanted, read, grads)


_READ = torch.library.custom_op(
    "ntloss::read",
    _read,
    mutates_args=(),
    schema="(Tensor logits, Tensor labels, Tensor token_ids, bool mean, bool keep) -> Tensor[]",
)
_READ.register_fake(_shapes_of_read)
_WRITE = torch.library.custom_op(
    "ntloss::write",
    _write,
    mutates_args=("grad",),
    schema="(Tensor(a!) grad, Tensor logits, Tensor labels, Tensor token_ids, bool mean, Tensor[] readout, "
    "Tensor[] grads, bool of_softmax) -> ()",
)
