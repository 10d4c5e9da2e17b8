"""What a report reads: evaluations and packs, and what distinguishes its rows."""

import shutil
from pathlib import Path

import pytest
from report_cases import NUMBERS, add_curve, make_run, report, rows_of

from ntl.errors import UserError
from ntl.report.program import main
from ntl.report.runs import read_runs
from ntl.report.tables import make_tables

STUDIES = Path(__file__).parents[3] / "studies"
PACKED = sorted(path.parent for path in STUDIES.glob("*/results/metrics.csv*"))
pytestmark = pytest.mark.usefixtures("no_figures")


def labels(tmp_path):
    """The number of seeds of each row."""
    table, _ = read_runs([tmp_path])
    return table.groupby("row", sort=False)["seed"].nunique().to_dict()


def test_runs_of_one_name_with_different_settings_are_separate_rows(tmp_path):
    for weight in (0.3, 0.8):
        for seed in (0, 1):
            settings = {"loss": {"criterion": "ntl_was", "weight": weight, "options": None}}
            make_run(tmp_path / f"{weight}/{seed}", "T5 + NTL-WAS", seed, settings=settings)
    assert labels(tmp_path) == {"T5 + NTL-WAS (weight=0.3)": 2, "T5 + NTL-WAS (weight=0.8)": 2}
    table, _ = read_runs([tmp_path])
    assert {*table["loss.weight"]} == {"0.3", "0.8"}
    assert "loss.criterion" not in table


def test_training_rows_that_are_drawn_by_each_seed_are_one_row(tmp_path):
    for seed in (0, 1):
        make_run(tmp_path / f"a/{seed}", "T5", seed, settings={"dataset_args": {"data_seed": seed}})
        make_run(tmp_path / f"b/{seed}", "RT", 5 * seed, settings={"dataset_args": {"data_seed": seed}})
    assert labels(tmp_path) == {"T5": 2, "RT (data_seed=0)": 1, "RT (data_seed=1)": 1}
    for name, seed in (("T5", 0), ("T5", 1), ("RT", 0)):  # which equals the seed of a row by chance
        settings = {"dataset_args": {"data_seed": 0}}
        make_run(tmp_path / f"one/{name}/{seed}", name, seed, settings=settings)
    assert labels(tmp_path / "one") == {"RT": 1, "T5": 2}


def test_an_evaluated_checkpoint_is_a_separate_row(tmp_path):
    shape = {"d_model": 16, "d_ff": 32}  # transformers writes that of a checkpoint with sorted keys
    for path, given in (("b", shape), ("b/checkpoint-5", dict(sorted(shape.items())))):
        make_run(tmp_path / path, "T5", 0, settings={"model_args": {"config_overrides": given}})
    assert labels(tmp_path) == {"T5": 1, "T5 (checkpoint=5)": 1}
    settings = {"model_args": {"config_overrides": shape}}
    make_run(tmp_path / "c", "T5", 0, model="../../b/checkpoint-7", settings=settings)  # elsewhere
    assert labels(tmp_path) == {"T5": 1, "T5 (checkpoint=5)": 1, "T5 (checkpoint=7)": 1}


def test_runs_with_another_version_of_a_file_are_separate_rows(tmp_path):
    settings = {"loss": {"criterion": "my:loss"}}
    for seed in (0, 1):
        identity = {"loss.criterion.source": "old"}
        make_run(tmp_path / f"a/{seed}", "T5", seed, settings=settings, identity=identity)
    make_run(tmp_path / "b", "T5", 0, settings={"loss": {"criterion": None}})
    assert labels(tmp_path) == {"T5 (criterion=my:loss)": 2, "T5": 1}
    table, _ = read_runs([tmp_path])
    assert "loss.criterion.source" not in table
    changed = {"loss.criterion.source": "new"}
    make_run(tmp_path / "c", "T5", 0, settings=settings, identity=changed)
    assert [*labels(tmp_path).values()] == [2, 1, 1]


def test_the_first_of_two_equal_runs_is_kept_and_the_other_is_named(tmp_path, capsys):
    make_run(tmp_path / "runs/a", "T5", 0, 0.25)
    make_run(tmp_path / "runs/b", "T5", 0, metrics={"accuracy": 0.75, "mae": 2.0})
    assert report(tmp_path) == 0
    assert f"{tmp_path}/runs/b/test" in capsys.readouterr().err
    assert f"{tmp_path}/runs/b/test" in (tmp_path / "out/table.md").read_text()
    assert [row["interpolate accuracy"] for row in rows_of(tmp_path)] == [0.25]
    assert "interpolate mae" not in rows_of(tmp_path)[0]
    table, _ = read_runs([tmp_path / "runs/b", tmp_path / "runs"])  # the first folder wins
    assert {*table["folder"]} == {f"{tmp_path}/runs/b/test"}


def test_unfinished_and_damaged_runs_are_named_and_the_others_are_read(tmp_path):
    make_run(tmp_path / "a", "T5", 0)
    (tmp_path / "b/.hydra").mkdir(parents=True)
    for name, content in {"c": "{", "d": '{"test": {"mae": 1.0}}', "e": "[]"}.items():
        make_run(tmp_path / name, "T5", 1)
        (tmp_path / name / "test/metrics.json").write_text(content)
    make_run(tmp_path / "f", "T5", 1, test="none", metrics={})
    table, left_out = read_runs([tmp_path])
    assert {*table["seed"]} == {0}
    assert len(left_out) == 5
    for name in "bcdef":
        assert any(line.startswith(str(tmp_path / name)) for line in left_out)
    for folder in (tmp_path / "b", tmp_path / "absent"):  # has no finished run
        with pytest.raises(UserError):
            read_runs([folder])


def test_evaluations_are_read_by_name_or_as_a_folder_of_their_own(tmp_path):
    make_run(tmp_path / "a", "T5", 0, 0.5)
    make_run(tmp_path / "a", "T5", 0, 0.9, evaluation="few")
    for given in ([tmp_path], "few"), ([tmp_path / "a/few"],), ([tmp_path / "a/few"], "few"):
        table, left_out = read_runs(*given)
        assert (table["value"][table["metric"] == "accuracy"].item(), left_out) == (0.9, [])
    assert main([str(tmp_path), "--output", str(tmp_path)]) == 0  # a pack beside the runs
    for folder in (tmp_path / "a/few", tmp_path):
        with pytest.raises(UserError, match="other"):
            read_runs([folder], "other")


def test_learning_curves_are_those_of_the_trainer(tmp_path):
    run = make_run(tmp_path / "a", "T5", 3)
    add_curve(run, {"step": 5, "loss": 1.0}, {"step": 5, "eval_mae": 2.0, "epoch": 1.0})
    make_run(tmp_path / "b", "T5", 4)
    table, _ = read_runs([tmp_path])
    (curve,) = table[table["test"] == "validation, step 5"].to_dict("records")
    assert (curve["row"], curve["seed"], curve["metric"], curve["value"]) == ("T5", 3, "mae", 2.0)


def test_a_report_can_be_read_again(tmp_path):
    for width in (None, 5):
        metrics = {"accuracy": 0.5, **NUMBERS, "log_r2": None, "mae": 2.0}
        settings = {"model_args": {"number_digits": width, "number_encoding": "none"}}
        settings |= {"dataset_args": {"dataset_name": "tabular"}}
        make_run(tmp_path / f"runs/{width}", "T5 + NTL-WAS", 0, metrics=metrics, settings=settings)
    assert report(tmp_path) == 0
    first = (tmp_path / "out/metrics.csv").read_text()
    shown = (tmp_path / "out/table.md").read_text()
    shutil.move(tmp_path / "out", tmp_path / "again")
    shutil.rmtree(tmp_path / "runs")
    (tmp_path / "again").rename(tmp_path / "runs")
    assert report(tmp_path) == 0
    assert (tmp_path / "out/metrics.csv").read_text() == first
    assert (tmp_path / "out/table.md").read_text() == shown


def test_a_pack_is_a_file_or_stands_in_a_folder_and_needs_its_columns(tmp_path):
    pack = "dataset,row,name,seed,test,questions,metric,value\nsums,T5,ce,0,test,,mae,2.5\n"
    (tmp_path / "metrics.csv").write_text(pack)
    for given in (tmp_path, tmp_path / "metrics.csv"):
        table, _ = read_runs([given])
        assert table[["dataset", "row", "name", "seed", "value"]].values.tolist() == [
            ["sums", "T5", "ce", 0, 2.5]
        ]
    (tmp_path / "metrics.csv").write_text(pack.replace("questions", "asked"))
    with pytest.raises(UserError, match="questions"):
        read_runs([tmp_path])


@pytest.mark.parametrize("pack", PACKED, ids=lambda path: path.parent.name)  # an sdist has none
def test_the_results_of_every_study_are_reported_whole(pack):
    table, left_out = read_runs([pack])
    assert not left_out
    for _, runs in table.groupby("dataset"):
        for shown in make_tables(runs):
            assert len(shown.columns) > 2
            assert len(shown) > 0
