"""How wrong is a number: one small function of what the model says at each position.

A criterion takes a `NumberRecord` and gives one loss per position. It never sees logits of width V, so it
is plain PyTorch on `[positions, values]`, and autograd does the rest.
"""

from ntloss.criteria.combine import WeightedSum, ntil
from ntloss.criteria.digit_entropy import DigitEntropy
from ntloss.criteria.places import PlaceWeighted, place_weights
from ntloss.criteria.record import (
    Criterion,
    Needs,
    NumberRecord,
    needs_of,
    record_of_part,
    spans_of,
    table,
    tables_of,
    tables_of_parts,
)
from ntloss.criteria.registry import criterion_names, get_criterion, register_criterion
from ntloss.criteria.regression import ExpectedValue
from ntloss.criteria.reweigh import reweigh_by_mass, reweighed, worst_cost
from ntloss.criteria.smmd import SMMD
from ntloss.criteria.targets import Dist2, GaussianCrossEntropy
from ntloss.criteria.transport import SmoothedWasserstein, Wasserstein
from ntloss.criteria.whole_numbers import Magnitude, NumberLevel, PerNumber, RelativeError

__all__ = [
    # what a criterion is
    "Criterion",
    "NumberRecord",
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
    "place_weights",
    "record_of_part",
    "spans_of",
    "table",
    "tables_of_parts",
    # what the losses do with it
    "needs_of",
    "tables_of",
    "reweigh_by_mass",
    "reweighed",
    "worst_cost",
]
