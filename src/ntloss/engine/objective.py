"""Third stage: the loss of each position from its readout and targets, the same for every path."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ntloss.criteria import Criterion, CriterionInput, Wasserstein, bind, needs_of, reweigh_by_mass, worst_of
from ntloss.engine.readout import Readout, without_autocast
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


class Objective(nn.Module):
    """Cross-entropy and number term of each position, with the arguments of `NTLCrossEntropyLoss`.

    It owns the criterion and binds it to the values, once per device and dtype. `worst` is the criterion's
    worst cost if the loss is reweighed, else None.
    """

    def __init__(
        self,
        vocabulary: NumberVocabulary,
        criterion: Criterion | None = None,
        reweigh: bool = False,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
    ) -> None:
        super().__init__()
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing={label_smoothing!r}: expected 0 to 1")
        if not 0 <= z_loss < math.inf:
            raise ValueError(f"z_loss={z_loss!r}: expected 0 or more")
        self.criterion = Wasserstein() if criterion is None else criterion
        self.worst = _check_criterion(self.criterion, vocabulary.value_tensor(), reweigh)
        self.needs = needs_of(self.criterion)
        if getattr(self.criterion, "decimals", False):  # requested, not a default
            warn_without_point(vocabulary)
        self.needs_log_normalizer = self.worst is not None or self.needs.log_normalizer
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
                dtype: bind(self.criterion, values, torch.empty(0, dtype=dtype, device=self.device))
                for dtype in {torch.float32, self.tables.values.dtype}
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

        A tensor `weight` gets no gradient.
        """
        ce = readout.log_sum_exp + (readout.row_max - readout.label_logit)
        if self.label_smoothing:
            smooth = readout.log_sum_exp + (readout.row_max - readout.mean_logit)
            ce = (1 - self.label_smoothing) * ce + self.label_smoothing * smooth
        # Positions without weight contribute exactly zero, even if their cross-entropy is infinite.
        ce = torch.where(targets.ce_weights != 0, ce, 0) * targets.ce_weights
        ntl = self.number_term(readout, targets)
        loss = ce + (weight.detach() if isinstance(weight, Tensor) else weight) * ntl
        if self.z_loss:
            # Mask before squaring, because 0 times an infinite derivative is NaN.
            normalizer = torch.where(targets.item_weights != 0, readout.row_max + readout.log_sum_exp, 0)
            loss = loss + self.z_loss * normalizer.square() * targets.item_weights
        ce, ntl = ce.detach(), ntl.detach()
        if targets.shape is None:
            return LossTerms(loss.sum(), ce.sum(), ntl.sum())
        return LossTerms(*(term.reshape(targets.shape) for term in (loss, ce, ntl)))

    def number_term(self, readout: Readout, targets: Targets) -> Tensor:
        """Compute the weighted number term of each position: `[positions]`."""
        row_max, log_sum_exp, number_logits = readout.row_max, readout.log_sum_exp, readout.number_logits
        has_normalizer = len(row_max) == len(number_logits)
        target, weights, rows = targets.target, targets.number_weights, targets.number_rows
        if rows is not None:  # with a thousand number tokens, computing all positions would cost more
            target, weights, number_logits = target[rows], weights[rows], number_logits.index_select(0, rows)
            if has_normalizer:
                row_max, log_sum_exp = row_max[rows], log_sum_exp[rows]
        else:
            # The logits of other positions may be NaN.
            counted = targets.counted if self.needs.across_positions else weights != 0
            number_logits = torch.where(counted.unsqueeze(-1), number_logits, 0)
            if has_normalizer:
                row_max, log_sum_exp = torch.where(counted, row_max, 0), torch.where(counted, log_sum_exp, 0)
        with without_autocast(target.device):
            normalizer = (row_max, log_sum_exp) if has_normalizer else None
            spans = targets.spans if rows is None or targets.spans is None else targets.spans.select(rows)
            x = criterion_input(self.tables, number_logits, target, normalizer, spans)
            loss = self._bound[x.log_probs.dtype](x)
            if loss.shape != target.shape:
                raise ValueError(
                    f"criterion {self.criterion!r} returned shape {list(loss.shape)}: expected one loss for "
                    f"each position, {list(target.shape)}"
                )
            if self.worst is not None:
                assert x.log_mass is not None  # because the objective needs the log-normalizer
                loss = reweigh_by_mass(loss, x.log_mass, self.worst)
            # Positions without weight contribute exactly zero, even if their loss is infinite.
            term = torch.where(weights != 0, loss, 0) * weights
        return term if rows is None else term.new_zeros(len(targets.target)).index_copy(0, rows, term)


def criterion_input(
    tables: NumberTables,
    number_logits: Tensor,
    target: Tensor,
    log_normalizer: tuple[Tensor, Tensor] | None = None,
    spans: NumberSpans | None = None,
) -> CriterionInput:
    """Merge the forms of each value and normalize over the values, in float32 at least.

    `number_logits` are `[positions, number tokens]`, in the order of `tables.token_ids`; `log_normalizer` is
    `row_max` and `log_sum_exp` of the `Readout`, without which there is no `log_mass`.
    """
    dtype = torch.promote_types(number_logits.dtype, torch.float32)
    number_logits = number_logits.to(dtype).clamp(min=_MINUS_INFINITY)
    # Differences of large logits are more precise than their logsumexp.
    highest = number_logits.detach().amax(-1)
    merged = number_logits - highest.unsqueeze(-1)
    if len(tables.token_ids) > len(tables.values):
        merged = tables.merge_forms(merged)
    number_log_sum = merged.exp().sum(-1).log()
    log_mass = None
    if log_normalizer is not None:
        row_max, log_sum_exp = log_normalizer
        # Rounding may make the sum over the number tokens exceed the sum over the vocabulary.
        log_mass = ((highest - row_max) + (number_log_sum - log_sum_exp)).clamp(max=0)
    return CriterionInput(
        log_probs=merged - number_log_sum.unsqueeze(-1),
        values=tables.values.to(dtype),
        target=target,
        log_mass=log_mass,
        number_logsumexp=highest + number_log_sum,
        spans=spans,
        has_form=tables.has_form,
    )


def _check_criterion(criterion: Criterion, values: Tensor, reweigh: bool) -> float | None:
    """Check a criterion and return its worst cost if the loss is reweighed."""
    if isinstance(criterion, type):
        raise TypeError(
            f"criterion={criterion.__name__} is a class: expected an instance, {criterion.__name__}()"
        )
    if not callable(criterion):
        raise TypeError(
            f"criterion={criterion!r}: expected a callable of a CriterionInput, such as Wasserstein() or "
            "get_criterion(name)"
        )
    if not reweigh:
        return None
    worst = worst_of(criterion, values)
    if worst is None:
        raise ValueError(
            "reweigh=True needs a criterion with a worst cost (a method `worst` that returns a number), and "
            f"{criterion!r} has none: omit reweigh"
        )
    return worst
