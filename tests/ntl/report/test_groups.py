from __future__ import annotations

import math

import pytest
from report_cases import make_run, report, rows_of
from tolerances import approx

from ntl.cli import main
from ntl.report.groups import mean_and_interval

pytestmark = pytest.mark.usefixtures("quick_figures")


def test_the_confidence_interval_uses_students_t(tmp_path):
    mean, width = mean_and_interval([1.0, 3.0])
    assert (mean, width) == (2.0, approx(12.7062047))
    assert mean_and_interval([1.0]) == (1.0, None)
    assert mean_and_interval([1.0, 2.0, 6.0]) == (3.0, approx(4.3026527 * math.sqrt(7 / 3)))
    assert mean_and_interval([1.0, None]) == (None, None)


def test_runs_of_the_same_name_with_different_settings_are_separate_rows(tmp_path):
    for weight in (0.3, 0.8):
        config = {"model_args": {"number_token_loss_weight": weight}}
        for seed in (0, 1):
            make_run(tmp_path / f"runs/{weight}/{seed}", "T5 + NTL-WAS", seed, weight, config=config)
    assert report(tmp_path) == 0
    assert [(row["objective"], row["seeds"]) for row in rows_of(tmp_path)] == [
        ("T5 + NTL-WAS (number_token_loss_weight=0.3)", "2"),
        ("T5 + NTL-WAS (number_token_loss_weight=0.8)", "2"),
    ]


def test_the_first_of_two_equal_runs_is_kept_and_both_are_named(tmp_path, capsys):
    make_run(tmp_path / "runs/a", "T5", 0, 0.25)
    make_run(tmp_path / "runs/b", "T5", 0, 0.75)
    assert report(tmp_path) == 0
    warning = f"{tmp_path}/runs/b repeats {tmp_path}/runs/a (arithmetic, T5, seed 0"
    assert warning in capsys.readouterr().err
    assert warning in (tmp_path / "out/table.md").read_text()
    assert [row["interpolate accuracy"] for row in rows_of(tmp_path)] == ["0.25"]
    # The first folder on the command line wins.
    folders = [str(tmp_path / "runs" / name) for name in "ba"]
    assert main(["report", *folders, "--output", str(tmp_path / "out"), "--overwrite"]) == 0
    assert [row["interpolate accuracy"] for row in rows_of(tmp_path)] == ["0.75"]


def test_an_evaluated_checkpoint_is_a_separate_row(tmp_path):
    run = make_run(tmp_path / "runs/b", "T5", 0, 0.75)
    make_run(tmp_path / "runs/a", "T5", 0, 0.25, config={"evaluated": f"{run}/checkpoint-5"})
    assert report(tmp_path) == 0
    found = {row["objective"]: row["interpolate accuracy"] for row in rows_of(tmp_path)}
    assert found == {"T5 (checkpoint=5)": "0.25", "T5 (checkpoint=null)": "0.75"}


def test_runs_with_different_test_sets_share_a_table(tmp_path):
    make_run(tmp_path / "runs/a", "T5", 0)
    config = {"dataset_args": {"mode": "dataset_comparison"}}
    make_run(tmp_path / "runs/b", "T5", 0, 0.75, test="arithmetic__mul", config=config)
    assert report(tmp_path) == 0
    one, other = rows_of(tmp_path)
    assert (one["interpolate accuracy"], one["arithmetic__mul accuracy"]) == ("", "0.75")
    assert (other["interpolate accuracy"], other["arithmetic__mul accuracy"]) == ("0.5", "")
    for test in ("interpolate", "arithmetic__mul"):
        assert (tmp_path / f"out/arithmetic_digit_confusion_{test}.svg").exists()


def test_unfinished_runs_are_omitted_and_listed(tmp_path):
    make_run(tmp_path / "runs/a", "T5", 0, 0.5)
    make_run(tmp_path / "runs/b", "T5", 1, 0.9, status="running", steps=7)
    assert report(tmp_path) == 0
    assert rows_of(tmp_path)[0]["interpolate accuracy"] == "0.5"
    assert "runs/b (T5, seed 1) is running, at step 7" in (tmp_path / "out/table.md").read_text()


def test_folders_without_a_finished_run_are_an_error(tmp_path, capsys):
    make_run(tmp_path / "runs/b", "T5", 1, status="running")
    assert report(tmp_path) == 2
    assert "no run is finished" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / "empty")]) == 2
    assert "no run in these folders or their subfolders" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_runs_whose_losses_are_divided_by_different_counts_are_not_compared(tmp_path, capsys):
    make_run(tmp_path / "runs/old", "T5", 0)  # recorded before there was a choice: the paper's count
    make_run(tmp_path / "runs/paper", "T5 + NTL-WAS", 0, config={"loss": {"normalize_by": "numbers"}})
    assert report(tmp_path) == 0
    make_run(tmp_path / "runs/items", "T5 + CRPS", 0, config={"loss": {"normalize_by": "items"}})
    assert report(tmp_path, "--overwrite") != 0
    assert "loss.normalize_by=items in" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["data_dir", "data_seed", "train_seed"])
def test_runs_on_different_data_are_separate_rows(key, tmp_path):
    for data in (4, 5):
        for seed in (0, 1):
            config = {"dataset_args": {"dataset_name": "arithmetic", key: data}}
            make_run(tmp_path / f"runs/{data}/{seed}", "T5", seed, data / 10, config=config)
    assert report(tmp_path) == 0
    found = {row["objective"]: (row["seeds"], row["interpolate accuracy"]) for row in rows_of(tmp_path)}
    assert found == {f"T5 ({key}={data})": ("2", str(data / 10)) for data in (4, 5)}


def test_a_seed_of_the_data_that_follows_the_runs_seed_makes_no_row(tmp_path):
    for seed in (0, 1):
        config = {"dataset_args": {"dataset_name": "tabular", "train_seed": seed, "data_seed": 0}}
        make_run(tmp_path / f"runs/{seed}", "T5", seed, config=config)
    assert report(tmp_path) == 0
    assert [(row["objective"], row["seeds"]) for row in rows_of(tmp_path)] == [("T5", "2")]
