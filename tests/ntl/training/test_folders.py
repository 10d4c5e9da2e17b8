from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from torch import nn

from ntl.config.settings import GenerationSettings, LossSettings, ModelSettings, RunSettings
from ntl.data import Example, TaskData
from ntl.errors import UserError
from ntl.training.folders import evaluated_record, new_record, open_folder, place_evaluation
from ntl.training.run_folder import RunFolder

TESTS = TaskData([], [], {"validation": [Example("1 + 1", "2")]})
OTHERS = TaskData([], [], {"validation": [Example("2 + 2", "4")]})
EVALUATION = {"beams": 4, "max_new_tokens": 8, "samples": None, "samples_during_training": 50}


def settings_in(path, *, evaluates=None, data=None, **evaluation):
    """Make settings of a run that trains, or one that evaluates a model."""
    config = {
        "evaluation": {**EVALUATION, **evaluation},
        "dataset_args": {
            "dataset_name": "arithmetic",
            "data_dir": "data",
            "cache_dir": "cache",
            **(data or {}),
        },
        "model_args": {"name": "vanilla_t5", "model_name_or_path": evaluates},
        "training_args": {"seed": 0},
    }
    return RunSettings(
        config=config,
        name="vanilla_t5",
        objective="T5",
        model=ModelSettings(checkpoint=evaluates, seed=0),
        loss=LossSettings(),
        generation=GenerationSettings(),
        samples=None,
        samples_during_training=None,
        data={"name": "arithmetic"},
        trainer={},
        output_dir=path,
        only_evaluate=evaluates is not None,
    )


def test_an_error_of_the_disk_without_a_number_is_quoted(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("file name is invalid")

    monkeypatch.setattr(RunFolder, "write_record", fail)
    approach = SimpleNamespace(model=nn.Linear(1, 1))
    with pytest.raises(UserError, match=r"cannot be written \(file name is invalid\)"):
        open_folder(settings_in(tmp_path / "run"), approach)


def folder_of(settings):
    return RunFolder(settings.output_dir)


@pytest.fixture
def run(tmp_path):
    """Make a finished run."""
    training = settings_in(tmp_path / "run")
    folder_of(training).write_record(replace(new_record(training), status="finished", steps=7))
    write(training, TESTS)
    return folder_of(training)


def write(settings, tests):
    folder, record, _ = place_evaluation(settings, tests)
    for test, questions in tests.fingerprints.items():
        identity = {"model": {"steps": record.steps}, "questions": questions, "decoding": {}}
        folder.write_results(test, {}, [], identity)
    return folder


def test_an_evaluation_with_the_runs_settings_is_written_to_the_runs_folder(run):
    again = settings_in(run.path, evaluates=str(run), samples_during_training=7, data={"cache_dir": "x"})
    folder, record, _ = place_evaluation(again, TESTS)
    assert folder.path == run.path
    assert record.steps == 7  # as after training


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"samples": 20}, "samples=20"),
        ({"samples": 20, "beams": 1}, "beams=1,samples=20"),
        ({"read": ["median"], "interval": 0.9, "beams": 1}, "beams=1,interval=0.9,read=[greedy,median]"),
        ({"data": {"mode": "dataset_comparison"}}, "mode=dataset_comparison"),
        ({"data": {"data_dir": "a/b"}}, "data_dir=a%2Fb"),
    ],
)
def test_an_evaluation_with_another_setting_has_a_folder_named_after_it(run, other, name):
    settings = settings_in(run.path, evaluates=str(run), **other)
    folder, record, _ = place_evaluation(settings, TESTS)
    assert folder.path == run.path / "evaluations" / name
    assert record.config["evaluation"] == settings.config["evaluation"]
    assert record.config["dataset_args"] == settings.config["dataset_args"]
    assert (record.steps, record.status) == (7, "running")


def test_changed_questions_under_the_same_settings_do_not_replace_the_results(run):
    settings = settings_in(run.path, evaluates=str(run))
    folder, *_ = place_evaluation(settings, OTHERS)
    assert folder.path.name.startswith("questions=")


def test_evaluating_another_model_does_not_replace_the_trained_models_results(run, tmp_path):
    other = settings_in(tmp_path / "other")
    folder_of(other).write_record(replace(new_record(other), seed=5, steps=9, status="finished"))
    folder, record, _ = place_evaluation(settings_in(run.path, evaluates=str(folder_of(other))), TESTS)
    assert folder.path.name.startswith("model=")
    assert (record.seed, record.steps) == (5, 9)


def test_an_unfinished_run_uses_the_settings_of_the_command_that_continues_it(tmp_path):
    started = settings_in(tmp_path / "run")
    folder_of(started).write_record(new_record(started))
    folder, record, _ = place_evaluation(settings_in(tmp_path / "run", beams=1), TESTS)
    assert (folder.path, record.config["evaluation"]["beams"]) == (tmp_path / "run", 1)
    # An evaluation alone does not finish a run, unless only that evaluation is missing.
    few = settings_in(tmp_path / "run", evaluates=str(tmp_path / "run"), samples=2)
    assert place_evaluation(few, TESTS)[0].path.name == "samples=2"
    own = settings_in(tmp_path / "run", evaluates=str(tmp_path / "run"))
    assert place_evaluation(own, TESTS)[0].path == tmp_path / "run"


def test_the_first_evaluation_in_a_folder_without_training_is_written_to_the_folder_itself(run, tmp_path):
    first = settings_in(tmp_path / "answers", evaluates=str(run), samples=20)
    folder_of(first).write_record(evaluated_record(first))
    assert write(first, TESTS).path == tmp_path / "answers"
    assert place_evaluation(first, TESTS)[0].path == tmp_path / "answers"
    full = settings_in(tmp_path / "answers", evaluates=str(run))
    assert place_evaluation(full, TESTS)[0].path.name == "samples=null"


def test_readings_are_added_to_the_runs_own_evaluation_and_other_intervals_are_not(run):
    more = settings_in(run.path, evaluates=str(run), read=["greedy", "median"], interval=0.9)
    folder, record, _ = place_evaluation(more, TESTS)
    assert folder.path == run.path
    assert record.config["evaluation"]["read"] == ["greedy", "median"]
    run.write_record(record)
    for changes in ({"read": ["median"], "interval": 0.5}, {"read": ["mean"], "interval": 0.9}):
        other, *_ = place_evaluation(settings_in(run.path, evaluates=str(run), **changes), TESTS)
        assert other.path != run.path


def test_readings_of_changed_questions_do_not_replace_the_results(run):
    more = settings_in(run.path, evaluates=str(run), read=["median"], interval=0.9)
    assert place_evaluation(more, OTHERS)[0].path != run.path
    assert place_evaluation(more, TESTS)[0].path == run.path


@pytest.mark.parametrize("differs", ["questions", "model"])
def test_other_readings_of_changed_questions_or_of_another_model_have_folders_of_their_own(
    run, tmp_path, differs
):
    model, tests = run, OTHERS
    if differs == "model":
        other = settings_in(tmp_path / "other")
        folder_of(other).write_record(replace(new_record(other), steps=9, status="finished"))
        model, tests = folder_of(other), TESTS
    readings = [{"read": ["median"], "interval": share} for share in (0.9, 0.5)]
    paths = set()
    for changes in (*readings, {"read": ["greedy"], "interval": 0.9}):
        folder, record, _ = place_evaluation(settings_in(run.path, evaluates=str(model), **changes), tests)
        assert f"{differs}=" in folder.path.name
        assert record.config["evaluation"]["read"] == changes["read"]
        paths.add(folder.path)
    assert len(paths) == 3


@pytest.fixture
def extended(run):
    """Make a finished run whose numbers were read in all ways."""
    more = settings_in(run.path, evaluates=str(run), read=["greedy", "median", "mean"], interval=0.9)
    folder, record, _ = place_evaluation(more, TESTS)
    folder.write_record(record)
    return folder


@pytest.mark.parametrize(
    "fewer", [{}, {"read": ["greedy"], "interval": 0.5}, {"read": ["mean"], "interval": 0.9}]
)
def test_an_evaluation_with_fewer_readings_uses_the_runs_results(extended, fewer):
    before = extended.record()
    settings = settings_in(extended.path, evaluates=str(extended), **fewer)
    folder, record, generation = place_evaluation(settings, TESTS)
    assert (folder.path, record) == (extended.path, before)
    # So the general comparison finds the results: nothing is decoded, and no reading is lost.
    assert (generation.quantile_readings, generation.interval) == (("median", "mean"), 0.9)


def test_a_missing_test_set_is_evaluated_with_the_runs_readings(extended):
    fewer = settings_in(extended.path, evaluates=str(extended))
    more = TaskData([], [], {**TESTS.tests, "test": TESTS.tests["validation"]})
    folder, record, _ = place_evaluation(fewer, more)
    assert (folder.path, record) == (extended.path, extended.record())
    assert place_evaluation(fewer, OTHERS)[0].path.parent.name == "evaluations"


def test_an_evaluation_with_another_setting_is_not_replaced_if_the_questions_change(run):
    few = settings_in(run.path, evaluates=str(run), samples=20)
    first = write(few, TESTS)
    second = write(few, OTHERS)
    assert first.path.name == "samples=20"
    assert second.path.name.startswith("questions=")
    assert second.path.name.endswith(",samples=20")
    assert place_evaluation(few, TESTS)[0].path == first.path
    assert place_evaluation(few, OTHERS)[0].path == second.path
