"""Check, open and choose the folders that a run and its evaluations are written to."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from transformers.trainer import TRAINER_STATE_NAME

import ntloss
from ntl.approaches import Approach
from ntl.config.paper_keys import (
    READING_KEYS,
    continued_settings,
    evaluated_settings,
    only_adds_readings,
    with_evaluation_of,
    with_readings_of,
)
from ntl.config.settings import RunSettings
from ntl.data import Example, fingerprint
from ntl.errors import UserError
from ntl.training.run_folder import CHECKPOINT, RunFolder, RunRecord
from ntl.training.trainer import last_complete_checkpoint

PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "datasets", "numpy")


def check_folder(settings: RunSettings) -> None:
    """Check, before anything is loaded, that nothing in the output folder would be overwritten.

    Raises:
        UserError: The folder holds a run that is neither resumed nor evaluated, holds other files, or cannot
            be written; or there is no checkpoint to resume from.
    """
    folder = RunFolder(settings.output_dir)
    name = f"training_args.output_dir={folder}"
    resumes = settings.resume and not settings.only_evaluate
    if resumes and settings.checkpoint is None and last_complete_checkpoint(folder.path) is None:
        raise UserError(
            f"training_args.resume_from_checkpoint=true, but {folder} has no complete checkpoint "
            f"(checkpoint-* with {TRAINER_STATE_NAME}); expected the training_args.output_dir of the run to "
            "continue. Correct it (or the keys that form its default), or train from the start with "
            "training_args.overwrite_output_dir=true instead."
        )
    if not folder.path.is_dir():
        parent = next(p for p in folder.path.absolute().parents if p.exists())
        if folder.path.exists() or not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            raise UserError(
                f"{name} is not a folder and cannot be created; expected a new or empty folder that can be "
                "written to. Choose another one."
            )
    elif not folder.holds_run():  # never delete files that are not ours
        its_own = settings.only_evaluate and folder.path == Path(str(settings.model.checkpoint))
        if not its_own and any(folder.path.iterdir()):
            raise UserError(
                f"{name} holds files but no run; expected a new or empty folder. Choose another one."
            )
    else:
        _check_held_run(settings, folder.record(), name)


def _check_held_run(settings: RunSettings, record: RunRecord, name: str) -> None:
    """Check that the run in the output folder is evaluated, continued or replaced as it should be."""
    if settings.only_evaluate:
        if record.dataset != settings.dataset:
            raise UserError(
                f"{name} holds a run on {record.dataset}; its answers to {settings.dataset} would be mixed "
                "with those. Pass another training_args.output_dir."
            )
    elif settings.resume:
        for key, (before, now) in _differing_training(settings, record).items():
            raise UserError(
                f"{name} holds a run with {key}={before}, but {key}={now} is given; expected the "
                "configuration that the run was started with. Correct it, or choose another "
                "training_args.output_dir."
            )
    elif not settings.overwrite:
        raise UserError(
            f"{name} holds a run already. Pass training_args.resume_from_checkpoint=true to continue it, "
            "another training_args.output_dir or special_name to keep both, or "
            "training_args.overwrite_output_dir=true to delete it."
        )


def remaining(settings: RunSettings, overwrite: bool) -> RunSettings | None:
    """Find what is left of a run of a comparison, and check its folder.

    Args:
        settings: Settings of the run.
        overwrite: Whether a run of another configuration is replaced.

    Returns:
        Settings that start, continue or replace the run, or that add readings to a finished one; None if it
        is finished.

    Raises:
        UserError: The folder holds a run of another configuration and `overwrite` is false, or cannot be
            used.
    """
    folder = RunFolder(settings.output_dir)
    if folder.holds_run():
        record = folder.record()
        differing = _differing_training(settings, record)
        if record.status == "finished" and not differing:
            if only_adds_readings(settings.config, record.config):
                return None
            if only_adds_readings(record.config, settings.config):
                model = replace(settings.model, checkpoint=str(folder))
                return replace(settings, only_evaluate=True, model=model)
            differing = _differing_evaluation(settings, record)
        if differing and not overwrite:
            key, (there, here) = next(iter(differing.items()))
            raise UserError(
                f"{folder} holds a run of another configuration: {key} is {there!r} there, {here!r} here. "
                "Pass another output_dir, or overwrite=true to replace such runs."
            )
        resume = not differing and last_complete_checkpoint(folder.path) is not None
        settings = replace(settings, resume=resume, overwrite=not resume)
    check_folder(settings)
    return settings


def _differing_training(settings: RunSettings, record: RunRecord) -> dict[str, tuple[Any, Any]]:
    """Return the settings, there and here, that make a run another one than that of a record."""
    return _differing(continued_settings(record.config), continued_settings(settings.config))


def _differing_evaluation(settings: RunSettings, record: RunRecord) -> dict[str, tuple[Any, Any]]:
    """Return the settings, there and here, that make an evaluation another one than that of a record."""
    return _differing(evaluated_settings(record.config), evaluated_settings(settings.config))


def _differing(there: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    pairs = {key: (there.get(key), here.get(key)) for key in sorted({*there, *here})}
    return {key: (one, other) for key, (one, other) in pairs.items() if one != other}


def open_folder(settings: RunSettings, approach: Approach) -> None:
    """Create the folder of a training run with its `run.json`, and delete an earlier run if asked to.

    Raises:
        UserError: The folder cannot be written.
    """
    folder = RunFolder(settings.output_dir)
    replaces = settings.overwrite and not settings.resume
    if folder.holds_run() and not replaces:
        return
    parameters = sum(p.numel() for p in approach.model.parameters())
    try:
        if folder.holds_run():
            shutil.rmtree(folder.path)
        folder.write_record(replace(new_record(settings), parameters=parameters))
    except OSError as error:
        raise UserError(
            f"training_args.output_dir={folder} cannot be written ({error.strerror}); expected a writable "
            "folder. Choose another one."
        ) from None


def new_record(settings: RunSettings) -> RunRecord:
    """Make the record that `run.json` holds at the start of a run."""
    return RunRecord(
        name=settings.name,
        objective=settings.objective,
        dataset=settings.dataset,
        seed=settings.seed,
        config=settings.config,
        versions={"ntloss": ntloss.__version__, **{package: version(package) for package in PACKAGES}},
    )


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


def place_evaluation(
    settings: RunSettings, tests: Mapping[str, Sequence[Example]]
) -> tuple[RunFolder, RunRecord]:
    """Choose the folder of an evaluation, so that it does not replace the results of another one.

    A run's own evaluation is the one at the end of its training or, in a folder where nothing was trained,
    the first one. An evaluation with the same settings, or with more readings, is written to the same folder.
    If it only has fewer readings, the run's own results contain it, and they are kept. An evaluation with
    another model, other decoding settings or other questions gets a folder named after the differences.

    Args:
        settings: Settings of a run.
        tests: Maps each test set to the questions to be answered.

    Returns:
        The folder of the run or a folder for this evaluation inside it, and the content of its `run.json`.
        Nothing is written.

    Raises:
        UserError: A file in the folder cannot be read.
    """
    run = RunFolder(settings.output_dir)
    if not run.holds_run():  # nothing was trained here
        return run, evaluated_record(settings)
    record = run.record()
    if not settings.only_evaluate and record.status != "finished":
        return run, replace(record, config=with_evaluation_of(record.config, settings.config))
    questions = {test: fingerprint(examples) for test, examples in tests.items()}
    differences = _differences(settings, record)
    if differences.keys() <= READING_KEYS:
        differences |= _other_questions(run, questions)
    if differences.keys() <= READING_KEYS:
        if only_adds_readings(record.config, settings.config):
            return run, replace(record, config=with_readings_of(record.config, settings.config))
        extended = _ExtendedRun(run.path)
        if only_adds_readings(settings.config, record.config) and extended.is_complete(record, questions):
            return extended, record
    if "model" in differences:
        record = evaluated_record(settings)
    config = with_evaluation_of(record.config, settings.config)
    return run.evaluation(differences), replace(record, config=config, status="running")


class _ExtendedRun(RunFolder):
    """The folder of a run whose own evaluation has more readings than one that is asked for."""

    def is_evaluated(self, test: str, identity: Mapping[str, Any]) -> bool:
        """Return whether the run's own evaluation answered these questions; its readings may be more."""
        own = self._identities().get(test, {})
        return super().is_evaluated(test, {**own, "questions": identity["questions"]})

    def is_complete(self, record: RunRecord, questions: Mapping[str, str]) -> bool:
        """Return whether the results of all test sets, by the fingerprints of their questions, are there."""
        answered = (self.is_evaluated(test, {"questions": given}) for test, given in questions.items())
        return record.status == "finished" and all(answered)


def _differences(settings: RunSettings, record: RunRecord) -> dict[str, Any]:
    """Return the settings of an evaluation that differ from those of a record."""
    differences = {key: here for key, (_, here) in _differing_evaluation(settings, record).items()}
    if settings.only_evaluate:
        own = (settings.output_dir, Path(str(record.config.get("evaluated"))))
        if Path(str(settings.model.checkpoint)).resolve() not in [path.resolve() for path in own]:
            differences["model"] = settings.model.checkpoint
    return differences


def _other_questions(run: RunFolder, questions: Mapping[str, str]) -> dict[str, Any]:
    """Return a setting that identifies the questions if they changed although the settings did not."""
    if all(run.questions(test) in (None, given) for test, given in questions.items()):
        return {}
    return {"questions": hashlib.sha256("".join(questions.values()).encode()).hexdigest()[:8]}
