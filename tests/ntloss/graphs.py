"""Records the operators, buffers and matrix products of a call, and compares compiled with eager results."""

import sys
from pathlib import Path

import torch
from tolerances import assert_close
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import ntloss
from ntloss.engine import read

PRODUCTS = ("mm", "addmm", "addmm_", "bmm", "baddbmm", "addmv", "mv")
# Operators that copy their result, or its shape, to the host, and so wait for an accelerator.
SYNCHRONIZING = {
    "_local_scalar_dense", "nonzero", "masked_select", "item", "equal", "is_nonzero", "unique", "unique2",
    "_unique2", "unique_dim", "_to_cpu", "bincount", "histc", "argwhere",
}  # fmt: skip


def dense_tensors(tree):
    # A sparse tensor has no storage of its own: an earlier operator makes its values.
    return [t for t in tree_leaves(tree) if isinstance(t, Tensor) and t.layout == torch.strided]


class Watch(TorchDispatchMode):
    """Records operators, the buffers that they allocate, and matrix products.

    Args:
        inside: also record the operators inside the library's custom operators. Default: True.
    """

    def __init__(self, inside=True):
        super().__init__()
        self.inside = inside
        self.operators: list[str] = []
        self.bytes: list[int] = []
        self.products: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        self.operators.append(name)
        if func.namespace == "ntloss" and self.inside:
            with self:
                return {"read": read._read, "write": read._write}[name](*args, **kwargs)
        if name in PRODUCTS:
            matrices = [a for a in args if isinstance(a, Tensor)][-2:]
            self.products.append(matrices[0].numel() * matrices[1].shape[-1])
        if (
            name.startswith(("index", "_index", "_unsafe_index"))
            and len(args) > 1
            and isinstance(args[1], (list, tuple))
        ):
            masks = [i for i in args[1] if isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8)]
            self.operators += ["nonzero"] * len(masks)
        given = {t.untyped_storage()._cdata for t in dense_tensors((args, kwargs))}
        result = func(*args, **kwargs)
        made = [t.untyped_storage() for t in dense_tensors(result)]
        self.bytes += [storage.nbytes() for storage in made if storage._cdata not in given]
        return result

    def buffers(self, size):
        """Count the new buffers of `size` bytes or more."""
        return sum(made >= size for made in self.bytes)


def watched(function):
    """List the operators of a call, in order; each custom operator counts as one."""
    with Watch(inside=False) as watch:
        function()
    return watch.operators


def assert_same_results(step, other, *given):
    results = []
    for function in (step, other):
        leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in given]
        loss = function(*leaves)
        loss.sum().backward()
        results.append([loss, *(leaf.grad for leaf in leaves if leaf.is_floating_point())])
    for got, wanted in zip(results[1], results[0], strict=True):
        assert_close(got, wanted)


def functions_entered(call):
    """Count the functions of the library that a call enters, without comprehensions."""
    found, home, before = set(), str(Path(ntloss.__file__).parent), sys.getprofile()

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(home) and not code.co_name.startswith("<"):
            found.add((code.co_filename, code.co_firstlineno))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return len(found)
