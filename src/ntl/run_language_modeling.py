"""The paper's program, which accepts the commands that the paper's repository published.

    python src/ntl/run_language_modeling.py model_args=vanilla_t5 training_args=train \
        run_specific_config@_global_=debug_config

It is also installed as `ntl-train`. Hydra composes the configuration from `ntl/config`; `--multirun` sweeps
over losses, weights and seeds.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    # Python puts a script's folder first on the import path; its modules would shadow installed packages.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.main import get_args_parser

from ntl.config.compose import compose_config, describe_config
from ntl.config.settings import RunSettings
from ntl.errors import UserError, disk_full_error

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
# With one of these options, Hydra prints something and runs nothing.
HYDRA_ANSWERS = ("hydra_help", "cfg", "info", "version", "shell_completion")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program.

    Args:
        arguments: Hydra overrides and options. Default: `sys.argv[1:]`.

    Returns:
        The exit code: 0 for success, 2 for a user-fixable error, 130 if interrupted.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    program = ["python", sys.argv[0]] if sys.argv[0].endswith(".py") else ["ntl-train"]
    command = shlex.join([*program, *arguments])
    if {"-h", "--help"} & {*arguments}:
        print(HELP)
        print(describe_config(CONFIG))
        return 0
    try:
        options, _ = get_args_parser().parse_known_args(arguments)
        if any(getattr(options, name, None) for name in HYDRA_ANSWERS):
            sys.argv = [sys.argv[0], *arguments]
            hydra.main(version_base="1.3", config_path="pkg://ntl.config", config_name=CONFIG)(print)()
            return 0
        for settings in plan_runs(options.overrides, bool(options.multirun)):
            do_run(settings)
    except UserError as error:
        return _report_error(error)
    except SystemExit as stop:  # raised by Hydra
        return int(stop.code or 0)
    except KeyboardInterrupt:
        print(
            "ntl-train: interrupted. To continue from the last checkpoint: "
            f"{command} training_args.resume_from_checkpoint=true",
            file=sys.stderr,
        )
        return 130
    return 0


def plan_runs(overrides: Sequence[str], multirun: bool = False) -> list[RunSettings]:
    """Compose and check the configuration of every run.

    Args:
        overrides: Overrides of the command line.
        multirun: Whether overrides may be sweeps.

    Returns:
        The settings of each run.

    Raises:
        UserError: A configuration is invalid.
    """
    from ntl.config.known_keys import check_effect
    from ntl.config.paper_keys import read_settings

    values = {i: [override] for i, override in enumerate(overrides)}
    if multirun:
        for i, override in enumerate(OverridesParser.create().parse_overrides(list(overrides))):
            if override.is_sweep_override():
                key = override.get_key_element()
                values[i] = [f"{key}={value}" for value in override.sweep_string_iterator()]
    configs, runs = [], []
    for given in product(*values.values()):
        swept = [chosen for chosen, override in zip(given, overrides, strict=True) if chosen != override]
        configs.append(compose_config(CONFIG, given, "ntl-train"))
        settings = read_settings(configs[-1], ",".join(swept))
        resumes = settings.resume and settings.checkpoint is None and not settings.only_evaluate
        if swept and resumes and not settings.output_dir.exists():
            # One command continues a killed sweep, including runs that were never started.
            print(f"ntl-train: {settings.output_dir} is new; training starts from scratch", file=sys.stderr)
            settings = replace(settings, resume=False)
        runs.append(settings)
    check_effect([override.partition("=")[0].lstrip("+") for override in overrides], configs)
    return runs


def do_run(settings: RunSettings) -> None:
    """Do one run.

    Raises:
        UserError: The run cannot be done, or the disk is full.
    """
    from ntl.training.run import run

    try:
        run(settings)
    except OSError as error:
        full = disk_full_error(
            error, "training_args.resume_from_checkpoint=true continues from the last checkpoint."
        )
        if full is None:
            raise
        raise full from None


def _report_error(error: UserError) -> int:
    # Under torchrun every process raises the same error; only one prints it.
    if os.environ.get("RANK", "0") == "0":
        print(f"ntl-train: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
