"""Run several runs in parallel, in single-threaded worker processes.

Each worker is spawned once and keeps its imports from run to run. If a worker dies, only its current
run fails.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from typing import Any

from ntl.config.settings import RunSettings
from ntl.errors import UserError
from ntl.training.run_folder import Metrics

MAX_DEFAULT_JOBS = 4  # a worker takes about 0.7 GiB; more would exceed the demo's limit of 4 GiB


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_jobs() -> int:
    """Return the default number of workers: one per usable core, at most four."""
    return min(usable_cores(), MAX_DEFAULT_JOBS)


def run_all(
    runs: Mapping[str, RunSettings],
    jobs: int,
    on_progress: Callable[[str, float], None],
    on_done: Callable[[str, dict[str, Metrics]], None],
    on_failed: Callable[[str, str], None],
) -> None:
    """Do all runs, several at a time.

    The callbacks run in this process. The workers are stopped when this function returns or raises, including
    on an interrupt.

    Args:
        runs: Settings of each run, by its name, in the order in which they are started.
        jobs: Number of workers.
        on_progress: Called with a run and the share of its updates that are done.
        on_done: Called with a run and its metrics by test set.
        on_failed: Called with a run and its error message.
    """
    waiting = list(runs)
    workers = [_Worker() for _ in range(min(jobs, len(waiting)))]
    try:
        for worker in workers:
            worker.start(name := waiting.pop(0), runs[name])
        while busy := [worker for worker in workers if worker.run is not None]:
            ready = wait([worker.connection for worker in busy])
            for worker in busy:
                if worker.connection not in ready:
                    continue
                run = str(worker.run)
                kind, content = worker.receive()
                if kind == "progress":
                    on_progress(run, content)
                    continue
                worker.run = None
                (on_done if kind == "done" else on_failed)(run, content)
                if kind == "died":
                    workers.remove(worker)
                    if not waiting:
                        continue
                    worker = _Worker()
                    workers.append(worker)
                if waiting:
                    worker.start(name := waiting.pop(0), runs[name])
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """The parent's end of one worker process."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, child_end = context.Pipe()
        self.process = context.Process(target=_serve, args=(child_end,), daemon=True)
        # Ctrl-C signals the whole process group, but only the parent should handle it. Children inherit the
        # ignored signal.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        # Close the parent's copy, so that the connection ends when the worker does.
        child_end.close()
        self.run: str | None = None

    def start(self, run: str, settings: RunSettings) -> None:
        self.run = run
        with contextlib.suppress(OSError):  # the worker has died; receive() reports it
            self.connection.send(settings)

    def receive(self) -> tuple[str, Any]:
        """Receive `progress` with a share, `done` with metrics, or `failed` or `died` with an error."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode
            reason = f"killed by signal {-code}" if code and code < 0 else f"exit code {code}"
            return "died", f"the worker process ended ({reason}), most likely out of memory"

    def stop(self) -> None:
        self.process.terminate()
        self.process.join()
        self.connection.close()


def _serve(connection: Connection) -> None:
    """Serve as a worker: do the runs that the parent sends, until the parent exits."""
    # Set before torch is imported, whose thread pools otherwise use all cores.
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    try:
        while True:
            settings = connection.recv()
            try:
                import torch

                from ntl.training.run import run

                torch.set_num_threads(1)
                metrics = run(settings, lambda line: None, lambda done: connection.send(("progress", done)))
            except BrokenPipeError:
                raise
            except UserError as error:
                connection.send(("failed", str(error)))
            except Exception:
                connection.send(("failed", traceback.format_exc()))
            else:
                connection.send(("done", metrics))
    except (EOFError, OSError):
        return  # the parent has exited
