"""Check an experiment's configuration and output folder before anything is loaded."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers.trainer import TRAINER_STATE_NAME

from ntl.approaches import Approach
from ntl.errors import UserError
from ntl.known_keys import check_keys
from ntl.published_names import (
    check_training_args,
    generation_settings,
    loss_name,
    loss_settings,
    model_settings,
    objective_name,
)
from ntl.records import flatten, installed_versions
from ntl.run_folder import CHECKPOINT, RunFolder, RunRecord
from ntl.settings import GenerationSettings, LossSettings, ModelSettings
from ntl.trainer import last_complete_checkpoint

# Keys of training_args that belong to the lab; the others belong to transformers.
OWN_KEYS = ("trial", "special_name", "do_only_eval", "overwrite_output_dir", "resume_from_checkpoint")
# Keys that may change when a run is resumed, because they do not affect its result.
CHANGEABLE_KEYS = {
    "training_args": (
        *OWN_KEYS, "output_dir", "disable_tqdm", "logging_steps", "report_to", "save_total_limit",
        "per_device_eval_batch_size",
    ),
    "dataset_args": ("cache_dir",),
}  # fmt: skip


@dataclass(frozen=True)
class Experiment:
    """A checked configuration, before anything is loaded.

    Args:
        config: The composed configuration, as recorded in `run.json`.
        model: Model settings.
        loss: Loss settings.
        generation: Decoding settings.
        folder: Output folder.
        only_evaluate: Whether to evaluate a trained model without training.
        resume: Whether to continue the run in the folder.
        checkpoint: Checkpoint to continue from. None is the latest one.
    """

    config: Mapping[str, Any]
    model: ModelSettings
    loss: LossSettings
    generation: GenerationSettings
    folder: RunFolder
    only_evaluate: bool
    resume: bool
    checkpoint: Path | None

    @classmethod
    def from_config(cls, config: Mapping[str, Any], sweep: str = "") -> Experiment:
        """Make an experiment from a composed configuration.

        Args:
            config: Configuration composed from `config/run_language_modeling.yaml`.
            sweep: Overrides that distinguish the runs of a sweep, appended to the output folder.

        Returns:
            The experiment.

        Raises:
            UserError: A key or a value is invalid.
        """
        check_keys(config)
        training = config["training_args"]
        check_training_args(training)
        model = model_settings(config["model_args"], training["seed"])
        loss = loss_settings(config["model_args"], config["loss"])
        resume = training["resume_from_checkpoint"]
        if training["do_only_eval"] and model.checkpoint is None:
            raise UserError(
                "training_args=eval evaluates a trained model, but model_args.model_name_or_path is null; "
                "expected the folder of a run or of one of its checkpoints. Pass "
                "model_args.model_name_or_path=<folder>."
            )
        if isinstance(resume, str) and not Path(resume, TRAINER_STATE_NAME).is_file():
            raise UserError(
                f"training_args.resume_from_checkpoint={resume} is not a folder with {TRAINER_STATE_NAME}; "
                "expected true, or the folder of a checkpoint. Correct it."
            )
        return cls(
            config=config,
            model=model,
            loss=loss,
            generation=generation_settings(config["evaluation"], training["per_device_eval_batch_size"]),
            folder=RunFolder(_output_dir(config, loss, sweep)),
            only_evaluate=training["do_only_eval"],
            resume=bool(resume),
            checkpoint=Path(resume) if isinstance(resume, str) else None,
        )

    def record(self) -> RunRecord:
        """Make the record that `run.json` holds at the start."""
        return RunRecord(
            name=str(self.config["model_args"]["name"]),
            objective=objective_name(self.model, self.loss),
            dataset=str(self.config["dataset_args"]["dataset_name"]),
            seed=self.config["training_args"]["seed"],
            config=self.config,
            versions=installed_versions(),
        )


def check_folder(experiment: Experiment) -> None:
    """Check, before anything is loaded, that nothing in the output folder would be overwritten.

    Raises:
        UserError: The folder holds a run that is neither resumed nor evaluated, holds other files, or cannot
            be written; or there is no checkpoint to resume from.
    """
    folder, training = experiment.folder, experiment.config["training_args"]
    if experiment.resume and experiment.checkpoint is None and not experiment.only_evaluate:
        _check_has_checkpoint(folder)
    if not folder.path.is_dir():
        _check_writable(folder.path)
        return
    if not folder.holds_run():  # never delete files that are not ours
        its_own = experiment.only_evaluate and folder.path == Path(str(experiment.model.checkpoint))
        if not its_own and any(folder.path.iterdir()):
            raise UserError(
                f"training_args.output_dir={folder} holds files but no run; expected a new or empty folder. "
                "Choose another one."
            )
        return
    if experiment.only_evaluate:
        _check_same_dataset(experiment)
    elif experiment.resume:
        _check_same_run(experiment)
    elif not training["overwrite_output_dir"]:
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


def _check_same_dataset(experiment: Experiment) -> None:
    """Check that an evaluation does not mix two datasets in one run's folder."""
    there, here = experiment.folder.record().dataset, experiment.record().dataset
    if there != here:
        raise UserError(
            f"training_args.output_dir={experiment.folder} holds a run on {there}; its answers to {here} "
            "would be mixed with those. Pass another training_args.output_dir."
        )


def _check_same_run(experiment: Experiment) -> None:
    """Check that a run is resumed with the configuration that it was started with."""
    folder = experiment.folder
    before, now = (flatten(_identity(c)) for c in (folder.record().config, experiment.config))
    for key in sorted({*before, *now}):
        if before.get(key) != now.get(key):
            raise UserError(
                f"training_args.output_dir={folder} holds a run with {key}={before.get(key)}, but "
                f"{key}={now.get(key)} is given; expected the configuration that the run was started with. "
                "Correct it, or choose another training_args.output_dir."
            )


def _output_dir(config: Mapping[str, Any], loss: LossSettings, sweep: str) -> Path:
    """Return the output folder, from the configuration or by default."""
    training, model = config["training_args"], config["model_args"]
    if training["output_dir"] is not None:
        return Path(training["output_dir"], sweep.replace("/", "_")).expanduser()
    if training["do_only_eval"] and Path(str(model["model_name_or_path"])).is_dir():
        return Path(model["model_name_or_path"])
    parts = (config["dataset_args"]["dataset_name"], training["trial"])
    added = re.sub(r"[^\w.-]+", "-", loss_name(loss))  # folder names have no spaces
    name = "_".join(str(part) for part in (model["name"], added, training["special_name"]) if part)
    return Path("outputs", *(str(part) for part in parts if part), name, sweep.replace("/", "_"))


def open_folder(experiment: Experiment, approach: Approach) -> None:
    """Create the output folder with its `run.json`, and delete an earlier run if that was requested."""
    folder = experiment.folder
    training = experiment.config["training_args"]
    if experiment.only_evaluate:
        if not folder.holds_run():
            folder.write_record(evaluated_record(experiment))
        return
    if training["overwrite_output_dir"] and not experiment.resume and folder.holds_run():
        shutil.rmtree(folder.path)
    if not folder.holds_run():
        parameters = sum(p.numel() for p in approach.model.parameters())
        folder.write_record(replace(experiment.record(), parameters=parameters))


def evaluated_record(experiment: Experiment) -> RunRecord:
    """Make the record of an evaluation, based on the record of the run that trained the model, if any.

    The key `evaluated` of its configuration holds the model's folder or hub name.
    """
    record = experiment.record()
    path = Path(str(experiment.model.checkpoint))
    is_checkpoint = path.name.startswith(CHECKPOINT) and RunFolder(path.parent).holds_run()
    trained = RunFolder(path.parent if is_checkpoint else path)
    answered = {key: record.config[key] for key in ("dataset_args", "evaluation")}
    answered["evaluated"] = experiment.model.checkpoint
    if not trained.holds_run():
        return replace(record, config={**record.config, **answered})
    source = trained.record()
    steps = int(path.name.rpartition("-")[2]) if is_checkpoint else source.steps
    config = {**source.config, **answered}
    return replace(source, dataset=record.dataset, steps=steps, config=config, status="running")


def _identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a run and its continuation must share."""
    return {
        name: {k: v for k, v in section.items() if k not in CHANGEABLE_KEYS.get(name, ())}
        for name, section in config.items()
        if isinstance(section, Mapping) and name != "evaluation"
    }
