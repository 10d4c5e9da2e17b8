"""One run of the paper's program: check, load, train or resume, answer the test sets, write it all down."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
import torch
import transformers
from accelerate import PartialState
from torch import nn
from transformers import Seq2SeqTrainingArguments, get_scheduler, set_seed
from transformers.integrations import get_reporting_integration_callbacks
from transformers.trainer import TRAINER_STATE_NAME

from ntl.approaches import Approach, build_approach
from ntl.approaches.pretrained import check_model
from ntl.errors import UserError
from ntl.evaluation import evaluate, evaluate_tests
from ntl.published_names import (
    check_training_args,
    generation_settings,
    loss_settings,
    model_settings,
    objective_name,
)
from ntl.records import flatten, installed_versions
from ntl.run_folder import Metrics, RunFolder, RunRecord
from ntl.settings import GenerationSettings, LossSettings, ModelSettings
from ntl.tasks import Example, TaskData, load_task
from ntl.tokenized import tokenize
from ntl.trainer import ApproachTrainer, RunRecorder, check_checkpoint, last_complete_checkpoint

# Keys of training_args that are the lab's own; the others are transformers'.
OWN_KEYS = ("trial", "special_name", "do_only_eval", "overwrite_output_dir", "resume_from_checkpoint")
PLATEAU = {"factor": 0.5, "patience": 5}  # of the published schedule
# What may differ between a run and its continuation: it changes nothing of the result.
FREE_KEYS = {
    "training_args": (
        *OWN_KEYS, "output_dir", "disable_tqdm", "logging_steps", "report_to", "save_total_limit",
        "per_device_eval_batch_size",
    ),
    "dataset_args": ("cache_dir",),
}  # fmt: skip


@dataclass(frozen=True)
class Experiment:
    """A configuration, checked and taken apart; nothing is loaded yet.

    Args:
        config: The composed configuration, as it is written down.
        model: Which model.
        loss: What it minimises.
        generation: How answers are decoded.
        folder: Where everything is written.
        only_evaluate: Whether a finished model answers the test sets, and nothing is trained.
        resume: Whether to continue what is in the folder.
        checkpoint: To continue from; None for the last one.
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
        """Check a composed configuration and take it apart.

        Args:
            config: Of `config/run_language_modeling.yaml`.
            sweep: What tells the runs of a sweep apart; put behind the default output folder.

        Returns:
            The experiment.

        Raises:
            UserError: A value cannot be used.
        """
        training = config["training_args"]
        check_training_args(training)
        model = model_settings(config["model_args"], training["seed"])
        resume = training["resume_from_checkpoint"]
        if training["do_only_eval"] and model.checkpoint is None:
            raise UserError(
                "training_args=eval answers with a trained model, but model_args.model_name_or_path is null; "
                "expected the folder of a run or of one of its checkpoints. Pass "
                "model_args.model_name_or_path=<folder>."
            )
        if isinstance(resume, str) and not Path(resume, TRAINER_STATE_NAME).is_file():
            raise UserError(
                f"training_args.resume_from_checkpoint={resume} is no folder with {TRAINER_STATE_NAME}; "
                "expected true, or a checkpoint's folder. Correct it."
            )
        return cls(
            config=config,
            model=model,
            loss=loss_settings(config["model_args"], config["loss"]),
            generation=generation_settings(config["evaluation"], training["per_device_eval_batch_size"]),
            folder=RunFolder(_output_dir(config, sweep)),
            only_evaluate=training["do_only_eval"],
            resume=bool(resume),
            checkpoint=Path(resume) if isinstance(resume, str) else None,
        )

    def record(self) -> RunRecord:
        """What `run.json` says at the start."""
        return RunRecord(
            name=str(self.config["model_args"]["name"]),
            objective=objective_name(self.model, self.loss),
            dataset=str(self.config["dataset_args"]["dataset_name"]),
            seed=self.config["training_args"]["seed"],
            config=self.config,
            versions=installed_versions(),
        )


def run(experiment: Experiment) -> dict[str, Metrics]:
    """Do all that is missing of an experiment.

    Args:
        experiment: From `Experiment.from_config`.

    Returns:
        Test set -> metric -> value.

    Raises:
        UserError: Something that was asked for cannot be done; nothing was overwritten.
    """
    check_folder(experiment)
    arguments = training_arguments(experiment)
    transformers.logging.set_verbosity_error()
    for library in (transformers.logging, datasets):
        (library.disable_progress_bar if arguments.disable_tqdm else library.enable_progress_bar)()
    settings = experiment.config["dataset_args"]
    check_model(experiment.model)  # reading the data may take minutes
    data = load_task({**settings, "name": settings["dataset_name"]})
    set_seed(arguments.seed)
    approach = build_approach(experiment.model, experiment.loss)
    if experiment.checkpoint is not None:
        check_checkpoint(approach.model, experiment.checkpoint)
    if not experiment.only_evaluate:
        approach.fit(example.answer for example in data.train)
    # Nobody writes before everybody has checked.
    PartialState().wait_for_everyone()
    if arguments.should_save:
        try:
            _open_folder(experiment, approach)
        except OSError as error:
            raise UserError(
                f"training_args.output_dir={experiment.folder} cannot be written ({error.strerror}); "
                "expected a folder that can be. Choose another one."
            ) from None
    PartialState().wait_for_everyone()
    model = approach.model.to(arguments.device)
    if not experiment.only_evaluate:
        model = train(experiment, arguments, data, approach)
    return answer_tests(experiment, arguments, data, approach, model)


def check_folder(experiment: Experiment) -> None:
    """Check, before anything is loaded, that nothing in the output folder would be overwritten.

    Raises:
        UserError: It holds a run, or something else, that is neither to be resumed nor evaluated.
    """
    folder, training = experiment.folder, experiment.config["training_args"]
    if not folder.path.is_dir():
        _require_writable(folder.path)
        return
    if not folder.holds_run():  # whatever it is, it is not ours to delete
        its_own = experiment.only_evaluate and folder.path == Path(str(experiment.model.checkpoint))
        if not its_own and any(folder.path.iterdir()):
            raise UserError(
                f"training_args.output_dir={folder} holds files, but no run; expected a new or empty folder. "
                "Choose another one."
            )
        return
    if experiment.only_evaluate:
        _require_same_dataset(experiment)
    elif experiment.resume:
        _require_same_run(experiment)
    elif not training["overwrite_output_dir"]:
        raise UserError(
            f"training_args.output_dir={folder} holds a run already. Pass "
            "training_args.resume_from_checkpoint=true to continue it, another training_args.output_dir or "
            "special_name to keep both, or training_args.overwrite_output_dir=true to delete it."
        )


def _require_writable(path: Path) -> None:
    """Check that a folder that is not there can be made."""
    parent = next(p for p in path.absolute().parents if p.exists())
    if path.exists() or not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(
            f"training_args.output_dir={path} is no folder and cannot be made one; expected a new or empty "
            "folder where files can be written. Choose another one."
        )


def _require_same_dataset(experiment: Experiment) -> None:
    """Check that a run's metrics stay those of one dataset."""
    there, here = experiment.folder.record().dataset, experiment.record().dataset
    if there != here:
        raise UserError(
            f"training_args.output_dir={experiment.folder} holds a run on {there}; its answers to {here} "
            "would be mixed with those. Pass another training_args.output_dir."
        )


def _require_same_run(experiment: Experiment) -> None:
    """Check that a run is continued as what it was started."""
    folder = experiment.folder
    before, now = (flatten(_identity(c)) for c in (folder.record().config, experiment.config))
    for key in sorted({*before, *now}):
        if before.get(key) != now.get(key):
            raise UserError(
                f"training_args.output_dir={folder} holds a run with {key}={before.get(key)}; given is "
                f"{now.get(key)}. A run is continued with what it was started with: correct it, or choose "
                "another training_args.output_dir."
            )


def training_arguments(experiment: Experiment) -> Seq2SeqTrainingArguments:
    """The trainer's arguments; under `torchrun` this is where the processes meet.

    Raises:
        UserError: transformers refuses them; its reason is quoted.
    """
    training = experiment.config["training_args"]
    given = {key: value for key, value in training.items() if key not in OWN_KEYS}
    given |= {
        "output_dir": str(experiment.folder.path),
        "remove_unused_columns": False,
        "eval_strategy": "steps",
        "save_strategy": "steps",
        "report_to": [] if given["report_to"] in (None, "none") else given["report_to"],
        "disable_tqdm": not sys.stderr.isatty() if given["disable_tqdm"] is None else given["disable_tqdm"],
        "dataloader_pin_memory": torch.cuda.is_available() and not given["use_cpu"],
    }
    if given["lr_scheduler_type"] == "reduce_lr_on_plateau":
        mode = "max" if given["greater_is_better"] else "min"
        given["lr_scheduler_kwargs"] = {"mode": mode, **(given["lr_scheduler_kwargs"] or PLATEAU)}
    try:
        arguments = Seq2SeqTrainingArguments(**given)
        # What transformers would find out when all is loaded: a tracker that is not installed, for one.
        for tracker in get_reporting_integration_callbacks(arguments.report_to):
            tracker()
        schedule = arguments.lr_scheduler_type, torch.optim.SGD([torch.zeros(1)]), 1, 2
        get_scheduler(*schedule, scheduler_specific_kwargs=arguments.lr_scheduler_kwargs)
        return arguments
    except (TypeError, ValueError, ImportError, RuntimeError) as error:
        raise UserError(
            f"training_args cannot be used: {error}. Its keys are those of transformers' "
            "Seq2SeqTrainingArguments; correct or leave out the one that is named."
        ) from None


def train(
    experiment: Experiment, arguments: Seq2SeqTrainingArguments, data: TaskData, approach: Approach
) -> nn.Module:
    """Train, from the start or from the last whole checkpoint, and save the model in the run's folder.

    Returns:
        The model, wrapped where it is trained on several processes.
    """
    folder = experiment.folder
    cache = Path(experiment.config["dataset_args"]["cache_dir"])
    with arguments.main_process_first(desc="tokenize"):
        training, validation = (
            tokenize(examples, approach, experiment.model, cache)
            for examples in (data.train, data.validation)
        )
    shown = spread(data.validation, experiment.config["evaluation"]["samples_during_training"])

    def measure(model: nn.Module) -> Metrics:
        return evaluate(approach, shown, data, experiment.generation, model).metrics

    trainer = ApproachTrainer(
        args=arguments,
        approach=approach,
        measure=measure,
        train_dataset=training,
        eval_dataset=validation,
        callbacks=[RunRecorder(folder, arguments.should_save)],
    )
    checkpoint = experiment.checkpoint
    if checkpoint is None and experiment.resume:
        checkpoint = last_complete_checkpoint(folder.path)
    trainer.train_from(checkpoint)
    trainer.save_model()
    return trainer.model_wrapped


def answer_tests(
    experiment: Experiment,
    arguments: Seq2SeqTrainingArguments,
    data: TaskData,
    approach: Approach,
    model: nn.Module,
) -> dict[str, Metrics]:
    """Answer the validation and test sets, those that are not answered yet, and write the results."""
    folder, samples = experiment.folder, experiment.config["evaluation"]["samples"]
    parts = {"validation": data.validation, **data.tests}
    tests = {name: spread(part, samples) for name, part in parts.items()}
    identity = {"steps": folder.record().steps, "checkpoint": experiment.model.checkpoint}

    def show(test: str, metrics: Metrics, is_new: bool) -> None:
        if arguments.should_log:
            _show(test, metrics)

    results = evaluate_tests(
        approach, replace(data, tests=tests), experiment.generation, folder, identity, model, show
    )
    if arguments.should_save:
        record = folder.record()
        # A run may be answered again with other beams or samples: the record says what its metrics are of.
        config = {**record.config, "evaluation": experiment.config["evaluation"]}
        folder.write_record(replace(record, status="finished", config=config))
        print(f"Metrics and predictions are in {folder}")
    return results


def spread(examples: Sequence[Example], count: int | None) -> Sequence[Example]:
    """Choose so many examples at equal distances: test files hold one module after the other.

    Args:
        examples: Of a test set.
        count: How many; None, or more than there are, for all.

    Returns:
        The chosen ones, in their order.
    """
    if count is None or count >= len(examples):
        return examples
    return [examples[i * len(examples) // count] for i in range(count)]


def _show(test: str, metrics: Metrics) -> None:
    names = ("accuracy", "log_mae", "log_r2", "invalid_rate", "final_answer_accuracy", "rougeL", "loss")
    shown = (f"{name} {metrics[name]:.4f}" for name in names if metrics.get(name) is not None)
    print(f"{test}: {', '.join(shown)}")


def _output_dir(config: Mapping[str, Any], sweep: str) -> Path:
    """Where the run is written, as its configuration says or by default."""
    training, model = config["training_args"], config["model_args"]
    if training["output_dir"] is not None:
        return Path(training["output_dir"], sweep.replace("/", "_")).expanduser()
    if training["do_only_eval"] and Path(str(model["model_name_or_path"])).is_dir():
        return Path(model["model_name_or_path"])
    parts = (config["dataset_args"]["dataset_name"], training["trial"])
    name = "_".join(str(part) for part in (model["name"], training["special_name"]) if part)
    return Path("outputs", *(str(part) for part in parts if part), name, sweep.replace("/", "_"))


def _open_folder(experiment: Experiment, approach: Approach) -> None:
    """Make the folder, with the record of what is run."""
    folder = experiment.folder
    training = experiment.config["training_args"]
    if experiment.only_evaluate:
        if not folder.holds_run():
            folder.write_record(_evaluated_record(experiment))
        return
    if training["overwrite_output_dir"] and not experiment.resume and folder.holds_run():
        shutil.rmtree(folder.path)
    if not folder.holds_run():
        parameters = sum(p.numel() for p in approach.model.parameters())
        folder.write_record(replace(experiment.record(), parameters=parameters))


def _evaluated_record(experiment: Experiment) -> RunRecord:
    """The record of an evaluation: that of the run whose model or checkpoint it is, where there is one."""
    record = experiment.record()
    path = Path(str(experiment.model.checkpoint))
    is_checkpoint = path.name.startswith("checkpoint-") and RunFolder(path.parent).holds_run()
    trained = RunFolder(path.parent if is_checkpoint else path)
    if not trained.holds_run():
        return record
    answered = {key: record.config[key] for key in ("dataset_args", "evaluation")}
    source = trained.record()
    steps = int(path.name.rpartition("-")[2]) if is_checkpoint else source.steps
    config = {**source.config, **answered}
    return replace(source, dataset=record.dataset, steps=steps, config=config, status="running")


def _identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a run and its continuation have in common."""
    return {
        name: {k: v for k, v in section.items() if k not in FREE_KEYS.get(name, ())}
        for name, section in config.items()
        if isinstance(section, Mapping) and name != "evaluation"
    }
