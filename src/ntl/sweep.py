"""What a sweep shows and reports, whichever of Hydra's launchers executes its runs.

The runs write how far they are into their folders. A thread of the command reads that, and shows the progress
of all runs. At the end the finished runs are reported, and those that failed are named.
"""

from __future__ import annotations

import math
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import get_overrides_dirname
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from ntl.config import job_folder
from ntl.errors import UserError, describe, writing_to
from ntl.terminal import console
from ntl.training.run_folder import ERROR, RunFolder, RunRecord

INTERVAL = 2.0  # seconds between two readings of the folders
LINE_EVERY = 30.0  # seconds between two lines of progress without a terminal
_started: list[Watch] = []  # that of this process: a thread cannot be sent to the processes of a launcher


class SweepCallback(Callback):
    """Checks the folder of a run or a sweep; shows the progress of a sweep, and reports it at the end."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Check the folder, before Hydra writes into it."""
        with _hydra_ends():
            _check_folder(config.hydra.run)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Check the folder and what the report will test, and start to watch the folder."""
        from ntl.report.contrasts import read_contrasts

        with _hydra_ends():
            read_contrasts(OmegaConf.to_container(config.contrasts, resolve=True))
            _check_folder(config.hydra.sweep)
        _started.append(Watch(Path(config.hydra.sweep.dir), name_runs(config)))

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Report the finished runs. If one failed, exit with 1 after naming it."""
        from ntl.report.program import report

        folder, ok = Path(config.hydra.sweep.dir), True
        _started[-1].end()
        contrasts = OmegaConf.to_container(config.contrasts, resolve=True)
        try:
            name = config.evaluation.name
            report(
                [folder], folder / "report", name, in_order=True, contrasts=contrasts, margin=config.margin
            )
        except Exception as error:  # Hydra would only warn of it
            print(f"no report: {describe(error)}", file=sys.stderr)
            ok = False
        if stop() or not ok:
            raise SystemExit(1)


@contextmanager
def _hydra_ends() -> Iterator[None]:
    """Let a UserError in a callback end the program: Hydra only warns of all but SystemExit."""
    try:
        yield
    except UserError as error:
        raise SystemExit(2) from error


def _check_folder(settings: DictConfig) -> None:
    """Raise a UserError if a folder of Hydra, its key `dir`, cannot be written to."""
    try:
        folder = Path(settings.dir)
    except OmegaConfBaseException:
        return  # Hydra will explain it
    with writing_to(folder, "a folder that can be written to", "Choose another one."):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()


class Watch:
    """A thread that reads the progress of the runs in a folder and shows it.

    Args:
        folder: The sweep's folder.
        names: Names of the runs' folders in it; None, for all of them, if they are not known in advance.
    """

    def __init__(self, folder: Path, names: set[str] | None):
        self.folder, self.names = folder, names
        self._shown = _finished(self._read())  # runs that have ended
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)
        self._thread.start()

    def _with(self, file: str) -> list[Path]:
        """Return the folders of runs that hold a file; there can be runs of earlier sweeps beside them."""
        runs = sorted(path.parent for path in self.folder.glob(f"*/{file}"))
        return [run for run in runs if self.names is None or run.name in self.names]

    def _read(self) -> dict[Path, RunRecord]:
        found = {}
        for run in self._with("run.json"):
            try:
                found[run] = RunFolder(run).record()
            except UserError:
                continue  # damaged: its own run says so
        return found

    def _show(self) -> None:
        out, shown_at = console(stderr=True), -math.inf
        # Speeds differ between runs: the time that is left follows from the mean over all of them.
        with Progress(
            "{task.percentage:3.0f}% of all updates", BarColumn(), "{task.description},", TimeElapsedColumn(),
            TextColumn("about"), TimeRemainingColumn(), TextColumn("left"),
            console=out, speed_estimate_period=math.inf, disable=not out.is_terminal,
        ) as bar:  # fmt: skip
            task = bar.add_task("0 runs finished")
            while True:
                ended = self._ended.wait(INTERVAL)
                records = self._read()
                self._announce(records, out)
                total = len(records if self.names is None else self.names) or 1
                done = sum(map(_share, records.values()))
                text = f"{len(_finished(records))} of {total} runs finished"
                bar.update(task, completed=done, total=total, description=text)
                if not out.is_terminal and (ended or time.monotonic() - shown_at > LINE_EVERY):
                    shown_at, elapsed = time.monotonic(), int(bar.tasks[task].elapsed or 0)
                    out.print(f"{done / total:4.0%} of all updates, {text}, {timedelta(seconds=elapsed)}")
                if ended:
                    return

    def _announce(self, records: dict[Path, RunRecord], out: Console) -> None:
        """Print a line for each run that has ended since the last reading."""
        failed = {*self._with(ERROR)}
        ended = failed | _finished(records)
        for run in sorted(ended - self._shown):
            text = f"FAILED: {read_error(run)}" if run in failed else _summary(run, records[run])
            out.print(Text(f"{run.name}: {text}", "red" if run in failed else ""), soft_wrap=True)
        self._shown = ended

    def end(self) -> None:
        """Stop watching."""
        self._ended.set()
        self._thread.join()

    def unfinished(self) -> dict[Path, str]:
        """Map the folders of the runs that are not finished to why."""
        found = {run: r.status for run, r in self._read().items() if r.status != "finished"}
        return found | {run: read_error(run) for run in self._with(ERROR)}


def read_error(run: Path) -> str:
    """Read why a run failed."""
    return (run / ERROR).read_text(encoding="utf-8").strip()


def is_watched() -> bool:
    """Return whether a sweep has started and not ended."""
    return bool(_started)


def stop() -> bool:
    """Stop watching, if a sweep is watched; name the runs that are not finished, if any are."""
    if not _started:
        return False
    watch = _started.pop()
    watch.end()
    unfinished = watch.unfinished()
    for run, reason in unfinished.items():
        print(f"{run.name} is not finished: {reason}", file=sys.stderr)
    if unfinished:
        count = f"{len(unfinished)} run{'s' * (len(unfinished) > 1)}"
        print(f"{count} in {watch.folder} not finished: the same command continues.", file=sys.stderr)
    return bool(unfinished)


def name_runs(config: DictConfig) -> set[str] | None:
    """Name the folders of a grid's runs, as Hydra will; None for other sweepers than Hydra's own."""
    if not config.hydra.sweeper._target_.endswith("BasicSweeper"):
        return None
    params = config.hydra.sweeper.get("params") or {}
    overrides = [f"{key}={value}" for key, value in params.items() if value is not None]
    parser, naming = OverridesParser.create(), config.hydra.job.config.override_dirname
    parsed = parser.parse_overrides([*overrides, *config.hydra.overrides.task])
    [jobs] = BasicSweeper.split_arguments(parsed, None)
    return {job_folder(get_overrides_dirname(parser.parse_overrides(job), **naming)) for job in jobs}


def _finished(records: dict[Path, RunRecord]) -> set[Path]:
    return {run for run, record in records.items() if record.status == "finished"}


def _share(record: RunRecord) -> float:
    if record.status in ("finished", "trained"):
        return 1.0
    return record.steps / record.max_steps if record.max_steps > 0 else 0.0


def _summary(path: Path, record: RunRecord) -> str:
    """Describe the main test set of a finished run."""
    from ntl.scores import describe_test

    evaluation, data = (record.config.get(group, {}) for group in ("evaluation", "dataset_args"))
    metrics = RunFolder(path).evaluation(evaluation.get("name", "test")).metrics()
    if not metrics:
        return "finished"
    test = next((test for test in metrics if test != "validation"), "validation")
    interval = evaluation.get("interval", 0.9) if data.get("dataset_name") == "tabular" else None
    return describe_test(test, metrics[test], interval)
