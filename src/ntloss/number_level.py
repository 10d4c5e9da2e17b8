"""The published loss on whole numbers."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F

from ntloss.criteria import NumberLevel
from ntloss.published import NTLossDotProduct, TokenizerLoss


class NumberLevelLoss(NTLossDotProduct):
    r"""One loss for each whole number: the symmetric relative error of the expected number.

    $|\hat x - x| / (\hat x + x + \epsilon)$ with $\hat x = \sum_t E[d_t] \, 10^{place_t}$, at the number's
    first token, from 0 to 1 (`criteria.NumberLevel`). Drop-in for `ntloss` 0.3.2, and right for numbers of
    any length.

    What it cannot see: trained with teacher forcing, it reads as many digits as the *label* has. A model that
    would stop after `12` where `1234` is right, or write `12345`, is not told so by this loss; cross-entropy
    beside it tells it. And as each digit counts by its mean, digits that are wrong but
    cancel cost nothing.

    Args:
        tokenizer: a Hugging Face tokenizer (it is not changed), or a `NumberVocabulary`.
        vocab_size: width of the model's logits. Default: the tokenizer's.
        float_level: a single point between digits belongs to the number: `12.34` is one number instead of
            two. Default: False.
        reweigh: let probability on text, at the number's first token, cost more than the worst number.
            Default: True.
        max_number_length: of no effect, kept for the published signature: numbers may have any length.
        space_prefixed: see `NTLoss`.
        validate: see `NumberTokenLoss`.

    Raises:
        TypeError: `tokenizer` is neither a tokenizer nor a vocabulary.
        ValueError: a digit has no token; settings that contradict a given vocabulary.

    Source: the package ntloss since 0.2.

    Example:
        >>> import torch
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
        validate: bool | None = None,
    ) -> None:
        # As published it is an NTLossDotProduct, with its predict_numbers, but of another criterion.
        criterion = NumberLevel(decimals=float_level)
        TokenizerLoss.__init__(
            self, tokenizer, vocab_size, True, reweigh, criterion, space_prefixed, validate
        )
        self.loss_function = F.l1_loss
        self.float_level = float_level
        self.max_number_length = max_number_length
