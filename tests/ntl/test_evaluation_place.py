from __future__ import annotations

from dataclasses import replace

import pytest

from ntl.evaluation_place import place_evaluation
from ntl.experiment import Experiment, evaluated_record
from ntl.run_folder import RunFolder
from ntl.settings import GenerationSettings, LossSettings, ModelSettings
from ntl.tasks import Example, fingerprint

TESTS = {"validation": [Example("1 + 1", "2")]}
EVALUATION = {"beams": 4, "max_new_tokens": 8, "samples": None, "samples_during_training": 50}


def experiment_in(path, *, evaluates=None, data=None, **evaluation):
    """Make an experiment that trains, or one that evaluates a model."""
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
    return Experiment(
        config, ModelSettings(checkpoint=evaluates), LossSettings(), GenerationSettings(), RunFolder(path),
        only_evaluate=evaluates is not None, resume=False, checkpoint=None,
    )  # fmt: skip


@pytest.fixture
def run(tmp_path):
    """Make a finished run."""
    training = experiment_in(tmp_path / "run")
    training.folder.write_record(replace(training.record(), status="finished", steps=7))
    write(training, TESTS)
    return training.folder


def write(experiment, tests):
    place = place_evaluation(experiment, tests)
    for test, examples in tests.items():
        place.folder.write_results(
            test, {}, [], {"model": place.model, "questions": fingerprint(examples), "decoding": {}}
        )
    return place


def test_an_evaluation_with_the_runs_settings_is_written_to_the_runs_folder(run):
    again = experiment_in(run.path, evaluates=str(run), samples_during_training=7, data={"cache_dir": "x"})
    place = place_evaluation(again, TESTS)
    assert place.folder.path == run.path
    assert place.model == {"steps": 7, "checkpoint": None}  # as after training


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"samples": 20}, "samples=20"),
        ({"samples": 20, "beams": 1}, "beams=1,samples=20"),
        ({"data": {"mode": "dataset_comparison"}}, "mode=dataset_comparison"),
        ({"data": {"data_dir": "a/b"}}, "data_dir=a%2Fb"),
    ],
)
def test_an_evaluation_with_another_setting_has_a_folder_named_after_it(run, other, name):
    experiment = experiment_in(run.path, evaluates=str(run), **other)
    place = place_evaluation(experiment, TESTS)
    assert place.folder.path == run.path / "evaluations" / name
    assert place.record.config["evaluation"] == experiment.config["evaluation"]
    assert place.record.config["dataset_args"] == experiment.config["dataset_args"]
    assert (place.record.steps, place.record.status) == (7, "running")


def test_changed_questions_under_the_same_settings_do_not_replace_the_results(run):
    experiment = experiment_in(run.path, evaluates=str(run))
    place = place_evaluation(experiment, {"validation": [Example("2 + 2", "4")]})
    assert place.folder.path.name.startswith("questions=")


def test_evaluating_another_model_does_not_replace_the_trained_models_results(run, tmp_path):
    other = experiment_in(tmp_path / "other")
    other.folder.write_record(replace(other.record(), seed=5, steps=9, status="finished"))
    place = place_evaluation(experiment_in(run.path, evaluates=str(other.folder)), TESTS)
    assert place.folder.path.name.startswith("model=")
    assert (place.record.seed, place.record.steps) == (5, 9)


def test_an_unfinished_run_uses_the_settings_of_the_command_that_continues_it(tmp_path):
    started = experiment_in(tmp_path / "run")
    started.folder.write_record(started.record())
    place = place_evaluation(experiment_in(tmp_path / "run", beams=1), TESTS)
    assert (place.folder.path, place.record.config["evaluation"]["beams"]) == (tmp_path / "run", 1)
    # An evaluation alone does not finish a run, unless only that evaluation is missing.
    few = experiment_in(tmp_path / "run", evaluates=str(tmp_path / "run"), samples=2)
    assert place_evaluation(few, TESTS).folder.path.name == "samples=2"
    own = experiment_in(tmp_path / "run", evaluates=str(tmp_path / "run"))
    assert place_evaluation(own, TESTS).folder.path == tmp_path / "run"


def test_the_first_evaluation_in_a_folder_without_training_is_the_folders_own(run, tmp_path):
    first = experiment_in(tmp_path / "answers", evaluates=str(run), samples=20)
    first.folder.write_record(evaluated_record(first))
    assert write(first, TESTS).folder.path == tmp_path / "answers"
    assert place_evaluation(first, TESTS).folder.path == tmp_path / "answers"
    full = experiment_in(tmp_path / "answers", evaluates=str(run))
    assert place_evaluation(full, TESTS).folder.path.name == "samples=null"
