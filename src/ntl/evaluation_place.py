"""Choose the folder that an evaluation is written to, so that it replaces no other results."""

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

# Settings that do not affect the results of an evaluation.
IGNORED_SETTINGS = ("cache_dir", "samples_during_training")


@dataclass(frozen=True)
class EvaluationPlace:
    """Where an evaluation is written, and how its results are identified.

    Args:
        folder: Folder of the run, or a folder for this evaluation inside it.
        record: Content of `run.json` in that folder.
        model: Identifies the model among others that could be evaluated into the folder.
    """

    folder: RunFolder
    record: RunRecord
    model: Mapping[str, Any]


def place_evaluation(experiment: Experiment, tests: Mapping[str, Sequence[Example]]) -> EvaluationPlace:
    """Choose the folder of an evaluation, so that it does not replace the results of another one.

    A run's own evaluation is the one at the end of its training or, in a folder where nothing was trained,
    the first one. An evaluation with the same settings is written to the same folder. An evaluation with
    another model, other decoding settings or other questions gets a folder named after the differences.

    Args:
        experiment: Experiment whose folder holds a record.
        tests: Maps each test set to the questions to be answered.

    Returns:
        The folder, its record and the model's identity. Nothing is written.

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
    if _same_path(model, run.path):  # use the name under which training recorded the model
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
    """Return the settings of an evaluation that differ from those of a record."""
    before, now = _settings(record.config), _settings(experiment.config)
    names = {name for name in {*before, *now} if before.get(name) != now.get(name)}
    differences = {name: now.get(name) for name in names}
    own = (experiment.folder.path, record.config.get("evaluated"))
    if experiment.only_evaluate and not any(_same_path(experiment.model.checkpoint, path) for path in own):
        differences["model"] = experiment.model.checkpoint
    return differences


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    flat = flatten({**config["dataset_args"], **config.get("evaluation", {})})
    return {name: value for name, value in flat.items() if name not in IGNORED_SETTINGS}


def _other_questions(run: RunFolder, tests: Mapping[str, Sequence[Example]]) -> dict[str, Any]:
    """Return a setting that identifies the questions if they changed although the settings did not."""
    given = {test: fingerprint(examples) for test, examples in tests.items()}
    if all(run.questions(test) in (None, questions) for test, questions in given.items()):
        return {}
    return {"questions": hashlib.sha256("".join(given.values()).encode()).hexdigest()[:8]}


def _same_path(one: str | None, other: str | Path | None) -> bool:
    return None not in (one, other) and Path(str(one)).resolve() == Path(str(other)).resolve()
