"""What a writer believes about true answers, in one pass without walks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ntloss.writing import Writer


class Beliefs(NamedTuple):
    """What a model believes about true answers; each `[rows]`, float64, on the CPU."""

    below: Tensor  # the probability of smaller numbers than the true one
    upto: Tensor  # the probability of the true number and smaller ones


@torch.no_grad()
def find_beliefs(writer: Writer, rows: Sequence[dict[str, Any]]) -> Beliefs:
    """Find out what a writer believes about the true answers of rows.

    Each digit of the true answer, given those before it, divides the numbers that begin alike into ten parts,
    whose probabilities the model knows: those below the digit, those above it, and the part that the next
    digit divides.

    Args:
        writer: writes numbers in a format, with a token for each character.
        rows: of `Writer.encode`, with the true answers.
    """
    assert writer.form is not None
    # The tokens of each slot, in the order of its characters: - and +, or the digits.
    slots = [
        torch.tensor([token for token, _ in sorted(tokens, key=lambda pair: pair[1])])
        for tokens in writer.form.tokens(writer.vocabulary)
    ]
    found = torch.empty(len(rows), 2, dtype=torch.float64)
    for index in writer.batches([row["input_ids"] for row in rows], answers=0):
        batch = writer.collate([rows[i] for i in index])
        found[index] = _find(writer.logits(batch), batch["labels"][:, 1:], slots).cpu()
    return Beliefs(*found.unbind(-1))


def _find(logits: Tensor, labels: Tensor, slots: Sequence[Tensor]) -> Tensor:
    mass = torch.ones(
        len(labels), dtype=torch.float64, device=logits.device
    )  # of what begins like the answer
    below, above = torch.zeros_like(mass), torch.zeros_like(mass)
    negative = torch.zeros_like(mass, dtype=torch.bool)
    for slot, ids in enumerate(slots):
        if len(ids) == 1:
            continue  # the point
        chosen = logits[:, slot, ids.to(logits.device)].double().softmax(-1) * mass[:, None]
        code = (labels[:, slot, None] == ids).int().argmax(-1).to(logits.device)
        if len(ids) == 10:
            # In negative numbers, the largest digit is the smallest number.
            chosen = torch.where(negative[:, None], chosen.flip(-1), chosen)
            code = torch.where(negative, 9 - code, code)
        else:
            negative = code == 0
        parts = torch.arange(len(ids), device=logits.device)
        below = below + (chosen * (parts < code[:, None])).sum(-1)
        above = above + (chosen * (parts > code[:, None])).sum(-1)
        mass = chosen.gather(-1, code[:, None]).squeeze(-1)
    return torch.stack([below, 1 - above], -1)
