"""`ntl train`: one run, from its settings to the metrics of its test sets.

A run's folder holds the configuration of the latest command (`.hydra`), what transformers' Trainer writes
(checkpoints, the model, `trainer_state.json`), and a folder for each evaluation, see
`ntl.evaluate.write_results`. The same command continues an interrupted run, unless it has
`training_args.overwrite_output_dir=true`, which starts again.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ntl.errors import UserError, describe
from ntl.evaluate import (
    Metrics,
    Result,
    check_readings,
    read_results,
    score_answers,
    write_results,
)
from ntl.identity import (
    ASKED,
    ROWS,
    Identity,
    check_same,
    check_siblings,
    hash_rows,
    identify,
    learned_rows,
    leave_out_learned,
)
from ntl.layout import CHECKPOINT, HYDRA, LOG, PREDICTIONS, RESULTS, STATE
from ntl.losses import LabelNoise, add_loss, choose_widths
from ntl.settings import (
    AUTO,
    HEAD,
    PUBLISHED,
    Config,
    Evaluation,
    LossSettings,
    ModelArgs,
    Weights,
    check,
    read_trained,
)

if TYPE_CHECKING:
    from ntl.data import TaskData

log = logging.getLogger(__name__)
PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "datasets", "numpy")
OF_EVALUATION = ("dataset_args", "evaluation")  # groups whose settings are those of an evaluation
LOSS_TERMS = ("loss", "ce", "ce_numbers", "ce_text", "ntl", "perplexity")


def run(config: Config, folder: Path, target: Path) -> tuple[dict[str, Metrics], bool]:
    """Do what is left of a run: train or continue, then answer its test sets.

    Args:
        config: The settings.
        folder: Folder of the run.
        target: Folder of the evaluation.

    Returns:
        Maps each test set, and the validation set, to its metrics; and whether anything was done for that.

    Raises:
        UserError: The settings do not fit the data or each other, or the folder holds another run.
    """
    import datasets
    import numpy as np
    import transformers
    from accelerate import PartialState

    from ntl.trainer import trainer_arguments

    arguments = trainer_arguments(config, folder)
    if not arguments.should_log:  # one process prints
        logging.getLogger("ntl").setLevel(logging.WARNING)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()  # of loading and saving weights, not of training
    (datasets.disable_progress_bar if arguments.disable_tqdm else datasets.enable_progress_bar)()

    data = config.dataset_args.read()
    learned, answers = identify(config, data)
    trained, checkpoint = find_start(config, folder, learned)
    start: str | Path | None = config.model_args.model_name_or_path
    settings, is_own = config.plain(), True
    if trained is not None:
        before = read_trained(trained)
        if before is not None:
            learned, config = before["identity"], as_trained(config, trained, before)
            settings = {**before["settings"], **{key: settings[key] for key in OF_EVALUATION}}
        identity = {"model": learned, "answers": answers}
        if (done := find_evaluation(identity, trained, target)) is not None:
            log.info(f"{folder} is finished already")
            return done, False
        if before is not None:
            log.info(f"evaluating {config.label}, by the loss that it was trained with")
        start, is_own = trained, before is not None and learned[ROWS] == data.digest
    known = learned_rows(start)
    data = leave_out_learned(data, known, is_own)
    trainer = prepare(config, arguments, data, None if trained is not None else learned)

    PartialState().wait_for_everyone()  # no process writes before all have passed their checks
    if trained is None:
        new = hash_rows(data.train if arguments.max_steps else [])
        trainer.learned = np.union1d(new, known).astype(np.uint64)
        if arguments.should_save:
            if config.training_args.overwrite_output_dir:
                clear(folder)
            folder.mkdir(parents=True, exist_ok=True)
        PartialState().wait_for_everyone()
        train(trainer, checkpoint)
    elif (trained / STATE).is_file():
        trainer.state = transformers.TrainerState.load_from_json(str(trained / STATE))

    results = answer_tests(trainer, data, config.evaluation)
    if arguments.should_save:
        description = describe_run(config, trainer, data)
        own = [read_results(path.parent) for path in (trained or folder).glob(f"*/{RESULTS}")]
        # A run keeps the place that it had in reports at first.
        places = [each for each in (read_results(target), *own, description) if each is not None]
        earlier = min(places, key=lambda each: (each["sweep"], each["job"]))
        description |= {key: earlier[key] for key in ("sweep", "job")}
        description |= {"seed": settings["training_args"]["seed"], "settings": settings}
        description |= {"model": os.path.relpath(trained or folder, target)}
        description |= {"identity": {"model": learned, "answers": answers}}
        write_results(target, description, results)
    log.info(f"Metrics and predictions are in {target}")
    return {test: result.metrics for test, result in results.items()}, True


def find_start(config: Config, folder: Path, learned: Identity) -> tuple[Path | None, Path | None]:
    """Return the folder of the trained model, which is only evaluated, or the checkpoint to continue from.

    Both are None if training starts from the first step.

    Args:
        config: The settings.
        folder: Folder of the run.
        learned: The identity of the model that the settings train.

    Raises:
        UserError: The folder holds a model that is not the lab's, or another run.
    """
    training = config.training_args
    if training.do_only_eval:
        return Path(str(config.model_args.model_name_or_path)).expanduser(), None
    checkpoints = sorted(folder.glob(f"{CHECKPOINT}[0-9]*"))
    for path in (folder, *checkpoints):
        if any((path / file).is_file() for file in ("config.json", STATE)) and read_trained(path) is None:
            raise UserError(
                f"{path} holds a model that the lab has not trained, and that a run would replace. Pass "
                "another training_args.output_dir."
            )
    if training.overwrite_output_dir:
        return None, None
    check_siblings(learned, folder)
    if (folder / STATE).is_file() and not check_same(learned, folder):
        return folder, None
    complete = {}
    for path in checkpoints:
        try:
            complete[json.loads((path / STATE).read_text(encoding="utf-8"))["global_step"]] = path
        except (OSError, ValueError):
            continue  # training was killed before or while this file was written, which is the last one
    if not complete:
        return None, None
    latest = complete[max(complete)]
    check_same(learned, latest)
    return None, latest


def find_evaluation(identity: Mapping[str, Identity], model: Path, target: Path) -> dict[str, Metrics] | None:
    """Return the metrics of a finished evaluation of a model, unless it has to be done (again).

    Raises:
        UserError: The folder holds an evaluation of another model or on other data, which would be replaced.
    """
    done = read_results(target)
    if done is None:
        return None
    is_same_model = done["model"] == os.path.relpath(model, target)
    if not is_same_model or done["identity"]["answers"][ASKED] != identity["answers"][ASKED]:
        raise UserError(
            f"{target} holds an evaluation {'on other data' if is_same_model else 'of another model'}. Pass "
            "another evaluation.name, or delete it."
        )
    found: dict[str, Metrics] = done["metrics"]
    return found if done["identity"] == identity else None


def prepare(config: Config, arguments: Any, data: TaskData, learned: Identity | None) -> Any:
    """Build the model and make the trainer with its loss; check that they fit the data.

    Args:
        config: The settings.
        arguments: transformers' arguments.
        data: The examples.
        learned: The identity of the model that is trained; None for one that is only evaluated.

    Returns:
        The trainer.
    """
    from transformers import set_seed

    from ntl.data import evenly_spaced
    from ntl.models import build
    from ntl.trainer import EncodedRows, LabTrainer, XvalTrainer

    set_seed(arguments.seed)
    built = build(config.model_args, config.weights if learned is not None else None, arguments.seed)
    if data.note:
        log.info(data.note)
    rows: dict[str, Any] = {}
    if learned is not None:
        built.fit(example.answer for example in data.train)
        # What continues and evaluates the model reads how it was trained.
        trained: dict[str, Any] = {"label": config.label, "name": config.name, "settings": config.plain()}
        trained["identity"] = dict(learned)
        if config.loss.options.get("sigma") == AUTO and built.number_ids:
            trained["sigma"] = choose_widths(
                built.write([e.answer for e in data.train]), "loss.options={sigma: auto}"
            )
        # A new dictionary: copies of the configuration share the old one.
        built.model.config.ntl = {**built.model.config.ntl, "trained": trained}
        noise = None
        if config.loss.label_noise is not None:
            answers = [example.answer for example in data.train]
            noise = LabelNoise(answers, config.loss.label_noise, arguments.seed)
        rows["train_dataset"] = EncodedRows(data.train, built, noise)
        if config.training_args.packed:
            built.check_packing(rows["train_dataset"].__getitems__(range(min(2, len(data.train)))))
            rows["train_dataset"].packed = True
    if empty := [name for name, part in data.parts.items() if not len(part)]:
        raise UserError(f"the {empty[0]} set has no examples; expected at least one.")
    evaluation, kind = config.evaluation, LabTrainer
    if config.model_args.number_encoding == HEAD:
        evaluation = replace(evaluation, read=[])
    elif config.model_args.encoding == "xval":
        kind = XvalTrainer
    if evaluation.quantile_readings:
        check_readings(built, data, evaluation)

    shown = list(evenly_spaced(data.validation, evaluation.samples_during_training))
    rows["eval_dataset"] = EncodedRows(shown, built)
    try:
        trainer = kind(
            arguments, built, lambda examples: score_answers(built, examples, data, evaluation), **rows
        )
    except (RuntimeError, ImportError) as error:  # such as a tracker that is not installed
        raise UserError(f"training_args cannot be used: {describe(error)}") from None
    add_loss(trainer, config)
    return trainer


def answer_tests(trainer: Any, data: TaskData, evaluation: Evaluation) -> dict[str, Result]:
    """Answer the validation set and the test sets, and score the answers."""
    from ntl.data import evenly_spaced
    from ntl.metrics.answers import reference_scores
    from ntl.metrics.registry import describe_metrics, finite_or_none
    from ntl.trainer import EncodedRows

    results = {}
    for test, part in data.parts.items():
        examples = list(evenly_spaced(part, evaluation.samples))
        rows = EncodedRows(examples, trainer.built)
        measured = trainer.evaluate(rows, metric_key_prefix=f"test_{test}")
        terms = {name: measured.get(f"test_{test}_{name}") for name in LOSS_TERMS}
        terms = {name: value for name, value in terms.items() if value is not None and math.isfinite(value)}
        found = trainer.result
        metrics = {**found.metrics, **terms, **finite_or_none(reference_scores(data, examples))}
        results[test] = Result(metrics, found.predictions)
        log.info(f"{test}: {describe_metrics(metrics)}")
    return results


def train(trainer: Any, checkpoint: Path | None) -> None:
    """Train from a checkpoint or the start to the last step; save the last model or, if asked, the best.

    Without steps, the model is saved as it is. What LoRA has learned is merged into the saved model.
    """
    state = {} if checkpoint is None else json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    # A run that counts epochs takes the number of steps from the checkpoint.
    last = trainer.args.max_steps if trainer.args.max_steps > 0 else state.get("max_steps")
    if trainer.args.max_steps and (checkpoint is None or state["global_step"] < last):
        if (frozen := trainer.built.frozen) is not None:
            trainer.train_dataset.keep_states(frozen)
        trainer.started = time.perf_counter() - (seconds_of(state["log_history"]) if state else 0.0)
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


def as_trained(config: Config, folder_of_model: Path, found: Mapping[str, Any]) -> Config:
    """Return how to evaluate a model of the lab: as it was trained, with its own loss.

    Args:
        config: The settings of the evaluation.
        folder_of_model: Folder of the model.
        found: What `read_trained` returns of it.
    """
    given = found["settings"]
    own = {**given["model_args"], "model_name_or_path": str(folder_of_model)}
    own |= {"tokenizer_name_or_path": None, "config_overrides": {}}
    own |= {key: getattr(ModelArgs, key) for key in PUBLISHED}  # `loss` says it, too
    model, loss = ModelArgs(**own), LossSettings(**given["loss"])
    names = {key: found[key] for key in ("label", "name")}
    trained = replace(config, model_args=model, loss=loss, weights=Weights(), **names)
    check(trained)
    return trained


def describe_run(config: Config, trainer: Any, data: TaskData) -> dict[str, Any]:
    """Describe what was evaluated, for `metrics.json`."""
    from ntl.data import fingerprint

    state = trainer.state
    return {
        "label": config.label,
        "name": config.name,
        "sweep": config.sweep,
        "job": config.job,
        "dataset": config.dataset_args.title,
        "steps": state.global_step,
        "best_step": state.best_global_step if trainer.args.load_best_model_at_end else None,
        "seconds": round(seconds_of(state.log_history), 1),
        "parameters": sum(p.numel() for p in trainer.built.model.parameters()),
        "versions": {package: version(package) for package in ("ntloss", *PACKAGES)},
        "fingerprints": {name: fingerprint(examples) for name, examples in data.parts.items()},
    }


def seconds_of(log_history: Iterable[Mapping[str, Any]]) -> float:
    """Return the seconds of training, in all processes that continued a run; see `LabTrainer.log`."""
    return float(max((entry.get("seconds", 0.0) for entry in log_history), default=0.0))


def clear(folder: Path) -> None:
    """Remove a run's checkpoints and evaluations; files of others stay, and training replaces its own."""
    for path in folder.glob(f"{CHECKPOINT}[0-9]*"):
        path.unlink() if path.is_symlink() else shutil.rmtree(path)
    for path in [path.parent for path in folder.glob(f"*/{RESULTS}")]:
        if read_results(path) is not None:
            for file in (RESULTS, PREDICTIONS, LOG):
                (path / file).unlink(missing_ok=True)
            shutil.rmtree(path / HYDRA, ignore_errors=True)
            if not any(path.iterdir()):
                path.rmdir()
    for file in (STATE, "config.json"):  # by which a run is known
        (folder / file).unlink(missing_ok=True)
