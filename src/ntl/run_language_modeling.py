"""The paper's program, which accepts the commands that the paper's repository published.

    python src/ntl/run_language_modeling.py model_args=vanilla_t5 training_args=train \
        run_specific_config@_global_=debug_config

It is also installed as `ntl-train`. Hydra composes the configuration from `ntl/config`; `--multirun` sweeps
over losses, weights and seeds.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # Python puts a script's folder first on the import path; its modules would shadow installed packages.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from ntl.cli import main as ntl  # says which package is missing, before this module imports it

    sys.exit(ntl(["train", *sys.argv[1:]]))

import shlex
import traceback
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import OverrideParseException

from ntl.config.compose import compose_config, describe_config
from ntl.config.effect import check_effect
from ntl.config.settings import RunSettings, read_settings
from ntl.errors import UserError
from ntl.program import HELP_OPTIONS, run_program
from ntl.training.run_folder import RunFolder

CONFIG = "run_language_modeling"
HELP = """\
usage: ntl train [--multirun] [key=value ...]

Train one model with one loss on one dataset, and answer its test sets. With --multirun, a key takes several
values, separated by commas: one run for each combination.

examples:
  ntl train model_args=vanilla_t5 training_args=train run_specific_config@_global_=debug_config
  ntl train --multirun loss=ce,ntl_was training_args.seed=0,1 dataset_args=arithmetic

Everything below can be set as section.key=value, and so can any argument of transformers'
Seq2SeqTrainingArguments, as training_args.key=value.
"""
MULTIRUN_OPTIONS = {"-m", "--multirun"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program on Hydra overrides and options; see `ntl.program.run_program`."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    program = ["python", sys.argv[0]] if sys.argv[0].endswith(".py") else ["ntl-train"]
    command = shlex.join([*program, *arguments, "training_args.resume_from_checkpoint=true"])
    return run_program("ntl-train", _train, arguments, f"To continue from the last checkpoint: {command}")


def _train(arguments: Sequence[str]) -> int:
    if HELP_OPTIONS & {*arguments}:
        print(HELP)
        print(describe_config(CONFIG))
        return 0
    overrides = [argument for argument in arguments if argument not in MULTIRUN_OPTIONS]
    runs = plan_runs(overrides, multirun=len(overrides) < len(arguments))
    from ntl.runs.run import run  # slow to import, so only after the configuration is checked

    if len(runs) == 1:
        run(runs[0])
        return 0
    failed = []
    for settings in map(continued, runs):
        try:
            if settings is not None:
                run(settings)
        except OSError:  # a full disk or a closed pipe would end the others, too
            raise
        except Exception as error:
            said = f"ntl-train: {error}" if isinstance(error, UserError) else traceback.format_exc()
            print(said, file=sys.stderr)
            failed.append(str(settings.output_dir))
    if failed:
        print(f"ntl-train: failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def continued(settings: RunSettings) -> RunSettings | None:
    """Return what is left of a run of a sweep that is to be continued, None for nothing.

    One that was never started, or killed before its first checkpoint, starts from scratch.
    """
    from ntl.training.folders import last_complete_checkpoint

    folder = RunFolder(settings.output_dir)
    resumes = settings.resume and settings.checkpoint is None and not settings.only_evaluate
    if not resumes or last_complete_checkpoint(folder.path) is not None:
        return settings
    if folder.holds_run() and folder.record().status == "finished":
        return None
    state = "has no checkpoint" if folder.holds_run() else "is new"
    print(f"ntl-train: {folder} {state}; training starts from scratch", file=sys.stderr)
    return replace(settings, resume=False, overwrite=True)


def plan_runs(overrides: Sequence[str], multirun: bool = False) -> list[RunSettings]:
    """Compose and check the configuration of every run.

    Args:
        overrides: Overrides of the command line.
        multirun: Whether overrides may be sweeps.
    """
    values = [_swept_values(override) if multirun else [override] for override in overrides]
    configs, runs = [], []
    for given in product(*values):
        swept = [chosen for chosen, override in zip(given, overrides, strict=True) if chosen != override]
        configs.append(compose_config(CONFIG, given, "ntl-train"))
        runs.append(read_settings(configs[-1], ",".join(swept)))
    check_effect(overrides, configs)
    return runs


def _swept_values(override: str) -> list[str]:
    """Return one override for each value of a sweep, or the override itself if it is not a sweep."""
    try:
        (parsed,) = OverridesParser.create().parse_overrides([override])
    except OverrideParseException:
        return [override]  # `compose_config` explains what is wrong with it
    if not parsed.is_sweep_override():
        return [override]
    return [f"{parsed.get_key_element()}={value}" for value in parsed.sweep_string_iterator()]
