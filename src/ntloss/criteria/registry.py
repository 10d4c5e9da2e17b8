"""Criteria by name, for configuration files."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ntloss.criteria.combine import PerNumber, PlaceWeighted, WeightedSum, ntil
from ntloss.criteria.criterion import Criterion
from ntloss.criteria.digit_entropy import DigitEntropy
from ntloss.criteria.regression import ExpectedValue
from ntloss.criteria.smmd import SMMD
from ntloss.criteria.smoothed_targets import Dist2, GaussianCrossEntropy
from ntloss.criteria.transport import CRPS, SmoothedWasserstein, Wasserstein
from ntloss.criteria.whole_numbers import Magnitude, NumberLevel, RelativeError

_CRITERIA: dict[str, Callable[..., Criterion]] = {
    "wasserstein": Wasserstein,
    "crps": CRPS,
    "expected_value": ExpectedValue,
    "gaussian_cross_entropy": GaussianCrossEntropy,
    "smoothed_wasserstein": SmoothedWasserstein,
    "dist2": Dist2,
    "digit_entropy": DigitEntropy,
    "smmd": SMMD,
    "ntil": ntil,
    "number_level": NumberLevel,
    "relative_error": RelativeError,
    "magnitude": Magnitude,
    "place_weighted": PlaceWeighted,
    "per_number": PerNumber,
    "weighted_sum": WeightedSum,
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
        ValueError: an unknown name or option; the message lists the valid ones.

    Example:
        >>> from ntloss import get_criterion
        >>> get_criterion("dist2", tau=0.5)
        Dist2(tau=0.5, distance='squared')
        >>> get_criterion("place_weighted", criterion="wasserstein").criterion
        Wasserstein(squash_factor=None)
    """
    if name not in _CRITERIA:
        raise ValueError(
            f"no criterion is called {name!r}. Expected one of {', '.join(criterion_names())}. "
            "Add your own with register_criterion."
        )
    make = _CRITERIA[name]
    known = list(inspect.signature(make).parameters)
    if unknown := sorted(set(options) - set(known)):
        choices = ", ".join(known) or "none"
        raise ValueError(f"{name!r} has no option {', '.join(map(repr, unknown))}. Its options: {choices}.")
    if "criterion" in options:
        options["criterion"] = _as_criterion(options["criterion"])
    if "criteria" in options:
        options["criteria"] = tuple(map(_as_criterion, options["criteria"]))
    if isinstance(options.get("weights"), Sequence):
        options["weights"] = tuple(options["weights"])
    return make(**options)


def _as_criterion(given: Any) -> Criterion:
    if isinstance(given, str):
        return get_criterion(given)
    if isinstance(given, Mapping):
        return get_criterion(**{str(key): value for key, value in given.items()})
    criterion: Criterion = given
    return criterion


def register_criterion(name: str, criterion: Callable[..., Criterion]) -> None:
    """Register a criterion of your own under a name.

    Args:
        name: the new name.
        criterion: its class, or a function that returns an instance; the parameters are its options.

    Raises:
        ValueError: the name is taken by another criterion.

    Example:
        >>> from ntloss import ExpectedValue, get_criterion, register_criterion
        >>> register_criterion("ntl_mae", lambda: ExpectedValue("absolute"))
        >>> get_criterion("ntl_mae").loss
        'absolute'
    """
    if _CRITERIA.get(name, criterion) is not criterion:
        raise ValueError(f"the name {name!r} is taken by {_CRITERIA[name]!r}: choose another name")
    _CRITERIA[name] = criterion


def criterion_names() -> list[str]:
    """Return the valid names for `get_criterion`, sorted."""
    return sorted(_CRITERIA)
