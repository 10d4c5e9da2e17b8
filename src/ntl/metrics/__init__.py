"""Metrics of predicted numbers and quantiles, and what is known about each metric."""

from ntl.metrics.numeric import last_number, number_metrics, numbers_of
from ntl.metrics.quantiles import crps, interval_metrics
from ntl.metrics.registry import METRICS, Metric, find_metric

__all__ = [
    "METRICS",
    "Metric",
    "crps",
    "find_metric",
    "interval_metrics",
    "last_number",
    "number_metrics",
    "numbers_of",
]
