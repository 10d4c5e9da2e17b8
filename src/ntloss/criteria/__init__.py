"""Criteria: how wrong the predicted distribution over numbers is at each position.

A criterion is any callable that takes a `CriterionInput` and returns one loss per position. It never sees
logits of the vocabulary's width: it is plain PyTorch on `[positions, values]`, differentiated by autograd.
"""

from ntloss.criteria.combine import PerNumber, PlaceWeighted, WeightedSum, ntil, place_weights
from ntloss.criteria.criterion import (
    Criterion,
    CriterionInput,
    Needs,
    bind,
    needs_of,
    reweigh_by_mass,
    spans_of,
    worst_of,
)
from ntloss.criteria.distances import CRPS, SMMD, ExpectedValue, Wasserstein
from ntloss.criteria.entropies import DigitEntropy, Dist2, GaussianCrossEntropy, SmoothedWasserstein
from ntloss.criteria.hl_gauss import HLGauss
from ntloss.criteria.registry import criterion_names, get_criterion, register_criterion
from ntloss.criteria.whole_numbers import Magnitude, NumberLevel, RelativeError

__all__ = [
    # what a criterion is
    "Criterion",
    "CriterionInput",
    "Needs",
    # by name
    "get_criterion",
    "register_criterion",
    "criterion_names",
    # distance from the label's value
    "Wasserstein",
    "CRPS",
    "ExpectedValue",
    "SMMD",
    "DigitEntropy",
    # distance from a smoothed target
    "GaussianCrossEntropy",
    "SmoothedWasserstein",
    "Dist2",
    # whole numbers
    "HLGauss",
    "NumberLevel",
    "RelativeError",
    "Magnitude",
    "ntil",
    # combinations of criteria
    "PlaceWeighted",
    "PerNumber",
    "WeightedSum",
    # helpers for writing one
    "bind",
    "place_weights",
    "spans_of",
    # used by the losses
    "needs_of",
    "reweigh_by_mass",
    "worst_of",
]
