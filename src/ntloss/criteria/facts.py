"""What is known of a criterion, as attributes of its function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

_OF_FORMULA = ("fixed_target", "expected_cost", "spread")
_Function = TypeVar("_Function", bound=Callable[..., Any])


def facts(
    title: str,
    *,
    replaces: bool = False,
    in_units: bool = False,
    fixed_target: bool = False,
    expected_cost: bool = False,
    spread: bool = False,
) -> Callable[[_Function], _Function]:
    """Say what is known of a criterion: `facts` sets these as attributes of the function.

    Args:
        title: its name in tables, such as "NTL-WAS".
        replaces: its source uses it in place of cross-entropy at number labels. Default: False, beside it.
        in_units: its loss is in the unit of the values, so that it outweighs cross-entropy where these reach
            hundreds. Default: False.
        fixed_target: it is a cross-entropy with a target that depends on the label alone: minus the sum of
            weights times `log_probs` or `vocab_log_probs`. Default: False.
        expected_cost: it is the expected cost of a value drawn from `probs`. Default: False.
        spread: half the expected distance of two such values is subtracted from that. Default: False.

    Example:
        >>> import torch
        >>> from ntloss import NTLCrossEntropyLoss, NumberVocabulary
        >>> from ntloss.criteria import cross_entropy, facts, gaussian
        >>> @facts("wide Gaussian", fixed_target=True)
        ... def wide(vocab_log_probs, values, target):
        ...     return cross_entropy(gaussian(values, 2.0)[target], vocab_log_probs)
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> NTLCrossEntropyLoss(digits, wide).targets(torch.tensor([4])).token_ids.shape
        torch.Size([1, 10])
    """
    known = {"title": title, "replaces": replaces, "in_units": in_units, "fixed_target": fixed_target}
    known |= {"expected_cost": expected_cost, "spread": spread}

    def tell(function: _Function) -> _Function:
        for name, value in known.items():
            setattr(function, name, value)
        return function

    return tell


def fact(criterion: Any, name: str) -> Any:
    """Return what is known of a criterion, or of the function behind its options and wrappers; else None.

    Facts of an object, such as an `HLGauss`, are those of its `__call__`. A wrapper, such as one of
    `functools.wraps`, may compute anything from a cross-entropy, so nothing is known of how it is computed.
    """
    while isinstance(criterion, partial):
        criterion = criterion.func
    if not hasattr(criterion, "__code__"):
        criterion = (criterion if isinstance(criterion, type) else type(criterion)).__call__
    if not hasattr(criterion, "__wrapped__"):
        return getattr(criterion, name, None)
    return None if name in _OF_FORMULA else fact(criterion.__wrapped__, name)
