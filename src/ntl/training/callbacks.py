"""What happens beside the updates of a run: its folder is kept up to date, and its progress is shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from tqdm.auto import tqdm
from transformers import ProgressCallback, Seq2SeqTrainingArguments, TrainerCallback

from ntl.training.run_folder import RunFolder

SHOWN = (
    "exact_final_answer", "final_answer_accuracy", "exact_number", "accuracy", "log_mae", "log_r2",
    "invalid_rate", "rougeL", "loss",
)  # fmt: skip
REPORT_EVERY = 5  # updates between two progress reports


class RunRecorder(TrainerCallback):
    """Keeps `run.json` and the learning curve of a run's folder up to date.

    Args:
        folder: Folder of the run.
        is_writer: Whether this process writes; exactly one does.
    """

    def __init__(self, folder: RunFolder, is_writer: bool):
        self.folder = folder
        self.is_writer = is_writer
        self.seconds_before = folder.record().train_seconds if is_writer else 0.0
        self.started = time.monotonic()

    def on_train_begin(self, args, state, control, **kwargs):
        """Start the clock."""
        self.started = time.monotonic()

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        """Add a point to the learning curve."""
        if self.is_writer and metrics:
            self.folder.add_to_curve({"step": state.global_step, **metrics})

    def on_save(self, args, state, control, **kwargs):
        """Record the progress, from which a resumed run continues to count."""
        self.write(state.global_step)

    def on_train_end(self, args, state, control, **kwargs):
        """Record that all steps are done."""
        self.write(state.global_step)

    def write(self, steps: int) -> None:
        """Write the number of steps and the training time to `run.json`."""
        if self.is_writer:
            seconds = round(self.seconds_before + time.monotonic() - self.started, 1)
            self.folder.write_record(replace(self.folder.record(), steps=steps, train_seconds=seconds))


class LogPrinter(TrainerCallback):
    """Prints one line for each log, with the metrics that matter most."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Print the losses, or the metrics of an evaluation."""
        logs = logs or {}
        if not state.is_world_process_zero or "train_runtime" in logs:
            return
        if measured := {key[5:]: value for key, value in logs.items() if key.startswith("eval_")}:
            text = f"validation: {describe_metrics(measured)}"
        else:
            text = ", ".join(f"{key} {logs[key]:.4g}" for key in ("loss", "learning_rate") if key in logs)
        tqdm.write(f"step {state.global_step}: {text}")  # above the bar, if there is one


class Bar(ProgressCallback):
    """transformers' bar, which leaves the logs to `LogPrinter`."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Do nothing."""


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


def progress_callbacks(
    arguments: Seq2SeqTrainingArguments, on_progress: Callable[[float], None] | None
) -> list[TrainerCallback]:
    """Return the callbacks that show a run's progress, see `ntl.training.run.run`."""
    if on_progress is not None:
        return [ProgressReporter(on_progress)]
    return [LogPrinter()] if arguments.disable_tqdm else [Bar(), LogPrinter()]


def describe_metrics(metrics: Mapping[str, float | None]) -> str:
    """Return the metrics that matter most as one line."""
    return ", ".join(f"{name} {metrics[name]:.4f}" for name in SHOWN if metrics.get(name) is not None)
