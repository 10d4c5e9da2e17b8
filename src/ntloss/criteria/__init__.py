"""Criteria: how wrong the predicted distribution over numbers is at each position.

A criterion is a function that returns one loss for each position, and the names of its parameters say what it
reads (`READABLE`):

    def squared_error(probs, values, target):
        return (probs * (values - values[target].unsqueeze(-1)) ** 2).sum(-1)

    loss_fn = NTLCrossEntropyLoss(tokenizer, squared_error)

It never sees logits of the vocabulary's width: it is plain PyTorch on `[positions, values]`, differentiated
by autograd. Parameters with a default are options: `functools.partial(dist2, tau=2.0)`. What is made of
others is ordinary Python: `ntl_was(probs, values, target) * 1.2**digits_after`.
"""

from ntloss.criteria import tokens, whole_numbers
from ntloss.criteria.signature import CRITERIA, READABLE, Criterion, make_criterion, reads_of
from ntloss.criteria.soft import SoftTargets, soft_labels_of
from ntloss.criteria.targets import (
    HLGauss,
    cramer_distance,
    cross_entropy,
    exponential,
    fact,
    facts,
    gaussian,
    kl_divergence,
    made_once,
    mixture,
    wasserstein_distance,
)
from ntloss.criteria.tokens import *  # noqa: F403
from ntloss.criteria.whole_numbers import *  # noqa: F403

__all__ = [
    *tokens.__all__,  # one loss for each number token
    *whole_numbers.__all__,  # one loss for each whole number
    # targets.py: Gaussian targets on whole numbers, and what criteria are made of
    "HLGauss",
    "gaussian",
    "exponential",
    "mixture",
    "cross_entropy",
    "kl_divergence",
    "wasserstein_distance",
    "cramer_distance",
    "made_once",
    "facts",
    "fact",
    # soft.py: labels that are distributions
    "SoftTargets",
    "soft_labels_of",
    # signature.py: what a criterion reads, and criteria by name
    "Criterion",
    "READABLE",
    "reads_of",
    "CRITERIA",
    "make_criterion",
]
