"""The losses of the published package `ntloss` 0.3.2, made from a tokenizer, with its names and defaults.

`docs/differences.md` lists what differs on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss.criteria import Criterion, ExpectedValue, Wasserstein
from ntloss.criteria.transport import squashed
from ntloss.engine.readout import check_logits, read_logits
from ntloss.losses import NumberTokenLoss
from ntloss.vocabulary import NumberVocabulary


class TokenizerLoss(NumberTokenLoss):
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


class NTLoss(TokenizerLoss):
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
        costs = (values - values.unsqueeze(-1)).abs()
        if self.squash_factor is not None:
            costs = squashed(costs, values, self.squash_factor)
        index = self.tables.value_of_token[self.number_token_ids]
        return costs[index[:, None], index].to(torch.float32)

    @property
    def vocab_to_dist_idx(self) -> Tensor:
        """`[vocab]`, row of each token in `dist_lookup`, -1 for text."""
        number = self.is_number_token
        return torch.where(number, number.cumsum(0) - 1, -1)


class NTLossDotProduct(TokenizerLoss):
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
        self.objective.follow(logits)
        shape = logits.shape[:-1]
        nothing = logits.new_zeros(shape.numel(), dtype=torch.int64)  # neither label nor target is asked for
        readout = read_logits(logits, nothing, self.tables.token_ids)
        x = self.tables.criterion_input(readout.number_logits, nothing, readout[:2])
        assert x.log_mass is not None, "it is computed if the log-normalizer is given"
        return (x.probs * x.values).sum(-1).reshape(shape), x.log_mass.exp().reshape(shape)
