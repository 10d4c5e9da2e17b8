"""What a criterion reads, from the names of its parameters; and criteria by name."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from ntloss.criteria import tokens, whole_numbers
from ntloss.criteria.targets import HLGauss, fact
from ntloss.numbers.vocabulary import NumberVocabulary

Criterion = Callable[..., Tensor]

# What a criterion may read, as the names of its parameters. There is a row for each position whose label is a
# number; rows of other positions may be there, too, because shapes are static on accelerators and under
# `torch.compile`, and their losses are dropped. All floats are float32, or float64 for float64 logits.
READABLE = {
    "probs": "`[positions, values]`, the probability of each value among the number tokens",
    "log_probs": "`[positions, values]`, the logarithm of `probs`",
    "logits": "`[positions, values]`, the logit of each value, whose level `log_probs` does not have",
    "vocab_log_probs": "`[positions, values]`, `log_probs` plus `log_mass`; beside a criterion that reads it "
    "in place of cross-entropy, the loss also learns which token of its value (`4`, `▁4`) the label is",
    "log_mass": "`[positions]`, log of the total probability of the number tokens in the vocabulary",
    "values": "`[values]`, the distinct values of the number tokens, ascending",
    "target": "`[positions]`, index of the label's value in `values`",
    "target_probs": "`[positions, values]`, the label's distribution where soft labels are given, else None; "
    "a criterion without a default for it gets all probability on `target` instead",
    "place": "`[positions]`, decimal place of the label's last digit, a float: 0 for units, 1 for tens",
    "digits_after": "`[positions]`, number of digits after this token in its number, a float",
    "numbers": "`LabelNumbers` of all positions of the batch, for one loss a number, at its first token",
    "digits": "`LabelNumbers` of each label, for one loss a token",
    "number_sigma": "`[positions]`, standard deviation given for the label's number, NaN or 0 for none; None "
    "if none is given",
    "cells": "`[2, kinds, values]`, bool: at `[0, digits.kind]` which values have a token of the label's "
    "length and sign, at `[1, ...]` without those with a leading 0; None if all tokens are given by value",
    "own_values": "`[values]`, bool, which are those of tokens that are given by value; None for none",
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
        ValueError: an unknown name or option, or `HLGauss` has no sigma.
        TypeError: `given` cannot be called, or a required parameter is not among `READABLE`.

    Example:
        >>> from ntloss.criteria import make_criterion
        >>> make_criterion({"name": "dist2", "tau": 0.5}).keywords
        {'tau': 0.5}
    """
    options = dict(given) if isinstance(given, Mapping) else {}
    if isinstance(given, Mapping) and "name" not in options:
        raise ValueError(f"criterion={options}: expected a mapping with the key name, and its options")
    given = options.pop("name", given)
    made: Any = _look_up(given) if isinstance(given, str) else given
    function = made.func if isinstance(made, partial) else made
    if not callable(made) or (isinstance(function, type) and function is not HLGauss):
        raise TypeError(
            f"criterion={given!r}: expected a function, one of {', '.join(CRITERIA)}, 'module:function', or "
            "a mapping of name and options"
        )
    criterion: Criterion = partial(made, **options) if options else made
    if function is not HLGauss:
        reads_of(criterion)
        return criterion
    if requires(criterion, "sigma"):
        raise ValueError(
            "hl_gauss needs its width: expected HLGauss.for_answers(answers), which computes it, or "
            "{'name': 'hl_gauss', 'sigma': 2.0} with a number, or a start and an end"
        )
    return criterion()  # type: ignore[return-value]


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
        ValueError: a partial sets an option that the function does not have.
    """
    parameters = _parameters(criterion)
    reads = tuple(name for name in parameters if name in READABLE)
    unknown = [p.name for p in parameters.values() if p.name not in READABLE and p.default is p.empty]
    if unknown or not reads:
        raise TypeError(
            f"criterion {name_of(criterion)} reads {', '.join(unknown) or 'nothing'}; a criterion may read "
            f"{', '.join(READABLE)}, and its options have defaults"
        )
    return reads


def requires(criterion: Criterion, name: str) -> bool:
    """Return whether a criterion has a parameter of this name without a default."""
    parameter = _parameters(criterion).get(name)
    return parameter is not None and parameter.default is parameter.empty


def option_of(criterion: Criterion, name: str) -> Any:
    """Return the value of a criterion's option, or None if it has no such option."""
    if isinstance(criterion, HLGauss):
        return getattr(criterion, name, None)
    parameter = _parameters(criterion).get(name)
    return None if parameter is None else parameter.default


def _parameters(criterion: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters by name, with the options that partials have set as defaults.

    What is set of `READABLE` is left out, because nothing has to be read for it. Raise a ValueError for an
    option that the function does not have.
    """
    given: dict[str, Any] = {}
    bound = 0
    while isinstance(criterion, partial) and not hasattr(criterion, "__signature__"):
        given, bound, criterion = {**criterion.keywords, **given}, bound + len(criterion.args), criterion.func
    called = criterion.forward if isinstance(criterion, nn.Module) else criterion
    found = [*inspect.signature(called).parameters.values()][bound:]
    parameters = {p.name: p for p in found if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    options = [name for name in parameters if name not in READABLE]
    if len(parameters) == len(found) and (unknown := sorted({*given} - {*parameters})):
        raise ValueError(
            f"{name_of(criterion)} has no option {', '.join(unknown)}; its options: "
            f"{', '.join(options) or 'none'}"
        )
    return {
        name: parameter.replace(default=given.get(name, parameter.default))
        for name, parameter in parameters.items()
        if name in options or name not in given
    }


def name_of(criterion: Criterion) -> str:
    """Return a criterion as a reader would write it: `ntl_was`, `dist2(tau=0.5)`, `HLGauss(sigma=2)`."""
    if isinstance(criterion, partial):
        options = ", ".join(f"{name}={value!r}" for name, value in criterion.keywords.items())
        return f"{name_of(criterion.func)}({options})"
    return str(getattr(criterion, "__name__", repr(criterion)))


def check_unit(criterion: Criterion, vocabulary: NumberVocabulary) -> None:
    """Raise a ValueError if a loss in the unit of the values would outweigh cross-entropy."""
    if not fact(criterion, "in_units") or option_of(criterion, "squash"):
        return
    largest = max(map(abs, vocabulary.distinct_values))
    if largest > _LARGEST_UNIT:
        raise ValueError(
            f"criterion {name_of(criterion)} is measured in the unit of the tokens' values, here up to "
            f"{largest:,.0f}, and would outweigh cross-entropy: expected HLGauss or another bounded "
            "criterion (dist2, number_level, ntl_was with squash=2.0), digits "
            "(NumberVocabulary.from_tokenizer(tokenizer, tokens='digits')), or values that are divided by "
            "their range"
        )
