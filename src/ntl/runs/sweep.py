"""`ntl compare`: runs of `ntl train` with several objectives and seeds, and a report of them.

    ntl compare
    ntl compare dataset_args=arithmetic dataset_args.data_dir=null seeds=[0,1]

Repeating the command of an interrupted comparison keeps the finished runs and continues with the others.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from tqdm import tqdm

from ntl.config.comparison import Comparison, load_comparison
from ntl.config.compose import describe_config
from ntl.config.settings import RunSettings
from ntl.data.files import only_writer_in
from ntl.program import HELP_OPTIONS, run_program
from ntl.runs.workers import run_all, uses_gpu

HELP = """\
usage: ntl compare [key=value ...]

Train models with several objectives and seeds on the same data, each as `ntl train` does, and report them as
`ntl report` does: tables with the differences relative to the first objective, and figures. Ctrl-C keeps
finished runs; the same command continues.

examples:
  ntl compare
  ntl compare seeds=[0,1,2,3,4] objectives=[ce,ntl_was] output_dir=outputs/five-seeds
  ntl compare dataset_args=arithmetic "objectives=[ce,'loss=ntl_was loss.weight=0.8']"

Everything below can be set as section.key=value.
"""
MAX_DEFAULT_JOBS = 4  # a run of a small model takes about 0.7 GiB
LINE_EVERY = 30.0  # seconds between two lines of progress without a terminal


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program on Hydra overrides; see `ntl.program.run_program`.

    Returns:
        The exit code: 0 if all runs are finished, 1 if one failed, otherwise that of `run_program`.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    command = shlex.join(["ntl", "compare", *arguments])
    return run_program("ntl compare", _compare, arguments, f"To continue: {command}")


def _compare(arguments: Sequence[str]) -> int:
    if HELP_OPTIONS & {*arguments}:
        print(HELP)
        print(describe_config("compare"))
        return 0
    return compare(load_comparison(arguments))


def compare(comparison: Comparison) -> int:
    """Execute the missing runs of a comparison, and report all finished ones.

    Returns:
        The exit code: 0 if all runs are finished, 1 if one failed.
        KeyboardInterrupt: The user interrupted the runs. The finished ones are reported.
    """
    with only_writer_in(comparison.output_dir):
        return _compare_alone(comparison)


def _compare_alone(comparison: Comparison) -> int:
    from ntl.report.program import check_output, report  # imports matplotlib
    from ntl.training.folders import remaining  # slow to import, so only after the configuration is checked

    runs, report_folder = comparison.runs, comparison.output_dir / "report"
    check_output(report_folder, overwrite=True)
    found = {name: remaining(settings, comparison.overwrite) for name, settings in runs.items()}
    missing = {name: settings for name, settings in found.items() if settings is not None}
    if len(missing) < len(runs):
        print(f"{len(runs) - len(missing)} of {len(runs)} runs are already finished.")
    done, interrupted = {*runs} - {*missing}, False
    if missing:
        check_data(missing.values())
        try:
            for name in do_runs(missing, comparison.jobs or default_jobs(missing.values())):
                done.add(name)
        except KeyboardInterrupt:
            interrupted = True
    if done:
        # In the order of the objectives, whichever runs are missing.
        objectives = list(dict.fromkeys(settings.output_dir.parent for settings in runs.values()))
        folders = [settings.output_dir for name, settings in runs.items() if name in done]
        folders.sort(key=lambda folder: objectives.index(folder.parent))
        report(folders, report_folder, overwrite=True, in_order=True)
    if interrupted:
        raise KeyboardInterrupt
    if failed := [name for name in runs if name not in done]:
        print(f"Failed: {'; '.join(failed)}. Run the same command again to repeat them.")
        return 1
    return 0


def check_data(runs: Collection[RunSettings]) -> None:
    """Build the models and load the data of all runs, so that errors appear before the first run."""
    from ntl.approaches import build_approach
    from ntl.data import load_task

    for run in {repr((replace(run.model, seed=0), run.loss)): run for run in runs}.values():
        build_approach(run.model, run.loss)
    for settings in {repr(settings.data): settings for settings in runs}.values():
        data = load_task(settings.data)
        tests = ", ".join(f"{len(examples)} {name}" for name, examples in data.tests.items())
        example = data.train[0]
        print(
            f"{settings.dataset}: {len(data.train)} training questions, test questions: {tests}; for example "
            f"{example.question!r} -> {example.answer!r}"
        )
        if data.note:
            print(data.note)


def do_runs(runs: Mapping[str, RunSettings], jobs: int) -> Iterator[str]:
    """Execute runs, `jobs` at a time, and show their combined progress.

    Yields:
        The name of each run that has finished. Runs that failed are only printed.
    """
    shares, ended = dict.fromkeys(runs, 0.0), 0
    bar = tqdm(
        total=len(runs), desc=f"0 of {len(runs)} runs", smoothing=0, miniters=0,
        mininterval=0.1 if sys.stderr.isatty() else LINE_EVERY,
        bar_format="{percentage:3.0f}% of all updates, {desc}, {elapsed}, about {remaining} left",
    )  # fmt: skip
    with bar, closing(run_all(runs, jobs)) as events:
        for name, kind, content in events:
            shares[name] = content if kind == "progress" else 1.0
            # Added up anew: rounding in a running sum would end above the total, with a remaining time of -0.
            bar.update(sum(shares.values()) - bar.n)
            if kind == "progress":
                continue
            ended += 1
            bar.set_description_str(f"{ended} of {len(runs)} runs")
            bar.write(f"{name} FAILED: {content}" if kind == "failed" else f"{name}: {content}")
            if kind == "done":
                yield name


def default_jobs(runs: Collection[RunSettings] = ()) -> int:
    """Return the default number of runs at a time: one on a GPU, else one per usable core, at most four."""
    if any(map(uses_gpu, runs)):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MAX_DEFAULT_JOBS)


if __name__ == "__main__":
    sys.exit(main())
