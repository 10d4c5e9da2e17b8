"""What the tests of the criteria share."""

import numpy as np
import oracle
import torch

from ntloss import (
    NumberVocabulary,
    crps,
    dist2,
    gaussian_smoothing,
    ntl_mse,
    ntl_was,
    smmd,
    smoothed_wasserstein,
)
from ntloss.criteria.signature import reads_of

DIGITS = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)


def call(criterion, probs, values, target, **options):
    """Call a criterion with one position's distribution; all of its probability is on numbers."""
    log_probs = torch.as_tensor(probs, dtype=torch.float64).log().clamp(min=-1e30).reshape(1, -1)
    given = {
        "probs": log_probs.exp(),
        "log_probs": log_probs,
        "logits": log_probs,
        "vocab_log_probs": log_probs,
        "log_mass": torch.zeros(1, dtype=torch.float64),
        "form_log_probs": None,
        "values": torch.as_tensor(values, dtype=torch.float64),
        "target": torch.tensor([target]),
        "target_probs": None,
    }
    return criterion(**{name: given[name] for name in reads_of(criterion)}, **options)


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


# what minimizes the expected loss for an uncertain label: (criterion, options, distribution)
BAYES = {
    "all on the median": (ntl_was, {}, one_hot(3)),
    "anything whose mean is the mean": (ntl_mse, {}, np.array([0, 0, 0.7, 0, 0.3])),
    "the labels' distribution": (smmd, {"squash": None}, UNSURE),
    "the labels' distribution by CRPS": (crps, {}, UNSURE),
    "the labels' distribution, smoothed": (
        gaussian_smoothing,
        {},
        sum(UNSURE[k] * smoothed(k) for k in range(len(SPACED))),
    ),
    "the same with DIST2's targets": (
        dist2,
        {},
        sum(UNSURE[k] * dist2_target(k) for k in range(len(SPACED))),
    ),
    "the median of the cumulated targets": (smoothed_wasserstein, {}, median_of_targets()),
}
