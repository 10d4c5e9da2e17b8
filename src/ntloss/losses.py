"""The loss: cross-entropy and a number term together, at the cost of cross-entropy or less.

Each call has the same stages: targets from the labels, a readout of the logits, the loss of each position,
the reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._compile import _disable_dynamo  # unlike torch.compiler.disable, imports no compiler yet

from ntloss.criteria import Criterion, HLGauss
from ntloss.criteria.hl_gauss import fields_of
from ntloss.criteria.signature import (
    check_compares_distributions,
    check_unit,
    name_of,
    replaces_cross_entropy,
)
from ntloss.criteria.soft import SoftTargets
from ntloss.engine.hosted import readout_of_candidates, weighted_tokens
from ntloss.engine.readout import (
    Readout,
    Transform,
    Wanted,
    values_are_hidden,
    without_autocast,
)
from ntloss.engine.shards import Shard, check_same_labels, local_columns
from ntloss.engine.soft import soft_difference
from ntloss.engine.sources import (
    Source,
    WithGradients,
    differentiate,
    local_source,
    read,
    read_numbers,
    rows_for,
)
from ntloss.engine.targets import (
    DIVISORS,
    MODES,
    REDUCTIONS,
    LabelOptions,
    Targets,
    check_choice,
    check_logits,
    check_weight,
    prepare_targets,
    shift_left,
)
from ntloss.engine.terms import LossTerms, NumberTerm
from ntloss.numbers.fields import sigma_of_labels
from ntloss.numbers.vocabulary import NumberVocabulary, as_vocabulary

_FIXED = ("vocabulary", "criterion")
_CHOICES = {"mode": MODES, "reduction": REDUCTIONS, "normalize_by": DIVISORS}


class NTLCrossEntropyLoss(nn.Module):
    r"""Cross-entropy plus $\lambda$ times a number token loss.

    Call it on logits, or call `from_hidden` with the hidden states and the head's weight, which never holds
    the logits of all tokens. On logits, both terms together take less time on the CPU than
    `torch.nn.functional.cross_entropy` alone, because they share the few passes of this loss over the logits
    (docs/benchmarks.md); GPUs use Triton kernels (docs/fused_kernels.md). Beyond the logits, it needs one
    buffer of their size for their gradient.

    The arguments are attributes. `vocabulary` and `criterion` cannot be changed afterwards, because tables
    are computed from them. All other attributes may be assigned at any time, and are checked as in the
    constructor. A tensor as `weight` moves with the loss, and keeps its dtype.
    Assigning `mode` leaves `weight` as it is.

    Args:
        vocabulary: the number tokens, or a tokenizer, which is passed to `NumberVocabulary.from_tokenizer`.
        criterion: how wrong a number is: a function whose parameters are among `ntloss.criteria.READABLE`, an
            `HLGauss`, a name of `ntloss.criteria.CRITERIA`, a mapping of `name` and options, or
            `"package.module:function"`. None: cross-entropy alone, as a baseline that costs no number
            term. Default: "ntl_was".
        weight: $\lambda$ of the number term. Default: 0.3, and 1 with `mode="replace"`. Under
            `torch.compile`, where a changing float recompiles, pass a scalar tensor and fill it in place; it
            gets no gradient.
        mode: "add" adds the number term to cross-entropy. "replace" uses it instead of cross-entropy at
            number labels. Default: as the source of the criterion does: "replace" for `HLGauss`,
            `gaussian_smoothing` and `raft`, "add" for all others.
        ignore_index: label of positions to ignore. Default: -100.
        label_smoothing: label smoothing of cross-entropy, from 0 (default) to 1.
        reduction: "mean" (default) divides by the total weight of the positions, see `normalize_by`; "sum";
            "none".
        normalize_by: what "mean" divides the number term by. "items" (default): the total weight of all
            positions that are not ignored, as cross-entropy, so that the loss of a number token is
            cross-entropy + $\lambda$ times the criterion. "numbers": the total weight of the number terms,
            the paper's mean; $\lambda$ then acts as $\lambda$ / share of number tokens. Without effect on
            `mode="replace"`, which divides by the items.
        shift: compare each position with the next position's label, for a causal model's unshifted labels.
            Default: False, each position has its own label.
        return_terms: return a `LossTerms`. Default: the loss alone.
        return_lse: return a `LossTerms` with `lse`, the log-sum-exp of each position's logits, for example to
            add a z-loss. With `from_hidden`, this takes a fourth matrix product. Default: False.
        group: process group over which plain logits, or the rows of a plain head, are sharded along the
            vocabulary, in the order of its ranks. A `DTensor` that is sharded along it needs none.

    Raises:
        TypeError: the criterion is none, or reads what is not in `READABLE`.
        ValueError: an option is out of range, or the criterion does not suit the vocabulary: NTL-WAS in units
            of hundreds would outweigh cross-entropy, and `HLGauss` on words finds no digits.

    Source: "Regress, Don't Guess", ICML 2025; `from_hidden`: gradients in the forward pass as in
    Liger-Kernel, 2024.

    Example:
        >>> from ntloss import NTLCrossEntropyLoss, NumberVocabulary
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> loss_fn = NTLCrossEntropyLoss(digits, weight=0.5, return_terms=True)
        >>> logits = torch.full((1, 12), -1e4)
        >>> logits[0, 3] = 0.0  # certain of 3
        >>> terms = loss_fn(logits, torch.tensor([4]))
        >>> terms.ce.item(), terms.ntl.item(), terms.loss.item()
        (10000.0, 1.0, 10000.5)
    """

    weight: float | Tensor

    def __init__(
        self,
        vocabulary: NumberVocabulary | Any,
        criterion: Criterion | str | Mapping[str, Any] | None = "ntl_was",
        weight: float | Tensor | None = None,
        *,
        mode: str | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        normalize_by: str = "items",
        shift: bool = False,
        return_terms: bool = False,
        return_lse: bool = False,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.term = NumberTerm(as_vocabulary(vocabulary), criterion)
        replaces = False
        if self.criterion is not None:
            check_unit(self.criterion, self.vocabulary)
            replaces = replaces_cross_entropy(self.criterion)
        self.mode = mode or ("replace" if replaces else "add")
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing
        self.reduction = reduction
        self.normalize_by = normalize_by
        self.shift = shift
        self.return_terms = return_terms
        self.return_lse = return_lse
        self.group = group
        weight = (0.3 if self.mode == "add" else 1.0) if weight is None else weight
        self.weight = weight

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _CHOICES:
            check_choice(name, value, _CHOICES[name])
        elif name == "label_smoothing" and not 0 <= value <= 1:
            raise ValueError(f"label_smoothing={value!r}: expected 0 to 1")
        elif name == "weight":
            self._set_weight(value)
            return
        elif name in _FIXED:
            raise AttributeError(
                f"{name} cannot be changed, because tables are computed from it when a loss is made. Make a "
                "new loss: NTLCrossEntropyLoss(vocabulary, criterion, ...)"
            )
        super().__setattr__(name, value)

    def _set_weight(self, weight: Any) -> None:
        """Keep a number as it is, and a tensor as a buffer, which moves with the loss."""
        if not isinstance(weight, (Tensor, int, float)) and hasattr(weight, "__float__"):  # of NumPy
            weight = float(weight)
        check_weight(weight)
        self.__dict__.pop("weight", None)
        self._buffers.pop("weight", None)
        if isinstance(weight, Tensor):
            self.register_buffer("weight", weight, persistent=False)
        else:
            self.__dict__["weight"] = weight

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> NTLCrossEntropyLoss:
        weight = self._buffers.get("weight")
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if weight is not None:  # its dtype stays, and the tensor itself unless the device changes
            here = weight.device if weight.device.type != "meta" else "cpu"  # meta tensors cannot be moved
            self._buffers["weight"] = weight.to(fn(torch.empty(0, device=here)).device)
        return self

    @property
    def vocabulary(self) -> NumberVocabulary:
        """The number tokens."""
        return self.term.tables.vocabulary

    @property
    def criterion(self) -> Criterion | None:
        """How wrong a number is; None for cross-entropy alone."""
        return self.term.criterion

    @property
    def finds_numbers(self) -> bool:
        """Whether the criterion depends on which tokens form a number, and so on where sequences end."""
        return self.term.finds_numbers

    @property
    def divides_by_numbers(self) -> bool:
        """Whether "mean" divides the number term by the total weight of number terms, not by the items."""
        return self.mode == "add" and self.normalize_by == "numbers"

    def find_numbers(self, labels: Tensor, sequence_ids: Tensor | None = None) -> Tensor:
        """Find the numbers of labels, for a criterion on whole numbers: `loss(..., numbers=...)`.

        This happens on the CPU, so call it where labels are made: in a collator, whose work the processes of
        a data loader share, or before a compiled function.

        Args:
            labels: `[batch, seq]`, token ids; on an accelerator, they are copied to the CPU first.
            sequence_ids: see `forward`.

        Returns:
            `[batch, seq, columns]`, int64, on the CPU, which `ntloss.numbers.LabelNumbers.unpack` reads. With
            `shift=True`, the numbers are those of the shifted labels.

        Example:
            >>> from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary
            >>> from ntloss.numbers import LabelNumbers
            >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
            >>> loss_fn = NTLCrossEntropyLoss(digits, HLGauss(sigma=2.0))
            >>> numbers = loss_fn.find_numbers(torch.tensor([[3, 9, 11, 7]]))
            >>> LabelNumbers.unpack(numbers).magnitude
            tensor([[39., 39.,  0.,  7.]], dtype=torch.float64)
            >>> loss = torch.compile(loss_fn, fullgraph=True)  # doctest: +SKIP
            >>> loss(logits, labels, numbers=numbers)  # doctest: +SKIP
        """
        return self.term.find_numbers(labels, sequence_ids, self.ignore_index, self.shift)

    def find_number_sigma(self, labels: Tensor, sequence_ids: Tensor | None = None) -> Tensor | None:
        """Find the standard deviation of each label's number by its field, for `HLGauss.for_fields`.

        As `find_numbers`, it works on the CPU, and belongs where labels are made.

        Args:
            labels: `[..., seq]`, token ids.
            sequence_ids: see `forward`.

        Returns:
            `[..., seq]`, float32, on the CPU: what to pass as `number_sigma` beside these labels; 0 for
            numbers of no field. None if the criterion has no fields.

        Example:
            >>> from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary
            >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
            >>> criterion = HLGauss.for_fields({"length": [10, 50], "width": [1, 3]}, by="order")
            >>> labels = torch.tensor([[4, 2, 11, 3]])  # 42, then text, then 3
            >>> NTLCrossEntropyLoss(digits, criterion).find_number_sigma(labels)
            tensor([[11.0000, 11.0000,  0.0000,  0.5500]])
        """
        if (fields := fields_of(self.criterion)) is None:
            return None
        return sigma_of_labels(labels, self.vocabulary, *fields, sequence_ids, self.ignore_index)

    def anneal(self, progress: float) -> None:
        """Set the criterion for a share of training: narrow an `HLGauss` whose width falls.

        Other criteria do not change. Call it before each step; trainers do.

        Args:
            progress: steps done / all steps, from 0 to 1.
        """
        if isinstance(self.criterion, HLGauss) and self.criterion.schedule is not None:
            self.criterion.anneal(progress)

    def forward(
        self,
        logits: Tensor,
        labels: Tensor,
        loss_weights: Tensor | None = None,
        num_items_in_batch: Tensor | float | None = None,
        sequence_ids: Tensor | None = None,
        number_weights: Tensor | None = None,
        numbers: Tensor | None = None,
        soft_labels: SoftTargets | None = None,
        number_sigma: Tensor | None = None,
    ) -> Tensor | LossTerms:
        """Compute the loss from logits.

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
            numbers: what `find_numbers(labels)` found, for criteria on whole numbers. Default: it is called
                here, which copies labels on an accelerator to the CPU and waits for them. `torch.compile`
                with `fullgraph=True`, CUDA graphs and `torch.func.vmap` need it.
            soft_labels: `[..., K]` tokens and weights, which add up to 1: the label as a distribution over
                number tokens, such as the shares of raters (`soft_labels_of`), for criteria that read
                `target_probs`. Where all weights are 0, and at labels of text, the label stays that of
                `labels`. Cross-entropy becomes that of the distribution. Default: none is soft.
            number_sigma: `[...]`, for `HLGauss`: standard deviation of the target of each number, at its
                first token; 0 or NaN: the criterion's own. Default: the criterion's own for all. With
                `HLGauss.for_fields`, the default is that of each number's field, `find_number_sigma(labels)`;
                what is given takes its place, and 0 or NaN is then the label alone, as in cross-entropy.

        Returns:
            A scalar, or `[...]` for "none", in float32 or float64. With `return_terms` or `return_lse`, a
            `LossTerms`. Without number labels, the number term is a zero that supports `backward()`.

        Raises:
            TypeError: the logits are not floating-point, or the labels are not token ids.
            ValueError: shapes, devices, labels or weights do not fit, or a count is given that the loss does
                not divide by.
        """
        vocab_size, shard = self.term.tables.vocabulary.vocab_size, None
        if self.group is not None or type(logits) is not Tensor:
            logits, shard = local_columns(logits, -1, vocab_size, self.group)
        check_logits(logits, vocab_size if shard is None else shard.size)
        if shard is not None:
            check_same_labels(labels, shard.group)
        options = LabelOptions(
            loss_weights, num_items_in_batch, sequence_ids, number_weights, numbers, soft_labels, number_sigma
        )
        targets = self._targets(labels, logits, options)
        source = Source(logits.reshape(-1, logits.shape[-1]))
        readout = read(source, targets.labels, Wanted(targets.token_ids, self.label_smoothing > 0), shard)
        return self._result(self._terms(readout, targets), labels, readout, targets)

    @_disable_dynamo  # a single graph break: it cannot be traced
    def from_hidden(
        self,
        hidden_states: Tensor,
        lm_head_weight: Tensor,
        labels: Tensor,
        bias: Tensor | None = None,
        *,
        softcap: float | None = None,
        logit_scale: float = 1.0,
        chunk_size: int | None = None,
        loss_weights: Tensor | None = None,
        num_items_in_batch: Tensor | float | None = None,
        sequence_ids: Tensor | None = None,
        number_weights: Tensor | None = None,
        numbers: Tensor | None = None,
        soft_labels: SoftTargets | None = None,
        number_sigma: Tensor | None = None,
    ) -> Tensor | LossTerms:
        """Compute the loss from hidden states and the head's weight, without the logits of all tokens.

        The head is applied to chunks of tokens. For "mean" and "sum" this computes the gradients, too, with
        the three matrix products that whole logits need; a second `backward` through the same graph is then
        an error. The backward pass recomputes the logits, which is a fourth product, for "none", for
        `return_lse`, for `soft_labels`, for a criterion on whole numbers that also reads the probability on
        text, and where weights or parameters of the criterion need a gradient. Under `torch.compile` it
        causes one graph break. It counts the positions that are not ignored, which synchronizes with the
        device.

        Args:
            hidden_states: `[..., hidden]`, inputs of the head.
            lm_head_weight: `[vocab, hidden]`.
            labels: `[...]`, token ids.
            bias: `[vocab]`. Default: none.
            softcap: replace logits by `softcap * tanh(logits / softcap)`, as in Gemma's head. Default: None.
            logit_scale: factor of the logits, applied before the soft cap, as in Cohere's head. Default: 1.
            chunk_size: number of tokens in a chunk. Default: on the CPU 512, reduced so that a chunk holds at
                most an eighth of the logits or 2^24 logits, whichever is larger; on accelerators a sixth of
                the tokens, less if these have more than 2^26 logits, but at least a twelfth and 256 tokens.
            loss_weights, num_items_in_batch, sequence_ids, number_weights, numbers, soft_labels,
                number_sigma: see `forward`.

        Returns, Raises: see `forward`.

        Example:
            >>> from ntloss import NTLCrossEntropyLoss, NumberVocabulary
            >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
            >>> head = torch.nn.Linear(8, 12, bias=False)
            >>> loss_fn = NTLCrossEntropyLoss(digits)
            >>> loss = loss_fn.from_hidden(torch.randn(2, 5, 8), head.weight, torch.randint(12, (2, 5)))
            >>> loss.backward()
        """
        if not torch.compiler.is_compiling() and values_are_hidden():
            raise RuntimeError(
                "from_hidden computes gradients in its forward pass, which torch.func cannot transform: call "
                "the loss on the logits"
            )
        if chunk_size is not None and (not isinstance(chunk_size, int) or chunk_size < 1):
            raise ValueError(f"chunk_size={chunk_size!r}: expected 1 or more tokens, or None")
        transform = Transform(logit_scale, softcap).check()
        vocab_size = self.term.tables.vocabulary.vocab_size
        source, shard = local_source(hidden_states, lm_head_weight, bias, vocab_size, self.group)
        if shard is not None:
            check_same_labels(labels, shard.group)
        options = LabelOptions(
            loss_weights, num_items_in_batch, sequence_ids, number_weights, numbers, soft_labels, number_sigma
        )
        targets = self._targets(labels, source.inputs, options)
        hidden = source.inputs.reshape(-1, source.inputs.shape[-1])
        kept = targets.counted.nonzero().squeeze(-1)
        if len(kept) < len(hidden):  # leave ignored positions out of the matrix products
            hidden, targets = hidden.index_select(0, kept), targets.select(kept)
        rows = chunk_size or rows_for(len(hidden), len(lm_head_weight), hidden.device)
        source = source._replace(inputs=hidden, rows=rows)
        wanted = Wanted(targets.token_ids, self.label_smoothing > 0, transform)
        needed = [torch.is_grad_enabled() and each is not None and each.requires_grad for each in source[:3]]
        with without_autocast(hidden.device):
            if any(needed) and self._gradients_are_known(targets):
                terms = self._sum_in_one_pass(source, targets, wanted, shard, needed)
                return self._result(terms, labels)
            readout = read(source, targets.labels, wanted, shard)
        return self._result(self._terms(readout, targets), labels, readout, targets, kept)

    def _gradients_are_known(self, targets: Targets) -> bool:
        """Whether a block of hidden states has its gradients before its logits are overwritten.

        So it is for a sum over positions of which nothing but hidden states and head gets a gradient, and
        whose terms depend on one position each.
        """
        is_sum = targets.is_sum and not self.return_lse and targets.soft is None
        if not is_sum or ("numbers" in self.term.reads and self.term.gradient_reads_mass):
            return False
        others = [targets.ce_weights, targets.number_weights, *self.term.parameters()]
        return not any(each.requires_grad for each in others)

    @torch.no_grad()
    def _sum_in_one_pass(
        self, source: Source, targets: Targets, wanted: Wanted, shard: Shard | None, needed: Sequence[bool]
    ) -> LossTerms:
        """Sum the terms of all positions, and compute the gradients of each block while its logits are there.

        Those of cross-entropy are its weights. The number term reads few logits, which one small product
        makes at all positions together, unless its gradient depends on the probability on text.
        """
        smoothing, weight = self.label_smoothing, self.weight
        of_lse, of_numbers = targets.ce_weights, None
        of_label = of_lse * (smoothing - 1)
        of_mean = [-smoothing * of_lse] if smoothing else []
        if self.term.criterion is None:
            of_numbers = of_lse.new_zeros(len(of_lse), 0)
        elif not self.term.gradient_reads_mass:
            few = read_numbers(source, wanted, shard, targets.number_rows)
            by_lse, of_numbers = self.term.gradients(few, targets)
            of_lse, of_numbers = of_lse + weight * by_lse, weight * of_numbers

        def grads_of(block: slice, readout: Readout) -> list[Tensor]:
            if of_numbers is not None:
                by_lse, by_numbers = of_lse[block], of_numbers[block]
            else:
                by_lse, by_numbers = self.term.gradients(readout, targets.select(block))
                by_lse, by_numbers = of_lse[block] + weight * by_lse, weight * by_numbers
            return [by_lse, of_label[block], by_numbers, *(each[block] for each in of_mean)]

        gradients, readout = differentiate(source, targets.labels, wanted, shard, needed, grads_of)
        terms = self._terms(readout, targets)
        with torch.enable_grad():
            loss = WithGradients.apply(terms.loss, gradients, *source[:3])  # type: ignore[no-untyped-call]
        return terms._replace(loss=loss)

    def targets(
        self,
        labels: Tensor,
        loss_weights: Tensor | None = None,
        num_items_in_batch: Tensor | float | None = None,
        sequence_ids: Tensor | None = None,
        number_weights: Tensor | None = None,
        numbers: Tensor | None = None,
        soft_labels: SoftTargets | None = None,
        number_sigma: Tensor | None = None,
    ) -> SoftTargets:
        r"""Write the loss as weighted tokens, for a training API that takes them.

        The sum of $-w_k \log p_k$ over tokens and positions is the loss, where the criterion is a
        cross-entropy with a fixed target: `HLGauss`, `gaussian_smoothing`, or one of your own that reads
        `vocab_log_probs`. `dist2` sees the number tokens alone, so the sum has more: $\lambda$ times
        the entropy of its target, which is constant, and $-\lambda \log m$ with m the probability of all
        number tokens.

        Where a value has several tokens (`4`, `▁4`; `1`, `01`), all of its weight is on the token that is
        written as the label is. The loss adds up the probabilities of these tokens, so the sum is the loss
        only as far as the model writes no others.

        Args:
            labels: `[...]`, token ids. With `shift=True`, position i has the target of label i + 1.
            loss_weights, num_items_in_batch, sequence_ids, number_weights, numbers, soft_labels,
                number_sigma: see `forward`.

        Returns:
            `[..., K]` token ids, and weights in float64, in descending order; K is the largest number of
            tokens with weight at a position. With `reduction="mean"` they are divided by the count already.
            With `label_smoothing`, K is the size of the vocabulary.

        Raises:
            ValueError: the criterion depends on the model's probabilities; see `from_log_probs`. And see
                `forward`.

        Example:
            >>> from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary
            >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
            >>> loss_fn = NTLCrossEntropyLoss(digits, HLGauss(sigma=0.5), reduction="sum")
            >>> labels = torch.tensor([[11, 4]])
            >>> targets = loss_fn.targets(labels)
            >>> targets.token_ids[..., :3], targets.weights[..., :3].round(decimals=2)
            (tensor([[[11,  0,  1],
                     [ 4,  3,  5]]]), tensor([[[1.0000, 0.0000, 0.0000],
                     [0.6800, 0.1600, 0.1600]]], dtype=torch.float64))
            >>> log_probs = torch.randn(1, 2, 12).log_softmax(-1)
            >>> cross_entropy = -(targets.weights * log_probs.gather(-1, targets.token_ids)).sum()
            >>> abs(cross_entropy - loss_fn(log_probs, labels)) < 1e-5
            tensor(True)
        """
        inputs = torch.empty(*labels.shape, 0, dtype=self.term.tables.values.dtype, device=labels.device)
        options = LabelOptions(
            loss_weights, num_items_in_batch, sequence_ids, number_weights, numbers, soft_labels, number_sigma
        )
        targets = self._targets(labels, inputs, options)
        weight = self._weight_in(targets.number_weights.dtype)
        flat = weighted_tokens(targets, self.term, weight, self.label_smoothing)
        return SoftTargets(*[each.reshape(*labels.shape, each.shape[-1]) for each in flat])

    def candidates(self, labels: Tensor) -> Tensor:
        """List the tokens whose log-probabilities the loss reads, for `from_log_probs`.

        Args:
            labels: `[...]`, as passed to `forward`.

        Returns:
            `[..., K]` with K the number of number tokens: these, by ascending id, where the label is one of
            them; elsewhere the label, K times; 0 where it is ignored.

        Example:
            >>> from ntloss import NTLCrossEntropyLoss, NumberVocabulary
            >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
            >>> NTLCrossEntropyLoss(digits).candidates(torch.tensor([4, 11, -100]))[:, :3]
            tensor([[ 0,  1,  2],
                    [11, 11, 11],
                    [ 0,  0,  0]])
        """
        if self.shift:
            labels = shift_left(labels, self.ignore_index)
        labels = labels.unsqueeze(-1)
        ids = torch.tensor(self.vocabulary.token_ids, device=labels.device)
        found = torch.where(torch.isin(labels, ids), ids, labels)
        return found.masked_fill(labels == self.ignore_index, 0)

    def from_log_probs(
        self,
        log_probs: Tensor,
        labels: Tensor,
        loss_weights: Tensor | None = None,
        num_items_in_batch: Tensor | float | None = None,
        sequence_ids: Tensor | None = None,
        number_weights: Tensor | None = None,
        numbers: Tensor | None = None,
        soft_labels: SoftTargets | None = None,
        number_sigma: Tensor | None = None,
    ) -> Tensor | LossTerms:
        """Compute the loss from the log-probabilities of its `candidates`, such as a training API returns.

        Their derivatives are those of the loss, so `backward()` gives what an API's custom losses need.

        Args:
            log_probs: `[..., K]`, log-probabilities over the whole vocabulary of `candidates(labels)`. Only
                the first is read where the label is no number token.
            labels: `[...]`, as passed to `candidates`.
            loss_weights, num_items_in_batch, sequence_ids, number_weights, numbers, soft_labels,
                number_sigma: see `forward`.

        Returns, Raises: see `forward`; also a ValueError if the criterion reads `logits`, or with
            `label_smoothing`, which need more than the log-probabilities of these tokens.

        Example:
            >>> from ntloss import NTLCrossEntropyLoss, NumberVocabulary
            >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
            >>> loss_fn, labels = NTLCrossEntropyLoss(digits), torch.tensor([[4, 11]])
            >>> log_probs = torch.randn(1, 2, 12).log_softmax(-1)
            >>> of_candidates = log_probs.gather(-1, loss_fn.candidates(labels))
            >>> abs(loss_fn.from_log_probs(of_candidates, labels) - loss_fn(log_probs, labels)) < 1e-5
            tensor(True)
        """
        if "logits" in self.term.reads or self.label_smoothing:
            raise ValueError(
                f"{self.extra_repr()}, label_smoothing={self.label_smoothing}: del_loss and others that read "
                "logits, and label_smoothing, need more than log-probabilities of number tokens"
            )
        count = len(self.vocabulary.token_ids)
        if not isinstance(log_probs, Tensor) or log_probs.shape != (*labels.shape, count):
            given = list(log_probs.shape) if isinstance(log_probs, Tensor) else type(log_probs).__name__
            raise ValueError(
                f"log_probs: expected those of candidates(labels), {[*labels.shape, count]}, given {given}"
            )
        options = LabelOptions(
            loss_weights, num_items_in_batch, sequence_ids, number_weights, numbers, soft_labels, number_sigma
        )
        targets = self._targets(labels, log_probs, options)
        readout = readout_of_candidates(log_probs, targets, self.term)
        return self._result(self._terms(readout, targets), labels, readout, targets)

    def normalizers(
        self,
        labels: Tensor,
        loss_weights: Tensor | None = None,
        sequence_ids: Tensor | None = None,
        number_weights: Tensor | None = None,
        numbers: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        r"""Compute the divisors of `reduction="mean"`, to be summed over micro-batches and ranks.

        The first is the `num_items_in_batch` of `forward`. A mean over numbers that does not depend on how a
        batch is split is `normalize_by="items"` with the weight $\lambda \cdot items / numbers$.

        Args:
            labels, loss_weights, sequence_ids, number_weights, numbers: as passed to `forward`.

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
        # Sums in float64, which is exact for any count, whatever the dtype of the logits.
        inputs = torch.empty(*labels.shape, 0, dtype=self.term.tables.values.dtype, device=labels.device)
        options = LabelOptions(
            loss_weights=loss_weights,
            sequence_ids=sequence_ids,
            number_weights=number_weights,
            numbers=numbers,
        )
        targets = self._targets(labels, inputs, options, reduction="sum")
        return targets.item_weights.sum(), targets.number_weights.sum()

    def extra_repr(self) -> str:
        """The criterion and the options that say what is minimized, for `print(model)`."""
        name = None if self.criterion is None else name_of(self.criterion)
        return f"{name}, weight={self.weight}, mode={self.mode!r}"

    def _targets(
        self, labels: Tensor, inputs: Tensor, options: LabelOptions, reduction: str | None = None
    ) -> Targets:
        """Prepare targets for `inputs`, logits or hidden states, from the arguments of `forward`."""
        term, criterion = self.term, self.term.criterion
        if options.soft_labels is not None and criterion is not None:
            check_compares_distributions(criterion)
        if options.number_sigma is None and isinstance(criterion, HLGauss) and criterion.fields:
            sigma = self.find_number_sigma(labels, options.sequence_ids)
            options = options._replace(number_sigma=None if sigma is None else sigma.to(labels.device))
        if options.number_sigma is not None and criterion is not None and "number_sigma" not in term.reads:
            raise ValueError(
                f"number_sigma is given, but the criterion has no standard deviation ({self.extra_repr()}): "
                "expected HLGauss, or one that reads number_sigma"
            )
        if inputs.device != term.tables.values.device:
            term.move_to(inputs.device)
        return prepare_targets(
            labels,
            inputs,
            options,
            term.tables,
            term.reads,
            term.decimals,
            ignore_index=self.ignore_index,
            reduction=reduction or self.reduction,
            mode="add" if criterion is None else self.mode,  # without a criterion, nothing replaces anything
            divides_by_numbers=self.divides_by_numbers,
            shift=self.shift,
        )

    def _terms(self, readout: Readout, targets: Targets) -> LossTerms:
        """Compute the weighted terms of the positions: their sums, or with "none" one by one, flat."""
        ce = readout.shifted_lse + (readout.row_max - readout.label_logit)
        if targets.soft is not None:
            ce = ce + soft_difference(readout.number_logits, targets.soft)
        if readout.mean_logit is not None:
            smooth = readout.shifted_lse + (readout.row_max - readout.mean_logit)
            ce = (1 - self.label_smoothing) * ce + self.label_smoothing * smooth
        # Positions without weight contribute exactly zero, even if their cross-entropy is infinite.
        total = ce.masked_fill(targets.ce_weights == 0, 0) * targets.ce_weights
        if targets.is_sum:
            total = total.sum()
        ntl = self.term(readout, targets)
        # 0 times infinity is NaN, but a weight of 0 switches the term off.
        if not isinstance(self.weight, Tensor):
            loss = torch.add(total, ntl, alpha=self.weight) if self.weight else total + 0
            return LossTerms(loss, total, ntl)
        weighted = self._weight_in(ntl.dtype) * ntl
        return LossTerms(total + weighted.masked_fill(ntl.isinf() & weighted.isnan(), 0), total, ntl)

    def _weight_in(self, dtype: torch.dtype) -> Tensor | float:
        return self.weight.detach().to(dtype) if isinstance(self.weight, Tensor) else self.weight

    def _result(
        self,
        terms: LossTerms,
        labels: Tensor,
        readout: Readout | None = None,
        targets: Targets | None = None,
        kept: Tensor | None = None,
    ) -> Tensor | LossTerms:
        """Return what the caller asked for, in the labels' shape where there is one loss a position."""
        if self.return_lse and readout is not None and targets is not None:
            lse = (readout.row_max + readout.shifted_lse).masked_fill(~targets.counted, 0)
            terms = terms._replace(lse=_in_shape_of(labels, lse, kept))
        if self.reduction == "none":
            loss, ce, ntl = (_in_shape_of(labels, term, kept) for term in terms[:3])
            terms = terms._replace(loss=loss, ce=ce, ntl=ntl)
        if not (self.return_terms or self.return_lse):
            return terms.loss
        return terms._replace(ce=terms.ce.detach(), ntl=terms.ntl.detach())


def _in_shape_of(labels: Tensor, flat: Tensor, kept: Tensor | None) -> Tensor:
    """Give the values of all positions, or of those that were kept, the labels' shape; others are 0."""
    if kept is not None and len(kept) < labels.numel():
        flat = flat.new_zeros(labels.numel()).index_copy(0, kept, flat)
    return flat.reshape(labels.shape)
