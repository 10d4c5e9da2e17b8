"""Number token losses as modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ntloss.criteria import Criterion, ExpectedValue, NumberRecord, Wasserstein, reweighed, worst_cost
from ntloss.engine.checks import check_head, check_labels, check_logits, check_values
from ntloss.engine.readout import Transform, compute_dtype, read_logits
from ntloss.engine.record import make_record
from ntloss.engine.reduction import reduce
from ntloss.engine.tables import NumberTables
from ntloss.vocabulary import NumberVocabulary, as_vocabulary


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
        self.tables = NumberTables(vocabulary)

    @property
    def vocabulary(self) -> NumberVocabulary:
        """The number tokens."""
        return self.tables.vocabulary

    @property
    def reweigh(self) -> bool:
        """Whether probability on text costs more than the worst number."""
        return self.worst is not None

    def forward(
        self,
        logits: Tensor,
        labels: Tensor,
        loss_weights: Tensor | None = None,
        reduction: str = "mean",
        ignore_index: int = -100,
    ) -> Tensor:
        """Number token loss of the positions whose label is a number token.

        Args:
            logits: `[..., vocab]`, any float dtype. Softmax and sums are in float32 at least.
            labels: `[...]`, token ids.
            loss_weights: `[...]`, weight of each position, 0 or more. Default: 1.
            reduction: "mean" over the number labels (divides by the sum of their weights), "sum", or "none".
            ignore_index: label of positions that do not count. Default: -100.

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
        target, is_number = self._read_labels(
            logits.shape[:-1], logits.device, labels, loss_weights, reduction, ignore_index
        )
        if self.worst is None:
            number_logits = rows.index_select(-1, self.tables.token_ids)
            number_logits = torch.where(is_number.unsqueeze(-1), number_logits, 0)
            record = make_record(number_logits, self.tables, target, None)
        else:
            some_label = torch.where(is_number, labels.reshape(-1), 0)
            readout = read_logits(rows, some_label, self.tables.token_ids).only(is_number)
            record = make_record(readout.number_logits, self.tables, target, readout.log_normalizer)
        return self._reduce(record, is_number, loss_weights, reduction, labels.shape)

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
                `reweigh` needs it.
            loss_weights, reduction, ignore_index: see `forward`.
            softcap: logits are `softcap * tanh(logits / softcap)`. Default: none.
            logit_scale: logits are multiplied with it before all else. Default: 1.
            sparse_grad: give the head's weight a sparse gradient, a few rows, which autograd adds to the
                kernel's dense one; False makes another dense one, for a weight that gets none elsewhere and
                an optimizer that wants one. Default: True.

        Returns:
            As `forward`.

        Raises:
            ValueError: `reweigh` without `log_normalizer`; see `forward` for the others.
        """
        check_head(hidden_states, lm_head_weight, bias, self.vocabulary.vocab_size)
        self.tables.follow(hidden_states)
        leading = hidden_states.shape[:-1]
        if self.worst is not None and (log_normalizer is None or log_normalizer.shape != leading):
            given = None if log_normalizer is None else list(log_normalizer.shape)
            raise ValueError(
                f"log_normalizer: given {given}, expected shape {list(leading)}: reweigh asks for the "
                "logsumexp of all logits. Hand it in, or make the loss with reweigh=False."
            )
        target, is_number = self._read_labels(
            leading, hidden_states.device, labels, loss_weights, reduction, ignore_index
        )
        # An embedding look-up is the one way to rows of a matrix that has a sparse gradient.
        rows = F.embedding(self.tables.token_ids, lm_head_weight, sparse=sparse_grad)
        number_bias = None if bias is None else bias[self.tables.token_ids]
        number_logits = F.linear(hidden_states.reshape(-1, hidden_states.shape[-1]), rows, number_bias)
        number_logits = Transform(logit_scale, softcap).apply(number_logits.to(compute_dtype(rows.dtype)))
        number_logits = torch.where(is_number.unsqueeze(-1), number_logits, 0)
        log_sum = None
        if self.worst is not None and log_normalizer is not None:
            log_sum = torch.where(is_number, log_normalizer.reshape(-1).to(number_logits.dtype), 0)
        record = make_record(number_logits, self.tables, target, log_sum)
        return self._reduce(record, is_number, loss_weights, reduction, labels.shape)

    def _read_labels(
        self,
        leading: torch.Size,
        device: torch.device,
        labels: Tensor,
        loss_weights: Tensor | None,
        reduction: str,
        ignore_index: int,
    ) -> tuple[Tensor, Tensor]:
        check_labels(leading, device, labels, loss_weights, reduction)
        check_values(labels, loss_weights, self.vocabulary.vocab_size, ignore_index, self.validate)
        return self.tables.targets(labels.reshape(-1), ignore_index)

    def _reduce(
        self,
        record: NumberRecord,
        is_number: Tensor,
        loss_weights: Tensor | None,
        reduction: str,
        shape: torch.Size,
    ) -> Tensor:
        loss = reweighed(self.criterion, record, self.worst)
        weights = None if loss_weights is None else loss_weights.reshape(-1)
        reduced = reduce(loss, is_number, weights, reduction)
        return reduced.reshape(shape) if reduction == "none" else reduced


class _TokenizerLoss(NumberTokenLoss):
    """What the classes of the published package share: made from a tokenizer, with tensors to look at.

    The tensors are in ascending order of token ids and lie on the loss's device.
    """

    def __init__(
        self,
        tokenizer: Any,
        vocab_size: int | None,
        digit_level: bool,
        reweigh: bool,
        criterion: Criterion,
        space_prefixed: bool,
        validate: bool | None,
    ) -> None:
        if isinstance(tokenizer, NumberVocabulary):
            vocabulary = tokenizer
            if vocab_size not in (None, vocabulary.vocab_size) or not digit_level or space_prefixed:
                raise ValueError(
                    f"vocab_size={vocab_size}, digit_level={digit_level}, space_prefixed={space_prefixed}: "
                    "a NumberVocabulary has settled these. Set them where the vocabulary is made."
                )
        else:
            vocabulary = NumberVocabulary.from_tokenizer(
                tokenizer,
                digit_level=digit_level,
                space_prefixed=space_prefixed,
                vocab_size=vocab_size,
            )
        super().__init__(vocabulary, criterion, reweigh=reweigh, validate=validate)

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        return self.vocabulary.vocab_size

    @property
    def digit_level(self) -> bool:
        """Whether all number tokens are single digits."""
        return all(token.is_digit for token in self.vocabulary.tokens)

    @property
    def is_number_token(self) -> Tensor:
        """`[vocab]`, bool."""
        return self.tables.value_of_token >= 0

    @property
    def number_token_ids(self) -> Tensor:
        """`[number tokens]`, ids."""
        return self.tables.token_ids.sort().values

    @property
    def number_values_dense(self) -> Tensor:
        """`[number tokens]`, values, float32."""
        return self.number_values[self.number_token_ids]

    @property
    def number_values(self) -> Tensor:
        """`[vocab]`, value of each token, NaN for text, float32."""
        values = self.tables.values.to(torch.float32)[self.tables.value_of_token]
        return torch.where(self.is_number_token, values, torch.nan)

    @property
    def max_dist(self) -> Tensor:
        """The worst cost of the criterion, scalar."""
        return torch.tensor(
            self.criterion.worst(self.vocabulary.value_tensor()), device=self.tables.values.device
        )


class NTLoss(_TokenizerLoss):
    """NTL-WAS: the expected distance between the predicted and the true digit. The paper's default.

    Drop-in for `ntloss` 0.3.2; `docs/differences.md` lists what differs on purpose.

    Args:
        tokenizer: a Hugging Face tokenizer (it is not changed), or a `NumberVocabulary`.
        vocab_size: width of the model's logits. Default: the tokenizer's.
        digit_level: count the ten digits as numbers (default), or every token that is a number.
        reweigh: let probability on text cost more than the worst number. Default: True; the paper has False.
        squash_factor: see `Wasserstein`. Default: None.
        space_prefixed: count `▁4` and `Ġ4` too. Default: False, as published; with a `NumberVocabulary`
            the vocabulary decides.
        validate: see `NumberTokenLoss`.

    Raises:
        TypeError: `tokenizer` is neither a tokenizer nor a vocabulary.
        ValueError: a digit has no token; `squash_factor` is 1 or less; settings that contradict a given
            vocabulary.

    Source: "Regress, Don't Guess", ICML 2025.

    Example:
        >>> import torch
        >>> from torch.nn.functional import cross_entropy
        >>> from ntloss import NTLoss, NumberVocabulary
        >>> vocabulary = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> ntl_fn = NTLoss(vocabulary)
        >>> logits, labels = torch.randn(2, 5, 12), torch.randint(12, (2, 5))
        >>> loss = cross_entropy(logits.flatten(0, 1), labels.flatten()) + 0.3 * ntl_fn(logits, labels)
    """

    def __init__(
        self,
        tokenizer: Any,
        vocab_size: int | None = None,
        digit_level: bool = True,
        reweigh: bool = True,
        squash_factor: float | None = None,
        *,
        space_prefixed: bool = False,
        validate: bool | None = None,
    ) -> None:
        criterion = Wasserstein(squash_factor)
        super().__init__(tokenizer, vocab_size, digit_level, reweigh, criterion, space_prefixed, validate)
        self.squash_factor = squash_factor

    @property
    def dist_lookup(self) -> Tensor:
        """`[number tokens, number tokens]`, cost of each for each, float32."""
        values = self.tables.values
        costs = Wasserstein(self.squash_factor).cost(values, values.unsqueeze(-1))
        index = self.tables.value_of_token[self.number_token_ids]
        return costs[index[:, None], index].to(torch.float32)

    @property
    def vocab_to_dist_idx(self) -> Tensor:
        """`[vocab]`, row of each token in `dist_lookup`, -1 for text."""
        number = self.is_number_token
        return torch.where(number, number.cumsum(0) - 1, -1)


class NTLossDotProduct(_TokenizerLoss):
    """NTL-L_p: a regression loss between the expected and the true digit.

    Drop-in for `ntloss` 0.3.2; `docs/differences.md` lists what differs on purpose. The loss is zero
    wherever the mean is right (half on 3, half on 5, label 4): prefer `NTLoss`.

    Args:
        tokenizer: a Hugging Face tokenizer (it is not changed), or a `NumberVocabulary`.
        vocab_size: width of the model's logits. Default: the tokenizer's.
        digit_level: count the ten digits as numbers (default), or every token that is a number.
        reweigh: let probability on text cost more than the worst number. Default: True; the paper has False.
        loss_function: `(prediction, target) -> loss`, element by element; called with `reduction="none"`
            where it has that parameter. Default: squared error, NTL-MSE.
        space_prefixed: see `NTLoss`.
        validate: see `NumberTokenLoss`.

    Raises:
        TypeError: `tokenizer` is neither a tokenizer nor a vocabulary.
        ValueError: a digit has no token; settings that contradict a given vocabulary.

    Source: "Regress, Don't Guess", ICML 2025.

    Example:
        >>> import torch
        >>> from ntloss import NTLossDotProduct, NumberVocabulary
        >>> vocabulary = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> predictions, mass = NTLossDotProduct(vocabulary).predict_numbers(torch.zeros(1, 1, 12))
        >>> round(predictions.item(), 4), round(mass.item(), 4)
        (4.5, 0.8333)
    """

    def __init__(
        self,
        tokenizer: Any,
        vocab_size: int | None = None,
        digit_level: bool = True,
        reweigh: bool = True,
        loss_function: Callable[..., Tensor] = F.mse_loss,
        *,
        space_prefixed: bool = False,
        validate: bool | None = None,
    ) -> None:
        criterion = ExpectedValue(loss_function)
        super().__init__(tokenizer, vocab_size, digit_level, reweigh, criterion, space_prefixed, validate)
        self.loss_function = loss_function

    def predict_numbers(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Read the expected number at every position, whatever its label.

        Args:
            logits: `[..., vocab]`.

        Returns:
            yhat: `[...]`, the mean of the distribution over the number tokens.
            nt_mass: `[...]`, the probability of all number tokens together.
        """
        check_logits(logits, self.vocab_size)
        self.tables.follow(logits)
        rows = logits.reshape(-1, self.vocab_size)
        nothing = rows.new_zeros(len(rows), dtype=torch.int64)  # neither label nor target is asked for
        readout = read_logits(rows, nothing, self.tables.token_ids)
        record = make_record(readout.number_logits, self.tables, nothing, readout.log_normalizer)
        assert record.log_mass is not None
        shape = logits.shape[:-1]
        return (record.probs * record.values).sum(-1).reshape(shape), record.log_mass.exp().reshape(shape)
