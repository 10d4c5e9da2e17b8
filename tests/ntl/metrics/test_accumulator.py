"""Metrics of several ranks, and of batches that are forgotten."""

import torch
from processes import results_of
from tolerances import approx

from ntl.metrics import NumericMetrics, QuantileMetrics

ROWS = [(float(i) if i % 4 else None, float(i % 7)) for i in range(11)]


def numeric(rows):
    return NumericMetrics().update([p for p, _ in rows], [t for _, t in rows])


def quantiles():
    return QuantileMetrics().update([[1.0, 2.0, 3.0], [0.0, 5.0, 9.0]], [2.5, -1.0])


def results(metrics):
    return [metric.compute() for metric in metrics]


def gather_on_rank(rank):
    own = numeric(ROWS[:8] if rank == 0 else ROWS[8:])
    # The other rank has one batch of numbers, and none of quantiles.
    other = quantiles() if rank == 0 else QuantileMetrics()
    return results([metrics.gathered() for metrics in (own, other)]), own.compute()["count"]


def test_gathered_metrics_of_unequal_ranks_match_a_single_process(tmp_path):
    alone = results([numeric(ROWS), quantiles()])
    gathered = results_of(gather_on_rank, (), tmp_path)
    for of_rank, _ in gathered:
        for one, other in zip(of_rank, alone, strict=True):
            assert list(one) == list(other)
            assert one == approx(other, dtype=torch.float64)
    assert [count for _, count in gathered] == [8, 3]


def test_without_process_groups_gathered_returns_an_independent_copy():
    metrics = numeric(ROWS)
    gathered = metrics.gathered()
    assert gathered.compute() == approx(metrics.compute(), dtype=torch.float64)
    metrics.update([9.0], [2.0])
    assert [m.compute()["count"] for m in (gathered, metrics)] == [11, 12]
    of_quantiles = quantiles()
    gathered = of_quantiles.gathered()
    of_quantiles.update([[0.0, 0.0, 0.0]], [100.0])
    assert gathered.compute()["pinball_0.5"] < of_quantiles.compute()["pinball_0.5"]


def test_an_update_does_not_copy_the_batches_before_it():
    metrics = numeric(ROWS)
    parts = metrics._parts
    assert metrics.update([9.0], [2.0])._parts is parts


def test_reset_discards_all_batches():
    for metrics in (numeric(ROWS), quantiles()):
        metrics.reset()
        assert set(list(metrics.compute().values())[:2]) == {0}
    metrics = numeric(ROWS)
    metrics.reset()
    assert metrics.update([1.0], [3.0]).compute()["mae"] == 2
