"""`ntl compare`: runs of `ntl train` with several objectives and seeds, and a report of them.

    ntl compare
    ntl compare dataset_args=arithmetic dataset_args.data_dir=null seeds=[0,1]

Repeating the command of an interrupted comparison keeps the finished runs and continues with the others.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from ntl.config.comparison import Comparison, load_comparison
from ntl.config.compose import describe_config
from ntl.config.settings import RunSettings
from ntl.errors import UserError, disk_full_error
from ntl.training.progress import SweepProgress
from ntl.training.run_folder import Metrics, RunFolder
from ntl.training.workers import default_jobs, run_all

HELP = """\
usage: ntl compare [key=value ...]

Train models with several objectives and seeds on the same data, each as `ntl train` does, and report them as
`ntl report` does: tables with the differences to the first objective, and figures. Ctrl-C keeps finished
runs; the same command continues.

examples:
  ntl compare
  ntl compare seeds=[0,1,2,3,4] objectives=[ce,ntl_was] output_dir=outputs/five-seeds
  ntl compare dataset_args=arithmetic "objectives=[ce,'loss=ntl_was loss.weight=0.8']"

Everything below can be set as section.key=value.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program.

    Args:
        arguments: Hydra overrides. Default: `sys.argv[1:]`.

    Returns:
        The exit code: 0 if all runs are finished, 1 if one failed, 2 for a user-fixable error, 130 if
        interrupted.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if {"-h", "--help"} & set(arguments):
        print(HELP)
        print(describe_config("compare"))
        return 0
    try:
        return compare(load_comparison(arguments), shlex.join(["ntl", "compare", *arguments]), _console())
    except UserError as error:
        print(f"ntl compare: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        full = disk_full_error(error, "the same command keeps the finished runs and continues.")
        if full is None:
            raise
        print(f"ntl compare: {full}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("ntl compare: interrupted; the same command continues", file=sys.stderr)
        return 130


def compare(comparison: Comparison, command: str, console: Console) -> int:
    """Do the missing runs of a comparison, and report all finished ones.

    Args:
        comparison: The runs.
        command: The command that continues the comparison, for messages.
        console: Console to print to.

    Returns:
        The exit code, see `main`.

    Raises:
        UserError: The data, a model or the output folder cannot be used.
    """
    runs, folder = comparison.runs, comparison.output_dir
    missing = missing_runs(runs, comparison.overwrite)
    jobs = min(comparison.jobs or default_jobs(), max(len(missing), 1))
    if len(missing) < len(runs):
        console.print(
            f"{len(runs) - len(missing)} of {len(runs)} runs are already finished in {folder}.",
            soft_wrap=True,
        )
    started = time.monotonic()
    if missing:
        _announce(missing, jobs, console)
    failed, interrupted = _do(missing, jobs, console)
    finished = [settings.output_dir for name, settings in runs.items() if name not in failed]
    finished = [path for path in finished if _is_finished(path)]
    if finished:
        from ntl.report.program import report

        report(_by_objective(finished), folder / "report", overwrite=True, in_order=True)
    if missing and not failed and not interrupted:
        minutes = (time.monotonic() - started) / 60
        console.print(f"{len(missing)} run(s) in {minutes:.1f} min with {jobs} worker(s).", highlight=False)
    return _exit_code(f"{len(finished)} of {len(runs)}", failed, interrupted, command, console)


def _exit_code(
    finished: str, failed: Sequence[str], interrupted: bool, command: str, console: Console
) -> int:
    """Say how an incomplete comparison continues, and return the exit code."""
    if interrupted:
        message = f"Interrupted with {finished} runs finished. To continue: {command}"
    elif failed:
        message = f"Failed: {'; '.join(failed)}. The same command repeats them: {command}"
    else:
        return 0
    console.print(message, markup=False, highlight=False, soft_wrap=True)
    return 130 if interrupted else 1


def missing_runs(runs: Mapping[str, RunSettings], overwrite: bool) -> dict[str, RunSettings]:
    """Find the runs that are not finished, and check the folders of all.

    Args:
        runs: Settings of each run, by its name.
        overwrite: Whether runs of another configuration are replaced.

    Returns:
        Settings that start, continue or replace each run that is not finished, or that read a finished one
        again with more readings.

    Raises:
        UserError: A folder holds a run of another configuration and `overwrite` is false, or cannot be used.
    """
    # Imported here, because these modules import transformers.
    from ntl.config.paper_keys import evaluated_settings, only_adds_readings
    from ntl.training.folders import check_folder, differing_setting
    from ntl.training.trainer import last_complete_checkpoint

    missing = {}
    for name, settings in runs.items():
        folder = RunFolder(settings.output_dir)
        if not folder.holds_run():
            check_folder(settings)
            missing[name] = settings
            continue
        record = folder.record()
        differing = differing_setting(settings)
        before, now = evaluated_settings(record.config), evaluated_settings(settings.config)
        finished = differing is None and record.status == "finished"
        if finished and only_adds_readings(settings.config, record.config):
            continue
        if finished and only_adds_readings(record.config, settings.config):
            model = replace(settings.model, checkpoint=str(folder))
            missing[name] = replace(settings, only_evaluate=True, model=model)
            continue
        if finished and before != now:
            key = min(key for key in {*before, *now} if before.get(key) != now.get(key))
            differing = key, before.get(key), now.get(key)
        if differing is not None and not overwrite:
            key, there, here = differing
            raise UserError(
                f"{folder} holds a run of another configuration: {key} is {there!r} there, {here!r} here. "
                "Pass another output_dir, or overwrite=true to replace such runs."
            )
        resume = differing is None and last_complete_checkpoint(folder.path) is not None
        missing[name] = replace(settings, resume=resume, overwrite=not resume)
    return missing


def _do(missing: Mapping[str, RunSettings], jobs: int, console: Console) -> tuple[list[str], bool]:
    """Do the runs; return those that failed, and whether the user interrupted them."""
    failed: list[str] = []
    with SweepProgress(console, len(missing)) as progress:

        def on_done(run: str, metrics: dict[str, Metrics]) -> None:
            from ntl.training.callbacks import describe_metrics

            test = next((name for name in metrics if name != "validation"), "validation")
            progress.end(run, f"{run}: {test}: {describe_metrics(metrics[test])}")

        def on_failed(run: str, error: str) -> None:
            failed.append(run)
            progress.end(run, f"{run} FAILED: {error}")

        try:
            run_all(missing, jobs, progress.update, on_done, on_failed)
        except KeyboardInterrupt:
            return failed, True
    return failed, False


def _announce(missing: Mapping[str, RunSettings], jobs: int, console: Console) -> None:
    """Load models' tokenizers and the data once, so that their errors precede all runs; describe the data."""
    from ntl.approaches.pretrained import check_model
    from ntl.data import load_task

    first = next(iter(missing.values()))
    for settings in missing.values():
        check_model(settings.model)
    data = load_task(first.data)
    tests = ", ".join(f"{len(examples)} {name}" for name, examples in data.tests.items())
    example = data.train[0]
    console.print(
        f"{first.dataset}: {len(data.train)} training questions, test questions: {tests}; for example "
        f"{example.question!r} -> {example.answer!r}\n{len(missing)} run(s), {jobs} at a time",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip


def _is_finished(path: Path) -> bool:
    folder = RunFolder(path)
    return folder.holds_run() and folder.record().status == "finished"


def _by_objective(folders: Sequence[Path]) -> list[Path]:
    """Sort run folders, which are in the order of seeds, by objective; objectives keep their order."""
    order = list(dict.fromkeys(path.parent for path in folders))
    return sorted(folders, key=lambda path: order.index(path.parent))


def _console() -> Console:
    console = Console()
    # Files and pipes have no width, and tables need room.
    return console if console.is_terminal else Console(width=140)


if __name__ == "__main__":
    sys.exit(main())
