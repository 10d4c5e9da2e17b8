"""Compose the runs of `ntl compare`: several objectives and seeds of one training configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from ntl.config.compose import compose_config
from ntl.config.effect import check_effect
from ntl.config.schema import LOSS_OF_MODEL, choices
from ntl.config.settings import RunSettings, read_settings
from ntl.errors import UserError

KEYS = ("objectives", "seeds", "jobs", "output_dir", "overwrite")
# Maps each key of a run that the comparison sets to what to do instead.
REPLACED = {
    "training_args.seed": "pass seeds=[0,1]",
    "training_args.output_dir": "pass output_dir=some/folder",
    "training_args.overwrite_output_dir": "pass overwrite=true",
    "training_args.resume_from_checkpoint": "run the same command again, which continues the runs",
    "training_args.do_only_eval": "evaluate the runs' folders with `ntl train training_args=eval`",
}


@dataclass(frozen=True)
class Comparison:
    """The runs of `ntl compare`.

    `runs` holds the settings of each by its name: seed by seed, in the order of the objectives. The other
    fields are those of `schema.Comparison`.
    """

    runs: Mapping[str, RunSettings]
    output_dir: Path
    jobs: int | None
    overwrite: bool


def load_comparison(overrides: Sequence[str]) -> Comparison:
    """Compose and check the configuration of every run, given overrides such as `seeds=[0,1]`."""
    _keys(overrides)
    first = compose_config("compare", overrides, "ntl compare")
    folder = Path(first["output_dir"]).expanduser()
    configs: dict[tuple[str, int], dict[str, Any]] = {}
    named: dict[str, str] = {}
    for objective in first["objectives"]:
        own = objective_overrides(objective)
        if shared := [key for key in _keys(own) if key in KEYS]:
            raise UserError(
                f"the objective {objective!r} sets {shared[0]}, which belongs to the whole comparison; "
                "expected keys of one run. Set it outside of objectives."
            )
        for seed in first["seeds"]:  # other keys may refer to it
            given = [*overrides, *own, f"training_args.seed={seed}"]
            configs[objective, seed] = compose_config("compare", given, "ntl compare")
            check_effect(own, [configs[objective, seed]])
        name = re.sub(r"[^\w.=,-]+", "_", objective)
        if (other := named.setdefault(name, objective)) != objective:
            raise UserError(
                f"the objectives {other!r} and {objective!r} would be written to one folder, "
                f"{folder / name}; expected objectives that differ in letters or digits. Rewrite or remove "
                "one."
            )
    runs = {}
    for seed, (name, objective) in product(first["seeds"], named.items()):
        sections = {key: value for key, value in configs[objective, seed].items() if key not in KEYS}
        place = str(folder / name / f"seed{seed}")
        sections["training_args"] = {**sections["training_args"], "output_dir": place}
        runs[f"{objective}, seed {seed}"] = read_settings(sections)
    check_effect([o for o in overrides if o.partition("=")[0] not in KEYS], list(configs.values()))
    return Comparison(runs, folder, first["jobs"], first["overwrite"])


def _keys(overrides: Sequence[str]) -> list[str]:
    """Return the keys of overrides; a UserError names one that the comparison sets itself."""
    keys = [override.partition("=")[0].lstrip("+") for override in overrides]
    for key in keys:
        if instead := REPLACED.get(key):
            raise UserError(f"{key} has no effect: the comparison sets it. Omit it, or {instead}.")
    return keys


def objective_overrides(objective: str) -> list[str]:
    """Return an objective's overrides. A model with a number token loss brings that loss.

    Args:
        objective: A file of the group `loss` or of `model_args`, or overrides separated by spaces.

    Example:
        >>> objective_overrides("ntl_was"), objective_overrides("xval")
        (['loss=ntl_was'], ['model_args=xval'])
        >>> objective_overrides("rt_ntl")
        ['model_args=rt_ntl', 'loss=from_model_args']
        >>> objective_overrides("loss=ntl_was loss.weight=0.8")
        ['loss=ntl_was', 'loss.weight=0.8']
        >>> objective_overrides("loss=dist2 loss.options={tau: 2.0}")
        ['loss=dist2', 'loss.options={tau: 2.0}']
    """
    if "=" in objective:
        return re.split(r"\s+(?=[+~]*[\w.@]+=)", objective.strip())
    if objective not in choices("model_args"):
        return [f"loss={objective}"]
    brings_loss = objective.endswith("_ntl")
    return [f"model_args={objective}", *([f"loss={LOSS_OF_MODEL}"] if brings_loss else [])]
