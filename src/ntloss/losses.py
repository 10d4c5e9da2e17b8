"""The loss: cross-entropy and a number term together, at the cost of cross-entropy or less.

Each call has the same stages: targets from the labels, a readout of the logits, the loss of each position,
the reduction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._compile import _disable_dynamo  # unlike torch.compiler.disable, imports no compiler yet

from ntloss.criteria import Criterion, HLGauss
from ntloss.criteria.signature import check_unit, name_of
from ntloss.criteria.soft import SoftTargets
from ntloss.engine.hosted import LossArrays, loss_arrays, readout_of_candidates, weighted_tokens
from ntloss.engine.read import (
    Product,
    WithGradients,
    differentiate,
    local_product,
    read,
    read_numbers,
    read_product,
    rows_for,
)
from ntloss.engine.readout import Readout, Transform, Wanted
from ntloss.engine.shards import Shard, local_columns
from ntloss.engine.targets import (
    Mode,
    PreparedLabels,
    Reduction,
    Targets,
    check_choice,
    check_weight,
    make_targets,
)
from ntloss.engine.terms import LossTerms, NumberTerm, without_autocast
from ntloss.numbers.vocabulary import NumberVocabulary, as_vocabulary


class NTLCrossEntropyLoss(nn.Module):
    """Cross-entropy plus lambda times a number token loss.

    `loss_fn = NTLCrossEntropyLoss(tokenizer)`, then `loss_fn(logits, labels)`, or `from_hidden` with the
    hidden states and the head's weight, which never holds the logits of all tokens. What stands beside the
    labels (weights, soft labels, widths) goes into `prepare`. `terms` returns cross-entropy and the number
    term apart.

    On logits, both together take less time on the CPU than `torch.nn.functional.cross_entropy` alone, because
    they share the few passes of this loss over the logits; GPUs use Triton kernels (docs/fused_kernels.md).
    Beyond the logits, it needs one buffer of their size for their gradient.

    Args:
        vocabulary: the number tokens, or a tokenizer, which is passed to `NumberVocabulary.from_tokenizer`.
        criterion: how wrong a number is: a function whose parameters are among `ntloss.criteria.READABLE`, an
            `HLGauss`, a name of `ntloss.criteria.CRITERIA`, a mapping of `name` and options, or
            `"package.module:function"`. None: cross-entropy alone, as a baseline that costs no number
            term. Default: "ntl_was".
        weight: lambda of the number term. Default: 0.3, and 1 with `mode="replace"`. Under `torch.compile`,
            where a changing float recompiles, pass a scalar tensor and fill it in place; it gets no gradient,
            moves with the loss, and keeps its dtype.
        mode: "add" adds the number term to cross-entropy. "replace" uses it instead of cross-entropy at
            number labels. Default: as the source of the criterion does: "replace" for `HLGauss`,
            `gaussian_smoothing` and `raft`, "add" for all others.
        ignore_index: label of positions to ignore. Default: -100.
        label_smoothing: label smoothing of cross-entropy, from 0 (default) to 1.
        reduction: "mean" (default) divides both terms by the total weight of the positions, so that the loss
            of a number token is cross-entropy + lambda times the criterion; "sum"; "none".
        shift: compare each position with the next position's label, for a causal model's unshifted labels.
            Default: False, each position has its own label.
        group: process group over which plain logits, or the rows of a plain head, are sharded along the
            vocabulary, in the order of its ranks. A `DTensor` that is sharded along it needs none.

    The arguments are attributes. `weight`, `label_smoothing`, `reduction` and `group` may be assigned at any
    time, and are checked as here. Labels are prepared with the others, which cannot be assigned.

    Raises:
        TypeError: the criterion is none, or reads what is not in `READABLE`.
        ValueError: an option is out of range, or the criterion does not suit the vocabulary: NTL-WAS in units
            of hundreds would outweigh cross-entropy, and `HLGauss` on words finds no digits.

    Source: "Regress, Don't Guess", ICML 2025; `from_hidden`: gradients in the forward pass as in
    Liger-Kernel, 2024.

    Example:
        >>> from ntloss import NTLCrossEntropyLoss, NumberVocabulary
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> loss_fn = NTLCrossEntropyLoss(digits, weight=0.5)
        >>> logits = torch.full((1, 12), -1e4)
        >>> logits[0, 3] = 0.0  # certain of 3
        >>> loss_fn(logits, torch.tensor([4])).item()  # cross-entropy of 10,000, and half of |3 - 4|
        10000.5
    """

    def __init__(
        self,
        vocabulary: NumberVocabulary | Any,
        criterion: Criterion | str | Mapping[str, Any] | None = "ntl_was",
        weight: float | Tensor | None = None,
        *,
        mode: Mode | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: Reduction = "mean",
        shift: bool = False,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        vocabulary = as_vocabulary(vocabulary)
        self.term = NumberTerm(vocabulary, criterion, mode, ignore_index, shift)
        if self.term.criterion is not None:
            check_unit(self.term.criterion, vocabulary)
        self.label_smoothing = label_smoothing
        self.reduction = reduction
        self.group = group
        default = 0.3 if self.term.reader.mode == "add" else 1.0
        self.weight: float | Tensor = default if weight is None else weight

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(getattr(type(self), name, None), property):
            raise AttributeError(
                f"{name} cannot be changed, because labels are prepared with it: make a new loss"
            )
        if name == "weight":
            if not isinstance(value, (Tensor, int, float)) and hasattr(value, "__float__"):  # of NumPy
                value = float(value)
            check_weight(value)
            value = value.detach() if isinstance(value, Tensor) else value
        elif name == "reduction":
            check_choice(name, value, Reduction)
        elif name == "label_smoothing" and not 0 <= value <= 1:
            raise ValueError(f"label_smoothing={value!r}: expected 0 to 1")
        super().__setattr__(name, value)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> NTLCrossEntropyLoss:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        device = self.term.tables.values.device
        if isinstance(self.weight, Tensor) and device.type != "meta":  # which keeps no values
            self.weight = self.weight.to(device)  # in its own dtype
        return self

    @property
    def vocabulary(self) -> NumberVocabulary:
        """The number tokens."""
        return self.term.reader.vocabulary

    @property
    def criterion(self) -> Criterion | None:
        """How wrong a number is; None for cross-entropy alone."""
        return self.term.criterion

    @property
    def mode(self) -> Mode:
        """Whether the number term is added to cross-entropy, or replaces it at number labels."""
        return self.term.reader.mode

    @property
    def ignore_index(self) -> int:
        """The label of positions to ignore."""
        return self.term.reader.ignore_index

    @property
    def shift(self) -> bool:
        """Whether each position is compared with the next position's label."""
        return self.term.reader.shift

    @property
    def finds_numbers(self) -> bool:
        """Whether the criterion depends on which tokens form a number, and so on where sequences end."""
        return self.term.reader.finds_numbers

    def prepare(
        self,
        labels: Tensor,
        *,
        weights: Tensor | None = None,
        number_weights: Tensor | None = None,
        sigma: Tensor | None = None,
        soft: SoftTargets | None = None,
        sequence_ids: Tensor | None = None,
    ) -> PreparedLabels:
        """Put labels and what the loss reads beside them into one record, which takes the place of labels.

        This checks the labels, shifts them (`shift`), and for criteria on whole numbers finds the numbers
        that they form, on the CPU: call it where labels are made, in a collator, whose work the processes of
        a data loader share, or before a compiled function. For other criteria, it works on the labels'
        device, and synchronizes nothing.

        The record is for this loss: one that shifts labels or reads numbers differently refuses it.
        Cross-entropy alone takes it if it has the same `ignore_index` and `shift`.

        Args:
            labels: `[...]`, token ids.
            weights: `[...]`, weight of each position in both terms, 0 or more. A criterion on whole numbers
                takes those of a number's first token, also of `number_weights`. Default: 1.
            number_weights: `[...]`, factor of the number term alone, on top of `weights`: 0 for numbers that
                are names, such as multiple-choice answers, identifiers or dates. They do not change the count
                of positions. With `mode="replace"`, a number label of weight w, from 0 to 1, gets w times the
                number term and 1 - w times cross-entropy. Default: 1.
            sigma: `[...]`, standard deviation of each number's target for `HLGauss`, at its first token; 0 or
                NaN is the criterion's own, or that of the number's field. Default: so for all.
            soft: `[..., K]` tokens and weights, which add up to 1: the label as a distribution over number
                tokens, such as the shares of raters (`soft_labels_of`), for criteria that read
                `target_probs`. Cross-entropy becomes that of the distribution. Where all weights are 0, and
                at labels of text, the label stays. Default: none is soft.
            sequence_ids: `[...]`, integers, for criteria on whole numbers if a row packs several sequences:
                adjacent positions with equal ids belong to one sequence
                (`ntloss.numbers.sequence_ids_of` makes them from position ids). Default: each row is one.

        Returns:
            The record, whose tensors have a row for each label.

        Raises:
            TypeError: the labels are not token ids, or something beside them has another dtype.
            ValueError: shapes, devices or values do not fit, or it is unknown where sequences end.

        Example:
            >>> from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary
            >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
            >>> loss_fn, labels = NTLCrossEntropyLoss(digits, HLGauss(2.0)), torch.tensor([[3, 9, 11, 7]])
            >>> prepared = loss_fn.prepare(labels, number_weights=torch.tensor([[1.0, 1.0, 1.0, 0.0]]))
            >>> prepared.labels
            tensor([[ 3,  9, 11,  7]])
        """
        return self.term.reader.prepare(labels, weights, number_weights, sigma, soft, sequence_ids)

    def anneal(self, progress: float) -> None:
        """Set the criterion for a share of training: narrow an `HLGauss` whose width falls.

        Other criteria do not change. Call it before each step; trainers do.

        Args:
            progress: steps done / all steps, from 0 to 1.
        """
        criterion = self.term.criterion
        if isinstance(criterion, HLGauss) and criterion.schedule is not None:
            criterion.anneal(progress)

    def forward(
        self, logits: Tensor, labels: Tensor | PreparedLabels, *, count: Tensor | float | None = None
    ) -> Tensor:
        """Compute the loss from logits.

        Args:
            logits: `[..., vocab]`, any float dtype. Softmax and sums are computed in float32 or float64.
            labels: `[...]`, token ids, or what `prepare` made of them.
            count: divisor of "mean": the total weight of the positions that are not ignored, over all
                accumulated micro-batches and ranks. It makes the sum of their losses that of one large batch,
                however it is split. Default: the total weight of this call.

        Returns:
            A scalar, or `[...]` for "none", in float32 or float64. Without number labels, the number term is
            a zero that supports `backward()`.

        Raises:
            TypeError: the logits are not floating-point, or the labels are not token ids.
            ValueError: shapes, devices or labels do not fit, or a count is given that the loss does not
                divide by.
        """
        return self.terms(logits, labels, count=count).loss

    def from_hidden(
        self,
        hidden_states: Tensor,
        lm_head_weight: Tensor,
        labels: Tensor | PreparedLabels,
        bias: Tensor | None = None,
        *,
        softcap: float | None = None,
        logit_scale: float = 1.0,
        chunk_size: int | None = None,
        count: Tensor | float | None = None,
    ) -> Tensor:
        """Compute the loss from hidden states and the head's weight, without the logits of all tokens.

        The head is applied to chunks of tokens. For "mean" and "sum" this computes the gradients, too, with
        the three matrix products that whole logits need; a second `backward` through the same graph is then
        an error. The backward pass recomputes the logits, a fourth product, for "none", for soft labels, for
        a criterion whose gradient reads the probability on text (`raft`), and where weights or parameters of
        the criterion need a gradient. Under `torch.compile` it causes one graph break. It counts the
        positions that are not ignored, which synchronizes with the device.

        Args:
            hidden_states: `[..., hidden]`, inputs of the head.
            lm_head_weight: `[vocab, hidden]`.
            labels, count: see `forward`.
            bias: `[vocab]`. Default: none.
            softcap: replace logits by `softcap * tanh(logits / softcap)`, as in Gemma's head. Default: None.
            logit_scale: factor of the logits, applied before the soft cap, as in Cohere's head. Default: 1.
            chunk_size: number of tokens in a chunk. Default: on the CPU 512, reduced so that a chunk holds at
                most an eighth of the logits or 2^24 logits, whichever is larger; on accelerators a sixth of
                the tokens, less if these have more than 2^26 logits, but at least a twelfth and 256 tokens.

        Returns, Raises: see `forward`.

        Example:
            >>> from ntloss import NTLCrossEntropyLoss, NumberVocabulary
            >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
            >>> head = torch.nn.Linear(8, 12, bias=False)
            >>> loss_fn = NTLCrossEntropyLoss(digits)
            >>> loss = loss_fn.from_hidden(torch.randn(2, 5, 8), head.weight, torch.randint(12, (2, 5)))
            >>> loss.backward()
        """
        head = lm_head_weight, bias, softcap, logit_scale, chunk_size
        return self._terms_of_product(hidden_states, labels, count, *head).loss

    def terms(
        self,
        inputs: Tensor,
        labels: Tensor | PreparedLabels,
        lm_head_weight: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        softcap: float | None = None,
        logit_scale: float = 1.0,
        chunk_size: int | None = None,
        count: Tensor | float | None = None,
    ) -> LossTerms:
        """Compute the loss and its terms.

        Args:
            inputs: `[..., vocab]`, logits, or with a head `[..., hidden]`, its inputs.
            labels, count: see `forward`.
            lm_head_weight, bias, softcap, logit_scale, chunk_size: see `from_hidden`. Default: the inputs are
                logits.

        Returns:
            The loss, which supports `backward()`, and cross-entropy and the number term before its weight,
            both detached. All are scalars, or `[...]` for "none".

        Raises: see `forward`.
        """
        if lm_head_weight is not None:
            head = lm_head_weight, bias, softcap, logit_scale, chunk_size
            return self._terms_of_product(inputs, labels, count, *head)
        shard = None
        if self.group is not None or type(inputs) is not Tensor:
            inputs, shard = local_columns(inputs, -1, self.vocabulary.vocab_size, self.group)
        targets = make_targets(self.term, labels, inputs, self.reduction, count, shard, are_logits=True)
        wanted = Wanted(targets.token_ids, self.label_smoothing > 0)
        readout = read(inputs.reshape(-1, inputs.shape[-1]), targets.labels, wanted, shard)
        return self._combine(readout, targets)

    @_disable_dynamo  # a single graph break: it cannot be traced
    def _terms_of_product(
        self,
        hidden: Tensor,
        labels: Tensor | PreparedLabels,
        count: Tensor | float | None,
        weight: Tensor,
        bias: Tensor | None,
        softcap: float | None,
        logit_scale: float,
        chunk_size: int | None,
    ) -> LossTerms:
        if torch._C._are_functorch_transforms_active():
            raise RuntimeError(
                "from_hidden computes gradients in its forward pass, which torch.func cannot transform: call "
                "the loss on the logits"
            )
        if chunk_size is not None and (not isinstance(chunk_size, int) or chunk_size < 1):
            raise ValueError(f"chunk_size={chunk_size!r}: expected 1 or more tokens, or None")
        for name, factor in {"logit_scale": logit_scale, "softcap": softcap}.items():
            if factor is not None and not 0 < factor < math.inf:
                raise ValueError(f"{name}={factor!r}: expected a number above 0")
        product, shard = local_product(
            hidden, weight, bias, self.term.reader.vocabulary.vocab_size, self.group
        )
        targets = make_targets(self.term, labels, product.hidden, self.reduction, count, shard)
        hidden = product.hidden.reshape(-1, product.hidden.shape[-1])
        kept = (targets.labels >= 0).nonzero().squeeze(-1)
        if len(kept) < len(hidden):  # leave ignored positions out of the matrix products
            hidden, targets = hidden.index_select(0, kept), targets.select(kept)
        rows = chunk_size or rows_for(len(hidden), len(product.weight), hidden.device)
        product = product._replace(hidden=hidden, rows=rows)
        wanted = Wanted(targets.token_ids, self.label_smoothing > 0, Transform(logit_scale, softcap))
        needed = [torch.is_grad_enabled() and each is not None and each.requires_grad for each in product[:3]]
        # The gradients of the readout are known before the logits are for a sum whose gradient does not read
        # the probability on text, and which nothing but hidden states and head gets.
        others = [targets.ce_weights, targets.number_weights, *self.term.parameters()]
        is_known = targets.is_sum and targets.soft is None and not self.term.gradient_reads_mass
        with without_autocast(hidden.device):
            if any(needed) and is_known and not any(each.requires_grad for each in others):
                return self._sum_in_one_pass(product, targets, wanted, shard, needed)
            readout = read_product(product, targets.labels, wanted, shard)
        return self._combine(readout, targets, kept)

    @torch.no_grad()
    def _sum_in_one_pass(
        self, product: Product, targets: Targets, wanted: Wanted, shard: Shard | None, needed: Sequence[bool]
    ) -> LossTerms:
        """Sum the terms of all positions, and compute the gradients of each block while its logits are there.

        Those of cross-entropy are its weights. The number term reads few logits, which one small product
        makes at all positions together.
        """
        smoothing, of_lse, ntl = self.label_smoothing, targets.ce_weights, None
        grads = [of_lse, of_lse * (smoothing - 1), of_lse.new_zeros(len(of_lse), len(targets.token_ids))]
        if self.term.criterion is not None:
            few = read_numbers(product, wanted, shard, targets.number_rows)
            with torch.enable_grad():
                leaves = few.shifted_lse.requires_grad_(), few.number_logits.requires_grad_()
                term = self.term(few, targets)
            ntl = None if self.term.reads_mass else term.detach()
            by_lse, by_numbers = torch.autograd.grad(term, leaves, materialize_grads=True)
            grads[0], grads[2] = of_lse + self.weight * by_lse, self.weight * by_numbers
        if smoothing:
            grads.append(-smoothing * of_lse)
        gradients, readout = differentiate(product, targets.labels, wanted, shard, needed, grads)
        terms = self._combine(readout, targets, ntl=ntl)
        with torch.enable_grad():
            loss = WithGradients.apply(terms.loss, gradients, *product[:3])  # type: ignore[no-untyped-call]
        return terms._replace(loss=loss)

    def targets(self, labels: Tensor | PreparedLabels, *, count: Tensor | float | None = None) -> SoftTargets:
        """Write the loss as weighted tokens, for a training API that takes them.

        The sum of -w_k log p_k over tokens and positions is the loss, where the criterion is a cross-entropy
        with a fixed target: `HLGauss`, `gaussian_smoothing`, or one of your own that reads `vocab_log_probs`.
        `dist2` sees the number tokens alone, so the sum has more: lambda times the constant entropy of its
        target, and -lambda log m with m the probability of all number tokens.

        Where a value has several tokens (`4`, `▁4`; `1`, `01`), all of its weight is on the token that is
        written as the label is. The loss adds up the probabilities of these tokens, so the sum is the loss
        only as far as the model writes no others.

        Args:
            labels, count: see `forward`. With `shift=True`, position i has the target of label i + 1.

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
        targets = make_targets(self.term, labels, None, self.reduction, count)
        weight = self._weight_in(targets.number_weights.dtype)
        given = targets, self.term.fixed_target(targets), self.term.tables, weight, self.label_smoothing
        flat = weighted_tokens(*given)
        return SoftTargets(*[each.reshape(*targets.shape, each.shape[-1]) for each in flat])

    def arrays(self, labels: Tensor | PreparedLabels, *, count: Tensor | float | None = None) -> LossArrays:
        """Write the loss as NumPy arrays, for a framework that is not PyTorch.

        They are made where labels are, on the CPU, and a few lines compute the loss from the
        log-probabilities of a model in any framework (docs/hosted_trainers.md): of criteria with a fixed
        target (`HLGauss`, `gaussian_smoothing`, see `targets`), and of expected costs (`ntl_was`, `crps`).

        Args:
            labels, count: see `forward`. With `shift=True`, position i has the arrays of label i + 1.

        Returns:
            The arrays, in the labels' shape.

        Raises:
            ValueError: another criterion, or soft labels with an expected cost. And see `forward`.

        Example:
            >>> from ntloss import NTLCrossEntropyLoss, NumberVocabulary
            >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
            >>> arrays = NTLCrossEntropyLoss(digits, reduction="sum").arrays(torch.tensor([[11, 4]]))
            >>> arrays.token_ids.tolist(), arrays.number.tolist()
            ([[[11], [4]]], [[0.0, 0.3]])
            >>> arrays.costs[0, 1].tolist()
            [4.0, 3.0, 2.0, 1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
        """
        record = labels if isinstance(labels, PreparedLabels) else self.prepare(labels)
        targets = make_targets(self.term, record.to("cpu"), None, self.reduction, count)
        weight = self._weight_in(targets.number_weights.dtype)
        return loss_arrays(targets, self.term, weight, self.label_smoothing)

    def candidates(self, labels: Tensor | PreparedLabels) -> Tensor:
        """List the tokens whose log-probabilities the loss reads, for `from_log_probs`.

        Args:
            labels: see `forward`.

        Returns:
            `[..., K]` with K the number of number tokens: these, by ascending id, where the label is one of
            them; elsewhere the label, K times; 0 where it is ignored.

        Example:
            >>> from ntloss import NTLCrossEntropyLoss, NumberVocabulary
            >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
            >>> NTLCrossEntropyLoss(digits).candidates(torch.tensor([[4, 11, -100]]))[..., :3]
            tensor([[[ 0,  1,  2],
                     [11, 11, 11],
                     [ 0,  0,  0]]])
        """
        record = labels if isinstance(labels, PreparedLabels) else self.prepare(labels)
        compared = record.labels.unsqueeze(-1)
        ids = torch.tensor(self.vocabulary.token_ids, device=compared.device)
        return torch.where(torch.isin(compared, ids), ids, compared).clamp(min=0)

    def from_log_probs(
        self, log_probs: Tensor, labels: Tensor | PreparedLabels, *, count: Tensor | float | None = None
    ) -> Tensor:
        """Compute the loss from the log-probabilities of its `candidates`, such as a training API returns.

        Their derivatives are those of the loss, so `backward()` gives what an API's custom losses need.

        Args:
            log_probs: `[..., K]`, log-probabilities over the whole vocabulary of `candidates(labels)`. Only
                the first is read where the label is no number token.
            labels, count: see `forward`.

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
        record = labels if isinstance(labels, PreparedLabels) else self.prepare(labels)
        expected = (*record.labels.shape, len(self.vocabulary.token_ids))
        if not isinstance(log_probs, Tensor) or log_probs.shape != expected:
            given = list(log_probs.shape) if isinstance(log_probs, Tensor) else type(log_probs).__name__
            raise ValueError(f"log_probs: expected those of candidates(labels), {[*expected]}, given {given}")
        targets = make_targets(self.term, record, log_probs, self.reduction, count)
        readout = readout_of_candidates(log_probs, targets, self.term)
        return self._combine(readout, targets).loss

    def extra_repr(self) -> str:
        """The criterion and the options that say what is minimized, for `print(model)`."""
        name = None if self.criterion is None else name_of(self.criterion)
        return f"{name}, weight={self.weight}, mode={self.mode!r}"

    def _combine(
        self,
        readout: Readout,
        targets: Targets,
        kept: Tensor | None = None,
        ntl: Tensor | None = None,
    ) -> LossTerms:
        """Compute the loss and its weighted terms, which are detached; the number term may be known.

        They are sums, or with "none" those of each position, or of the kept ones, in the labels' shape.
        """
        ce = readout.shifted_lse + (readout.row_max - readout.label_logit)
        if targets.soft is not None:  # what cross-entropy with the distribution adds to its likeliest token's
            soft, numbers = targets.soft, readout.number_logits
            likeliest = numbers.gather(-1, soft.argmax(-1, keepdim=True))
            ce = ce + torch.where(soft > 0, soft * (likeliest - numbers), 0).sum(-1)
            ce = ce.masked_fill(((soft > 0) & numbers.isneginf()).any(-1), torch.inf)
        if readout.mean_logit is not None:
            smooth = readout.shifted_lse + (readout.row_max - readout.mean_logit)
            ce = (1 - self.label_smoothing) * ce + self.label_smoothing * smooth
        # Positions without weight contribute exactly zero, even if their cross-entropy is infinite.
        total = ce.masked_fill(targets.ce_weights == 0, 0) * targets.ce_weights
        if targets.is_sum:
            total = total.sum()
        ntl = self.term(readout, targets) if ntl is None else ntl
        # 0 times infinity is NaN, but a weight of 0 switches the term off.
        if isinstance(self.weight, Tensor):
            weighted = self._weight_in(ntl.dtype) * ntl
            loss = total + weighted.masked_fill(ntl.isinf() & weighted.isnan(), 0)
        else:
            loss = torch.add(total, ntl, alpha=self.weight) if self.weight else total + 0
        terms = [loss, total.detach(), ntl.detach()]
        if not targets.is_sum:
            positions = targets.shape.numel()
            if kept is not None and len(kept) < positions:  # others are 0
                terms = [each.new_zeros(positions).index_copy(0, kept, each) for each in terms]
            terms = [each.reshape(targets.shape) for each in terms]
        return LossTerms(*terms)

    def _weight_in(self, dtype: torch.dtype) -> Tensor | float:
        return self.weight.to(dtype) if isinstance(self.weight, Tensor) else self.weight
