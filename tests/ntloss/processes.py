"""Jobs of a few local gloo processes, forked from one that has imported what takes seconds."""

import multiprocessing
import os
import runpy
import socket
import sys
import time
from contextlib import redirect_stdout
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

IMPORTED = ["torch.distributed.fsdp", "torch.distributed.tensor.parallel", "transformers.trainer_seq2seq"]


def join(rank, folder, world=2, seconds=60):
    """Join a job whose processes meet in a folder, and set the variables of torchrun that trainers read."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0", "GLOO_SOCKET_IFNAME": "lo"}
    meeting = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", meeting, timedelta(seconds=seconds), rank=rank, world_size=world)


def run_job(work, arguments, world=2):
    """Run `work(rank, *arguments)` in each process, for at most five minutes."""
    multiprocessing.set_forkserver_preload(IMPORTED)
    given = dict(os.environ), work, arguments  # the server keeps the environment that it was started in
    job = torch.multiprocessing.start_processes(_work, given, world, join=False, start_method="forkserver")
    deadline = time.monotonic() + 300
    try:
        while not job.join(timeout=1.0):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{world} processes hang")
    finally:
        for process in job.processes:
            if process.is_alive():
                process.kill()


def _work(rank, environment, work, arguments):
    os.environ |= environment
    work(rank, *arguments)


def results_of(work, arguments, folder, world=2, seconds=60):
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("needs gloo")
    run_job(_save_result, (work, arguments, folder, world, seconds), world)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(world)]


def _save_result(rank, work, arguments, folder, world, seconds):
    join(rank, folder, world, seconds)
    try:
        torch.save(work(rank, *arguments), folder / f"rank{rank}.pt")
    finally:
        dist.destroy_process_group()


def printed_by(script, arguments, folder, world=1):
    """Run a script in `folder`, as Python or torchrun does, and return what its first process prints."""
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    run_job(_run_script, (script, arguments, folder, world, port), world)
    return (folder / "printed-0.txt").read_text()


def _run_script(rank, script, arguments, folder, world, port):
    torch.set_num_threads(1)
    if world > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        os.environ |= {"LOCAL_WORLD_SIZE": str(world)}
    os.chdir(folder)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    with (folder / f"printed-{rank}.txt").open("w") as file, redirect_stdout(file):
        runpy.run_path(str(script), run_name="__main__")
