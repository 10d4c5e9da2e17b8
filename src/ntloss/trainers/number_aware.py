"""`make_number_aware`: a trainer's own `compute_loss`, on a model that answers with a number-aware loss."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss import HLGauss, NTLCrossEntropyLoss
from ntloss.callers import warn_caller
from ntloss.criteria import Criterion
from ntloss.criteria.hl_gauss import fields_of
from ntloss.criteria.signature import name_of
from ntloss.engine.targets import IGNORED, PreparedLabels
from ntloss.numbers import LabelNumbers
from ntloss.numbers.fields import fields_of_labels
from ntloss.trainers.answering import Answering
from ntloss.trainers.chunked import ChunkedHead
from ntloss.trainers.columns import (
    COLUMNS,
    PREPARED,
    Preparation,
    WithColumns,
    check_dataset,
    check_names,
    has_rows,
)
from ntloss.trainers.evaluation import EvaluationMeans, total_weight
from ntloss.trainers.models import (
    check_loss,
    check_special,
    is_masked,
    shifts_labels,
    vocabulary_of,
    without_wrappers,
)
from ntloss.trainers.share import (
    NumberLabelsMissingWarning,
    number_share,
    progress_of,
    warn_without_numbers,
)

_OPTIONS = {"mode", "label_smoothing"}  # of the loss, which trainers leave to it
_ROWS = 100  # of the training set, whose labels are looked at before the first step
_NUMBERS = 3  # that are logged then


def make_number_aware(
    trainer: Any,
    criterion: Criterion | str | Mapping[str, Any] | None = "ntl_was",
    weight: float | None = None,
    *,
    vocabulary: Any = None,
    thousands: str | None = None,
    chunked: bool | None = None,
    shift: bool | None = None,
    chunk_size: int | None = None,
    **options: Any,
) -> NumberAware:
    r"""Make a trainer's loss number-aware: cross-entropy plus $\lambda$ times a number term.

    The trainer's own `compute_loss` is called with a model that computes this loss from the model's logits.
    So subclasses with a `compute_loss` of their own keep what they add, and the model itself is not changed.
    Both terms are divided by the trainer's count of labels, so the loss does not depend on how a batch is
    split into accumulated batches and over ranks. A criterion whose width falls during training,
    `HLGauss.for_answers(answers)`, follows the trainer's steps.

    Evaluations log `eval_ce`, the cross-entropy at all labels, also where the number term replaces it, which
    compares with the `eval_loss` of stock training, and `eval_ntl`, the number term before its weight. Both,
    and `eval_loss`, are means over all labels of the evaluation set, so they do not depend on the evaluation
    batch size. Before the first step, the share of number tokens among the labels of the first hundred rows
    is logged as `number_share`, and, for a criterion on whole numbers, three numbers of the first batch with
    their width as `first_numbers`.

    A dataset may have columns with an entry for each of a row's labels (unshifted). `loss_weights` weighs a
    token in the whole loss, and `number_weights` in the number term alone; both are 0 or more. With
    `mode="replace"`, `number_weights` are at most 1. `number_sigma` is the standard deviation of a number for
    `HLGauss`, at its first token, and 0 for the criterion's own or that of its field. `soft_labels` are pairs
    of token and weight for a label that is a distribution (`SoftTargets.pairs()`), and an empty list for
    others.

    Args:
        trainer: a `Trainer` or `Seq2SeqTrainer` of transformers, an `SFTTrainer` of TRL, or a subclass. A
            trainer that is number-aware already gets the new loss in place of the old one.
        criterion, weight: see `NTLCrossEntropyLoss`.
        vocabulary: a tokenizer or `NumberVocabulary`. Default: `trainer.processing_class`.
        thousands: the separator of thousands in labels, see `parse_numbers`. Default: that of the vocabulary,
            and of a tokenizer: each text decides.
        chunked: compute the loss of training batches from hidden states, in the model's head, so that the
            logits are never whole in memory. Default: True for an `SFTTrainer`, whose own loss does so, too,
            and False for others.
        shift: whether position i predicts label i + 1. Default: depends on the model's class.
        chunk_size: positions of a chunk. Default: depends on the device.
        options: `mode` and `label_smoothing` of `NTLCrossEntropyLoss`.

    Returns:
        The handle. It prints what the loss does; `handle.loss` is the loss, whose `weight` may be assigned at
        each step, and `handle.undo()`, or leaving a `with` block, restores the trainer.

    Raises:
        TypeError: not such a trainer, or an unknown option.
        ValueError: no tokenizer, or another model's; a model that is no language model; an option of the
            trainer that has another loss; a column that is almost called as one of these.

    Example:
        >>> from ntloss.trainers import make_number_aware
        >>> make_number_aware(trainer, weight=0.3)  # doctest: +SKIP
        All labels: cross-entropy. Those that are one of 10 number tokens: plus 0.3 times ntl_was. ...
        >>> trainer.train()  # doctest: +SKIP
    """
    is_sft = check_trainer(trainer)
    if unknown := sorted(options.keys() - _OPTIONS):
        raise TypeError(f"unknown options {', '.join(unknown)}: expected {', '.join(sorted(_OPTIONS))}")
    given = trainer.processing_class if vocabulary is None else vocabulary
    if given is None:
        raise ValueError("the trainer has no processing_class: pass the model's tokenizer as vocabulary")
    model = without_wrappers(trainer.model)
    tokenizer = getattr(given, "tokenizer", given)  # a processor has a tokenizer
    vocabulary = vocabulary_of(model, tokenizer, thousands)
    check_special(vocabulary, trainer.processing_class)
    loss = NTLCrossEntropyLoss(vocabulary, criterion, weight, **options)
    parallel = getattr(trainer.accelerator, "parallelism_config", None)
    if getattr(parallel, "cp_enabled", False) and loss.finds_numbers:
        raise ValueError(
            f"criterion={criterion!r} looks at whole numbers, which context parallelism cuts: expected "
            "another criterion, or data or tensor parallelism"
        )
    if is_masked(model) and loss.finds_numbers:
        raise ValueError(
            f"criterion={criterion!r} looks at whole numbers, of which the labels of "
            f"{type(model).__name__} hold the masked digits only: expected a criterion on single tokens, "
            "such as ntl_was, crps or gaussian_smoothing"
        )
    check_loss(model)
    loss.shift = shifts_labels(model) if shift is None else shift
    check_dataset(trainer.train_dataset)
    check_dataset(trainer.eval_dataset)
    if before := handle_of(trainer):
        before.undo()
    return NumberAware(trainer, loss, is_sft if chunked is None else chunked, chunk_size)


def handle_of(trainer: Any) -> NumberAware | None:
    """Return the handle of a number-aware trainer, or None."""
    owner = getattr(vars(trainer).get("compute_loss"), "__self__", None)
    return owner if isinstance(owner, NumberAware) else None


class NumberAware:
    """A trainer with a number-aware loss; `make_number_aware` returns it.

    Attributes:
        trainer: the trainer.
        loss: the loss; its `weight` may be assigned at each step.
        plain: cross-entropy alone, which evaluations log.
        head: what computes the loss from hidden states, or None if it is computed from logits.
        sums: the sums of a running evaluation, or None.
        prepare: makes the record of a batch's labels.
        first_numbers: for a criterion on whole numbers, the first three numbers in the labels of the first
            batch as the loss sees them, with the width of an `HLGauss`: "512 ± 143, 340 ± 143, 7 ± 143";
            a number of no field has the width 0.
    """

    def __init__(
        self, trainer: Any, loss: NTLCrossEntropyLoss, chunked: bool, chunk_size: int | None
    ) -> None:
        self.trainer, self.loss, self.prepare = trainer, loss, Preparation(loss)
        self.plain = NTLCrossEntropyLoss(loss.vocabulary, None, label_smoothing=loss.label_smoothing)
        self.head = ChunkedHead(loss, self.plain, chunk_size) if chunked else None
        self._last_training = _Training(None)
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
            "data_collator": WithColumns(trainer.data_collator, self.prepare),
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
        source = "logits" if self.head is None else "hidden states; the logits are never whole in memory"
        said = f"{'' if self._ours else 'Undone. The loss was: '}{said} Computed from {source}."
        return (
            f"{said} The first numbers of the labels: {self.first_numbers}." if self.first_numbers else said
        )

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Call the trainer's own `compute_loss` with a model whose loss is number-aware."""
        if self.trainer.compute_loss_func is not None:  # it was assigned after `make_number_aware`
            raise ValueError(
                "the trainer has a compute_loss_func, which would replace the number-aware loss: to use "
                "it, call handle.undo()"
            )
        training = self._training()
        if self.sums is None:  # else it is a call of an evaluation
            training.called = True
        self.loss.anneal(progress_of(training.state))
        is_first = not training.looked and self.trainer.model.training and inputs.get("labels") is not None
        if is_first:  # of each training: a search for hyperparameters makes a model for each trial
            training.looked = True
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
        self.plain.label_smoothing = self.loss.label_smoothing  # it may have been assigned
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
        """Call the trainer's own method, and check the names of columns before it drops unknown ones."""
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
        with _same_random_numbers():
            check_dataset(dataset)
        return self._own(name)(*given)

    def record_of(self, batch: Mapping[str, Any], is_own: bool = True) -> PreparedLabels:
        """Return the record of a batch's labels: the collator's, unless it belongs to other labels.

        Of other labels than the step's, the numbers are found again, and weights that the batch has stay.
        """
        record = self._unpack(batch) if PREPARED in batch else None
        if record is not None and is_own and record.labels.shape == batch["labels"].shape:
            return record
        anew = self.prepare(batch)
        if record is None or record.labels.shape != anew.labels.shape:  # the trainer has cut the labels
            return anew
        sigma = record.sigma if self.prepare.reader.fields is None else anew.sigma
        return record._replace(labels=anew.labels, numbers=anew.numbers, sigma=sigma)

    def _unpack(self, batch: Mapping[str, Any]) -> PreparedLabels:
        return PreparedLabels.unpack(batch[PREPARED], self.prepare.reader)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Call the trainer's own method, and count each label by its weight.

        Raises:
            ValueError: the first update of a training did not call `compute_loss`.
        """
        training = self._training()
        if training.began and not training.called:
            raise ValueError(
                f"{type(self.trainer).__name__}.training_step does not call compute_loss, so its loss has no "
                "number term: expected loss = self.compute_loss(model, inputs, num_items_in_batch="
                "num_items_in_batch) in it, in place of a call of the model"
            )
        batches, count = self._own("get_batch_samples")(*args, **kwargs)
        training.began = bool(batches)
        self._items_per_number = None
        if count is None:
            return batches, count
        found = torch.zeros(2, device=self.trainer.args.device)  # total weight, and count
        for batch in batches:
            record = self._unpack(batch) if PREPARED in batch else self.prepare(batch, False)
            found += torch.stack([total_weight(record), (record.labels >= 0).sum()]).to(found)
        if self.trainer.args.average_tokens_across_devices:  # then the count is that of all ranks
            found = self.trainer.accelerator.reduce(found, reduction="sum")
        return batches, count * torch.where(found[1] > 0, found[0] / found[1].clamp(min=1), 1.0)

    def _training(self) -> _Training:
        if self._last_training.state is not self.trainer.state:
            self._last_training = _Training(self.trainer.state)
        return self._last_training

    def _own(self, name: str) -> Any:
        return self._replaced.get(name) or getattr(type(self.trainer), name).__get__(self.trainer)

    def _log_first(self, inputs: Mapping[str, Any]) -> None:
        """Log the share of number tokens among the labels of the first rows, and the first numbers."""
        labels, rows = self._first_labels(inputs)
        self._check_fields(labels, rows)
        labels = labels[labels != IGNORED]
        share = number_share(labels, self.loss.vocabulary)
        if not share:
            warn_without_numbers(f"the {len(labels):,} labels of the first rows")
        logs: dict[str, Any] = {"number_share": share}
        if self.loss.finds_numbers:
            record = self.record_of(inputs)
            self._check_numbers(record)
            self.first_numbers = _written(record, self.loss.criterion)
            logs |= {"first_numbers": self.first_numbers} if self.first_numbers else {}
        self.trainer.log(logs)

    def _check_numbers(self, record: PreparedLabels) -> None:
        """Warn if the first labels have number tokens, but these belong to no number of their text."""
        assert record.numbers is not None
        labels = record.labels.cpu()
        share = number_share(labels[labels >= 0], self.loss.vocabulary)
        if share and not LabelNumbers.unpack(record.numbers.cpu()).length.any():
            warn_caller(
                "the number tokens of the first labels belong to no number of their text, so the criterion "
                "does not see them: their digits stand in words (x1), or tokens beside them are unknown. See "
                "docs/numbers.md, and decode the labels to see their text",
                NumberLabelsMissingWarning,
            )

    def _first_labels(self, inputs: Mapping[str, Any]) -> tuple[Tensor, int | None]:
        """Return the labels of the first rows, one after the other with an ignored one between rows.

        The second is how many rows these are, None if the data set is a stream: then they are a batch.
        """
        labels: list[Tensor] = []
        loader: Any = self.trainer.callback_handler.train_dataloader
        dataset: Any = getattr(loader, "dataset", None)
        rows = min(_ROWS, len(dataset)) if has_rows(dataset) else None
        if rows is not None:
            with _same_random_numbers():
                for start in range(0, rows, self.trainer.args.train_batch_size):
                    end = min(start + self.trainer.args.train_batch_size, len(dataset))
                    batch = loader.collate_fn([dataset[i] for i in range(start, end)])
                    labels.append(torch.as_tensor(batch["labels"]))
        labels = labels or [inputs["labels"]]
        return torch.cat([F.pad(each, (0, 1), value=IGNORED).reshape(-1) for each in labels]), rows

    def _check_fields(self, labels: Tensor, rows: int | None) -> None:
        """Warn of fields without a number in the first labels; raise a ValueError if that is all of them.

        A batch of a stream may hold no number of any field, such as that of one row.
        """
        if (found := fields_of(self.loss.criterion)) is None:
            return
        fields, by = found
        index = fields_of_labels(labels, self.loss.vocabulary, fields, by)
        missing = [name for i, name in enumerate(fields) if not (index == i).any()]
        message = (
            f"the labels of the first {'batch' if rows is None else f'{rows} rows'} have no number of "
            f"{', '.join(missing)}: expected the names of fields as they stand in the answers before their "
            "numbers, or another way to find them, HLGauss.for_fields(..., by=...), see "
            "ntloss.numbers.find_fields"
        )
        if rows is not None and len(missing) == len(fields):
            raise ValueError(message)
        if missing:
            warn_caller(message, NumberLabelsMissingWarning)


@dataclass
class _Training:
    """What is known of one training, which is recognized by the trainer's state."""

    state: Any
    looked: bool = False  # whether its first labels were looked at
    began: bool = False  # whether the batches of an update were taken
    called: bool = False  # whether an update has called compute_loss


def _written(record: PreparedLabels, criterion: Criterion | None) -> str:
    """Write the first numbers of labels, with the width of an `HLGauss`."""
    assert record.numbers is not None
    numbers = LabelNumbers.unpack(record.numbers.cpu().reshape(-1, record.numbers.shape[-1]))
    first = numbers.magnitude[numbers.starts > 0][:_NUMBERS].tolist()
    if not isinstance(criterion, HLGauss):
        return ", ".join(f"{number:.15g}" for number in first)
    if criterion.fields and record.sigma is not None:
        widths: Iterable[float] = record.sigma.cpu().reshape(-1)[numbers.starts > 0].tolist()[:_NUMBERS]
    else:
        widths = (math.hypot(float(criterion.sigma), criterion.relative * number) for number in first)
    return ", ".join(f"{number:.15g} ± {width:.3g}" for number, width in zip(first, widths, strict=True))


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Leave the random numbers that follow as they would be without the block."""
    numpy: Any = sys.modules.get("numpy")
    state, of_numpy = random.getstate(), None if numpy is None else numpy.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(state)
        if numpy is not None:
            numpy.random.set_state(of_numpy)


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
    for wrong, message in (
        (
            trainer.compute_loss_func is not None,
            "the trainer has a compute_loss_func, which would replace the number-aware loss: omit it",
        ),
        (
            trainer.label_smoother is not None,
            f"label_smoothing_factor={of.label_smoothing_factor} makes the trainer compute another loss: "
            "leave it at 0, and pass label_smoothing= to make_number_aware",
        ),
        (
            getattr(of, "loss_type", "nll") == "dft",
            "loss_type='dft' weights cross-entropy in its own way: expected 'nll'",
        ),
        (
            getattr(of, "use_liger_kernel", False),
            "use_liger_kernel=True replaces the model's head: omit it. chunked=True also computes the loss "
            "without logits.",
        ),
        (
            of.n_gpu > 1,
            f"the trainer sees {of.n_gpu} GPUs, and would split batches with DataParallel, which counts "
            "labels otherwise: start with torchrun or accelerate launch, or set CUDA_VISIBLE_DEVICES",
        ),
        (
            getattr(parallel, "sp_enabled", False),
            "sequence parallelism (Ulysses) computes the model's own loss on each rank: expected data, "
            "tensor or context parallelism",
        ),
    ):
        if wrong:
            raise ValueError(message)
    return bool(names)
