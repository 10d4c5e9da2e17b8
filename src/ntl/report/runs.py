"""Read evaluations of runs, and packs of earlier ones, into one long table, from which a report is made.

The table has a row for each metric of each test set of each run, with the columns

    dataset, task     the dataset's title, and the kind of it, such as tabular
    label, name       the row of a report that the run belongs to, and by which contrasts name its loss
    seed              random seed
    sweep, job        when the sweep was started, and the number of the run in it, by which rows are sorted
    test, questions   the test set, and the fingerprint of its questions
    metric, value     a name of `ntl.metrics.registry`; NaN if the metric is undefined
    folder            where the evaluation was read from

and one for each setting in which runs on one dataset differ, such as `loss.weight`, as text.
"""

import json
import lzma
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ntl.errors import UserError, describe
from ntl.terminal import format_setting

COLUMNS = [
    "dataset", "task", "label", "name", "seed", "sweep", "job", "test", "questions", "metric", "value",
    "folder",
]  # fmt: skip
CHECKPOINT = "checkpoint-"  # transformers' prefix of checkpoint folders
DATA = ("data", "evaluation.data")  # digests of rows, see `ntl.identity`
# Names in the packs of studies that were made without the lab.
RENAMED = {"greedy_mae": "mae", "coverage": "interval_coverage", "width": "interval_width"}


def read_runs(
    folders: Sequence[Path | str], name: str = "test", without: Mapping[Path, str] | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """Read all evaluations of one name in folders and their subfolders, and the packs in the folders.

    A pack is a file `metrics.csv`, as a report writes it, or `runs.jsonl`; both can be compressed.

    Args:
        folders: Folders that are or contain runs, or hold a pack.
        name: Name of the evaluations, `evaluation.name`.
        without: Folders of runs that are left out, with the reasons.

    Returns:
        The long table, with rows of a report in the order of the jobs and the folders; and one line for each
        run that is left out, because it is not finished, cannot be read, or repeats an earlier one.

    Raises:
        UserError: A folder does not exist, or nothing was found.
    """
    excluded = {path.resolve(): reason for path, reason in (without or {}).items()}
    parts, seen = [], set()
    left_out = [f"{path}: {reason}" for path, reason in (without or {}).items()]
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise UserError(f"{folder} is no folder; expected one that is or contains a run.")
        for path, read in _find(folder, name):
            if path.resolve() in seen or {*path.resolve().parents} & {*excluded}:
                continue
            seen.add(path.resolve())
            try:
                parts.append(read(path))
            except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
                left_out.append(f"{path} cannot be read ({describe(error)})")
        for run in sorted(path.parent for path in folder.rglob(".hydra")):
            if run.resolve() not in excluded and not any(
                path.exists() for path in (run / name / "metrics.json", run / "metrics.json")
            ):
                left_out.append(f"{run} has no finished evaluation named {name}")
    left_out = [*dict.fromkeys(left_out)]
    if not parts:
        found = "; ".join(left_out) or "Pass output folders of training"
        raise UserError(f"{', '.join(map(str, folders))}: no finished evaluation named {name}. {found}.")
    table = pd.concat(parts, ignore_index=True)
    table = _without_repeats(_name_rows(table.astype({"value": float})), left_out)
    return table.sort_values(["sweep", "job"], kind="stable", ignore_index=True), left_out


def _find(folder: Path, name: str) -> Iterator[tuple[Path, Callable[[Path], pd.DataFrame]]]:
    """Yield the files of a folder that hold results, with the functions that read them."""
    evaluations = sorted(folder.glob("metrics.json")) + sorted(folder.rglob(f"{name}/metrics.json"))
    if evaluations:  # a pack beside them is a report of them
        yield from ((path, _read_evaluation) for path in evaluations)
        return
    yield from ((path, _read_csv) for path in sorted(folder.glob("metrics.csv*")))
    yield from ((path, _read_lines) for path in sorted(folder.glob("runs.jsonl*")))


def _read_evaluation(path: Path) -> pd.DataFrame:
    """Read the `metrics.json` of an evaluation."""
    found = json.loads(path.read_text("utf-8"))
    identity = {**found["identity"]["model"], **found["identity"]["answers"]}
    del identity["training_args.seed"]
    settings = {key: format_setting(value) for key, value in identity.items()}
    if path.parent.parent.name.startswith(CHECKPOINT):  # not the final model of its run
        settings["checkpoint"] = path.parent.parent.name.removeprefix(CHECKPOINT)
    shared = {key: found[key] for key in ("dataset", "label", "name", "seed", "sweep", "job")}
    shared |= {"task": found["settings"]["dataset_args"].get("dataset_name"), "folder": str(path.parent)}
    rows = _rows(found["metrics"], {**shared, **settings}, found.get("fingerprints") or {})
    if not rows:
        raise LookupError("no metrics")
    return pd.DataFrame(rows)


def _rows(
    metrics: Mapping[str, Mapping[str, float | None]],
    shared: Mapping[str, Any],
    questions: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Make the rows of one run from its metrics by test set and what is the same in all rows."""
    return [
        {**shared, "test": test, "questions": questions.get(test, "")[:12], "metric": metric, "value": value}
        for test, found in metrics.items()
        for metric, value in found.items()
    ]


def _read_csv(path: Path) -> pd.DataFrame:
    """Read a pack that is a long table. One without `name` or `job` has them from its labels, in order."""
    types: dict[str, type] = defaultdict(lambda: str, seed=int, job=int, value=float)
    table = pd.read_csv(path, dtype=types).rename(columns={"objective": "label"}).drop_duplicates()
    named = _names_of(table["label"].unique())
    known = {
        "task": None, "name": table["label"].map(named), "job": table["label"].map([*named].index),
        "sweep": 0.0, "test": "test", "questions": "", "folder": str(path),
    }  # fmt: skip
    table = table.assign(**{key: value for key, value in known.items() if key not in table})
    return table.fillna({"questions": ""})


def _names_of(labels: Sequence[str]) -> dict[str, str]:
    """Map labels of a pack to the names of losses.

    Example:
        >>> [*_names_of(["T5", "T5 + NTL-WAS", "T5 regression head", "trees"]).values()]
        ['ce', 'ntl_was', 'head', 'trees']
    """
    found = {}
    for label in labels:
        plain = re.sub(r" \(.*\)$", "", label)
        model, _, loss = plain.partition(" + ")
        extended = any(other.startswith((f"{plain} + ", f"{plain} regression head")) for other in labels)
        name = "head" if model.endswith(" regression head") else loss or ("ce" if extended else model)
        found[label] = re.sub(r"[\s-]+", "_", name).lower()
    return found


def _read_lines(path: Path) -> pd.DataFrame:
    """Read a pack of runs named `dataset/arm/seedN`, in any order; those of a selection have a dataset."""
    rows: list[dict[str, Any]] = []
    opened = lzma.open if path.suffix == ".xz" else open
    with opened(path, "rt", encoding="utf-8") as lines:
        for run in map(json.loads, lines):
            dataset, *names = run["run"].split("/")
            arm = [name for name in names if not re.fullmatch(r"seed\d+", name)]
            if arm[0] == "selection":
                dataset, arm = f"{dataset}, selection", arm[1:]
            nested = any(isinstance(value, dict) for value in run["metrics"].values())
            metrics = run["metrics"] if nested else {"test": run["metrics"]}
            renamed = {t: {RENAMED.get(m, m): v for m, v in of.items()} for t, of in metrics.items()}
            label, seed = "/".join(arm), run["record"]["seed"]
            shared = {"dataset": dataset, "label": label, "name": label, "seed": seed, "folder": str(path)}
            rows += _rows(renamed, {**shared, "task": None}, {})
    table = pd.DataFrame(rows)
    return table.assign(job=pd.factorize(table["label"])[0], sweep=0.0)


def _name_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Add to each label the settings that distinguish it from others of the same name.

    Settings that are equal in all runs on a dataset are dropped. A seed besides the run's, such as
    `train_seed`, does not count if it is each run's own.
    """
    settings = [key for key in table if key not in COLUMNS]
    table[settings] = table[settings].astype(object).fillna("null")
    rows = [table["dataset"], table["label"]]
    for key in [key for key in settings if key.endswith("_seed")]:
        own = table[key] == table["seed"].astype(str)
        table[key] = table[key].mask(own.groupby(rows).transform("all"), "null")
    for key in [key for key in DATA if key in settings]:  # each seed may draw rows of its own
        of_seed = table[key].groupby([*rows, table["seed"]]).transform("nunique")
        is_one = of_seed.groupby(rows).transform("max") == 1
        table[key] = table[key].str[:6].mask(is_one, "null")
    labels = table["label"].copy()
    for (_, label), same in table.groupby(rows, sort=False):
        differs = [key for key in settings if same[key].nunique() > 1]
        for values, row in same.groupby(differs, sort=False) if differs else ():
            pairs = zip(differs, values, strict=True)
            shown = [f"{key.rpartition('.')[2]}={value}" for key, value in pairs if value != "null"]
            labels[row.index] = f"{label} ({', '.join(shown)})" if shown else label
    kept = [key for key in settings if table.groupby("dataset")[key].nunique().gt(1).any()]
    return table.assign(label=labels)[[*COLUMNS, *kept]]


def _without_repeats(table: pd.DataFrame, left_out: list[str]) -> pd.DataFrame:
    """Keep the first of several runs with the same row and seed, and describe the others in `left_out`."""
    run = ["dataset", "label", "seed"]
    first = table.groupby(run)["folder"].transform("first")
    repeats = (table["folder"] != first) | table.duplicated([*run, "test", "metric"])
    for folder, kept in dict.fromkeys(zip(table["folder"][repeats], first[repeats], strict=True)):
        left_out.append(f"{folder} repeats {kept}, which is kept")
    return table[~repeats]


def read_curves(table: pd.DataFrame) -> pd.DataFrame:
    """Read the learning curves of runs, which transformers' Trainer has left in `trainer_state.json`.

    Args:
        table: What `read_runs` returns.

    Returns:
        A row for each metric of the validation set at each evaluation during training, with the columns
        `dataset`, `label`, `seed`, `step`, `metric` (without `eval_`) and `value`.
    """
    rows = []
    for run in table.drop_duplicates("folder").itertuples():
        path = Path(run.folder).parent / "trainer_state.json"
        for entry in json.loads(path.read_text("utf-8"))["log_history"] if path.exists() else ():
            for key, value in entry.items():
                if key.startswith("eval_"):
                    metric = key.removeprefix("eval_")
                    rows.append((run.dataset, run.label, run.seed, entry["step"], metric, value))
    return pd.DataFrame(rows, columns=["dataset", "label", "seed", "step", "metric", "value"])
