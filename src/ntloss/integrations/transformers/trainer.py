"""Number-aware losses in `transformers.Trainer`: the counts that it does not make, and schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from ntloss.cross_entropy import NTLCrossEntropyLoss
from ntloss.integrations.transformers.evaluation import EvaluatedTerms
from ntloss.integrations.transformers.head import find_head, rows_of
from ntloss.integrations.transformers.introspection import (
    decoder_inputs_of,
    shifts_labels,
    without_wrappers,
)
from ntloss.integrations.transformers.model import NumberAwareModel, handle_of, make_number_aware
from ntloss.integrations.transformers.targets import count_targets, read_targets, vocabulary_for
from ntloss.schedules import WeightScheduler
from ntloss.vocabulary import NumberVocabulary


class NumberAwareLoss:
    """Cross-entropy plus a number term, for `Trainer(compute_loss_func=...)`.

    A Trainer takes the labels away from the model then, counts those of the accumulated batch, and knows
    nothing of numbers: `count_numbers(trainer)` has it count these too, and makes an encoder-decoder's inputs
    of the labels. Without that call, a batch that is accumulated or spread over ranks is an error.

    Args:
        model: whose outputs it is given: it says whether labels are shifted, and how wide logits are.
        loss: an `NTLCrossEntropyLoss` for this model, without shift; or its tokenizer or `NumberVocabulary`.
        shift: whether position i predicts label i + 1. Default: as the model's class says.
        options: of `NTLCrossEntropyLoss`, where `loss` is not one.

    Raises:
        TypeError: options beside a ready loss.
        ValueError: the loss or tokenizer is another model's.

    Attributes:
        loss: the loss.
        terms: `LossTerms` of the last batch, detached; None before the first. Divided as its loss was: of a
            batch that is one of several accumulated, a share of theirs.
    """

    def __init__(
        self, model: Any, loss: NTLCrossEntropyLoss | Any, *, shift: bool | None = None, **options: Any
    ) -> None:
        model = without_wrappers(model)
        rows = rows_of(find_head(model))
        if isinstance(loss, NTLCrossEntropyLoss):
            if options:
                raise TypeError(f"options {sorted(options)} beside a ready loss: give them to the loss")
            vocabulary_for(loss.vocabulary, rows)
            if loss.shift or loss.reduction != "mean":
                raise ValueError(
                    f"a loss with shift={loss.shift}, reduction={loss.reduction!r}: expected "
                    "shift=False (the model says whether labels are shifted) and reduction='mean'"
                )
        else:
            loss = NTLCrossEntropyLoss(vocabulary_for(loss, rows), **options)
        loss.return_terms = True
        self.loss = loss
        self.shift = shifts_labels(model) if shift is None else shift
        self.terms: Any = None
        self.evaluated = EvaluatedTerms()  # a Trainer listens to it while it evaluates
        self.needs_decoder_inputs = bool(model.config.is_encoder_decoder)
        # What a Trainer does not hand on: set by the mixin, around each call.
        self.inputs: dict[str, Any] | None = None

    def __call__(
        self, outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | float | None = None
    ) -> Tensor:
        """Compute the loss, as a Trainer asks for it.

        Args:
            outputs: of the model; `logits` are read.
            labels: `[batch, seq]`.
            num_items_in_batch: count of labels over the accumulated batch and the ranks.

        Returns:
            The loss, a scalar.

        Raises:
            ValueError: no labels; counts that are missing; an encoder-decoder's trainer that is not prepared.
        """
        if labels is None:
            raise ValueError("compute_loss_func was called without labels: expected a batch with 'labels'")
        if self.inputs is None and self.needs_decoder_inputs:
            raise ValueError(
                "the Trainer took an encoder-decoder's labels away, which its decoder inputs are made of: "
                "call count_numbers(trainer) before trainer.train(), which gives it those inputs."
            )
        if self.inputs is None and self.loss.objective.needs.spans:
            raise ValueError(
                f"{self.loss.objective.criterion!r} looks at whole numbers, and the Trainer does not say "
                "where packed sequences begin: call count_numbers(trainer) before trainer.train()."
            )
        inputs = self.inputs or {}
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        targets = read_targets(
            self.loss,
            self.shift,
            labels,
            inputs.get("shift_labels"),
            inputs.get("position_ids"),
            num_items_in_batch,
            inputs.get("num_numbers_in_batch"),
        )
        arguments = targets.arguments(logits.device)
        terms = self.loss(logits, **arguments)
        self.terms = type(terms)(*(term.detach() for term in terms))
        if self.evaluated.listening:
            self.evaluated.see(self.loss, {"logits": logits, **arguments}, self.terms)
        loss: Tensor = terms.loss
        return loss


class NumberCountingMixin:
    """A Trainer that counts numbers as it counts labels: over the accumulated batch and the ranks.

    Its evaluations have both terms of the loss among their metrics.

    `count_numbers(trainer)` gives it to a trainer that is there; `class MyTrainer(NumberCountingMixin,
    Trainer)` to a class. Without a number-aware loss, or once it is undone, the trainer is as ever.
    """

    _num_numbers_in_batch: Tensor | None = None

    @property
    def model_accepts_loss_kwargs(self: Any) -> bool:
        """Whether the model takes counts: a number-aware one does, whatever it was when the Trainer asked."""
        accepts: bool = vars(self)["model_accepts_loss_kwargs"]
        return accepts or (self.compute_loss_func is None and handle_of(self.model) is not None)

    @model_accepts_loss_kwargs.setter
    def model_accepts_loss_kwargs(self, accepts: bool) -> None:
        vars(self)["model_accepts_loss_kwargs"] = accepts

    def _get_num_items_in_batch(self: Any, batch_samples: list[Any], device: torch.device) -> Any:
        self._num_numbers_in_batch = None
        counter = _counter_of(self)
        if counter is None or not batch_samples or "labels" not in batch_samples[0]:
            return super()._get_num_items_in_batch(batch_samples, device)  # type: ignore[misc]
        counts = sum(
            (count_targets(counter.loss, counter.shift, batch).to(device) for batch in batch_samples),
            torch.zeros(2, device=device),
        )
        if self.args.average_tokens_across_devices and self.args.world_size > 1:
            counts = self.accelerator.gather(counts).view(-1, 2).sum(0)
        counts = counts / _ranks_of_a_batch(self)
        self._num_numbers_in_batch = counts[1]
        return counts[0]

    def compute_loss(
        self: Any,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Any:
        """As the Trainer's own, with the count of numbers beside that of labels."""
        num_numbers = None if num_items_in_batch is None else self._num_numbers_in_batch
        function = self.compute_loss_func
        counts = {"num_items_in_batch": num_items_in_batch, "num_numbers_in_batch": num_numbers}
        handle = handle_of(self.model)
        if isinstance(function, NumberAwareLoss):
            function.inputs = {**inputs, **counts}
            if function.needs_decoder_inputs and inputs.get("decoder_input_ids") is None:
                model_itself = without_wrappers(self.model)
                inputs["decoder_input_ids"] = decoder_inputs_of(model_itself, inputs["labels"])
        elif handle is not None and num_numbers is not None:
            inputs = {**inputs, **{name: counts[name] for name in handle.counts_beside_the_trainers}}
        terms = None if handle is None else handle.terms
        try:
            computed = super().compute_loss(  # type: ignore[misc]
                model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch
            )
        finally:
            if isinstance(function, NumberAwareLoss):
                function.inputs = None
        if handle is not None and num_numbers is not None and handle.terms is terms:
            raise ValueError(
                f"this {type(self).__name__} did not ask the number-aware model for the loss, or something "
                "was put around the model's forward since that answers in its place, as an SFTTrainer does: "
                "call handle.undo(), and then this trainer's own line, such as make_sft_number_aware(trainer)"
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
        """As the Trainer's own, with both terms of the loss among the metrics: `eval_ce` and `eval_ntl`."""
        arguments = (dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)
        counter = _counter_of(self)
        if counter is None:
            return super().evaluation_loop(*arguments)  # type: ignore[misc]
        counter.evaluated.start()
        try:
            output = super().evaluation_loop(*arguments)  # type: ignore[misc]
        finally:
            counter.evaluated.stop()
        for name, value in counter.evaluated.pop().items():
            # What compute_metrics calls so keeps its name.
            output.metrics.setdefault(f"{metric_key_prefix}_{name}", value)
        return output


def count_numbers(trainer: Any) -> None:
    """Have a Trainer count numbers over the accumulated batch and the ranks, as it counts labels.

    Call it before `trainer.train()`. The model is number-aware, or the trainer has a `NumberAwareLoss`.

    Evaluations then log both terms of the loss, each as its mean over the whole evaluation: `eval_ce`, which
    compares with the `eval_loss` of a model without the number term, and `eval_ntl`, before its weight.

    Args:
        trainer: a `Trainer` or `Seq2SeqTrainer`.

    Raises:
        TypeError: not a Trainer.
        ValueError: it has no number-aware loss, or two; it has an option that puts another loss in its place.
    """
    check_is_trainer(trainer)
    _check_trainer(trainer)
    if not isinstance(trainer, NumberCountingMixin):
        own = type(trainer)
        trainer.__class__ = type(own.__name__, (NumberCountingMixin, own), {"__module__": own.__module__})


def make_trainer_number_aware(
    trainer: Any, numbers: NumberVocabulary | Any | None = None, *args: Any, **options: Any
) -> NumberAwareModel:
    """Make a Trainer's model number-aware, and have it count numbers: all that there is to do, in one line.

    Evaluations log `eval_ce` and `eval_ntl` beside `eval_loss` (see `count_numbers`).

    Args:
        trainer: a `Trainer` or `Seq2SeqTrainer`, before `train()`.
        numbers: the tokenizer or `NumberVocabulary`. Default: `trainer.processing_class`.
        args, options: of `make_number_aware`: criterion, weight, chunked, ...

    Returns:
        The handle: its `loss`, and `undo`, after which the trainer trains with the stock loss.

    Raises:
        TypeError: not a Trainer.
        ValueError: no tokenizer; see `make_number_aware` and `count_numbers`.
    """
    check_is_trainer(trainer)
    if any(parent.__module__.startswith("trl.") for parent in type(trainer).__mro__):
        raise ValueError(
            f"{type(trainer).__name__} is one of TRL's, which do not use the model's own loss: expected "
            "ntloss.integrations.trl.make_sft_number_aware(trainer) for an SFTTrainer; the others have "
            "objectives of their own"
        )
    handle = make_number_aware(trainer.model, tokenizer_of(trainer, numbers), *args, **options)
    count_numbers_or_undo(trainer, handle)
    return handle


def count_numbers_or_undo(trainer: Any, handle: NumberAwareModel) -> None:
    """`count_numbers`, which leaves the model as it was where the trainer cannot count."""
    try:
        count_numbers(trainer)
    except ValueError:
        handle.undo()
        raise


def check_is_trainer(trainer: Any) -> None:
    """Raise where something else is given, such as the model."""
    if not hasattr(trainer, "compute_loss_func"):
        raise TypeError(
            f"expected a Trainer, given {type(trainer).__name__}. A model in a loop of your own: "
            "make_number_aware(model, tokenizer) and CountedBatches(loader, handle)."
        )


def tokenizer_of(trainer: Any, numbers: NumberVocabulary | Any | None) -> Any:
    """What was given, or the trainer's own tokenizer."""
    numbers = trainer.processing_class if numbers is None else numbers
    if numbers is None:
        raise ValueError("the trainer has no processing_class: pass the model's tokenizer")
    return getattr(numbers, "tokenizer", numbers)  # a processor has one


class WeightScheduleCallback(TrainerCallback):
    """Sets the weight of a number term before each optimizer step, by a schedule of `ntloss.schedules`.

    Args:
        loss: what has the weight: a handle's or a `NumberAwareLoss`'s `.loss`.
        schedule: factor of the weight at each step.
        weight: the full weight. Default: what the loss has now.

    Raises:
        TypeError: `loss` has no weight, or `schedule` is not callable.
    """

    def __init__(self, loss: Any, schedule: Callable[[int], float], weight: float | None = None) -> None:
        self.scheduler = WeightScheduler(loss, schedule, weight)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Before the micro-batches of a step; after a resume the state has the step reached."""
        self.scheduler.set_step(state.global_step)


def _ranks_of_a_batch(trainer: Any) -> int:
    """How many ranks share a batch, and so have each counted it."""
    layout = getattr(trainer.accelerator, "parallelism_config", None)
    ranks: int = trainer.get_tp_size() * (getattr(layout, "cp_size", None) or 1)
    return ranks


def _counter_of(trainer: Any) -> NumberAwareLoss | NumberAwareModel | None:
    """What knows which labels are numbers, or None."""
    function = trainer.compute_loss_func
    return function if isinstance(function, NumberAwareLoss) else handle_of(trainer.model)


def _check_trainer(trainer: Any) -> None:
    function, handle = trainer.compute_loss_func, handle_of(trainer.model)
    if _counter_of(trainer) is None:
        raise ValueError(
            "this trainer has no number-aware loss whose numbers to count: expected make_number_aware("
            "trainer.model, tokenizer), or Trainer(compute_loss_func=NumberAwareLoss(model, tokenizer))"
        )
    if function is not None and handle is not None:
        raise ValueError(
            "the model is number-aware, and the trainer has a compute_loss_func, which would take its place: "
            "leave compute_loss_func away, or call handle.undo()"
        )
    if handle is not None and getattr(trainer, "model_init", None) is not None:
        raise ValueError(
            "the trainer has a model_init, and makes another model in train(), with the stock loss: give the "
            "trainer a model; or have model_init call make_number_aware, and the trainer's class be one with "
            "NumberCountingMixin"
        )
    _check_arguments(trainer, handle)


def _check_arguments(trainer: Any, handle: NumberAwareModel | None) -> None:
    if trainer.label_smoother is not None:
        what = "is ignored by the Trainer" if handle is None else "has the Trainer compute the loss itself"
        raise ValueError(
            f"label_smoothing_factor={trainer.args.label_smoothing_factor} {what}: leave it at 0, and pass "
            "label_smoothing= to make_number_aware or NumberAwareLoss"
        )
    if getattr(trainer.args, "use_liger_kernel", False):
        raise ValueError(
            "use_liger_kernel=True puts another loss into the model: leave it away. chunked=True computes "
            "the loss without logits, as Liger does."
        )
    if trainer.args.n_gpu > 1:
        raise ValueError(
            f"the Trainer sees {trainer.args.n_gpu} GPUs and would copy the model with DataParallel, whose "
            "copies have the stock loss: start with torchrun or accelerate launch, or set "
            "CUDA_VISIBLE_DEVICES"
        )
    if hasattr(trainer, "get_sp_size") and trainer.get_sp_size() > 1:  # transformers 4 has none of it
        raise ValueError(
            "sequence parallelism averages the ranks' losses by their labels, which is not the number term's "
            "mean: expected data, tensor or context parallelism"
        )
