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
        config = {"loss": {"criterion": "ntl_was", "weight": weight}}
        for seed in (0, 1):
            make_run(tmp_path / f"runs/{weight}/{seed}", "T5 + NTL-WAS", seed, weight, config=config)
    assert report(tmp_path) == 0
    assert [(row["objective"], row["seeds"]) for row in rows_of(tmp_path)] == [
        ("T5 + NTL-WAS (weight=0.3)", 2),
        ("T5 + NTL-WAS (weight=0.8)", 2),
    ]


def test_the_published_keys_and_the_group_loss_are_one_row(tmp_path):
    published = {"model_args": {"number_token_loss": True, "number_token_loss_with_wasserstein": True}}
    published["loss"] = {"criterion": "from_model_args"}
    make_run(tmp_path / "runs/a", "T5 + NTL-WAS", 0, config=published)
    make_run(tmp_path / "runs/b", "T5 + NTL-WAS", 1, config={"loss": {"criterion": "ntl_was"}})
    assert report(tmp_path) == 0
    assert [(row["objective"], row["seeds"]) for row in rows_of(tmp_path)] == [("T5 + NTL-WAS", 2)]


@pytest.mark.parametrize(
    ("key", "values"), [("data_dir", ("one", "two")), ("data_seed", (0, 1)), ("test_size", (5, 9))]
)
def test_runs_on_different_data_are_separate_rows(tmp_path, key, values):
    for seed, value in enumerate(values):
        make_run(tmp_path / f"runs/{seed}", "T5", seed, config={"dataset_args": {key: value}})
    for other, value in enumerate(values):  # with equal seeds, too
        make_run(tmp_path / f"runs/again/{other}", "T5", 5, config={"dataset_args": {key: value}})
    assert report(tmp_path) == 0
    found = {(row["objective"], row["seeds"]) for row in rows_of(tmp_path)}
    assert found == {(f"T5 ({key}={value})", 2) for value in values}


def test_training_rows_that_are_drawn_by_each_seed_are_one_row(tmp_path):
    for seed in (0, 1):
        config = {"dataset_args": {"train_seed": seed}}
        make_run(tmp_path / f"runs/{seed}", "T5", seed, dataset="tabular", config=config)
    assert report(tmp_path) == 0
    assert [row["seeds"] for row in rows_of(tmp_path)] == [2]


def test_the_first_of_two_equal_runs_is_kept_and_both_are_named(tmp_path, capsys):
    make_run(tmp_path / "runs/a", "T5", 0, 0.25)
    make_run(tmp_path / "runs/b", "T5", 0, 0.75)
    assert report(tmp_path) == 0
    warning = f"{tmp_path}/runs/b/test repeats {tmp_path}/runs/a/test"
    assert warning in capsys.readouterr().err
    assert warning in (tmp_path / "out/table.md").read_text()
    assert [row["interpolate accuracy"] for row in rows_of(tmp_path)] == [0.25]
    # The first folder on the command line wins.
    folders = [str(tmp_path / "runs" / name) for name in "ba"]
    assert main(["report", *folders, "--output", str(tmp_path / "out")]) == 0
    assert [row["interpolate accuracy"] for row in rows_of(tmp_path)] == [0.75]


def test_an_evaluated_checkpoint_is_a_separate_row(tmp_path):
    make_run(tmp_path / "runs/b", "T5", 0, 0.75)
    make_run(tmp_path / "runs/b/checkpoint-5", "T5", 0, 0.25)
    folders = [str(tmp_path / "runs"), str(tmp_path / "runs/b/checkpoint-5")]
    assert main(["report", *folders, "--output", str(tmp_path / "out")]) == 0
    found = {row["objective"]: row["interpolate accuracy"] for row in rows_of(tmp_path)}
    assert found == {"T5": 0.75, "T5 (checkpoint=5)": 0.25}


def test_runs_with_different_test_sets_share_a_table(tmp_path):
    make_run(tmp_path / "runs/a", "T5", 0)
    config = {"dataset_args": {"mode": "dataset_comparison"}}
    make_run(tmp_path / "runs/b", "T5", 0, 0.75, test="arithmetic__mul", config=config)
    assert report(tmp_path) == 0
    other, one = rows_of(tmp_path)
    assert (math.isnan(one["interpolate accuracy"]), one["arithmetic__mul accuracy"]) == (True, 0.75)
    assert (other["interpolate accuracy"], math.isnan(other["arithmetic__mul accuracy"])) == (0.5, True)
    for test in ("interpolate", "arithmetic__mul"):
        assert (tmp_path / f"out/arithmetic_digit_confusion_{test}.svg").exists()


def test_unfinished_runs_are_omitted_and_listed(tmp_path):
    make_run(tmp_path / "runs/a", "T5", 0, 0.5)
    make_run(tmp_path / "runs/b", "T5", 1, 0.9, status="running", steps=7)
    assert report(tmp_path) == 0
    assert rows_of(tmp_path)[0]["interpolate accuracy"] == 0.5
    assert "runs/b is running, at step 7" in (tmp_path / "out/table.md").read_text()


def test_folders_without_a_finished_run_are_an_error(tmp_path, capsys):
    make_run(tmp_path / "runs/b", "T5", 1, status="running")
    assert report(tmp_path) == 2
    assert "no finished evaluation named test" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / "empty")]) == 2
    assert not (tmp_path / "out").exists()


def test_other_evaluations_are_reported_by_name(tmp_path):
    run = make_run(tmp_path / "runs/a", "T5", 0)
    run.evaluation("few").write_results("interpolate", {"accuracy": 0.9}, [])
    run.evaluation("few").finish(run.record())
    assert report(tmp_path, "--evaluation", "few") == 0
    assert [row["interpolate accuracy"] for row in rows_of(tmp_path)] == [0.9]
