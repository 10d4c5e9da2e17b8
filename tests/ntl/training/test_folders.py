from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from ntl.config.settings import GenerationSettings, LossSettings, ModelSettings, RunSettings
from ntl.training.folders import check_folder, evaluated_record, new_record, open_evaluation, open_folder
from torch import nn

from ntl.data import Example, TaskData
from ntl.errors import UserError
from ntl.training.run_folder import RunFolder

TESTS = TaskData([], [], {"validation": [Example("1 + 1", "2")]})
OTHERS = TaskData([], [], {"validation": [Example("2 + 2", "4")]})
EVALUATION = {"beams": 4, "max_new_tokens": 8, "samples": None, "samples_during_training": 50}


def settings_in(path, *, evaluates=None, data=None, name=None, **evaluation):
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
        evaluation_name=name,
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
    folder, record = open_evaluation(settings, tests)
    for test, questions in tests.fingerprints.items():
        identity = {"model": {"steps": record.steps}, "questions": questions, "decoding": {}}
        folder.write_results(test, {}, [], identity)
    return folder


def test_an_evaluation_with_the_runs_settings_is_written_to_the_runs_folder(run):
    again = settings_in(run.path, evaluates=str(run), samples_during_training=7, data={"cache_dir": "x"})
    folder, record = open_evaluation(again, TESTS)
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
    folder, record = open_evaluation(settings, TESTS)
    assert folder.path == run.path / "evaluations" / name
    assert record.config["evaluation"] == settings.config["evaluation"]
    assert record.config["dataset_args"] == settings.config["dataset_args"]
    assert (record.steps, record.status) == (7, "running")


@pytest.mark.parametrize(
    ("named", "differing"),
    [({}, "questions"), ({"name": "few", "samples": 20}, "evaluation.beams, evaluation.samples, questions")],
)
def test_a_folder_that_holds_another_evaluation_is_an_error_that_says_how_to_keep_both(run, named, differing):
    if named:
        first = settings_in(run.path, evaluates=str(run), name="few", beams=1)
        folder, record = open_evaluation(first, TESTS)
        assert folder.path == run.path / "evaluations/few"
        folder.write_record(record)
        write(first, TESTS)
        assert open_evaluation(first, TESTS)[0].path == folder.path  # the same evaluation continues
    with pytest.raises(UserError, match=f"with other {differing}; .*evaluation.name=NAME to keep both"):
        open_evaluation(settings_in(run.path, evaluates=str(run), **named), OTHERS)


def test_an_evaluation_with_the_name_own_replaces_the_runs(run):
    own = settings_in(run.path, evaluates=str(run), name="own", read=["greedy", "median"], interval=0.9)
    folder, record = open_evaluation(own, OTHERS)
    assert (folder.path, record.config["evaluation"]["read"]) == (run.path, ["greedy", "median"])


def test_evaluating_another_model_does_not_replace_the_trained_models_results(run, tmp_path):
    other = settings_in(tmp_path / "other")
    folder_of(other).write_record(replace(new_record(other), seed=5, steps=9, status="finished"))
    folder, record = open_evaluation(settings_in(run.path, evaluates=str(folder_of(other))), TESTS)
    assert folder.path.name.startswith("model=")
    assert (record.seed, record.steps) == (5, 9)


def test_an_unfinished_run_uses_the_settings_of_the_command_that_continues_it(tmp_path):
    started = settings_in(tmp_path / "run")
    folder_of(started).write_record(new_record(started))
    folder, record = open_evaluation(settings_in(tmp_path / "run", beams=1), TESTS)
    assert (folder.path, record.config["evaluation"]["beams"]) == (tmp_path / "run", 1)
    # An evaluation alone does not finish a run, unless only that evaluation is missing.
    few = settings_in(tmp_path / "run", evaluates=str(tmp_path / "run"), samples=2)
    assert open_evaluation(few, TESTS)[0].path.name == "samples=2"
    own = settings_in(tmp_path / "run", evaluates=str(tmp_path / "run"))
    assert open_evaluation(own, TESTS)[0].path == tmp_path / "run"


def test_the_first_evaluation_in_a_folder_without_training_is_written_to_the_folder_itself(run, tmp_path):
    first = settings_in(tmp_path / "answers", evaluates=str(run), samples=20)
    folder_of(first).write_record(evaluated_record(first))
    assert write(first, TESTS).path == tmp_path / "answers"
    assert open_evaluation(first, TESTS)[0].path == tmp_path / "answers"
    full = settings_in(tmp_path / "answers", evaluates=str(run))
    assert open_evaluation(full, TESTS)[0].path.name == "samples=null"


@pytest.mark.parametrize("recorded", ["numbers", None], ids=["recorded", "before there was a choice"])
def test_a_run_is_not_continued_with_a_loss_that_is_divided_by_another_count(recorded, tmp_path):
    def divided_by(count):
        settings = settings_in(tmp_path / "run")
        loss = {} if count is None else {"loss": {"normalize_by": count}}
        config = {**settings.config, **loss}
        return replace(settings, config=config, resume=True, checkpoint=tmp_path / "run/checkpoint-1")

    started = divided_by(recorded)
    folder_of(started).write_record(new_record(started))
    assert check_folder(divided_by("numbers")) == started.checkpoint
    with pytest.raises(UserError, match=r"loss\.normalize_by=numbers, but loss\.normalize_by=items is given"):
        check_folder(divided_by("items"))


def test_an_evaluated_checkpoint_is_recorded_with_its_own_steps(run, tmp_path):
    checkpoint = str(run.path / "checkpoint-3")
    _, record = open_evaluation(settings_in(tmp_path / "elsewhere", evaluates=checkpoint), TESTS)
    assert (record.steps, record.config["evaluated"], record.status) == (3, checkpoint, "running")


def test_an_evaluation_of_a_run_that_was_trained_further_is_not_continued(run):
    few = settings_in(run.path, evaluates=str(run), samples=20)
    folder, record = open_evaluation(few, TESTS)
    folder.write_record(record)
    run.write_record(replace(run.record(), steps=9))
    with pytest.raises(UserError, match="samples=20 holds an evaluation with other steps"):
        open_evaluation(few, TESTS)


def test_a_run_from_before_a_key_existed_is_continued_only_with_its_default(tmp_path):
    started = settings_in(tmp_path / "run")
    folder_of(started).write_record(new_record(started))

    def resumed(loss):
        model_args = {**started.config["model_args"], "head_loss": loss}
        config = {**started.config, "model_args": model_args}
        return replace(started, config=config, resume=True, checkpoint=tmp_path / "run/checkpoint-1")

    assert check_folder(resumed("squared"))
    with pytest.raises(UserError, match=r"head_loss=squared, but .*head_loss=absolute is given"):
        check_folder(resumed("absolute"))
