"""A comparison's output folder: one file per finished run, all of the same configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ntl.comparison.workers import Run
from ntl.errors import UserError
from ntl.records import flatten, write_atomically


class RunStore:
    """The finished runs in an output folder.

    Args:
        folder: The output folder; it need not exist.
        identity: Settings that all runs of the comparison share: data, model, training, ...
        objectives: Maps each objective to its settings.

    Raises:
        UserError: The folder is a file.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], objectives: Mapping[str, Any]):
        if folder.exists() and not folder.is_dir():
            raise UserError(
                f"output_dir={folder} is a file; expected a folder, or a path that does not exist yet. Pass "
                "another output_dir."
            )
        self.folder = folder
        self.identity = identity
        self.objectives = objectives

    def path(self, run: Run) -> Path:
        """Return the path of a run's file."""
        return self.folder / "runs" / f"{run.objective}-seed{run.seed}.json"

    def open(self, runs: Sequence[Run], overwrite: bool) -> dict[Run, dict[str, Any]]:
        """Load the finished runs, and prepare the folder for new ones.

        Args:
            runs: Runs of the comparison.
            overwrite: Whether to delete runs of another configuration.

        Returns:
            The finished runs with their records.

        Raises:
            UserError: The folder holds runs of another configuration (and `overwrite` is false), holds a file
                that cannot be read, or cannot be written. No run is changed.
        """
        finished, foreign, differences = {}, [], []
        for path in sorted((self.folder / "runs").glob("*-seed*.json")):
            record = _read(path)
            differs = self._differences(record)
            if differs:
                foreign.append(path)
                differences += [d for d in differs if d not in differences]
                continue
            run = Run(record["objective"], record["seed"])
            if run in runs:
                finished[run] = record
        if foreign and not overwrite:
            raise UserError(
                f"output_dir={self.folder} holds {len(foreign)} run(s) of another configuration: "
                f"{'; '.join(differences[:5])}{'; ...' if len(differences) > 5 else ''}. Pass another "
                "output_dir, or overwrite=true to delete those runs."
            )
        for path in foreign:
            path.unlink()
        try:
            (self.folder / "runs").mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / "runs" / ".writable", "")
        except OSError as error:
            raise UserError(
                f"output_dir={self.folder} cannot be written ({error.strerror}); expected a writable "
                "folder. Pass another output_dir."
            ) from None
        (self.folder / "runs" / ".writable").unlink()
        return finished

    def save(self, run: Run, result: Mapping[str, Any], versions: Mapping[str, str]) -> dict[str, Any]:
        """Write a finished run.

        Args:
            run: The run.
            result: Result of `training.train_run`.
            versions: Maps each package to its version.

        Returns:
            The record: identity, objective, seed, versions and result.
        """
        record = {
            "objective": run.objective,
            "seed": run.seed,
            "config": {**self.identity, "objective": self.objectives[run.objective]},
            "versions": dict(versions),
            **result,
        }
        write_atomically(self.path(run), json.dumps(record))
        return record

    def _differences(self, record: Mapping[str, Any]) -> list[str]:
        mine = dict(self.identity)
        theirs = dict(record["config"])
        objective = theirs.pop("objective")
        name = record["objective"]
        # Runs with an objective that is unknown here, from another comparison, are ignored.
        if name in self.objectives:
            mine[f"objective.{name}"] = self.objectives[name]
            theirs[f"objective.{name}"] = objective
        mine, theirs = flatten(mine), flatten(theirs)
        return [
            f"{key} is {theirs.get(key)!r} there, {mine.get(key)!r} here"
            for key in sorted({*mine, *theirs})
            if theirs.get(key) != mine.get(key)
        ]


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        needed = {"objective", "seed", "config", "metrics", "curve", "predictions"}
        if not needed <= set(record) or "objective" not in record["config"]:
            raise ValueError("keys are missing")
    except (ValueError, TypeError, OSError) as error:
        raise UserError(
            f"{path} is not a run of a comparison ({error}); expected JSON that `ntl compare` wrote. "
            "Delete the file to repeat the run, or pass another output_dir."
        ) from None
    return record
