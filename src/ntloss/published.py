"""The losses of the published package `ntloss` 0.3.2, with its names, arguments and defaults.

`docs/differences.md` lists the intended differences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss.criteria import Criterion, ExpectedValue, NumberLevel, Reweighed, Wasserstein, worst_of
from ntloss.engine.objective import criterion_input
from ntloss.engine.readout import IDENTITY, Query, summarize_logits
from ntloss.engine.targets import check_logits
from ntloss.losses import NumberTokenLoss
from ntloss.numbers.vocabulary import NumberVocabulary


class _PublishedLoss(NumberTokenLoss):
    """Base class of the published losses: the constructor from a tokenizer, and the published attributes."""

    def __init__(
        self,
        tokenizer: Any,
        vocab_size: int | None,
        digit_level: bool,
        reweigh: bool,
        criterion: Criterion,
        space_prefixed: bool,
    ) -> None:
        if not isinstance(tokenizer, NumberVocabulary):
            tokenizer = NumberVocabulary.from_tokenizer(
                tokenizer, digit_level=digit_level, space_prefixed=space_prefixed, vocab_size=vocab_size
            )
        elif vocab_size not in (None, tokenizer.vocab_size) or not digit_level or space_prefixed:
            raise ValueError(
                f"vocab_size={vocab_size}, digit_level={digit_level}, space_prefixed={space_prefixed}: "
                "a NumberVocabulary determines these. Pass them where you make the vocabulary."
            )
        super().__init__(tokenizer, Reweighed(criterion) if reweigh else criterion)
        self._within = criterion  # the number tokens alone

    @property
    def reweigh(self) -> bool:
        """Whether probability on text costs more than the worst number."""
        return isinstance(self.criterion, Reweighed)

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
        """`[vocab]`, bool, True for number tokens."""
        return self.tables.value_of_token >= 0

    @property
    def number_token_ids(self) -> Tensor:
        """`[number tokens]`, token ids, ascending."""
        return self.tables.token_ids.sort().values

    @property
    def number_values(self) -> Tensor:
        """`[vocab]`, value of each token, NaN for text, float32."""
        values = self.tables.values.to(torch.float32)[self.tables.value_of_token]
        return torch.where(self.is_number_token, values, torch.nan)

    @property
    def max_dist(self) -> Tensor:
        """Scalar, the criterion's worst cost."""
        worst = worst_of(self._within, self.vocabulary.value_tensor())
        return torch.tensor(worst, device=self.tables.values.device)


class NTLoss(_PublishedLoss):
    """NTL-WAS, the paper's default: the expected distance between the predicted and the true digit.

    A drop-in for the class of `ntloss` 0.3.2 (`docs/differences.md`).

    Args:
        tokenizer: a Hugging Face tokenizer (it is not changed), or a `NumberVocabulary`.
        vocab_size: width of the model's logits. Default: the tokenizer's.
        digit_level: whether the ten digits alone are numbers (default), or every token that is a number.
        reweigh: make probability on text cost more than the worst number. Default: True; False in the paper.
        squash_factor: see `Wasserstein`. Default: None.
        space_prefixed: include tokens such as `▁4` and `Ġ4`. Default: False, as published. A
            `NumberVocabulary` determines this itself.

    Raises:
        TypeError: `tokenizer` is neither a tokenizer nor a vocabulary.
        ValueError: a digit has no token; `squash_factor` is 1 or less; settings that contradict a given
            vocabulary.

    Source: "Regress, Don't Guess", ICML 2025.

    Example:
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
    ) -> None:
        criterion = Wasserstein(squash_factor)
        super().__init__(tokenizer, vocab_size, digit_level, reweigh, criterion, space_prefixed)

    @property
    def squash_factor(self) -> float | None:
        """Ratio of the largest to the smallest cost of a wrong digit."""
        factor: float | None = vars(self._within)["squash_factor"]
        return factor


class NTLossDotProduct(_PublishedLoss):
    """NTL-L_p: a regression loss between the expected and the true digit.

    A drop-in for the class of `ntloss` 0.3.2. The loss is zero wherever the mean is right (half the
    probability on 3, half on 5, label 4), so prefer `NTLoss`.

    Args:
        tokenizer, vocab_size, digit_level, reweigh, space_prefixed: see `NTLoss`.
        loss_function: `(prediction, target) -> loss`, element by element; it is called with
            `reduction="none"` if it has that parameter. Default: squared error, NTL-MSE.

    Raises:
        TypeError, ValueError: see `NTLoss`.

    Source: "Regress, Don't Guess", ICML 2025.

    Example:
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
    ) -> None:
        criterion = ExpectedValue(loss_function)
        super().__init__(tokenizer, vocab_size, digit_level, reweigh, criterion, space_prefixed)

    @property
    def loss_function(self) -> Callable[..., Tensor]:
        """Loss of the expected digit."""
        return getattr(self._within, "loss", F.l1_loss)  # NumberLevelLoss has another criterion

    def predict_numbers(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Predict the expected value of the number at every position.

        Args:
            logits: `[..., vocab]`.

        Returns:
            yhat: `[...]`, mean of the distribution over the number tokens.
            nt_mass: `[...]`, total probability of the number tokens.
        """
        check_logits(logits, self.vocab_size)
        if logits.device != self.objective.device:
            self.objective.move_tables(logits.device)
        shape = logits.shape[:-1]
        unused = logits.new_zeros(shape.numel(), dtype=torch.int64)  # in place of labels and targets
        readout = summarize_logits(logits, Query(unused, self.tables.token_ids, IDENTITY))
        # torch 2.7 does not compile a slice of a named tuple.
        normalizer = (readout.row_max, readout.shifted_lse)
        x = criterion_input(self.tables, readout.number_logits, unused, normalizer)
        assert x.log_mass is not None  # because the log-normalizer is given
        return (x.probs * x.values).sum(-1).reshape(shape), x.log_mass.exp().reshape(shape)


class NumberLevelLoss(NTLossDotProduct):
    r"""Symmetric relative error of the expected number, one loss for each whole number (`NumberLevel`).

    A drop-in for the class of `ntloss` 0.3.2 that is also right for numbers of more than 20 digits. It reads
    as many digits as the *label* has: cross-entropy beside it has to penalize a model that would stop after
    `12` or continue to `12345` where `1234` is right.

    Args:
        tokenizer, vocab_size, space_prefixed: see `NTLoss`.
        float_level: a single point between digits belongs to the number: `12.34` is one number instead of
            two. Default: False.
        reweigh: make probability on text, at the number's first token, cost more than the worst number.
            Default: True.
        max_number_length: no effect, since numbers may have any length; part of the published signature.

    Raises:
        TypeError, ValueError: see `NTLoss`.

    Source: the package ntloss since 0.2.

    Example:
        >>> from ntloss import NumberLevelLoss, NumberVocabulary
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> logits = torch.full((1, 3, 12), -1e4)
        >>> logits[0, 0, 1] = logits[0, 1, 2] = logits[0, 2, 5] = 0.0  # certain of 125
        >>> labels = torch.tensor([[3, 6, 11]])  # 36 and some text
        >>> NumberLevelLoss(digits)(logits, labels, reduction="none")
        tensor([[0.5000, 0.0000, 0.0000]])
    """

    def __init__(
        self,
        tokenizer: Any,
        vocab_size: int | None = None,
        float_level: bool = False,
        reweigh: bool = True,
        max_number_length: int = 20,
        *,
        space_prefixed: bool = False,
    ) -> None:
        # In 0.3.2 this class extends NTLossDotProduct, for its predict_numbers, and has another criterion.
        criterion = NumberLevel(decimals=float_level)
        _PublishedLoss.__init__(self, tokenizer, vocab_size, True, reweigh, criterion, space_prefixed)
        self.max_number_length = max_number_length

    @property
    def float_level(self) -> bool:
        """Whether a single point between digits belongs to the number."""
        return self.objective.needs.decimals
