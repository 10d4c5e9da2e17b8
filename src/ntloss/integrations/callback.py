"""Logs how well numbers are predicted, to all trackers of a transformers Trainer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from transformers import TrainerCallback

from ntloss import LossTerms
from ntloss.engine.targets import shift_left
from ntloss.integrations.options import Loss
from ntloss.integrations.transformers import handle_of
from ntloss.integrations.transformers.trainer import (
    TermSums,
    check_is_trainer,
    listen,
    without_repeated_rows,
)
from ntloss.metrics import TokenMetrics
from ntloss.numbers.spans import find_numbers, token_kinds

# Logged names, and those of `TokenMetrics`.
_LOGGED = {
    "number_tokens": "number_tokens",
    "number_accuracy": "token_accuracy",
    "number_value_accuracy": "value_accuracy",
    "number_error": "expected_absolute_error",
    "number_mass": "mass",
    "number_ce": "cross_entropy",
    "text_number_mass": "text_mass",
    "text_ce": "text_cross_entropy",
}
_ROWS = 1024  # of logits that are measured at a time


class NumberMetricsCallback(TrainerCallback):
    r"""Logs cross-entropy, number term and the accuracy of number tokens, in training and in evaluation.

    Call `NumberMetricsCallback().attach(trainer)`. The metrics become part of the Trainer's log entries, for
    all trackers, `state.log_history` and `metric_for_best_model`; those of an evaluation have its prefix
    (`eval_number_error`). For a baseline, train with a number-aware loss of weight 0.

    ======================== ====================================================================
    `ce`, `ntl`              means of both terms of the loss, before $\lambda$; a number-aware trainer logs
                             `eval_ce` and `eval_ntl` itself, also without the callback
    `number_tokens`          count of labels that are number tokens: with 0, the loss sees no numbers
    `number_accuracy`        share of these that are the most likely token
    `number_value_accuracy`  share whose value is the most likely number: `4` and `▁4` count as one
    `number_error`           mean of $\sum_j p_j |v_j - v_k|$, in the values' units (0 to 9 for digits)
    `number_error_place_1`   the same for digits of one place: 0 are units, 1 tens, -1 tenths
    `number_mass`            mean total probability of the number tokens, where the label is a number
    `text_number_mass`       the same where the label is text
    `number_ce`, `text_ce`   mean cross-entropy where the label is a number, and where it is text
    ======================== ====================================================================

    An entry has the means over all processes and batches since the last one, and only writing it synchronizes
    with the device. In training, the two terms cover every step; the other metrics are computed from the
    loss's logits at every `train_every`-th step, or in evaluations alone if the loss has no logits
    (`chunked=True`). Examples that a distributed sampler repeats to fill up an evaluation count once.

    Args:
        train_every: optimizer steps between measurements in training; None for none. Default: 10.
        places: decimal places to log separately. Default: from hundredths to ten thousands.

    Raises:
        ValueError: `train_every` is below 1; `places` are not consecutive.
    """

    def __init__(self, *, train_every: int | None = 10, places: range = range(-2, 5)) -> None:
        if train_every is not None and train_every < 1:
            raise ValueError(f"train_every={train_every!r}: expected 1 or more steps, or None for never")
        self.train_every = train_every
        self.places = places
        self._trainer: Any = None
        self._windows: dict[bool, _Window] = {}
        self._measures = True
        self._stops: list[Callable[[], None]] = []

    def attach(self, trainer: Any) -> NumberMetricsCallback:
        """Add the callback to a Trainer, before its trackers, so that they see the metrics.

        Args:
            trainer: a `Trainer` or one derived from it, with a number-aware loss.

        Returns:
            Itself.

        Raises:
            TypeError: not a Trainer.
            ValueError: it is already attached, or the trainer has no number-aware loss.
        """
        check_is_trainer(trainer)
        if self._trainer is not None:
            raise ValueError("attached already: expected one callback per trainer")
        handle = handle_of(trainer.model)
        if handle is None:
            raise ValueError(
                "the trainer has no number-aware loss to listen to: call make_trainer_number_aware(trainer) "
                "first, with weight=0 for a baseline"
            )
        self._trainer = trainer
        self._windows = {training: _Window(handle.loss, self.places) for training in (True, False)}
        self._stops = [listen(loss, self._see) for loss in handle.losses]
        trainer.callback_handler.callbacks.insert(0, self)
        return self

    def detach(self) -> None:
        """Remove the callback from its Trainer, and restore the loss.

        Raises:
            ValueError: not attached.
        """
        if self._trainer is None:
            raise ValueError("not attached to a trainer: there is nothing to detach from")
        self._trainer.callback_handler.remove_callback(self)
        for stop in self._stops:
            stop()
        self._trainer = None

    def _see(self, loss: Loss, inputs: dict[str, Any], terms: LossTerms) -> None:
        training = bool(self._trainer.model.training)
        window = self._windows[training]
        if training:  # the trainer evaluates the terms itself
            window.terms.add(loss, inputs, terms)
        else:
            inputs = without_repeated_rows(loss, inputs)
        if not training or (self._measures and "logits" in inputs):
            window.add(loss, inputs)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Discard metrics that an earlier training run has not logged."""
        if self._trainer is not None:
            self._windows[True].reset()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Decide whether this step's logits are measured."""
        self._measures = self.train_every is not None and state.global_step % self.train_every == 0

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Add the metrics to a log entry; a ValueError if the callback is not attached."""
        logs: dict[str, Any] = kwargs["logs"]
        runtimes = [name for name in logs if name.endswith("_runtime") and name != "train_runtime"]
        if "loss" in logs:
            metrics = self._pop("", True)
        elif runtimes:
            metrics = self._pop(runtimes[0].removesuffix("runtime"), False)
        else:
            return
        logs.update(metrics)
        state.log_history[-1].update(metrics)

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any) -> None:
        """Add the metrics to those that `trainer.predict` returns; a ValueError if not attached."""
        runtime = next(name for name in metrics if name.endswith("_runtime"))
        metrics.update(self._pop(runtime.removesuffix("runtime"), False))

    def _pop(self, prefix: str, training: bool) -> dict[str, float]:
        if self._trainer is None:
            raise ValueError(
                "NumberMetricsCallback was added with callbacks=[...] or add_callback, after the trackers: "
                "expected NumberMetricsCallback().attach(trainer)"
            )
        return {prefix + name: value for name, value in self._windows[training].pop().items()}


class _Window:
    """Metrics since the last log entry."""

    def __init__(self, loss: Loss, places: range) -> None:
        self.tokens = TokenMetrics(
            loss.vocabulary, ignore_index=loss.options.ignore_index, places=places or None
        )
        self.kinds = token_kinds(loss.vocabulary)
        self.terms = TermSums()

    def add(self, loss: Loss, inputs: dict[str, Any]) -> None:
        """Add the number tokens of a batch, unless its vocabulary is sharded over processes."""
        is_linear = "hidden_states" in inputs
        states = inputs["hidden_states"] if is_linear else inputs["logits"]
        width = len(inputs["lm_head_weight"]) if is_linear else states.shape[-1]
        is_sharded = any(hasattr(tensor, "device_mesh") for tensor in inputs.values())
        if is_sharded or width != loss.vocabulary.vocab_size:
            return
        labels, ignored = inputs["labels"], loss.options.ignore_index
        self.kinds = self.kinds.to(labels.device)
        places = find_numbers(labels, self.kinds, inputs["sequence_ids"], True, ignored).place
        if loss.options.shift:
            labels, places = shift_left(labels, ignored), shift_left(places)
        columns = [labels, places] if self.tokens.places else [labels]
        states = states.reshape(-1, states.shape[-1])
        for start in range(0, len(states), _ROWS):
            rows = slice(start, start + _ROWS)
            logits = states[rows]
            if is_linear:
                logits = torch.nn.functional.linear(logits, inputs["lm_head_weight"], inputs["bias"])
            beside = (column.reshape(-1)[rows] for column in columns)
            self.tokens.update(loss.transform.apply(logits.float()), *beside)

    def reset(self) -> None:
        """Discard all metrics."""
        self.tokens.reset()
        self.terms = TermSums()

    def pop(self) -> dict[str, float]:
        """Return the metrics over all processes, each of which calls this; reset them."""
        metrics = self.terms.pop()
        tokens = self.tokens.gathered()
        self.reset()
        totals = tokens.compute()
        if totals["number_tokens"] + totals["text_tokens"] == 0:
            return metrics
        metrics |= {name: float(totals[theirs]) for name, theirs in _LOGGED.items()}
        for place, row in tokens.compute_by_place().items():
            metrics[f"number_error_place_{place}"] = row["expected_absolute_error"]
        return {name: value for name, value in metrics.items() if not math.isnan(value)}
