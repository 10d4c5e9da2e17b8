"""`ntl train` and `ntl compare`: Hydra applications, each a run or a sweep of runs.

ntl train model_args=vanilla_t5 run_specific_config@_global_=debug_config
ntl train -m loss=ce,ntl_was training_args.seed=0,1
ntl compare studies/whole_numbers/sentiment.yaml
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Quote, QuotedString
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, read_write
from omegaconf.errors import OmegaConfBaseException

from ntl.data.files import write_atomically
from ntl.errors import CONTINUES, UserError, unknown_key
from ntl.evaluate import first_place
from ntl.layout import HYDRA, JOBS
from ntl.own import find_own_code
from ntl.run import run
from ntl.settings import TOP, changes, find_primary, read_config, unread_keys
from ntl.terminal import HELP_OPTIONS, print_keys

log = logging.getLogger(__name__)
# Hydra refuses `+` before a key that exists; the paper's commands have it before this one.
WITH_PLUS = "+model_args.number_token_loss_function="
GROUPS = (
    "dataset_args", "model_args", "weights", "loss", "training_args", "evaluation",
    "run_specific_config@_global_",
)  # fmt: skip
SHARED = ("train", "compare", "settings")  # files of `conf/` that studies extend
NO_GROUP = {f"{group}=null": f"~{group}" for group in ("dataset_args", "model_args", "weights", "loss")}
SWEEP = "NTL_SWEEP"  # variable in which the runs of a sweep find when it was started
NO_SWEEP = {"-m", "--multirun", "-h", "--help", "--hydra-help", "-c", "--cfg", "-i", "--info", "--version"}


def compare(arguments: Sequence[str]) -> int:
    """Run `ntl compare`: a sweep, unless another of Hydra's options is given; return the exit code."""
    given = {argument.partition("=")[0] for argument in arguments}
    added = [] if given & NO_SWEEP else ["--multirun"]
    # A study cannot choose the launcher itself: Hydra reads this group from the command's own file alone.
    added += [] if "hydra/launcher" in given else ["hydra/launcher=local"]
    return train([*arguments, *added], "compare")


def train(arguments: Sequence[str], command: str = "train") -> int:
    """Run the Hydra application whose primary file is `conf/<command>.yaml`, or a study.

    Args:
        arguments: Options and overrides of Hydra. The path of a YAML file, if it comes first or after -m, is
            a study, a configuration whose `defaults` begin with that of the command. With `--help`, the keys
            of the groups that are chosen are printed, or else Hydra's page of the command.
        command: Name of the command.

    Returns:
        The exit code.

    Raises:
        UserError: Hydra refuses the configuration.
    """
    arguments = [NO_GROUP.get(each, each) for each in arguments]
    arguments = [f"+{each}" if each.startswith(WITH_PLUS) else each for each in arguments]
    primary: str | Path = command
    first = next((i for i, each in enumerate(arguments) if each not in ("-m", "--multirun")), 0)
    if arguments and arguments[first].endswith((".yaml", ".yml")):
        primary = Path(arguments.pop(first))
        if not primary.is_file() or primary.stem in SHARED:
            raise UserError(
                f"{primary} is no study; expected a YAML file, which has another name than the files that "
                f"studies extend: {', '.join(SHARED)}."
            )
    folder, name, more = find_primary(primary)
    arguments += more
    before = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    # Hydra wants overrides side by side.
    overrides = [each for each in arguments if each[:1] != "-" and ("=" in each or each[:1] == "~")]
    options = [each for each in arguments if each not in overrides]
    given = {each.partition("=")[0] for each in options}
    if given & {"-m", "--multirun"} and (shown := given & {"-c", "--cfg", "-i", "--info"}):
        raise UserError(f"-m is given together with {shown.pop()}, which runs nothing. Omit one of the two.")
    sys.argv = [sys.argv[0], *overrides, *options]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors, which are printed here
    try:
        if HELP_OPTIONS & {*options} and _print_choices(command, overrides):
            return 0
        hydra.main(config_path=folder, config_name=name, version_base="1.3")(task)()
    except SystemExit as error:
        if isinstance(error.__cause__, UserError):
            raise error.__cause__ from None
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except (HydraException, OmegaConfBaseException) as error:
        lines = f"{error}\n{error.__cause__ or ''}".splitlines()
        # Nothing would read a key that is appended.
        kept = [line for line in lines if line.strip() and not line.startswith("To append to your config")]
        raise UserError("\n".join(dict.fromkeys(kept))) from None
    finally:
        sys.argv = before[0]
        if before[1] is None:
            del os.environ["HYDRA_FULL_ERROR"]
    return 0


def task(composed: DictConfig) -> float:
    """Do one run, Hydra's job, in the folder that Hydra chose.

    Returns:
        The validation metric that chooses checkpoints, which a sweeper such as Optuna can minimize; infinity
        if it is undefined, and for a run of a sweep that fails, whose `train.log` says why.
    """
    settings: Any = HydraConfig.get()
    path = Path(settings.runtime.output_dir)
    folder = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    is_sweep = settings.mode == RunMode.MULTIRUN
    job = Job(path, settings.job.num, float(settings.job.env_set[SWEEP])) if is_sweep else None
    find_own_code(settings.runtime.cwd)
    try:
        if job is not None:
            root = logging.getLogger()  # the runs would print between each other's lines
            for handler in [each for each in root.handlers if type(each) is logging.StreamHandler]:
                root.removeHandler(handler)
            job.write("it is not finished")
        config = read_config(composed, settings.runtime.choices.get("loss"))
        training = config.training_args
        training.disable_tqdm = job is not None or training.disable_tqdm
        config.sweep, config.job = (time.time(), 0) if job is None else job.place
        # Hydra's folder of a single evaluation is that of the evaluation itself; see `settings.run_folder`.
        target = folder if training.do_only_eval and job is None else folder / config.evaluation.name
        metrics, is_new = run(config, folder, target, lambda: _write_configuration(composed, folder / HYDRA))
    except Exception as error:
        if job is not None:
            log.exception("failed")
            reason = " ".join(str(error).split()) or type(error).__name__
            job.write(reason, isinstance(error, UserError))
            print(f"{folder.name} failed: {reason}", file=sys.stderr)
            return math.inf
        if isinstance(error, UserError):  # above other errors, Hydra prints all overrides
            raise SystemExit(2) from error
        raise
    if job is not None:
        job.write(None)
        if composed.announce:
            print(f"{folder.name} {'is finished' if is_new else 'was finished already'}", file=sys.stderr)
    name = str(composed.training_args.get("metric_for_best_model") or "loss").removeprefix("eval_")
    value = metrics["validation"].get(name)
    return math.inf if value is None else value


class Job:
    """A run of a sweep, and what became of it: a file beside the runs, for the report of the sweep.

    A sweep is one call of `ntl compare` or `ntl train -m`, known by the time when it was started, and a job
    is the number of a run in it. Reports sort rows by both, and compare with the first. So a run keeps the
    place that it had at first, when later sweeps name it again, continue it or evaluate it anew.

    Args:
        folder: Folder of the run.
        number: Its number in the sweep.
        sweep: When the sweep was started.
    """

    def __init__(self, folder: Path, number: int, sweep: float):
        self.file = folder.parent / JOBS / f"{folder.name}.json"
        self.latest = sweep
        before = json.loads(self.file.read_text("utf-8")) if self.file.is_file() else {}
        self.place = first_place(folder, (before.get("sweep", sweep), before.get("job", number)))

    def write(self, reason: str | None, is_refused: bool = False) -> None:
        """Write why there are no results of the run, None if there are, and whether it was refused."""
        sweep, job = self.place
        content = {"sweep": sweep, "job": job, "latest": self.latest}
        write_atomically(self.file, json.dumps({**content, "reason": reason, "refused": is_refused}))


def _write_configuration(composed: DictConfig, folder: Path) -> None:
    """Write the files of `.hydra` as Hydra itself does, but not for a command that is refused."""
    settings: Any = HydraConfig.instance().cfg
    written = {"config": composed, "hydra": settings, "overrides": settings.hydra.overrides.task}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in written.items():
        OmegaConf.save(content, folder / f"{name}.yaml")


class ReportCallback(Callback):
    """Checks keys, folder and planned contrasts before the first run, and reports a sweep after its last."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Check the keys and the folder, before Hydra writes into it: exit, with a UserError as the cause."""
        settings = config.hydra.sweep if config.hydra.mode == RunMode.MULTIRUN else config.hydra.run
        try:
            folder, given = Path(settings.dir), (config.get("training_args") or {}).get("output_dir")
        except OmegaConfBaseException:
            return  # Hydra will explain it
        try:
            for key in unread_keys([str(key) for key in config], OmegaConf.to_yaml(config)):
                raise unknown_key("", key, TOP)
            if given == "":  # a variable of the shell that is not set
                raise UserError(
                    "training_args.output_dir is empty; expected a folder, or null for one below outputs/."
                )
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise PermissionError(13, "Permission denied")
        except OSError as error:
            raise SystemExit(2) from UserError(
                f"{folder} cannot be written ({error.strerror}); expected a folder that can be written to. "
                "Pass another training_args.output_dir."
            )
        except UserError as error:
            raise SystemExit(2) from error

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Check the contrasts and their margin, too."""
        from ntl.report.contrasts import check_margin, read_contrasts

        contrasts: Any = OmegaConf.to_container(config.contrasts, resolve=True)
        try:
            read_contrasts(contrasts)
            check_margin(config.margin)
            unnamed = _check_swept(config.hydra)
        except UserError as error:
            raise SystemExit(2) from error
        self.on_run_start(config)
        folder = config.hydra.sweep.dir
        Path(folder, JOBS).mkdir(exist_ok=True)
        self.sweep = time.time()
        with read_write(config):  # the runs have one folder, also those of a sweep over datasets
            given = QuotedString(folder, Quote.single).with_quotes()
            shared = [f"hydra.sweep.dir={given}", f"+hydra.job.env_set.{SWEEP}='{self.sweep!r}'"]
            shared.append(f"hydra.job.config.override_dirname.exclude_keys=[{','.join(unnamed)}]")
            config.hydra.overrides.hydra += shared

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Report the runs, without those that have no results; name these and exit with 1."""
        from ntl.report.program import remove_report, report

        folder = Path(config.hydra.sweep.dir)
        contrasts: Any = OmegaConf.to_container(config.contrasts, resolve=True)
        failed, continues = {}, False
        for path in sorted((folder / JOBS).glob("*.json")):
            job = json.loads(path.read_text("utf-8"))
            # Another sweep may work in the same folder at the same time.
            if job.get("latest") == self.sweep and job["reason"] is not None:
                failed[folder / path.stem] = job["reason"]
                continues = continues or not job["refused"]
        is_reported = True
        try:
            report(
                [folder], folder / "report", config.evaluation.name, contrasts, config.margin, without=failed
            )
        except UserError as error:
            print(f"no report: {error}", file=sys.stderr)
            is_reported = False
            remove_report(folder / "report")  # an earlier one is not that of this sweep
        for each in failed:
            print(f"{each} has no results: its train.log says why", file=sys.stderr)
        if continues:
            print(CONTINUES, file=sys.stderr)
        if failed or not is_reported:
            raise SystemExit(1)


def _print_choices(command: str, overrides: Sequence[str]) -> bool:
    """Print the keys of each chosen group with their values and meaning; return whether there is one."""
    given = [override.partition("=") for override in overrides]
    if not any(key in GROUPS for key, *_ in given):
        return False
    with hydra.initialize_config_module("ntl.conf", version_base="1.3"):
        composed = hydra.compose(command, [*overrides])
    for key, _, choice in given:
        if key in GROUPS and key in composed:
            kind: Any = OmegaConf.get_type(composed, key)
            values: Any = OmegaConf.to_container(composed[key], resolve=False, enum_to_str=True)
            print_keys(f"{key}={choice}", kind, values, f"{key}.")
    return True


def _check_swept(settings: DictConfig) -> list[str]:
    """Return the keys that are not in the names of a sweep's folders, quoted.

    They are the settings that do not change training and have one value.

    Args:
        settings: Hydra's settings of the sweep.

    Raises:
        UserError: A key has a value twice: two runs would write into one folder.
    """
    swept = [f"{key}={values}" for key, values in (settings.sweeper.get("params") or {}).items()]
    parse = OverridesParser.create().parse_overrides
    given = {each.key_or_group: each for each in parse([*swept, *settings.overrides.task])}
    unnamed = []
    for key, override in given.items():
        if not override.is_sweep_override():
            unnamed += [] if changes(key) == "model" else [f"'{key}'"]
        elif isinstance(override.value(), ChoiceSweep):
            values = [*override.sweep_string_iterator()]
            if repeated := [value for value in values if values.count(value) > 1]:
                raise UserError(f"{key} has the value {repeated[0]} twice in a sweep. Omit one of the two.")
    return unnamed
