"""Merge runs into the pack, measure the probabilities of the levels, test the planned contrasts, and print.

    python -m studies.soft_labels.results

The pack, `runs.jsonl.xz`, holds one run a line. Runs in the pack that the folder of outputs lacks stay there.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from studies.packs import report
from studies.scores.results import measures

PAIRS = (("soft", "ce"), ("soft_crps", "ce"), ("soft_crps", "soft"))
PLANNED = [
    {"of": of, "minus": minus, "metric": metric}
    for of, minus in PAIRS
    for metric in ("rater_rps", "median_mae")
]
"""All contrasts; Holm's correction covers them together."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Merge, measure, test, print."""
    report(arguments, "soft_labels", measures_of, PLANNED)


def measures_of(run: Mapping[str, Any]) -> dict[str, float]:
    """Measure a run as in the study of scores; `none` is the probability of anything but a level."""
    probabilities, labels = np.array(run["read"][-1]["probabilities"]), np.array(run["labels"])
    none = float(1 - probabilities.sum(1).mean())
    return {**measures(probabilities, labels, run["ratings"]), "none": none}


if __name__ == "__main__":
    main()
