"""Cross-entropy and a criterion over given, ordered options: decision models, rerankers, graders' heads."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss.criteria import Criterion, cross_entropy, make_criterion
from ntloss.criteria.facts import fact
from ntloss.criteria.signature import (
    check_compares_distributions,
    name_of,
    reads_of,
    requires,
)
from ntloss.criteria.soft import check_probabilities
from ntloss.criteria.targets import MINUS_INFINITY
from ntloss.engine.readout import COMPUTED_IN, values_are_hidden, without_autocast
from ntloss.engine.targets import FLOATS, OF_NUMBERS, REDUCTIONS, check_choice, check_weight, given_type

_INTEGERS = (torch.int64, torch.int32)


def options_loss(
    logits: Tensor,
    target: Tensor | None,
    *,
    mask: Tensor | None = None,
    values: Tensor | Sequence[float] | None = None,
    criterion: Criterion | str | Mapping[str, Any] = "crps",
    weight: float | Tensor = 1.0,
    soft: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""Compute cross-entropy plus `weight` times a criterion over the options of each question.

    A model that scores given options has one logit for each: a classifier of ordered classes, the score
    question of a decision model, the head of a reranker or of a model that grades. This is the loss of
    `NTLCrossEntropyLoss` on a vocabulary that consists of these options. With the default criterion, `crps`,
    the second term is the ranked probability score.

    Args:
        logits: `[..., options]`, any float dtype; softmax and sums are computed in float32 or float64.
        target: `[...]`, index of each question's option; None with `soft`.
        mask: `[..., options]`, bool, True for the options that a question has. Logits of other options are
            not read. Default: all.
        values: `[options]`, or `[..., options]` for questions with different values; those of one question
            differ. Default: 0, 1, 2 and so on, each option's index.
        criterion: see `NTLCrossEntropyLoss`; one that does not look at whole numbers. `gaussian_smoothing`
            and `raft` take the place of cross-entropy.
        weight: factor of the criterion. Default: 1.
        soft: `[..., options]`, a distribution over the options in place of `target`, such as the shares of
            raters who chose them; for criteria that read `target_probs`.
        reduction: "mean" (default) over the questions, "sum", or "none".

    Returns:
        A scalar, or `[...]` for "none", in float32 or float64. Without a question, a zero that supports
        `backward()`.

    Raises:
        TypeError: logits, target or mask have another dtype.
        ValueError: shapes do not fit, a question has no option, a target is none of its options, two of its
            values are the same, soft targets are negative or do not add up to 1, or the criterion looks at
            whole numbers, or at the label's value alone where `soft` is given. Without a mask, values on
            accelerators are not checked.

    Source: the ranked probability score is Epstein's, Journal of Applied Meteorology 1969; see `crps`.

    Example:
        >>> from ntloss import options_loss
        >>> logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 0.0]])
        >>> options_loss(logits, torch.tensor([0, 1]))
        tensor(0.3134)
        >>> has_option = torch.tensor([[True, True, True], [True, True, False]])
        >>> options_loss(logits, torch.tensor([0, 1]), mask=has_option)
        tensor(0.2893)
    """
    criterion = make_criterion(criterion)
    check_choice("reduction", reduction, REDUCTIONS)
    check_weight(weight)
    _check_criterion(criterion, soft)
    _check_tensors(logits, target, mask, soft)
    shape, count = logits.shape[:-1], logits.shape[-1]
    logits = logits.to(COMPUTED_IN[logits.dtype])
    known = _as_values(values, logits)
    questions = _Questions(
        logits.reshape(-1, count),
        known if known.dim() == 1 else known.reshape(-1, count),
        None if target is None else target.reshape(-1).long(),
        None if soft is None else soft.reshape(-1, count).to(logits),
        None if mask is None else mask.reshape(-1, count),
    )
    if not values_are_hidden() and (mask is not None or logits.device.type == "cpu"):
        _check_values(questions)
    with without_autocast(logits.device):
        loss = _loss_of(criterion, weight, questions)
    if reduction == "none":
        return loss.reshape(shape)
    return loss.sum() / max(len(loss), 1) if reduction == "mean" else loss.sum()


class _Questions(NamedTuple):
    logits: Tensor  # `[questions, options]`
    values: Tensor  # `[options]`, or `[questions, options]`
    target: Tensor | None  # `[questions]`, index of the option
    soft: Tensor | None  # `[questions, options]`
    has_option: Tensor | None  # `[questions, options]`, None for all

    def by_value(self) -> _Questions:
        """Sort the options by their values, and those that a question does not have to the end."""
        logits, values, target, soft, has_option = self
        if has_option is not None:
            values = values.expand(logits.shape).masked_fill(~has_option, torch.inf)
        order = values.argsort(-1)
        index = order.expand(logits.shape)
        return _Questions(
            logits.gather(-1, index),
            values.gather(-1, order),
            None if target is None else (index == target.unsqueeze(-1)).int().argmax(-1),
            None if soft is None else soft.gather(-1, index),
            None if has_option is None else has_option.gather(-1, index),
        )

    def select(self, rows: Tensor, count: int) -> _Questions:
        """Select some questions, each with its first options."""
        logits, values, target, soft, _ = self
        return _Questions(
            logits[rows, :count],
            values[:count] if values.dim() == 1 else values[rows, :count],
            None if target is None else target[rows],
            None if soft is None else soft[rows, :count],
            None,
        )


def _loss_of(criterion: Criterion, weight: float | Tensor, questions: _Questions) -> Tensor:
    """Compute the loss of each question, those with equally many options at once."""
    questions = questions.by_value()
    logits, has_option = questions.logits, questions.has_option
    if has_option is None and questions.values.dim() == 1:
        return _loss_of_same(criterion, weight, questions)
    if has_option is None:
        has_option = torch.ones_like(logits, dtype=torch.bool)
    counts = has_option.sum(-1)
    loss = logits[:, :0].sum(-1)  # zeros that support `backward()`
    for count in set(counts.tolist()):
        rows = (counts == count).nonzero().squeeze(-1)
        some = questions.select(rows, count)
        given = {name: each for name, each in some._asdict().items() if each is not None}
        of_one = functools.partial(_loss_of_one, criterion, weight)
        loss = loss.index_copy(0, rows, torch.func.vmap(of_one)(given))
    return loss


def _loss_of_one(criterion: Criterion, weight: float | Tensor, given: Mapping[str, Tensor]) -> Tensor:
    """Compute the loss of a question with values of its own, from its fields but those that are None."""
    rows = {name: each if name == "values" else each.unsqueeze(0) for name, each in given.items()}
    questions = _Questions(**{"target": None, "soft": None, "has_option": None, **rows})  # type: ignore[arg-type]
    return _loss_of_same(criterion, weight, questions).squeeze(0)


def _loss_of_same(criterion: Criterion, weight: float | Tensor, questions: _Questions) -> Tensor:
    """Compute the loss of questions that all have the same options, `[questions]`."""
    logits, values, target, soft, _ = questions
    log_probs = torch.log_softmax(F.threshold(logits, MINUS_INFINITY, MINUS_INFINITY), -1)
    if target is None:
        assert soft is not None
        target = soft.argmax(-1)
        ce = cross_entropy(soft, log_probs)
    else:
        ce = logits.logsumexp(-1) - logits.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        if requires(criterion, "target_probs"):
            soft = F.one_hot(target, len(values)).to(log_probs)
    given = {
        "probs": log_probs.exp(),
        "log_probs": log_probs,
        "logits": logits,
        "vocab_log_probs": log_probs,
        "log_mass": torch.zeros_like(ce),
        "form_log_probs": None,
        "values": values,
        "target": target,
        "target_probs": soft,
    }
    term = criterion(**{name: given[name] for name in reads_of(criterion)})
    if term.shape != target.shape:
        raise ValueError(
            f"criterion {name_of(criterion)} returned shape {list(term.shape)}: expected one loss for each "
            f"question, {list(target.shape)}"
        )
    weighted = weight * term
    weighted = weighted.masked_fill(term.isinf() & weighted.isnan(), 0)  # a weight of 0 switches it off
    return weighted if fact(criterion, "replaces") else ce + weighted


def _as_values(values: Tensor | Sequence[float] | None, logits: Tensor) -> Tensor:
    """Return the options' values in the dtype and on the device of the logits."""
    if values is None:
        return torch.arange(logits.shape[-1], dtype=logits.dtype, device=logits.device)
    given = torch.as_tensor(values, dtype=logits.dtype, device=logits.device)
    if given.shape not in (logits.shape, logits.shape[-1:]):
        raise ValueError(
            f"values of shape {list(given.shape)}: expected one for each option, {list(logits.shape[-1:])}, "
            f"or for each option of each question, {list(logits.shape)}"
        )
    return given


def _check_criterion(criterion: Criterion, soft: Tensor | None) -> None:
    """Raise a ValueError if a criterion reads what options do not have."""
    if of_numbers := [name for name in reads_of(criterion) if name in OF_NUMBERS]:
        raise ValueError(
            f"criterion {name_of(criterion)} reads {', '.join(of_numbers)} of whole numbers, but an option "
            "is one value: expected a criterion such as crps, or gaussian_smoothing for Gaussian targets"
        )
    if soft is not None:
        check_compares_distributions(criterion)


def _check_tensors(logits: Tensor, target: Tensor | None, mask: Tensor | None, soft: Tensor | None) -> None:
    """Raise a TypeError or ValueError unless dtypes and shapes fit."""
    if not isinstance(logits, Tensor) or logits.dtype not in FLOATS:
        raise TypeError(
            f"logits: expected a floating-point tensor [..., options], given {given_type(logits)}"
        )
    if logits.dim() == 0 or not logits.shape[-1]:
        raise ValueError(
            f"logits of shape {list(logits.shape)}: expected [..., options], at least one option"
        )
    if (target is None) == (soft is None):
        raise ValueError("expected either target, the index of each question's option, or soft targets")
    if target is not None and (not isinstance(target, Tensor) or target.dtype not in _INTEGERS):
        raise TypeError(f"target: expected a tensor of indices, torch.int64, given {given_type(target)}")
    if mask is not None and (not isinstance(mask, Tensor) or mask.dtype != torch.bool):
        raise TypeError(
            f"mask: expected a tensor of torch.bool, True for options that exist, given {given_type(mask)}"
        )
    if soft is not None and (not isinstance(soft, Tensor) or soft.dtype not in FLOATS):
        raise TypeError(f"soft: expected a floating-point tensor of probabilities, given {given_type(soft)}")
    for name, given, expected in (
        ("target", target, logits.shape[:-1]),
        ("mask", mask, logits.shape),
        ("soft", soft, logits.shape),
    ):
        if given is not None and given.shape != expected:
            raise ValueError(
                f"{name} of shape {list(given.shape)}: expected {list(expected)} for logits of shape "
                f"{list(logits.shape)}"
            )


def _check_values(questions: _Questions) -> None:
    """Raise a ValueError unless each question has options of different values, and a target among these."""
    logits, values, target, soft, has_option = questions
    count = logits.shape[-1]
    has_option = torch.ones_like(logits, dtype=torch.bool) if has_option is None else has_option
    if not has_option.any(-1).all():
        row = int((~has_option.any(-1)).nonzero()[0, 0])
        raise ValueError(f"mask: question {row} has no option")
    values = values.expand(logits.shape)
    if not values[has_option].isfinite().all():
        raise ValueError(f"values contain {values[has_option & ~values.isfinite()][0].item()}")
    gaps = values.masked_fill(~has_option, torch.inf).sort(-1).values.diff(dim=-1)
    if (gaps == 0).any():
        row = int((gaps == 0).any(-1).nonzero()[0, 0])
        raise ValueError(
            f"values: two options of question {row} have the same value among "
            f"{values[row][has_option[row]].tolist()}"
        )
    if target is not None:
        inside = (target >= 0) & (target < count)
        inside &= has_option.gather(-1, target.clamp(0, count - 1).unsqueeze(-1)).squeeze(-1)
        if not inside.all():
            row = int((~inside).nonzero()[0, 0])
            raise ValueError(
                f"target {int(target[row])} of question {row}: expected one of its options, "
                f"{has_option[row].nonzero().squeeze(-1).tolist()}"
            )
    if soft is not None:
        check_probabilities("soft", soft)
        if (soft.masked_fill(has_option, 0) > 0).any():
            row = int((soft.masked_fill(has_option, 0) > 0).any(-1).nonzero()[0, 0])
            raise ValueError(f"soft: question {row} has a probability at an option outside of its mask")
