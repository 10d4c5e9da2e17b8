"""Number-aware losses in `transformers.Trainer`: counts of numbers, metrics of evaluations, schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from ntloss.integrations.collator import NUMBER_WEIGHTS, NumberWeightsCollator
from ntloss.integrations.transformers.model import NumberAwareModel, handle_of, make_number_aware
from ntloss.numbers.vocabulary import NumberVocabulary
from ntloss.schedules import WeightScheduler


class NumberCountingMixin:
    """A Trainer that counts numbers as it counts labels: over the accumulated batches and the ranks.

    Its evaluations also report both terms of the loss, and it takes a dataset's column `number_weights` into
    the batches (`NumberWeightsCollator`).

    `count_numbers(trainer)` adds this to an existing trainer, `class MyTrainer(NumberCountingMixin, Trainer)`
    to a class. It changes nothing while the model is not number-aware.
    """

    _num_numbers_in_batch: Tensor | None = None

    @property
    def model_accepts_loss_kwargs(self: Any) -> bool:
        """Whether the model takes counts. The Trainer asks once; the model may become number-aware later."""
        accepts: bool = vars(self)["model_accepts_loss_kwargs"]
        return accepts or handle_of(self.model) is not None

    @model_accepts_loss_kwargs.setter
    def model_accepts_loss_kwargs(self, accepts: bool) -> None:
        vars(self)["model_accepts_loss_kwargs"] = accepts

    @property
    def data_collator(self: Any) -> Any:
        """The Trainer's collator; while the model is number-aware, in a `NumberWeightsCollator`."""
        own = vars(self)["data_collator"]
        # Trainers read it in their `__init__`, some before they have a model.
        if vars(self).get("model") is None or handle_of(self.model) is None:
            return own
        return NumberWeightsCollator(own)

    @data_collator.setter
    def data_collator(self, collator: Any) -> None:
        vars(self)["data_collator"] = collator

    def _set_signature_columns_if_needed(self: Any) -> None:
        super()._set_signature_columns_if_needed()  # type: ignore[misc]
        columns = [name for name in self._signature_columns if name != NUMBER_WEIGHTS]
        self._signature_columns = columns + [NUMBER_WEIGHTS] * (handle_of(self.model) is not None)

    def _get_num_items_in_batch(self: Any, batch_samples: list[Any], device: torch.device) -> Any:
        self._num_numbers_in_batch = None
        handle = handle_of(self.model)
        if handle is None or not batch_samples or "labels" not in batch_samples[0]:
            return super()._get_num_items_in_batch(batch_samples, device)  # type: ignore[misc]
        counts = sum(
            (torch.stack(handle.normalizers(**batch)).to(device) for batch in batch_samples),
            torch.zeros(2, device=device),
        )
        if self.args.average_tokens_across_devices and self.args.world_size > 1:
            counts = self.accelerator.gather(counts).view(-1, 2).sum(0)
        # Ranks of tensor and context parallelism share a batch, and have all counted it.
        layout = getattr(self.accelerator, "parallelism_config", None)
        counts = counts / (self.get_tp_size() * (getattr(layout, "cp_size", None) or 1))
        self._num_numbers_in_batch = counts[1]
        return counts[0]

    def compute_loss(
        self: Any,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Any:
        """Compute the Trainer's loss, with the count of numbers passed to the model.

        Raise a ValueError if the Trainer does not take its loss from the number-aware model.
        """
        num_numbers = None if num_items_in_batch is None else self._num_numbers_in_batch
        handle = None if num_numbers is None else handle_of(self.model)
        terms = None
        if handle is not None:
            _check_compute_loss_func(self)
            counts = {"num_items_in_batch": num_items_in_batch, "num_numbers_in_batch": num_numbers}
            inputs = {**inputs, **{name: counts[name] for name in handle.counts_to_pass}}
            terms = handle.terms
        computed = super().compute_loss(  # type: ignore[misc]
            model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch
        )
        if handle is not None and handle.terms is terms:
            raise ValueError(
                f"this {type(self).__name__} did not call the number-aware model for its loss, or something "
                "that wraps the model's forward answered instead, as an SFTTrainer does: call handle.undo(), "
                "and then the function for this trainer, such as make_sft_number_aware(trainer)"
            )
        return computed

    def evaluation_loop(
        self: Any,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        """Run the Trainer's evaluation, and add both terms of the loss: `eval_ce` and `eval_ntl`."""
        arguments = (dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)
        handle = handle_of(self.model)
        if handle is None:
            return super().evaluation_loop(*arguments)  # type: ignore[misc]
        handle.evaluated.reset(listening=True)
        try:
            output = super().evaluation_loop(*arguments)  # type: ignore[misc]
        finally:
            handle.evaluated.listening = False
        for name, value in handle.evaluated.pop().items():
            output.metrics.setdefault(f"{metric_key_prefix}_{name}", value)  # compute_metrics has precedence
        return output


def count_numbers(trainer: Any) -> None:
    """Make a Trainer count numbers over the accumulated batches and the ranks, as it counts labels.

    Call it before `trainer.train()`, after `make_number_aware(model)`. Evaluations then log both terms of the
    loss, each as its mean over the whole evaluation set: `eval_ce`, which compares with the `eval_loss` of a
    model trained on cross-entropy alone, and `eval_ntl`, before its weight.

    Args:
        trainer: a `Trainer` or `Seq2SeqTrainer`.

    Raises:
        TypeError: not a Trainer.
        ValueError: the model is not number-aware, or an option of the trainer replaces the model's loss.
    """
    check_uses_model_loss(trainer)
    if handle_of(trainer.model) is None:
        raise ValueError(
            "this trainer's model is not number-aware, so there are no numbers to count: expected "
            "make_trainer_number_aware(trainer), or make_number_aware(trainer.model, tokenizer) first"
        )
    if not isinstance(trainer, NumberCountingMixin):
        own = type(trainer)
        trainer.__class__ = type(own.__name__, (NumberCountingMixin, own), {"__module__": own.__module__})


def make_trainer_number_aware(
    trainer: Any, numbers: NumberVocabulary | Any | None = None, *args: Any, **options: Any
) -> NumberAwareModel:
    """Make a Trainer's model number-aware, and make the Trainer count numbers.

    Evaluations log `eval_ce` and `eval_ntl` beside `eval_loss` (see `count_numbers`).

    Args:
        trainer: a `Trainer` or `Seq2SeqTrainer`, before `train()`.
        numbers: the tokenizer or `NumberVocabulary`. Default: `trainer.processing_class`.
        args, options: passed to `make_number_aware`: criterion, weight, chunked, ...

    Returns:
        The handle: its `loss`, and `undo`, which restores the stock loss.

    Raises:
        TypeError: not a Trainer.
        ValueError: no tokenizer; see `make_number_aware` and `count_numbers`.
    """
    check_uses_model_loss(trainer)
    if any(parent.__module__.startswith("trl.") for parent in type(trainer).__mro__):
        raise ValueError(
            f"{type(trainer).__name__} is a trainer of TRL, which does not use the model's own loss: for an "
            "SFTTrainer call ntloss.integrations.trl.make_sft_number_aware(trainer); the other trainers of "
            "TRL have objectives of their own"
        )
    handle = make_number_aware(trainer.model, tokenizer_of(trainer, numbers), *args, **options)
    count_numbers(trainer)
    return handle


def check_is_trainer(trainer: Any) -> None:
    """Raise a TypeError for anything but a Trainer, such as a model."""
    if not hasattr(trainer, "compute_loss_func"):
        raise TypeError(
            f"expected a Trainer, given {type(trainer).__name__}. For a model in your own training loop: "
            "make_number_aware(model, tokenizer) and CountedBatches(loader, handle)."
        )


def tokenizer_of(trainer: Any, numbers: NumberVocabulary | Any | None) -> Any:
    """Return `numbers`, by default the trainer's tokenizer; raise a ValueError if there is neither."""
    numbers = trainer.processing_class if numbers is None else numbers
    if numbers is None:
        raise ValueError("the trainer has no processing_class: pass the model's tokenizer")
    return getattr(numbers, "tokenizer", numbers)  # a processor has one


class WeightScheduleCallback(TrainerCallback):
    """Sets the weight of the number term before each optimizer step.

    Args:
        loss: the loss whose weight is set: a handle's `.loss`.
        schedule: factor of the weight, a function of the step: `lambda step: min(step / 500, 1.0)`.
        weight: the full weight. Default: the loss's current one.

    Raises:
        TypeError: `loss` has no weight, or `schedule` is not callable.
        ValueError: `weight` is negative or not finite.
    """

    def __init__(self, loss: Any, schedule: Callable[[int], float], weight: float | None = None) -> None:
        self.scheduler = WeightScheduler(loss, schedule, weight)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the weight before the micro-batches of a step; a resumed run continues at its step."""
        self.scheduler.set_step(state.global_step)


def check_uses_model_loss(trainer: Any) -> None:
    """Raise a ValueError if an option of a Trainer replaces the model's loss, or averages it wrongly.

    Raise a TypeError for anything but a Trainer.
    """
    check_is_trainer(trainer)
    _check_compute_loss_func(trainer)
    _check_arguments(trainer)
    if getattr(trainer, "model_init", None) is not None:
        raise ValueError(
            "the trainer has a model_init: train() would make a new model with the stock loss. Pass a model "
            "to the trainer; or call make_number_aware in model_init, and derive the trainer's class from "
            "NumberCountingMixin."
        )


def _check_compute_loss_func(trainer: Any) -> None:
    if trainer.compute_loss_func is not None:
        raise ValueError(
            "the trainer has a compute_loss_func, which would replace the model's number-aware loss: omit "
            "compute_loss_func, or call handle.undo()"
        )


def _check_arguments(trainer: Any) -> None:
    if trainer.label_smoother is not None:
        raise ValueError(
            f"label_smoothing_factor={trainer.args.label_smoothing_factor} makes the Trainer compute a loss "
            "of its own: leave it at 0, and pass label_smoothing= to make_number_aware"
        )
    if getattr(trainer.args, "use_liger_kernel", False):
        raise ValueError(
            "use_liger_kernel=True replaces the model's loss: omit it. chunked=True also computes the loss "
            "without logits."
        )
    if trainer.args.n_gpu > 1:
        raise ValueError(
            f"the Trainer sees {trainer.args.n_gpu} GPUs and would copy the model with DataParallel, whose "
            "copies have the stock loss: start with torchrun or accelerate launch, or set "
            "CUDA_VISIBLE_DEVICES"
        )
    if hasattr(trainer, "get_sp_size") and trainer.get_sp_size() > 1:  # absent in transformers 4
        raise ValueError(
            "sequence parallelism weights the ranks' losses by their counts of labels, which does not give "
            "the mean of the number term: expected data, tensor or context parallelism"
        )
