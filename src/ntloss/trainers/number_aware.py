"""`make_number_aware`: a trainer's own `compute_loss`, on a model that answers with a number-aware loss."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from ntloss import NTLCrossEntropyLoss
from ntloss.criteria import Criterion
from ntloss.criteria.signature import name_of
from ntloss.engine.targets import PreparedLabels
from ntloss.trainers.answering import Answering
from ntloss.trainers.chunked import ChunkedHead, linear_head
from ntloss.trainers.columns import COLUMNS, PREPARED, check_dataset, check_names, collate, record_of_batch
from ntloss.trainers.evaluation import EvaluationMeans, total_weight
from ntloss.trainers.first_labels import check_fields, first_labels, log_of, same_random_numbers
from ntloss.trainers.models import (
    is_masked,
    shifts_labels,
    vocabulary_of,
    without_wrappers,
)


def make_number_aware(
    trainer: Any,
    criterion: Criterion | str | Mapping[str, Any] | None = "ntl_was",
    weight: float | None = None,
    *,
    mode: Literal["add", "replace"] | None = None,
    label_smoothing: float = 0.0,
    vocabulary: Any = None,
    thousands: Literal[",", ".", " ", "'", ""] | None = None,
    chunked: bool | None = None,
    shift: bool | None = None,
    chunk_size: int | None = None,
) -> NumberAware:
    """Make a trainer's loss number-aware: cross-entropy plus `weight` times a number term.

        make_number_aware(trainer, HLGauss.for_answers(answers))

    `trainer` is a `Trainer` or `Seq2SeqTrainer` of transformers, an `SFTTrainer` of TRL, or a subclass. Its
    own `compute_loss` is called with a model that computes this loss, so a subclass keeps what it adds, and
    the model itself is not changed. Call it after the trainer is made; a second call replaces the loss, and
    `undo()` of the handle that it returns restores the trainer. Evaluations also log `eval_ce`, to compare
    with the `eval_loss` of stock training, and `eval_ntl`. See docs/train.md for columns of weights.

    Args:
        trainer: see above.
        criterion, weight, mode, label_smoothing: see `NTLCrossEntropyLoss`. An `HLGauss` whose width falls
            follows the trainer's steps.
        vocabulary: a tokenizer or `NumberVocabulary`. Default: `trainer.processing_class`.
        thousands: the separator of thousands in labels, see `parse_numbers`. Default: that of the vocabulary,
            and of a tokenizer: each text decides.
        chunked: compute the loss of training batches from hidden states, in the model's head, so that the
            logits are never whole in memory. Logits are computed all the same with another head than a linear
            layer, and for an encoder-decoder that makes its decoder's inputs in its forward. Default: True
            for an `SFTTrainer`, whose own loss does so, too, and False for others.
        shift: whether position i predicts label i + 1. Default: depends on the model's class.
        chunk_size: positions of a chunk. Default: depends on the device.

    Returns:
        The handle. It prints what the loss does; `handle.loss` is the loss, see `NumberAware`, and
        `handle.undo()`, or leaving a `with` block, restores the trainer.

    Raises:
        TypeError: not such a trainer.
        ValueError: no tokenizer, or another model's; a model that is no language model; an option of the
            trainer that has another loss.

    Example:
        >>> from ntloss.trainers import make_number_aware
        >>> make_number_aware(trainer, weight=0.3)  # doctest: +SKIP
        All labels: cross-entropy. Those that are one of 10 number tokens: plus 0.3 times ntl_was. ...
        >>> trainer.train()  # doctest: +SKIP
    """
    is_sft = check_trainer(trainer)
    model = without_wrappers(trainer.model)
    numbers = vocabulary_of(model, trainer.processing_class, vocabulary, thousands)
    options: dict[str, Any] = {"mode": mode, "label_smoothing": label_smoothing}
    options["shift"] = shifts_labels(model) if shift is None else shift
    loss = NTLCrossEntropyLoss(numbers, criterion, weight, **options)
    _check_model(trainer, model, loss)
    if before := handle_of(trainer):
        before.undo()
    chunked = is_sft if chunked is None else chunked
    return NumberAware(trainer, loss, chunked and linear_head(model) is not None, chunk_size)


def handle_of(trainer: Any) -> NumberAware | None:
    """Return the handle of a number-aware trainer, or None."""
    owner = getattr(vars(trainer).get("compute_loss"), "__self__", None)
    return owner if isinstance(owner, NumberAware) else None


class NumberAware:
    """A trainer with a number-aware loss; `make_number_aware` returns it.

    Attributes:
        trainer: the trainer.
        loss: the loss. Its `weight` and `label_smoothing` may be assigned at each step.
        head: what computes the loss from hidden states, or None if it is computed from logits.
        sums: the sums of a running evaluation, or None.
        first_numbers: for a criterion on whole numbers, the first three numbers in the labels of the first
            batch as the loss sees them, with the width of an `HLGauss`: "512 ± 143, 340 ± 143, 7 ± 143";
            a number of no field has the width 0.
    """

    _looked = False  # whether the first labels of a training were looked at
    _began = False  # whether the batches of an update were taken
    _called = False  # whether an update has called compute_loss

    def __init__(
        self, trainer: Any, loss: NTLCrossEntropyLoss, chunked: bool, chunk_size: int | None
    ) -> None:
        self.trainer, self.loss = trainer, loss
        self.head = ChunkedHead(chunk_size) if chunked else None
        self.first_numbers = ""
        self.sums: EvaluationMeans | None = None
        trainer._set_signature_columns_if_needed()
        ours = {
            "compute_loss": self.compute_loss,
            "prediction_step": self.prediction_step,
            "evaluation_loop": self.evaluation_loop,
            "get_batch_samples": self.get_batch_samples,
            "get_train_dataloader": self.get_train_dataloader,
            "get_eval_dataloader": self.get_eval_dataloader,
            "get_test_dataloader": self.get_test_dataloader,
            "model_accepts_loss_kwargs": True,  # so that the trainer counts the labels of a step
            "_signature_columns": [*trainer._signature_columns, *COLUMNS],  # so that it does not drop these
        }
        self._replaced = {name: vars(trainer)[name] for name in ours if name in vars(trainer)}
        vars(trainer).update(ours)
        self._ours = ours

    def undo(self) -> None:
        """Restore the trainer's own loss. Do nothing the second time."""
        for name, value in self._ours.items():
            if vars(self.trainer).get(name) == value:  # else it was replaced since
                del vars(self.trainer)[name]
                vars(self.trainer).update({k: v for k, v in self._replaced.items() if k == name})
        self._ours = {}

    def __enter__(self) -> NumberAware:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def __repr__(self) -> str:
        criterion, weight = self.loss.criterion, float(self.loss.weight)
        count = f"{len(self.loss.vocabulary.tokens):,} number tokens"
        if criterion is None:
            said = "All tokens: cross-entropy."
        elif self.loss.mode == "replace":
            term = name_of(criterion) if weight == 1 else f"{weight:g} times {name_of(criterion)}"
            said = f"Labels that are one of {count}: {term}. All other labels: cross-entropy."
        else:
            term = f"{weight:g} times {name_of(criterion)}"
            said = f"All labels: cross-entropy. Those that are one of {count}: plus {term}."
            if name_of(criterion) == "ntl_was":  # the default, see docs/which_loss.md
                said += " To fine-tune for answers of one number, HLGauss.for_answers(answers) was better."
        source = "logits" if self.head is None else "hidden states; the logits are never whole in memory"
        said = f"{'' if self._ours else 'Undone. The loss was: '}{said} Computed from {source}."
        first = f" The first numbers of the labels: {self.first_numbers}." if self.first_numbers else ""
        return said + first

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Call the trainer's own `compute_loss` with a model whose loss is number-aware."""
        trainer, state = self.trainer, self.trainer.state
        if trainer.compute_loss_func is not None:  # it was assigned after `make_number_aware`
            raise ValueError(
                "the trainer has a compute_loss_func, which would replace the number-aware loss: to use "
                "it, call handle.undo()"
            )
        self._called = self._called or self.sums is None  # else it is a call of an evaluation
        self.loss.anneal(state.global_step / max(state.max_steps, 1))
        is_first = not self._looked and trainer.model.training and inputs.get("labels") is not None
        if is_first:
            self._looked = True
            check_names(inputs)
            self._log_first(inputs)
        if isinstance(model, Answering):  # of `prediction_step`
            inputs = {**inputs, **model.columns}
        else:
            model = Answering(self, model, inputs)
        if self.sums is not None:  # so that the loss is the batch's mean, to which a subclass may add
            num_items_in_batch = None
        model.num_items = num_items_in_batch
        # By name, as trainers call it: a subclass may take them in another order, or as **kwargs.
        given: dict[str, Any] = {"return_outputs": return_outputs, "num_items_in_batch": num_items_in_batch}
        found = self._own("compute_loss")(model, inputs, **given)
        loss = found[0] if return_outputs else found
        if is_first and loss.requires_grad:
            model.check_is_used(loss)
        return found

    def prediction_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Call the trainer's own step with a number-aware model.

        A `Seq2SeqTrainer` that generates calls this method and not `compute_loss`.
        """
        inputs = self.trainer._prepare_inputs(inputs)  # so that the labels are those of the model's calls
        answering = Answering(self, model, inputs)
        # `generate` does not know them.
        inputs = {name: value for name, value in inputs.items() if name not in answering.columns}
        found = self._own("prediction_step")(answering, inputs, *args, **kwargs)
        if self.sums is not None and isinstance(found[0], Tensor):
            self.sums.add_returned(found[0])
        return found

    def evaluation_loop(
        self, dataloader: Any, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any
    ) -> Any:
        """Call the trainer's own loop, and make the metrics of the loss means over all labels of the set."""
        outer, self.sums = self.sums, EvaluationMeans(self.trainer, self.loss)
        loop = self._own("evaluation_loop")
        try:
            output = loop(dataloader, *args, metric_key_prefix=metric_key_prefix, **kwargs)
            means = self.sums.means()
        finally:
            self.sums = outer  # of an evaluation that calls another one, such as a metric that predicts
        for name, value in means.items():
            key = f"{metric_key_prefix}_{name}"
            if name == "loss" or key not in output.metrics:  # a metric of compute_metrics goes first
                output.metrics[key] = value
        return output

    def get_train_dataloader(self) -> Any:
        """Call the trainer's own method, whose loader also makes the record of labels; a training begins."""
        self._looked = self._began = self._called = False  # also in each of a search for hyperparameters
        return self._loader_of(self.trainer.train_dataset, "get_train_dataloader")

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """See `get_train_dataloader`."""
        is_own = eval_dataset is None or isinstance(eval_dataset, str)
        checked = self.trainer.eval_dataset if is_own else eval_dataset
        return self._loader_of(checked, "get_eval_dataloader", eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """See `get_train_dataloader`."""
        return self._loader_of(test_dataset, "get_test_dataloader", test_dataset)

    def _loader_of(self, dataset: Any, name: str, *given: Any) -> Any:
        """Check the names of columns before the trainer drops unknown ones, and make a loader."""
        with same_random_numbers():
            check_dataset(dataset)
        own = self.trainer.data_collator
        self.trainer.data_collator = partial(collate, self.loss.term.reader, own)
        try:
            return self._own(name)(*given)
        finally:
            self.trainer.data_collator = own

    def record_of(self, batch: Mapping[str, Any], is_own: bool = True) -> PreparedLabels:
        """Return the record of a batch's labels: the collator's, unless it belongs to other labels.

        Of other labels than the step's, the numbers are found again, and weights that the batch has stay.
        """
        reader = self.loss.term.reader
        record = PreparedLabels.unpack(batch[PREPARED], reader) if PREPARED in batch else None
        if record is not None and is_own and record.labels.shape == batch["labels"].shape:
            return record
        anew = record_of_batch(reader, batch)
        if record is None or record.labels.shape != anew.labels.shape:  # the trainer has cut the labels
            return anew
        sigma = record.sigma if reader.fields is None else anew.sigma
        return record._replace(labels=anew.labels, numbers=anew.numbers, sigma=sigma)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Call the trainer's own method, and count each label by its weight.

        Raises:
            ValueError: the first update of a training did not call `compute_loss`.
        """
        if self._began and not self._called:
            raise ValueError(
                f"{type(self.trainer).__name__}.training_step does not call compute_loss, so its loss has no "
                "number term: expected loss = self.compute_loss(model, inputs, num_items_in_batch="
                "num_items_in_batch) in it, in place of a call of the model"
            )
        batches, count = self._own("get_batch_samples")(*args, **kwargs)
        self._began = bool(batches)
        if count is None:
            return batches, count
        found = torch.zeros(2, device=self.trainer.args.device)  # total weight, and count
        for batch in batches:
            record = self.record_of(batch)
            found += torch.stack([total_weight(record), (record.labels >= 0).sum()]).to(found)
        if self.trainer.args.average_tokens_across_devices:  # then the count is that of all ranks
            found = self.trainer.accelerator.reduce(found, reduction="sum")
        return batches, count * torch.where(found[1] > 0, found[0] / found[1].clamp(min=1), 1.0)

    def _own(self, name: str) -> Any:
        return self._replaced.get(name) or getattr(type(self.trainer), name).__get__(self.trainer)

    def _log_first(self, inputs: Mapping[str, Any]) -> None:
        """Log the share of number tokens among the labels of the first rows, and the first numbers."""
        loader = self.trainer.callback_handler.train_dataloader
        labels, rows = first_labels(loader, self.trainer.args.train_batch_size, inputs["labels"])
        check_fields(self.loss, labels, rows)
        logs = log_of(self.loss, labels, self.record_of(inputs))
        self.first_numbers = logs.get("first_numbers", "")
        self.trainer.log(logs)


def check_trainer(trainer: Any) -> bool:
    """Return whether a trainer is an SFTTrainer; raise an error if its loss cannot be made number-aware."""
    if not hasattr(trainer, "compute_loss_func"):
        raise TypeError(
            f"expected a Trainer, given {type(trainer).__name__}. In your own loop, call "
            "NTLCrossEntropyLoss(tokenizer, shift=True)(outputs.logits, labels)."
        )
    names = {parent.__name__ for parent in type(trainer).__mro__ if parent.__module__.startswith("trl.")}
    if names and "SFTTrainer" not in names:
        raise TypeError(
            f"{type(trainer).__name__} has an objective of its own: of TRL's trainers, expected an SFTTrainer"
        )
    of, parallel = trainer.args, getattr(trainer.accelerator, "parallelism_config", None)
    wrong = {
        "the trainer has a compute_loss_func, which would replace the number-aware loss: omit it": (
            trainer.compute_loss_func is not None
        ),
        f"label_smoothing_factor={of.label_smoothing_factor} makes the trainer compute another loss: omit "
        "it, and pass label_smoothing= to make_number_aware": trainer.label_smoother is not None,
        "loss_type='dft' weights cross-entropy in its own way: expected 'nll'": (
            getattr(of, "loss_type", "nll") == "dft"
        ),
        "use_liger_kernel=True replaces the model's head: omit it. chunked=True also saves the logits' "
        "memory": getattr(of, "use_liger_kernel", False),
        f"the trainer sees {of.n_gpu} GPUs, and would split batches with DataParallel, which counts labels "
        "otherwise: start with torchrun or accelerate launch, or set CUDA_VISIBLE_DEVICES": of.n_gpu > 1,
        "sequence parallelism (Ulysses) computes the model's own loss on each rank: expected data, tensor or "
        "context parallelism": getattr(parallel, "sp_enabled", False),
    }
    for message, is_wrong in wrong.items():
        if is_wrong:
            raise ValueError(message)
    return bool(names)


def _check_model(trainer: Any, model: Any, loss: NTLCrossEntropyLoss) -> None:
    """Raise a ValueError if a model has a loss beside that of labels, or labels hold parts of numbers."""
    if getattr(model, "z_loss_coefficient", 0) > 0:  # Bamba
        raise ValueError(
            f"{type(model).__name__} adds a z-loss where it computes its own loss, which would be lost: load "
            "the model with z_loss_coefficient=0"
        )
    if loss.criterion is None or not loss.finds_numbers:
        return
    parallel = getattr(trainer.accelerator, "parallelism_config", None)
    said = f"criterion={name_of(loss.criterion)} looks at whole numbers"
    if getattr(parallel, "cp_enabled", False):
        raise ValueError(
            f"{said}, which context parallelism cuts: expected another criterion, or another parallelism"
        )
    if is_masked(model):
        raise ValueError(
            f"{said}, of which the labels of {type(model).__name__} hold the masked digits only: expected a "
            "criterion on single tokens, such as ntl_was, crps or gaussian_smoothing"
        )
