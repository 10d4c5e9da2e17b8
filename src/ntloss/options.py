"""Cross-entropy and a criterion over given, ordered options: decision models, rerankers, graders' heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss.criteria import Criterion, cross_entropy, make_criterion
from ntloss.criteria.signature import name_of, reads_of, requires
from ntloss.criteria.soft import check_probabilities
from ntloss.criteria.targets import MINUS_INFINITY, fact
from ntloss.engine.readout import COMPUTED_IN, given_type
from ntloss.engine.targets import (
    INTEGERS,
    OF_NUMBERS,
    Reduction,
    check_choice,
    check_weight,
    values_are_hidden,
)
from ntloss.engine.terms import without_autocast


def options_loss(
    logits: Tensor,
    target: Tensor | None,
    *,
    mask: Tensor | None = None,
    values: Tensor | Sequence[float] | None = None,
    criterion: Criterion | str | Mapping[str, Any] = "crps",
    weight: float | Tensor = 1.0,
    soft: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Compute cross-entropy plus `weight` times a criterion over the options of each question.

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
    check_choice("reduction", reduction, Reduction)
    check_weight(weight)
    reads = reads_of(criterion)
    if of_numbers := [name for name in reads if name in OF_NUMBERS]:
        raise ValueError(
            f"criterion {name_of(criterion)} reads {', '.join(of_numbers)} of whole numbers, but an option "
            "is one value: expected a criterion such as crps, or gaussian_smoothing for Gaussian targets"
        )
    if soft is not None and "target_probs" not in reads:
        raise ValueError(
            f"soft is given, but criterion {name_of(criterion)} reads {', '.join(reads)}: expected one that "
            "reads target_probs, such as crps or gaussian_smoothing"
        )
    label = _check_tensors(logits, target, mask, soft)
    shape, count = logits.shape[:-1], logits.shape[-1]
    logits = logits.to(COMPUTED_IN[logits.dtype])
    known = torch.arange(count, device=logits.device) if values is None else values
    known = torch.as_tensor(known, dtype=logits.dtype, device=logits.device)
    if known.shape not in (logits.shape, logits.shape[-1:]):
        raise ValueError(
            f"values of shape {list(known.shape)}: expected one for each option, {[count]}, or for each "
            f"option of each question, {list(logits.shape)}"
        )
    logits, known = logits.reshape(-1, count), known if known.dim() == 1 else known.reshape(-1, count)
    label = label.reshape(-1) if soft is None else label.reshape(-1, count).to(logits)
    has_option = None if mask is None else mask.reshape(-1, count)
    if not values_are_hidden() and (mask is not None or logits.device.type == "cpu"):
        _check_values(logits, known, label, has_option)
    with without_autocast(logits.device):
        loss = _loss_by_count(criterion, weight, logits, known, label, has_option)
    if reduction == "none":
        return loss.reshape(shape)
    return loss.sum() / max(len(loss), 1) if reduction == "mean" else loss.sum()


def _loss_by_count(
    criterion: Criterion,
    weight: float | Tensor,
    logits: Tensor,
    values: Tensor,
    label: Tensor,
    has_option: Tensor | None,
) -> Tensor:
    """Compute the loss of each question, those with equally many options at once, sorted by their values.

    `label` is the index of each question's option, or a distribution over the options.
    """
    if has_option is not None:  # options that a question does not have come last
        values = values.expand(logits.shape).masked_fill(~has_option, torch.inf)
    order = values.argsort(-1)
    index = order.expand(logits.shape)
    logits, values, is_soft = logits.gather(-1, index), values.gather(-1, order), label.dim() == 2
    label = label.gather(-1, index) if is_soft else (index == label.unsqueeze(-1)).int().argmax(-1)
    if values.dim() == 1:
        return _loss(criterion, weight, logits, values, label)

    def of_one(logits: Tensor, values: Tensor, label: Tensor) -> Tensor:
        return _loss(criterion, weight, logits.unsqueeze(0), values, label.unsqueeze(0)).squeeze(0)

    loss = logits[:, :0].sum(-1)  # zeros that support `backward()`
    counts = torch.full_like(index[:, 0], index.shape[-1]) if has_option is None else has_option.sum(-1)
    for count in set(counts.tolist()):
        rows = (counts == count).nonzero().squeeze(-1)
        labels = label[rows, :count] if is_soft else label[rows]
        found = torch.func.vmap(of_one)(logits[rows, :count], values[rows, :count], labels)
        loss = loss.index_copy(0, rows, found)
    return loss


def _loss(
    criterion: Criterion, weight: float | Tensor, logits: Tensor, values: Tensor, label: Tensor
) -> Tensor:
    """Compute the loss of questions that all have the same options, `[questions]`."""
    log_probs = torch.log_softmax(F.threshold(logits, MINUS_INFINITY, MINUS_INFINITY), -1)
    soft: Tensor | None = None
    if label.dim() == 2:
        soft, target = label, label.argmax(-1)
        ce = cross_entropy(soft, log_probs)
    else:
        target = label
        ce = logits.logsumexp(-1) - logits.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        if requires(criterion, "target_probs"):
            soft = F.one_hot(target, len(values)).to(log_probs)
    given = {"probs": log_probs.exp(), "log_probs": log_probs, "vocab_log_probs": log_probs, "logits": logits}
    given |= {"log_mass": torch.zeros_like(ce), "values": values, "target": target}
    term = criterion(
        **{name: soft if name == "target_probs" else given[name] for name in reads_of(criterion)}
    )
    if term.shape != target.shape:
        raise ValueError(
            f"criterion {name_of(criterion)} returned shape {list(term.shape)}: expected one loss for each "
            f"question, {list(target.shape)}"
        )
    weighted = weight * term
    weighted = weighted.masked_fill(term.isinf() & weighted.isnan(), 0)  # a weight of 0 switches it off
    return weighted if fact(criterion, "replaces") else ce + weighted


def _check_tensors(logits: Tensor, target: Tensor | None, mask: Tensor | None, soft: Tensor | None) -> Tensor:
    """Return target or soft; raise a TypeError or ValueError unless dtypes and shapes fit."""
    if (target is None) == (soft is None):
        raise ValueError("expected either target, the index of each question's option, or soft targets")
    for name, given, dtypes, expected in (
        ("logits", logits, tuple(COMPUTED_IN), "a floating-point tensor [..., options]"),
        ("target", target, INTEGERS, "a tensor of indices, torch.int64"),
        ("mask", mask, (torch.bool,), "a tensor of torch.bool, True for options that exist"),
        ("soft", soft, tuple(COMPUTED_IN), "a floating-point tensor of probabilities"),
    ):
        is_missing = given is None and name != "logits"
        if not is_missing and (not isinstance(given, Tensor) or given.dtype not in dtypes):
            raise TypeError(f"{name}: expected {expected}, given {given_type(given)}")
    if logits.dim() == 0 or not logits.shape[-1]:
        raise ValueError(f"logits of shape {list(logits.shape)}: expected [..., options], one or more")
    for name, given in {"target": target, "mask": mask, "soft": soft}.items():
        shape = logits.shape[:-1] if name == "target" else logits.shape
        if given is not None and given.shape != shape:
            raise ValueError(
                f"{name} of shape {list(given.shape)}: expected {list(shape)} for logits of shape "
                f"{list(logits.shape)}"
            )
    label: Any = target.long() if target is not None else soft
    return label  # type: ignore[no-any-return]


def _check_values(logits: Tensor, values: Tensor, label: Tensor, has_option: Tensor | None) -> None:
    """Raise a ValueError unless each question has options of different values, and a label among these."""
    has_option = torch.ones_like(logits, dtype=torch.bool) if has_option is None else has_option
    values = values.expand(logits.shape)
    gaps = values.masked_fill(~has_option, torch.inf).sort(-1).values.diff(dim=-1)
    problems = {
        "mask: no option": ~has_option.any(-1),
        "values: one is not finite": (has_option & ~values.isfinite()).any(-1),
        "values: two options have the same": (gaps == 0).any(-1),
    }
    if label.dim() == 2:
        check_probabilities("soft", label)
        problems["soft: a probability outside of the mask"] = (label.masked_fill(has_option, 0) > 0).any(-1)
    else:
        inside = (label >= 0) & (label < logits.shape[-1])
        at_label = has_option.gather(-1, label.clamp(0, logits.shape[-1] - 1).unsqueeze(-1)).squeeze(-1)
        problems["target: none of the options"] = ~(inside & at_label)
    for problem, rows in problems.items():
        if rows.any():
            row = int(rows.nonzero()[0, 0])
            own = {int(i): values[row, i].item() for i in has_option[row].nonzero().squeeze(-1)}
            asked = "" if label.dim() == 2 else f", and the target {int(label[row])}"
            raise ValueError(f"{problem}, in question {row} with the options and values {own}{asked}")
