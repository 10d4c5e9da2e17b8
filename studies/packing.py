"""Keep the runs of a study in one file, its *pack*: JSON lines, compressed with xz, one line a run.

`Runs` joins a pack with the runs that were made since, each in a folder of its own. To read a pack:

    python -m studies.packing results/miniature/runs.jsonl.xz FOLDER    # one folder a run, as `ntl` writes it
    pandas.read_json("results/miniature/runs.jsonl.xz", lines=True)
"""

from __future__ import annotations

import fcntl
import json
import lzma
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

from ntl.data.files import write_json
from ntl.errors import UserError
from ntl.training.run_folder import RunFolder, RunRecord

ROOT = Path(__file__).parents[1]
MADE = "made.json"  # where a run comes from; written last, when its folder is complete
KEPT = {"run.json", "metrics.json", "learning_curve.jsonl", MADE}
StoredRun = dict[str, Any]


class Runs:
    """The finished runs of a study, from its pack and from folders.

    A run that is in both is read from its folder, which is newer: packing moves runs out of the folders.

    Args:
        pack: The pack. It need not exist.
        folder: Contains the folders of runs. The path of a run's folder relative to it is the run's name.
        read: Reads the folder of a run; None if the run is not finished.
    """

    def __init__(self, pack: Path, folder: Path, read: Callable[[Path], StoredRun | None] | None = None):
        self.pack = pack
        self.folder = folder
        self._read = read or read_run

    @cached_property
    def packed(self) -> dict[str, StoredRun]:
        """The runs of the pack by name."""
        return read_pack(self.pack)

    def loose(self, name: str) -> StoredRun | None:
        """Read a run from its folder, or return None if it is not finished there."""
        return self._read(self.folder / name)

    def get(self, name: str) -> StoredRun | None:
        """Read a run, or return None if it is finished neither in its folder nor in the pack."""
        return self.loose(name) or self.packed.get(name)

    def all_loose(self) -> dict[str, StoredRun]:
        """Read all runs that are finished in their folders."""
        names = [path.parent.relative_to(self.folder).as_posix() for path in self.folder.rglob("run.json")]
        return {name: run for name in sorted(names) if (run := self.loose(name))}

    def all(self) -> dict[str, StoredRun]:
        """Read all finished runs, sorted by name."""
        return dict(sorted({**self.packed, **self.all_loose()}.items()))

    def merge(self) -> list[str]:
        """Move the recorded runs from their folders into the pack, and return their names.

        The pack is replaced atomically, and folders are removed only afterwards, so an interrupted merge
        loses nothing: repeat it. Runs without `made.json` stay where they are.
        """
        if not self.folder.is_dir():
            return []
        with _locked(self.folder):
            self.__dict__.pop("packed", None)  # another process may have merged since it was read
            runs = {name: run for name, run in self.all_loose().items() if "made" in run}
            if not runs.items() <= self.packed.items():
                self.packed |= runs
                write_pack(self.pack, self.packed)
            trash = self.folder.with_name(self.folder.name + ".packed")
            shutil.rmtree(trash, ignore_errors=True)
            for place, name in enumerate(runs):
                trash.mkdir(exist_ok=True)
                os.replace(self.folder / name, trash / str(place))  # whole: half a folder would be read
            shutil.rmtree(trash, ignore_errors=True)
        return [*runs]


def read_run(folder: Path) -> StoredRun | None:
    """Read the folder of a training run; None if it holds none that is finished."""
    run = RunFolder(folder)
    if not run.holds_run() or (record := run.record()).status != "finished":
        return None
    made = folder / MADE
    origin = {"made": json.loads(made.read_text(encoding="utf-8"))} if made.exists() else {}
    return {**origin, "record": asdict(record), "metrics": run.metrics(), "curve": run.curve()}


def write_run(folder: Path, run: StoredRun) -> None:
    """Write a run that `read_run` has read to a folder."""
    target = RunFolder(folder)
    target.write_record(RunRecord(**run["record"]))
    write_json(target.metrics_path, run["metrics"])
    for point in run["curve"]:
        target.add_to_curve(point)
    if "made" in run:
        write_json(folder / MADE, run["made"])


def read_pack(path: Path) -> dict[str, StoredRun]:
    """Read a pack, by the runs' names; empty if the file does not exist.

    Raises:
        UserError: The file is damaged.
    """
    if not path.exists():
        return {}
    try:
        lines = [json.loads(line) for line in lzma.decompress(path.read_bytes()).splitlines()]
        return {line.pop("run"): line for line in lines}
    except (lzma.LZMAError, ValueError, KeyError) as error:
        raise UserError(
            f"{path} cannot be read ({error!r}); expected JSON lines with `run`, compressed with xz. Restore "
            "it with git."
        ) from None


def write_pack(path: Path, runs: Mapping[str, StoredRun]) -> None:
    """Write a pack atomically, sorted by name."""
    lines = (json.dumps({"run": name, **runs[name]}, allow_nan=False) + "\n" for name in sorted(runs))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(lzma.compress("".join(lines).encode()))
    os.replace(partial, path)


def finish(folder: Path, origin: Mapping[str, str]) -> None:
    """Record where a finished run comes from, and delete what is not packed, such as weights and answers."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in KEPT:
            path.unlink()
    write_json(folder / MADE, origin)


def provenance(*paths: str) -> dict[str, str]:
    """Return today's date, the machine, and the commit; of `paths`, whether they have changed since it."""
    return {
        "date": date.today().isoformat(),
        "machine": f"{_cpu()}, {os.cpu_count()} cores",
        "commit": _git("rev-parse", "HEAD")
        + (" with changes" if _git("status", "--porcelain", *paths) else ""),
    }


def part_lines(parts: Iterable[Collection[Any]], missing: Collection[Any]) -> Iterator[str]:
    """Yield a line for each part of a study: its first and last run, and how many are missing."""
    for part in parts:
        first, *_, last = [*part] * 2
        yield f"  {first} to {last}: {sum(run in missing for run in part)} of {len(part)} missing"


def print_lines(lines: Iterable[str]) -> None:
    """Print lines until the reader, such as `head`, has seen enough."""
    try:
        for line in lines:
            print(line)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it at the end


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait until no other process merges the runs of a folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _cpu() -> str:
    """Return the name of the processor."""
    if sys.platform == "linux":
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        if found:
            return found[1]
    return platform.processor() or platform.machine()


def _git(*arguments: str) -> str:
    """Return the output of a git command in the project."""
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    for name, run in read_pack(Path(sys.argv[1])).items():
        write_run(Path(sys.argv[2], name), run)
