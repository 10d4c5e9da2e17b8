"""Run several runs in parallel, in single-threaded worker processes.

Each worker is spawned once and keeps its imports and data from run to run. If a worker dies, only its current
run fails.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

MAX_DEFAULT_JOBS = 4  # a worker takes about 0.7 GiB; more would exceed the demo's limit of 4 GiB


class Run(NamedTuple):
    """One model to train.

    Args:
        objective: A key of the configuration's `objective` section.
        seed: Random seed of the run.
    """

    objective: str
    seed: int

    def __str__(self) -> str:
        return f"{self.objective}, seed {self.seed}"


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_jobs() -> int:
    """Return the default number of workers: one per usable core, at most four."""
    return min(usable_cores(), MAX_DEFAULT_JOBS)


def run_all(
    config: Mapping[str, Any],
    runs: Sequence[Run],
    jobs: int,
    on_progress: Callable[[Run, int], None],
    on_done: Callable[[Run, dict[str, Any]], None],
    on_failed: Callable[[Run, str], None],
) -> None:
    """Do all runs, several at a time.

    The callbacks run in this process. The workers are stopped when this function returns or raises, including
    on an interrupt.

    Args:
        config: The whole configuration.
        runs: Runs to do, in this order.
        jobs: Number of workers.
        on_progress: Called with a run and the number of its steps done.
        on_done: Called with a run and its result, see `training.train_run`.
        on_failed: Called with a run and its error message.
    """
    waiting = list(runs)
    workers = [_Worker(config) for _ in range(min(jobs, len(waiting)))]
    try:
        for worker in workers:
            worker.start(waiting.pop(0))
        while busy := [worker for worker in workers if worker.run is not None]:
            ready = wait([worker.connection for worker in busy])
            for worker in busy:
                if worker.connection not in ready:
                    continue
                run = worker.run
                kind, content = worker.receive()
                if kind == "step":
                    on_progress(run, content)
                    continue
                worker.run = None
                (on_done if kind == "done" else on_failed)(run, content)
                if kind == "died":
                    workers.remove(worker)
                    if not waiting:
                        continue
                    worker = _Worker(config)
                    workers.append(worker)
                if waiting:
                    worker.start(waiting.pop(0))
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """The parent's end of one worker process."""

    def __init__(self, config: Mapping[str, Any]):
        context = multiprocessing.get_context("spawn")
        self.connection, child_end = context.Pipe()
        self.process = context.Process(target=_serve, args=(child_end, dict(config)), daemon=True)
        # Ctrl-C signals the whole process group, but only the parent should handle it. Children inherit the
        # ignored signal.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        # Close the parent's copy, so that the connection ends when the worker does.
        child_end.close()
        self.run: Run | None = None

    def start(self, run: Run) -> None:
        self.run = run
        with contextlib.suppress(OSError):  # the worker has died; receive() reports it
            self.connection.send(run)

    def receive(self) -> tuple[str, Any]:
        """Receive a message: `step` with a count, `done` with a result, `failed` or `died` with an error."""
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


def _serve(connection: Connection, config: dict[str, Any]) -> None:
    """Serve as a worker: train the runs that the parent sends, until the parent exits."""
    # Set before torch is imported, whose thread pools otherwise use all cores.
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    loaded = None
    try:
        while True:
            run = connection.recv()
            try:
                if loaded is None:
                    loaded = _load(config)
                train_run, data, train = loaded
                result = train_run(
                    config,
                    run.objective,
                    run.seed,
                    data,
                    train,
                    report=lambda step: connection.send(("step", step)),
                )
            except BrokenPipeError:
                raise
            except Exception:
                connection.send(("failed", traceback.format_exc()))
            else:
                connection.send(("done", result))
    except (EOFError, OSError):
        return  # the parent has exited


def _load(config: Mapping[str, Any]) -> tuple[Callable[..., dict[str, Any]], Any, Any]:
    import torch

    from ntl.comparison.training import EncodedExamples, train_run
    from ntl.tasks import load_task

    torch.set_num_threads(1)
    data = load_task(config["task"])
    return train_run, data, EncodedExamples(data.train)
