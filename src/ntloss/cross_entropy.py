"""Modules that compute cross-entropy and a number token loss together, at the cost of cross-entropy or less.

Each `forward` has the same stages: targets from the labels, a readout of the logits, the loss of each
position, the reduction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._compile import _disable_dynamo  # unlike torch.compiler.disable, imports no compiler yet

from ntloss.criteria import Criterion
from ntloss.criteria.criterion import check_choice, mode_of
from ntloss.engine.linear import SummarizeHidden, SumOfBlocks, local_head, rows_for
from ntloss.engine.objective import LossTerms, Objective
from ntloss.engine.readout import (
    IDENTITY,
    Query,
    Readout,
    Transform,
    summarize_logits,
    values_are_hidden,
    without_autocast,
)
from ntloss.engine.shards import check_same_labels, local_columns
from ntloss.engine.targets import (
    DIVISORS,
    MODES,
    REDUCTIONS,
    BatchInfo,
    TargetOptions,
    Targets,
    check_logits,
    check_weight,
    prepare_targets,
)
from ntloss.losses import BaseLoss
from ntloss.numbers.vocabulary import NumberVocabulary, as_vocabulary


class _CombinedLoss(BaseLoss):
    """Base class of the combined losses: their common options, and the targets that they read from labels."""

    def __init__(
        self,
        objective: Objective,
        weight: float | Tensor | None,
        options: TargetOptions,
        transform: Transform,
        return_terms: bool,
        group: dist.ProcessGroup | None,
    ) -> None:
        for name, choices in (("mode", MODES), ("reduction", REDUCTIONS), ("normalize_by", DIVISORS)):
            check_choice(name, getattr(options, name), choices)
        objective.replaces_cross_entropy = options.mode == "replace"
        super().__init__(objective)
        self.weight: float | Tensor
        if isinstance(weight, Tensor):  # as a buffer it moves with the loss
            check_weight(weight)
            self.register_buffer("weight", weight, persistent=False)
        elif weight is None:
            self.weight = 0.3 if options.mode == "add" else 1.0
        else:
            self.weight = weight
        self.options = options
        self.transform = transform.check()
        self.return_terms = return_terms
        self.group = group

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight":  # which may change between steps
            check_weight(value)
            current = vars(self).get("_buffers", {}).get("weight")
            if current is not None and not isinstance(value, Tensor):
                current.data.fill_(value)
                return
        super().__setattr__(name, value)

    def normalizers(
        self,
        labels: Tensor,
        loss_weights: Tensor | None = None,
        sequence_ids: Tensor | None = None,
        number_weights: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        r"""Compute the divisors of `reduction="mean"`, to be summed over micro-batches and ranks.

        The first is the `num_items_in_batch` of `forward`. A mean over numbers that does not depend on how a
        batch is split is `normalize_by="items"` with the weight $\lambda \cdot items / numbers$.

        Args:
            labels, loss_weights, sequence_ids, number_weights: `[...]`, as passed to `forward`.

        Returns:
            items: scalar, total weight of the positions that are not ignored.
            numbers: scalar, `loss_weights * number_weights` summed over the positions whose
                label is a number token; for criteria on whole numbers, over the first token of each number.

        Example:
            >>> from ntloss import NTLCrossEntropyLoss, NumberVocabulary
            >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
            >>> loss = NTLCrossEntropyLoss(digits)
            >>> items, numbers = loss.normalizers(torch.tensor([[3, 11, 4, -100]]))
            >>> items.item(), numbers.item()
            (3.0, 2.0)
        """
        batch = BatchInfo(loss_weights, number_weights, sequence_ids)
        # Sums in float64, which is exact for any count, whatever the dtype of the logits.
        inputs = torch.empty(*labels.shape, 0, dtype=self.tables.values.dtype, device=labels.device)
        targets = self._prepare_targets(labels, inputs, batch, self.options._replace(reduction="sum"))
        return targets.item_weights.sum(), targets.number_weights.sum()

    def _prepare_targets(
        self, labels: Tensor, inputs: Tensor, batch: BatchInfo, options: TargetOptions | None = None
    ) -> Targets:
        objective = self.objective
        if inputs.device != objective.device:
            objective.move_tables(inputs.device)
        if isinstance(self.weight, Tensor):  # a float was checked when it was set
            check_weight(self.weight)
        return prepare_targets(
            labels, inputs, objective.tables, objective.needs, batch, options or self.options
        )


class NTLCrossEntropyLoss(_CombinedLoss):
    r"""Cross-entropy plus $\lambda$ times a number token loss, from logits.

    Both terms share one pass over the logits, and cost less together than
    `torch.nn.functional.cross_entropy` alone on the CPU (docs/benchmarks.md); GPUs use Triton kernels
    (docs/fused_kernels.md). Beyond the logits, the loss needs one buffer of their size for their gradient.

    Args:
        vocabulary: the number tokens, or a tokenizer, which is passed to `NumberVocabulary.from_tokenizer`.
        criterion: how wrong a number is: a criterion, one of `criterion_names()`, or a mapping of `name` and
            options. Default: `Wasserstein()`.
        weight: $\lambda$ of the number term. Default: 0.3, and 1 with `mode="replace"`. The attribute may
            be assigned at each step. Under `torch.compile`, where a changing float recompiles, make the loss
            with a scalar tensor, which an assignment fills; it gets no gradient.
        mode: "add" adds the number term to cross-entropy. "replace" uses it instead of cross-entropy at
            number positions, and "mean" then divides both terms by the total weight of all positions.
            Default: that of the criterion, "replace" for `HLGauss`, "add" for all others.
        ignore_index: label of positions to ignore. Default: -100.
        label_smoothing: label smoothing of cross-entropy, from 0 (default) to 1.
        z_loss: factor of the mean squared log-normalizer, which keeps logits from drifting. Default: 0.
        reduction: "mean" (default) divides by the total weight of the positions, see `normalize_by`; "sum";
            "none".
        normalize_by: what "mean" divides the number term by. "items" (default): the total weight of all
            positions that are not ignored, as cross-entropy, so that the loss of a number token is
            cross-entropy + $\lambda$ times the criterion. "numbers": the total weight of the number terms,
            the paper's mean; $\lambda$ then acts as $\lambda$ / share of number tokens. Without effect on
            `mode="replace"`, which divides by the items.
        shift: compare each position with the next position's label, for a causal model's unshifted labels.
            Default: False, each position has its own label.
        return_terms: return a `LossTerms(loss, ce, ntl)`, the terms detached. Default: the loss alone.
        group: process group over which plain logits are sharded along the vocabulary, in the order of its
            ranks. A `DTensor` with placement `Shard(-1)` needs none.
        inplace_backward: write the gradient over the logits, to save their buffer; nothing may read the
            logits after the backward pass. On the CPU it can take up to 50 % longer. Default: False.

    Raises:
        ValueError: an option is out of range.

    Source: "Regress, Don't Guess", ICML 2025; z-loss: PaLM, 2022, section 5.

    Example:
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
        self,
        vocabulary: NumberVocabulary | Any,
        criterion: Criterion | str | Mapping[str, Any] | None = None,
        weight: float | Tensor | None = None,
        *,
        mode: str | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        reduction: str = "mean",
        normalize_by: str = "items",
        shift: bool = False,
        return_terms: bool = False,
        group: dist.ProcessGroup | None = None,
        inplace_backward: bool = False,
    ) -> None:
        objective = Objective(as_vocabulary(vocabulary), criterion, label_smoothing, z_loss)
        mode = mode or mode_of(objective.criterion)
        targets = TargetOptions(ignore_index, reduction, mode, normalize_by, shift)
        super().__init__(objective, weight, targets, IDENTITY, return_terms, group)
        self._inplace = inplace_backward

    def forward(
        self,
        logits: Tensor,
        labels: Tensor,
        loss_weights: Tensor | None = None,
        num_items_in_batch: Tensor | float | None = None,
        sequence_ids: Tensor | None = None,
        number_weights: Tensor | None = None,
        number_samples: Tensor | None = None,
    ) -> Tensor | LossTerms:
        """Compute the loss.

        Args:
            logits: `[..., vocab]`, any float dtype. Softmax and sums are computed in float32 or float64.
            labels: `[...]`, token ids.
            loss_weights: `[...]`, weight of each position in both terms, 0 or more. Default: 1. For criteria
                on whole numbers, a number has the weight of its first token, also in `number_weights`.
            num_items_in_batch: divisor of "mean": the total weight of the positions that are not ignored,
                over all accumulated micro-batches and ranks. It makes the sum of their losses that of one
                large batch, however it is split. Default: the total weight of this call. With
                `normalize_by="numbers"`, the number term is the mean of this call times its share of the
                items, which depends on how a batch is split; `normalizers` has an exact form.
            sequence_ids: `[...]`, integers, for criteria on whole numbers if a row packs several sequences:
                adjacent positions with equal ids belong to one sequence
                (`ntloss.numbers.sequence_ids_of` makes them from position ids). Default: each row is one
                sequence.
            number_weights: `[...]`, factor of the number term alone, on top of `loss_weights`: 0 for numbers
                that are names, such as multiple-choice answers, identifiers or dates. They do not change the
                count of items; `normalize_by="numbers"` divides by the total of `loss_weights *
                number_weights` over number labels. With `mode="replace"`, a number label of weight w, from 0
                to 1, gets w times the number term and 1 - w times cross-entropy. Default: 1.
            number_samples: `[batch, samples]`, numbers that replace the row's own as the target of `HLGauss`,
                such as the ratings of several people, padded with NaN. They hold for all numbers of a row:
                mask others with `ignore_index` or `number_weights`. The label, one of the samples or their
                median, sets the digits that later digits depend on. A row of NaN has none. Default: none.

        Returns:
            A scalar, or `[...]` for "none", in float32 or float64. With `return_terms`, a `LossTerms`.

        Raises:
            TypeError: the logits are not floating-point, or the labels are not token ids.
            ValueError: shapes, devices, labels or weights do not fit, or a count is given that the loss does
                not divide by.
        """
        tables, shard = self.objective.tables, None
        if self.group is not None or type(logits) is not Tensor:
            logits, shard = local_columns(logits, -1, tables.vocabulary.vocab_size, self.group)
        check_logits(logits, tables.vocabulary.vocab_size if shard is None else shard.size)
        if shard is not None:
            check_same_labels(labels, shard.group)
            if self._inplace:
                raise ValueError("inplace_backward=True needs whole logits, and these are sharded: omit it")
        batch = BatchInfo(loss_weights, number_weights, sequence_ids, num_items_in_batch, number_samples)
        targets = self._prepare_targets(labels, logits, batch)
        query = Query(targets.labels, tables.token_ids, self.transform, self.objective.label_smoothing > 0)
        readout = summarize_logits(logits, query, self._inplace, shard)
        terms: LossTerms = self.objective(readout, targets, self.weight)
        return terms.detached() if self.return_terms else terms.loss


class NTLLinearCrossEntropyLoss(_CombinedLoss):
    r"""Cross-entropy plus $\lambda$ times a number token loss, from hidden states and the head's weight.

    The head is applied to chunks of tokens, so the logits of all tokens are never in memory. For "mean" and
    "sum" the forward pass computes the gradients too, with the three matrix products that whole logits need;
    a second `backward` through the same graph is then an error. For "none", and for criteria on whole
    numbers, which look at all positions at once, the backward pass recomputes the logits: a fourth product.
    Under `torch.compile` the loss causes one graph break.

    Args:
        vocabulary, criterion, weight, mode, ignore_index: see `NTLCrossEntropyLoss`.
        label_smoothing, z_loss, reduction, normalize_by, shift, return_terms: see `NTLCrossEntropyLoss`.
        group: process group over which the rows of a plain head are sharded, in the order of its ranks;
            every rank holds the whole hidden states. A `DTensor` with placement `Shard(0)` needs none.
        softcap: replace logits by `softcap * tanh(logits / softcap)`, as in Gemma's head. Default: None.
        logit_scale: factor of the logits, applied before the soft cap, as in Cohere's head. Default: 1.
        chunk_size: number of tokens in a chunk. Default: on the CPU 512, reduced so that a chunk holds at
            most an eighth of the logits or 2^24 logits, whichever is larger; on accelerators an eighth of the
            tokens, at most 2^29 logits but at least 256 tokens.
        drop_ignored: leave positions with `ignore_index` out of the matrix products. Counting them is the
            only synchronization with the device; False avoids it. Default: True.

    Raises:
        ValueError: an option is out of range.

    Source: "Regress, Don't Guess", ICML 2025; gradients in the forward pass as in Liger-Kernel, 2024.

    Example:
        >>> from ntloss import NTLLinearCrossEntropyLoss, NumberVocabulary
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> head = torch.nn.Linear(8, 12, bias=False)
        >>> loss_fn = NTLLinearCrossEntropyLoss(digits)
        >>> loss = loss_fn(torch.randn(2, 5, 8), head.weight, torch.randint(12, (2, 5)))
        >>> loss.backward()
    """

    def __init__(
        self,
        vocabulary: NumberVocabulary | Any,
        criterion: Criterion | str | Mapping[str, Any] | None = None,
        weight: float | Tensor | None = None,
        *,
        mode: str | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        reduction: str = "mean",
        normalize_by: str = "items",
        shift: bool = False,
        return_terms: bool = False,
        group: dist.ProcessGroup | None = None,
        softcap: float | None = None,
        logit_scale: float = 1.0,
        chunk_size: int | None = None,
        drop_ignored: bool = True,
    ) -> None:
        objective = Objective(as_vocabulary(vocabulary), criterion, label_smoothing, z_loss)
        mode = mode or mode_of(objective.criterion)
        targets = TargetOptions(ignore_index, reduction, mode, normalize_by, shift)
        super().__init__(objective, weight, targets, Transform(logit_scale, softcap), return_terms, group)
        if chunk_size is not None and (not isinstance(chunk_size, int) or chunk_size < 1):
            raise ValueError(f"chunk_size={chunk_size!r}: expected 1 or more tokens, or None")
        own = self.objective.criterion
        if isinstance(own, nn.Module) and any(p.requires_grad for p in own.parameters()):
            raise ValueError(
                f"{type(own).__name__} has trainable parameters, which get no gradient here: expected "
                "a criterion without them, or NTLCrossEntropyLoss"
            )
        self._chunk_size = chunk_size
        self._drop_ignored = drop_ignored

    def forward(
        self,
        hidden_states: Tensor,
        lm_head_weight: Tensor,
        labels: Tensor,
        bias: Tensor | None = None,
        loss_weights: Tensor | None = None,
        num_items_in_batch: Tensor | float | None = None,
        sequence_ids: Tensor | None = None,
        number_weights: Tensor | None = None,
        number_samples: Tensor | None = None,
    ) -> Tensor | LossTerms:
        """Compute the loss.

        Args:
            hidden_states: `[..., hidden]`, inputs of the head.
            lm_head_weight: `[vocab, hidden]`.
            labels: `[...]`, token ids.
            bias: `[vocab]`. Default: none.
            loss_weights, num_items_in_batch, sequence_ids, number_weights, number_samples: see
                `NTLCrossEntropyLoss.forward`.

        Returns, Raises: see `NTLCrossEntropyLoss.forward`.
        """
        if not torch.compiler.is_compiling() and values_are_hidden():
            raise RuntimeError(
                "NTLLinearCrossEntropyLoss computes gradients in its forward pass, which torch.func cannot "
                "transform: use NTLCrossEntropyLoss on the logits"
            )
        batch = BatchInfo(loss_weights, number_weights, sequence_ids, num_items_in_batch, number_samples)
        terms = self._compute(hidden_states, lm_head_weight, labels, bias, batch)
        return terms.detached() if self.return_terms else terms.loss

    @_disable_dynamo  # a single graph break: it cannot be traced
    def _compute(
        self,
        hidden_states: Tensor,
        lm_head_weight: Tensor,
        labels: Tensor,
        bias: Tensor | None,
        batch: BatchInfo,
    ) -> LossTerms:
        objective, tables = self.objective, self.objective.tables
        vocab_size = tables.vocabulary.vocab_size
        hidden, head = local_head(hidden_states, lm_head_weight, bias, vocab_size, self.group)
        if head.shard is not None:
            check_same_labels(labels, head.shard.group)
        targets = self._prepare_targets(labels, hidden, batch)
        hidden = hidden.reshape(-1, hidden.shape[-1])
        kept = targets.counted.nonzero().squeeze(-1) if self._drop_ignored else None
        if kept is not None and len(kept) < len(hidden):  # else skip the copy
            hidden, targets = hidden.index_select(0, kept), targets.select(kept)
        rows = self._chunk_size or rows_for(len(hidden), len(head.weight), hidden.device)
        query = Query(targets.labels, tables.token_ids, self.transform, objective.label_smoothing > 0)
        inputs = hidden, head.weight, head.bias, head, query, rows
        with without_autocast(hidden.device):
            if self.options.reduction != "none" and not objective.needs.across_positions:
                if torch.is_grad_enabled() and (targets.ce_weights + targets.number_weights).requires_grad:
                    raise ValueError(
                        "loss_weights or number_weights require a gradient, which they do not get here: "
                        "expected detached ones, reduction='none', or NTLCrossEntropyLoss"
                    )
                further = targets, objective, self.weight, torch.is_grad_enabled()
                return LossTerms(*SumOfBlocks.apply(*inputs, *further))  # type: ignore[no-untyped-call]
            readout = Readout(*SummarizeHidden.apply(*inputs))  # type: ignore[no-untyped-call]
        terms: LossTerms = objective(readout, targets, self.weight)
        if kept is None or self.options.reduction != "none":
            return terms
        nothing = terms.loss.new_zeros(labels.numel())  # ignored positions get 0
        return LossTerms(*(nothing.index_copy(0, kept, t.flatten()).reshape(labels.shape) for t in terms))
