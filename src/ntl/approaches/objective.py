"""Cross-entropy with a number token loss, normalised by the counts of the whole update."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ntl.approaches import IGNORE, Share
from ntl.config.settings import LossSettings
from ntl.errors import UserError
from ntloss import NTLCrossEntropyLoss, NumberVocabulary, get_criterion


class LanguageObjective:
    """The loss of language models: cross-entropy plus a weighted number token loss.

    Both terms are computed in one pass over the logits. Without a criterion, NTL-WAS is reported but not
    minimised (its weight is 0).

    Args:
        vocabulary: The number tokens.
        settings: Loss settings.

    Raises:
        UserError: The criterion or one of its options is invalid.
    """

    def __init__(self, vocabulary: NumberVocabulary, settings: LossSettings):
        try:
            if settings.criterion is None:
                criterion, weight, mode, reweigh = get_criterion("wasserstein"), 0.0, "add", False
            else:
                criterion = get_criterion(settings.criterion, **settings.options)
                weight, mode, reweigh = settings.weight, settings.mode, settings.reweigh
            self._smooths = mode == "replace" or settings.label_smoothing > 0
            self.loss = NTLCrossEntropyLoss(
                vocabulary,
                criterion,
                weight,
                reweigh,
                mode=mode,
                ignore_index=IGNORE,
                label_smoothing=settings.label_smoothing,
                return_terms=True,
            )
        except (ValueError, TypeError) as error:
            raise UserError(f"the loss settings are invalid: {error}") from error

    def count(self, labels: Tensor) -> Tensor:
        """Count labels and number labels, `[2]`, float64."""
        return torch.stack(self.loss.normalizers(labels)).double()

    def share(self, logits: Tensor, labels: Tensor, counts: Tensor) -> Share:
        """Compute a micro-batch's share.

        Args:
            logits: Logits aligned with their labels, `[batch, seq, vocab]`.
            labels: Labels `[batch, seq]`.
            counts: Counts of the whole update, `[2]`.

        Returns:
            The share, with the terms `ce` and `ntl` (unweighted). In evaluation, `ce` is always the plain
            cross-entropy of all labels, without smoothing or replacement.
        """
        items, numbers = counts.unbind()
        loss, ce, ntl = self.loss(logits, labels, num_items_in_batch=items, num_numbers_in_batch=numbers)
        if self._smooths and not torch.is_grad_enabled():
            ce = plain_cross_entropy(logits, labels) / items.clamp(min=1).to(ce.dtype)
        return Share(loss, {"ce": ce, "ntl": ntl})


def plain_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum the cross-entropy over all labels, for perplexity and comparable learning curves.

    Args:
        logits: Logits `[batch, seq, vocab]`.
        labels: Labels `[batch, seq]`.

    Returns:
        A scalar, float32.
    """
    rows, targets = logits.flatten(0, 1).float(), labels.flatten()
    return F.cross_entropy(rows, targets, ignore_index=IGNORE, reduction="sum")
