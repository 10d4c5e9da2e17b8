"""Check, open and choose the folders that a run and its evaluations are written to."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers.trainer import TRAINER_STATE_NAME

from ntl.approaches import Approach
from ntl.config.paper_keys import (
    continued_settings,
    evaluated_settings,
    initial_model,
    only_adds_readings,
    with_decoding_of,
    with_evaluation_of,
)
from ntl.config.settings import RunSettings
from ntl.data import Example, fingerprint
from ntl.errors import UserError
from ntl.training.records import installed_versions
from ntl.training.run_folder import CHECKPOINT, RunFolder, RunRecord
from ntl.training.trainer import last_complete_checkpoint


def new_record(settings: RunSettings) -> RunRecord:
    """Make the record that `run.json` holds at the start of a run."""
    return RunRecord(
        name=settings.name,
        objective=settings.objective,
        dataset=settings.dataset,
        seed=settings.seed,
        config=settings.config,
        versions=installed_versions(),
    )


def check_folder(settings: RunSettings) -> None:
    """Check, before anything is loaded, that nothing in the output folder would be overwritten.

    Raises:
        UserError: The folder holds a run that is neither resumed nor evaluated, holds other files, or cannot
            be written; or there is no checkpoint to resume from.
    """
    folder = RunFolder(settings.output_dir)
    if settings.resume and settings.checkpoint is None and not settings.only_evaluate:
        _check_has_checkpoint(folder)
    if not folder.path.is_dir():
        _check_writable(folder.path)
        return
    if not folder.holds_run():  # never delete files that are not ours
        its_own = settings.only_evaluate and folder.path == Path(str(settings.model.checkpoint))
        if not its_own and any(folder.path.iterdir()):
            raise UserError(
                f"training_args.output_dir={folder} holds files but no run; expected a new or empty folder. "
                "Choose another one."
            )
        return
    if settings.only_evaluate:
        _check_same_dataset(settings)
    elif settings.resume:
        _check_same_run(settings)
    elif not settings.overwrite:
        raise UserError(
            f"training_args.output_dir={folder} holds a run already. Pass "
            "training_args.resume_from_checkpoint=true to continue it, another training_args.output_dir or "
            "special_name to keep both, or training_args.overwrite_output_dir=true to delete it."
        )


def _check_has_checkpoint(folder: RunFolder) -> None:
    """Check that there is a checkpoint to resume from, rather than silently training from the start."""
    if last_complete_checkpoint(folder.path) is not None:
        return
    how = "with training_args.overwrite_output_dir=true instead of" if folder.holds_run() else "without"
    raise UserError(
        f"training_args.resume_from_checkpoint=true, but {folder} has no complete checkpoint (checkpoint-* "
        f"with {TRAINER_STATE_NAME}); expected the training_args.output_dir of the run to continue. "
        "Correct training_args.output_dir (or the keys that form its default), or train from the start "
        f"{how} resume_from_checkpoint."
    )


def _check_writable(path: Path) -> None:
    """Check that a missing folder can be created."""
    parent = next(p for p in path.absolute().parents if p.exists())
    if path.exists() or not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(
            f"training_args.output_dir={path} is not a folder and cannot be created; expected a new or empty "
            "folder that can be written to. Choose another one."
        )


def _check_same_dataset(settings: RunSettings) -> None:
    """Check that an evaluation does not mix two datasets in one run's folder."""
    folder = RunFolder(settings.output_dir)
    there, here = folder.record().dataset, settings.dataset
    if there != here:
        raise UserError(
            f"training_args.output_dir={folder} holds a run on {there}; its answers to {here} "
            "would be mixed with those. Pass another training_args.output_dir."
        )


def _check_same_run(settings: RunSettings) -> None:
    """Check that a run is resumed with the configuration that it was started with."""
    if found := differing_setting(settings):
        key, before, now = found
        raise UserError(
            f"training_args.output_dir={settings.output_dir} holds a run with {key}={before}, but "
            f"{key}={now} is given; expected the configuration that the run was started with. Correct it, or "
            "choose another training_args.output_dir."
        )


def differing_setting(settings: RunSettings) -> tuple[str, Any, Any] | None:
    """Find a setting with which the run in the output folder was not started.

    Returns:
        The key with the value there and the value here, or None if the run can be continued.

    Raises:
        UserError: The record of that run cannot be read.
    """
    before = continued_settings(RunFolder(settings.output_dir).record().config)
    now = continued_settings(settings.config)
    for key in sorted({*before, *now}):
        if before.get(key) != now.get(key):
            return key, before.get(key), now.get(key)
    return None


def open_folder(settings: RunSettings, approach: Approach) -> None:
    """Create the output folder with its `run.json`, and delete an earlier run if that was requested."""
    folder = RunFolder(settings.output_dir)
    if settings.only_evaluate:
        if not folder.holds_run():
            folder.write_record(evaluated_record(settings))
        return
    if settings.overwrite and not settings.resume and folder.holds_run():
        shutil.rmtree(folder.path)
    if not folder.holds_run():
        parameters = sum(p.numel() for p in approach.model.parameters())
        folder.write_record(replace(new_record(settings), parameters=parameters))


def evaluated_record(settings: RunSettings) -> RunRecord:
    """Make the record of an evaluation, based on the record of the run that trained the model, if any.

    The key `evaluated` of its configuration holds the model's folder or hub name.
    """
    record = new_record(settings)
    path = Path(str(settings.model.checkpoint))
    is_checkpoint = path.name.startswith(CHECKPOINT) and RunFolder(path.parent).holds_run()
    trained = RunFolder(path.parent if is_checkpoint else path)
    if not trained.holds_run():
        return replace(record, config={**record.config, "evaluated": settings.model.checkpoint})
    source = trained.record()
    steps = int(path.name.rpartition("-")[2]) if is_checkpoint else source.steps
    config = with_evaluation_of(source.config, record.config) | {"evaluated": settings.model.checkpoint}
    return replace(source, dataset=record.dataset, steps=steps, config=config, status="running")


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


def place_evaluation(settings: RunSettings, tests: Mapping[str, Sequence[Example]]) -> EvaluationPlace:
    """Choose the folder of an evaluation, so that it does not replace the results of another one.

    A run's own evaluation is the one at the end of its training or, in a folder where nothing was trained,
    the first one. An evaluation with the same settings, or with more readings, is written to the same folder.
    An evaluation with another model, other decoding settings or other questions gets a folder named after the
    differences.

    Args:
        settings: Settings of a run whose folder holds a record.
        tests: Maps each test set to the questions to be answered.

    Returns:
        The folder, its record and the model's identity. Nothing is written.

    Raises:
        UserError: A file in the folder cannot be read.
    """
    run = RunFolder(settings.output_dir)
    record = run.record()
    if not settings.only_evaluate and record.status != "finished":
        config = with_decoding_of(record.config, settings.config)
        return _place(run, replace(record, config=config), settings.model.checkpoint)
    differences = _differences(settings, record) or _other_questions(run, tests)
    model = settings.model.checkpoint
    if _same_path(model, run.path):  # use the name under which training recorded the model
        model = initial_model(record.config)
    if not differences:
        return _place(run, record, model)
    if differences.keys() <= {"read", "interval"} and only_adds_readings(record.config, settings.config):
        return _place(run, replace(record, config=with_decoding_of(record.config, settings.config)), model)
    if "model" in differences:
        record = evaluated_record(settings)
    config = with_evaluation_of(record.config, settings.config)
    record = replace(record, config=config, status="running")
    return _place(run.evaluation(differences), record, model)


def _place(folder: RunFolder, record: RunRecord, model: str | None) -> EvaluationPlace:
    return EvaluationPlace(folder, record, {"steps": record.steps, "checkpoint": model})


def _differences(settings: RunSettings, record: RunRecord) -> dict[str, Any]:
    """Return the settings of an evaluation that differ from those of a record."""
    before, now = evaluated_settings(record.config), evaluated_settings(settings.config)
    names = {name for name in {*before, *now} if before.get(name) != now.get(name)}
    differences = {name: now.get(name) for name in names}
    own = (settings.output_dir, record.config.get("evaluated"))
    if settings.only_evaluate and not any(_same_path(settings.model.checkpoint, path) for path in own):
        differences["model"] = settings.model.checkpoint
    return differences


def _other_questions(run: RunFolder, tests: Mapping[str, Sequence[Example]]) -> dict[str, Any]:
    """Return a setting that identifies the questions if they changed although the settings did not."""
    given = {test: fingerprint(examples) for test, examples in tests.items()}
    if all(run.questions(test) in (None, questions) for test, questions in given.items()):
        return {}
    return {"questions": hashlib.sha256("".join(given.values()).encode()).hexdigest()[:8]}


def _same_path(one: str | None, other: str | Path | None) -> bool:
    return None not in (one, other) and Path(str(one)).resolve() == Path(str(other)).resolve()
