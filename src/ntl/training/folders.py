"""Check, open and choose the folders of a run, of its checkpoints and of its evaluations."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel
from transformers.trainer import TRAINER_STATE_NAME

import ntloss
from ntl.approaches import Approach
from ntl.approaches.answer_format import FORMAT_KEYS
from ntl.config.paper_keys import (
    continued_settings,
    evaluated_settings,
    only_adds_readings,
    with_evaluation_of,
)
from ntl.config.settings import RunSettings
from ntl.data import TaskData
from ntl.errors import UserError, describe
from ntl.training.run_folder import CHECKPOINT, RunFolder, RunRecord, options_name

OWN = "own"  # the name of a run's own evaluation, which it replaces
PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "datasets", "numpy")


def check_folder(settings: RunSettings) -> Path | None:
    """Check, before anything is loaded, that nothing in the output folder would be overwritten.

    Returns:
        The checkpoint to continue from; None to train from the start, or only to evaluate.

    Raises:
        UserError: The folder holds a run that is neither resumed nor evaluated, holds other files, or cannot
            be written; or there is no checkpoint to resume from.
    """
    folder, checkpoint = RunFolder(settings.output_dir), None
    name = f"training_args.output_dir={settings.output_dir}"
    if settings.resume and not settings.only_evaluate:
        checkpoint = settings.checkpoint or last_complete_checkpoint(folder.path)
        if checkpoint is None:
            raise UserError(
                f"training_args.resume_from_checkpoint=true, but {folder} has no complete checkpoint "
                f"(checkpoint-* with {TRAINER_STATE_NAME}); expected the training_args.output_dir of the run "
                "to continue. Correct it (or the keys that form its default), or train from the start with "
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
    return checkpoint


def _check_held_run(settings: RunSettings, record: RunRecord, name: str) -> None:
    """Check that the run in the output folder may be evaluated, continued or replaced.

    Raises:
        UserError: The run is on another dataset, has another configuration, or would be overwritten.
    """
    if settings.only_evaluate:
        if record.dataset != settings.dataset:
            raise UserError(
                f"{name} holds a run on {record.dataset}; results on {settings.dataset} would be mixed with "
                "its own. Pass another training_args.output_dir."
            )
    elif settings.resume:
        for key, (before, now) in _differing(continued_settings, settings, record).items():
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
        differing = _differing(continued_settings, settings, record)
        if record.status == "finished" and not differing:
            if only_adds_readings(settings.config, record.config):
                return None
            if only_adds_readings(record.config, settings.config):
                model = replace(settings.model, checkpoint=str(folder))
                return replace(settings, only_evaluate=True, model=model, evaluation_name=OWN)
            differing = _differing(evaluated_settings, settings, record)
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


def _differing(
    view: Callable[[Mapping[str, Any]], Mapping[str, Any]], settings: RunSettings, record: RunRecord
) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ: key -> (recorded, given). `view` selects the settings to compare."""
    there, here = view(record.config), view(settings.config)
    pairs = {key: (there.get(key), here.get(key)) for key in sorted({*there, *here})}
    return {key: (one, other) for key, (one, other) in pairs.items() if one != other}


def open_folder(settings: RunSettings, approach: Approach) -> None:
    """Create the folder of a training run with its `run.json`, and delete an earlier run if asked to.

    Raises:
        UserError: The folder cannot be written.
    """
    folder = RunFolder(settings.output_dir)
    is_held = folder.holds_run()
    if is_held and (settings.resume or not settings.overwrite):
        return
    parameters = sum(p.numel() for p in approach.model.parameters())
    try:
        if is_held:
            shutil.rmtree(folder.path)
        folder.write_record(replace(new_record(settings), parameters=parameters))
    except OSError as error:
        raise UserError(
            f"training_args.output_dir={folder} cannot be written ({error.strerror or error}); expected a "
            "writable folder. Choose another one."
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


def open_evaluation(settings: RunSettings, data: TaskData) -> tuple[RunFolder, RunRecord]:
    """Find the folder of an evaluation, and make the content of its `run.json`; nothing is written.

    A run's own evaluation, in the run's folder, is the one at the end of its training or, where nothing was
    trained, the first one. Another one has the folder `evaluations/<name>` in it, with `evaluation.name` or,
    by default, the options that differ from the run's own. The name `own` replaces the run's own evaluation.

    Raises:
        UserError: The folder holds another evaluation, or a file in it cannot be read.
    """
    run = RunFolder(settings.output_dir)
    if not run.holds_run():
        return run, evaluated_record(settings)
    record = run.record()
    config = with_evaluation_of(record.config, settings.config)
    is_end_of_training = not settings.only_evaluate and record.status != "finished"
    if is_end_of_training or settings.evaluation_name == OWN:
        return run, replace(record, config=config)
    differences = _differences(settings, record)
    folder = run
    if differences or settings.evaluation_name is not None:
        folder = run.evaluation(settings.evaluation_name or options_name(differences))
        source = evaluated_record(settings) if "model" in differences else record
        config = with_evaluation_of(source.config, settings.config)
        record = replace(source, config=config, status="running")
    if folder.holds_run():
        _check_same_evaluation(folder, replace(record, config=config), data)
    return folder, replace(record, config=config)


def _check_same_evaluation(folder: RunFolder, record: RunRecord, data: TaskData) -> None:
    """Raise a UserError if a folder holds an evaluation of other options, questions or weights."""
    held = folder.record()
    there, here = ({**evaluated_settings(r.config), "steps": r.steps} for r in (held, record))
    differing = [key for key in sorted({*there, *here}) if there.get(key) != here.get(key)]
    if held.config.get("evaluated") != record.config.get("evaluated"):
        differing.append("model_args.model_name_or_path")
    if any(folder.questions(test) not in (None, given) for test, given in data.fingerprints.items()):
        differing.append("questions")
    if differing:
        raise UserError(
            f"{folder} holds an evaluation with other {', '.join(differing)}; expected a new folder, or the "
            "same evaluation, which continues. Pass evaluation.name=NAME to keep both, or "
            f"evaluation.name={OWN} to replace the run's own evaluation."
        )


def _differences(settings: RunSettings, record: RunRecord) -> dict[str, Any]:
    """Return the options of an evaluation that differ from those of a record."""
    differences = {key: here for key, (_, here) in _differing(evaluated_settings, settings, record).items()}
    if settings.only_evaluate:
        own = (settings.output_dir, Path(str(record.config.get("evaluated"))))
        if Path(str(settings.model.checkpoint)).resolve() not in [path.resolve() for path in own]:
            differences["model"] = settings.model.checkpoint
    return differences


def last_complete_checkpoint(folder: Path) -> Path | None:
    """Return the latest complete checkpoint of a run, or None. The folder need not exist."""
    complete: dict[int, Path] = {}
    for path in folder.glob(f"{CHECKPOINT}*"):
        with suppress(UserError):
            complete[read_state(path)["global_step"]] = path  # transformers writes this file last
    return complete[max(complete)] if complete else None


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Read the trainer's state of a checkpoint, with its `global_step`.

    Raises:
        UserError: The state cannot be read.
    """
    try:
        state: dict[str, Any] = json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
        state["global_step"] + 0  # raises unless it is a number
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise checkpoint_error(
            checkpoint, f"{TRAINER_STATE_NAME} cannot be read ({describe(error)})"
        ) from None
    return state


def check_checkpoint(checkpoint: Path, model: PreTrainedModel) -> None:
    """Check, before training continues from a checkpoint, that it is complete and belongs to the model.

    transformers silently starts with a new optimizer, schedule or random state if their files are missing.

    Raises:
        UserError: A file is missing or cannot be read, or the checkpoint belongs to another model.
    """
    read_state(checkpoint)
    optimizer = () if any(checkpoint.glob("global_step*")) else ("optimizer*",)  # DeepSpeed has its own files
    for pattern in (*optimizer, "scheduler.pt", "rng_state*.pth", "model*.safetensors"):
        if not any(checkpoint.glob(pattern)):
            raise checkpoint_error(checkpoint, f"it lacks {pattern}")
    for file in checkpoint.iterdir():
        # `torch.save` writes zip files, whose directory stands at the end.
        if file.suffix in (".pt", ".pth", ".bin") and not is_zipfile(file):
            raise checkpoint_error(checkpoint, f"{file.name} cannot be read")
    _check_model(checkpoint, model)


def _check_model(checkpoint: Path, model: PreTrainedModel) -> None:
    """Check that a checkpoint fits the model, by its configuration and the shapes of its weights.

    Raises:
        UserError: The checkpoint cannot be read, or belongs to another model.
    """
    try:
        trained = json.loads((checkpoint / "config.json").read_text(encoding="utf-8")).get("ntl") or {}
        found = {}
        for file in checkpoint.glob("model*.safetensors"):
            with safe_open(file, "pt") as weights:
                found |= {key: list(weights.get_slice(key).get_shape()) for key in weights.keys()}  # noqa: SIM118
    except (OSError, ValueError, SafetensorError) as error:
        raise checkpoint_error(checkpoint, f"the model cannot be read ({describe(error)})") from None
    trained = {"number_format": "plain", **trained}  # checkpoints of earlier versions lack this key
    wrong = f"training_args.resume_from_checkpoint={checkpoint} "
    advice = "expected a checkpoint of the same model. Choose the model that the checkpoint was trained with."
    compared = {"encoding", "head", "log_scale", "number_format", *FORMAT_KEYS}
    for key in sorted(compared & {*trained, *model.config.ntl}):
        if trained.get(key) != model.config.ntl.get(key):
            given = model.config.ntl.get(key)
            raise UserError(f"{wrong}was trained with {key}={trained.get(key)}, not {given}; {advice}")
    shapes = {key: list(weight.shape) for key, weight in model.state_dict().items()}
    for key in sorted(found):
        if shapes.get(key) != found[key]:
            raise UserError(f"{wrong}has {key} of shape {found[key]}, not {shapes.get(key)}; {advice}")


def checkpoint_error(checkpoint: Path | str, reason: str) -> UserError:
    """Make the error of a checkpoint that training cannot continue from."""
    return UserError(
        f"{checkpoint} is not a complete checkpoint: {reason}; expected all files that training writes. "
        "Nothing was changed. Continue from another one with training_args.resume_from_checkpoint=<folder>, "
        "or train from the start with training_args.overwrite_output_dir=true instead."
    )
