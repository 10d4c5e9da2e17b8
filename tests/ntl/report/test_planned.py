"""Contrasts: all that were planned count, seeds that are shared alone, and coverages have one unit."""

import pytest
from report_cases import make_run
from tolerances import approx

from ntl.report.contrasts import compare_rows, read_contrasts
from ntl.report.runs import read_runs
from ntl.report.tables import contrast_columns

CE, WAS = (5.0, 7.0, 6.0), (4.0, 4.0, 5.0)
WAS_MINUS_CE = {"of": "ntl_was", "minus": "ce"}


def make(tmp_path, metric="mae", dataset="sums", first_seed=0, **rows):
    for name, values in rows.items():
        for seed, value in enumerate(values, first_seed):
            make_run(
                tmp_path / f"{dataset}/{name}{seed}", name, seed, metrics={metric: value}, dataset=dataset
            )
    return read_runs([tmp_path])[0]


def compare(table, *contrasts):
    return compare_rows(table, read_contrasts(contrasts), 5.0)


def test_contrasts_that_were_planned_and_not_run_count_for_holm(tmp_path):
    table = make(tmp_path, ce=CE, ntl_was=(3.0, 4.9, 4.0), crps=(4.0, 6.1, 5.0))
    ran = [WAS_MINUS_CE, {"of": "crps", "minus": "ce"}]
    not_run = [{"of": "hl_gauss", "minus": "ce"}, {**WAS_MINUS_CE, "dataset": "products"}]
    tested, missing = compare(table, *ran, *not_run)
    assert len(missing) == 2
    p = sorted(tested["p"])
    assert sorted(tested["p_holm"]) == [approx(4 * p[0]), approx(max(4 * p[0], 3 * p[1]))]


def test_a_contrast_over_several_datasets_is_of_the_seeds_that_all_have(tmp_path):
    make(tmp_path, ce=(10.0, 10.0, 100.0), ntl_was=(8.0, 8.0, 80.0))
    table = make(tmp_path, dataset="products", ce=(20.0, 20.0), ntl_was=(16.0, 16.0))
    tested, _ = compare(table, {**WAS_MINUS_CE, "dataset": ["sums", "products"]})
    assert (tested["seeds"][0], tested["percent"][0]) == (2, approx(-20))


@pytest.mark.parametrize("metric", ["interval_coverage", "calibrated_coverage", "coverage_95"])
def test_coverages_differ_in_points_on_one_dataset_and_on_several(metric, tmp_path):
    coverage = {"ce": (0.5, 0.4, 0.6), "ntl_was": (0.6, 0.52, 0.68)}
    make(tmp_path, metric, **coverage)
    table = make(tmp_path, metric, dataset="products", **coverage)
    given = {**WAS_MINUS_CE, "metric": metric}
    tested, _ = compare(table, {**given, "dataset": "sums"}, {**given, "dataset": ["sums", "products"]})
    assert [*tested["difference"]] == [approx(0.1), approx(0.1)]
    assert [*tested["percent"]] == [approx(10, scale=10), approx(10, scale=10)]
    cells = contrast_columns(tested)["", "per cent"]
    assert all(cell.endswith(" points") for cell in cells)
