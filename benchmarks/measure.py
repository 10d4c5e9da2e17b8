"""Measure time and memory of contenders that do the same work, and describe the machine."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeVar

import torch

Key = TypeVar("Key", bound=Hashable)

# Larger allocations are unmapped at once, so that the resident size excludes memory kept for reuse.
_MMAP_THRESHOLD = 1 << 20
_M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Contender:
    """One way to do the work.

    Args:
        run: Runs forward and backward once.
        prepare: Restores inputs that `run` overwrites; not timed.
    """

    run: Callable[[], object]
    prepare: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Timing:
    """Timing of one contender.

    Args:
        median: Median over the rounds in seconds.
        least: Minimum over the rounds in seconds.
        rounds: Number of rounds.
    """

    median: float
    least: float
    rounds: int


def time_interleaved(
    contenders: Mapping[Key, Contender], device: str, repeats: int, seconds: float
) -> dict[Key, Timing]:
    """Time the contenders round by round, so that slow moments of the machine affect all of them.

    Args:
        contenders: Contenders by name, each already run once (compiled, with warm caches).
        device: "cpu" or "cuda".
        repeats: Maximum number of rounds.
        seconds: Time limit in seconds, which applies after the third round.

    Returns:
        Timings by name.
    """
    spent: dict[Key, list[float]] = {name: [] for name in contenders}
    names, begin = list(contenders), time.perf_counter()
    for round_ in range(repeats):
        if round_ >= 3 and time.perf_counter() - begin > seconds:
            break
        # Each round starts with another contender, so that cache effects favour none of them.
        for name in names[round_ % len(names) :] + names[: round_ % len(names)]:
            contenders[name].prepare()
            _synchronize(device)
            start = time.perf_counter()
            contenders[name].run()
            _synchronize(device)
            spent[name].append(time.perf_counter() - start)
    return {name: Timing(statistics.median(s), min(s), len(s)) for name, s in spent.items()}


def peak_memory(contender: Contender, device: str) -> int | None:
    """Measure the peak memory of one run in bytes, beyond the memory in use before; None if not available.

    On the CPU, this is the process's high-water mark, which includes allocations inside PyTorch's operators.
    Call this in a fresh process, after one warm-up run (compilation, initialization of libraries).
    """
    contender.prepare()
    gc.collect()
    if device == "cuda":
        _synchronize(device)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        contender.run()
        _synchronize(device)
        return torch.cuda.max_memory_allocated() - before
    if not (_STATUS.exists() and os.access(_CLEAR_REFS, os.W_OK)):
        return None
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    _CLEAR_REFS.write_text("5")  # resets the high-water mark to the current size
    before = _resident_bytes("VmRSS")
    contender.run()
    return _resident_bytes("VmHWM") - before


def peaks_in_fresh_processes(builders: Mapping[Key, Callable[[], Contender]]) -> dict[Key, int | None]:
    """Measure the peak memory of contenders on the CPU, each in a fresh process, two at a time.

    Args:
        builders: Functions that build a contender and run it once; they are pickled.

    Returns:
        Peaks in bytes, see `peak_memory`.
    """
    context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    context.set_forkserver_preload(["torch", "torch._dynamo"])  # imported once, before the processes fork
    with ProcessPoolExecutor(2, mp_context=context, max_tasks_per_child=1) as pool:
        peaks = [pool.submit(_peak_of, build, torch.get_num_threads()) for build in builders.values()]
        return {name: peak.result() for name, peak in zip(builders, peaks, strict=True)}


def _peak_of(build: Callable[[], Contender], threads: int) -> int | None:
    """Measure the peak memory of one contender. Call this in a fresh process."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # large buffers are given back at once
        libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD)
    torch.set_num_threads(threads)
    return peak_memory(build(), "cpu")


def machine(device: str) -> dict[str, object]:
    """Describe the hardware and software that figures depend on, without identifying the machine."""
    described: dict[str, object] = {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if device == "cuda":
        described |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
        described["bandwidth_gb_s"] = round(copy_bandwidth() / 1e9)
    return described


def copy_bandwidth() -> float:
    """Measure the GPU's memory bandwidth (read plus write) in bytes per second by copying a large buffer."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy = {"copy": Contender(lambda: target.copy_(source))}
    time_interleaved(copy, "cuda", 3, 1)
    return 2 * source.numel() / time_interleaved(copy, "cuda", 20, 1)["copy"].median


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _resident_bytes(field: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in {_STATUS}")


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
