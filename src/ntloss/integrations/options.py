"""The options of a combined loss, in a trainer's configuration file and in the integrations' functions."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ntloss import NTLCrossEntropyLoss, NTLLinearCrossEntropyLoss, NumberVocabulary
from ntloss.criteria.registry import as_criterion

Loss = NTLCrossEntropyLoss | NTLLinearCrossEntropyLoss


_OPTIONS = ("weight", "criterion", "normalize_by", "mode", "label_smoothing", "z_loss")


def describe_unknown(given: Iterable[str], known: Sequence[str]) -> str:
    """Say which options are unknown, with a close one and all that are known; nothing if none is."""
    unknown = [name for name in given if name not in known]
    near = [name for wrong in unknown for name in difflib.get_close_matches(wrong, known, n=1)]
    if not unknown:
        return ""
    meant = f"; did you mean {', '.join(near)}?" if near else ""
    return (
        f"unknown option {', '.join(map(repr, unknown))} of the number token loss: expected "
        f"{', '.join(known)}{meant}"
    )


def options_from_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the options of a configuration file into those of `NTLCrossEntropyLoss`.

    Args:
        config: any of `weight`, `criterion` (a name of `get_criterion`, or a mapping of `name` and its
            options), `normalize_by`, `mode`, `label_smoothing` and `z_loss`. None stands for the
            default.

    Returns:
        Keyword arguments of `NTLCrossEntropyLoss`.

    Raises:
        ValueError: an unknown or invalid option; the message lists the valid ones.
        TypeError: a value of the wrong type.

    Example:
        >>> options_from_config({"weight": 0.1, "criterion": {"name": "dist2", "tau": 0.5}})
        {'weight': 0.1, 'criterion': Dist2(tau=0.5, distance='squared')}
    """
    if message := describe_unknown(config, _OPTIONS):
        raise ValueError(message)
    options = {name: config[name] for name in _OPTIONS if config.get(name) is not None}
    if "criterion" in options:
        options["criterion"] = as_criterion(options["criterion"])
    numbers = NumberVocabulary.from_mapping({digit: digit for digit in range(10)}, vocab_size=10)
    NTLCrossEntropyLoss(numbers, **options)  # raises for invalid options, long before training starts
    return options
