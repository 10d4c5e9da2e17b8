"""The paper's program, which accepts the commands that the paper's repository published.

    python src/ntl/run_language_modeling.py model_args=vanilla_t5 training_args=train \
        run_specific_config@_global_=debug_config

It is also installed as `ntl-train`. Hydra composes the configuration from `ntl/config`; its `--multirun`
sweeps over losses, weights and seeds.
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
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.main import get_args_parser
from omegaconf import DictConfig, OmegaConf

from ntl.configuration import compose_config
from ntl.errors import UserError, disk_full_error

CONFIG = "run_language_modeling"
# With one of these options, Hydra prints something instead of running, or reads another configuration folder.
HYDRA_ANSWERS = (
    "help",
    "hydra_help",
    "cfg",
    "info",
    "version",
    "shell_completion",
    "config_dir",
    "config_path",
)


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
    options, _ = get_args_parser().parse_known_args(arguments)
    try:
        swept = []
        if not any(getattr(options, name, None) for name in HYDRA_ANSWERS):
            swept = check(options.overrides, bool(options.multirun))

        @hydra.main(version_base="1.3", config_path="pkg://ntl.config", config_name=CONFIG)
        def job(config: DictConfig) -> None:
            run_job(config, swept)

        sys.argv = [sys.argv[0], *arguments]
        job()
    except UserError as error:
        return _report_error(error)
    except SystemExit as stop:  # raised by a job or by Hydra
        return int(stop.code or 0)
    except KeyboardInterrupt:
        print(
            "ntl-train: interrupted. To continue from the last checkpoint: "
            f"{command} training_args.resume_from_checkpoint=true",
            file=sys.stderr,
        )
        return 130
    return 0


def check(overrides: Sequence[str], multirun: bool) -> list[str]:
    """Check the configuration before Hydra runs anything, with errors that list the valid choices.

    Args:
        overrides: Overrides of the command line.
        multirun: Whether overrides may be sweeps. Each value of a sweep is then checked once, together with
            the first values of the other sweeps.

    Returns:
        The keys that are swept over.

    Raises:
        UserError: The configuration is invalid.
    """
    from ntl.experiment import Experiment
    from ntl.known_keys import check_effect, known_keys

    given, swept = list(overrides), {}
    if multirun:
        for i, override in enumerate(OverridesParser.create().parse_overrides(given)):
            if override.is_sweep_override():
                key = override.get_key_element()
                swept[i] = [f"{key}={value}" for value in override.sweep_string_iterator()]
                given[i] = swept[i][0]
    others = [[*given[:i], value, *given[i + 1 :]] for i, values in swept.items() for value in values[1:]]
    configs = []
    for one in (given, *others):
        ours = [o for o in one if not o.startswith("hydra")]
        configs.append(compose_config(CONFIG, ours, "ntl-train", known_keys))
        Experiment.from_config(configs[-1])
    check_effect([o.partition("=")[0].lstrip("+") for o in given], configs)
    return [values[0].partition("=")[0] for values in swept.values()]


def run_job(config: DictConfig, swept: Sequence[str]) -> None:
    """Run one experiment.

    Args:
        config: The composed configuration.
        swept: Keys that distinguish this run from the others of a sweep.

    Raises:
        SystemExit: With code 2, after a user-fixable error is printed.
    """
    from ntl.experiment import Experiment
    from ntl.run import run

    plain: Any = OmegaConf.to_container(config, resolve=True)
    task_overrides = HydraConfig.get().overrides.task
    chosen = [o for o in task_overrides if o.partition("=")[0] in swept]
    try:
        experiment = Experiment.from_config(plain, ",".join(chosen))
        resumes = experiment.resume and experiment.checkpoint is None and not experiment.only_evaluate
        if chosen and resumes and not experiment.folder.path.exists():
            # One command continues a killed sweep, including runs that were never started.
            print(f"ntl-train: {experiment.folder} is new; training starts from scratch", file=sys.stderr)
            experiment = replace(experiment, resume=False)
        run(experiment)
    except UserError as error:
        # Hydra would print a traceback for a `UserError`.
        raise SystemExit(_report_error(error)) from None
    except OSError as error:
        full = disk_full_error(
            error, "training_args.resume_from_checkpoint=true continues from the last checkpoint."
        )
        if full is None:
            raise
        raise SystemExit(_report_error(full)) from None


def _report_error(error: UserError) -> int:
    # Under torchrun every process raises the same error; only one prints it.
    if os.environ.get("RANK", "0") == "0":
        print(f"ntl-train: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
