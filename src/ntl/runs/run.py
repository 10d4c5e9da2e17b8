"""Execute a run: load the data and the model, train or resume, evaluate, and write the results."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import datasets
import torch
import transformers
from accelerate import PartialState
from torch import nn
from torch.utils.data import DataLoader
from transformers import (
    Seq2SeqTrainingArguments,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    get_scheduler,
    set_seed,
)
from transformers.integrations import get_reporting_integration_callbacks

from ntl.approaches import Approach, build_approach
from ntl.config.settings import RunSettings, loss_name
from ntl.data import TaskData, evenly_spaced, load_task
from ntl.data.files import only_writer_in
from ntl.errors import UserError, describe
from ntl.evaluation import check_readings, evaluate, evaluate_tests
from ntl.scores import describe_metrics
from ntl.training.folders import check_checkpoint, check_folder, evaluated_loss, open_evaluation, open_folder
from ntl.training.run_folder import Metrics, RunFolder
from ntl.training.state_cache import add_states
from ntl.training.token_cache import tokenize
from ntl.training.trainer import ApproachTrainer

PLATEAU = {"factor": 0.5, "patience": 5}  # options of the published reduce_lr_on_plateau schedule


def run(settings: RunSettings, on_progress: Callable[[float], None] | None = None) -> dict[str, Metrics]:
    """Execute a run, or the part of it that is not done yet.

    Args:
        settings: Settings from `ntl.config.settings.read_settings`.
        on_progress: Called with the share of the updates that are done, and nothing is printed. Default:
            show a bar in a terminal, and print the logged losses and the metrics of each test set.

    Returns:
        Maps each test set to its metrics.
    """
    checkpoint = check_folder(settings)
    arguments = training_arguments(settings)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()  # of loading and saving weights, not of training
    quiet = arguments.disable_tqdm or on_progress is not None
    (datasets.disable_progress_bar if quiet else datasets.enable_progress_bar)()
    set_seed(arguments.seed)
    loss = evaluated_loss(settings) if settings.only_evaluate else settings.loss
    if loss != settings.loss and on_progress is None and arguments.should_log:
        print(f"The loss is that of the run, {loss_name(loss) or 'cross-entropy'}.")
    approach = build_approach(settings.model, loss)
    data = load_task(settings.data)  # last, because it may take minutes
    if data.note and on_progress is None:
        print(data.note)
    if not settings.only_evaluate:
        approach.fit(example.answer for example in data.train)
        if data.columns:  # saved with the model, for `ntl predict`; as pairs, because JSON is sorted
            approach.model.config.ntl = {**approach.model.config.ntl, "columns": [*data.columns.items()]}
    if checkpoint is not None:
        check_checkpoint(checkpoint, approach.model)
    check_readings(approach, data, settings.generation)
    # No process writes before all have passed their checks.
    PartialState().wait_for_everyone()
    model: nn.Module = approach.model.to(arguments.device)
    say = print if on_progress is None and arguments.should_log else lambda line: None
    if settings.only_evaluate:
        trackers = [tracker() for tracker in get_reporting_integration_callbacks(arguments.report_to)]
        return answer_tests(settings, arguments, data, approach, model, trackers, say)
    with only_writer_in(settings.output_dir) if arguments.should_save else nullcontext():
        if arguments.should_save:
            if check_folder(settings) != checkpoint:  # another process has written since the first check
                raise UserError(f"{settings.output_dir} has changed meanwhile. Repeat the command.")
            open_folder(settings, approach)
        PartialState().wait_for_everyone()
        trainer = train(settings, arguments, data, approach, checkpoint, on_progress)
        model, trackers = trainer.model_wrapped, trainer.callback_handler.callbacks
        return answer_tests(settings, arguments, data, approach, model, trackers, say)


def training_arguments(settings: RunSettings) -> Seq2SeqTrainingArguments:
    """Make the trainer's arguments. Under `torchrun`, this initializes the process group."""
    given = dict(settings.trainer)
    given |= {
        "output_dir": str(settings.output_dir),
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
        _try_arguments(arguments)
    except Exception as error:  # transformers raises many types
        raise UserError(
            f"training_args cannot be used ({describe(error)}). Its keys are those of "
            "transformers' Seq2SeqTrainingArguments; correct or omit the one that the message names."
        ) from None
    return arguments


def _try_arguments(arguments: Seq2SeqTrainingArguments) -> None:
    """Try the arguments that transformers would use only after everything is loaded."""
    optimizer: torch.optim.Optimizer = torch.optim.SGD([torch.zeros(1)])
    if arguments.optim_target_modules is None:  # target modules need the model itself
        kind, options = ApproachTrainer.get_optimizer_cls_and_kwargs(arguments, nn.Linear(1, 1))
        optimizer = kind([torch.zeros(1)], **options)
    schedule = arguments.lr_scheduler_type, optimizer, 1, 2
    get_scheduler(*schedule, scheduler_specific_kwargs=arguments.lr_scheduler_kwargs)
    workers = arguments.dataloader_num_workers
    DataLoader([0], num_workers=workers, persistent_workers=arguments.dataloader_persistent_workers)
    arguments.get_process_log_level()
    for tracker in get_reporting_integration_callbacks(arguments.report_to):
        tracker()


def train(
    settings: RunSettings,
    arguments: Seq2SeqTrainingArguments,
    data: TaskData,
    approach: Approach,
    checkpoint: Path | None,
    on_progress: Callable[[float], None] | None,
) -> ApproachTrainer:
    """Train from the start or from a checkpoint, save the model in the run's folder; return the trainer."""
    cache = Path(settings.data["cache_dir"]).expanduser()
    with arguments.main_process_first(desc="tokenize"):
        training, validation = (
            tokenize(examples, approach, settings.model, cache) for examples in (data.train, data.validation)
        )
        if arguments.max_steps:
            training = add_states(training, approach, cache, settings.state_cache_gb)
    shown = evenly_spaced(data.validation, settings.samples_during_training)

    def measure(model: nn.Module) -> Metrics:
        return evaluate(approach, shown, data, settings.generation, model).metrics

    trainer = ApproachTrainer(
        arguments,
        approach,
        measure,
        RunFolder(settings.output_dir),
        on_progress,
        settings.head_learning_rate,
        train_dataset=training,
        eval_dataset=validation,
    )
    trainer.train_from(checkpoint)
    return trainer


def answer_tests(
    settings: RunSettings,
    arguments: Seq2SeqTrainingArguments,
    data: TaskData,
    approach: Approach,
    model: nn.Module,
    trackers: Sequence[TrainerCallback],
    say: Callable[[str], None],
) -> dict[str, Metrics]:
    """Evaluate the validation and test sets that are not evaluated yet, and write and track the results."""
    parts = {"validation": data.validation, **data.tests}
    data = replace(data, tests={name: evenly_spaced(part, settings.samples) for name, part in parts.items()})
    folder, record = open_evaluation(settings, data)
    results, started = {}, time.monotonic()
    identity = {"steps": record.steps}
    with only_writer_in(folder.path) if arguments.should_save and settings.only_evaluate else nullcontext():
        if arguments.should_save and not folder.holds_run():
            folder.write_record(record)
        for test, metrics, is_new in evaluate_tests(
            approach, data, settings.generation, folder, identity, model
        ):
            took = f"{time.monotonic() - started:.1f} s" if is_new else "answered before"
            say(f"{test}: {describe_metrics(metrics)}, {took}")
            results[test], started = metrics, time.monotonic()
        if arguments.should_save:
            folder.write_record(replace(record, status="finished"))
    say(f"Metrics and predictions are in {folder.path}")
    # As the trainer's logs: trackers show `test_X` as X in the section `test`.
    logs = {
        f"test_{t}/{name}": x for t, found in results.items() for name, x in found.items() if x is not None
    }
    state = TrainerState(global_step=record.steps, is_world_process_zero=arguments.process_index == 0)
    for tracker in trackers:
        tracker.on_log(arguments, state, TrainerControl(), logs=dict(logs), model=approach.model)
    return results
