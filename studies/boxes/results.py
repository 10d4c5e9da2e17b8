"""Merge runs into the pack, measure boxes, points and clocks, test the planned contrasts, and print.

    python -m studies.boxes.results

The pack, `runs.jsonl.xz`, holds one run a line. Runs in the pack that the folder of outputs lacks stay there.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from studies.boxes.task import BOX, POINT, TIME, score
from studies.packs import report

MEASURES = {BOX: "iou", POINT: "point_mae", TIME: "time_mae"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Merge, measure, test, print."""
    report(arguments, "boxes", measures_of)


def measures_of(run: Mapping[str, Any]) -> dict[str, float]:
    """Measure greedy answers, medians, and the coverage of the 90 % intervals of all numbers.

    A greedy answer with another count of numbers is invalid, and counts as zeros.
    """
    found, invalid, covered = {"train_seconds": run["seconds"]}, [], []
    for question, name in MEASURES.items():
        own = run["read"][question]
        truth = torch.tensor(own["truths"], dtype=torch.float64)
        read = torch.tensor(own["quantiles"], dtype=torch.float64)
        count = truth.shape[1]
        invalid += [len(numbers) != count for numbers in own["greedy"]]
        written = [numbers if len(numbers) == count else [0.0] * count for numbers in own["greedy"]]
        greedy = torch.tensor(written, dtype=torch.float64)
        found[name] = score(question, greedy, truth)
        found[f"median_{name}"] = score(question, read[..., 1], truth)
        covered += ((read[..., 0] <= truth) & (truth <= read[..., 2])).flatten().tolist()
    return {
        **found,
        "invalid_rate": sum(invalid) / len(invalid),
        "interval_coverage": sum(covered) / len(covered),
    }


if __name__ == "__main__":
    main()
