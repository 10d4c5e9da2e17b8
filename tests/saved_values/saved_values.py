"""Save the results of the losses, and compare them with the results after a change.

    python tests/saved_values/saved_values.py save FILE
    python tests/saved_values/saved_values.py compare FILE

A script, not a test: the file depends on the machine and the release of PyTorch, so use the same for both
commands. PYTHONPATH selects the checkout whose `ntloss` is imported.

`compare` computes the cases again and prints the largest difference by path and dtype. It exits with 1 if a
difference exceeds its tolerance, a case is missing, a tensor has another shape or dtype, or another type of
error is raised. Changed error messages and new cases are only reported.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from cases import PARALLEL, Case, cases
from paths import Shards, compute
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

import ntloss

# Tensors by name, or the type and the message of the error.
Result = Mapping[str, Tensor] | tuple[str, str]

WORLD = 2
# By the dtype of the compared tensor, relative to its largest magnitude. They allow for rounding in another
# order.
TOLERANCE = {torch.float64: 1e-7, torch.float32: 3e-5, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-9}
# Smaller magnitudes count as these, because the remainder of terms that cancel is noise.
LEAST = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 1e-3, torch.float16: 1e-3}
SHOWN = 50


def try_to_compute(case: Case, shards: Shards | None = None) -> Result:
    """Compute a case's tensors, or return the error that it raises."""
    try:
        return compute(case, shards)
    except Exception as error:
        return type(error).__name__, str(error)


def one_of_several(rank: int, folder: str, wanted: list[Case]) -> None:
    """Compute the cases with a sharded vocabulary, as one of WORLD processes."""
    _quiet()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=60),
    )
    mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("tensor",))
    shards = Shards(rank, WORLD, dist.group.WORLD, mesh)
    torch.save([try_to_compute(case, shards) for case in wanted], Path(folder) / f"rank{rank}.pt")
    dist.destroy_process_group()


def compute_everything() -> dict[str, Result]:
    """Compute the result of every case, by name."""
    _quiet()
    every = cases()
    alone = [case for case in every if case.path not in PARALLEL]
    shared = [case for case in every if case.path in PARALLEL]
    results = {case.name: try_to_compute(case) for case in alone}
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(one_of_several, (folder, shared), nprocs=WORLD)
        ranks = [torch.load(Path(folder) / f"rank{rank}.pt") for rank in range(WORLD)]
    for case, *of_ranks in zip(shared, *ranks, strict=True):
        results[case.name] = _together(of_ranks)
    return results


def _together(of_ranks: list[Result]) -> Result:
    """Merge the results of all ranks; an error if one of them raised it."""
    merged = {}
    for rank, result in enumerate(of_ranks):
        if isinstance(result, tuple):
            return result
        merged |= {f"rank {rank}: {name}": tensor for name, tensor in result.items()}
    return merged


def _quiet() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def pack(results: Mapping[str, Result]) -> dict[str, Any]:
    """Concatenate all tensors of a dtype, because a file of thousands of small ones is slow and large."""
    parts: dict[torch.dtype, list[Tensor]] = defaultdict(list)
    lengths: dict[torch.dtype, int] = defaultdict(int)
    index: dict[str, Any] = {}
    for case, result in results.items():
        if isinstance(result, tuple):
            index[case] = result
            continue
        index[case] = {}
        for name, tensor in result.items():
            index[case][name] = (tensor.dtype, lengths[tensor.dtype], tuple(tensor.shape))
            parts[tensor.dtype].append(tensor.reshape(-1))
            lengths[tensor.dtype] += tensor.numel()
    return {"index": index, "values": {dtype: torch.cat(tensors) for dtype, tensors in parts.items()}}


def unpack(packed: Mapping[str, Any]) -> dict[str, Result]:
    """Invert `pack`."""
    results: dict[str, Result] = {}
    for case, entry in packed["index"].items():
        if isinstance(entry, tuple):
            results[case] = entry
            continue
        results[case] = {
            name: packed["values"][dtype][start : start + torch.Size(shape).numel()].reshape(shape)
            for name, (dtype, start, shape) in entry.items()
        }
    return results


def difference(old: Tensor, new: Tensor) -> float:
    """Compute the largest difference of two tensors, relative to the old one's largest magnitude."""
    if old.shape != new.shape or old.dtype != new.dtype:
        return float("inf")
    if not old.dtype.is_floating_point:
        return 0.0 if torch.equal(old, new) else float("inf")
    before, after = old.double(), new.double()
    finite, infinite = before.isfinite(), before.isinf()
    if (
        not torch.equal(before.isnan(), after.isnan())
        or not torch.equal(before[infinite], after[infinite])
        or not after[finite].isfinite().all()
    ):
        return float("inf")
    if not finite.any():
        return 0.0
    scale = max(float(before[finite].abs().max()), LEAST[old.dtype])
    return float((before - after)[finite].abs().max()) / scale


class Report:
    """The differences of all cases."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.warnings: list[str] = []
        self.count: dict[tuple[str, str], int] = defaultdict(int)
        # By path, dtype of the case and dtype of the tensor: gradients are rounded more coarsely than losses.
        self.largest: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))

    def add(self, case: str, old: Result, new: Result) -> None:
        """Compare one case."""
        path, dtype, *_ = case.split(" | ")
        self.count[path, dtype] += 1
        if isinstance(old, tuple) or isinstance(new, tuple):
            self._compare_errors(case, old, new)
            return
        if set(old) != set(new):
            self.failures.append(f"{case}: saved {sorted(old)}, computed {sorted(new)}")
            return
        for name, before in old.items():
            found = difference(before, new[name])
            of_dtype = str(before.dtype).removeprefix("torch.")
            largest = self.largest[path, dtype]
            largest[of_dtype] = max(largest[of_dtype], found)
            if not found <= TOLERANCE.get(before.dtype, 0.0):
                self.failures.append(f"{case}: {name} differs by {found:.1e}")

    def _compare_errors(self, case: str, old: Result, new: Result) -> None:
        kinds = [result[0] if isinstance(result, tuple) else "values" for result in (old, new)]
        if kinds[0] != kinds[1]:
            message = f": {new[1]}" if isinstance(new, tuple) else ""
            self.failures.append(f"{case}: saved {kinds[0]}, computed {kinds[1]}{message}")
        elif old != new:
            self.warnings.append(f"{case}: the {kinds[0]} says {new[1]!r}, before {old[1]!r}")  # type: ignore[index]

    def show(self) -> None:
        """Print the largest differences, then failures and warnings."""
        for (path, dtype), count in sorted(self.count.items()):
            found = ", ".join(f"{d} {most:.1e}" for d, most in sorted(self.largest[path, dtype].items()))
            print(f"{path:18} {dtype:9} {count:5} cases   largest difference: {found or 'none'}")
        for title, lines in (("failed", self.failures), ("other messages", self.warnings)):
            if lines:
                print(f"\n{len(lines)} {title}:")
                print("\n".join(f"  {line}" for line in lines[:SHOWN]))
                if len(lines) > SHOWN:
                    print(f"  ... and {len(lines) - SHOWN} more")


def compare(saved: Mapping[str, Result], computed: Mapping[str, Result]) -> bool:
    """Print how the results differ, and return whether they agree."""
    report = Report()
    for case, old in saved.items():
        if case in computed:
            report.add(case, old, computed[case])
        else:
            report.failures.append(f"{case}: missing")
    report.show()
    new = len(set(computed) - set(saved))
    print(f"\n{len(saved)} saved cases, {new} new ones, {len(report.failures)} failures")
    return not report.failures


def main(arguments: list[str] | None = None) -> int:
    """Run `save` or `compare`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["save", "compare"])
    parser.add_argument("file", type=Path)
    parsed = parser.parse_args(arguments)
    print(f"ntloss of {Path(ntloss.__file__).parent}, torch {torch.__version__}")
    saved = None if parsed.command == "save" else torch.load(parsed.file)
    results = compute_everything()
    if saved is not None:
        if saved["torch"] != torch.__version__:
            print(f"warning: saved with torch {saved['torch']}")
        return 0 if compare(unpack(saved), results) else 1
    torch.save({"torch": str(torch.__version__), **pack(results)}, parsed.file)
    errors = sum(isinstance(result, tuple) for result in results.values())
    print(f"{len(results)} cases, {errors} of which raise, saved to {parsed.file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
