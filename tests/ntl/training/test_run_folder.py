import json

import pytest

from ntl.errors import UserError
from ntl.training.run_folder import (
    EvaluationFolder,
    Prediction,
    RunFolder,
    RunRecord,
    find_evaluations,
    read_trained,
)

CONFIG = {"dataset_args": {"dataset_name": "arithmetic"}, "loss": {"weight": 0.5}}
RECORD = RunRecord("T5 + NTL-WAS", "ntl_was", "arithmetic", 7, config=CONFIG)


def test_records_and_results_are_the_same_after_writing_and_reading(tmp_path):
    folder = RunFolder(tmp_path / "deep" / "run")
    folder.write(RECORD)
    assert folder.update(steps=3).steps == folder.record().steps == 3
    # A line separator inside a text must not end the line in the file.
    rows = [Prediction("1+1\u2028?", "2", "é 3", 3.0, 2.0), Prediction("x", "1", "", None, 1.0)]
    results = folder.evaluation("test")
    results.write_results("a/b test", {"mae": 1.0, "r2": None}, rows)
    assert not results.is_complete()
    results.finish(RECORD)
    assert results.is_complete()
    assert results.metrics() == {"a/b test": {"mae": 1.0, "r2": None}}
    assert results.predictions("a/b test") == rows
    assert (results.record().label, results.run.path) == (RECORD.label, folder.path)


def test_a_resumed_run_replaces_the_points_that_it_measures_again(tmp_path):
    folder = RunFolder(tmp_path)
    for step, loss in ((10, 3.0), (20, 2.0), (30, 1.0), (20, 2.5)):
        folder.add_to_curve({"step": step, "eval_loss": loss})
    assert folder.curve() == [{"step": 10, "eval_loss": 3.0}, {"step": 20, "eval_loss": 2.5}]


def test_each_evaluation_of_a_name_in_folders_and_subfolders_is_found_once(tmp_path):
    for name in ("b", "a/deep", "run", "run/checkpoint-5", "run/few"):
        results = EvaluationFolder(tmp_path / name / ("test" if name != "run/few" else ""))
        results.write_results("t", {}, [])
        results.finish(RECORD)
    folders = [tmp_path / "b", tmp_path, tmp_path / "a/deep"]
    found = [folder.path.relative_to(tmp_path).as_posix() for folder in find_evaluations(folders, "test")]
    assert found == ["b/test", "a/deep/test", "run/test"]
    assert len(find_evaluations([tmp_path / "run/checkpoint-5"], "test")) == 1
    assert [each.path.name for each in find_evaluations([tmp_path], "few")] == ["few"]
    with pytest.raises(UserError, match="absent does not exist"):
        find_evaluations([tmp_path / "absent"], "test")


def test_a_checkpoint_belongs_to_its_run_and_an_ordinary_folder_to_none(tmp_path):
    RunFolder(tmp_path).write(RECORD)
    trained = read_trained(tmp_path / "checkpoint-5")
    assert (trained.record.steps, trained.config.loss.weight) == (5, 0.5)
    assert trained.config.model_args.model_name_or_path == str(tmp_path / "checkpoint-5")
    assert read_trained(tmp_path / "other") is None


@pytest.mark.parametrize("half", ['{"global_step', "[]", "{}"])
def test_an_unfinished_checkpoint_is_not_continued_from(half, tmp_path):
    for step, content in ((5, '{"global_step": 5}'), (10, half)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}/trainer_state.json").write_text(content)
    assert RunFolder(tmp_path).last_checkpoint() == tmp_path / "checkpoint-5"


@pytest.mark.parametrize("content", ["{", "[]", '{"version": 99}'])
def test_an_invalid_record_is_an_error_that_names_the_file(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(UserError, match=r"run\.json"):
        RunFolder(tmp_path).record()


@pytest.mark.parametrize(
    ("file", "content", "read"),
    [
        ("metrics.json", '{"test": 5}', EvaluationFolder.metrics),
        ("metrics.json", '{"test": {"mae": 1', EvaluationFolder.metrics),
        ("predictions_test.jsonl", '{"question": "q"}\n', lambda folder: folder.predictions("test")),
        ("learning_curve.jsonl", "5\n", lambda folder: RunFolder(folder.path).curve()),
    ],
)
def test_damaged_results_are_an_error_that_names_the_file(tmp_path, file, content, read):
    (tmp_path / file).write_text(content)
    with pytest.raises(UserError, match=f"{file} cannot be read"):
        read(EvaluationFolder(tmp_path))


def test_a_record_is_json_with_a_version(tmp_path):
    RunFolder(tmp_path).write(RECORD)
    assert json.loads((tmp_path / "run.json").read_text())["version"] == 2
