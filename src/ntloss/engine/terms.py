"""Third stage: the number term of each position from its readout and targets, the same for every path."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ntloss.criteria import Criterion, HLGauss, make_criterion
from ntloss.criteria.signature import name_of, option_of, reads_of, requires
from ntloss.criteria.targets import MINUS_INFINITY, fact
from ntloss.engine.readout import COMPUTED_IN, Readout
from ntloss.engine.targets import (
    IGNORED,
    OF_NUMBERS,
    LabelReader,
    Mode,
    NumberTables,
    Targets,
    check_choice,
    values_are_hidden,
)
from ntloss.numbers.labels import LabelNumbers
from ntloss.numbers.vocabulary import NumberVocabulary, warn_once, warn_without_point

# What a criterion may read of the number tokens' probability in the vocabulary.
_OF_MASS = {"log_mass", "vocab_log_probs"}
# Devices on which the number term is compiled.
COMPILED_ON: tuple[str, ...] = ("cuda", "xpu")
_compiler_is_missing = False


class LossTerms(NamedTuple):
    """A combined loss and its terms.

    Args:
        loss: `ce + weight * ntl`, on which `backward()` works.
        ce: cross-entropy, detached.
        ntl: the number term before its weight, detached.
    """

    loss: Tensor
    ce: Tensor
    ntl: Tensor


class NumberTerm(nn.Module):
    """A criterion on a vocabulary: how wrong the number is at each position.

    Args:
        vocabulary: the number tokens.
        criterion, mode, ignore_index, shift: see `NTLCrossEntropyLoss`.

    Attributes:
        reads: the names among `criteria.READABLE` that the criterion reads.
        reader: how labels are prepared for the criterion.
        reads_mass: whether it depends on the probability of all number tokens in the vocabulary.
        gradient_reads_mass: whether its gradient does, too, which that of a cross-entropy does not.
        learns_form: whether the term, where it replaces cross-entropy, adds that of the label's token among
            the tokens of its value (`4`, `▁4`), as one on tokens does that reads `vocab_log_probs`.
    """

    def __init__(
        self,
        vocabulary: NumberVocabulary,
        criterion: Criterion | str | Mapping[str, Any] | None,
        mode: Mode | None = None,
        ignore_index: int = IGNORED,
        shift: bool = False,
    ) -> None:
        super().__init__()
        self.criterion = None if criterion is None else make_criterion(criterion)
        self.reads = () if self.criterion is None else reads_of(self.criterion)
        self._requires_target_probs = self.criterion is not None and requires(self.criterion, "target_probs")
        decimals = None if self.criterion is None else option_of(self.criterion, "decimals")
        if decimals and not isinstance(self.criterion, HLGauss):  # requested, not a default
            warn_without_point(vocabulary)
        self.tables = NumberTables(vocabulary, cells="cells" in self.reads)
        if mode is not None:
            check_choice("mode", mode, Mode)
        if self.criterion is None:
            mode = "add"  # nothing replaces cross-entropy
        elif mode is None:
            mode = "replace" if fact(self.criterion, "replaces") else "add"
        # A decimal point belongs to its number, unless the criterion has an option that says otherwise.
        with_decimals, given = decimals in (None, True), self.criterion
        fields = (given.fields, given.by) if isinstance(given, HLGauss) and given.fields else None
        made_for = f"ignore_index={ignore_index}, shift={shift}"
        if self.criterion is not None:
            names, by = fields or (None, None)
            finder = getattr(by, "__qualname__", by)  # the text of a function has an address
            read = repr((vocabulary.tokens, vocabulary.thousands, with_decimals, names, finder))
            of_labels = ["target", *(n for n in self.reads if n in OF_NUMBERS or n == "target_probs")]
            made_for += f", {' and '.join(of_labels)} of the number tokens {zlib.crc32(read.encode()):08x}"
        of_loss = ignore_index, shift, mode, made_for
        self.reader = LabelReader(vocabulary, self.reads, with_decimals, fields, *of_loss)
        has_digits = any(t.kind or (t.digits and "cells" not in self.reads) for t in vocabulary.tokens)
        of_numbers = [name for name in self.reads if name in OF_NUMBERS]
        if self.criterion is not None and of_numbers and not has_digits:
            raise ValueError(
                f"criterion {name_of(self.criterion)} reads {', '.join(of_numbers)}, known only of numbers "
                "that tokens such as '4' or '12' write, but no number token is like these (the first is "
                f"{vocabulary.tokens[0].text!r}): expected a criterion that compares values of single "
                "tokens, such as crps or gaussian_smoothing"
            )
        self.reads_mass = not _OF_MASS.isdisjoint(self.reads)
        self.gradient_reads_mass = self.reads_mass and not fact(self.criterion, "fixed_target")
        of_tokens = "vocab_log_probs" in self.reads and "numbers" not in self.reads
        self.learns_form = of_tokens and self.tables.has_several_forms

    def move_to(self, device: torch.device) -> None:
        """Move the tables to a device; a RuntimeError in compiled code."""
        if torch.compiler.is_compiling():
            raise RuntimeError(
                f"the loss is on {self.tables.values.device}, its input on {device}: call loss.to(device) "
                "before torch.compile"
            )
        self.tables.to(device)  # not the criterion's parameters: they are the caller's
        self._move_sigma()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> NumberTerm:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._move_sigma()
        return self

    def _move_sigma(self) -> None:
        if isinstance(self.criterion, HLGauss):
            self.criterion.to(self.tables.values.device)

    def forward(self, readout: Readout, targets: Targets) -> Tensor:
        """Compute the weighted number term: its sum or, if the losses are not summed, of each position."""
        row_max, shifted_lse, number_logits = readout.row_max, readout.shifted_lse, readout.number_logits
        if self.criterion is None:
            return torch.zeros_like(row_max.sum() if targets.is_sum else row_max)
        if row_max.device.type in COMPILED_ON and not (_compiler_is_missing or values_are_hidden()):
            return self._compiled(readout, targets)
        target, weights, rows = targets.target, targets.number_weights, targets.number_rows
        labels = targets.labels if targets.replaces and self.learns_form else None
        beside = targets.numbers, targets.soft, targets.sigma
        if rows is not None:  # with a thousand number tokens, computing all positions would cost more
            target, weights, number_logits = target[rows], weights[rows], number_logits.index_select(0, rows)
            if self.reads_mass:
                row_max, shifted_lse = row_max[rows], shifted_lse[rows]
            labels, *beside = (None if each is None else each[rows] for each in (labels, *beside))  # type: ignore[assignment]
        else:
            # The logits of other positions may be NaN. A criterion on whole numbers reads all tokens of a
            # number whose first token has a weight, and may read its neighbors.
            weightless = weights == 0
            out = targets.labels < 0 if "numbers" in self.reads else weightless
            if targets.left_out is not None:
                out = out | targets.left_out
            target, number_logits = target.clamp(min=0), number_logits.masked_fill(out.unsqueeze(-1), 0)
            if self.reads_mass:
                row_max, shifted_lse = row_max.masked_fill(out, 0), shifted_lse.masked_fill(out, 0)
        with without_autocast(target.device):
            normalizer = (row_max, shifted_lse) if self.reads_mass else None
            given = self.readable(number_logits, normalizer, (target, *beside), self.reads)
            loss = self.criterion(**{name: given[name] for name in self.reads})
            if not isinstance(loss, Tensor) or loss.shape != target.shape:
                returned = f"shape {list(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
                raise ValueError(
                    f"criterion {name_of(self.criterion)} returned {returned}: expected one loss for each "
                    f"position, {list(target.shape)}"
                )
            if labels is not None:
                form = self._form_log_probs(number_logits, given["logits"], labels, beside[1])
                loss = loss - form
            if rows is None:  # else no weight is 0
                loss = loss.masked_fill(weightless, 0)
            term = loss * weights
        if targets.is_sum:
            return term.sum()
        return term if rows is None else term.new_zeros(len(targets.target)).index_copy(0, rows, term)

    def _form_log_probs(
        self, number_logits: Tensor, logits: Tensor, labels: Tensor, soft: Tensor | None
    ) -> Tensor:
        """Compute the log of the share of the label's token among the tokens of its value, `[positions]`."""
        if soft is None:
            soft = (labels.unsqueeze(-1) == self.tables.token_ids).to(logits)
        of_value = logits.index_select(-1, self.tables.value_of_label[self.tables.token_ids])
        return torch.where(soft > 0, soft * (number_logits.to(logits) - of_value), 0).sum(-1)

    def _compiled(self, readout: Readout, targets: Targets) -> Tensor:
        """Compute the term of an accelerator compiled, because its cost is the number of its launches."""
        global _compiler_is_missing
        try:
            return compiled_term()(self, readout, targets)
        except RuntimeError as error:
            from torch._dynamo.exc import TorchDynamoException  # slow to import

            if not isinstance(error, TorchDynamoException):
                raise
            _compiler_is_missing = True
            try:
                term: Tensor = self(readout, targets)
            except Exception:  # what is wrong is the criterion
                _compiler_is_missing = False
                raise
            warn_once(
                f"the number term could not be compiled ({type(error).__name__}), so that it takes several "
                "times as many launches: install Triton and a C compiler"
            )
            return term

    def readable(
        self,
        number_logits: Tensor,
        normalizer: tuple[Tensor, Tensor] | None,
        labels: tuple[Tensor | None, ...],
        reads: Collection[str],
    ) -> dict[str, Any]:
        """Compute what is read of `criteria.READABLE`, floats in float32 at least.

        Args:
            number_logits: `[positions, number tokens]`, in the order of `tables.token_ids`, whose forms of
                each value are merged.
            normalizer: `row_max` and `shifted_lse` of the `Readout`, which only `log_mass` and
                `vocab_log_probs` need.
            labels: `target`, `numbers`, `soft` and `sigma` of the `Targets`; empty for none.
            reads: the names of what is read.
        """
        dtype, tables = COMPUTED_IN[number_logits.dtype], self.tables
        # A clamp whose backward pass is a single operator; so is `hardtanh` below.
        logits = F.threshold(number_logits.to(dtype), MINUS_INFINITY, MINUS_INFINITY)
        shifted: Tensor = logits
        highest: Tensor | None = None
        if tables.has_several_forms or "log_mass" in reads:
            # Differences of large logits are more precise than their logsumexp.
            highest = logits.detach().amax(-1)
            shifted = tables.merge_forms(logits - highest.unsqueeze(-1))
            logits = shifted + highest.unsqueeze(-1) if tables.has_several_forms else logits
        values = tables.values_in_float32 if dtype == torch.float32 else tables.values
        given: dict[str, Any] = {"logits": logits, "values": values}
        if normalizer is not None:
            # Rounding may make the sum over the number tokens exceed the sum over the vocabulary.
            row_max, shifted_lse = normalizer
            row_max = row_max if highest is None else row_max - highest
            if "vocab_log_probs" in reads:
                log_probs = (shifted - row_max.unsqueeze(-1)) - shifted_lse.unsqueeze(-1)
                given["vocab_log_probs"] = F.hardtanh(log_probs, torch.finfo(dtype).min, 0.0)
            if "log_mass" in reads:
                given["log_mass"] = ((shifted.logsumexp(-1) - shifted_lse) - row_max).clamp(max=0)
        if "log_probs" in reads:
            given["log_probs"] = torch.log_softmax(shifted, -1)
        if "probs" in reads:  # without a gradient through logarithms that nothing else reads
            given["probs"] = given["log_probs"].exp() if "log_probs" in given else shifted.softmax(-1)
        if not labels:
            return given
        target, packed, soft, sigma = labels
        numbers = None if packed is None else LabelNumbers.unpack(packed)
        given |= {"target": target, "numbers": numbers, "digits": numbers, "number_sigma": sigma}
        given |= {"cells": tables.cells, "own_values": tables.own_values, "target_probs": None}
        if soft is not None:  # the weights of the forms of each value add up
            of_value = tables.value_of_label[tables.token_ids]
            given["target_probs"] = torch.zeros_like(logits).index_add(-1, of_value, soft.to(logits))
        elif self._requires_target_probs and target is not None:
            nothing = torch.zeros_like(logits)  # not F.one_hot, which reads the values
            given["target_probs"] = nothing.scatter(-1, target.unsqueeze(-1), 1)
        if numbers is not None:  # floats, so that powers of them are as precise as the loss
            columns = {"place": numbers.place, "digits_after": numbers.after}
            given |= {n: c.to(logits) for n, c in columns.items() if n in reads}
        return given

    def fixed_target(self, targets: Targets) -> Tensor:
        """Return the distribution whose cross-entropy the criterion is: `[positions, values]`, float64.

        It is minus the derivative by the log-probabilities, which is the same for all predictions. Rows of
        positions without a number term mean nothing.

        Raises:
            ValueError: the criterion has no fixed target.
        """
        if self.criterion is None:
            return torch.zeros(len(targets.target), len(self.tables.values), dtype=torch.float64)
        if not fact(self.criterion, "fixed_target"):
            raise ValueError(
                f"criterion {name_of(self.criterion)} has no fixed target: its weights depend on the model's "
                "probabilities. Expected HLGauss, gaussian_smoothing, dist2, or one of your own with "
                '@facts("title", fixed_target=True); or a trainer\'s forward_backward_custom, with '
                "loss_fn.candidates(labels) as its target tokens and loss_fn.from_log_probs(log_probs, "
                "labels) as the loss"
            )
        values, labels = self.tables.values, (targets.numbers, targets.soft, targets.sigma)
        logits = values.new_zeros(len(targets.target), len(self.tables.token_ids))
        given = self.readable(logits, None, (targets.target.clamp(min=0), *labels), self.reads)
        log_probs = values.new_zeros(len(logits), len(values)).requires_grad_()
        given |= {"log_probs": log_probs, "vocab_log_probs": log_probs, "log_mass": logits[:, 0]}
        with torch.enable_grad():
            loss = self.criterion(**{name: given[name] for name in self.reads})
        return -torch.autograd.grad(loss.sum(), log_probs)[0]


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Context manager that disables autocast on a device."""
    # The compiler of torch 2.7 cannot trace these.
    if not torch.compiler.is_compiling() and not (
        torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
    ):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


@cache
def compiled_term() -> Callable[..., Tensor]:
    """Return `NumberTerm.forward`, compiled once for batches of any size."""
    compiled: Callable[..., Tensor] = torch.compile(NumberTerm.forward, dynamic=True)
    return compiled
