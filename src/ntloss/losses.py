"""The base class of all losses, and the module that computes a number token loss alone."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ntloss.criteria import Criterion
from ntloss.engine.linear import check_head, check_overflow
from ntloss.engine.objective import Objective
from ntloss.engine.readout import (
    COMPUTED_IN,
    IDENTITY,
    Query,
    Readout,
    Transform,
    summarize_block,
    summarize_logits,
)
from ntloss.engine.tables import NumberTables
from ntloss.engine.targets import BatchInfo, TargetOptions, Targets, check_logits, prepare_targets
from ntloss.numbers.vocabulary import NumberVocabulary, as_vocabulary

# Options are read when a loss is made, so assigning one later would silently have no effect.
_FIXED = {
    "vocabulary", "criterion", "reweigh", "mode", "ignore_index", "label_smoothing", "z_loss", "softcap",
    "logit_scale", "reduction", "normalize_by", "shift", "chunk_size", "drop_ignored", "inplace_backward",
    "squash_factor", "loss_function", "float_level",
}  # fmt: skip


class BaseLoss(nn.Module):
    """Base class of all losses, which holds the objective."""

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.objective = objective

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED:
            own = type(self).__name__
            if name not in inspect.signature(type(self)).parameters:
                raise AttributeError(f"{own} has no {name}")
            raise AttributeError(
                f"{name} is fixed when a loss is made: make a new {own} with {name}={value!r}"
            )
        super().__setattr__(name, value)

    @property
    def criterion(self) -> Criterion:
        """How wrong a number is."""
        return self.objective.criterion

    @property
    def tables(self) -> NumberTables:
        """Tensors of the number tokens."""
        return self.objective.tables

    @property
    def vocabulary(self) -> NumberVocabulary:
        """The number tokens."""
        return self.objective.tables.vocabulary


class NumberTokenLoss(BaseLoss):
    """Number token loss of any criterion, to be added to cross-entropy.

    Args:
        vocabulary, criterion: see `NTLCrossEntropyLoss`.

    Source: "Regress, Don't Guess", ICML 2025.

    Example:
        >>> from ntloss import ExpectedValue, NumberTokenLoss, NumberVocabulary
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> loss = NumberTokenLoss(digits, ExpectedValue("absolute"))
        >>> loss(torch.zeros(2, 12), torch.tensor([0, 11]))  # the mean of 0 to 9 is 4.5; 11 is text
        tensor(4.5000)
    """

    def __init__(
        self,
        vocabulary: NumberVocabulary | Any,
        criterion: Criterion | str | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(Objective(as_vocabulary(vocabulary), criterion))

    def _prepare_targets(
        self, labels: Tensor, inputs: Tensor, batch: BatchInfo, reduction: str, ignore_index: int
    ) -> Targets:
        if inputs.device != self.objective.device:
            self.objective.move_tables(inputs.device)
        options = TargetOptions(ignore_index, reduction, normalize_by="numbers")
        return prepare_targets(labels, inputs, self.tables, self.objective.needs, batch, options)

    def forward(
        self,
        logits: Tensor,
        labels: Tensor,
        loss_weights: Tensor | None = None,
        reduction: str = "mean",
        ignore_index: int = -100,
        sequence_ids: Tensor | None = None,
    ) -> Tensor:
        """Compute the loss of the positions whose label is a number token.

        Args:
            logits: `[..., vocab]`, any float dtype. Softmax and sums are computed in float32 or float64.
            labels: `[...]`, token ids.
            loss_weights: `[...]`, weight of each position, 0 or more. Default: 1.
            reduction: "mean" (default) divides by the total weight of the number labels; "sum"; "none".
            ignore_index: label of positions to ignore. Default: -100.
            sequence_ids: see `NTLCrossEntropyLoss.forward`.

        Returns:
            A scalar, or `[...]` for "none" (0 where the label is not a number), in float32 or float64.
            Without number labels, a zero with a graph.

        Raises:
            TypeError: the logits are not floating-point, or the labels are not token ids.
            ValueError: shapes, devices, labels or weights do not fit, or the reduction is unknown.
        """
        check_logits(logits, self.vocabulary.vocab_size)
        batch = BatchInfo(loss_weights, sequence_ids=sequence_ids)
        targets = self._prepare_targets(labels, logits, batch, reduction, ignore_index)
        flat, token_ids = logits.reshape(-1, logits.shape[-1]), self.tables.token_ids
        # Without gradients, only the rows of number labels are read. That copies them, so they must be few.
        rows = None if torch.is_grad_enabled() and logits.requires_grad else targets.number_rows
        rows = rows if rows is not None and 2 * len(rows) < len(flat) else None
        if not self.objective.needs.log_normalizer:
            # The backward pass of index_select along the last dimension is three times slower than gather's.
            number_logits, rows = flat.gather(-1, token_ids.expand(len(flat), -1)), None
            readout = Readout.from_number_logits(number_logits)
        elif rows is None:
            readout = summarize_logits(flat, Query(targets.labels, token_ids, IDENTITY))
        else:
            readout = summarize_block(flat, Query(targets.labels, token_ids, IDENTITY), positions=rows)
            targets = targets.select(rows)
        term = self.objective.number_term(readout, targets)
        if reduction != "none":
            return term
        term = term if rows is None else term.new_zeros(len(flat)).index_copy(0, rows, term)
        return term.reshape(labels.shape)

    def from_hidden(
        self,
        hidden_states: Tensor,
        lm_head_weight: Tensor,
        labels: Tensor,
        bias: Tensor | None = None,
        log_normalizer: Tensor | None = None,
        loss_weights: Tensor | None = None,
        reduction: str = "mean",
        ignore_index: int = -100,
        *,
        softcap: float | None = None,
        logit_scale: float = 1.0,
        sparse_grad: bool = True,
        sequence_ids: Tensor | None = None,
    ) -> Tensor:
        """Compute the loss from hidden states, beside a kernel that computes cross-entropy without logits.

        Only the number tokens' logits, `hidden_states @ lm_head_weight[number tokens].T`, are computed.
        docs/fused_kernels.md has examples with Liger-Kernel, cut-cross-entropy and `F.linear_cross_entropy`.

        Args:
            hidden_states: `[..., hidden]`, inputs of the head.
            lm_head_weight: `[vocab, hidden]`.
            labels: `[...]`, token ids.
            bias: `[vocab]`. Default: none.
            log_normalizer: `[...]`, logsumexp of the logits over the vocabulary, with its graph; criteria
                that see probability on text need it. If a kernel does not return it, add the
                label's logit to the kernel's loss of each token.
            loss_weights, reduction, ignore_index, sequence_ids: see `forward`.
            softcap, logit_scale: see `NTLLinearCrossEntropyLoss`.
            sparse_grad: make the gradient of the head's weight sparse (a few rows); autograd adds it to the
                kernel's dense gradient. Pass False if the weight gets no other gradient and its optimizer
                needs a dense one. Default: True.

        Returns:
            See `forward`.

        Raises:
            ValueError: `log_normalizer` is needed and missing; see `forward` for others.
        """
        transform = Transform(logit_scale, softcap).check()
        check_head(hidden_states, lm_head_weight, bias, self.vocabulary.vocab_size)
        needed = self.objective.needs.log_normalizer
        if needed and (log_normalizer is None or log_normalizer.shape != hidden_states.shape[:-1]):
            given = None if log_normalizer is None else list(log_normalizer.shape)
            raise ValueError(
                f"log_normalizer: given {given}, expected shape {list(hidden_states.shape[:-1])}: the "
                f"criterion {self.criterion!r} needs the logsumexp of all logits. Pass it, or make the loss "
                "with a criterion that does not need it."
            )
        batch = BatchInfo(loss_weights, sequence_ids=sequence_ids)
        targets = self._prepare_targets(labels, hidden_states, batch, reduction, ignore_index)
        # Only an embedding look-up gives a matrix a sparse gradient.
        rows = F.embedding(self.tables.token_ids, lm_head_weight, sparse=sparse_grad)
        number_bias = None if bias is None else bias[self.tables.token_ids]
        number_logits = F.linear(hidden_states.reshape(-1, hidden_states.shape[-1]), rows, number_bias)
        if number_logits.dtype == torch.float16:
            check_overflow(number_logits.amax(-1), targets.counted)
        number_logits = transform.apply(number_logits.to(COMPUTED_IN[rows.dtype]))
        readout = Readout.from_number_logits(number_logits, log_normalizer if needed else None)
        term = self.objective.number_term(readout, targets)
        return term.reshape(labels.shape) if reduction == "none" else term
