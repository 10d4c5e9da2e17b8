"""Logs how well numbers are predicted during training, to whatever a transformers Trainer reports to."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from ntloss.engine.objective import LossTerms
from ntloss.engine.readout import IDENTITY
from ntloss.engine.targets import shift_left
from ntloss.integrations.counts import Loss
from ntloss.integrations.transformers import NumberAwareLoss, handle_of
from ntloss.integrations.transformers.evaluation import TermSums, without_repeated_rows
from ntloss.integrations.transformers.trainer import check_is_trainer
from ntloss.number_spans import find_numbers, token_kinds
from ntloss.token_metrics import TokenMetrics

# What is logged as, and what `TokenMetrics` calls it.
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
_ROWS = 1024  # of logits that are made at a time where a loss has made none


class NumberMetricsCallback(TrainerCallback):
    r"""Logs cross-entropy, number term and the accuracy of number tokens, in training and in evaluation.

    `NumberMetricsCallback().attach(trainer)` is all. The metrics stand in the Trainer's own log entries, so
    that all trackers, `state.log_history` and `metric_for_best_model` have them; those of an evaluation begin
    with its prefix (`eval_ntl`). For a baseline, train with a number-aware loss of weight 0.

    ======================== ====================================================================
    `ce`, `ntl`              mean of both terms of the loss, before $\lambda$
    `number_tokens`          labels that were seen to be numbers: 0 says that the loss sees none
    `number_accuracy`        share of these that are the likeliest token of all
    `number_value_accuracy`  share whose value is the likeliest number: `4` and `▁4` are one, text left aside
    `number_error`           mean of $\sum_j p_j |v_j - v_k|$, for digits from 0 to 9
    `number_error_place_1`   the same of digits at one place: 0 are units, 1 tens, -1 tenths
    `number_mass`            mean probability of all number tokens together, where the label is one
    `text_number_mass`       the same where the label is text
    `number_ce`, `text_ce`   mean cross-entropy where the label is a number, and where it is text
    ======================== ====================================================================

    In training the terms are those of every step and cost nothing; the others are measured on the logits that
    are there, at every `train_every`-th step. A loss from hidden states (`chunked=True`) has no logits: then
    the others are measured in evaluation alone. Nothing waits for the device before a log entry is written,
    and what is logged is the mean over all processes and accumulated batches since the last one. Examples
    that a distributed sampler repeats to fill up an evaluation count once.

    Args:
        loss: what to listen to, where the trainer cannot be asked: the combined loss that a trainer of your
            own calls. Default: that of `make_trainer_number_aware`, `make_number_aware` or `NumberAwareLoss`.
        train_every: optimizer steps between measurements in training; None for none. Default: 10.
        places: places of digits to tell apart. Default: from hundredths to ten thousands.

    Raises:
        TypeError: `loss` is not a combined loss.
        ValueError: `train_every` is not 1 or more; `places` are not consecutive.
    """

    def __init__(
        self, loss: Loss | None = None, train_every: int | None = 10, places: range = range(-2, 5)
    ) -> None:
        if train_every is not None and train_every < 1:
            raise ValueError(f"train_every={train_every!r}: expected 1 or more steps, or None for never")
        if loss is not None and not (isinstance(loss, torch.nn.Module) and hasattr(loss, "normalizers")):
            raise TypeError(
                f"NumberMetricsCallback({type(loss).__name__}): expected an NTLCrossEntropyLoss or "
                "NTLLinearCrossEntropyLoss, such as a handle's .loss, or nothing. The trainer is for attach: "
                "NumberMetricsCallback().attach(trainer)."
            )
        self.loss = loss
        self.train_every = train_every
        self.places = places
        self._trainer: Any = None
        self._windows: dict[bool, _Window] = {}
        self._measures = True
        self._undo: list[Any] = []

    def attach(self, trainer: Any) -> NumberMetricsCallback:
        """Add it to a Trainer, in front of the trackers, so that they see what it logs.

        Args:
            trainer: a `Trainer` or one derived from it, with a number-aware loss.

        Returns:
            Itself.

        Raises:
            TypeError: not a Trainer.
            ValueError: attached already; no number-aware loss.
        """
        check_is_trainer(trainer)
        if self._trainer is not None:
            raise ValueError("attached already: expected one callback for each trainer")
        losses = _losses_of(trainer) if self.loss is None else (self.loss,)
        self._trainer = trainer
        self._windows = {training: _Window(losses[0], self.places) for training in (True, False)}
        for loss in losses:
            self._listen_to(loss)
        trainer.callback_handler.callbacks.insert(0, self)
        return self

    def detach(self) -> None:
        """Take it from its Trainer, and leave the loss as it was.

        Raises:
            ValueError: not attached.
        """
        if self._trainer is None:
            raise ValueError("not attached to a trainer: there is nothing to detach from")
        self._trainer.callback_handler.remove_callback(self)
        for undo in self._undo:
            undo()
        self._undo, self._trainer = [], None

    def _listen_to(self, loss: Loss) -> None:
        signature = inspect.signature(loss.forward)
        had_terms = loss.return_terms
        loss.return_terms = True

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def listen(module: Loss, args: Any, kwargs: Any, output: LossTerms) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            with torch.no_grad():
                self._see(module, dict(bound.arguments), output)
            return output if had_terms else output.loss

        def restore() -> None:
            loss.return_terms = had_terms

        self._undo += [loss.register_forward_hook(listen, with_kwargs=True).remove, restore]

    def _see(self, loss: Loss, inputs: dict[str, Any], terms: LossTerms) -> None:
        training = bool(self._trainer.model.training)
        window = self._windows[training]
        if not training:
            inputs, terms = without_repeated_rows(loss, inputs, terms)
        window.terms.add(loss, inputs, terms)
        if "logits" in inputs:
            if self._measures or not training:
                window.add_logits(loss, inputs)
        elif not training:
            window.add_hidden(loss, inputs)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave aside what a training before this one has not logged any more, or broke off in."""
        if self._trainer is not None:
            self._windows[True].reset()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Choose whether this step's logits are measured."""
        self._measures = self.train_every is not None and state.global_step % self.train_every == 0

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Add the metrics to a log entry."""
        logs: dict[str, Any] = kwargs["logs"]
        if self._trainer is None:
            raise ValueError(
                "NumberMetricsCallback was added to a trainer that it does not know, behind its trackers: "
                "expected NumberMetricsCallback().attach(trainer) in place of callbacks=[...] or add_callback"
            )
        evaluations = [name for name in logs if name.endswith("_runtime") and name != "train_runtime"]
        if "loss" in logs:
            metrics = self._windows[True].pop()
        elif evaluations:
            prefix = evaluations[0].removesuffix("runtime")
            metrics = {prefix + name: value for name, value in self._windows[False].pop().items()}
        else:
            return
        logs.update(metrics)
        state.log_history[-1].update(metrics)

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any) -> None:
        """Add the metrics to those of `trainer.predict`, which are not logged."""
        runtime = next(name for name in metrics if name.endswith("_runtime"))
        measured = self._windows[False].pop()
        metrics.update({runtime.removesuffix("runtime") + name: value for name, value in measured.items()})


class _Window:
    """What was seen since the last log entry."""

    def __init__(self, loss: Loss, places: range) -> None:
        self.tokens = TokenMetrics(loss.vocabulary, ignore_index=loss.ignore_index, places=places or None)
        self.kinds = token_kinds(loss.vocabulary)
        self.terms = TermSums()

    def add_logits(self, loss: Loss, inputs: dict[str, Any]) -> None:
        """Number tokens of a batch; nothing where its vocabulary is sharded over processes."""
        logits = inputs["logits"]
        if hasattr(logits, "device_mesh") or logits.shape[-1] != loss.vocabulary.vocab_size:
            return
        labels, places = self._targets(loss, inputs)
        transform = loss.transform
        self.tokens.update(
            logits if transform == IDENTITY else transform.apply(logits.float()), labels, places
        )

    def add_hidden(self, loss: Loss, inputs: dict[str, Any]) -> None:
        """The same from hidden states and the head."""
        weight, bias = inputs["lm_head_weight"], inputs["bias"]
        if hasattr(weight, "device_mesh") or len(weight) != loss.vocabulary.vocab_size:
            return
        targets = self._targets(loss, inputs)
        hidden = inputs["hidden_states"].flatten(0, -2)
        labels, places = (None if column is None else column.flatten() for column in targets)
        assert labels is not None
        for start in range(0, len(hidden), _ROWS):
            rows = slice(start, start + _ROWS)
            logits = torch.nn.functional.linear(hidden[rows], weight, bias).float()
            self.tokens.update(
                loss.transform.apply(logits), labels[rows], None if places is None else places[rows]
            )

    def _targets(self, loss: Loss, inputs: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
        labels, ignored = inputs["labels"], loss.ignore_index
        places = None
        if self.tokens.places:
            self.kinds = self.kinds.to(labels.device)
            spans = find_numbers(labels, self.kinds, inputs["sequence_ids"], True, ignored)
            places = spans.place
        return shift_left(labels, places, ignored) if loss.shift else (labels, places)

    def reset(self) -> None:
        """Begin anew."""
        self.tokens.reset()
        self.terms = TermSums()

    def pop(self) -> dict[str, float]:
        """The metrics over all processes, each of which calls this; then begin anew."""
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


def _losses_of(trainer: Any) -> tuple[Loss, ...]:
    if isinstance(trainer.compute_loss_func, NumberAwareLoss):
        return (trainer.compute_loss_func.loss,)
    if (handle := handle_of(trainer.model)) is not None:
        return handle.losses
    raise ValueError(
        "the trainer has no number-aware loss to listen to: expected make_trainer_number_aware(trainer) "
        "first, weight=0 for a baseline; or NumberMetricsCallback(loss), where your trainer calls one itself"
    )
