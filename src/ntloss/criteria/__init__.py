"""Criteria: how wrong the predicted distribution over numbers is at each position.

A criterion is any callable that takes a `CriterionInput` and returns one loss per position. It never sees
logits of the vocabulary's width: it is plain PyTorch on `[positions, values]`, differentiated by autograd.
docs/criteria.md lists all.
"""

from ntloss.criteria.combine import PerNumber, PlaceWeighted, Reweighed, WeightedSum, ntil, place_weights
from ntloss.criteria.criterion import (
    Criterion,
    CriterionInput,
    Needs,
    Tabulated,
    bind,
    needs_of,
    spans_of,
    worst_of,
)
from ntloss.criteria.distances import CRPS, SMMD, ExpectedValue, Wasserstein
from ntloss.criteria.entropies import DigitEntropy, Dist2, GaussianCrossEntropy, SmoothedWasserstein
from ntloss.criteria.hl_gauss import HLGauss
from ntloss.criteria.registry import criterion_names, get_criterion, register_criterion
from ntloss.criteria.whole_numbers import Magnitude, NumberLevel, RelativeError

__all__ = [
    # criterion.py: what a criterion is, and helpers for writing one
    "Criterion",
    "CriterionInput",
    "Needs",
    "Tabulated",
    "bind",
    "needs_of",
    "spans_of",
    "worst_of",
    # distances.py: distance from the label's value
    "Wasserstein",
    "CRPS",
    "ExpectedValue",
    "SMMD",
    # entropies.py: smoothed targets, and the entropy of each digit
    "GaussianCrossEntropy",
    "SmoothedWasserstein",
    "Dist2",
    "DigitEntropy",
    # hl_gauss.py: Gaussian targets on whole numbers
    "HLGauss",
    # whole_numbers.py: one loss a number
    "NumberLevel",
    "RelativeError",
    "Magnitude",
    # combine.py: made of others
    "Reweighed",
    "PlaceWeighted",
    "PerNumber",
    "WeightedSum",
    "ntil",
    "place_weights",
    # registry.py: by name
    "get_criterion",
    "register_criterion",
    "criterion_names",
]
