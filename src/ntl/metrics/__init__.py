"""Metrics over any number of batches and ranks: of predicted numbers and quantiles.

    metrics = NumericMetrics()
    for batch in batches:
        metrics.update(decoded_texts, targets)
    results = metrics.gathered().compute()  # over all ranks

`gather` collects the tensors of all ranks for metrics of your own.
"""

from ntl.metrics.accumulator import gather
from ntl.metrics.intervals import QuantileMetrics
from ntl.metrics.numeric import METRICS, NumericMetrics

__all__ = [
    "NumericMetrics",
    "QuantileMetrics",
    # names of the metrics that NumericMetrics computes
    "METRICS",
    "gather",
]
