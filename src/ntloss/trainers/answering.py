"""What a trainer's own methods get in place of its model: called with labels, it has a number-aware loss."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ntloss import NTLCrossEntropyLoss
from ntloss.criteria import SoftTargets
from ntloss.engine.targets import IGNORED, shift_left
from ntloss.numbers import sequence_ids_of
from ntloss.numbers.fields import Finder, sigma_of_labels
from ntloss.numbers.labels import find_numbers
from ntloss.trainers.chunked import Computed, ModelCall, entropy_and_hits
from ntloss.trainers.columns import COLUMNS, IN_BATCH, NUMBERS, SOFT_IN_BATCH
from ntloss.trainers.models import added_loss, inputs_without_labels, without_wrappers

_OF_LOSS = (*IN_BATCH, NUMBERS, "labels", "shift_labels", "num_items_in_batch", "fused_lm_head")


class Answering:
    """A model that is called without labels, and whose loss is computed from its logits or hidden states.

    Args:
        handle: a `NumberAware`, which holds the loss, and the sums of a running evaluation.
        model: the trainer's model, with its wrappers.
        inputs: those of the trainer's step. What the loss alone reads of them may be missing in a call with
            the step's labels; it does not belong to other labels, such as those of reordered rows.

    Attributes:
        num_items: the trainer's count of the labels of a step, for a trainer that does not pass it on.
        loss: the number-aware loss of the last call with labels, None before it.
    """

    def __init__(self, handle: Any, model: Any, inputs: Mapping[str, Any]) -> None:
        self.handle, self.model = handle, model
        self.labels = inputs.get("labels")
        self._version = _version_of(self.labels)
        self.columns = {name: inputs[name] for name in (*IN_BATCH, NUMBERS) if name in inputs}
        self.num_items: Tensor | int | None = None
        self.loss: Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # of a copy that is not filled yet
            raise AttributeError(name)
        return getattr(self.model, name)

    def __call__(self, *args: Any, **given: Any) -> Any:
        """Call the model. With labels, its outputs begin with the loss; for an SFTTrainer, see `_for_sft`."""
        handle = self.handle
        inputs = {name: value for name, value in given.items() if name not in _OF_LOSS}
        if given.get("labels") is None:
            return self.model(*args, **inputs)
        if self._are_own(given["labels"]):
            given = {**self.columns, **given}
        else:
            given.pop(NUMBERS, None)  # the loss finds those of other labels
        if handle.find_sigma is not None and given.get("number_sigma") is None:
            given["number_sigma"] = handle.find_sigma(given).to(given["labels"].device)
        is_sft = given.get("fused_lm_head", False)
        num_items = self._num_items(given)
        model = without_wrappers(self.model)
        inputs = inputs_without_labels(model, inputs, given["labels"])
        labels, beside = align(given, handle.shift)
        evaluates = handle.sums is not None
        if evaluates:
            labels = handle.sums.without_repeated_rows(labels)
        beside["num_items_in_batch"] = num_items
        call = ModelCall(model, self.model, args, inputs, labels, beside, is_sft, evaluates)
        is_part = self.model.training and num_items is not None  # of an update
        with handle.normalized() if is_part else nullcontext():
            outputs, terms, ce, measured = self._compute(call)
        if evaluates:
            handle.sums.add(labels, beside, terms, ce)
        self.loss = terms.loss
        if is_sft:
            return _for_sft(outputs, terms.loss, labels != IGNORED, num_items, measured)
        added = added_loss(model, outputs)
        outputs["loss"] = terms.loss if added is None else terms.loss + added.to(terms.loss.device)
        outputs.move_to_end("loss", last=False)  # as in stock outputs, of which some trainers take the first
        return outputs if given.get("return_dict") in (None, True) else outputs.to_tuple()

    def check_is_used(self, loss: Tensor) -> None:
        """Raise a ValueError unless a trainer's loss, which has a graph, was computed from this model's."""
        trainer, own = type(self.handle.trainer).__name__, self.loss
        if own is None or not _depends_on(loss, own):
            did = "without labels" if own is None else "with labels, and does not use outputs.loss"
            raise ValueError(
                f"{trainer}.compute_loss calls the model {did}, so its loss has no number term: leave the "
                "labels in the inputs, and use outputs.loss in place of a loss of the logits"
            )

    def _are_own(self, labels: Tensor) -> bool:
        """Whether labels of a call are those of the step, whose columns then belong to them."""
        own = self.labels
        if own is None or _version_of(own) != self._version:  # a subclass has changed them in place
            return False
        return labels is own or torch.equal(labels, own.to(labels.device))

    def _compute(self, call: ModelCall) -> Computed:
        """Call the model and the loss."""
        handle = self.handle
        if handle.head is not None and (self.model.training or call.measures):
            computed: Computed = handle.head(call)
            return computed
        outputs = call.outputs()
        logits = outputs["logits"][..., -call.labels.shape[-1] :, :]  # prompts and images may stand before
        call = call.on(logits.device)
        terms = handle.loss(logits, call.labels, **call.beside)
        ce = handle.plain(logits, call.labels, **call.beside).ce if call.evaluates else terms.ce
        rows = logits.detach().flatten(0, -2)
        measured = entropy_and_hits(call.labels, rows.shape[-1], rows.__getitem__) if call.measures else None
        return Computed(outputs, terms, ce, measured)

    def _num_items(self, given: Mapping[str, Any]) -> Any:
        if "num_items_in_batch" in given or self.num_items is None:
            return given.get("num_items_in_batch")
        trainer = self.handle.trainer
        if trainer.args.world_size > 1 and not given.get("fused_lm_head"):
            raise ValueError(
                f"{type(trainer).__name__}.compute_loss calls the model without num_items_in_batch, so it is "
                "unknown whether it multiplies the loss by the number of processes: call "
                "super().compute_loss(...) in it"
            )
        if self.model.training and _averages_batches(trainer):
            return self.num_items / getattr(trainer, "current_gradient_accumulation_steps", 1)
        return self.num_items


def _version_of(labels: Tensor | None) -> int | None:
    """Return how often labels were changed in place; None if there are none, or nothing counts it."""
    return None if labels is None or labels.is_inference() else labels._version


def align(given: Mapping[str, Any], shift: bool) -> tuple[Tensor, dict[str, Any]]:
    """Return the label of each position, and what else the loss reads, as keywords of its call.

    Raises:
        ValueError: columns of weights beside labels that are shifted already.
    """
    labels, shifted = given["labels"], given.get("shift_labels")
    beside = {name: given.get(name) for name in IN_BATCH}
    if shifted is not None and any(weights is not None for weights in beside.values()):
        raise ValueError(
            f"{' and '.join(COLUMNS)} are aligned with labels, but the batch has shift_labels, as with "
            "context parallelism, which splits labels: omit the columns, or shift_labels"
        )
    sequence_ids = _sequence_ids(labels, given.get("position_ids"))
    ids, weights = (beside.pop(name) for name in SOFT_IN_BATCH)
    beside["soft_labels"] = None if ids is None or weights is None else SoftTargets(ids, weights)
    if shift:
        labels, sequence_ids = shift_left(labels, IGNORED), shift_left(sequence_ids, -1)
        beside = {name: shift_left(column) for name, column in beside.items()}
    labels, numbers = labels if shifted is None else shifted, given.get(NUMBERS)
    if numbers is not None and numbers.shape[:-1] != labels.shape:  # the trainer has cut the labels
        numbers = None
    return labels, {**beside, "sequence_ids": sequence_ids, "numbers": numbers}


def _sequence_ids(labels: Tensor, position_ids: Any) -> Tensor | None:
    """Number the packed sequences of each row by position ids, if there is one for each label."""
    if position_ids is None or torch.as_tensor(position_ids).shape != labels.shape:
        return None
    return sequence_ids_of(torch.as_tensor(position_ids))


class FindNumbers:
    """Finds the numbers of a batch's labels as a loss would; it can be pickled, as collators have to be."""

    def __init__(self, loss: NTLCrossEntropyLoss, shift: bool) -> None:
        self.vocabulary, self.decimals, self.shift = loss.vocabulary, loss.term.decimals, shift

    def __call__(self, batch: Mapping[str, Any]) -> Tensor:
        """Return them, `[batch, seq, columns]`, of the labels that the loss compares with."""
        tensors = {
            n: torch.as_tensor(batch[n]) for n in ("labels", "position_ids") if batch.get(n) is not None
        }
        labels, beside = align(tensors, self.shift)
        ids = beside["sequence_ids"]
        return find_numbers(labels, self.vocabulary, ids, decimals=self.decimals, ignore_index=IGNORED)


class FindSigma:
    """Finds the standard deviations of a batch's numbers by their fields; it can be pickled, too."""

    def __init__(self, loss: NTLCrossEntropyLoss, fields: dict[str, float], by: Finder) -> None:
        self.vocabulary, self.fields, self.by = loss.vocabulary, fields, by

    def __call__(self, batch: Mapping[str, Any]) -> Tensor:
        """Return them, `[batch, seq]`, of the labels as they are in the batch."""
        labels = torch.as_tensor(batch["labels"])
        ids = _sequence_ids(labels, batch.get("position_ids"))
        return sigma_of_labels(labels, self.vocabulary, self.fields, self.by, ids, IGNORED)


def _averages_batches(trainer: Any) -> bool:
    """Whether a trainer's class says that its losses are means of batches, which the trainer averages."""
    parents = [parent for parent in type(trainer).__mro__ if parent.__module__ == "transformers.trainer"]
    is_known = any(hasattr(parent, "loss_is_scaled_for_ga") for parent in parents)  # from 5.19 on
    return is_known and trainer.loss_is_scaled_for_ga is False


def _depends_on(loss: Tensor, part: Tensor) -> bool:
    """Whether a loss was computed from another one, by their graphs."""
    seen, waiting = {part.grad_fn}, [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node is part.grad_fn:
            return True
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [further for further, _ in node.next_functions]
    return False


def _for_sft(outputs: Any, loss: Tensor, mask: Tensor, num_items: Any, measured: Any) -> SimpleNamespace:
    """Return what TRL's fused head does: log-probabilities of the labels in place of logits.

    The trainer sums them, changes the sign, divides by its count, and adds the loss of routers itself.
    """
    count = torch.as_tensor(mask.sum() if num_items is None else num_items).clamp(min=1)
    entropy, hits = measured
    return SimpleNamespace(
        log_probs=-loss * count.to(loss.device),
        entropy=entropy,
        is_top1=hits,
        label_mask=mask,
        aux_loss=outputs.get("aux_loss"),
    )
