"""Time our contenders in two source trees, alternately: `python benchmarks/losses.py --against OTHER/src`.

Each tree has its own process, because a process can import only one `ntloss`. The processes never run at the
same time. Run as a program, this file is such a process, which takes requests on standard input, one line of
JSON each.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import contenders as c
import measure
import torch

import ntloss

OURS = (c.OURS, c.OURS + c.COMPILED, c.OURS + c.IN_PLACE, c.OURS_LINEAR)
PRESENT = Path(ntloss.__file__).resolve().parent.parent
# A ratio near 1 needs more rounds than one of 0.5.
ROUNDS = 3

Entry = tuple[str, str | None]


class Tree:
    """A process that runs contenders of one source tree.

    Args:
        source: Folder that holds the package `ntloss`.
        threads: Number of PyTorch's threads.

    Raises:
        ValueError: The process imports another `ntloss`.
    """

    def __init__(self, source: Path, threads: int) -> None:
        environment = {**os.environ, "PYTHONPATH": str(source)}
        command = [sys.executable, str(Path(__file__).resolve()), str(threads)]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        imported = Path(self._answer())
        if imported != source:
            self.close()
            raise ValueError(
                f"--against: expected the package in {source}, but Python imports the one in {imported}. "
                "Name the folder that holds `ntloss`."
            )

    def build(self, case: c.Case, entries: Iterable[Entry]) -> dict[Entry, str]:
        """Build the contenders for a case, and return those that cannot run, with the reasons."""
        missing = self._ask("build", asdict(case), list(entries))
        return {(name, criterion): reason for name, criterion, reason in missing}

    def time(self, entry: Entry) -> float:
        """Time one run in seconds."""
        seconds: float = self._ask("time", *entry)
        return seconds

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _ask(self, *request: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of a source tree ended with {self._process.wait()}; see above")
        return json.loads(line)


def measurements(
    comparisons: Iterable[tuple[c.Case, list[Entry]]], other: Path, options: Any
) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Time our contenders in both trees.

    Args:
        comparisons: Cases with their contenders; those that are not in OURS are ignored.
        other: Source folder to compare with.
        options: Options of the command.

    Returns:
        The measurements, and the skipped contenders with the reasons.
    """
    measured, skipped, done = [], [], set()
    with Tree(PRESENT, options.threads) as new, Tree(other.resolve(), options.threads) as old:
        for case, every in comparisons:
            entries = [
                entry
                for entry in every
                if entry[0] in OURS
                and not (options.no_compile and c.COMPILED in entry[0])
                and (case, entry) not in done
            ]
            done |= {(case, entry) for entry in entries}
            missing = {**new.build(case, entries), **old.build(case, entries)}
            skipped += [
                {"what": f"{', '.join(filter(None, entry))} at {case}", "reason": reason}
                for entry, reason in missing.items()
            ]
            ready = [entry for entry in entries if entry not in missing]
            print(f"in two trees: {case}", file=sys.stderr)
            measured += _interleaved(case, ready, new, old, options)
    return measured, skipped


def _interleaved(
    case: c.Case, entries: list[Entry], new: Tree, old: Tree, options: Any
) -> list[dict[str, Any]]:
    spent: dict[Entry, dict[Tree, list[float]]] = {entry: {new: [], old: []} for entry in entries}
    begin = time.perf_counter()
    for round_ in range(ROUNDS * options.repeats):
        if round_ >= 3 and time.perf_counter() - begin > ROUNDS * options.seconds:
            break
        for entry in entries:
            # Alternate, so that neither tree always runs first.
            for tree in (new, old) if round_ % 2 else (old, new):
                spent[entry][tree].append(tree.time(entry))
    return [
        {
            "case": asdict(case),
            "contender": name,
            "criterion": criterion,
            "rounds": len(seconds[new]),
            "new_ms": statistics.median(seconds[new]) * 1e3,
            "old_ms": statistics.median(seconds[old]) * 1e3,
            "ratio": statistics.median(seconds[new]) / statistics.median(seconds[old]),
            "ratio_of_fastest": min(seconds[new]) / min(seconds[old]),
        }
        for (name, criterion), seconds in spent.items()
    ]


def serve(threads: int) -> None:
    """Build and time contenders as requested on standard input."""
    # Libraries must not print between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value: Any) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    torch.set_num_threads(threads)
    answer(str(PRESENT))
    ready: dict[Entry, measure.Contender] = {}
    device = "cpu"
    for line in sys.stdin:
        kind, *request = json.loads(line)
        if kind == "time":
            timing = measure.time_interleaved({"": ready[tuple(request)]}, device, 1, 0)
            answer(timing[""].median)
            continue
        case, entries = c.Case(**request[0]), [tuple(entry) for entry in request[1]]
        device = case.device
        ready.clear()
        torch.compiler.reset()
        inputs = c.Inputs(case)
        answer([[*entry, reason] for entry in entries if (reason := _build(inputs, entry, ready))])


def _build(inputs: c.Inputs, entry: Entry, ready: dict[Entry, measure.Contender]) -> str | None:
    """Build a contender, or return the reason why it cannot run."""
    if entry[1] is not None and entry[1] not in c.criteria():
        return "not in both trees"
    try:
        contender = c.build(entry[0], inputs, entry[1])
    except c.UnavailableError as error:
        return str(error)
    contender.prepare()
    contender.run()
    ready[entry] = contender
    return None


if __name__ == "__main__":
    serve(int(sys.argv[1]))
