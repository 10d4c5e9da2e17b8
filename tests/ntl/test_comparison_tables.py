from __future__ import annotations

import math

from tolerances import approx

from ntl.comparison.tables import constant_guess, markdown_tables, noise_floor, summarise
from ntl.tasks import Example


def record(objective, seed, mae):
    metrics = {
        "mae": mae,
        "rmse": 1.0,
        "r2": 0.5,
        "pearson": 0.9,
        "exact": 0.2,
        "accuracy": 0.1,
        "invalid": 0,
    }
    return {"objective": objective, "seed": seed, "metrics": {"test": metrics}}


def test_the_difference_to_cross_entropy_is_paired_by_seed():
    # Seeds differ by far more than objectives, so only a paired difference shows the effect.
    records = [record("ce", s, m) for s, m in enumerate([10.0, 20.0, 30.0])]
    records += [record("ntl_was", s, m) for s, m in enumerate([9.0, 18.0, 27.0])]
    summary = summarise(records)["test"]
    versus = summary["ntl_was"]["versus_ce"]["mae"]
    assert versus["mean"] == approx(-2.0)
    assert versus["error"] == approx(1 / math.sqrt(3))
    assert (versus["lower"], versus["seeds"]) == (3, 3)
    assert summary["ce"]["mae"]["error"] == approx(10 / math.sqrt(3))
    assert "versus_ce" not in summary["ce"]


def test_only_seeds_that_both_objectives_have_are_paired():
    records = [record("ce", 0, 10.0), record("ntl_was", 0, 9.0), record("ntl_was", 1, 5.0)]
    versus = summarise(records)["test"]["ntl_was"]["versus_ce"]["mae"]
    assert versus == {"mean": -1.0, "error": None, "lower": 1, "seeds": 1}


def test_the_table_shows_na_without_a_baseline_or_a_defined_metric():
    table = markdown_tables(
        summarise([record("ntl_was", 0, None)]),
        {"test": {"noise_floor": None, "constant_guess": 4.0}},
        [],
    )
    assert "| CE + NTL-WAS | 1 | 0.200 | n/a | 1.00 |" in table
    assert "training median: MAE 4.00." in table


def test_old_runs_without_exact_can_be_reported():
    records = [record(name, 0, 1.0) for name in ("ce", "ntl_was")]
    for old in records:
        del old["metrics"]["test"]["exact"]
    table = markdown_tables(summarise(records), {"test": {"noise_floor": None, "constant_guess": 4.0}}, [])
    assert "| CE | 1 | n/a | 1.00 | 1.00 |" in table


def test_references_equal_values_computed_by_hand():
    train = [Example("", "1"), Example("", "2"), Example("", "9")]
    test = [Example("", "4", 3.0), Example("", "1", 3.0)]
    assert constant_guess(train, test) == 1.5
    assert noise_floor(test) == 1.5
    assert noise_floor(train) is None
