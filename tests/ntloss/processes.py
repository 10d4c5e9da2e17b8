"""Jobs of a few gloo processes on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing


def join(rank: int, folder: str | Path, world: int = 2, seconds: float = 60) -> None:
    """Become one of the processes, which meet in a folder; with what trainers read of torchrun."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0", "GLOO_SOCKET_IFNAME": "lo"}
    meeting = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", meeting, timedelta(seconds=seconds), rank=rank, world_size=world)


def run_job(work: Callable[..., None], arguments: tuple[Any, ...], world: int = 2) -> None:
    """Run `work(rank, *arguments)` in each process; an error if they take more than five minutes."""
    job = torch.multiprocessing.spawn(work, arguments, nprocs=world, join=False)
    deadline = time.monotonic() + 300
    try:
        while not job.join(timeout=1.0):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{world} processes hang")
    finally:
        for process in job.processes:
            if process.is_alive():
                process.kill()
