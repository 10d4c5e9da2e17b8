"""Third stage: the loss of each position from its readout and targets, the same for every path."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ntloss.criteria import Criterion, CriterionInput, Wasserstein, bind, needs_of
from ntloss.criteria.registry import as_criterion
from ntloss.engine.readout import COMPUTED_IN, Readout, without_autocast
from ntloss.engine.tables import NumberTables
from ntloss.engine.targets import Targets
from ntloss.numbers.spans import NumberSpans
from ntloss.numbers.vocabulary import NumberVocabulary, warn_without_point

# Replaces logits of -inf among the number tokens: the probability is still 0, and the difference of two of
# them is not NaN, in value or gradient.
_MINUS_INFINITY = -1e30


class LossTerms(NamedTuple):
    """A combined loss and its two terms.

    Args:
        loss: `ce + weight * ntl`, plus the z-loss if there is one, with a graph.
        ce: cross-entropy, detached.
        ntl: the unweighted number term, detached.
    """

    loss: Tensor
    ce: Tensor
    ntl: Tensor

    def detached(self) -> LossTerms:
        """Detach the two terms."""
        return LossTerms(self.loss, self.ce.detach(), self.ntl.detach())


class Objective(nn.Module):
    """Cross-entropy and number term of each position, with the arguments of `NTLCrossEntropyLoss`.

    It owns the criterion and binds it to the values, once per device and dtype.
    """

    def __init__(
        self,
        vocabulary: NumberVocabulary,
        criterion: Criterion | str | Mapping[str, Any] | None = None,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
    ) -> None:
        super().__init__()
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing={label_smoothing!r}: expected 0 to 1")
        if not 0 <= z_loss < math.inf:
            raise ValueError(f"z_loss={z_loss!r}: expected 0 or more")
        self.criterion = Wasserstein() if criterion is None else as_criterion(criterion)
        _check_criterion(self.criterion)
        self.needs = needs_of(self.criterion)
        if getattr(self.criterion, "decimals", False):  # requested, not a default
            warn_without_point(vocabulary)
        self.replaces_cross_entropy = False  # set by a combined loss, whose mode may depend on the criterion
        self.label_smoothing = label_smoothing
        self.z_loss = z_loss
        self.tables = NumberTables(vocabulary, spans=self.needs.spans)
        self._bind()

    def _bind(self) -> None:
        # In each dtype that losses are computed in, so that no matrix is converted at each call.
        self.device = self.tables.values.device
        values = self.tables.vocabulary.value_tensor()
        with torch.inference_mode(False):
            self._bound = {
                table.dtype: bind(self.criterion, values, table)
                for table in (self.tables.values_in_float32, self.tables.values)
            }

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Objective:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.tables.values.device != self.device:
            self._bind()
        return self

    def move_tables(self, device: torch.device) -> None:
        """Move the tables to a device; a RuntimeError in compiled code."""
        if torch.compiler.is_compiling():
            raise RuntimeError(
                f"the loss is on {self.device}, its input on {device}: call loss.to(device) before "
                "torch.compile"
            )
        self.tables.to(device)  # not the criterion's parameters: they are the caller's
        self._bind()

    def forward(self, readout: Readout, targets: Targets, weight: float | Tensor) -> LossTerms:
        """Compute the weighted terms: their sums, or those of each position, in the shape of the targets.

        A tensor `weight` gets no gradient. All three have a graph.
        """
        ce = readout.shifted_lse + (readout.row_max - readout.label_logit)
        if self.label_smoothing:
            smooth = readout.shifted_lse + (readout.row_max - readout.mean_logit)
            ce = (1 - self.label_smoothing) * ce + self.label_smoothing * smooth
        # Positions without weight contribute exactly zero, even if their cross-entropy is infinite.
        ce = ce.masked_fill(targets.ce_weights == 0, 0) * targets.ce_weights
        ntl = self.number_term(readout, targets)
        if targets.shape is None:
            ce = ce.sum()
        weighted = (weight.detach().to(ntl.dtype) if isinstance(weight, Tensor) else weight) * ntl
        loss = ce + weighted.masked_fill(ntl.isinf() & weighted.isnan(), 0)  # a weight of 0
        if self.z_loss:
            # Mask before squaring, because 0 times an infinite derivative is NaN.
            normalizer = (readout.row_max + readout.shifted_lse).masked_fill(targets.item_weights == 0, 0)
            penalty = self.z_loss * normalizer.square() * targets.item_weights
            loss = loss + (penalty.sum() if targets.shape is None else penalty)
        if targets.shape is None:
            return LossTerms(loss, ce, ntl)
        return LossTerms(*(term.reshape(targets.shape) for term in (loss, ce, ntl)))

    def number_term(self, readout: Readout, targets: Targets) -> Tensor:
        """Compute the weighted number term: its sum or, if the targets have a shape, of each position.

        A term that replaces cross-entropy may also learn which form of a value the label is.
        """
        row_max, shifted_lse, number_logits = readout.row_max, readout.shifted_lse, readout.number_logits
        reads_mass = self.needs.log_normalizer
        learns_form = self.replaces_cross_entropy and self.tables.has_several_forms
        label_logit = readout.label_logit if learns_form else None
        target, weights, spans = targets.target, targets.number_weights, targets.spans
        rows = targets.number_rows
        if rows is not None:  # with a thousand number tokens, computing all positions would cost more
            target, weights, number_logits = target[rows], weights[rows], number_logits.index_select(0, rows)
            if reads_mass:
                row_max, shifted_lse = row_max[rows], shifted_lse[rows]
            spans = None if spans is None else spans.select(rows)
            label_logit = None if label_logit is None else label_logit[rows]
        else:
            # The logits of other positions may be NaN.
            out = ~targets.counted if self.needs.across_positions else weights == 0
            target, number_logits = target.clamp(min=0), number_logits.masked_fill(out.unsqueeze(-1), 0)
            if reads_mass:
                row_max, shifted_lse = row_max.masked_fill(out, 0), shifted_lse.masked_fill(out, 0)
        with without_autocast(target.device):
            normalizer = (row_max, shifted_lse) if reads_mass else None
            x = criterion_input(self.tables, number_logits, target, normalizer, spans, label_logit)
            loss = self._bound[x.log_probs.dtype](x)
            if loss.shape != target.shape:
                raise ValueError(
                    f"criterion {self.criterion!r} returned shape {list(loss.shape)}: expected one loss for "
                    f"each position, {list(target.shape)}"
                )
            if rows is None:  # else no weight is 0
                loss = loss.masked_fill(weights == 0, 0)
            term = loss * weights
        if targets.shape is None:
            return term.sum()
        return term if rows is None else term.new_zeros(len(targets.target)).index_copy(0, rows, term)


def criterion_input(
    tables: NumberTables,
    number_logits: Tensor,
    target: Tensor,
    log_normalizer: tuple[Tensor, Tensor] | None = None,
    spans: NumberSpans | None = None,
    label_logit: Tensor | None = None,
) -> CriterionInput:
    """Merge the forms of each value and normalize over the values, in float32 at least.

    `number_logits` are `[positions, number tokens]`, in the order of `tables.token_ids`; `log_normalizer` is
    `row_max` and `shifted_lse` of the `Readout`, without which there is no `log_mass`.
    """
    dtype = COMPUTED_IN[number_logits.dtype]
    # A clamp whose backward pass is a single operator.
    logits = F.threshold(number_logits.to(dtype), _MINUS_INFINITY, _MINUS_INFINITY)
    has_forms, log_mass = tables.has_several_forms, None
    if not has_forms and log_normalizer is None:
        log_probs = torch.log_softmax(logits, -1)
    else:
        # Differences of large logits are more precise than their logsumexp.
        highest = logits.detach().amax(-1)
        shifted = logits - highest.unsqueeze(-1)
        if has_forms:
            shifted = tables.merge_forms(shifted)
            logits = shifted + highest.unsqueeze(-1)
        log_probs = torch.log_softmax(shifted, -1)
        if log_normalizer is not None:
            row_max, shifted_lse = log_normalizer
            # Rounding may make the sum over the number tokens exceed the sum over the vocabulary.
            log_mass = ((highest - row_max) + (shifted.logsumexp(-1) - shifted_lse)).clamp(max=0)
    values = tables.values_in_float32 if dtype == torch.float32 else tables.values
    form_log_probs = None
    if label_logit is not None:
        of_value = logits.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        form_log_probs = label_logit.to(dtype) - of_value
    return CriterionInput(log_probs, values, target, log_mass, logits, spans, tables.has_form, form_log_probs)


def _check_criterion(criterion: Criterion) -> None:
    """Raise a TypeError unless a criterion is callable, and not a class."""
    if isinstance(criterion, type):
        raise TypeError(
            f"criterion={criterion.__name__} is a class: expected an instance, {criterion.__name__}()"
        )
    if not callable(criterion):
        raise TypeError(
            f"criterion={criterion!r}: expected a name of criterion_names(), or a callable of a "
            "CriterionInput, such as Wasserstein()"
        )
