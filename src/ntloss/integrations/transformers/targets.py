"""What a batch's labels say of each position of a model's output, and what its loss is divided by."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ntloss.engine.targets import shift_left
from ntloss.integrations.counts import Loss
from ntloss.number_spans import sequence_ids_of
from ntloss.vocabulary import NumberVocabulary, as_vocabulary

# Embeddings are padded for speed and for tokens to come, by less than this.
_PADDING_SHARE, _PADDING_TOKENS = 1.1, 1024


class Targets(NamedTuple):
    """Labels, each at the position that predicts it.

    Args:
        labels: `[batch, seq]`, token ids.
        sequence_ids: `[batch, seq]`, which packed sequence each label is of; None where rows are sequences.
        num_items: what cross-entropy's sum is divided by; None for this batch's own count.
        num_numbers: the same of the number term.
    """

    labels: Tensor
    sequence_ids: Tensor | None
    num_items: Tensor | float | None
    num_numbers: Tensor | float | None

    def arguments(self, device: torch.device) -> dict[str, Any]:
        """What a loss is called with, besides logits or hidden states."""
        return {
            "labels": self.labels.to(device),
            "sequence_ids": None if self.sequence_ids is None else self.sequence_ids.to(device),
            "num_items_in_batch": _beside(self.num_items, device),
            "num_numbers_in_batch": _beside(self.num_numbers, device),
        }


def _beside(count: Tensor | float | None, device: torch.device) -> Tensor | float | None:
    # The head of a model that is spread over accelerators is not where the batch is. A count on the CPU goes
    # with any, without a copy.
    return count.to(device) if isinstance(count, Tensor) and count.device.type != "cpu" else count


def read_targets(
    loss: Loss,
    shift: bool,
    labels: Tensor,
    shift_labels: Tensor | None = None,
    position_ids: Tensor | None = None,
    num_items: Tensor | float | None = None,
    num_numbers: Tensor | float | None = None,
) -> Targets:
    """Align labels with the positions that predict them, and settle the counts.

    Args:
        loss: whose labels they are.
        shift: a causal model: position i predicts label i + 1.
        labels: `[batch, seq]`.
        shift_labels: `[batch, seq]`, labels that are aligned already, as context parallelism gives them.
        position_ids: `[batch, seq]`; where they start again a packed sequence begins.
        num_items: count of labels over the accumulated batch and the ranks, or None.
        num_numbers: count of numbers over the same, or None.

    Returns:
        The targets.

    Raises:
        ValueError: labels or numbers are counted over more than this batch, and the others are not counted.
    """
    ignore_index = loss.ignore_index
    sequence_ids = None
    reads_spans = loss.objective.needs.spans
    if reads_spans and position_ids is not None and position_ids.shape == labels.shape:
        sequence_ids = sequence_ids_of(position_ids)
        if shift:
            sequence_ids, _ = shift_left(sequence_ids, None, -1)
    aligned = labels
    if shift_labels is not None:
        aligned = shift_labels
    elif shift:
        aligned, _ = shift_left(labels, None, ignore_index)
    if num_items is not None and num_numbers is None and loss.mode == "add":
        _check_own_count(num_items, aligned, labels, ignore_index)
        num_items = None
    if num_items is None and num_numbers is not None:
        _check_own_numbers(num_numbers, loss.normalizers(aligned, sequence_ids=sequence_ids)[1])
        num_numbers = None
    return Targets(aligned, sequence_ids, num_items, num_numbers)


def _check_own_count(num_items: Tensor | float, aligned: Tensor, labels: Tensor, ignore_index: int) -> None:
    # Where this batch has all the labels, nothing else was accumulated, and its numbers are all there are.
    # Trainers count the first label of causal models or leave it out, by the model.
    own = [int((some != ignore_index).sum()) for some in (aligned, labels)]
    given = _as_float(num_items)
    if given not in own:
        raise ValueError(
            f"num_items_in_batch={given:g}, and this batch has {own[0]} labels: it is one of several that "
            "are accumulated, or of several ranks, and numbers have to be counted over the same. With a "
            "Trainer call count_numbers(trainer) before training, or make_trainer_number_aware(trainer). In "
            "a loop of your own CountedBatches(loader, handle, accumulate) has both counts."
        )


def _check_own_numbers(num_numbers: Tensor | float, own: Tensor) -> None:
    # Divided by its own labels, each micro-batch would weigh as much as any other, and too much on the whole.
    if (given := _as_float(num_numbers)) != float(own):
        raise ValueError(
            f"num_numbers_in_batch={given:g} came without num_items_in_batch, and this batch has "
            f"{float(own):g} numbers: it is one of several that are accumulated, or of several ranks. Pass "
            "both counts. A Trainer whose own compute_loss calls the model has to hand on what it is given: "
            "by super().compute_loss(...), or by model(**inputs, num_items_in_batch=num_items_in_batch)"
            ".loss * self.accelerator.num_processes."
        )


def _as_float(count: Tensor | float) -> float:
    return float(count.reshape(-1)[0]) if isinstance(count, Tensor) else float(count)


def count_targets(loss: Loss, shift: bool, inputs: Any) -> Tensor:
    """Count labels and numbers of a batch, as the loss will.

    Args:
        loss: whose numbers they are.
        shift: a causal model.
        inputs: the batch: labels, and shift_labels and position_ids where it has them.

    Returns:
        `[2]`, float32: `num_items_in_batch` and `num_numbers_in_batch` of this batch.
    """
    targets = read_targets(
        loss, shift, inputs["labels"], inputs.get("shift_labels"), inputs.get("position_ids")
    )
    return torch.stack(loss.normalizers(targets.labels, sequence_ids=targets.sequence_ids))


def vocabulary_for(numbers: NumberVocabulary | Any, rows: int) -> NumberVocabulary:
    """The number tokens of a model whose head has `rows` rows.

    Args:
        numbers: a tokenizer, or its number tokens.
        rows: width of the model's logits.

    Returns:
        The number tokens, for logits of that width.

    Raises:
        ValueError: tokenizer or vocabulary are not those of the model.
    """
    if isinstance(numbers, NumberVocabulary):
        if numbers.vocab_size != rows:
            raise ValueError(
                f"the vocabulary has {numbers.vocab_size:,} tokens, the model's head {rows:,} rows: is it "
                "another model's? Models often pad their embeddings: NumberVocabulary.from_tokenizer("
                f"tokenizer, vocab_size={rows})."
            )
        return numbers
    if not hasattr(numbers, "get_vocab"):
        return as_vocabulary(numbers)  # which says what was expected
    ids = numbers.get_vocab().values()
    if max(ids) >= rows:
        raise ValueError(
            f"the tokenizer has token ids up to {max(ids):,}, the model's head {rows:,} rows: expected the "
            "model's own tokenizer. Where tokens were added to it: model.resize_token_embeddings("
            "len(tokenizer))."
        )
    if rows > _PADDING_SHARE * len(ids) + _PADDING_TOKENS:
        raise ValueError(
            f"the tokenizer has {len(ids):,} tokens, the model's head {rows:,} rows, far more than padding: "
            "expected the model's own tokenizer. If it is, say so: NumberVocabulary.from_tokenizer("
            f"tokenizer, vocab_size={rows})."
        )
    return NumberVocabulary.from_tokenizer(numbers, vocab_size=rows)
