"""Execute several runs at a time, each in a single-threaded process of its own.

If a process dies, only its run fails.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal

from ntl.config.settings import RunSettings
from ntl.errors import UserError

SECONDS_TO_EXIT = 10.0  # after which an interrupted run is killed
Kind = Literal["progress", "done", "failed"]


def run_all(runs: Mapping[str, RunSettings], jobs: int) -> Iterator[tuple[str, Kind, Any]]:
    """Execute all runs in their order, `jobs` at a time.

    The processes are stopped when the iterator is closed or an interrupt ends it.

    Yields:
        The name of a run, and `progress` with the share of its updates that are done, `done` with a one-line
        summary of the metrics, or `failed` with an error message.
    """
    waiting = list(runs)
    busy: dict[Connection, tuple[str, BaseProcess]] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                name = waiting.pop(0)
                connection, process = _start(runs[name])
                busy[connection] = name, process
            for connection in wait(list(busy)):
                name, process = busy[connection]
                kind, content = _receive(connection, process)
                if kind != "progress":
                    del busy[connection]
                    process.join()
                yield name, kind, content
    finally:
        for _, process in busy.values():
            process.terminate()
        for _, process in busy.values():
            process.join(SECONDS_TO_EXIT)
            process.kill()  # one that hangs
            process.join()


def uses_gpu(settings: RunSettings) -> bool:
    """Return whether a run trains on a GPU: where there is one, unless `training_args.use_cpu` is true."""
    import torch  # slow

    return not settings.trainer["use_cpu"] and torch.accelerator.is_available()


def _start(settings: RunSettings) -> tuple[Connection, BaseProcess]:
    # With a fork server, imports take seconds once, not in every run. Forking is unsafe with CUDA and on
    # macOS.
    forks = not uses_gpu(settings) and sys.platform == "linux"
    context = multiprocessing.get_context("forkserver" if forks else "spawn")
    context.set_forkserver_preload(["ntl.runs.run"])
    connection, child_end = context.Pipe()
    process = context.Process(target=_work, args=(settings, child_end))
    # Ctrl-C signals the whole process group, but only the parent should handle it. Children inherit the mask,
    # which the start of multiprocessing's resource tracker would undo.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    # Close the parent's copy, so that the connection ends when the process does.
    child_end.close()
    return connection, process


def _receive(connection: Connection, process: BaseProcess) -> tuple[Kind, Any]:
    try:
        return connection.recv()
    except (EOFError, OSError):
        process.join()
        code = process.exitcode
        reason = f"killed by signal {-code}" if code and code < 0 else f"exit code {code}"
        hint = ", most likely out of memory" if code == -signal.SIGKILL else ""
        return "failed", f"the process ended ({reason}){hint}"


def _work(settings: RunSettings, connection: Connection) -> None:
    """Execute one run, and send its progress and its result to the parent."""
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    # Exit when terminated instead of dying, so that semaphores are released.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        import torch

        from ntl.runs.run import run
        from ntl.scores import describe_metrics

        torch.set_num_threads(1)
        metrics = run(settings, lambda share: connection.send(("progress", share)))
        test = next((test for test in metrics if test != "validation"), "validation")
        connection.send(("done", f"{test}: {describe_metrics(metrics[test])}"))
    except UserError as error:
        connection.send(("failed", str(error)))
    except Exception:
        connection.send(("failed", traceback.format_exc()))
