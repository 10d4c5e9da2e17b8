"""How wrong is a number: one small function of what the model says at each position.

A criterion takes a `CriterionInput` and returns one loss per position. It never sees logits of width V, so it
is plain PyTorch on `[positions, values]`, and autograd does the rest.
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
)
from ntloss.criteria.digit_entropy import DigitEntropy
from ntloss.criteria.registry import criterion_names, get_criterion, register_criterion
from ntloss.criteria.regression import ExpectedValue
from ntloss.criteria.smmd import SMMD
from ntloss.criteria.smoothed_targets import Dist2, GaussianCrossEntropy
from ntloss.criteria.transport import SmoothedWasserstein, Wasserstein
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
    # how far from the label's value
    "Wasserstein",
    "ExpectedValue",
    "SMMD",
    "DigitEntropy",
    # towards a smoothed target
    "GaussianCrossEntropy",
    "SmoothedWasserstein",
    "Dist2",
    # whole numbers
    "NumberLevel",
    "RelativeError",
    "Magnitude",
    "ntil",
    # made of others
    "PlaceWeighted",
    "PerNumber",
    "WeightedSum",
    # for writing one
    "bind",
    "place_weights",
    "spans_of",
    # what the losses do with it
    "needs_of",
    "reweigh_by_mass",
]
