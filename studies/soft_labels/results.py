"""Merge runs into the pack, measure the probabilities of the levels, test the planned contrasts, and print.

    python -m studies.soft_labels.results

The pack, `runs.jsonl.xz`, holds one run a line. Runs in the pack that the folder of outputs lacks stay there.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ntloss.scores import ScoreReading, fit_temperature, with_temperature
from studies.packs import report
from studies.scores.read import LEVELS
from studies.scores.results import measures


def main(arguments: Sequence[str] | None = None) -> None:
    """Merge, measure, test, print."""
    report(arguments, "soft_labels", measures_of)


def measures_of(run: Mapping[str, Any]) -> dict[str, float]:
    """Measure a run as in the study of scores; `none` is the probability of anything but a level.

    `calibrated_rater_rps` is the ranked probability score against the raters after a temperature, which the
    other half of the test rows chooses. It was not planned.
    """
    probabilities, labels = np.array(run["read"][-1]["probabilities"]), np.array(run["labels"])
    none = float(1 - probabilities.sum(1).mean())
    measured = measures(probabilities, labels, run["ratings"])
    calibrated = measures(calibrate(probabilities, run["ratings"]), labels, run["ratings"])
    return {**measured, "none": none, "calibrated_rater_rps": calibrated["rater_rps"]}


def calibrate(probabilities: np.ndarray, ratings: Sequence[Sequence[float]]) -> np.ndarray:
    """Change the probabilities, `[rows, levels]`, of each half of the rows by the other's temperature."""
    levels = [dict(zip(LEVELS, row, strict=True)) for row in probabilities.tolist()]
    read = [ScoreReading(each) for each in levels]
    changed = np.empty_like(probabilities)
    for used, fitted in ((0, 1), (1, 0)):
        temperature = fit_temperature(read[fitted::2], ratings[fitted::2])
        scores = with_temperature(read[used::2], temperature)
        changed[used::2] = [[*score.probabilities.values()] for score in scores]
    return changed


if __name__ == "__main__":
    main()
