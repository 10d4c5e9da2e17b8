"""Planned contrasts: scipy's paired tests, and claims no stronger than their intervals."""

import pytest
from report_cases import make_run
from scipy.stats import ttest_rel
from tolerances import approx

from ntl.errors import UserError
from ntl.report.contrasts import compare_rows, read_contrasts
from ntl.report.runs import read_runs
from ntl.report.tables import contrast_table

CE, WAS = (10.0, 12.0, 11.0), (9.0, 11.2, 9.9)
WAS_MINUS_CE = {"of": "ntl_was", "minus": "ce"}


def make_runs(path, metric, dataset="arithmetic", **values):
    """Make runs of each loss, a seed for each value of a metric, and read them."""
    for name, by_seed in values.items():
        for seed, value in enumerate(by_seed):
            settings = {"loss": {"criterion": None if name == "ce" else name, "mode": "add"}}
            what = {"name": name, "dataset": dataset, "metrics": {metric: value}, "settings": settings}
            make_run(path / f"{dataset}/{name}{seed}", f"T5 {name}", seed, **what)
    return read_runs([path])[0]


@pytest.fixture
def table(tmp_path):
    return make_runs(tmp_path, "mae", ce=CE, ntl_was=WAS)


def compare(table, *contrasts, margin=5.0):
    tested, missing = compare_rows(table, read_contrasts(contrasts), margin)
    assert not missing
    return tested


def test_differences_are_those_of_a_paired_t_test(table):
    (row,) = compare(table, WAS_MINUS_CE).to_dict("records")
    expected = ttest_rel(WAS, CE)
    ends = expected.confidence_interval()
    assert (row["seeds"], row["test"]) == (3, "interpolate")
    assert row["p"] == row["p_holm"] == approx(expected.pvalue)
    assert (row["lower"], row["upper"]) == (approx(ends.low), approx(ends.high))
    assert row["percent"] == approx(100 * row["difference"] / 11)
    assert row["verdict"] == "lower (better)"


@pytest.mark.parametrize(
    ("metric", "verdict"),
    [("median_spearman", "higher (better)"), ("crps", "higher (worse)"), ("interval_coverage", "higher")],
)
def test_the_verdict_follows_the_direction_of_the_metric(metric, verdict, tmp_path):
    table = make_runs(tmp_path, metric, ce=(0.5, 0.51, 0.52), ntl_was=(0.8, 0.82, 0.81))
    assert compare(table, {**WAS_MINUS_CE, "metric": metric})["verdict"][0] == verdict


def test_no_effect_is_said_only_if_two_one_sided_tests_reject_the_margin(table):
    assert "no effect" in compare(table, {"of": "ce", "minus": "ce"})["verdict"][0]
    # The 90 % interval: -0.967 ± 2.920 * 0.0882, which ends at -11.1 % of 11 (that of 95 %: at -12.2 %).
    many = [WAS_MINUS_CE] * 9  # corrected for nine
    assert "no effect" not in compare(table, *many, margin=11.0)["verdict"][0]
    assert "no effect" in compare(table, *many, margin=11.5)["verdict"][0]


@pytest.mark.parametrize(
    ("contrast", "named"),
    [
        ({"of": "ntl_was", "minus": "cee, median"}, ["cee, median", "T5 ntl_was"]),
        ({"of": {"test": "interpolate"}, "minus": "ce"}, ["test=interpolate", "several"]),
        ({"of": {"loss.mode": "add"}, "minus": "ce"}, ["loss.mode"]),
        ({**WAS_MINUS_CE, "dataset": "gsm8k"}, ["gsm8k", "arithmetic"]),
        ({**WAS_MINUS_CE, "metric": "crps"}, ["crps"]),
    ],
)
def test_a_contrast_that_the_runs_lack_is_named_and_the_others_are_tested(table, contrast, named):
    tested, (line,) = compare_rows(table, read_contrasts([contrast, WAS_MINUS_CE]), 5.0)
    assert [*tested["of"]] == ["ntl_was"]
    assert tested["p_holm"].item() == approx(2 * tested["p"].item())
    for part in named:
        assert part in line


def test_rows_that_answered_another_number_of_questions_are_not_compared(tmp_path):
    for name, count in (("ce", 8.0), ("ntl_was", 3.0)):
        for seed in (0, 1):
            metrics = {"mae": 5.0 + seed, "count": count}
            make_run(tmp_path / f"{name}{seed}", name, seed, metrics=metrics)
    tested, (line,) = compare_rows(read_runs([tmp_path])[0], read_contrasts([WAS_MINUS_CE]), 5.0)
    assert tested.empty
    assert "ntl_was" in line


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ([{"of": "ce"}], "minus"),
        ([{"of": "ce", "minos": "ce"}], "minus"),
        ([{"of": "ce", "minus": "head", "metric": "maee"}], "mae"),
        (["ce"], "contrasts"),
        (None, "contrasts"),
    ],
)
def test_a_malformed_contrast_is_an_error(given, key):
    with pytest.raises(UserError, match=key):
        read_contrasts(given)


def test_zeros_have_no_effect_unless_they_differ(tmp_path):
    zeros = (0.0, 0.0, 0.0)
    table = make_runs(tmp_path, "exact_number", ce=zeros, ntl_was=zeros, crps=(0.0, 0.5, 0.0))
    given = [{"of": name, "minus": "ce", "metric": "exact_number"} for name in ("ntl_was", "crps")]
    found = compare(table, *given)
    assert [*found["p"].round(4)] == [1.0, 0.4226]
    assert [*found["verdict"]] == ["no effect within ± 5 %", "no significant difference"]


def test_contrasts_that_were_planned_and_not_run_count_for_holm(tmp_path):
    table = make_runs(tmp_path, "mae", ce=(5.0, 7.0, 6.0), ntl_was=(3.0, 4.9, 4.0), crps=(4.0, 6.1, 5.0))
    ran = [WAS_MINUS_CE, {"of": "crps", "minus": "ce"}]
    not_run = [{"of": "hl_gauss", "minus": "ce"}, {**WAS_MINUS_CE, "dataset": "products"}]
    tested, missing = compare_rows(table, read_contrasts([*ran, *not_run]), 5.0)
    assert len(missing) == 2
    p = sorted(tested["p"])
    assert sorted(tested["p_holm"]) == [approx(4 * p[0]), approx(max(4 * p[0], 3 * p[1]))]


def test_a_contrast_over_several_datasets_is_of_the_seeds_that_all_have(tmp_path):
    make_runs(tmp_path, "mae", ce=(10.0, 10.0, 100.0), ntl_was=(8.0, 8.0, 80.0))
    table = make_runs(tmp_path, "mae", dataset="products", ce=(20.0, 20.0), ntl_was=(16.0, 16.0))
    tested = compare(table, {**WAS_MINUS_CE, "dataset": ["arithmetic", "products"]})
    assert (tested["seeds"][0], tested["percent"][0]) == (2, approx(-20))


@pytest.mark.parametrize("metric", ["interval_coverage", "calibrated_coverage", "coverage_95"])
def test_coverages_differ_in_points_on_one_dataset_and_on_several(metric, tmp_path):
    coverage = {"ce": (0.5, 0.4, 0.6), "ntl_was": (0.6, 0.52, 0.68)}
    make_runs(tmp_path, metric, **coverage)
    table = make_runs(tmp_path, metric, dataset="products", **coverage)
    given = {**WAS_MINUS_CE, "metric": metric}
    tested = compare(
        table, {**given, "dataset": "arithmetic"}, {**given, "dataset": ["arithmetic", "products"]}
    )
    assert [*tested["difference"]] == [approx(0.1), approx(0.1)]
    assert [*tested["percent"]] == [approx(10, scale=10), approx(10, scale=10)]
    assert contrast_table(tested)["per cent"].str.endswith(" points").all()
