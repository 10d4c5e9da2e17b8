"""`ntl compare`: train the same small T5 from scratch on the same data with several objectives and seeds.

    ntl compare
    ntl compare task=arithmetic task.data_dir=mathematics_dataset-v1.0 tokenizer=t5 seeds=[0,1]

The program writes table.md, results.json, figures and one file per run to `output_dir`. Repeating the command
of an interrupted comparison keeps the finished runs and continues with the others.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from ntl.comparison.configuration import describe_config, load_config
from ntl.comparison.progress import ComparisonProgress
from ntl.comparison.store import RunStore
from ntl.comparison.tables import markdown_tables, reference_line, references, summarise, terminal_table
from ntl.comparison.workers import Run, default_jobs, run_all, usable_cores
from ntl.errors import UserError, disk_full_error
from ntl.records import installed_versions, write_atomically
from ntl.tasks import TaskData, load_task

HELP = """\
usage: ntl compare [key=value ...]

Train the same small T5 from scratch on the same data with several objectives and seeds. Print a table, and
write it with figures and JSON to output_dir. Ctrl-C keeps finished runs; the same command continues.

examples:
  ntl compare
  ntl compare seeds=[0,1,2,3,4] objectives=[ce,ntl_was] output_dir=outputs/five-seeds
  ntl compare task=arithmetic task.data_dir=mathematics_dataset-v1.0 tokenizer=t5

Everything below can be set as section.key=value; task=NAME chooses the task.
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
        print(describe_config())
        return 0
    try:
        return compare(load_config(arguments), shlex.join(["ntl", "compare", *arguments]), _console())
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


def compare(config: Mapping[str, Any], command: str, console: Console) -> int:
    """Do the missing runs of a comparison, and report all runs.

    Args:
        config: Configuration from `configuration.load_config`.
        command: The command that continues the comparison, for messages.
        console: Console to print to.

    Returns:
        The exit code, see `main`.

    Raises:
        UserError: The data, the tokenizer or the output folder cannot be used.
    """
    folder = Path(config["output_dir"])
    runs = [Run(name, seed) for seed in config["seeds"] for name in config["objectives"]]
    data = load_task(config["task"])
    store = RunStore(folder, _identity(config, data), config["objective"])
    records = store.open(runs, config["overwrite"])
    missing = [run for run in runs if run not in records]
    jobs = min(config["jobs"] or default_jobs(), max(len(missing), 1))
    if records:
        console.print(f"{len(records)} of {len(runs)} runs are already finished in {folder}.", soft_wrap=True)
    failed: list[Run] = []
    interrupted = False
    started = time.monotonic()
    if missing:
        _announce(console, config, data, missing, jobs)
        with ComparisonProgress(console, config["training"]["steps"], len(missing)) as progress:

            def on_done(run: Run, result: dict[str, Any]) -> None:
                records[run] = store.save(run, result, installed_versions())
                test, metrics = next(iter(result["metrics"].items()))
                mae = "n/a" if metrics["mae"] is None else f"{metrics['mae']:.2f}"
                progress.end(run, f"{run}: {test} MAE {mae} ({result['seconds']:.0f} s)")

            def on_failed(run: Run, error: str) -> None:
                failed.append(run)
                progress.end(run, f"{run} FAILED:\n{error}")

            try:
                run_all(config, missing, jobs, progress.step, on_done, on_failed)
            except KeyboardInterrupt:
                interrupted = True

    ordered = [records[run] for run in runs if run in records]
    took = f"{len(missing)} run(s) in {(time.monotonic() - started) / 60:.1f} min with {jobs} worker(s)"
    if ordered:
        _report(config, data, ordered, folder, console)
    if interrupted:
        console.print(
            f"Interrupted with {len(ordered)} of {len(runs)} runs finished. To continue: {command}",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
        return 130
    if failed:
        names = "; ".join(map(str, failed))
        console.print(
            f"Failed: {names}. The same command repeats them: {command}", markup=False, soft_wrap=True
        )
        return 1
    if missing:
        console.print(f"{took}.", highlight=False)
    return 0


def _console() -> Console:
    console = Console()
    # Files and pipes have no width, and tables need room.
    return console if console.is_terminal else Console(width=140)


def _announce(
    console: Console, config: Mapping[str, Any], data: TaskData, missing: Sequence[Run], jobs: int
) -> None:
    tests = ", ".join(f"{len(examples)} {name}" for name, examples in data.tests.items())
    example = data.train[0]
    console.print(
        f"task {config['task']['name']}: {len(data.train)} training questions, test questions: {tests}; "
        f"for example {example.question!r} -> {example.answer!r}\n"
        f"{len(missing)} run(s) of {config['training']['steps']} steps, {jobs} at a time",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip


def _report(
    config: Mapping[str, Any],
    data: TaskData,
    records: Sequence[Mapping[str, Any]],
    folder: Path,
    console: Console,
) -> None:
    """Print the tables; write table.md, results.json and the figures."""
    from ntl.comparison.figures import draw

    summary = summarise(records)
    compared_with = references(data)
    for test, objectives in summary.items():
        console.print(terminal_table(test, objectives))
        console.print(reference_line(compared_with[test]), highlight=False, soft_wrap=True)
    training = config["training"]
    machine = {
        "cores": usable_cores(),
        "threads_per_run": 1,
        "system": platform.system(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
    }
    notes = [
        f"Task {config['task']['name']}; T5 from scratch, {records[0]['parameters']:,} parameters; "
        f"{training['steps']} steps of {training['batch_size']}; "
        f"torch {version('torch')}, {machine['cores']} cores, one thread per run."
    ]
    write_atomically(folder / "table.md", markdown_tables(summary, compared_with, notes))
    results = {
        "format": 1,
        "config": _without_paths(config),
        "data": data.fingerprint,
        "versions": installed_versions(),
        "machine": machine,
        "references": compared_with,
        "summary": summary,
        "runs": [{k: v for k, v in record.items() if k != "predictions"} for record in records],
    }
    write_atomically(folder / "results.json", json.dumps(results, indent=1))
    floors = {test: values["noise_floor"] for test, values in compared_with.items()}
    draw(records, floors, folder)
    console.print(f"Table, results.json and figures are in {folder}", markup=False, soft_wrap=True)


def _identity(config: Mapping[str, Any], data: TaskData) -> dict[str, Any]:
    """Return the settings and content hashes that two comparisons must share, regardless of paths."""
    shown = _without_paths(config)
    identity = {key: shown[key] for key in ("task", "model", "training", "tokenizer")}
    identity["data"] = data.fingerprint
    identity["vocabulary"] = None
    if config["tokenizer"] is not None:
        # Load a given tokenizer now, although it takes seconds, so that its errors come before any run.
        from ntl.encodings.digits import check_special_tokens, load_tokenizer, split_digits

        tokenizer = split_digits(load_tokenizer(config["tokenizer"]))
        check_special_tokens(tokenizer)
        vocabulary = tokenizer.get_vocab()
        text = json.dumps(sorted(vocabulary.items()))
        identity["vocabulary"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return identity


def _without_paths(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration without machine-specific paths: only folder names are kept."""
    shown = {k: v for k, v in config.items() if k not in ("output_dir", "overwrite", "jobs")}
    shown["task"] = dict(shown["task"])
    for section, key in ((shown, "tokenizer"), (shown["task"], "data_dir")):
        if section.get(key) is not None:
            section[key] = Path(section[key]).name
    return shown


if __name__ == "__main__":
    sys.exit(main())
