"""What the intervals of a run cover, before and after they are calibrated on its validation rows."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from ntl.predictor import find_margin, moved
from ntl.scores import short
from ntl.training.run_folder import EvaluationFolder, Prediction

OVERCONFIDENT = 0.1  # by how much coverage may fall short before a run says so


def describe_calibration(approach: Any, evaluation: EvaluationFolder, level: float) -> Iterator[str]:
    """Yield what the intervals of a run cover once they are calibrated on its validation rows.

    A line also says so if they cover much less than they should on these rows before.
    """
    held = {test: _read_intervals(evaluation.predictions(test)) for test in evaluation.metrics()}
    validation = held.pop("validation", None)
    if validation is None or validation["true"].isna().any():
        return
    share, count = f"{100 * level:g} %", len(validation)
    if (covered := _coverage(validation)) < level - OVERCONFIDENT:
        yield (
            f"warning: the model's own {share} intervals hold only {100 * covered:.0f} % of {count} "
            "validation answers. Use calibrated ones, which `ntl predict` gives; fewer epochs may help."
        )
    margin = find_margin(validation, validation["true"].tolist(), level)
    if math.isinf(margin.size):
        yield f"{count} validation rows are too few to calibrate {share} intervals"
        return
    for test, found in held.items():
        ends = (found[name].to_numpy(float) for name in ("lower", "median", "upper"))
        found = found.assign(**moved(approach, *ends, margin))
        width = short((found["upper"] - found["lower"]).mean())
        yield f"{test} calibrated: {share} interval covers {100 * _coverage(found):.0f} %, width {width}"


def _read_intervals(predictions: Sequence[Prediction]) -> pd.DataFrame:
    """Make a table of intervals and true answers; NaN where the model writes no number."""
    rows = [(each.lower, each.median, each.upper, each.true) for each in predictions]
    return pd.DataFrame(rows, columns=["lower", "median", "upper", "true"], dtype=float)


def _coverage(found: pd.DataFrame) -> float:
    return float(((found["lower"] <= found["true"]) & (found["true"] <= found["upper"])).mean())
