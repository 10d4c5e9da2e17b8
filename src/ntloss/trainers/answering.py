"""What a trainer's own methods get in place of its model: called with labels, it has a number-aware loss."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ntloss import LossTerms
from ntloss.engine.readout import Transform
from ntloss.engine.targets import PreparedLabels
from ntloss.trainers.chunked import PLAIN, Inputs, entropy_and_hits, linear_head
from ntloss.trainers.columns import COLUMNS, PREPARED
from ntloss.trainers.models import added_loss, inputs_for_logits, without_wrappers

_OF_LOSS = (*COLUMNS, PREPARED, "labels", "shift_labels", "num_items_in_batch", "fused_lm_head")


class Found(NamedTuple):
    """The loss of a call and its terms, and what evaluations and an `SFTTrainer` log beside it."""

    terms: LossTerms
    ce: Tensor  # of an evaluation, cross-entropy at all labels, also where the number term replaces it
    entropy: Tensor | None = None
    hits: Tensor | None = None


class Answering:
    """A model that is called without labels, and whose loss is computed from its logits or hidden states.

    Args:
        handle: a `NumberAware`, which holds the loss, and the sums of a running evaluation.
        model: the trainer's model, with its wrappers.
        inputs: those of the trainer's step. The record that the loss reads of them may be missing in a call
            with the step's labels; it does not belong to other labels, such as those of reordered rows.

    Attributes:
        num_items: the trainer's count of the labels of a step, for a trainer that does not pass it on.
        loss: the number-aware loss of the last call with labels, None before it.
    """

    def __init__(self, handle: Any, model: Any, inputs: Mapping[str, Any]) -> None:
        self.handle, self.model = handle, model
        self.labels = inputs.get("labels")
        self._version = _version_of(self.labels)
        self.columns = {name: inputs[name] for name in (*COLUMNS, PREPARED) if name in inputs}
        self.num_items: Tensor | int | None = None
        self.loss: Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # of a copy that is not filled yet
            raise AttributeError(name)
        return getattr(self.model, name)

    def __call__(self, *args: Any, **given: Any) -> Any:
        """Call the model. With labels, its outputs begin with the loss; for an SFTTrainer, see `_for_sft`."""
        handle, sums, labels = self.handle, self.handle.sums, given.get("labels")
        inputs = {name: value for name, value in given.items() if name not in _OF_LOSS}
        if labels is None:
            return self.model(*args, **inputs)
        is_own = self._are_own(labels)
        if is_own:
            given = {**self.columns, **given}
        record, count = handle.record_of(given, is_own), self._num_items(given)
        if sums is not None:
            record = record._replace(labels=sums.without_repeated_rows(record.labels))
        model, width = without_wrappers(self.model), labels.shape[-1]
        is_sft = given.get("fused_lm_head", False)
        inputs = {**inputs_for_logits(model, inputs, labels), "return_dict": True}
        has_labels, compute = "labels" in inputs, partial(self._compute, record, count, is_sft)
        may_chunk = handle.head is not None and (self.model.training or is_sft) and not has_labels
        if may_chunk and (head := linear_head(model)) is not None:
            run = partial(self.model, *args, **inputs)
            outputs, found = handle.head(model, head, run, compute, width)
            nothing = outputs["logits"][..., :0, :].sum()  # keeps the graph to all weights
            loss, outputs["logits"] = found.terms.loss + nothing.to(found.terms.loss), None
        else:
            outputs = self.model(*args, **inputs)
            found = compute(Inputs(outputs["logits"][..., -width:, :]))  # prompts and images may stand before
            loss = found.terms.loss
        if sums is not None:
            sums.add(record, count, found.terms, found.ce)
        self.loss = loss
        if is_sft:
            return _for_sft(outputs, loss, record.labels >= 0, count, found)
        added = added_loss(model, outputs, has_labels)
        outputs["loss"] = loss if added is None else loss + added.to(loss.device)
        outputs.move_to_end("loss", last=False)  # as in stock outputs, of which some trainers take the first
        return outputs if given.get("return_dict") in (None, True) else outputs.to_tuple()

    def _compute(
        self,
        record: PreparedLabels,
        count: Any,
        measures: bool,
        given: Inputs,
        transform: Transform = PLAIN,
        chunk_size: int | None = None,
    ) -> Found:
        """Compute the loss of a record's labels, which is divided by `count`, and what else is asked for."""
        loss, (states, *head) = self.handle.loss, given
        record = record.to(states.device)
        options = {"count": count.to(states.device) if isinstance(count, Tensor) else count}
        if given.weight is not None:
            options |= {"softcap": transform.softcap, "logit_scale": transform.scale}
            options["chunk_size"] = chunk_size
        terms = loss.terms(states, record, *head, **options)
        ce = terms.ce
        if self.handle.sums is not None and loss.mode == "replace":
            none = torch.zeros_like(record.labels, dtype=torch.float32)
            ce = loss.terms(states, record._replace(number_weights=none), *head, **options).ce
        return Found(terms, ce, *(entropy_and_hits(given, record.labels, transform) if measures else ()))

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

    def _num_items(self, given: Mapping[str, Any]) -> Any:
        """Return the count that a call passes on, else the trainer's for one of its micro-batches."""
        if "num_items_in_batch" in given or self.num_items is None:
            return given.get("num_items_in_batch")
        trainer = self.handle.trainer
        if trainer.args.world_size > 1 and not given.get("fused_lm_head"):
            raise ValueError(
                f"{type(trainer).__name__}.compute_loss calls the model without num_items_in_batch, so it is "
                "unknown whether it multiplies the loss by the number of processes: call "
                "super().compute_loss(...) in it"
            )
        from transformers import Trainer

        # From 5.19 on, a class may say that its losses are means of batches, which the trainer averages.
        averages = hasattr(Trainer, "loss_is_scaled_for_ga") and trainer.loss_is_scaled_for_ga is False
        if self.model.training and averages:
            return self.num_items / getattr(trainer, "current_gradient_accumulation_steps", 1)
        return self.num_items


def _version_of(labels: Tensor | None) -> int | None:
    """Return how often labels were changed in place; None if there are none, or nothing counts it."""
    return None if labels is None or labels.is_inference() else labels._version


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


def _for_sft(outputs: Any, loss: Tensor, mask: Tensor, num_items: Any, found: Found) -> SimpleNamespace:
    """Return what TRL's fused head does: log-probabilities of the labels in place of logits.

    The trainer sums them, changes the sign, divides by its count, and adds the loss of routers itself.
    """
    count = torch.as_tensor(mask.sum() if num_items is None else num_items).clamp(min=1)
    return SimpleNamespace(
        log_probs=-loss * count.to(loss.device),
        entropy=found.entropy,
        is_top1=found.hits,
        label_mask=mask,
        aux_loss=outputs.get("aux_loss"),
    )
