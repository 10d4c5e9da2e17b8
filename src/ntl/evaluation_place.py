"""Where an evaluation is written: in its run's folder, or beside the results that are there."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ntl.experiment import Experiment, evaluated_record
from ntl.records import flatten
from ntl.run_folder import RunFolder, RunRecord
from ntl.tasks import Example, fingerprint

# Settings of an evaluation that change none of its results.
WITHOUT_EFFECT = ("cache_dir", "samples_during_training")


@dataclass(frozen=True)
class EvaluationPlace:
    """Where an evaluation is written, and what tells its results from others.

    Args:
        folder: Of the run, or of this evaluation beside the run's own.
        record: What `run.json` in that folder says.
        model: What tells the model from others that could be evaluated there.
    """

    folder: RunFolder
    record: RunRecord
    model: Mapping[str, Any]


def place_evaluation(experiment: Experiment, tests: Mapping[str, Sequence[Example]]) -> EvaluationPlace:
    """Choose the folder of an evaluation, so that none replaces the results of another one.

    A run's own evaluation is the one that finishes its training, with the settings given then, or the first
    one in a folder where nothing was trained. The same settings are written there again; an evaluation of
    another model, with another way to decode, or of other questions gets a folder that names the difference.

    Args:
        experiment: Its folder holds a record.
        tests: Name of a test set -> the questions that will be asked.

    Returns:
        The place; nothing is written.

    Raises:
        UserError: A file in the folder cannot be read.
    """
    run = experiment.folder
    record = run.record()
    if not experiment.only_evaluate and record.status != "finished":
        config = {**record.config, "evaluation": experiment.config["evaluation"]}
        return _place(run, replace(record, config=config), experiment.model.checkpoint)
    differences = _differences(experiment, record) or _other_questions(run, tests)
    model = experiment.model.checkpoint
    if _same_path(model, run.path):  # as training itself called it
        model = record.config["model_args"]["model_name_or_path"]
    if not differences:
        return _place(run, record, model)
    if "model" in differences:
        record = evaluated_record(experiment)
    answered = {key: experiment.config[key] for key in ("dataset_args", "evaluation")}
    record = replace(record, config={**record.config, **answered}, status="running")
    return _place(run.evaluation(differences), record, model)


def _place(folder: RunFolder, record: RunRecord, model: str | None) -> EvaluationPlace:
    return EvaluationPlace(folder, record, {"steps": record.steps, "checkpoint": model})


def _differences(experiment: Experiment, record: RunRecord) -> dict[str, Any]:
    """The settings in which an evaluation differs from the one that a record is of."""
    before, now = _settings(record.config), _settings(experiment.config)
    names = {name for name in {*before, *now} if before.get(name) != now.get(name)}
    differences = {name: now.get(name) for name in names}
    own = (experiment.folder.path, record.config.get("evaluated"))
    if experiment.only_evaluate and not any(_same_path(experiment.model.checkpoint, path) for path in own):
        differences["model"] = experiment.model.checkpoint
    return differences


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    flat = flatten({**config["dataset_args"], **config.get("evaluation", {})})
    return {name: value for name, value in flat.items() if name not in WITHOUT_EFFECT}


def _other_questions(run: RunFolder, tests: Mapping[str, Sequence[Example]]) -> dict[str, Any]:
    """The same settings may name files that have changed."""
    given = {test: fingerprint(examples) for test, examples in tests.items()}
    if all(run.questions(test) in (None, questions) for test, questions in given.items()):
        return {}
    return {"questions": hashlib.sha256("".join(given.values()).encode()).hexdigest()[:8]}


def _same_path(one: str | None, other: str | Path | None) -> bool:
    return None not in (one, other) and Path(str(one)).resolve() == Path(str(other)).resolve()
