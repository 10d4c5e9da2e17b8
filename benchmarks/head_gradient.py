"""Compare the gradient of a bfloat16 head with float64: `python benchmarks/head_gradient.py`.

`from_hidden` sums the head's gradient over its blocks in the head's dtype. The same is computed by PyTorch
alone, on whole logits and in blocks, where autograd sums in the head's dtype, too.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss import NTLCrossEntropyLoss, NumberVocabulary

POSITIONS, HIDDEN, VOCAB = 1024, 128, 4096
BLOCKS = (6, 12)  # between which the default on accelerators lies


def main() -> int:
    """Print the relative error of each gradient, in the Frobenius norm."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(POSITIONS, HIDDEN, generator=generator).bfloat16()
    head = (torch.randn(VOCAB, HIDDEN, generator=generator) / HIDDEN**0.5).bfloat16()
    labels = torch.randint(VOCAB, (POSITIONS,), generator=generator)
    digits = NumberVocabulary.from_mapping({digit: digit for digit in range(10)}, vocab_size=VOCAB)
    loss_fn = NTLCrossEntropyLoss(digits, None)

    def plain(inputs: Tensor, weight: Tensor) -> Tensor:
        return F.cross_entropy(inputs @ weight.T, labels)

    def in_blocks(blocks: int) -> Callable[[Tensor, Tensor], Tensor]:
        def loss(inputs: Tensor, weight: Tensor) -> Tensor:
            pairs = zip(inputs.chunk(blocks), labels.chunk(blocks), strict=True)
            sums = [F.cross_entropy(some @ weight.T, own, reduction="sum") for some, own in pairs]
            return torch.stack(sums).sum() / POSITIONS

        return loss

    def ours(blocks: int) -> Callable[[Tensor, Tensor], Tensor]:
        size = -(-POSITIONS // blocks)
        return lambda inputs, weight: loss_fn.from_hidden(inputs, weight, labels, chunk_size=size)

    def gradient(loss: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype = torch.bfloat16) -> Tensor:
        weight = head.to(dtype, copy=True).requires_grad_()
        return torch.autograd.grad(loss(hidden.to(dtype), weight), weight)[0].double()

    exact = gradient(plain, torch.float64)
    losses = {"PyTorch, whole logits": plain, "from_hidden, 1 block": ours(1)}
    for blocks in BLOCKS:
        losses[f"PyTorch, {blocks} blocks"] = in_blocks(blocks)
        losses[f"from_hidden, {blocks} blocks"] = ours(blocks)
    for name, loss in losses.items():
        error = (gradient(loss) - exact).norm() / exact.norm()
        print(f"{name}: {error:.2e}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
