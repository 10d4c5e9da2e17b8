"""Calibrate a writer's quantiles by what it believes about true answers, in one pass without walks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ntloss.reading.intervals import Calibration
from ntloss.writing import Writer


@torch.no_grad()
def calibrate(writer: Writer, rows: Sequence[dict[str, Any]]) -> Calibration:
    """Calibrate a writer on rows by the probability that it gives to the numbers up to each true answer.

    Each digit of the true answer, given those before it, divides the numbers that begin alike into ten parts,
    whose probabilities the model knows: those below the digit, those above it, and the part that the next
    digit divides. The rows are of `Writer.encode`, with the true answers.
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
        found[index] = _shares(writer.logits(batch), batch["labels"][:, 1:], slots).cpu()
    return Calibration(*found.unbind(-1))


def _shares(logits: Tensor, labels: Tensor, slots: Sequence[Tensor]) -> Tensor:
    """Return the probabilities of smaller numbers, and of these and the true one, `[rows, 2]`."""
    # The probability of what begins like the answer.
    mass = torch.ones(len(labels), dtype=torch.float64, device=logits.device)
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
