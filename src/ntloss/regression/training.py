"""Train a writer, and keep the epoch whose medians have the smallest error on validation rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ntloss import HLGauss, NTLCrossEntropyLoss
from ntloss.regression.checkpoints import Checkpoint
from ntloss.regression.report import Report, best_epoch
from ntloss.writing import Writer

WARM_UP = 0.1  # share of the steps
PATIENCE = 4  # epochs without a smaller error after which training ends
RATES = {"upper_layers": 2e-3, "lora": 5e-4, "all": 3e-4}
_BETAS = (0.9, 0.98)


def train(
    writer: Writer,
    rows: Sequence[dict[str, Any]],
    scaled: NDArray[np.float64],
    row_weights: NDArray[np.float64],
    validate: Callable[[], float] | None,
    checkpoint: Checkpoint,
    report: Report,
    *,
    loss: Any,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
    last: int | None = None,
) -> list[float]:
    """Train a writer, and leave it with the weights of its best epoch, or of the last one.

    Args:
        writer: the model; the weights that require a gradient are trained.
        rows: the training rows, of `Writer.encode`.
        scaled: `[rows]`, the numbers that are written.
        row_weights: `[rows]`, how much each training row counts in the loss.
        validate: computes the error of the writer, after each epoch. None: the last epoch is the best one.
        checkpoint: is saved after each epoch and when training is interrupted, and training goes on from what
            it holds.
        report: says from where it goes on, and shows a bar with the time that is left.
        loss: "hl_gauss", whose width follows from the numbers and falls during training, or another
            criterion.
        epochs: the largest number of epochs, over which the learning rate and sigma fall.
        batch_size: rows of a step.
        learning_rate: the largest learning rate of AdamW; it rises for a tenth of the steps, then falls to 0.
        seed: of the rows' order.
        last: the epoch after which training ends. Default: `epochs`.

    Returns:
        The error after each epoch; nothing if there is none.
    """
    if loss == "hl_gauss":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # which advises logarithms: the scale was chosen
            loss = HLGauss.for_answers(scaled.tolist(), leading_zeros=True)
    loss_fn = NTLCrossEntropyLoss(writer.vocabulary, loss)
    weights = {name: p for name, p in writer.model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(weights.values(), lr=learning_rate, betas=_BETAS, weight_decay=0.0)
    counts = torch.from_numpy(row_weights / max(row_weights.mean(), np.finfo(float).tiny))
    per_epoch = -(-len(rows) // batch_size)
    total = epochs * per_epoch
    until = total if last is None else last * per_epoch
    step, history, best = 0, list[float](), dict[str, Tensor]()
    if (held := checkpoint.held) is not None:
        step, history, best = held["step"], held["history"], held["best"]
        optimizer.load_state_dict(held["optimizer"])
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(held["weights"][name])
        report.say(f"continued       at step {step} of {until}, from {checkpoint.file}")
    elif checkpoint.refused:
        report.say(f"started anew    {checkpoint.file} {checkpoint.refused}")
    bar = report.bar(desc="training", total=until, initial=step, unit=" steps")

    def save() -> None:
        now = {name: weight.detach() for name, weight in weights.items()}
        state = {"step": step, "history": history, "best": best, "weights": now}
        checkpoint.save({**state, "optimizer": optimizer.state_dict()})

    def validate_epoch() -> None:
        nonlocal best
        if validate is None or len(history) == step // per_epoch:
            return
        error = validate()
        if best_epoch([*history, error]) > len(history):
            best = {name: weight.detach().clone() for name, weight in weights.items()}
        history.append(error)  # last, so that an interruption before it repeats all of this

    try:
        validate_epoch()  # training may have been interrupted in it
        while step < until and len(history) - best_epoch(history) < PATIENCE:
            epoch, start = divmod(step, per_epoch)
            order = torch.randperm(
                len(rows), generator=torch.Generator().manual_seed(int(seed + epoch))
            ).tolist()
            for first in range(start * batch_size, len(rows), batch_size):
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate * _schedule(step, total)
                loss_fn.anneal(step / max(total - 1, 1))
                index = order[first : first + batch_size]
                batch = writer.collate([rows[i] for i in index])
                logits = writer.logits(batch)
                labels = batch["labels"][:, 1:].to(logits.device)
                counted = counts[index].to(logits.device, torch.float32)[:, None].expand(labels.shape)
                error = loss_fn(logits, loss_fn.prepare(labels, weights=counted))
                optimizer.zero_grad()
                error.backward()
                torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
                optimizer.step()
                step += 1
                bar.set_postfix(loss=f"{error.item():.3f}", refresh=False)
                bar.update()
            validate_epoch()
            save()
    except KeyboardInterrupt:
        save()
        raise
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(best.get(name, weight))
    return history


def _schedule(step: int, total: int) -> float:
    warm_up = max(1, round(WARM_UP * total))
    return min((step + 1) / warm_up, (total - step) / max(1, total - warm_up))
