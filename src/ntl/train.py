"""`ntl train`: one run, from its settings to the metrics of its test sets.

A run's folder holds its configuration (`.hydra`), what transformers' Trainer writes (checkpoints, the model,
`trainer_state.json`), and a folder for each evaluation, see `ntl.evaluate.write_results`. The same command
continues an interrupted run, unless it has `training_args.overwrite_output_dir=true`, which starts again.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ntl.config import Config, read_config
from ntl.errors import UserError, describe
from ntl.evaluate import (
    METRICS,
    PREDICTIONS,
    Evaluation,
    Metrics,
    Result,
    check_readings,
    read_results,
    reference_metrics,
    score_answers,
    write_results,
)
from ntl.losses import AUTO, choose_widths, library_options
from ntl.training_args import CHANGEABLE, trainer_arguments

if TYPE_CHECKING:
    from ntl.data import Example, TaskData
    from ntl.models import AnsweringModel

log = logging.getLogger(__name__)
STATE = "trainer_state.json"  # transformers' name; in the run's own folder: training has ended
CHECKPOINT = "checkpoint-"  # transformers' prefix of checkpoint folders
# What the lab, transformers and Hydra write into a run's folder, besides evaluations.
WRITTEN = (
    f"{CHECKPOINT}[0-9]*", STATE, "training_args.bin", "config.json", "generation_config.json",
    "model*.safetensors", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "chat_template.jinja", "runs/*/events.out.tfevents.*",
)  # fmt: skip
MOST_HASHED = 10_000  # examples of a set that are compared when a run is continued
PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "datasets", "numpy")
LOSS_TERMS = ("loss", "ce", "ce_numbers", "ce_text", "ntl", "perplexity")


def run(
    config: Config, folder: Path, target: Path, on_start: Callable[[], None] = lambda: None
) -> dict[str, Metrics]:
    """Do what is left of a run: train or continue, then answer its test sets.

    Args:
        config: The settings.
        folder: Folder of the run.
        target: Folder of the evaluation.
        on_start: Called once by the writing process when the command is not refused, unless the folder holds
            a finished run, which stays as it was made.

    Returns:
        Maps each test set, and the validation set, to its metrics.

    Raises:
        UserError: The settings do not fit the data or each other, or the folder holds a run with others.
    """
    from accelerate import PartialState
    from transformers import TrainerState

    arguments = trainer_arguments(config.training_args, folder)
    quiet(arguments)
    trained, checkpoint = find_start(config, folder)
    own = trained or checkpoint if not config.training_args.do_only_eval else None
    if trained is not None:
        config = as_trained(config, trained)
        if (done := find_evaluation(config, trained, target)) is not None:
            log.info(f"{folder} is finished already")
            return done
    trainer, data = prepare(config, arguments, trained is not None, own)

    PartialState().wait_for_everyone()  # no process writes before all have passed their checks
    if arguments.should_save and trained != folder:
        on_start()
    if trained is None:
        if config.training_args.overwrite_output_dir and arguments.should_save:
            clear(folder)
        PartialState().wait_for_everyone()
        train(trainer, checkpoint)
    elif (trained / STATE).is_file():
        trainer.state = TrainerState.load_from_json(str(trained / STATE))

    results = answer_tests(trainer, data, config.evaluation)
    if arguments.should_save:
        description = describe_run(config, trainer, data)
        description["model"] = os.path.relpath(folder if trained is None else trained, target)
        write_results(target, description, results)
    log.info(f"Metrics and predictions are in {target}")
    return {test: result.metrics for test, result in results.items()}


def find_start(config: Config, folder: Path) -> tuple[Path | None, Path | None]:
    """Return the folder of the trained model, which is only evaluated, or the checkpoint to continue from.

    Both are None if training starts from the first step.
    """
    if config.training_args.do_only_eval:
        return Path(str(config.model_args.model_name_or_path)).expanduser(), None
    replaces = config.training_args.overwrite_output_dir
    if not replaces and (folder / STATE).is_file():
        check_same(config, folder, folder)
        return folder, None
    checkpoint = find_checkpoint(config, folder)
    if checkpoint is not None:
        check_same(config, checkpoint, folder)
    return None, checkpoint


def find_evaluation(config: Config, model: Path, target: Path) -> dict[str, Metrics] | None:
    """Return the metrics of a finished evaluation, unless it has to be done (again).

    Raises:
        UserError: The folder holds an evaluation on other data, or the rows of the table have changed.
    """
    from ntl.data import load_task

    done = read_results(target)
    if done is None:
        return None
    if not config.training_args.do_only_eval and is_same_evaluation(done, config, model, target):
        if config.dataset_args.dataset_name == "tabular":  # others may take minutes to read
            check_same_rows(load_task(config.dataset_args), model)
        found: dict[str, Metrics] = done["metrics"]
        return found
    if done["settings"]["dataset_args"] != config.plain()["dataset_args"]:
        raise UserError(
            f"{target} holds an evaluation on other data. Pass another evaluation.name, or delete it."
        )
    return None


def prepare(config: Config, arguments: Any, is_trained: bool, own: Path | None) -> tuple[Any, TaskData]:
    """Build the model, load the data and make the trainer with its loss; check that they fit together.

    Args:
        config: The settings.
        arguments: transformers' arguments.
        is_trained: Whether the model is only evaluated.
        own: The run's own model or checkpoint, if it is continued or evaluated.
    """
    from transformers import set_seed

    from ntl.data import add_shots, evenly_spaced, load_task
    from ntl.models import build
    from ntl.trainer import EncodedRows, LabTrainer

    set_seed(arguments.seed)
    # A table is read at once, and its errors should not wait for the model; other datasets may take minutes.
    table = load_task(config.dataset_args) if config.dataset_args.dataset_name == "tabular" else None
    built = build(config.model_args, None if is_trained else config.weights, arguments.seed)
    data = table or load_task(config.dataset_args)
    if data.note:
        log.info(data.note)
    if own is not None:
        check_same_rows(data, own)
    if not is_trained:
        built.fit(example.answer for example in data.train)
        remember(built, config, data)
    if shots := config.dataset_args.shots:
        data = add_shots(data, shots, built.answer_format.write)
    if empty := [name for name, part in parts_of(data).items() if not len(part)]:
        raise UserError(f"the {empty[0]} set has no examples; expected at least one.")
    evaluation = config.evaluation
    if config.model_args.head == "regression":
        evaluation = replace(evaluation, read=[])
    check_readings(built, data, evaluation)

    shown = list(evenly_spaced(data.validation, evaluation.samples_during_training))
    rows = {"eval_dataset": EncodedRows(shown, built)}
    if not is_trained:
        rows["train_dataset"] = EncodedRows(data.train, built)
    try:
        trainer = LabTrainer(
            arguments,
            built,
            lambda model, examples: score_answers(built, examples, data, evaluation, model),
            config.weights.head_learning_rate,
            **rows,
        )
    except (RuntimeError, ValueError, ImportError) as error:  # such as a tracker that is not installed
        raise UserError(f"training_args cannot be used: {describe(error)}") from None
    add_loss(trainer, config)
    return trainer, data


def answer_tests(trainer: Any, data: TaskData, evaluation: Evaluation) -> dict[str, Result]:
    """Answer the validation set and the test sets, and score the answers."""
    from ntl.data import evenly_spaced
    from ntl.scores import describe_test
    from ntl.trainer import EncodedRows

    results = {}
    for test, part in parts_of(data).items():
        examples = list(evenly_spaced(part, evaluation.samples))
        rows = EncodedRows(examples, trainer.built)
        measured = trainer.evaluate(rows, metric_key_prefix=f"test_{test}")
        terms = {name: measured.get(f"test_{test}_{name}") for name in LOSS_TERMS}
        terms = {name: value for name, value in terms.items() if value is not None and math.isfinite(value)}
        found = trainer.result
        metrics = {**found.metrics, **terms, **reference_metrics(data, examples)}
        results[test] = Result(metrics, found.predictions)
        log.info(describe_test(test, metrics, evaluation.interval if data.columns else None))
    return results


def parts_of(data: TaskData) -> dict[str, Sequence[Example]]:
    """Return the sets that are answered, by name."""
    return {"validation": data.validation, **data.tests}


def train(trainer: Any, checkpoint: Path | None) -> None:
    """Train from a checkpoint or the start to the last step; save the last model or, if asked, the best.

    Without steps, the model is saved as it is. What LoRA has learned is merged into the saved model.
    """
    trainer.shard()
    state = {} if checkpoint is None else json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    # A run that counts epochs takes the number of steps from the checkpoint.
    last = trainer.args.max_steps if trainer.args.max_steps > 0 else state.get("max_steps")
    if trainer.args.max_steps and (checkpoint is None or state["global_step"] < last):
        trainer.train_dataset.keep_states()
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    elif checkpoint is not None:  # killed after its last step; transformers would train one step more
        from transformers import TrainerState

        best = state["best_global_step"] if trainer.args.load_best_model_at_end else None
        trainer._load_from_checkpoint(
            str(checkpoint if best is None else checkpoint.with_name(f"{CHECKPOINT}{best}"))
        )
        trainer.state = TrainerState.load_from_json(str(checkpoint / STATE))
    if trainer.built.lora is not None:
        trainer.built.lora.merge()
        trainer.built.lora = None
    trainer.save_model()
    trainer.save_state()  # last: it says that training has ended


def add_loss(trainer: Any, config: Config) -> None:
    """Make the trainer of a language model number-aware; other models return their own loss."""
    from ntloss.trainers import make_number_aware

    built, loss = trainer.built, config.loss
    vocabulary = getattr(built, "vocabulary", None)
    if vocabulary is None:
        built.model.label_smoothing = loss.label_smoothing
        return
    if loss.options.get("sigma") == AUTO:
        loss = replace(
            loss, options={**loss.options, "sigma": tuple(built.model.config.ntl["trained"]["sigma"])}
        )
    padded = config.model_args.number_format == "padded"
    try:
        handle = make_number_aware(
            trainer, vocabulary=vocabulary, **library_options(loss, leading_zeros=padded)
        )
    except (ValueError, TypeError) as error:
        raise UserError(f"the loss cannot be used with this model: {error}") from error
    if loss.normalize_by == "numbers":
        trainer.divide_by_numbers(handle)


def remember(built: AnsweringModel, config: Config, data: TaskData) -> None:
    """Write into the model's configuration how it is trained, so that it can be continued and evaluated."""
    trained: dict[str, Any] = {"label": config.label, "name": config.name, "settings": config.plain()}
    trained["rows"] = fingerprint_rows(data)
    if config.loss.options.get("sigma") == AUTO and built.number_ids:
        trained["sigma"] = choose_widths(built.answer_format.write([e.answer for e in data.train]))
    # A new dictionary: copies of the configuration share the old one.
    built.model.config.ntl = {**built.model.config.ntl, "trained": trained}


def quiet(arguments: Any) -> None:
    """Let one process print, and transformers only warnings of training."""
    import datasets
    import transformers

    if not arguments.should_log:
        logging.getLogger("ntl").setLevel(logging.WARNING)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()  # of loading and saving weights, not of training
    (datasets.disable_progress_bar if arguments.disable_tqdm else datasets.enable_progress_bar)()


def find_checkpoint(config: Config, folder: Path) -> Path | None:
    """Return the checkpoint that is asked for or, unless the run is replaced, the latest complete one."""
    resume = config.training_args.resume_from_checkpoint
    if resume and config.training_args.overwrite_output_dir:
        raise UserError(
            f"training_args.resume_from_checkpoint={resume} is given together with "
            "training_args.overwrite_output_dir=true, which removes checkpoints. Omit one of the two."
        )
    if isinstance(resume, str):
        if not (Path(resume) / STATE).is_file():
            raise UserError(
                f"training_args.resume_from_checkpoint={resume} is not the folder of a checkpoint."
            )
        return Path(resume)
    complete = {}
    anew = config.training_args.overwrite_output_dir or resume is False
    for path in () if anew else folder.glob(f"{CHECKPOINT}*/{STATE}"):
        try:
            complete[int(json.loads(path.read_text(encoding="utf-8"))["global_step"])] = path.parent
        except (OSError, ValueError, LookupError, TypeError):
            continue  # training was killed while this file was written
    if resume is True and not complete:
        raise UserError(
            f"training_args.resume_from_checkpoint=true, but {folder} has no complete checkpoint. Correct "
            "training_args.output_dir, or omit the key to train from the start."
        )
    return complete[max(complete)] if complete else None


def read_trained(model: Path) -> dict[str, Any] | None:
    """Return how a model of the lab was trained, which its configuration holds: see `remember`."""
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    found: dict[str, Any] | None = config.get("ntl", {}).get("trained")
    return found


def check_same(config: Config, model: Path, folder: Path) -> None:
    """Raise a UserError if a model in the run's folder was trained with other settings."""
    trained, now = read_trained(model), config.plain()
    if trained is None:
        return
    before = trained["settings"]
    for group in ("dataset_args", "model_args", "weights", "loss", "training_args"):
        for key in sorted({*before[group], *now[group]}):
            there, here = before[group].get(key), now[group].get(key)
            if there != here and not (group == "training_args" and key in CHANGEABLE):
                raise UserError(
                    f"{model} was trained with other settings: {group}.{key} is {there!r} there, {here!r} "
                    "here. Pass another training_args.output_dir, or "
                    "training_args.overwrite_output_dir=true to replace it."
                )


def check_same_rows(data: TaskData, model: Path) -> None:
    """Raise a UserError if a model in the run's folder was trained with these settings on other rows."""
    rows = fingerprint_rows(data)
    if (read_trained(model) or {}).get("rows", rows) != rows:
        raise UserError(
            f"{model} was trained before the data changed. Pass another training_args.output_dir, or "
            "training_args.overwrite_output_dir=true to replace it."
        )


def fingerprint_rows(data: TaskData) -> str:
    """Hash all examples or, of larger sets, as many as are read at once."""
    from ntl.data import evenly_spaced, fingerprint

    parts = (data.train, *parts_of(data).values())
    return fingerprint(chain.from_iterable(evenly_spaced(part, MOST_HASHED) for part in parts))


def as_trained(config: Config, model: Path) -> Config:
    """Return how to evaluate a model: as the lab trained it, with its own loss, if the lab did."""
    found = read_trained(model)
    if found is None:
        return config
    given = found["settings"]
    asked = config.plain()
    own = {**given["model_args"], "model_name_or_path": str(model)}
    own |= {"tokenizer_name_or_path": None, "config_overrides": {}}
    own |= {"number_token_loss": False, "gaussian_label_smoother": False}  # `loss` says it, too
    groups = {**given, "model_args": own, "weights": {}}
    groups |= {name: asked[name] for name in ("dataset_args", "evaluation")}
    trained = read_config(groups, config.job, config.choice)
    trained.training_args = config.training_args
    trained.trained_with = {**given, **{name: asked[name] for name in ("dataset_args", "evaluation")}}
    trained.known_as = found["label"], found["name"]
    log.info(f"evaluating {trained.label}, by the loss that it was trained with")
    return trained


def is_same_evaluation(done: Mapping[str, Any], config: Config, model: Path, target: Path) -> bool:
    """Return whether results are those of this model on these data, decoded and scored in this way."""
    asked, held = config.plain(), done["settings"]
    without = ("batch_size", "samples_during_training")
    ways = [{k: v for k, v in each["evaluation"].items() if k not in without} for each in (asked, held)]
    is_own = done.get("model") == os.path.relpath(model, target)
    return is_own and ways[0] == ways[1] and asked["dataset_args"] == held["dataset_args"]


def describe_run(config: Config, trainer: Any, data: TaskData) -> dict[str, Any]:
    """Describe what was evaluated, for `metrics.json`."""
    settings = config.trained_with or config.plain()
    seconds = [entry["train_runtime"] for entry in trainer.state.log_history if "train_runtime" in entry]
    return {
        "label": config.label,
        "name": config.name,
        "dataset": config.dataset_args.title,
        "seed": settings["training_args"]["seed"],
        "job": config.job,
        "steps": trainer.state.global_step,
        "seconds": round(sum(seconds), 1),
        "parameters": sum(p.numel() for p in trainer.built.model.parameters()),
        "versions": {package: version(package) for package in ("ntloss", *PACKAGES)},
        "settings": settings,
        "fingerprints": data.fingerprints,
    }


def clear(folder: Path) -> None:
    """Remove a run with its checkpoints and evaluations, and no other files that are in its folder."""
    for path in [path for name in WRITTEN for path in folder.glob(name)]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    for path in [path.parent for path in folder.glob(f"*/{METRICS}")]:
        try:
            is_ours = read_results(path) is not None
        except UserError:
            continue  # somebody else's
        if is_ours:
            for name in (METRICS, PREDICTIONS, "train.log"):
                (path / name).unlink(missing_ok=True)
            shutil.rmtree(path / ".hydra", ignore_errors=True)
            if not any(path.iterdir()):
                path.rmdir()
