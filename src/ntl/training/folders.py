"""Check, open and choose the folders of a run, of its checkpoints and of its evaluations."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
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
from ntl.config.differences import EVALUATION, TRAINING, differences, only_adds_readings, with_defaults
from ntl.config.settings import LossSettings, RunSettings, read_settings
from ntl.data import TaskData
from ntl.data.files import LOCK, is_leftover
from ntl.errors import UserError, describe, writing_to
from ntl.training.run_folder import CHECKPOINT, RunFolder, RunRecord, options_name

OWN = "own"  # the name of a run's own evaluation, which it replaces
PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "datasets", "numpy")


def check_folder(settings: RunSettings) -> Path | None:
    """Check, before anything is loaded, that nothing in the output folder would be overwritten.

    Returns:
        The checkpoint to continue from; None to train from the start, or only to evaluate.
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
        if not its_own and not all(map(is_leftover, folder.path.iterdir())):
            raise UserError(
                f"{name} holds files but no run; expected a new or empty folder. Choose another one."
            )
    else:
        _check_held_run(settings, folder.record(), name)
    return checkpoint


def _check_held_run(settings: RunSettings, record: RunRecord, name: str) -> None:
    """Check that the run in the output folder may be evaluated, continued or replaced."""
    if settings.only_evaluate:
        if record.dataset != settings.dataset:
            raise UserError(
                f"{name} holds a run on {record.dataset}; results on {settings.dataset} would be mixed with "
                "its own. Pass another training_args.output_dir."
            )
    elif settings.resume:
        for key, (before, now) in differences(record.config, settings.config, TRAINING).items():
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
    """
    folder = RunFolder(settings.output_dir)
    if folder.holds_run():
        record = folder.record()
        differing = differences(record.config, settings.config, TRAINING)
        damaged = record.status == "finished" and _is_damaged(folder, overwrite)
        if record.status == "finished" and not differing and not damaged:
            if only_adds_readings(settings.config, record.config):
                return None
            if only_adds_readings(record.config, settings.config):
                model = replace(settings.model, checkpoint=str(folder), trained_layers=None, lora=None)
                return replace(settings, only_evaluate=True, model=model, evaluation_name=OWN)
            differing = differences(record.config, settings.config, EVALUATION)
        if differing and not overwrite:
            key, (there, here) = next(iter(differing.items()))
            raise UserError(
                f"{folder} holds a run of another configuration: {key} is {there!r} there, {here!r} here. "
                "Pass another output_dir, or overwrite=true to replace such runs."
            )
        resume = not (differing or damaged) and last_complete_checkpoint(folder.path) is not None
        settings = replace(settings, resume=resume, overwrite=not resume)
    check_folder(settings)
    return settings


def _is_damaged(folder: RunFolder, overwrite: bool) -> bool:
    """Return whether the results of a finished run cannot be read; a UserError unless it is overwritten."""
    try:
        folder.metrics()
    except UserError as error:
        if overwrite:
            return True
        raise UserError(f"{error} overwrite=true repeats it.") from None
    return False


def open_folder(settings: RunSettings, approach: Approach) -> None:
    """Create the folder of a training run with its `run.json`, and delete an earlier run if asked to."""
    folder = RunFolder(settings.output_dir)
    is_held = folder.holds_run()
    if is_held and (settings.resume or not settings.overwrite):
        return
    parameters = sum(p.numel() for p in approach.model.parameters())
    with writing_to(f"training_args.output_dir={folder}", "a writable folder", "Choose another one."):
        for path in folder.path.iterdir() if is_held else ():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != LOCK:  # which this process holds
                path.unlink()
        folder.write_record(replace(new_record(settings), parameters=parameters))


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
    record, evaluated = new_record(settings), {"evaluated": settings.model.checkpoint}
    path, steps = Path(str(settings.model.checkpoint)), None
    folder = _trained_run(path)
    if folder is None:
        return replace(record, config={**record.config, **evaluated})
    if folder.path != path:
        steps = int(path.name.removeprefix(CHECKPOINT))
    trained = folder.record()
    config = {**_with_evaluation_of(trained.config, record.config), **evaluated}
    steps = trained.steps if steps is None else steps
    return replace(trained, dataset=record.dataset, steps=steps, config=config, status="running")


def _trained_run(path: Path) -> RunFolder | None:
    """Return the run whose final model or checkpoint is in a folder, or None."""
    is_checkpoint = path.name.startswith(CHECKPOINT) and RunFolder(path.parent).holds_run()
    folder = RunFolder(path.parent if is_checkpoint else path)
    return folder if folder.holds_run() else None


def evaluated_loss(settings: RunSettings) -> LossSettings:
    """Return the loss to evaluate with: that of the run that trained the model; if unknown, the given one."""
    folder = _trained_run(Path(str(settings.model.checkpoint)))
    return settings.loss if folder is None else recorded_settings(folder).loss


def recorded_settings(folder: RunFolder) -> RunSettings:
    """Return a run's settings, with the defaults of keys that are newer than its record."""
    config = folder.record().config
    try:
        return read_settings({**config, **with_defaults(config)})
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{folder.record_path} has a configuration that cannot be read ({describe(error)}); expected "
            "that of `ntl train` or `ntl compare`. Repeat the run."
        ) from None


def open_evaluation(settings: RunSettings, data: TaskData) -> tuple[RunFolder, RunRecord]:
    """Find the folder of an evaluation, and make the content of its `run.json`; nothing is written.

    A run's own evaluation, in the run's folder, is the one at the end of its training or, where nothing was
    trained, the first one. Another one has the folder `evaluations/<name>` in it, with `evaluation.name` or,
    by default, the options that differ from the run's own. The name `own` replaces the run's own evaluation.
    """
    folder = RunFolder(settings.output_dir)
    if not folder.holds_run():
        return folder, evaluated_record(settings)
    record, config, name = folder.record(), settings.config, settings.evaluation_name
    is_end_of_training = not settings.only_evaluate and record.status != "finished"
    if not is_end_of_training and name != OWN:
        changed = differences(record.config, config, EVALUATION)
        options = {key.rpartition(".")[2]: now for key, (_, now) in changed.items()}
        own_models = (str(folder), str(record.config.get("evaluated")))
        model = settings.model.checkpoint
        if settings.only_evaluate and Path(str(model)).resolve() not in [
            Path(p).resolve() for p in own_models
        ]:
            options["model"] = model
            record = evaluated_record(settings)
        if options or name is not None:
            folder = folder.evaluation(name or options_name(options))
            record = replace(record, status="running")
        if folder.holds_run():
            _check_same_evaluation(folder, record, config, data)
    return folder, replace(record, config=_with_evaluation_of(record.config, config))


def _check_same_evaluation(
    folder: RunFolder, record: RunRecord, config: Mapping[str, Any], data: TaskData
) -> None:
    """Raise a UserError if a folder holds an evaluation of other options, questions or weights."""
    held = folder.record()
    differing = [*differences(held.config, config, EVALUATION)]
    if held.steps != record.steps:
        differing.append("steps")
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


def _with_evaluation_of(config: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the dataset and evaluation settings of another one.

    `samples_during_training` is kept.
    """
    before = config.get("evaluation", {})
    kept = {key: before[key] for key in ("samples_during_training",) if key in before}
    return {**config, "dataset_args": other["dataset_args"], "evaluation": {**other["evaluation"], **kept}}


def last_complete_checkpoint(folder: Path) -> Path | None:
    """Return the latest complete checkpoint of a run, or None. The folder need not exist."""
    complete: dict[int, Path] = {}
    for path in folder.glob(f"{CHECKPOINT}*"):
        with suppress(UserError):
            complete[read_state(path)["global_step"]] = path  # transformers writes this file last
    return complete[max(complete)] if complete else None


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Read the trainer's state of a checkpoint, with its `global_step`."""
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
    """Check that a checkpoint fits the model, by its configuration and the shapes of its weights."""
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
    # LoRA's checkpoints hold the merged weights.
    names = {key: key.replace(".base_layer.", ".") for key in model.state_dict()}
    shapes = {names[key]: list(weight.shape) for key, weight in model.state_dict().items()}
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
