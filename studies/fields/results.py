"""Merge runs into the pack, measure each field, test the planned contrasts, and print tables.

    python -m studies.fields.results

The pack, `runs.jsonl.xz`, holds one run a line. Runs in the pack that the folder of outputs lacks stay there.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from studies.fields.task import FIELDS, read_call
from studies.packs import report


def main(arguments: Sequence[str] | None = None) -> None:
    """Merge, measure, test, print."""
    report(arguments, "fields", lambda run: measures(run["truths"], run["read"][-1]))


def measures(truths: Sequence[Sequence[float]], read: Mapping[str, Any]) -> dict[str, float]:
    """Measure errors in units of the standard deviation of the noise of each field.

    Returns:
        The means over the fields of the mean absolute errors of the medians (`median_mae`) and of the greedy
        answers in valid calls (`mae`); the same of each field, such as `median_room_size_mae`; and the share
        of calls that are not valid (`invalid_rate`).
    """
    true, noise = np.array(truths), np.array([field.noise for field in FIELDS])
    calls = [read_call(call) for call in read["calls"]]
    valid = np.array([call is not None for call in calls])
    written = np.array([call or [np.nan] * len(FIELDS) for call in calls])
    found = {"invalid_rate": float(1 - valid.mean())}
    answers = {"median_": (np.array(read["medians"]), np.full(len(true), True)), "": (written, valid)}
    for name, (numbers, known) in answers.items():
        errors = (
            (np.abs(numbers - true)[known] / noise).mean(0) if known.any() else np.full(len(FIELDS), np.nan)
        )
        found[f"{name}mae"] = float(errors.mean())
        found |= {f"{name}{field.name}_mae": float(e) for field, e in zip(FIELDS, errors, strict=True)}
    return found


if __name__ == "__main__":
    main()
