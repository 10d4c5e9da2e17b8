"""Time and memory of contenders that do the same work, and what they were measured on."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import torch

# Requests above this size are mapped and given back one by one while memory is measured, so that the
# resident size is what is held, not what the allocator keeps for later.
_MMAP_THRESHOLD = 1 << 20
_M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Contender:
    """One way to do the work.

    Args:
        run: forward and backward, once.
        prepare: puts inputs back that `run` destroys; outside of what is timed.
    """

    run: Callable[[], object]
    prepare: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Timing:
    """Seconds of one contender.

    Args:
        median: over the rounds.
        least: of the rounds.
        rounds: how many.
    """

    median: float
    least: float
    rounds: int


def time_interleaved(
    contenders: Mapping[str, Contender], device: str, repeats: int, seconds: float
) -> dict[str, Timing]:
    """Time the contenders round by round, so that a slow moment of the machine meets all of them.

    Args:
        contenders: name to contender; each has been run before (compiled, caches warm).
        device: "cpu" or "cuda".
        repeats: rounds.
        seconds: stop earlier after so many, but not before the third round.

    Returns:
        Name to timing.
    """
    spent: dict[str, list[float]] = {name: [] for name in contenders}
    names, begin = list(contenders), time.perf_counter()
    for round_ in range(repeats):
        if round_ >= 3 and time.perf_counter() - begin > seconds:
            break
        # Each round starts with another contender: what one leaves in the caches serves no one in particular.
        for name in names[round_ % len(names) :] + names[: round_ % len(names)]:
            contenders[name].prepare()
            _synchronize(device)
            start = time.perf_counter()
            contenders[name].run()
            _synchronize(device)
            spent[name].append(time.perf_counter() - start)
    return {name: Timing(statistics.median(s), min(s), len(s)) for name, s in spent.items()}


def peak_memory(contender: Contender, device: str) -> int | None:
    """Bytes that one run holds at most, beyond what was there before; None where that cannot be told.

    On the CPU it is the process's high-water mark, which sees what is allocated inside of PyTorch's operators
    too. It belongs into a fresh process, after a first run (compilation, libraries' start) and nothing else.
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
    _CLEAR_REFS.write_text("5")  # the high-water mark falls to the present size
    before = _resident_bytes("VmRSS")
    contender.run()
    return _resident_bytes("VmHWM") - before


def give_memory_back() -> None:
    """Make the allocator of this process give large buffers back at once; before anything is allocated."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD)


def machine(device: str) -> dict[str, object]:
    """What a figure depends on, without what would tell whose machine it was."""
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
    """Bytes per second, read and written, of copying a large buffer on the GPU: the memory roofline."""
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
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
