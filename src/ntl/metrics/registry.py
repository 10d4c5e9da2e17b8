"""Every metric of an evaluation: its heading in tables, its direction and its unit.

The name of a metric can say of what it is: `median_mae` of the median, `constant_mae` of a constant answer,
`point_mae` of what a study calls `point`, `coverage_95` of 95 % intervals. `find_metric` knows these, too,
and transformers' prefix `eval_`.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ntl.errors import unknown_key
from ntl.own import is_own

GREEDY = "greedy"  # the reading of a metric whose name has no prefix
OF_READING = {"median": "of the median", "mean": "of the mean", "mode": "of the likeliest level"}
OF_REFERENCE = {"constant": "of a constant answer", "noise": "without the noise"}
READINGS = (GREEDY, *OF_READING)
_PREFIX = re.compile(rf"({'|'.join((*OF_READING, *OF_REFERENCE))})_(.+)")


@dataclass(frozen=True)
class Metric:
    """What is known about a metric.

    Args:
        name: Its name in `metrics.json`.
        heading: Its name in tables and figures.
        higher_is_better: None if neither higher nor lower values are better, as of a count, or of a coverage,
            which is best where it equals the interval's nominal share.
        unit: the log10 unit is that of sign(x)·log10(|x| + 1).
        in_points: Whether two values are compared in percentage points, and not in per cent of one of them.
    """

    name: str
    heading: str
    higher_is_better: bool | None
    unit: str
    in_points: bool = False


METRICS = {
    metric.name: metric
    for metric in (
        Metric("exact_final_answer", "exact final answer", True, "share"),
        Metric("final_answer_accuracy", "final answer", True, "share"),
        Metric("exact_number", "exact", True, "share"),
        Metric("accuracy", "accuracy", True, "share"),
        Metric("paper_accuracy", "accuracy as in the paper's code", True, "share"),
        Metric("accuracy_of_valid", "accuracy of valid", True, "share"),
        Metric("invalid_rate", "invalid", False, "share"),
        Metric("invalid", "invalid answers", False, "count"),
        Metric("count", "questions", None, "count"),
        Metric("skipped", "skipped", None, "count"),
        Metric("ill_formed", "ill-formed numbers", False, "count"),
        Metric("outside_format", "outside the format", None, "count"),
        Metric("mae", "MAE", False, "unit of the answers"),
        Metric("medae", "median error", False, "unit of the answers"),
        Metric("rmse", "RMSE", False, "unit of the answers"),
        Metric("r2", "R²", True, "share"),
        Metric("log_mae", "log MAE", False, "log10"),
        Metric("paper_log_mae", "log MAE as in the paper's code", False, "log10"),
        Metric("log_rmse", "log RMSE", False, "log10"),
        Metric("log_r2", "log R²", True, "share"),
        Metric("pearson", "Pearson", True, "correlation"),
        Metric("spearman", "Spearman", True, "correlation"),
        Metric("exact_match", "exact match", True, "share"),
        Metric("bleu", "BLEU", True, "per cent"),
        Metric("rouge1", "ROUGE-1", True, "share"),
        Metric("rouge2", "ROUGE-2", True, "share"),
        Metric("rougeL", "ROUGE-L", True, "share"),
        Metric("iou", "IoU", True, "share"),
        Metric("crps", "CRPS", False, "unit of the answers"),
        Metric("rater_crps", "CRPS, ratings", False, "unit of the answers"),
        Metric("interval_coverage", "coverage", None, "share", in_points=True),
        Metric("interval_width", "width", None, "unit of the answers"),
        Metric("calibrated_coverage", "coverage, calibrated", None, "share", in_points=True),
        Metric("calibrated_width", "width, calibrated", None, "unit of the answers"),
        Metric("interval_score", "interval score", False, "unit of the answers"),
        Metric("rps", "RPS", False, "levels"),
        Metric("rater_rps", "RPS, ratings", False, "levels"),
        Metric("calibrated_rater_rps", "RPS, ratings, calibrated", False, "levels"),
        Metric("kappa", "kappa", True, "correlation"),
        Metric("two_peaks", "two peaks", False, "share"),
        Metric("ece", "calibration error", False, "share"),
        Metric("cumulative_ece", "calibration error, cumulative", False, "share"),
        Metric("chosen_step", "stopped after", None, "updates"),
        Metric("number_mass", "probability of a number", True, "share"),
        Metric("loss", "loss", False, "nats"),
        Metric("ce", "cross-entropy", False, "nats"),
        Metric("ce_numbers", "cross-entropy of numbers", False, "nats"),
        Metric("ce_text", "cross-entropy of text", False, "nats"),
        Metric("ntl", "number loss", False, ""),
        Metric("perplexity", "perplexity", False, ""),
    )
}
OF_DISTRIBUTION = ("crps", "rater_crps", "interval_score", "number_mass")
"""Metrics, among those that are better low or high, of the distribution that is read from a model."""
RIGHT = ("exact_final_answer", "exact_number", "exact_match")
"""Metrics of correct answers, in order of preference."""
ERRORS = (
    *("mae", "log_mae", "median_mae", "mean_mae", "constant_mae"),
    *("interval_coverage", "interval_width"),
)
"""What is logged beside a metric of correct numbers."""


def split_metric(name: str) -> tuple[str, str]:
    """Return the reading, or the reference, that a metric is of, and the metric's plain name.

    Example:
        >>> split_metric("median_mae"), split_metric("constant_mae"), split_metric("mae")
        (('median', 'mae'), ('constant', 'mae'), ('greedy', 'mae'))
    """
    found = _PREFIX.fullmatch(name)
    return (found[1], found[2]) if found and found[2] in METRICS else (GREEDY, name)


def reading_metric(reading: str, metric: str) -> str:
    """Return the name of a metric of a reading: `mae` for `greedy`, `median_mae` for `median`."""
    return metric if reading == GREEDY else f"{reading}_{metric}"


def find_metric(name: str) -> Metric:
    """Return what is known about a metric.

    Args:
        name: A name of `METRICS`, which can begin with that of a reading or a reference; `<name>_mae`;
            `coverage_<per cent>`; a user's own `module:function`. Each can have transformers' prefix `eval_`.

    Raises:
        UserError: The metric is unknown.

    Example:
        >>> found = find_metric("eval_median_accuracy")
        >>> found.name, found.heading, found.unit
        ('median_accuracy', 'accuracy of the median', 'share')
    """
    plain = name.removeprefix("eval_")
    of, base = split_metric(plain)
    if base in METRICS:
        words = {GREEDY: "", **OF_READING, **OF_REFERENCE}[of]
        return replace(METRICS[base], name=plain, heading=f"{METRICS[base].heading} {words}".strip())
    if is_own(plain):
        return Metric(plain, plain.partition(":")[2], None, "")
    if percent := re.fullmatch(r"coverage_(\d+)", plain):
        return Metric(plain, f"coverage of {percent[1]} % intervals", None, "share", in_points=True)
    if named := re.fullmatch(r"(.+)_mae", plain):
        return Metric(plain, f"MAE of {named[1]}", False, "unit of the answers")
    raise unknown_key("metric ", name, METRICS)


def describe_metrics(metrics: Mapping[str, float | None], *more: str) -> str:
    """Return the metrics that matter most, and those named in `more`, as one line.

    Example:
        >>> describe_metrics({"count": 300, "exact_number": 0.25, "mae": 4469.3, "median_mae": 3347.0})
        '300 questions, exact_number 0.25, mae 4469, median_mae 3347'
    """
    given = [name for name in metrics if metrics[name] is not None]
    right = [name for name in RIGHT if name in given][:1]
    # The task compares texts or numbers.
    errors = ["rougeL"] if right == ["exact_match"] else ERRORS
    shown = [name for name in (*more, *right, *errors) if name in given]
    return ", ".join([f"{metrics['count']} questions", *(f"{name} {metrics[name]:.4g}" for name in shown)])


def finite_or_none(scores: Mapping[str, float]) -> dict[str, float | None]:
    """Return scores with None for what is not finite, because JSON cannot hold it."""
    return {name: value if math.isfinite(value) else None for name, value in scores.items()}
