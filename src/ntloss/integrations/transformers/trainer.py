"""Number-aware losses in `transformers.Trainer`: the model's loss, both terms of evaluations, schedules."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from accelerate.state import GradientState  # type: ignore[import-untyped]
from torch import Tensor
from transformers import TrainerCallback

from ntloss import LossTerms, NumberVocabulary
from ntloss.criteria import Criterion
from ntloss.criteria.criterion import annealed_parts
from ntloss.engine.targets import check_weight
from ntloss.integrations.collator import OF_NUMBERS, NumberWeightsCollator
from ntloss.integrations.options import Loss
from ntloss.integrations.transformers.model import NumberAwareModel, handle_of, make_number_aware
from ntloss.metrics import gather


class _NumberAware:
    """Mixed into a trainer's class. It changes nothing while the model is not number-aware.

    The Trainer's own count of labels makes the loss exact. This adds both terms to evaluations, takes the
    column `number_weights` into the batches, and raises errors where the trainer would lose the loss.
    """

    @property
    def model_accepts_loss_kwargs(self: Any) -> bool:
        """Whether the model takes a count. The Trainer asks once; the model became number-aware later."""
        accepts: bool = vars(self)["model_accepts_loss_kwargs"]
        return accepts or handle_of(self.model) is not None

    @property
    def data_collator(self: Any) -> Any:
        """The Trainer's collator; while the model is number-aware, in a `NumberWeightsCollator`."""
        own = vars(self)["data_collator"]
        return own if handle_of(self.model) is None else NumberWeightsCollator(own)

    @data_collator.setter
    def data_collator(self, collator: Any) -> None:
        vars(self)["data_collator"] = collator

    def _set_signature_columns_if_needed(self: Any) -> None:
        super()._set_signature_columns_if_needed()  # type: ignore[misc]
        columns = [name for name in self._signature_columns if name not in OF_NUMBERS]
        self._signature_columns = columns + [*OF_NUMBERS] * (handle_of(self.model) is not None)

    def compute_loss(
        self: Any,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Any:
        """Compute the Trainer's loss; a ValueError if it is not the number-aware model's, or its mean."""
        handle, labels = handle_of(self.model), inputs.get("labels")
        if handle is not None:
            _check_compute_loss_func(self)
        before = None if handle is None else handle.terms
        computed = super().compute_loss(  # type: ignore[misc]
            model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch
        )
        if handle is None or labels is None:
            return computed
        if handle.terms is before:
            raise ValueError(
                f"this {type(self).__name__} did not call the number-aware model for its loss, or something "
                "that wraps the model's forward answered instead: call handle.undo(), and then the function "
                "for this trainer, such as make_sft_number_aware(trainer)"
            )
        # A trainer of TRL divides by its count itself.
        is_passed = handle.num_items is not None or handle.fused is not None
        if num_items_in_batch is not None and self.model.training and not is_passed:
            # Whether a Trainer counts the first label of a sequence, which a causal model does not predict,
            # depends on its release.
            own = [
                int((some != handle.loss.options.ignore_index).sum()) for some in (labels, labels[..., 1:])
            ]
            if int(num_items_in_batch) not in own:
                raise ValueError(
                    f"the model was called without num_items_in_batch={int(num_items_in_batch)}, but this "
                    f"batch has {own[0]} labels. With several accumulated batches or ranks, a Trainer whose "
                    "own compute_loss calls the model has to pass on its count: super().compute_loss(...), "
                    "or model(**inputs, num_items_in_batch=num_items_in_batch).loss * "
                    "self.accelerator.num_processes."
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
        handle, sums = handle_of(self.model), TermSums()

        def add(loss: Loss, inputs: dict[str, Any], terms: LossTerms) -> None:
            kept = without_repeated_rows(loss, inputs)
            if kept is not inputs:
                terms = loss.forward(**kept)  # type: ignore[assignment]  # does not call hooks
            sums.add(loss, kept, terms)

        stops = [] if handle is None else [listen(loss, add) for loss in handle.losses]
        try:
            output = super().evaluation_loop(  # type: ignore[misc]
                dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
            )
        finally:
            for stop in stops:
                stop()
        for name, value in {} if handle is None else sums.pop().items():
            output.metrics.setdefault(f"{metric_key_prefix}_{name}", value)  # compute_metrics has precedence
        return output


def make_trainer_number_aware(
    trainer: Any, numbers: NumberVocabulary | Any | None = None, *args: Any, **options: Any
) -> NumberAwareModel:
    """Make a Trainer's model number-aware.

    The Trainer passes its count of labels to the model, so the loss does not depend on how a batch is split
    into accumulated batches and over ranks. Evaluations log both terms of the loss beside `eval_loss`, each
    as its mean over the whole evaluation set: `eval_ce`, which compares with the `eval_loss` of a model
    trained on cross-entropy alone (with `mode="replace"`, it is that of text), and `eval_ntl`, before its
    weight. A dataset's columns `number_weights` and `number_samples` are taken into the batches
    (`NumberWeightsCollator`). A criterion with a schedule, `HLGauss.for_answers(answers)`, follows the steps
    of training; its loss falls with sigma, so choose checkpoints by another metric.

    Args:
        trainer: a `Trainer` or `Seq2SeqTrainer`, before `train()`. If its model is number-aware already, it
            keeps its loss, and no further arguments are expected.
        numbers: the tokenizer or `NumberVocabulary`. Default: `trainer.processing_class`.
        args, options: passed to `make_number_aware`: criterion, weight, chunked, ...

    Returns:
        The handle: its `loss`, and `undo`, which restores the stock loss.

    Raises:
        TypeError: not a Trainer.
        ValueError: no tokenizer; an option of the trainer replaces the model's loss; see `make_number_aware`.
    """
    check_uses_model_loss(trainer)
    if any(parent.__module__.startswith("trl.") for parent in type(trainer).__mro__):
        raise ValueError(
            f"{type(trainer).__name__} is a trainer of TRL, which does not use the model's own loss: for an "
            "SFTTrainer call ntloss.integrations.trl.make_sft_number_aware(trainer); the other trainers of "
            "TRL have objectives of their own"
        )
    handle = handle_of(trainer.model)
    if handle is None or numbers is not None or args or options:
        handle = make_number_aware(trainer.model, tokenizer_of(trainer, numbers), *args, **options)
    extend(trainer)
    return handle


def extend(trainer: Any) -> None:
    """Make a trainer evaluate both terms, collate columns for the loss, and check whose loss it uses.

    If the criterion has a schedule, the trainer follows it. The handle's `undo` restores the trainer.
    """
    handle, own = handle_of(trainer.model), type(trainer)
    if handle is None or isinstance(trainer, _NumberAware):
        return
    # A class of its own, because `super()` in the methods above must reach the trainer's, which may be
    # any subclass. A Trainer has no hook for what they change, and the caller has made it already.
    trainer.__class__ = type(own.__name__, (_NumberAware, own), {"__module__": own.__module__})
    annealing = AnnealCallback(handle.loss.objective.criterion)
    if annealing.parts:
        trainer.add_callback(annealing)

    def restore() -> None:
        trainer.__class__ = own
        if annealing in trainer.callback_handler.callbacks:
            trainer.remove_callback(annealing)
        if trainer._signature_columns is not None:  # the columns that it keeps of a dataset
            trainer._signature_columns = [c for c in trainer._signature_columns if c not in OF_NUMBERS]

    handle.restores.append(restore)


def check_is_trainer(trainer: Any) -> None:
    """Raise a TypeError for anything but a Trainer, such as a model."""
    if not hasattr(trainer, "compute_loss_func"):
        raise TypeError(
            f"expected a Trainer, given {type(trainer).__name__}. For a model in your own training loop: "
            "make_number_aware(model, tokenizer)."
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
        ValueError: `weight`, or at a step the scheduled weight, is negative or not finite.
    """

    def __init__(self, loss: Any, schedule: Callable[[int], float], weight: float | None = None) -> None:
        if not isinstance(loss, Loss) or not callable(schedule):
            raise TypeError(
                f"expected a loss with a weight, such as handle.loss, and a function of the step, such as "
                f"lambda step: min(step / 500, 1.0); given {type(loss).__name__} and {schedule!r}"
            )
        # Read now: the attribute will change.
        self.loss, self.schedule = loss, schedule
        self.weight = float(loss.weight if weight is None else weight)
        check_weight(self.weight)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the weight before the micro-batches of a step; a resumed run continues at its step."""
        self.loss.weight = self.weight * self.schedule(state.global_step)


class AnnealCallback(TrainerCallback):
    """Calls a criterion's `anneal` before each optimizer step, with the share of the steps that are done.

    `make_trainer_number_aware` and `make_sft_number_aware` add it for a criterion with a schedule.

    Args:
        criterion: one with a schedule, such as `HLGauss((8.0, 1.0))`, or made of such.

    Attributes:
        parts: the parts of the criterion that have a schedule; empty if none has.
    """

    def __init__(self, criterion: Criterion) -> None:
        self.parts = annealed_parts(criterion)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Anneal before the micro-batches of a step; a resumed run continues at its step."""
        for part in self.parts:
            part.anneal(state.global_step / state.max_steps)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Anneal to the last value."""
        for part in self.parts:
            part.anneal(1.0)


def check_uses_model_loss(trainer: Any) -> None:
    """Raise a ValueError if an option of a Trainer replaces the model's loss, or averages it wrongly.

    Raise a TypeError for anything but a Trainer.
    """
    check_is_trainer(trainer)
    _check_compute_loss_func(trainer)
    arguments = trainer.args
    for wrong, message in (
        (
            getattr(trainer, "model_init", None) is not None,
            "the trainer has a model_init: train() would make a new model with the stock loss. Pass a model "
            "to the trainer, or call make_number_aware in model_init in place of this line.",
        ),
        (
            trainer.label_smoother is not None,
            f"label_smoothing_factor={arguments.label_smoothing_factor} makes the Trainer compute a loss of "
            "its own: leave it at 0, and pass label_smoothing= to make_number_aware",
        ),
        (
            getattr(arguments, "use_liger_kernel", False),
            "use_liger_kernel=True replaces the model's loss: omit it. chunked=True also computes the loss "
            "without logits.",
        ),
        (
            arguments.n_gpu > 1,
            f"the Trainer sees {arguments.n_gpu} GPUs and would copy the model with DataParallel, whose "
            "copies have the stock loss: start with torchrun or accelerate launch, or set "
            "CUDA_VISIBLE_DEVICES",
        ),
        (
            hasattr(trainer, "get_sp_size") and trainer.get_sp_size() > 1,  # absent in transformers 4
            "sequence parallelism weights the ranks' losses by their counts of labels, which does not give "
            "the mean of the number term: expected data, tensor or context parallelism",
        ),
    ):
        if wrong:
            raise ValueError(message)


def _check_compute_loss_func(trainer: Any) -> None:
    if trainer.compute_loss_func is not None:
        raise ValueError(
            "the trainer has a compute_loss_func, which would replace the model's number-aware loss: omit "
            "compute_loss_func, or call handle.undo()"
        )


class TermSums:
    """Sums of both terms over batches, because the mean of batch means is not the mean over all labels."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None  # of each term, followed by its count

    def add(self, loss: Loss, inputs: dict[str, Any], terms: LossTerms) -> None:
        """Add a batch: the loss that computed the terms, the arguments of its `forward`, and the terms."""
        beside = (inputs[name] for name in ("loss_weights", "sequence_ids", "number_weights"))
        items, numbers = loss.normalizers(inputs["labels"], *beside)
        if loss.options.normalize_by == "items" or loss.options.mode == "replace":
            numbers = items
        num_items = inputs["num_items_in_batch"]
        by_items = items if num_items is None else num_items
        # A mean over numbers is this batch's, times its share of the items.
        by_numbers = numbers * torch.where(items > 0, by_items / items, 0)
        ce, ntl = terms.ce.detach().sum(), terms.ntl.detach().sum()
        if loss.options.reduction == "mean":
            ce, ntl = ce * by_items, ntl * by_numbers
        sums = [ce, items, ntl, numbers]
        dtype = loss.tables.values.dtype  # float64, if the device has it
        stacked = torch.stack([torch.as_tensor(s, dtype=dtype, device=terms.ce.device) for s in sums])
        self._sums = stacked if self._sums is None else self._sums.to(stacked) + stacked

    def pop(self) -> dict[str, float]:
        """Return the means `ce` and `ntl` over all processes, each of which calls this; reset the sums."""
        own = torch.zeros(4) if self._sums is None else self._sums
        self._sums = None
        ce, items, ntl, numbers = torch.stack(gather(own.to("cpu", torch.float64), None)).sum(0).tolist()
        return {
            name: total / count for name, total, count in (("ce", ce, items), ("ntl", ntl, numbers)) if count
        }


See = Callable[[Loss, dict[str, Any], LossTerms], None]


def listen(loss: Loss, see: See) -> Callable[[], None]:
    """Call `see` with each call's loss, arguments and terms. The loss returns what it did before.

    Returns:
        A function that ends it.
    """
    # One hook serves all listeners of a loss, because it changes what the loss returns.
    hook: _ListenersHook = vars(loss).get("_listeners") or _ListenersHook(loss)
    hook.listeners.append(see)

    def stop() -> None:
        hook.listeners.remove(see)
        if not hook.listeners:
            hook.remove(loss)

    return stop


class _ListenersHook:
    """A forward hook that calls the listeners of a loss with its terms."""

    def __init__(self, loss: Loss) -> None:
        self.listeners: list[See] = []
        self.signature, self.had_terms = inspect.signature(loss.forward), loss.return_terms
        self.handle = loss.register_forward_hook(self, with_kwargs=True)
        loss.return_terms = True
        vars(loss)["_listeners"] = self

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def __call__(self, loss: Loss, args: Any, kwargs: Any, terms: LossTerms) -> Any:
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        for see in self.listeners:
            see(loss, dict(bound.arguments), terms)
        return terms if self.had_terms else terms.loss

    def remove(self, loss: Loss) -> None:
        """Let the loss return what it did before."""
        self.handle.remove()
        loss.return_terms = self.had_terms
        del vars(loss)["_listeners"]


def without_repeated_rows(loss: Loss, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs of a batch without rows that a distributed evaluation repeats to fill it."""
    state, labels = GradientState(), inputs["labels"]
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    own = state.remainder - rank * len(labels)  # this process's rows that are not repeated
    if not state.end_of_dataloader or state.remainder <= 0 or own >= len(labels) or labels.dim() < 2:
        return inputs
    repeated = torch.arange(len(labels), device=labels.device) >= own
    labels = labels.masked_fill(repeated.unsqueeze(-1), loss.options.ignore_index)
    return {**inputs, "labels": labels, "num_items_in_batch": None}
