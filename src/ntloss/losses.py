"""What all losses share, and any criterion as a number token loss: a module to be added to cross-entropy."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ntloss.criteria import Criterion
from ntloss.engine.linear import check_head
from ntloss.engine.objective import Objective
from ntloss.engine.readout import (
    IDENTITY,
    Readout,
    Transform,
    check_logits,
    compute_dtype,
    read_block,
    read_logits,
)
from ntloss.engine.tables import NumberTables
from ntloss.engine.targets import read_labels
from ntloss.vocabulary import NumberVocabulary, as_vocabulary


class BaseLoss(nn.Module):
    """What all losses have: an objective, and checks of the values they are given."""

    def __init__(self, objective: Objective, validate: bool | None) -> None:
        super().__init__()
        self.objective = objective
        self.validate = validate

    @property
    def tables(self) -> NumberTables:
        """The number tokens as tensors."""
        return self.objective.tables

    @property
    def vocabulary(self) -> NumberVocabulary:
        """The number tokens."""
        return self.objective.tables.vocabulary


class NumberTokenLoss(BaseLoss):
    """Any criterion as a number token loss, to be added to cross-entropy.

    Args:
        vocabulary: the number tokens; of a tokenizer, its default reading.
        criterion: how wrong a number is. Default: `Wasserstein()`.
        reweigh: let probability on text cost more than the worst number (`criteria.reweigh_by_mass`).
            Default: where the criterion has a worst cost.
        validate: check the values of labels and weights at each call. Default: on the CPU only, where it
            costs no synchronisation, and not inside `torch.compile`.

    Raises:
        ValueError: `reweigh=True` for a criterion without a worst cost.

    Source: "Regress, Don't Guess", ICML 2025.

    Example:
        >>> import torch
        >>> from ntloss import ExpectedValue, NumberTokenLoss, NumberVocabulary
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> loss = NumberTokenLoss(digits, ExpectedValue("absolute"), reweigh=False)
        >>> loss(torch.zeros(2, 12), torch.tensor([0, 11]))  # the mean of 0 to 9 is 4.5; 11 is text
        tensor(4.5000)
    """

    def __init__(
        self,
        vocabulary: NumberVocabulary | Any,
        criterion: Criterion | None = None,
        reweigh: bool | None = None,
        validate: bool | None = None,
    ) -> None:
        super().__init__(Objective(as_vocabulary(vocabulary), criterion, reweigh), validate)

    @property
    def criterion(self) -> Criterion:
        """How wrong a number is."""
        return self.objective.criterion

    @property
    def reweigh(self) -> bool:
        """Whether probability on text costs more than the worst number."""
        return self.objective.worst is not None

    def forward(
        self,
        logits: Tensor,
        labels: Tensor,
        loss_weights: Tensor | None = None,
        reduction: str = "mean",
        ignore_index: int = -100,
        sequence_ids: Tensor | None = None,
    ) -> Tensor:
        """Number token loss of the positions whose label is a number token.

        Args:
            logits: `[..., vocab]`, any float dtype. Softmax and sums are in float32 at least.
            labels: `[...]`, token ids.
            loss_weights: `[...]`, weight of each position, 0 or more. Default: 1.
            reduction: "mean" over the number labels (divides by the sum of their weights), "sum", or "none".
            ignore_index: label of positions that do not count. Default: -100.
            sequence_ids: see `NTLCrossEntropyLoss.forward`.

        Returns:
            A scalar, or `[...]` for "none" (0 where the label is no number), in float32 at least. Without
            number labels it is a zero that has a graph.

        Raises:
            TypeError: logits that are not floating-point, labels that are not token ids.
            ValueError: shapes, devices, labels, weights or a reduction that do not fit.
        """
        check_logits(logits, self.vocabulary.vocab_size)
        self.objective.follow(logits)
        targets = read_labels(
            labels, logits, self.objective, loss_weights, sequence_ids=sequence_ids,
            ignore_index=ignore_index, reduction=reduction, validate=self.validate,
        )  # fmt: skip
        flat, token_ids = logits.reshape(-1, logits.shape[-1]), self.tables.token_ids
        # Without a gradient, which is as wide as the logits, number labels alone are read: they are copied.
        rows = None if torch.is_grad_enabled() and logits.requires_grad else targets.number_rows
        rows = rows if rows is not None and 2 * len(rows) < len(flat) else None
        if not self.objective.reads_mass:
            # gather: the backward pass of index_select along the last dimension takes thrice the time.
            readout, rows = Readout.of_numbers(flat.gather(-1, token_ids.expand(flat.shape[0], -1))), None
        elif rows is None:
            readout = read_logits(flat, targets.labels, token_ids)
        else:
            readout = read_block(flat, targets.labels, token_ids, IDENTITY, mean=False, positions=rows)
            targets = targets.select(rows)
        term = self.objective.number_term(readout, targets)
        if reduction != "none":
            return term.sum()
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
        """The same beside a kernel that computes cross-entropy from hidden states, without logits.

        The number tokens' logits are `hidden_states @ lm_head_weight[number tokens].T`; docs/fused_kernels.md
        shows it with Liger-Kernel, cut-cross-entropy and `F.linear_cross_entropy`.

        Args:
            hidden_states: `[..., hidden]`, what the head is applied to.
            lm_head_weight: `[vocab, hidden]`.
            labels: `[...]`, token ids.
            bias: `[vocab]`. Default: none.
            log_normalizer: `[...]`, logsumexp of the logits over the vocabulary, with its graph. Where a
                kernel does not give it, its loss of each token plus that label's logit is the same. Only
                `reweigh`, and criteria that see probability on text, need it.
            loss_weights, reduction, ignore_index, sequence_ids: see `forward`.
            softcap: logits are `softcap * tanh(logits / softcap)`. Default: none.
            logit_scale: logits are multiplied with it before all else. Default: 1.
            sparse_grad: give the head's weight a sparse gradient, a few rows, which autograd adds to the
                kernel's dense one; False makes another dense one, for a weight that gets none elsewhere and
                an optimizer that wants one. Default: True.

        Returns:
            As `forward`.

        Raises:
            ValueError: no `log_normalizer` where it is needed; see `forward` for the others.
        """
        transform = Transform(logit_scale, softcap).check()
        check_head(hidden_states, lm_head_weight, bias, self.vocabulary.vocab_size)
        self.objective.follow(hidden_states)
        reads_mass = self.objective.reads_mass
        if reads_mass and (log_normalizer is None or log_normalizer.shape != hidden_states.shape[:-1]):
            given = None if log_normalizer is None else list(log_normalizer.shape)
            raise ValueError(
                f"log_normalizer: given {given}, expected shape {list(hidden_states.shape[:-1])}: reweigh "
                f"(or the criterion, {self.criterion!r}) needs the logsumexp of all logits. Pass it, or make "
                "the loss with reweigh=False and a criterion that does without."
            )
        targets = read_labels(
            labels, hidden_states, self.objective, loss_weights, sequence_ids=sequence_ids,
            ignore_index=ignore_index, reduction=reduction, validate=self.validate,
        )  # fmt: skip
        # An embedding look-up is the one way to rows of a matrix that has a sparse gradient.
        rows = F.embedding(self.tables.token_ids, lm_head_weight, sparse=sparse_grad)
        number_bias = None if bias is None else bias[self.tables.token_ids]
        number_logits = F.linear(hidden_states.reshape(-1, hidden_states.shape[-1]), rows, number_bias)
        number_logits = transform.apply(number_logits.to(compute_dtype(rows.dtype)))
        readout = Readout.of_numbers(number_logits, log_normalizer if reads_mass else None)
        term = self.objective.number_term(readout, targets)
        return term.reshape(labels.shape) if reduction == "none" else term.sum()
