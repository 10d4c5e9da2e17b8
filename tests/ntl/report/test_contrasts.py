"""Declared contrasts: scipy's paired tests, and claims no stronger than their intervals."""

import pandas as pd
import pytest
from report_cases import make_readings, make_run
from scipy.stats import ttest_rel
from tolerances import approx

from ntl.errors import UserError
from ntl.report.contrasts import compare_rows, read_contrasts
from ntl.report.groups import load_datasets
from ntl.report.program import report

CE, WAS = (10.0, 12.0, 11.0), (9.0, 11.2, 9.9)


@pytest.fixture
def datasets(tmp_path):
    for label, objective, errors in (("T5", "ce", CE), ("T5 + NTL-WAS", "ntl_was", WAS)):
        for seed, mae in enumerate(errors):
            metrics = {"accuracy": 0.5, "mae": mae}
            path = tmp_path / f"{objective}{seed}"
            config = {"loss": {"criterion": "ntl_was" if objective == "ntl_was" else None}}
            make_run(path, label, seed, metrics=metrics, objective=objective, config=config)
    return load_datasets([tmp_path])[0]


def compare(datasets, *contrasts, margin=5.0):
    tested, missing = compare_rows(datasets, read_contrasts(contrasts), margin)
    assert not missing
    return tested


def test_differences_are_those_of_a_paired_t_test(datasets):
    (row,) = compare(datasets, {"of": "ntl_was", "minus": "ce"}).to_dict("records")
    expected = ttest_rel(WAS, CE)
    ends = expected.confidence_interval()
    assert (row["seeds"], row["test"]) == (3, "interpolate")
    assert row["p"] == row["p_holm"] == approx(expected.pvalue)
    assert (row["lower"], row["upper"]) == (approx(ends.low), approx(ends.high))
    assert row["percent"] == approx(100 * row["difference"] / 11)
    assert row["verdict"] == "lower (better)"


@pytest.mark.parametrize(
    ("metric", "verdict"),
    [
        ("pearson", "higher (better)"),
        ("median_spearman", "higher (better)"),
        ("accuracy_of_valid", "higher (better)"),
        ("crps", "higher (worse)"),
        ("interval_coverage", "higher"),
    ],
)
def test_the_verdict_follows_the_direction_of_the_metric(metric, verdict, tmp_path):
    for objective, value in (("ce", 0.5), ("ntl_was", 0.8)):
        for seed in range(3):
            metrics = {metric: value + seed / 100 * value}
            make_run(tmp_path / f"{objective}{seed}", objective, seed, metrics=metrics, objective=objective)
    contrast = {"of": "ntl_was", "minus": "ce", "metric": metric}
    assert compare(load_datasets([tmp_path])[0], contrast)["verdict"][0] == verdict


def test_p_values_are_corrected_for_the_number_of_contrasts(datasets):
    both = [{"of": "ntl_was", "minus": "ce"}, {"of": "ce", "minus": "T5 + NTL-WAS"}]
    found = compare(datasets, *both, {"of": "ce", "minus": "ce"})
    assert list(found["p_holm"][:2]) == approx(list(3 * found["p"][:2]))
    assert found["difference"][0] == approx(-found["difference"][1])


def test_no_effect_is_said_only_within_the_margin(datasets):
    contrast = {"of": "ce", "minus": {"loss.criterion": None}}
    assert compare(datasets, contrast)["verdict"][0] == "no effect within ± 5 %"
    wide = {"of": "ntl_was", "minus": "ce", "metric": "accuracy"}
    assert compare(datasets, wide)["verdict"][0] == "no effect within ± 5 %"
    unclear = [dict(wide, metric="mae")] * 9  # corrected for nine
    assert compare(datasets, *unclear)["verdict"][0].startswith("undecided ± ")
    assert compare(datasets, *unclear, margin=50.0)["verdict"][0] == "no effect within ± 50 %"


def test_readings_are_named_behind_a_comma(tmp_path):
    for seed in (0, 1):
        make_readings(tmp_path / str(seed), "T5", seed, greedy=9.0 + seed, median=7.0)
    found = compare(load_datasets([tmp_path])[0], {"of": "T5, median", "minus": "T5"})
    assert list(found["difference"]) == [-2.5]


@pytest.mark.parametrize(
    ("contrast", "expected"),
    [
        ({"of": "crps", "minus": "ce"}, ["crps names no row of arithmetic", "T5; T5 + NTL-WAS"]),
        ({"of": "ntl_wsa", "minus": "cee, median"}, ["ntl_wsa names no row and cee, median names no row"]),
        ({"of": {"model_args.family": "t5"}, "minus": "ce"}, ["model_args.family=t5 names several rows"]),
        ({"of": "ntl_was", "minus": "ce", "dataset": "gsm8k"}, ["dataset=gsm8k", "arithmetic"]),
        ({"of": "ntl_was", "minus": "ce", "metric": "crps"}, ["crps on interpolate"]),
    ],
)
def test_a_contrast_that_the_runs_lack_is_named_and_the_others_are_tested(datasets, contrast, expected):
    other = {"of": "ntl_was", "minus": "ce"}
    tested, (line,) = compare_rows(datasets, read_contrasts([contrast, other]), 5.0)
    assert [*tested["of"]] == ["ntl_was"]
    assert tested["p_holm"][0] == tested["p"][0]
    for part in expected:
        assert part in line


@pytest.mark.usefixtures("quick_figures")
def test_a_report_without_a_single_row_of_its_contrasts_says_so(datasets, tmp_path, capsys):
    report([tmp_path], tmp_path / "tested", contrasts=[{"of": "ntl_was", "minus": "ce"}])
    assert "| ntl_was minus ce | mae on interpolate | 3 |" in (tmp_path / "tested/table.md").read_text()
    declared = [{"of": "ntl_wsa", "minus": "cee"}]
    (tmp_path / "out").mkdir()
    (tmp_path / "out/contrasts.csv").write_text("of an earlier report")
    report([tmp_path], tmp_path / "out", contrasts=declared)
    printed = capsys.readouterr()
    assert "left out: contrast ntl_wsa minus cee: " in printed.err
    assert "contrast ntl_wsa minus cee" in (tmp_path / "out/table.md").read_text()
    assert not (tmp_path / "out/contrasts.csv").exists()


@pytest.mark.parametrize(
    ("contrast", "expected"),
    [
        ({"of": "ce"}, "lacks of or minus"),
        ({"of": "ce", "minos": "ce"}, "Did you mean contrasts: minus"),
        ({"of": "ce", "minus": "head", "metric": "maee"}, "Did you mean contrasts: metric mae"),
    ],
)
def test_a_malformed_contrast_is_an_error(contrast, expected):
    with pytest.raises(UserError, match=expected):
        read_contrasts([contrast])


@pytest.mark.parametrize("given", [None, "ce", {"of": "ce", "minus": "head"}, ["ce"]])
def test_contrasts_that_are_no_list_of_mappings_are_an_error(given):
    with pytest.raises(UserError, match="is no list of mappings"):
        read_contrasts(given)


def test_one_seed_has_no_interval(tmp_path):
    for objective in ("ce", "ntl_was"):
        make_run(tmp_path / objective, objective, 0, objective=objective, metrics={"mae": 5.0})
    found = compare(load_datasets([tmp_path])[0], {"of": "ntl_was", "minus": "ce"})
    assert found["verdict"][0] == "undecided (one seed)"
    assert pd.isna(found["p_holm"][0])


@pytest.mark.parametrize(
    ("values", "verdict"), [((0.0, 0.0, 0.0), "no effect within ± 5 %"), ((0.0, 0.5, 0.0), "undecided")]
)
def test_several_seeds_that_are_zero_have_a_verdict_of_their_own(values, verdict, tmp_path, capsys):
    for objective, exact in (("ce", (0.0, 0.0, 0.0)), ("ntl_was", values)):
        for seed, value in enumerate(exact):
            metrics = {"accuracy": 0.5, "exact_number": value}
            make_run(tmp_path / f"{objective}{seed}", objective, seed, metrics=metrics, objective=objective)
    report(
        [tmp_path],
        tmp_path / "report",
        contrasts=[{"of": "ntl_was", "minus": "ce", "metric": "exact_number"}],
    )
    assert f"| {verdict} |" in capsys.readouterr().out


def test_contrasts_of_several_datasets_stand_in_one_table_and_name_theirs(datasets, tmp_path, capsys):
    for objective, mae in (("ce", 4.0), ("ntl_was", 3.0)):
        path, metrics = tmp_path / f"other/{objective}", {"accuracy": 0.5, "mae": mae}
        make_run(path, objective, 0, metrics=metrics, objective=objective, dataset="bikes", config={})
    declared = [{"dataset": name, "of": "ntl_was", "minus": "ce"} for name in ("bikes", datasets[0].name)]
    report([tmp_path], tmp_path / "report", contrasts=declared)
    printed = capsys.readouterr().out
    assert "bikes: ntl_was minus ce" in printed
    assert f"{datasets[0].name}: ntl_was minus ce" in printed
