from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from ntl.data.files import write_atomically
from ntl.errors import UserError
from ntl.training.run_folder import Prediction, RunFolder, RunRecord, find_runs, options_name

RECORD = RunRecord("vanilla_t5_ntl", "T5 + NTL-WAS", "arithmetic", 7, {"loss": {"weight": 0.3}})


def test_records_and_results_are_the_same_after_writing_and_reading(tmp_path):
    folder = RunFolder(tmp_path / "deep" / "run")
    folder.write_record(RECORD)
    # A line separator inside a text must not end the line in the file.
    rows = [Prediction("1+1\u2028?", "2", "é 3", 3.0, 2.0), Prediction("x", "1", "", None, 1.0)]
    folder.write_results("a/b test", {"mae": 1.0, "r2": None}, rows, {"steps": 5})
    assert folder.record() == RECORD
    assert folder.metrics() == {"a/b test": {"mae": 1.0, "r2": None}}
    assert folder.predictions("a/b test") == rows
    assert not list(tmp_path.rglob("*.partial"))


def test_results_count_as_finished_only_for_the_same_model_and_protocol(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_results("one", {"mae": 1.0}, [], {"steps": 5})
    assert folder.is_evaluated("one", {"steps": 5})
    assert not folder.is_evaluated("one", {"steps": 6})
    assert not folder.is_evaluated("two", {"steps": 5})
    folder.predictions_path("one").unlink()
    assert not folder.is_evaluated("one", {"steps": 5})


def test_an_evaluation_that_is_killed_while_writing_does_not_count_as_finished(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    folder.write_results("one", {"mae": 1.0}, [], {"steps": 5})

    def write_or_die(path, text):
        if path == folder.metrics_path:
            raise KeyboardInterrupt
        write_atomically(path, text)

    monkeypatch.setattr("ntl.data.files.write_atomically", write_or_die)
    with pytest.raises(KeyboardInterrupt):
        folder.write_results("one", {"mae": 2.0}, [Prediction("q", "1", "1", 1.0, 1.0)], {"steps": 5})
    assert not folder.is_evaluated("one", {"steps": 5})


def test_a_resumed_run_replaces_the_points_that_it_measures_again(tmp_path):
    folder = RunFolder(tmp_path)
    for step, loss in ((10, 3.0), (20, 2.0), (30, 1.0), (20, 2.5)):
        folder.add_to_curve({"step": step, "eval_loss": loss})
    assert folder.curve() == [{"step": 10, "eval_loss": 3.0}, {"step": 20, "eval_loss": 2.5}]


def test_each_run_in_folders_and_subfolders_is_found_once(tmp_path):
    for name in ("b", "a/deep"):
        RunFolder(tmp_path / name).write_record(RECORD)
    (tmp_path / "empty").mkdir()
    found = find_runs([tmp_path / "empty", tmp_path / "b", tmp_path, tmp_path / "a/deep"])
    assert [folder.path for folder in found] == [tmp_path / "b", tmp_path / "a/deep"]


def test_an_evaluated_checkpoint_is_not_found_as_a_second_run(tmp_path):
    for name in ("run", "run/checkpoint-5", "alone/checkpoint-5"):
        RunFolder(tmp_path / name).write_record(RECORD)
    assert [run.path for run in find_runs([tmp_path])] == [tmp_path / "alone/checkpoint-5", tmp_path / "run"]
    assert [run.path for run in find_runs([tmp_path / "run/checkpoint-5"])] == [tmp_path / "run/checkpoint-5"]


def test_evaluations_with_other_settings_are_found_only_on_request(tmp_path):
    run = RunFolder(tmp_path / "run")
    few, greedy = run.evaluation("samples=20"), run.evaluation(options_name({"samples": None, "beams": 1}))
    for folder in (run, few, greedy):
        folder.write_record(RECORD)
    assert [folder.path.name for folder in run.evaluations()] == ["beams=1,samples=null", "samples=20"]
    assert [found.path for found in find_runs([tmp_path])] == [run.path]
    assert [found.path for found in find_runs([few.path])] == [few.path]
    assert [found.path for found in find_runs([run.path / "evaluations"])] == [greedy.path, few.path]


def test_long_settings_with_special_characters_have_distinct_folders(tmp_path):
    paths = ["a/" * 200 + end for end in "xy"]
    folders = [RunFolder(tmp_path).evaluation(options_name({"model": path})).path for path in paths]
    assert folders[0] != folders[1]
    assert all(folder.parent == tmp_path / "evaluations" and len(folder.name) < 200 for folder in folders)


def test_folders_without_runs_are_an_error(tmp_path):
    with pytest.raises(UserError, match="no run in these folders or their subfolders"):
        find_runs([tmp_path])
    with pytest.raises(UserError, match="absent does not exist"):
        find_runs([tmp_path / "absent"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "not an object"),
        (json.dumps({"format": 2}), "format 2; expected 1"),
        (json.dumps({"format": 1, "name": "x"}), "lacks objective, dataset"),
        (json.dumps({"format": 1, **asdict(RECORD), "config": [1]}), r"config is \[1\]; expected dict"),
        (json.dumps({"format": 1, **asdict(RECORD), "config": {"loss": 5}}), "loss is 5; expected dict"),
        (json.dumps({"format": 1, **asdict(RECORD), "objective": None}), "objective is None; expected str"),
    ],
)
def test_an_invalid_record_is_an_error_that_names_the_problem(tmp_path, content, message):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(UserError, match=message):
        RunFolder(tmp_path).record()


@pytest.mark.parametrize(
    ("file", "content", "read"),
    [
        ("metrics.json", '{"test": 5}', RunFolder.metrics),
        ("metrics.json", '{"test": {"mae": 1', RunFolder.metrics),
        ("evaluation.json", '{"test": []}', lambda folder: folder.questions("test")),
        ("learning_curve.jsonl", "5\n", RunFolder.curve),
        ("predictions_test.jsonl", '{"question": "q"}\n', lambda folder: folder.predictions("test")),
    ],
)
def test_damaged_results_are_an_error_that_names_the_file(tmp_path, file, content, read):
    (tmp_path / file).write_text(content)
    with pytest.raises(UserError, match=f"{file} cannot be read"):
        read(RunFolder(tmp_path))


@pytest.mark.parametrize("name", [".", ".."])
def test_an_evaluation_has_a_folder_of_its_own(tmp_path, name):
    with pytest.raises(UserError, match=rf"evaluation.name={name} is not the name of a folder"):
        RunFolder(tmp_path).evaluation(name)
