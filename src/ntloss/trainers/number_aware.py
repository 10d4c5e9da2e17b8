"""`make_number_aware`: a trainer's own `compute_loss`, on a model that answers with a number-aware loss."""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss import NTLCrossEntropyLoss
from ntloss.criteria import Criterion
from ntloss.criteria.criterion import annealed_parts
from ntloss.criteria.registry import title_of
from ntloss.numbers import sequence_ids_of
from ntloss.trainers.chunked import ChunkedHead, entropy_and_hits, to_device
from ntloss.trainers.columns import COLUMNS, WithWeights, check_dataset, check_names
from ntloss.trainers.models import (
    inputs_without_labels,
    routers_loss,
    shifts_labels,
    vocabulary_of,
    without_wrappers,
)

IGNORED = -100  # label of positions that a Trainer does not count
_NORMALIZED = ("loss_weights", "sequence_ids", "number_weights")  # what normalizers reads, in its order
_ROWS = 100  # of the training set, whose labels are looked at before the first step


def _shift(given: Tensor | None, fill: float) -> Tensor | None:
    return None if given is None else F.pad(given, (0, 1), value=fill)[..., 1:]


def _is_mps(trainer: Any) -> bool:
    return bool(trainer.args.device.type == "mps")


class NumberLabelsMissingWarning(UserWarning):
    """The labels that were looked at before the first step hold no number tokens."""


def make_number_aware(
    trainer: Any,
    criterion: Criterion | str | Mapping[str, Any] | None = None,
    weight: float | None = None,
    *,
    vocabulary: Any = None,
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

    Evaluations log `eval_ce`, the cross-entropy, which compares with the `eval_loss` of stock training, and
    `eval_ntl`, the number term before its weight. Both, and `eval_loss`, are means over all labels of the
    evaluation set, so they do not depend on the evaluation batch size. Before the first step, the share of
    number tokens among the labels of the first hundred rows is logged as `number_share`.

    A dataset may have two columns with one number, 0 or more, for each of a row's labels (unshifted):
    `loss_weights` weighs a token in the whole loss, and `number_weights` in the number term alone.

    Args:
        trainer: a `Trainer` or `Seq2SeqTrainer` of transformers, an `SFTTrainer` of TRL, or a subclass. A
            trainer that is number-aware already gets the new loss in place of the old one.
        criterion, weight: see `NTLCrossEntropyLoss`.
        vocabulary: a tokenizer or `NumberVocabulary`. Default: `trainer.processing_class`.
        chunked: compute the loss of training batches from hidden states, in the model's head, so that the
            logits are never whole in memory. Default: True for an `SFTTrainer`, whose own loss does so, too,
            and False for others.
        shift: whether position i predicts label i + 1. Default: depends on the model's class.
        chunk_size: positions of a chunk. Default: depends on the device.
        options: `mode`, `normalize_by` and `label_smoothing` of `NTLCrossEntropyLoss`.

    Returns:
        The handle. It prints what the loss does; `handle.loss` is the loss, whose `weight` may be assigned at
        each step, and `handle.undo()`, or leaving a `with` block, restores the trainer.

    Raises:
        TypeError: not such a trainer, or an unknown option.
        ValueError: no tokenizer, or another model's; a model that is no language model; an option of the
            trainer that has another loss; a column that is almost called as one of the two.

    Example:
        >>> from ntloss.trainers import make_number_aware
        >>> trainer = Trainer(model, arguments, train_dataset=rows, processing_class=tokenizer)  # doctest: +SKIP
        >>> make_number_aware(trainer, weight=0.3)  # doctest: +SKIP
        cross-entropy + 0.3 * NTL-WAS at labels that are one of 10 number tokens, from logits
        >>> trainer.train()  # doctest: +SKIP
    """
    is_sft = _check(trainer)
    numbers = trainer.processing_class if vocabulary is None else vocabulary
    if numbers is None:
        raise ValueError("the trainer has no processing_class: pass the model's tokenizer as vocabulary")
    model = without_wrappers(trainer.model)
    numbers = vocabulary_of(model, getattr(numbers, "tokenizer", numbers))  # a processor has a tokenizer
    loss = NTLCrossEntropyLoss(numbers, criterion, weight, return_terms=True, **options)
    shift = shifts_labels(model) if shift is None else shift
    check_dataset(trainer.train_dataset)
    check_dataset(trainer.eval_dataset)
    head = ChunkedHead(loss, chunk_size) if (is_sft if chunked is None else chunked) else None
    if before := handle_of(trainer):
        before.undo()
    return NumberAware(trainer, loss, shift, head)


def _check(trainer: Any) -> bool:
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
            f"label_smoothing_factor={of.label_smoothing_factor} makes the trainer compute another loss: leave "
            "it at 0, and pass label_smoothing= to make_number_aware",
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
            f"the trainer sees {of.n_gpu} GPUs, and would split batches with DataParallel, which counts labels "
            "otherwise: start with torchrun or accelerate launch, or set CUDA_VISIBLE_DEVICES",
        ),
        (
            getattr(parallel, "sp_enabled", False),
            "sequence parallelism (Ulysses) computes the model's own loss on each rank: expected data, tensor "
            "or context parallelism",
        ),
    ):
        if wrong:
            raise ValueError(message)
    return bool(names)


def handle_of(trainer: Any) -> NumberAware | None:
    """Return the handle of a number-aware trainer, or None."""
    owner = getattr(vars(trainer).get("compute_loss"), "__self__", None)
    return owner if isinstance(owner, NumberAware) else None


class NumberAware:
    """A trainer with a number-aware loss; `make_number_aware` returns it.

    Attributes:
        trainer: the trainer.
        loss: the loss; its `weight` may be assigned at each step.
        shift: whether position i predicts label i + 1.
        head: what computes the loss from hidden states, or None if it is computed from logits.
    """

    def __init__(self, trainer: Any, loss: NTLCrossEntropyLoss, shift: bool, head: ChunkedHead | None) -> None:
        self.trainer, self.loss, self.shift, self.head = trainer, loss, shift, head
        self._annealed = annealed_parts(loss.criterion)
        self._looked = False  # at the first labels
        self._sums: Tensor | None = None  # of an evaluation
        trainer._set_signature_columns_if_needed()
        ours = {
            "compute_loss": self.compute_loss,
            "prediction_step": self.prediction_step,
            "evaluation_loop": self.evaluation_loop,
            "get_batch_samples": self.get_batch_samples,
            "data_collator": WithWeights(trainer.data_collator),
            "model_accepts_loss_kwargs": True,  # so that the trainer counts the labels of a step
            "_signature_columns": [*trainer._signature_columns, *COLUMNS],  # so that it does not drop these
        }
        self._replaced = {name: vars(trainer)[name] for name in ours if name in vars(trainer)}
        vars(trainer).update(ours)
        self._ours = ours

    def undo(self) -> None:
        """Restore the trainer's own loss. Do nothing if that was done before."""
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
        weight, criterion = f"{float(self.loss.weight):g}", title_of(self.loss.criterion)
        where = f"labels that are one of {len(self.loss.vocabulary.tokens):,} number tokens"
        source = "logits" if self.head is None else "hidden states, in chunks"
        said = f"cross-entropy + {weight} * {criterion} at {where}, from {source}"
        if self.loss.options.mode == "replace":
            said = f"{weight} * {criterion} in place of cross-entropy at {where}, from {source}"
        return said if self._ours else f"undone: {said}"

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Call the trainer's own `compute_loss`, with a model whose loss is this one."""
        state = self.trainer.state
        for part in self._annealed:
            part.anneal(state.global_step / state.max_steps if state.max_steps > 0 else 0.0)
        if not self._looked and self.trainer.model.training and inputs.get("labels") is not None:
            self._looked = True
            check_names(inputs)
            self._log_share(inputs["labels"])
        if not isinstance(model, _Answering):
            model = _Answering(self, model)
        model.num_items = num_items_in_batch
        return self._own("compute_loss")(model, inputs, return_outputs, num_items_in_batch)

    def prediction_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Call the trainer's own, with such a model. A Seq2SeqTrainer that generates calls nothing else."""
        weights = {name: inputs[name] for name in COLUMNS if name in inputs}  # `generate` does not know them
        inputs = {name: value for name, value in inputs.items() if name not in weights}
        weights = self.trainer._prepare_inputs(weights) if weights else weights
        return self._own("prediction_step")(_Answering(self, model, weights), inputs, *args, **kwargs)

    def evaluation_loop(self, dataloader: Any, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """Call the trainer's own, and make the metrics of the loss means over all labels of the set."""
        self._sums = torch.zeros(5, dtype=torch.float64)
        loop = self._own("evaluation_loop")
        try:
            output = loop(dataloader, *args, metric_key_prefix=metric_key_prefix, **kwargs)
            sums = self._sums.to(self.trainer.args.device, torch.float32 if _is_mps(self.trainer) else None)
        finally:
            self._sums = None
        ce, ntl, routers, items, numbers = self.trainer.accelerator.reduce(sums, reduction="sum").tolist()
        if items:
            ce, ntl = ce / items, ntl / numbers if numbers else 0.0
            total = ce + float(self.loss.weight) * ntl + routers / items
            output.metrics[f"{metric_key_prefix}_loss"] = total
            for name, value in (("ce", ce), ("ntl", ntl)):
                output.metrics.setdefault(f"{metric_key_prefix}_{name}", value)  # compute_metrics goes first
        return output

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Call the trainer's own, and count each label by its weight."""
        batches, count = self._own("get_batch_samples")(*args, **kwargs)
        if count is None:
            return batches, count
        found = torch.zeros(2)
        for batch in batches:
            labels, beside = self._aligned(batch)
            counted = labels != IGNORED
            weights = beside["loss_weights"]
            weighed = counted if weights is None else torch.where(counted, weights, 0)
            found += torch.stack([weighed.sum(), counted.sum()]).to(found)
        if self.trainer.args.average_tokens_across_devices:  # then the count is that of all ranks
            found = self.trainer.accelerator.reduce(found.to(self.trainer.args.device), reduction="sum")
        share = torch.where(found[1] > 0, found[0] / found[1].clamp(min=1), 1.0)
        return batches, count * (share.to(count.device) if isinstance(count, Tensor) else float(share))

    def _own(self, name: str) -> Any:
        return self._replaced.get(name) or getattr(type(self.trainer), name).__get__(self.trainer)

    def _aligned(self, inputs: Mapping[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """Return the label of each position, and what else the loss reads, as keywords of its call."""
        labels, position_ids = inputs["labels"], inputs.get("position_ids")
        beside: dict[str, Any] = {name: inputs.get(name) for name in COLUMNS}
        shifted = inputs.get("shift_labels")
        if shifted is not None and any(weights is not None for weights in beside.values()):
            raise ValueError(
                f"{' and '.join(COLUMNS)} are aligned with labels, but the batch has shift_labels, as of context "
                "parallelism, which may have split them: omit shift_labels, or the columns"
            )
        of_row = position_ids is not None and position_ids.shape == labels.shape
        beside["sequence_ids"] = sequence_ids_of(position_ids) if of_row else None
        if self.shift:
            labels = _shift(labels, IGNORED)
            fills = {"sequence_ids": -1}
            beside = {name: _shift(given, fills.get(name, 0)) for name, given in beside.items()}
        return (labels if shifted is None else shifted), beside

    def _add(self, labels: Tensor, beside: dict[str, Any], terms: Any, divisor: Any, routers: Any) -> None:
        """Add the terms of an evaluation's batch, times what they were divided by."""
        assert self._sums is not None
        items, numbers = self.loss.normalizers(labels, *(beside[name] for name in _NORMALIZED))
        by_items = items if divisor is None else divisor
        by_numbers = by_items
        if self.loss.options.normalize_by == "numbers" and self.loss.options.mode == "add":
            by_numbers = by_items / items.clamp(min=1e-30) * numbers
        else:
            numbers = items
        found = (terms.ce * by_items, terms.ntl * by_numbers, items * (0.0 if routers is None else routers))
        sums = [torch.as_tensor(each).detach().sum().to("cpu", torch.float64) for each in (*found, items, numbers)]
        self._sums += torch.stack(sums)

    def _without_repeated_rows(self, labels: Tensor) -> Tensor:
        """Ignore the rows of an evaluation that a distributed sampler repeats to fill the last batch."""
        state = self.trainer.accelerator.gradient_state
        own = state.remainder - self.trainer.args.process_index * len(labels)  # rows that are not repeated
        if not state.end_of_dataloader or state.remainder <= 0 or own >= len(labels):
            return labels
        repeated = torch.arange(len(labels), device=labels.device) >= own
        return labels.masked_fill(repeated.unsqueeze(-1), IGNORED)

    def _log_share(self, labels: Tensor) -> None:
        """Log the share of number tokens among the labels of the first rows, or of a batch of a stream."""
        loader = self.trainer.callback_handler.train_dataloader
        dataset = getattr(loader, "dataset", None)
        if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
            state = random.getstate()
            with torch.random.fork_rng(devices=[]):  # training sees the random numbers that it would without
                rows = [dataset[i] for i in range(min(_ROWS, len(dataset)))]
                labels = torch.as_tensor(loader.collate_fn(rows)["labels"])
            random.setstate(state)
        kept = labels[labels != IGNORED]
        numbers = torch.isin(kept, torch.tensor(self.loss.vocabulary.token_ids, device=kept.device)).sum()
        share = float(numbers) / max(len(kept), 1)
        if not share:
            warnings.warn(
                f"none of the {len(kept):,} labels of the first rows is a number token, so the loss is that of "
                "stock training there. Compare inspect_tokenizer(tokenizer), which shows how numbers are "
                "written, with the labels of trainer.get_train_dataloader(); if numbers are written in other "
                "tokens, pass vocabulary=NumberVocabulary.from_tokenizer(tokenizer, ...).",
                NumberLabelsMissingWarning,
                stacklevel=2,
            )
        self.trainer.log({"number_share": share})


class _Answering:
    """What a trainer's own methods get in place of its model: called with labels, it has a number-aware loss."""

    def __init__(self, handle: NumberAware, model: Any, weights: dict[str, Tensor] | None = None) -> None:
        self.handle, self.model, self.weights = handle, model, weights or {}
        self.num_items: Tensor | int | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, *args: Any, **inputs: Any) -> Any:
        handle = self.handle
        given = {**inputs, **self.weights}
        for name in (*COLUMNS, "num_items_in_batch", "fused_lm_head"):
            inputs.pop(name, None)
        if (labels := inputs.pop("labels", None)) is None:
            return self.model(*args, **inputs)
        inputs.pop("shift_labels", None)
        is_sft = given.get("fused_lm_head", False)
        num_items = given.get("num_items_in_batch", self.num_items)
        passed = is_sft or "num_items_in_batch" in given or self.num_items is None
        if not passed and handle.trainer.args.world_size > 1:
            raise ValueError(
                f"{type(handle.trainer).__name__}.compute_loss calls the model without num_items_in_batch, so "
                "it is unknown whether it multiplies the loss by the number of processes: call "
                "super().compute_loss(...) in it"
            )
        model = without_wrappers(self.model)
        inputs = inputs_without_labels(model, inputs, labels)
        labels, beside = handle._aligned(given)
        if handle._sums is not None:
            labels = handle._without_repeated_rows(labels)
        beside["num_items_in_batch"] = num_items
        head = handle.head if self.model.training or is_sft else None
        if head is not None:
            outputs, terms, measured = head(model, self.model, args, inputs, labels, beside, is_sft)
        else:
            outputs = self.model(*args, **{**inputs, "return_dict": True})
            logits = outputs["logits"][..., -labels.shape[-1] :, :]  # prompts and images may stand before
            beside = {name: to_device(value, logits.device) for name, value in beside.items()}
            labels = labels.to(logits.device)
            terms = handle.loss(logits, labels, **beside)
            rows = logits.detach().reshape(-1, logits.shape[-1])
            measured = entropy_and_hits(labels, rows.shape[-1], rows.__getitem__) if is_sft else None
        routers = routers_loss(model, outputs)
        if handle._sums is not None:
            handle._add(labels, beside, terms, num_items, routers)
        if not is_sft:
            outputs["loss"] = terms.loss if routers is None else terms.loss + routers.to(terms.loss.device)
            return outputs
        # The trainer sums these log-probabilities, changes the sign, divides by its count, and adds a loss of
        # routers itself.
        mask = labels != IGNORED
        count = torch.as_tensor(mask.sum() if num_items is None else num_items).clamp(min=1)
        return SimpleNamespace(
            log_probs=-terms.loss * count.to(terms.loss.device),
            entropy=measured[0],
            is_top1=measured[1],
            label_mask=mask,
            aux_loss=outputs.get("aux_loss"),
        )
