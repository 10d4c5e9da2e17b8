"""Cross-entropy and number token loss in one go, as modules: at cross-entropy's cost, or less.

Each `forward` has the same stages: what the labels say, what is read of the logits, the loss of each
position, their sum.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ntloss.criteria import Criterion
from ntloss.engine.linear import local_head, read_hidden, rows_for, sum_of_blocks
from ntloss.engine.objective import LossTerms, Objective
from ntloss.engine.readout import Transform, check_logits, read_logits
from ntloss.engine.shards import check_same_labels, local_columns
from ntloss.engine.targets import REDUCTIONS, Targets, check_weight, read_labels
from ntloss.losses import BaseLoss
from ntloss.vocabulary import NumberVocabulary, as_vocabulary

_DEFAULT_WEIGHT = {"add": 0.3, "replace": 1.0}


class _CombinedLoss(BaseLoss):
    """The options that both combined losses take, and what they do with labels."""

    def __init__(
        self, vocabulary: NumberVocabulary | Any, criterion: Criterion | None, weight: float | Tensor | None,
        reweigh: bool | None, mode: str, ignore_index: int, label_smoothing: float, z_loss: float,
        softcap: float | None, logit_scale: float, reduction: str, shift: bool, return_terms: bool,
        group: dist.ProcessGroup | None, validate: bool | None,
    ) -> None:  # fmt: skip
        if mode not in _DEFAULT_WEIGHT:
            raise ValueError(f"mode={mode!r}: expected 'add' or 'replace'")
        if reduction not in REDUCTIONS:
            raise ValueError(f"reduction={reduction!r}: expected {' or '.join(map(repr, REDUCTIONS))}")
        objective = Objective(as_vocabulary(vocabulary), criterion, reweigh, label_smoothing, z_loss)
        super().__init__(objective, validate)
        self.weight: float | Tensor
        if isinstance(weight, Tensor):  # so that it moves with the loss
            check_weight(weight, validate)
            self.register_buffer("weight", weight, persistent=False)
        else:
            self.weight = _DEFAULT_WEIGHT[mode] if weight is None else weight
        self.mode = mode
        self.ignore_index = ignore_index
        self.transform = Transform(logit_scale, softcap).check()
        self.reduction = reduction
        self.shift = shift
        self.return_terms = return_terms
        self.group = group

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight":
            check_weight(value, self.validate)
        super().__setattr__(name, value)

    def normalizers(
        self, labels: Tensor, loss_weights: Tensor | None = None, sequence_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Count what a mean divides by; add up over accumulated micro-batches and ranks.

        Args:
            labels: `[...]`, token ids, as they are given to the loss.
            loss_weights: `[...]`, or None for 1.
            sequence_ids: `[...]`, as they are given to the loss.

        Returns:
            num_items_in_batch: scalar, sum of the weights of the positions that count.
            num_numbers_in_batch: scalar, the same of those whose label is a number; for criteria on whole
                numbers, of the positions where one starts.

        Example:
            >>> import torch
            >>> from ntloss import NTLCrossEntropyLoss, NumberVocabulary
            >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
            >>> loss = NTLCrossEntropyLoss(digits)
            >>> items, numbers = loss.normalizers(torch.tensor([[3, 11, 4, -100]]))
            >>> items.item(), numbers.item()
            (3.0, 2.0)
        """
        self.objective.follow(labels)
        targets = read_labels(
            labels, labels.unsqueeze(-1), self.objective, loss_weights, sequence_ids=sequence_ids,
            ignore_index=self.ignore_index, reduction="sum", shift=self.shift, validate=self.validate,
        )  # fmt: skip
        return targets.item_weights.sum(), targets.number_weights.sum()

    def targets(self, labels: Tensor, inputs: Tensor, *weighting: Any) -> Targets:
        """What the labels say, by the options of this loss; see `read_labels`."""
        return read_labels(
            labels, inputs, self.objective, *weighting, ignore_index=self.ignore_index,
            reduction=self.reduction, mode=self.mode, shift=self.shift, validate=self.validate,
            weight=self.weight,
        )  # fmt: skip


class NTLCrossEntropyLoss(_CombinedLoss):
    r"""Cross-entropy plus $\lambda$ times a number token loss, from logits.

    Both terms share one pass over the logits, and on the CPU the whole costs less than
    `torch.nn.functional.cross_entropy` alone (docs/benchmarks.md has the figures). Memory beyond the logits:
    one buffer of their size, which becomes their gradient.

    Args:
        vocabulary: the number tokens, or a tokenizer, whose default token set is used.
        criterion: how wrong a number is. Default: `Wasserstein()`.
        weight: $\lambda$ of the number term. Default: 0.3, and 1 with `mode="replace"`. The attribute may be
            changed between steps (`ntloss.schedules`); under `torch.compile` make it a tensor, which is
            changed in place and not differentiated.
        reweigh: let probability on text cost more than the worst number (`criteria.reweigh_by_mass`).
            Default: where the criterion has a worst cost.
        mode: "add" (default) adds the number term; "replace" puts it in place of cross-entropy at number
            positions, and divides both by the count of all positions.
        ignore_index: label of positions that do not count. Default: -100.
        label_smoothing: of cross-entropy, from 0 (default) to 1.
        z_loss: factor of the mean squared log-normalizer, which keeps logits from drifting. Default: 0.
        softcap: logits become `softcap * tanh(logits / softcap)` first, as Gemma's head does. Default: none.
        logit_scale: logits are multiplied with it before all else, as Cohere's head does. Default: 1.
        reduction: "mean" (default): each term divided by the sum of its positions' weights; "sum"; "none".
        shift: labels are those of the inputs, and each position is compared with the next one's, as causal
            models need it. Default: labels are compared as they stand.
        return_terms: return a `LossTerms(loss, ce, ntl)`, the terms detached. Default: the loss alone.
        group: process group over which plain logits are sharded along the vocabulary, in the order of its
            ranks. A `DTensor` with placement `Shard(-1)` needs none.
        validate: check the values of labels and weights at each call. Default: on the CPU only, where it
            costs no synchronisation, and not inside `torch.compile`.
        inplace_backward: write the gradient over the logits, which are lost; no memory beyond them. Only
            where nothing reads the logits after the backward pass. Default: False.

    Raises:
        ValueError: an option outside of its range; `reweigh=True` for a criterion without a worst cost.

    Source: "Regress, Don't Guess", ICML 2025; z-loss: PaLM, 2022, section 5.

    Example:
        >>> import torch
        >>> from ntloss import NTLCrossEntropyLoss, NumberVocabulary
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> loss_fn = NTLCrossEntropyLoss(digits, weight=0.5, return_terms=True)
        >>> logits = torch.full((1, 12), -1e4)
        >>> logits[0, 3] = 0.0  # certain of 3
        >>> loss, ce, ntl = loss_fn(logits, torch.tensor([4]))
        >>> ce.item(), ntl.item(), loss.item()
        (10000.0, 1.0, 10000.5)
    """

    def __init__(
        self, vocabulary: NumberVocabulary | Any, criterion: Criterion | None = None,
        weight: float | Tensor | None = None, reweigh: bool | None = None, *, mode: str = "add",
        ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0,
        softcap: float | None = None, logit_scale: float = 1.0, reduction: str = "mean",
        shift: bool = False, return_terms: bool = False, group: dist.ProcessGroup | None = None,
        validate: bool | None = None, inplace_backward: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            vocabulary, criterion, weight, reweigh, mode, ignore_index, label_smoothing, z_loss, softcap,
            logit_scale, reduction, shift, return_terms, group, validate,
        )  # fmt: skip
        self.inplace_backward = inplace_backward

    def forward(
        self,
        logits: Tensor,
        labels: Tensor,
        loss_weights: Tensor | None = None,
        num_items_in_batch: Tensor | float | None = None,
        num_numbers_in_batch: Tensor | float | None = None,
        sequence_ids: Tensor | None = None,
    ) -> Tensor | LossTerms:
        """Compute the loss.

        Args:
            logits: `[..., vocab]`, any float dtype. Softmax and sums are in float32 at least.
            labels: `[...]`, token ids.
            loss_weights: `[...]`, weight of each position in both terms, 0 or more. Default: 1.
            num_items_in_batch: what "mean" divides cross-entropy by, instead of this call's own weights: the
                count over all accumulated micro-batches and ranks (`normalizers`).
            num_numbers_in_batch: the same for the number term.
            sequence_ids: `[...]`, int, for criteria that look at whole numbers, where several sequences are
                packed into a row: positions side by side with the same id are of one sequence
                (`numbers.sequence_ids_of` makes them of position ids). Default: each row is one sequence.

        Returns:
            A scalar, or `[...]` for "none", in float32 at least; with `return_terms` a `LossTerms` of these.

        Raises:
            TypeError: logits that are not floating-point, labels that are not token ids.
            ValueError: shapes, devices, labels or weights that do not fit; one count without the other.
        """
        tables, shard = self.objective.tables, None
        if self.group is not None or type(logits) is not Tensor:
            logits, shard = local_columns(logits, -1, tables.vocabulary.vocab_size, self.group)
        check_logits(logits, tables.vocabulary.vocab_size if shard is None else shard.size)
        if shard is not None:
            check_same_labels(labels, shard.group)
            if self.inplace_backward:
                raise ValueError("inplace_backward=True is for whole logits; these are sharded. Omit it.")
        self.objective.follow(logits)
        targets = self.targets(
            labels, logits, loss_weights, num_items_in_batch, num_numbers_in_batch, sequence_ids
        )
        readout = read_logits(
            logits, targets.labels, tables.token_ids, self.transform,
            self.objective.label_smoothing > 0, self.inplace_backward, shard,
        )  # fmt: skip
        terms: LossTerms = self.objective(readout, targets, self.weight)
        terms = terms.reduce(self.reduction, labels.shape)
        return terms if self.return_terms else terms.loss


class NTLLinearCrossEntropyLoss(_CombinedLoss):
    r"""Cross-entropy plus $\lambda$ times a number token loss, from hidden states and the head's weight.

    The logits of all tokens are never held: tokens go through the head in chunks. For "mean" and "sum" the
    gradients are formed in the forward pass, without a matrix product more than with whole logits; a second
    `backward` through the same graph is an error, then. Under `torch.compile` it is one graph break. For
    "none", and for criteria on whole numbers, which look at all positions at once, the number tokens' logits
    are kept and the backward pass takes the chunks again: a fourth product.

    Args:
        vocabulary, criterion, weight, reweigh, mode, ignore_index, label_smoothing, z_loss, softcap,
            logit_scale, reduction, shift, return_terms, validate: see `NTLCrossEntropyLoss`.
        group: process group over which a plain head is sharded by rows, in the order of its ranks; hidden
            states are whole on each. A `DTensor` with placement `Shard(0)` needs none.
        chunk_size: tokens that go through the head, and whose logits are held, at a time. Default: a tenth
            of the tokens, between 100 and 256 (on accelerators 256 and 4,096, and 2^27 logits at most).
        drop_ignored: leave positions with `ignore_index` out of the matrix products. Their count is needed on
            the host, the one synchronisation of this loss; False does without. Default: True.

    Raises:
        ValueError: an option outside of its range; `reweigh=True` for a criterion without a worst cost.

    Source: "Regress, Don't Guess", ICML 2025; gradients in the forward pass as in Liger-Kernel, 2024.

    Example:
        >>> import torch
        >>> from ntloss import NTLLinearCrossEntropyLoss, NumberVocabulary
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> head = torch.nn.Linear(8, 12, bias=False)
        >>> loss_fn = NTLLinearCrossEntropyLoss(digits)
        >>> loss = loss_fn(torch.randn(2, 5, 8), head.weight, torch.randint(12, (2, 5)))
        >>> loss.backward()
    """

    def __init__(
        self, vocabulary: NumberVocabulary | Any, criterion: Criterion | None = None,
        weight: float | Tensor | None = None, reweigh: bool | None = None, *, mode: str = "add",
        ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0,
        softcap: float | None = None, logit_scale: float = 1.0, reduction: str = "mean",
        shift: bool = False, return_terms: bool = False, group: dist.ProcessGroup | None = None,
        validate: bool | None = None, chunk_size: int | None = None, drop_ignored: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(
            vocabulary, criterion, weight, reweigh, mode, ignore_index, label_smoothing, z_loss, softcap,
            logit_scale, reduction, shift, return_terms, group, validate,
        )  # fmt: skip
        if chunk_size is not None and (not isinstance(chunk_size, int) or chunk_size < 1):
            raise ValueError(f"chunk_size={chunk_size!r}: expected 1 or more tokens, or None")
        criterion = self.objective.criterion
        if isinstance(criterion, nn.Module) and any(p.requires_grad for p in criterion.parameters()):
            raise ValueError(
                f"{type(criterion).__name__} has parameters to train, which get no gradient here: expected a "
                "criterion without, or NTLCrossEntropyLoss"
            )
        self.chunk_size = chunk_size
        self.drop_ignored = drop_ignored
        self._disable_compile()

    def _disable_compile(self) -> None:
        # One graph break under `torch.compile`, which could not trace it. Here and not where the class is
        # defined: importing the compiler takes as long as importing torch.
        self._compute = torch.compiler.disable(NTLLinearCrossEntropyLoss._loss)  # type: ignore[no-untyped-call]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_compute"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._disable_compile()

    def forward(
        self,
        hidden_states: Tensor,
        lm_head_weight: Tensor,
        labels: Tensor,
        bias: Tensor | None = None,
        loss_weights: Tensor | None = None,
        num_items_in_batch: Tensor | float | None = None,
        num_numbers_in_batch: Tensor | float | None = None,
        sequence_ids: Tensor | None = None,
    ) -> Tensor | LossTerms:
        """Compute the loss.

        Args:
            hidden_states: `[..., hidden]`, what the head is applied to.
            lm_head_weight: `[vocab, hidden]`.
            labels: `[...]`, token ids.
            bias: `[vocab]`. Default: none.
            loss_weights, num_items_in_batch, num_numbers_in_batch, sequence_ids: see
                `NTLCrossEntropyLoss.forward`.

        Returns, Raises: see `NTLCrossEntropyLoss.forward`.
        """
        terms: LossTerms = self._compute(
            self, hidden_states, lm_head_weight, labels, bias, loss_weights, num_items_in_batch,
            num_numbers_in_batch, sequence_ids,
        )  # fmt: skip
        return terms if self.return_terms else terms.loss

    def _loss(
        self, hidden_states: Tensor, lm_head_weight: Tensor, labels: Tensor, bias: Tensor | None, *more: Any
    ) -> LossTerms:
        vocab_size, objective = self.vocabulary.vocab_size, self.objective
        hidden, head = local_head(hidden_states, lm_head_weight, bias, self.transform, vocab_size, self.group)
        if head.shard is not None:
            check_same_labels(labels, head.shard.group)
        self.objective.follow(hidden)
        targets = self.targets(labels, hidden, *more)
        hidden = hidden.reshape(-1, hidden.shape[-1])
        kept = targets.counted.nonzero().squeeze(-1) if self.drop_ignored else None
        if kept is not None and len(kept) < len(hidden):  # else a copy of all hidden states is for nothing
            hidden, targets = hidden.index_select(0, kept), targets.select(kept)
        rows = self.chunk_size or rows_for(len(hidden), len(head.weight), hidden.device)
        if self.reduction != "none" and not objective.needs.across_positions:
            return sum_of_blocks(hidden, head, targets, objective, self.weight, rows)
        mean = objective.label_smoothing > 0
        readout = read_hidden(hidden, head, targets.labels, self.tables.token_ids, mean, rows)
        terms: LossTerms = objective(readout, targets, self.weight)
        if kept is not None:  # back among the ignored ones
            terms = LossTerms(*(t.new_zeros(labels.numel()).index_copy(0, kept, t) for t in terms))
        return terms.reduce(self.reduction, labels.shape)
