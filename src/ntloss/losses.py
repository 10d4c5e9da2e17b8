"""Any criterion as a number token loss: a module to be added to cross-entropy."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ntloss.criteria import (
    Criterion,
    Wasserstein,
    needs_of,
    reweighed,
    worst_cost,
)
from ntloss.engine.checks import check_head, check_labels, check_logits, check_sequence_ids, check_values
from ntloss.engine.readout import (
    IDENTITY,
    LogNormalizer,
    Transform,
    compute_dtype,
    read_block,
    read_logits,
    without_autocast,
)
from ntloss.engine.record import make_record
from ntloss.engine.reduction import reduce
from ntloss.engine.spans import spans_of_labels
from ntloss.engine.tables import NumberTables
from ntloss.numbers import NumberSpans
from ntloss.vocabulary import NumberVocabulary, as_vocabulary


class Targets(NamedTuple):
    """What the labels say, all `[positions]`.

    Args:
        value: index of the label's value, 0 where it is no number.
        has_term: bool, the positions that the criterion gives a loss for.
        counted: bool, the positions that are not ignored.
        some_label: the label, 0 where it is ignored.
        spans: which number each position belongs to; None unless the criterion asks for it.
    """

    value: Tensor
    has_term: Tensor
    counted: Tensor
    some_label: Tensor
    spans: NumberSpans | None

    def only(self, read: Tensor) -> Tensor:
        """What was read of the logits, `[positions, ...]`, with zeros where they may be anything, NaN too."""
        return torch.where(self.counted if read.dim() == 1 else self.counted.unsqueeze(-1), read, 0)

    def select(self, rows: Tensor) -> Targets:
        """The same of some positions, without spans."""
        value, has_term, counted, some_label = (column[rows] for column in self[:4])
        return Targets(value, has_term, counted, some_label, None)


class NumberTokenLoss(nn.Module):
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
        super().__init__()
        vocabulary = as_vocabulary(vocabulary)
        self.criterion = Wasserstein() if criterion is None else criterion
        self.worst = worst_cost(self.criterion, vocabulary.value_tensor(), reweigh)
        self.validate = validate
        self.tables = NumberTables(vocabulary, criterion=self.criterion)

    @property
    def vocabulary(self) -> NumberVocabulary:
        """The number tokens."""
        return self.tables.vocabulary

    @property
    def reweigh(self) -> bool:
        """Whether probability on text costs more than the worst number."""
        return self.worst is not None

    @property
    def reads_mass(self) -> bool:
        """Whether the loss looks at the whole vocabulary's probability."""
        return self.worst is not None or needs_of(self.criterion).log_normalizer

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
            sequence_ids: `[...]`, int, for criteria that look at whole numbers, where several sequences are
                packed into a row: positions side by side with the same id are of one sequence
                (`numbers.sequence_ids_of` makes them of position ids). Default: each row is one sequence.

        Returns:
            A scalar, or `[...]` for "none" (0 where the label is no number), in float32 at least. Without
            number labels it is a zero that has a graph.

        Raises:
            TypeError: logits that are not floating-point, labels that are not token ids.
            ValueError: shapes, devices, labels, weights or a reduction that do not fit.
        """
        check_logits(logits, self.vocabulary.vocab_size)
        self.tables.follow(logits)
        rows = logits.reshape(-1, logits.shape[-1])
        targets = self._read_labels(
            logits.shape[:-1], logits.device, labels, loss_weights, reduction, ignore_index, sequence_ids
        )
        log_normalizer = None
        if self.reads_mass:
            if (chosen := self._rows_to_read(rows, targets)) is not None:
                return self._of_chosen(rows, targets, chosen, loss_weights, reduction, labels.shape)
            readout = read_logits(rows, targets.some_label, self.tables.token_ids)
            number_logits = readout.number_logits
            log_normalizer = LogNormalizer(*map(targets.only, readout.log_normalizer))
        else:
            # gather: the backward pass of index_select along the last dimension takes thrice the time.
            number_logits = rows.gather(-1, self.tables.token_ids.expand(rows.shape[0], -1))
        number_logits = targets.only(number_logits)
        return self._reduce(number_logits, log_normalizer, targets, loss_weights, reduction, labels.shape)

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

        The number tokens' logits are `hidden_states @ lm_head_weight[number tokens].T`; docs/riding_along.md
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
        Transform(logit_scale, softcap).check()
        check_head(hidden_states, lm_head_weight, bias, self.vocabulary.vocab_size)
        self.tables.follow(hidden_states)
        leading = hidden_states.shape[:-1]
        if self.reads_mass and (log_normalizer is None or log_normalizer.shape != leading):
            given = None if log_normalizer is None else list(log_normalizer.shape)
            raise ValueError(
                f"log_normalizer: given {given}, expected shape {list(leading)}: reweigh (or the "
                f"criterion, {self.criterion!r}) asks for the logsumexp of all logits. Hand it in, or make "
                "the loss with reweigh=False and a criterion that does without."
            )
        targets = self._read_labels(
            leading, hidden_states.device, labels, loss_weights, reduction, ignore_index, sequence_ids
        )
        # An embedding look-up is the one way to rows of a matrix that has a sparse gradient.
        rows = F.embedding(self.tables.token_ids, lm_head_weight, sparse=sparse_grad)
        number_bias = None if bias is None else bias[self.tables.token_ids]
        number_logits = F.linear(hidden_states.reshape(-1, hidden_states.shape[-1]), rows, number_bias)
        number_logits = Transform(logit_scale, softcap).apply(number_logits.to(compute_dtype(rows.dtype)))
        whole = None
        if self.reads_mass and log_normalizer is not None:
            log_sum = targets.only(log_normalizer.reshape(-1).to(number_logits.dtype))
            whole = LogNormalizer(torch.zeros_like(log_sum), log_sum)
        number_logits = targets.only(number_logits)
        return self._reduce(number_logits, whole, targets, loss_weights, reduction, labels.shape)

    def _read_labels(
        self,
        leading: torch.Size,
        device: torch.device,
        labels: Tensor,
        loss_weights: Tensor | None,
        reduction: str,
        ignore_index: int,
        sequence_ids: Tensor | None,
    ) -> Targets:
        check_labels(leading, device, labels, loss_weights, reduction)
        check_values(labels, loss_weights, self.vocabulary.vocab_size, ignore_index, self.validate)
        check_sequence_ids(labels, sequence_ids, self.criterion)
        spans = spans_of_labels(labels, self.tables, sequence_ids, ignore_index)
        labels = labels.reshape(-1).long()  # gather takes int32 since torch 2.8 only
        value, has_term = self.tables.targets(labels, ignore_index)
        if needs_of(self.criterion).per_number:
            assert spans is not None
            has_term = spans.starts
        counted = labels != ignore_index
        return Targets(value, has_term, counted, torch.where(counted, labels, 0), spans)

    def _rows_to_read(self, rows: Tensor, targets: Targets) -> Tensor | None:
        """Positions of the number labels, where it is enough and cheaper to read no others."""
        # A gradient is as wide as the logits anyway. A criterion that looks at several positions, or at whole
        # numbers, is given them all; and only on the CPU their count costs no synchronisation.
        if torch.is_grad_enabled() and rows.requires_grad:
            return None
        if rows.device.type != "cpu" or torch.compiler.is_compiling():
            return None
        if targets.spans is not None or needs_of(self.criterion).across_positions:
            return None
        chosen = targets.has_term.nonzero().squeeze(-1)
        return chosen if 2 * len(chosen) < len(rows) else None  # they are copied

    def _of_chosen(
        self,
        rows: Tensor,
        targets: Targets,
        chosen: Tensor,
        loss_weights: Tensor | None,
        reduction: str,
        shape: torch.Size,
    ) -> Tensor:
        readout = read_block(
            rows, targets.some_label, self.tables.token_ids, IDENTITY, False, softmax=None, positions=chosen
        )
        weights = None if loss_weights is None else loss_weights.reshape(-1)[chosen]
        loss = self._reduce(
            readout.number_logits,
            readout.log_normalizer,
            targets.select(chosen),
            weights,
            reduction,
            chosen.shape,
        )
        if reduction != "none":
            return loss
        return loss.new_zeros(len(rows)).index_copy(0, chosen, loss).reshape(shape)

    def _reduce(
        self,
        number_logits: Tensor,
        log_normalizer: LogNormalizer | None,
        targets: Targets,
        loss_weights: Tensor | None,
        reduction: str,
        shape: torch.Size,
    ) -> Tensor:
        with without_autocast(number_logits.device):
            record = make_record(number_logits, self.tables, targets.value, log_normalizer, targets.spans)
            loss = reweighed(self.criterion, record, self.worst)
        weights = None if loss_weights is None else loss_weights.reshape(-1)
        reduced = reduce(loss, targets.has_term, weights, reduction)
        return reduced.reshape(shape) if reduction == "none" else reduced
