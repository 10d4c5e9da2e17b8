"""Train a writer, keep its best epoch, and leave the state of a training that is interrupted in a file."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm.auto import tqdm

from ntloss import HLGauss, NTLCrossEntropyLoss
from ntloss.criteria.targets import END, START
from ntloss.regression.printing import say
from ntloss.writing import Writer

WARM_UP = 0.1  # share of the steps
PATIENCE = 4  # epochs without a smaller error after which training ends
RATES = {"upper_layers": 2e-3, "lora": 5e-4, "all": 3e-4}
BAR: dict[str, Any] = {"leave": False, "mininterval": 1}  # options of tqdm
_BETAS = (0.9, 0.98)


def train(
    writer: Writer,
    rows: Sequence[dict[str, Any]],
    scaled: NDArray[np.float64],
    row_weights: NDArray[np.float64],
    validate: Callable[[], float] | None,
    file: Path | None = None,
    depends: Sequence[Any] = (),
    *,
    loss: Any,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
    last: int | None = None,
    verbose: bool = False,
) -> list[float]:
    """Train a writer, and leave it with the weights of its best epoch, or of the last one.

    Args:
        writer: the model; the weights that require a gradient are trained.
        rows: the training rows, of `Writer.encode`.
        scaled: `[rows]`, the numbers that are written.
        row_weights: `[rows]`, how much each training row counts in the loss.
        validate: computes the error of the writer, after each epoch. None: the last epoch is the best one.
        file: gets the state after each epoch and when training is interrupted, and the same training goes on
            from it. Default: none.
        depends: what tells trainings apart beside these arguments, such as the model and the rows.
        loss, epochs, batch_size, learning_rate: those of `NumberRegressor`. The learning rate rises for a
            tenth of the steps of all epochs, and then falls to 0.
        seed: of the rows' order.
        last: the epoch after which training ends. Default: `epochs`.
        verbose: whether to say from where training goes on, and to show a bar. Default: False.

    Returns:
        The error after each epoch; nothing if there is none.
    """
    held, key = None, ""
    if file is not None:
        made_from = [loss, epochs, batch_size, learning_rate, seed, last, *depends]
        key = hashlib.sha256(json.dumps(made_from, default=_as_key).encode()).hexdigest()
        held = _load_state(file, key, verbose)
    if loss == "hl_gauss":  # as `HLGauss.for_answers`, which would advise logarithms
        start = START * statistics.pstdev(scaled.tolist())
        loss = HLGauss((start, END * start), leading_zeros=True)
    loss_fn = NTLCrossEntropyLoss(writer.vocabulary, loss)
    weights = {name: p for name, p in writer.model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(weights.values(), lr=learning_rate, betas=_BETAS, weight_decay=0.0)
    counts = torch.from_numpy(row_weights / max(row_weights.mean(), np.finfo(float).tiny))
    per_epoch = -(-len(rows) // batch_size)
    total = epochs * per_epoch
    warm_up = max(1, round(WARM_UP * total))
    until = total if last is None else last * per_epoch
    step, history, best = 0, list[float](), dict[str, Tensor]()
    if held is not None:
        step, history, best = held["step"], held["history"], held["best"]
        optimizer.load_state_dict(held["optimizer"])
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(held["weights"][name])
    bar = tqdm(desc="training", total=until, initial=step, unit=" steps", disable=not verbose, **BAR)

    def save() -> None:
        if file is not None:
            now = {name: weight.detach() for name, weight in weights.items()}
            state = {"key": key, "step": step, "history": history, "best": best, "weights": now}
            torch.save({**state, "optimizer": optimizer.state_dict()}, file.with_suffix(".partial"))
            os.replace(file.with_suffix(".partial"), file)  # at once

    try:
        while True:
            if validate is not None and len(history) < step // per_epoch:
                error = validate()
                if best_epoch([*history, error]) > len(history):
                    best = {name: weight.detach().clone() for name, weight in weights.items()}
                history.append(error)  # last, so that an interruption before it repeats all of this
            if step % per_epoch == 0 and step:
                save()
            if step >= until or len(history) - best_epoch(history) >= PATIENCE:
                break
            epoch, start = divmod(step, per_epoch)
            generator = torch.Generator().manual_seed(int(seed + epoch))
            order = torch.randperm(len(rows), generator=generator).tolist()
            for first in range(start * batch_size, len(rows), batch_size):
                for group in optimizer.param_groups:
                    rate = min((step + 1) / warm_up, (total - step) / max(1, total - warm_up))
                    group["lr"] = learning_rate * rate
                loss_fn.anneal(step / max(total - 1, 1))
                index = order[first : first + batch_size]
                batch = writer.collate([rows[i] for i in index])
                logits = writer.logits(batch)
                labels = batch["labels"][:, 1:].to(logits.device)
                counted = counts[index].to(logits.device, torch.float32)[:, None].expand(labels.shape)
                of_batch = loss_fn(logits, loss_fn.prepare(labels, weights=counted))
                optimizer.zero_grad()
                of_batch.backward()
                torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
                optimizer.step()
                step += 1
                bar.set_postfix(loss=f"{of_batch.item():.3f}", refresh=False)
                bar.update()
    except KeyboardInterrupt:
        save()
        raise
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(best.get(name, weight))
    return history


def best_epoch(history: Sequence[float]) -> int:
    """Return the number of the epoch with the smallest error, from 1; 0 before the first."""
    return 1 + history.index(min(history)) if history else 0


def _load_state(file: Path, key: str, verbose: bool) -> dict[str, Any] | None:
    """Return the state that the same training has left, and say so; None if there is none."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        held: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        why = "" if held["key"] == key else "was left by other rows, parameters or pretrained weights"
    except FileNotFoundError:
        return None
    except (EOFError, KeyError, RuntimeError, TypeError, UnpicklingError):
        why = "is damaged"
    if verbose and why:
        say(f"started anew    {file} {why}")
    elif verbose:
        say(f"continued       at step {held['step']}, from {file}")
    return None if why else held


def as_json(value: Any) -> Any:
    """Return what is saved for a parameter that JSON does not know."""
    if isinstance(value, np.generic):
        return value.item()
    module, name = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
    is_importable = getattr(sys.modules.get(module), name, None) is value
    return f"{module}:{name}" if is_importable else str(value)


def _as_key(value: Any) -> Any:
    """Return what a checkpoint depends on for a parameter: of a function its source, in any process."""
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):
        return as_json(value)
