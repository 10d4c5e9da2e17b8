"""What happens beside the updates of a run: its folder is kept up to date, and its progress is shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from tqdm.auto import tqdm
from transformers import ProgressCallback, TrainerCallback

from ntl.training.run_folder import RunFolder

# The first of these that a task has measures how many answers are right.
RIGHT = ("exact_final_answer", "exact_number", "exact_match")
ERRORS = ("mae", "log_mae")
REPORT_EVERY = 5  # updates between two progress reports


class RunRecorder(TrainerCallback):
    """Keeps `run.json` and the learning curve of a run's folder up to date.

    Args:
        folder: Folder of the run.
    """

    def __init__(self, folder: RunFolder):
        self.folder = folder
        self.seconds_before = self.started = 0.0

    def on_train_begin(self, args, state, control, **kwargs):
        """Start the clock."""
        self.started = time.monotonic()
        if args.should_save:
            self.seconds_before = self.folder.record().train_seconds

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        """Add a point to the learning curve."""
        if args.should_save and metrics:
            self.folder.add_to_curve({"step": state.global_step, **metrics})

    def on_save(self, args, state, control, **kwargs):
        """Record the steps and the seconds, from which a resumed run continues to count."""
        if args.should_save:
            seconds = round(self.seconds_before + time.monotonic() - self.started, 1)
            record = replace(self.folder.record(), steps=state.global_step, train_seconds=seconds)
            self.folder.write_record(record)

    def on_train_end(self, args, state, control, **kwargs):
        """Record that all steps are done."""
        self.on_save(args, state, control)


class LogPrinter(TrainerCallback):
    """Prints one line for each log, with the metrics that matter most."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Print the losses, or the metrics of an evaluation."""
        logs = logs or {}
        if not state.is_world_process_zero or "train_runtime" in logs:
            return
        if measured := {key[5:]: value for key, value in logs.items() if key.startswith("eval_")}:
            text = f"validation: {describe_metrics(measured, 'loss')}"
        else:
            text = ", ".join(f"{key} {logs[key]:.4g}" for key in ("loss", "learning_rate") if key in logs)
        tqdm.write(f"step {state.global_step}: {text}")  # above the bar, if there is one


class Bar(LogPrinter, ProgressCallback):
    """transformers' bar, with the lines of `LogPrinter` above it."""


class ProgressReporter(TrainerCallback):
    """Reports the share of the updates that are done.

    Args:
        report: Function that takes the share.
    """

    def __init__(self, report: Callable[[float], None]):
        self.report = report

    def on_step_end(self, args, state, control, **kwargs):
        """Report, if due after this update."""
        if state.global_step % REPORT_EVERY == 0 or state.global_step == state.max_steps:
            self.report(state.global_step / state.max_steps)


def describe_metrics(metrics: Mapping[str, float | None], *more: str) -> str:
    """Return the metrics that matter most, and those named in `more`, as one line."""
    given = [name for name in metrics if metrics[name] is not None]
    right = [name for name in RIGHT if name in given][:1]
    errors = ["rougeL"] if right == ["exact_match"] else ERRORS  # the task compares texts, or numbers
    shown = [name for name in (*more, *right, *errors) if name in given]
    return ", ".join([f"{metrics['count']} questions", *(f"{name} {metrics[name]:.4g}" for name in shown)])
