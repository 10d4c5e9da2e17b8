"""What is minimised: cross-entropy, cross-entropy plus a number token loss, or a squared error.

Every objective is a sum over the micro-batch divided by counts of the *whole* accumulated batch. A mean per
micro-batch would weigh labels by how the batch was split, and T5's own loss, which ignores the accumulation
altogether, would grow with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ntloss import NTLoss, NTLossDotProduct, NumberVocabulary

IGNORE = -100

Batch = Mapping[str, Tensor]


class Counts(NamedTuple):
    """What the sums of a batch are divided by.

    Args:
        labels: The number of labels (of answers, for a regression head).
        numbers: The number of labels that are number tokens.
    """

    labels: int
    numbers: int


class LanguageObjective(nn.Module):
    """Cross-entropy, plus weight times a number token loss.

    Args:
        vocabulary: The digits of the tokenizer.
        term: `wasserstein` (NTL-WAS), `squared_error` (NTL-MSE) or None (cross-entropy alone).
        weight: λ.
        reweigh: Whether probability on text costs more than the worst number (see `ntloss`).
    """

    def __init__(
        self,
        vocabulary: NumberVocabulary,
        term: str | None = None,
        weight: float = 0.3,
        reweigh: bool = True,
    ):
        super().__init__()
        self.weight = weight
        self.number_term = number_term(vocabulary, term, reweigh) if term is not None else None
        self.register_buffer("number_ids", torch.tensor(vocabulary.token_ids), persistent=False)

    def count(self, batches: Sequence[Batch]) -> Counts:
        """Count the labels of the micro-batches that make one update.

        Args:
            batches: Each with `labels`, `[batch, seq]`.

        Returns:
            Their counts.
        """
        labels = torch.cat([batch["labels"].flatten() for batch in batches])
        return Counts(int((labels != IGNORE).sum()), int(torch.isin(labels, self.number_ids).sum()))

    def forward(self, model: nn.Module, batch: Batch, counts: Counts) -> Tensor:
        """Compute this micro-batch's share of the loss.

        Args:
            model: A T5 with a language model head.
            batch: `input_ids`, `attention_mask`, `labels`.
            counts: Of the whole accumulated batch.

        Returns:
            Scalar. Over the micro-batches they add up to the loss of the whole batch.
        """
        labels = batch["labels"]
        logits = language_logits(model, batch)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum", ignore_index=IGNORE)
        loss = loss / max(counts.labels, 1)
        if self.number_term is not None:
            numbers = self.number_term(logits, labels, reduction="sum", ignore_index=IGNORE)
            loss = loss + self.weight * numbers / max(counts.numbers, 1)
        return loss


class RegressionObjective(nn.Module):
    """The squared error of the standardised answer."""

    def count(self, batches: Sequence[Batch]) -> Counts:
        """Count the answers of the micro-batches that make one update; see `LanguageObjective`."""
        answers = sum(len(batch["values"]) for batch in batches)
        return Counts(answers, answers)

    def forward(self, model: nn.Module, batch: Batch, counts: Counts) -> Tensor:
        """Compute this micro-batch's share of the loss.

        Args:
            model: A T5 with a regression head.
            batch: `input_ids`, `attention_mask`, `values` `[batch]`.
            counts: Of the whole accumulated batch.

        Returns:
            Scalar.
        """
        predicted = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        target = ((batch["values"] - model.mean) / model.scale).to(predicted.dtype)
        return F.mse_loss(predicted, target, reduction="sum") / counts.labels


def number_term(vocabulary: NumberVocabulary, term: str, reweigh: bool = True) -> nn.Module:
    """A number token loss by its name.

    Args:
        vocabulary: The digits of the tokenizer.
        term: `wasserstein` (NTL-WAS) or `squared_error` (NTL-MSE).
        reweigh: See `ntloss`.

    Returns:
        The loss module.
    """
    kind = {"wasserstein": NTLoss, "squared_error": NTLossDotProduct}[term]
    return kind(vocabulary, reweigh=reweigh)


def language_logits(model: nn.Module, batch: Batch) -> Tensor:
    """Teacher-forced logits.

    Args:
        model: A T5 with a language model head.
        batch: `input_ids`, `attention_mask`, `labels`.

    Returns:
        `[batch, seq, vocab]`.
    """
    # Without labels the model does not compute its own loss, which would cost a pass over the logits.
    return model(
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"],
        decoder_input_ids=model.prepare_decoder_input_ids_from_labels(batch["labels"]),
        use_cache=False,
    ).logits


def build_objective(settings: Mapping[str, Any], vocabulary: NumberVocabulary) -> nn.Module:
    """Make an objective from its settings.

    Args:
        settings: `head` (`language` or `regression`), `term`, `weight`, `reweigh`.
        vocabulary: The digits of the tokenizer.

    Returns:
        The objective.
    """
    if settings["head"] == "regression":
        return RegressionObjective()
    return LanguageObjective(vocabulary, settings["term"], settings["weight"], settings["reweigh"])
