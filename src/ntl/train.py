"""`ntl train`: one run, or the runs of a sweep, as a Hydra application.

A run loads the data and the model, trains or continues, evaluates, and writes what `training/run_folder.py`
lists into the folder that Hydra chose for it.
"""

from __future__ import annotations

import logging
import math
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from ntl import sweep
from ntl.config import Config, read_config
from ntl.data.files import only_writer_in
from ntl.errors import UserError, describe
from ntl.program import is_first_process, run_hydra, run_program
from ntl.training.run_folder import (
    ERROR,
    EvaluationFolder,
    Metrics,
    RunFolder,
    RunRecord,
    hash_table,
    read_trained,
)

if TYPE_CHECKING:
    from torch import nn

    from ntl.approaches import Approach
    from ntl.data import TaskData
    from ntl.evaluation import EvaluationResult
    from ntl.training.trainer import ApproachTrainer

log = logging.getLogger(__name__)
PUBLISHED = "run_language_modeling.py"  # the paper's name of the program
# The folder of this process's single run, or None for a sweep; empty before either.
_running: list[RunFolder | None] = []


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program on Hydra's options and overrides; see `train`."""
    return train("train", arguments)


def train(
    name: str,
    arguments: Sequence[str] | None,
    translate: Callable[[Sequence[str]], Sequence[str]] = list,
) -> int:
    """Run a program that trains, `ntl train` or a preset of it; see `ntl.program.run_program`.

    Args:
        name: Name of the program, and of its primary file in `conf/`.
        arguments: What follows the program's name. None: `sys.argv[1:]`.
        translate: Function from the arguments to Hydra's options and overrides.

    Returns:
        The exit code: 1 if a run of a sweep is not finished, otherwise that of `run_program`.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    program = ["python", sys.argv[0]] if Path(sys.argv[0]).name == PUBLISHED else ["ntl", name]

    def run_sweep_or_run(arguments: Sequence[str]) -> int:
        _running.clear()
        try:
            return run_hydra(name, task, translate(arguments))
        finally:
            if sweep.is_watched():  # its runs may be in other processes
                _running[:] = [None]
            sweep.stop()

    advice = partial(_advice, shlex.join([*program, *arguments]))
    return run_program(f"ntl {name}", run_sweep_or_run, arguments, advice)


def _advice(command: str) -> str:
    """Say how to continue an interrupted run, if it has saved something."""
    if not _running or (_running[0] is not None and _running[0].last_checkpoint() is None):
        return "Nothing was saved yet; the same command starts anew."
    return f"To continue from what is saved: {command}"


def task(composed: DictConfig) -> float:
    """Do one run, Hydra's job, in the folder that Hydra chose.

    Returns:
        The validation metric that a sweeper minimizes, which `minimize` names; the worst value if it is
        undefined. In a sweep, so does a run that fails, and the others go on; `error.txt` in its folder says
        why.
    """
    hydra = HydraConfig.get()
    # Optuna ends the whole search at a NaN.
    worst = -math.inf if "maximize" in str(hydra.sweeper.get("direction")) else math.inf
    path = Path(hydra.runtime.output_dir)
    folder = RunFolder(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
    choices = hydra.runtime.choices
    objective = choices.get("loss") if choices["objective"] == "none" else choices["objective"]
    _running[:] = [folder] if hydra.mode != RunMode.MULTIRUN else [None]
    try:
        with only_writer_in(folder.path) if is_first_process() else nullcontext():
            (folder.path / ERROR).unlink(missing_ok=True)
            if hydra.mode == RunMode.MULTIRUN:
                _leave_the_terminal_to_the_sweep()
                composed.training_args.disable_tqdm = True
            config = replace(read_config(composed, objective), job=hydra.job.get("num", 0))
            metrics = run(config, folder).get("validation", {})
    except Exception as error:
        if hydra.mode != RunMode.MULTIRUN and isinstance(error, UserError):
            raise SystemExit(2) from error  # Hydra prints all overrides above other errors
        if hydra.mode != RunMode.MULTIRUN:
            raise
        log.exception("failed")
        message = str(error) if isinstance(error, UserError) else describe(error)
        (folder.path / ERROR).write_text(message, encoding="utf-8")
        return worst
    value = metrics.get(composed.minimize)
    return worst if value is None else value


def _leave_the_terminal_to_the_sweep() -> None:
    """Print into train.log only: the sweep shows the progress of its runs."""
    root = logging.getLogger()
    for handler in [each for each in root.handlers if type(each) is logging.StreamHandler]:
        root.removeHandler(handler)


def run(config: Config, folder: RunFolder) -> dict[str, Metrics]:
    """Do what is left of a run.

    Args:
        config: The configuration.
        folder: Folder of the run or, with `training_args.do_only_eval`, of the evaluation.

    Returns:
        Maps each test set to its metrics.
    """
    from accelerate import PartialState

    from ntl.training.start import Start, decide

    is_run = not config.training_args.do_only_eval
    arguments = trainer_arguments(config, folder)
    start = decide(config, folder) if is_run else Start("evaluate")
    evaluation = folder.evaluation(config.evaluation.name) if is_run else EvaluationFolder(folder.path)
    if start.task == "nothing":
        log.info(f"{folder} is finished already")
        return evaluation.metrics()
    _quiet(arguments)
    record = new_record(config)
    if start.task == "evaluate":
        path = folder.path if is_run else config.model_args.model_name_or_path
        config, record = as_trained(config, str(path))
    approach, data = build(config, arguments, train=start.task == "train")
    record = replace(record, parameters=sum(p.numel() for p in approach.model.parameters()))
    # No process writes before all have passed their checks.
    PartialState().wait_for_everyone()
    model, trainer, known = approach.model.to(arguments.device), None, {}
    if start.task == "train":
        _count_steps(config, arguments, len(data.train))
        trainer = make_trainer(config, arguments, data, approach, folder)
        if arguments.should_save:
            continues = start.checkpoint is not None and folder.holds_run()
            seconds = folder.record().train_seconds if continues else 0.0
            if config.training_args.overwrite_output_dir:
                folder.clear()
            folder.write(record, train_seconds=seconds)
        PartialState().wait_for_everyone()
        trainer.train_from(start.checkpoint)
        model, record, known = trainer.model_wrapped, folder.record(), measured_last(trainer, config, data)
        if arguments.should_save:
            folder.update(status="trained")
    results = answer_tests(config, data, approach, evaluation, record, model, known)
    track(results, arguments, record.steps, trainer, approach)
    if is_run and arguments.should_save:
        folder.update(status="finished")
    log.info(f"Metrics and predictions are in {evaluation}")
    return results


def _count_steps(config: Config, arguments: Any, rows: int) -> None:
    """Set the number of steps of a run that counts epochs, at least `training_args.min_steps`."""
    if arguments.max_steps < 0 and config.training_args.min_steps is not None:
        size = arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
        steps = math.ceil(math.ceil(rows / size) * arguments.num_train_epochs)
        arguments.max_steps = max(steps, config.training_args.min_steps)


def measured_last(trainer: ApproachTrainer, config: Config, data: TaskData) -> dict[str, EvaluationResult]:
    """Return the result of the validation set if the trained model has already answered all of it."""
    from ntl.data import evenly_spaced

    evaluation, last = config.evaluation, trainer.last_measured
    asked = (evaluation.samples_during_training, evaluation.samples)
    during, after = (len(evenly_spaced(data.validation, count)) for count in asked)
    is_last = last is not None and last[0] == trainer.state.global_step
    changed = trainer.args.load_best_model_at_end or config.weights.lora
    return {"validation": last[1]} if is_last and during == after and not changed else {}


def track(
    results: dict[str, Metrics],
    arguments: Any,
    steps: int,
    trainer: ApproachTrainer | None,
    approach: Approach,
) -> None:
    """Send the metrics of the test sets to the trackers of `training_args.report_to`."""
    from transformers import TrainerControl, TrainerState
    from transformers.integrations import get_reporting_integration_callbacks

    if trainer is None:
        trackers = [tracker() for tracker in get_reporting_integration_callbacks(arguments.report_to)]
    else:
        trackers = trainer.callback_handler.callbacks
    # Trackers show `test_X` as X in the section `test`.
    named = {f"test_{test}/{name}": x for test, found in results.items() for name, x in found.items()}
    logs = {name: value for name, value in named.items() if value is not None}
    state = TrainerState(global_step=steps, is_world_process_zero=arguments.process_index == 0)
    for tracker in trackers:
        tracker.on_log(arguments, state, TrainerControl(), logs=dict(logs), model=approach.model)


def as_trained(config: Config, path: str) -> tuple[Config, RunRecord]:
    """Return how to evaluate a model: as the run trained it, with its own loss, if a run did.

    Args:
        config: The configuration, whose data and evaluation are kept.
        path: Folder of the run or of a checkpoint, or any other model.
    """
    trained = read_trained(path)
    if trained is None:
        return config, new_record(config)
    log.info(f"evaluating {trained.config.label}, trained for {trained.record.steps} steps, by its own loss")
    asked = {key: config.given[key] for key in ("dataset_args", "evaluation")}
    given = {**trained.record.config, **asked}
    kept = {key: getattr(config, key) for key in ("dataset_args", "evaluation", "training_args")}
    data = config.dataset_args
    record = replace(trained.record, dataset=data.title, table=hash_table(data))
    return replace(trained.config, given=given, **kept), record


def _quiet(arguments: Any) -> None:
    """Let one process print, and transformers only warnings of training."""
    import datasets
    import transformers

    if not arguments.should_log:
        logging.getLogger("ntl").setLevel(logging.WARNING)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()  # of loading and saving weights, not of training
    (datasets.disable_progress_bar if arguments.disable_tqdm else datasets.enable_progress_bar)()


def trainer_arguments(config: Config, folder: RunFolder) -> Any:
    """Make transformers' arguments. Under `torchrun`, this initializes the process group."""
    import torch
    from transformers import Seq2SeqTrainingArguments

    from ntl.errors import unknown_key
    from ntl.scores import larger_is_better

    given = config.training_args.of_trainer()
    known = [*Seq2SeqTrainingArguments.__dataclass_fields__]
    if unknown := [key for key in given if key not in known]:
        raise unknown_key("training_args.", unknown[0], known)
    best = given["metric_for_best_model"]
    if given["greater_is_better"] is None and best is not None:
        given["greater_is_better"] = larger_is_better(best)
        if given["greater_is_better"] is None:
            raise UserError(
                f"training_args.metric_for_best_model={best}: whether larger values are better is not known. "
                "Pass training_args.greater_is_better=true or false."
            )
    if given["lr_scheduler_type"] == "reduce_lr_on_plateau":
        mode = "max" if given["greater_is_better"] else "min"
        published = {"factor": 0.5, "patience": 5}
        given["lr_scheduler_kwargs"] = {"mode": mode, **(given["lr_scheduler_kwargs"] or published)}
    given |= {
        "output_dir": str(folder),
        "remove_unused_columns": False,
        "report_to": [] if given["report_to"] in (None, "none") else given["report_to"],
        "disable_tqdm": not sys.stderr.isatty() if given["disable_tqdm"] is None else given["disable_tqdm"],
        "label_smoothing_factor": 0.0,  # the lab's loss smooths
    }
    given.setdefault("dataloader_pin_memory", torch.cuda.is_available() and not given.get("use_cpu"))
    try:
        return Seq2SeqTrainingArguments(**given)
    except Exception as error:  # transformers raises many types
        raise UserError(f"training_args cannot be used: {describe(error)}") from None


def build(config: Config, arguments: Any, train: bool) -> tuple[Approach, TaskData]:
    """Build the model and load the data, with what the answers' format depends on."""
    from transformers import set_seed

    from ntl.approaches import build_approach
    from ntl.data import add_shots, load_task
    from ntl.evaluation import check_readings

    set_seed(arguments.seed)
    settings = config.dataset_args
    table = load_task(settings) if settings.dataset_name == "tabular" else None
    approach = build_approach(config.model_args, config.loss, config.weights, config.training_args.seed)
    data = load_task(settings) if table is None else table  # after the model: others may take minutes
    if train:
        approach.fit(example.answer for example in data.train)
    if shots := config.dataset_args.shots:
        data = add_shots(data, shots, approach.answer_format.write)
    check_readings(approach, data, config.evaluation)
    return approach, data


def new_record(config: Config) -> RunRecord:
    """Make the record that `run.json` holds at the start of a run."""
    from importlib.metadata import version

    import ntloss

    packages = ("torch", "transformers", "tokenizers", "accelerate", "datasets", "numpy")
    return RunRecord(
        label=config.label,
        objective=config.objective,
        dataset=config.dataset_args.title,
        seed=config.training_args.seed,
        job=config.job,
        config=config.given,
        table=hash_table(config.dataset_args),
        versions={"ntloss": ntloss.__version__, **{package: version(package) for package in packages}},
    )


def make_trainer(
    config: Config, arguments: Any, data: TaskData, approach: Approach, folder: RunFolder
) -> ApproachTrainer:
    """Encode the data, and make the trainer."""
    from ntl.data import evenly_spaced
    from ntl.evaluation import evaluate
    from ntl.training.state_cache import add_states
    from ntl.training.token_cache import tokenize
    from ntl.training.trainer import ApproachTrainer

    cache = Path(config.dataset_args.cache_dir).expanduser()
    with arguments.main_process_first(desc="tokenize"):
        training, validation = (
            tokenize(examples, approach, cache) for examples in (data.train, data.validation)
        )
        if arguments.max_steps:
            training = add_states(training, approach, cache, config.weights.state_cache_gb)
    shown = evenly_spaced(data.validation, config.evaluation.samples_during_training)

    def measure(model: nn.Module) -> EvaluationResult:
        return evaluate(approach, shown, data, config.evaluation, model)

    parts = {"train_dataset": training, "eval_dataset": validation}
    try:
        return ApproachTrainer(
            arguments, approach, measure, folder, config.weights.head_learning_rate, **parts
        )
    except (RuntimeError, ValueError, ImportError) as error:  # a tracker is not installed
        raise UserError(f"training_args cannot be used: {describe(error)}") from None


def answer_tests(
    config: Config,
    data: TaskData,
    approach: Approach,
    folder: Any,
    record: RunRecord,
    model: nn.Module,
    known: Mapping[str, EvaluationResult],
) -> dict[str, Metrics]:
    """Evaluate the validation and test sets, except for what is known, and write the results."""
    from ntl.data import evenly_spaced
    from ntl.evaluation import evaluate_tests
    from ntl.scores import describe_test
    from ntl.training.state_cache import add_states

    cache, largest = Path(config.dataset_args.cache_dir).expanduser(), config.weights.state_cache_gb
    parts = {"validation": data.validation, **data.tests}
    tests = {name: evenly_spaced(part, config.evaluation.samples) for name, part in parts.items()}
    data, record = replace(data, tests=tests), replace(record, config=config.given)

    def prepare(rows: Any) -> Any:
        return add_states(rows, approach, cache, largest, optional=True)

    results, started = {}, time.monotonic()
    given = (approach, data, config.evaluation, folder, record, model, prepare, known)
    for test, metrics in evaluate_tests(*given):
        line = describe_test(test, metrics, config.evaluation.interval if data.columns else None)
        log.info(f"{line}, {time.monotonic() - started:.1f} s")
        results[test], started = metrics, time.monotonic()
    return results
