"""Train a writer, and keep the epoch whose medians have the smallest error on validation rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from ntloss import HLGauss, NTLCrossEntropyLoss
from ntloss.writing import Writer

WARM_UP = 0.1  # share of the steps
PATIENCE = 3  # epochs without a smaller error after which training ends
RATES = {"upper_layers": 2e-3, "lora": 5e-4, "all": 3e-4}
_BETAS = (0.9, 0.98)


def train(
    writer: Writer,
    loss_fn: NTLCrossEntropyLoss,
    rows: Sequence[dict[str, Any]],
    validate: Callable[[], float] | None,
    row_weights: Tensor,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
    checkpoint: Path | None = None,
    key: str = "",
    held: dict[str, Any] | None = None,
    report: Callable[[int, float], Any] = lambda step, loss: None,
) -> list[float]:
    """Train a writer, and leave it with the weights of its best epoch, or of the last one.

    Args:
        writer: the model; the weights that require a gradient are trained.
        loss_fn: the loss; the sigma of `HLGauss` falls during training.
        rows: the training rows, of `Writer.encode`.
        validate: computes the error of the writer, after each epoch. None: the last epoch is the best one.
        row_weights: `[rows]`, how much each training row counts in the loss.
        epochs: the largest number of epochs.
        batch_size: rows of a step.
        learning_rate: the largest learning rate of AdamW; it rises for a tenth of the steps, then falls to 0.
        seed: of the rows' order.
        checkpoint: file that is written after each epoch and when training is interrupted. Default: none.
        key: what the checkpoint depends on, for `load_checkpoint`.
        held: what `load_checkpoint` found, from which training goes on. Default: it starts anew.
        report: called after each step with the steps so far and the loss.

    Returns:
        The error after each epoch; nothing if there is none.
    """
    weights = {name: p for name, p in writer.model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(weights.values(), lr=learning_rate, betas=_BETAS, weight_decay=0.0)
    row_weights = row_weights / row_weights.mean().clamp(min=torch.finfo(torch.float64).tiny)
    per_epoch = -(-len(rows) // batch_size)
    total = epochs * per_epoch
    step, history, best = 0, list[float](), dict[str, Tensor]()
    if held is not None:
        step, history, best = held["step"], held["history"], held["best"]
        optimizer.load_state_dict(held["optimizer"])
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(held["weights"][name])

    def save() -> None:
        if checkpoint is not None:
            now = {name: weight.detach() for name, weight in weights.items()}
            state = {"key": key, "step": step, "history": history, "best": best, "weights": now}
            partial = checkpoint.with_suffix(".partial")
            torch.save({**state, "optimizer": optimizer.state_dict()}, partial)
            os.replace(partial, checkpoint)

    criterion = loss_fn.criterion if isinstance(loss_fn.criterion, HLGauss) else None
    try:
        while step < total and len(history) - _best(history) <= PATIENCE:
            epoch, start = divmod(step, per_epoch)
            order = torch.randperm(
                len(rows), generator=torch.Generator().manual_seed(int(seed + epoch))
            ).tolist()
            for first in range(start * batch_size, len(rows), batch_size):
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate * _schedule(step, total)
                if criterion is not None:
                    criterion.anneal(step / max(total - 1, 1))
                index = order[first : first + batch_size]
                batch = writer.collate([rows[i] for i in index])
                logits = writer.logits(batch)
                labels = batch["labels"][:, 1:].to(logits.device)
                counted = row_weights[index].to(logits.device, torch.float32)[:, None].expand(labels.shape)
                loss = loss_fn(logits, labels, loss_weights=counted)
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
                optimizer.step()
                step += 1
                report(step, loss.item())
            if validate is not None:
                history.append(validate())
                if _best(history) == len(history):
                    best = {name: weight.detach().clone() for name, weight in weights.items()}
            save()
    except KeyboardInterrupt:
        save()
        raise
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(best.get(name, weight))
    return history


def load_checkpoint(file: Path | None, key: str) -> dict[str, Any] | None:
    """Load what an interrupted training has left in a file, if it is whole and its key is the same."""
    if file is None or not file.exists():
        return None
    try:
        held: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except (EOFError, RuntimeError, UnpicklingError):
        return None
    return held if held["key"] == key else None


def _best(history: list[float]) -> int:
    """Return the number of the epoch with the smallest error, from 1; 0 before the first."""
    return 1 + history.index(min(history)) if history else 0


def _schedule(step: int, total: int) -> float:
    warm_up = max(1, round(WARM_UP * total))
    return min((step + 1) / warm_up, (total - step) / max(1, total - warm_up))
