"""`ntl train` and `ntl compare`: Hydra applications, each a run or a sweep of runs.

ntl train model_args=vanilla_t5 run_specific_config@_global_=debug_config
ntl train -m loss=ce,ntl_was training_args.seed=0,1
ntl compare studies/whole_numbers/sentiment.yaml
"""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Quote, QuotedString
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, read_write

from ntl.data.files import write_atomically
from ntl.errors import UserError
from ntl.layout import JOBS
from ntl.own import find_own_code
from ntl.run import run
from ntl.settings import CHANGES, check_keys, find_primary, read_config

log = logging.getLogger(__name__)
# Hydra refuses `+` before a key that exists; the paper's commands have it before this one.
WITH_PLUS = "+model_args.number_token_loss_function="
SHARED = ("train", "compare", "settings")  # files of `conf/` that studies extend
SWEEP = "NTL_SWEEP"  # variable in which the runs of a sweep find when it was started


def compare(arguments: Sequence[str]) -> int:
    """Run `ntl compare`, which is a sweep; return the exit code."""
    # A study cannot choose the launcher itself: Hydra reads this group from the command's own file alone.
    return train(["hydra.mode=MULTIRUN", "hydra/launcher=local", *arguments], "compare")


def train(arguments: Sequence[str], command: str = "train") -> int:
    """Run the Hydra application whose primary file is `conf/<command>.yaml`, or a study.

    Args:
        arguments: Options and overrides of Hydra. The first path of a YAML file is a study, a configuration
            whose `defaults` begin with that of the command.
        command: Name of the command.

    Returns:
        The exit code, which is 1 if Hydra refuses the configuration.
    """
    arguments = [f"+{each}" if each.startswith(WITH_PLUS) else each for each in arguments]
    primary: str | Path = command
    if studies := [each for each in arguments if each.endswith((".yaml", ".yml")) and "=" not in each]:
        primary = Path(studies[0])
        arguments.remove(studies[0])
        if primary.stem in SHARED:
            raise UserError(f"{primary} has the name of a file that it extends. Give it another name.")
    folder, name, more = find_primary(primary)
    # Hydra wants overrides side by side.
    overrides = [each for each in arguments if each[:1] != "-" and ("=" in each or each[:1] == "~")]
    options = [each for each in arguments if each not in overrides]
    before, sys.argv = sys.argv, [sys.argv[0], *overrides, *more, *options]
    try:
        hydra.main(config_path=folder, config_name=name, version_base="1.3")(task)()
    except UserError:
        raise
    except SystemExit as error:
        return int(error.code or 0)
    finally:
        sys.argv = before
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
    job = Job(folder, settings.job.num, float(settings.job.env_set[SWEEP])) if is_sweep else None
    find_own_code(settings.runtime.cwd)
    try:
        if job is not None:
            job.write("it is not finished")
        config = read_config(composed, settings.runtime.choices.loss)
        training = config.training_args
        if job is not None:
            training.disable_tqdm = True
            config.sweep, config.job = job.place
        # Hydra's folder of a single evaluation is that of the evaluation itself; see `choose_folder`.
        target = folder if training.do_only_eval and job is None else folder / config.evaluation.name
        metrics, is_new = run(config, folder, target)
    except (Exception, UserError) as error:
        if job is None:
            raise
        log.exception("failed")
        reason = " ".join(str(error).split()) or type(error).__name__
        job.write(reason)
        print(f"{folder.name} failed: {reason}", file=sys.stderr)
        return math.inf
    if job is not None:
        job.write(None)
        if composed.announce:
            print(f"{folder.name} {'is finished' if is_new else 'was finished already'}", file=sys.stderr)
    name = (training.metric_for_best_model or "loss").removeprefix("eval_")
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
        self.place = before.get("sweep", sweep), before.get("job", number)

    def write(self, reason: str | None) -> None:
        """Write why there are no results of the run, None if there are."""
        sweep, job = self.place
        content = {"sweep": sweep, "job": job, "latest": self.latest, "reason": reason}
        write_atomically(self.file, json.dumps(content))


class ReportCallback(Callback):
    """Checks keys and planned contrasts before the first run, and reports a sweep after its last."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Check the keys of a study and make the folder, before Hydra writes anything."""
        check_keys(map(str, config), OmegaConf.to_yaml(config))
        is_sweep = config.hydra.mode == RunMode.MULTIRUN
        folder = Path(config.hydra.sweep.dir, JOBS) if is_sweep else Path(config.hydra.run.dir)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"{folder} cannot be written ({error.strerror}). Pass another training_args.output_dir."
            ) from None

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Check the contrasts and their margin, too, and tell the runs what they share."""
        from ntl.report.contrasts import check_margin, read_contrasts

        contrasts: Any = OmegaConf.to_container(config.contrasts, resolve=True)
        read_contrasts(contrasts)
        check_margin(config.margin)
        self.on_run_start(config)
        folder = config.hydra.sweep.dir  # one for all, also if the dataset is swept
        self.sweep = time.time()
        given = OverridesParser.create().parse_overrides(config.hydra.overrides.task)
        for each in given:
            values = [*each.sweep_string_iterator()] if isinstance(each.value(), ChoiceSweep) else []
            if repeated := [value for value in values if values.count(value) > 1]:
                raise UserError(
                    f"{each.key_or_group} has the value {repeated[0]} twice. Omit one of the two."
                )
        fixed = [each.key_or_group for each in given if not each.is_sweep_override()]
        unnamed = [key for key in fixed if CHANGES.get(key, "model") != "model"]  # in the names of folders
        with read_write(config):
            config.hydra.overrides.hydra += [
                f"hydra.sweep.dir={QuotedString(folder, Quote.single).with_quotes()}",
                f"+hydra.job.env_set.{SWEEP}='{self.sweep!r}'",
                f"hydra.job.config.override_dirname.exclude_keys=[{','.join(unnamed)}]",
                "hydra.job_logging.root.handlers=[file]",  # runs would print between each other's lines
            ]

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Report the runs, without those that have no results; name these and exit with 1."""
        from ntl.report.program import remove_report, report

        folder = Path(config.hydra.sweep.dir)
        contrasts: Any = OmegaConf.to_container(config.contrasts, resolve=True)
        failed = {}
        for path in sorted((folder / JOBS).glob("*.json")):
            job = json.loads(path.read_text("utf-8"))
            # Another sweep may work in the same folder at the same time.
            if job.get("latest") == self.sweep and job["reason"] is not None:
                failed[folder / path.stem] = job["reason"]
        for each in failed:
            print(f"{each} has no results: its train.log says why", file=sys.stderr)
        try:
            report(
                [folder], folder / "report", config.evaluation.name, contrasts, config.margin, without=failed
            )
        except UserError as error:
            print(f"no report: {error}", file=sys.stderr)
            remove_report(folder / "report")  # an earlier one is not that of this sweep
            raise SystemExit(1) from None
        if failed:
            raise SystemExit(1)
