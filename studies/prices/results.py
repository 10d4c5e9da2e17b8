"""Merge runs into the pack, measure the errors of prices, test the planned contrasts, and print.

    python -m studies.prices.results

The pack, `runs.jsonl.xz`, holds one run a line. Runs in the pack that the folder of outputs lacks stay there.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from studies.packs import report


def main(arguments: Sequence[str] | None = None) -> None:
    """Merge, measure, test, print."""
    report(arguments, "prices", measures_of)


def measures_of(run: Mapping[str, Any]) -> dict[str, float]:
    """Measure a run; `relative_mae` is the mean of the median's error as a share of the true price."""
    errors, truths = np.array(run["median_errors"]), np.array(run["truths"])
    return {
        "mae": run["greedy"],
        "median_mae": float(errors.mean()),
        "relative_mae": float((errors / truths).mean()),
        "interval_coverage": run["coverage"],
        "ce": run["cross_entropy"],
    }


if __name__ == "__main__":
    main()
