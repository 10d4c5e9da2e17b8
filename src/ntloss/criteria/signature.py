"""What a criterion reads, from the names of its parameters; and criteria by name."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from torch import Tensor, nn

from ntloss.criteria import tokens, whole_numbers
from ntloss.criteria.facts import fact
from ntloss.criteria.hl_gauss import HLGauss
from ntloss.numbers.vocabulary import NumberVocabulary

Criterion = Callable[..., Tensor]

# What a criterion may read, as the names of its parameters. There is a row for each position whose label is a
# number; rows of other positions may be there, too, because shapes are static on accelerators and under
# `torch.compile`, and their losses are dropped. All floats are float32, or float64 for float64 logits.
READABLE = {
    "probs": "`[positions, values]`, the probability of each value among the number tokens",
    "log_probs": "`[positions, values]`, the logarithm of `probs`",
    "logits": "`[positions, values]`, the logit of each value, whose level `log_probs` does not have",
    "vocab_log_probs": "`[positions, values]`, the logarithm of each value's probability in the whole "
    "vocabulary: `log_probs` plus `log_mass`",
    "log_mass": "`[positions]`, log of the total probability of the number tokens in the vocabulary",
    "form_log_probs": "`[positions]`, log of the share of the label's own token among the tokens of its "
    "value (`4`, `▁4`), where the criterion replaces cross-entropy and a value has several tokens, else None",
    "values": "`[values]`, the distinct values of the number tokens, ascending",
    "target": "`[positions]`, index of the label's value in `values`",
    "target_probs": "`[positions, values]`, the distribution of the label over the values where soft labels "
    "are given, else None; a criterion without a default for it gets all probability on `target` instead",
    "place": "`[positions]`, decimal place of the label's last digit, a float: 0 for units, 1 for tens",
    "digits_after": "`[positions]`, number of digits after this token in its number, a float",
    "numbers": "`LabelNumbers`, the number of each label. A criterion that reads it sees all positions of "
    "the batch, and returns one loss for each number, at the number's first token",
    "digits": "`LabelNumbers` for a criterion with one loss for each token: targets on whole numbers",
    "number_sigma": "`[positions]`, standard deviation that is given for the label's number, NaN or 0 where "
    "none is; None if none is given at all",
    "cells": "`[2, kinds, values]`, bool, `cells[0, digits.kind]` says which values have a token of the "
    "label's length and sign, and `cells[1]` leaves out those with a leading 0; None if all tokens are given "
    "by value",
    "own_values": "`[values]`, bool, which values are those of tokens that are given by value, each a number "
    "of its own; None if there are none",
}
# Criteria by name, for configuration files.
CRITERIA: dict[str, Criterion | type[HLGauss]] = {
    **{name: vars(module)[name] for module in (tokens, whole_numbers) for name in module.__all__},
    "hl_gauss": HLGauss,
}
_LARGEST_UNIT = 100


def make_criterion(given: Criterion | str | Mapping[str, Any]) -> Criterion:
    """Return the criterion that is meant: a function itself, or the one with a name.

    Args:
        given: a function whose parameters are among `READABLE`, or have a default; one of `CRITERIA`;
            `"package.module:function"`, for configuration files; or a mapping of `name` and options.

    Returns:
        A function from what it reads to one loss for each position.

    Raises:
        ValueError: an unknown name or option.
        TypeError: `given` cannot be called, or a required parameter is not among `READABLE`.

    Example:
        >>> from ntloss.criteria import make_criterion
        >>> make_criterion({"name": "dist2", "tau": 0.5}).keywords
        {'tau': 0.5}
    """
    options: dict[str, Any] = {}
    if isinstance(given, Mapping):
        options = dict(given)
        if "name" not in options:
            raise ValueError(f"criterion={options}: expected a mapping with the key name, and its options")
        given = options.pop("name")
    made: Any = _look_up(given) if isinstance(given, str) else given
    if made is not HLGauss and (isinstance(made, type) or not callable(made)):
        raise TypeError(
            f"criterion={given!r}: expected a function, one of {', '.join(CRITERIA)}, 'module:function', or "
            "a mapping of name and options"
        )
    _check_options(made, options)
    if _function(made) is HLGauss:
        sizes = {**made.keywords, **options} if isinstance(made, partial) else options
        if "sigma" not in sizes:
            raise ValueError(
                "hl_gauss needs its width: expected HLGauss.for_answers(answers), which computes it, or "
                "{'name': 'hl_gauss', 'sigma': 2.0} with a number, or a start and an end"
            )
        return HLGauss(**sizes)
    criterion = cast(Criterion, partial(made, **options) if options else made)
    reads_of(criterion)
    return criterion


def _check_options(criterion: Any, options: Mapping[str, Any]) -> None:
    """Raise a ValueError if a function, or that of a partial, has no option of one of these names."""
    if isinstance(criterion, partial):  # may also set what it would read
        _check_options(criterion.func, {k: v for k, v in criterion.keywords.items() if k not in READABLE})
    criterion = _function(criterion)
    known = [p.name for p in _parameters(criterion) if p.name not in READABLE]
    if unknown := sorted(set(options) - set(known)):
        name = getattr(criterion, "__name__", criterion)
        raise ValueError(
            f"{name} has no option {', '.join(unknown)}; its options: {', '.join(known) or 'none'}"
        )


def _look_up(name: str) -> Any:
    if name in CRITERIA:
        return CRITERIA[name]
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ValueError(
            f"criterion={name!r}: expected one of {', '.join(CRITERIA)}, or 'module:function' for one of "
            "your own"
        )
    return getattr(importlib.import_module(module), attribute)


def reads_of(criterion: Criterion) -> tuple[str, ...]:
    """Return the names among `READABLE` that a criterion's parameters have.

    Raises:
        TypeError: a parameter without a default has another name.
    """
    parameters = _parameters(criterion)
    unknown = [
        p.name for p in parameters
        if p.name not in READABLE and p.default is p.empty and p.kind is not p.VAR_KEYWORD
    ]  # fmt: skip
    if unknown:
        raise TypeError(
            f"criterion {name_of(criterion)} reads {', '.join(unknown)}; a criterion may read "
            f"{', '.join(READABLE)}, and its options have defaults"
        )
    bound = criterion.keywords if isinstance(criterion, partial) else {}
    reads = tuple(p.name for p in parameters if p.name in READABLE and p.name not in bound)
    if not reads:
        raise TypeError(
            f"criterion {name_of(criterion)} reads nothing: expected some of {', '.join(READABLE)}"
        )
    return reads


def requires(criterion: Criterion, name: str) -> bool:
    """Return whether a criterion has a parameter of this name without a default."""
    return any(p.name == name and p.default is p.empty for p in _parameters(criterion))


def check_compares_distributions(criterion: Criterion) -> None:
    """Raise a ValueError unless a criterion reads the label's distribution, which soft labels need."""
    if "target_probs" not in reads_of(criterion):
        able = [name for name, each in CRITERIA.items() if "target_probs" in _names(each)]
        raise ValueError(
            f"criterion {name_of(criterion)} compares with one value, and cannot compare with a soft label: "
            f"expected one that reads target_probs ({', '.join(able)})"
        )


def option_of(criterion: Criterion, name: str) -> Any:
    """Return the value of a criterion's option, or None if it has no such option."""
    if isinstance(criterion, HLGauss):
        return getattr(criterion, name, None)
    for parameter in _parameters(criterion):
        if parameter.name == name:
            return parameter.default
    return None


def name_of(criterion: Criterion) -> str:
    """Return a criterion as a reader would write it: `ntl_was`, `dist2(tau=0.5)`, `HLGauss(sigma=2)`."""
    if isinstance(criterion, partial):
        options = ", ".join(f"{name}={value!r}" for name, value in criterion.keywords.items())
        return f"{name_of(criterion.func)}({options})"
    return str(getattr(criterion, "__name__", repr(criterion)))


def check_unit(criterion: Criterion, vocabulary: NumberVocabulary) -> None:
    """Raise a ValueError if a loss in the unit of the values would outweigh cross-entropy."""
    largest = max(map(abs, vocabulary.distinct_values))
    unbounded = fact(criterion, "in_units") and option_of(criterion, "squash") is None
    if not unbounded or largest <= _LARGEST_UNIT:
        return
    given = [token.value for token in vocabulary.value_tokens]
    if any(abs(value) > _LARGEST_UNIT for value in given):
        low, high = min(given), max(given)
        extent = high - low or abs(high)
        value = f"(value - {low:.15g})".replace("- -", "+ ") if low else "value"
        advice = (
            f"Divide the values by their range: {value} / {extent:.15g}. Or use HLGauss(sigma=...) or "
            "another bounded criterion (dist2, ntl_was with squash=2.0)."
        )
    else:
        advice = (
            "Use HLGauss.for_answers(answers) or another bounded criterion (dist2, number_level, ntl_was "
            "with squash=2.0), or a vocabulary of digits: NumberVocabulary.from_tokenizer(tokenizer, "
            "tokens='digits')."
        )
    raise ValueError(
        f"criterion {name_of(criterion)} is measured in the unit of the tokens' values, here up to "
        f"{largest:,.0f}, and would outweigh cross-entropy. {advice}"
    )


def _function(criterion: Any) -> Any:
    """Return the function behind partials and wrappers, such as those of `functools.wraps`."""
    while True:
        if isinstance(criterion, partial):
            criterion = criterion.func
        elif hasattr(criterion, "__wrapped__"):
            criterion = criterion.__wrapped__
        else:
            return criterion


def _names(criterion: Any) -> list[str]:
    return [parameter.name for parameter in _parameters(criterion)]


def _parameters(criterion: Any) -> list[inspect.Parameter]:
    if isinstance(criterion, partial) and isinstance(criterion.func, nn.Module):
        criterion = partial(criterion.func.forward, *criterion.args, **criterion.keywords)
    called = criterion.forward if isinstance(criterion, nn.Module) else criterion
    return list(inspect.signature(called).parameters.values())
