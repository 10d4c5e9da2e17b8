"""What the tests of the criteria share."""

import numpy as np
import oracle
import torch

from ntloss import (
    CRPS,
    SMMD,
    CriterionInput,
    Dist2,
    ExpectedValue,
    GaussianCrossEntropy,
    NumberVocabulary,
    Wasserstein,
)
from ntloss.criteria import SmoothedWasserstein

DIGITS = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)


def make_input(probs, values, target):
    log_probs = torch.as_tensor(probs, dtype=torch.float64).log().clamp(min=-1e30).reshape(1, -1)
    return CriterionInput(
        log_probs,
        torch.as_tensor(values, dtype=torch.float64),
        torch.tensor([target]),
        log_mass=torch.zeros(1, dtype=torch.float64),
        logits=log_probs,
    )


SPACED = [0.0, 1.0, 2.0, 4.0, 7.0]


SPACED_VALUES = torch.tensor(SPACED, dtype=torch.float64)


def one_hot(k):
    return np.eye(len(SPACED))[k]


def smoothed(k):
    return oracle.gaussian(SPACED_VALUES, k).numpy()


def dist2_target(k):
    return oracle.dist2_target(SPACED_VALUES, k).numpy()


UNSURE = np.array([0.2, 0.1, 0.15, 0.25, 0.3])  # how often each value is the label: median 4, mean 3.5


def median_of_targets():
    cumulated = np.array([smoothed(k).cumsum() for k in range(len(SPACED))])
    middle = []
    for column in cumulated.T:
        order = column.argsort()
        middle.append(column[order][np.searchsorted(UNSURE[order].cumsum(), 0.5)])
    return np.diff(middle, prepend=0.0)


# criterion: the distribution with the lowest expected loss for an uncertain label
BAYES = {
    "all on the median": (Wasserstein(), one_hot(3)),
    "anything whose mean is the mean": (ExpectedValue(), np.array([0, 0, 0.7, 0, 0.3])),
    "the labels' distribution": (SMMD(squash_factor=None), UNSURE),
    "the labels' distribution by CRPS": (CRPS(), UNSURE),
    "the labels' distribution, smoothed": (
        GaussianCrossEntropy(),
        sum(UNSURE[k] * smoothed(k) for k in range(len(SPACED))),
    ),
    "the same with DIST2's targets": (Dist2(), sum(UNSURE[k] * dist2_target(k) for k in range(len(SPACED)))),
    "the median of the cumulated targets": (SmoothedWasserstein(), median_of_targets()),
}
