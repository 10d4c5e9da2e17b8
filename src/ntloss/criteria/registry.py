"""Criteria by name, for configuration files."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ntloss.criteria import combine, distances, entropies, hl_gauss, whole_numbers
from ntloss.criteria.criterion import Criterion

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
# A new criterion of the library needs a line here, and nothing else.
CRITERIA: dict[str, Callable[..., Any]] = {
    "wasserstein": distances.Wasserstein,
    "crps": distances.CRPS,
    "expected_value": distances.ExpectedValue,
    "gaussian_cross_entropy": entropies.GaussianCrossEntropy,
    "smoothed_wasserstein": entropies.SmoothedWasserstein,
    "dist2": entropies.Dist2,
    "digit_entropy": entropies.DigitEntropy,
    "smmd": distances.SMMD,
    "hl_gauss": hl_gauss.HLGauss,
    "ntil": combine.ntil,
    "number_level": whole_numbers.NumberLevel,
    "relative_error": whole_numbers.RelativeError,
    "magnitude": whole_numbers.Magnitude,
    "reweighed": combine.Reweighed,
    "place_weighted": combine.PlaceWeighted,
    "per_number": combine.PerNumber,
    "weighted_sum": combine.WeightedSum,
}


def get_criterion(name: str, **options: Any) -> Criterion:
    """Make a criterion by its name.

    Args:
        name: one of `criterion_names()`.
        options: its hyperparameters. Default: as published. An option that is a criterion (`criterion`,
            `criteria`) may be given as a name, or as a mapping of `name` and options.

    Returns:
        The criterion.

    Raises:
        ValueError: an unknown name or option, or a missing one; the message lists the valid ones.

    Example:
        >>> from ntloss import get_criterion
        >>> get_criterion("dist2", tau=0.5)
        Dist2(tau=0.5, distance='squared')
        >>> get_criterion("place_weighted", criterion="wasserstein").criterion
        Wasserstein(squash_factor=None)
    """
    if name not in CRITERIA:
        raise ValueError(
            f"no criterion is called {name!r}. Expected one of {', '.join(criterion_names())}. "
            "Add your own with register_criterion."
        )
    make = CRITERIA[name]
    parameters = inspect.signature(make).parameters
    known = list(parameters)
    if known[:1] == ["x"]:  # a function of the input is a criterion itself
        make, known = partial(_with_options, make), known[1:]
    if unknown := sorted(set(options) - set(known)):
        choices = ", ".join(known) or "none"
        raise ValueError(f"{name!r} has no option {', '.join(map(repr, unknown))}. Its options: {choices}.")
    optional = [p.name for p in parameters.values() if p.default is not p.empty or p.kind in _VARIADIC]
    if missing := [key for key in known if key not in options and key not in optional]:
        raise ValueError(
            f"{name!r} needs {', '.join(missing)}: expected {{'name': {name!r}, {missing[0]!r}: ...}}, or "
            f"get_criterion({name!r}, {missing[0]}=...)"
        )
    if "criterion" in options:
        options["criterion"] = as_criterion(options["criterion"])
    if "criteria" in options:
        options["criteria"] = tuple(map(as_criterion, options["criteria"]))
    criterion: Criterion = make(**options)
    return criterion


def _with_options(function: Criterion, **options: Any) -> Criterion:
    """Return a function criterion with its options, and with its attributes; see `Criterion`."""
    if not options:
        return function
    criterion = partial(function, **options)
    for name, attribute in vars(function).items():
        setattr(criterion, name, partial(attribute, **options) if callable(attribute) else attribute)
    return criterion


def as_criterion(given: Any) -> Criterion:
    """Return a criterion as it is, or make it from its name, or a mapping of `name` and options."""
    given = {"name": given} if isinstance(given, str) else given
    if isinstance(given, Mapping):
        if "name" not in given:
            raise ValueError(f"criterion={dict(given)} has no name: expected {{'name': ..., option: ...}}")
        return get_criterion(**given)
    criterion: Criterion = given
    return criterion


def title_of(criterion: Any) -> str:
    """Name a criterion for a reader: `NTL-WAS` and the like as the paper does, others by their `repr`."""
    if isinstance(criterion, distances.ExpectedValue) and criterion.over == "numbers":
        titles = {"squared": "NTL-MSE", "absolute": "NTL-MAE", "huber": "NTL-Huber"}
        return titles.get(str(criterion.loss), repr(criterion))
    if isinstance(criterion, distances.Wasserstein):
        return "NTL-WAS"
    return str(getattr(criterion, "__name__", repr(criterion).removesuffix("()")))


def register_criterion(name: str, criterion: Callable[..., Any]) -> None:
    """Register a criterion of your own under a name.

    Args:
        name: the new name.
        criterion: its class, or a function that returns an instance, whose parameters are the options; or the
            criterion itself, a function whose first parameter, the `CriterionInput`, is called `x`, and whose
            others are the options. Its attributes are kept; `bind` and `worst` get the options that are
            given, too.

    Raises:
        ValueError: the name is taken by another criterion.

    Example:
        >>> from ntloss import ExpectedValue, get_criterion, register_criterion
        >>> register_criterion("ntl_mae", lambda: ExpectedValue("absolute"))
        >>> get_criterion("ntl_mae").loss
        'absolute'
    """
    if CRITERIA.get(name, criterion) is not criterion:
        raise ValueError(f"the name {name!r} is taken by {CRITERIA[name]!r}: choose another name")
    CRITERIA[name] = criterion


def criterion_names() -> list[str]:
    """Return the valid names for `get_criterion`, sorted."""
    return sorted(CRITERIA)
