"""Labels of a batch, aligned with a model's outputs, and the counts that their loss is divided by."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ntloss.engine.targets import shift_left
from ntloss.integrations.counts import Loss
from ntloss.numbers.spans import sequence_ids_of


def align_labels(
    loss: Loss,
    shift: bool,
    labels: Tensor,
    shift_labels: Tensor | None = None,
    position_ids: Tensor | None = None,
    num_items: Tensor | float | None = None,
    num_numbers: Tensor | float | None = None,
    number_weights: Tensor | None = None,
) -> dict[str, Any]:
    """Align labels with the positions that predict them, and check the counts.

    Args:
        loss: the loss that the labels are for.
        shift: whether position i predicts label i + 1, as in causal models.
        labels: `[batch, seq]`.
        shift_labels: `[batch, seq]`, labels that are already aligned, as with context parallelism.
        position_ids: `[batch, seq]`; a packed sequence begins where they restart.
        num_items: count of labels over the accumulated batches and the ranks, or None.
        num_numbers: likewise for numbers, or None.
        number_weights: `[batch, seq]`, factor of the number term at each of the `labels`.

    Returns:
        The arguments of a loss besides logits or hidden states: `labels`, `sequence_ids` and
        `number_weights`, `[batch, seq]` or None, each label at the position that predicts it;
        `num_items_in_batch`, `num_numbers_in_batch`.

    Raises:
        ValueError: only one of the counts is given, and it covers more than this batch; `number_weights`
            together with `shift_labels`.
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
        if number_weights is not None:  # context parallelism has also split the labels, but not these
            raise ValueError(
                "number_weights are aligned with labels, but the batch also has shift_labels: omit "
                "shift_labels, because the loss shifts labels itself. Context parallelism needs shift_labels "
                "and does not support number_weights."
            )
        aligned = shift_labels
    elif shift:
        _, number_weights = shift_left(labels, number_weights, ignore_index)
        aligned, _ = shift_left(labels, None, ignore_index)
    if num_items is not None and num_numbers is None and loss.mode == "add":
        # Whether a Trainer counts the first label of a sequence, which a causal model does not predict,
        # depends on the model.
        own = [int((some != ignore_index).sum()) for some in (aligned, labels)]
        if (given := float(num_items)) not in own:
            raise ValueError(
                f"num_items_in_batch={given:g}, but this batch has {own[0]} labels: with several "
                "accumulated batches or ranks, numbers have to be counted too. With a Trainer, call "
                "count_numbers(trainer) or make_trainer_number_aware(trainer) before training. In your own "
                "training loop, CountedBatches(loader, handle, accumulate) gives both counts."
            )
        num_items = None  # all counted labels are in this batch, and so are all numbers
    if num_items is None and num_numbers is not None:
        own_numbers = loss.normalizers(aligned, None, sequence_ids, number_weights)[1]
        # Sums of weights are rounded, under DeepSpeed to half precision.
        _check_own_numbers(num_numbers, own_numbers, tolerance=0.0 if number_weights is None else 0.01)
        num_numbers = None
    return {
        "labels": aligned,
        "sequence_ids": sequence_ids,
        "num_items_in_batch": num_items,
        "num_numbers_in_batch": num_numbers,
        "number_weights": number_weights,
    }


def on_device(arguments: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Move the arguments of a loss to the device of a model's head, which may differ from the batch's."""

    def move(value: Any) -> Any:
        # A scalar on the CPU works with tensors of any device, without a copy.
        stays = not isinstance(value, Tensor) or (value.dim() == 0 and value.device.type == "cpu")
        return value if stays else value.to(device)

    return {name: move(value) for name, value in arguments.items()}


def _check_own_numbers(num_numbers: Tensor | float, own: Tensor, tolerance: float) -> None:
    # Divided by its own labels, each micro-batch would have the weight of a whole batch.
    if not math.isclose(given := float(num_numbers), float(own), rel_tol=tolerance):
        raise ValueError(
            f"num_numbers_in_batch={given:g} without num_items_in_batch, but this batch has {float(own):g} "
            "numbers: with several accumulated batches or ranks, pass both counts. A Trainer whose own "
            "compute_loss calls the model has to pass on its count: super().compute_loss(...), or "
            "model(**inputs, num_items_in_batch=num_items_in_batch).loss * self.accelerator.num_processes."
        )
