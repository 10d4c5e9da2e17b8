"""Read evaluations of runs, and packs of earlier ones, into one long table, from which a report is made.

The table has a row for each metric of each test set of each run, with the columns

    dataset           the dataset's title
    row, name         the row of a report that the run belongs to, and by which contrasts name its loss
    seed              random seed
    test, questions   the test set, or `validation, step N` during training; the fingerprint of all its
                      questions, of which as many are asked as the metric `count` says
    metric, value     a name of `ntl.metrics.registry`; NaN if the metric is undefined
    task              the kind of the dataset, such as tabular; packs of earlier versions lack it

and one for each setting in which runs on one dataset differ, such as `loss.weight`, as text. A pack is this
table as a file, `metrics.csv` or `metrics.csv.xz`, without undefined metrics. In memory, the table also has

    sweep, job        when the sweep was started, and the number of the run in it, by which rows are sorted
    trained_on        digest of what the rows of the run were drawn from, see `ntl.identity`
    folder            where the evaluation was read from
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from ntl.errors import UserError, describe
from ntl.identity import CODE, DATA, OF_ANSWERS, ROWS, SOURCE
from ntl.layout import CHECKPOINT, HYDRA, PACK, RESULTS, STATE
from ntl.metrics.registry import METRICS, split_metric
from ntl.own import is_own
from ntl.terminal import format_setting

# The columns of every pack.
PACK_COLUMNS = ["dataset", "row", "name", "seed", "test", "questions", "metric", "value"]
COLUMNS = [*PACK_COLUMNS, "task", "sweep", "job", "trained_on", "folder"]
# Keys of an identity, also of that of an evaluation.
DIGESTS = tuple(f"{of}{key}" for key in (DATA, ROWS, CODE) for of in ("", OF_ANSWERS))
STEP = "validation, step "  # prefix of the test set of a row that was measured during training


def read_runs(
    folders: Sequence[Path | str], name: str | None = None, without: Mapping[Path, str] = {}
) -> tuple[pd.DataFrame, list[str]]:
    """Read all evaluations of one name in folders and their subfolders, or the packs of folders without any.

    Args:
        folders: Folders that are or contain runs, or hold a pack; or files that are packs.
        name: Name of the evaluations, `evaluation.name`. None: `test`, and that of a folder that is an
            evaluation itself.
        without: Folders of runs that are left out, with the reasons.

    Returns:
        The long table, with rows of a report in the order of the jobs and the folders; and one line for each
        run that is left out, because it is not finished, cannot be read, or repeats an earlier one.

    Raises:
        UserError: A folder does not exist, or nothing was found.
    """
    excluded, asked = [path.resolve() for path in without], name or "test"
    left_out = [f"{path}: {reason}" for path, reason in without.items()]
    files: dict[Path, Path] = {}
    for folder in map(Path, folders):
        if not folder.exists():
            raise UserError(
                f"{folder} does not exist; expected a folder that is or contains a run, or a pack."
            )
        files |= {path.resolve(): path for path in _find(folder, name)}
        for run in sorted(path.parent for path in folder.rglob(HYDRA)):
            is_finished = (run / asked / RESULTS).exists() or (run / RESULTS).exists()
            if not is_finished and run.resolve() not in excluded:
                left_out.append(f"{run} has no finished evaluation named {asked}")
    parts = []
    for path in (path for each, path in files.items() if not {*each.parents} & {*excluded}):
        try:
            parts.append(_read_evaluation(path) if path.name == RESULTS else read_pack(path))
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            left_out.append(f"{path} cannot be read ({describe(error)})")
    left_out = [*dict.fromkeys(left_out)]
    if not parts:
        found = "; ".join(left_out) or "Pass output folders of training"
        given = ", ".join(map(str, folders))
        raise UserError(f"{given}: no finished evaluation named {asked}. {found.removesuffix('.')}.")
    table = pd.concat(parts, ignore_index=True)
    table = _without_repeats(_name_rows(table.astype({"value": float})), left_out)
    return table.sort_values(["sweep", "job"], kind="stable", ignore_index=True), left_out


def _find(folder: Path, name: str | None) -> list[Path]:
    """Return the files of a folder that hold results: evaluations or, without runs, packs."""
    own = sorted(folder.glob(RESULTS)) if name in (None, folder.resolve().name) else []
    evaluations = own + sorted(folder.rglob(f"{name or 'test'}/{RESULTS}"))
    if evaluations or any(folder.rglob(HYDRA)):  # beside runs, a pack is a report of them
        return evaluations
    return [folder] if folder.is_file() else sorted(folder.glob(f"{PACK}*"))


def _read_evaluation(path: Path) -> pd.DataFrame:
    """Read the `metrics.json` of an evaluation."""
    found = json.loads(path.read_text("utf-8"))
    identity = {**found["identity"]["model"], **found["identity"]["answers"]}
    del identity["training_args.seed"]
    # That of a checkpoint comes from its configuration, which transformers writes with sorted keys.
    alike = {key: json.loads(json.dumps(value, sort_keys=True)) for key, value in identity.items()}
    settings = {key: format_setting(value) for key, value in alike.items()}
    model = (path.parent / found.get("model", "..")).resolve()  # in another folder, if that was asked for
    if model.name.startswith(CHECKPOINT):  # not the final model of its run
        settings["checkpoint"] = model.name.removeprefix(CHECKPOINT)
    shared = {key: found[key] for key in ("dataset", "name", "seed", "sweep", "job")}
    shared |= {"row": found["label"], "task": found["settings"]["dataset_args"].get("dataset_name")}
    shared |= {"folder": str(path.parent), "trained_on": settings.get(DATA, ""), **settings}
    questions = found.get("fingerprints") or {}
    rows = [
        {**shared, "test": test, "questions": questions.get(test, "")[:12], "metric": metric, "value": value}
        for test, metrics in found["metrics"].items()
        for metric, value in metrics.items()
    ]
    if not rows:
        raise LookupError("no metrics")
    for step, metric, value in _read_steps(path.parents[1] / STATE):
        rows.append({**shared, "test": f"{STEP}{step}", "questions": "", "metric": metric, "value": value})
    if found.get("best_step") is not None:
        rows += [{**row, "metric": "chosen_step", "value": found["best_step"]} for row in rows[:1]]
    return pd.DataFrame(rows)


def _read_steps(path: Path) -> Iterator[tuple[int, str, float]]:
    """Yield the metrics of the evaluations during training, which transformers' Trainer has written."""
    for entry in json.loads(path.read_text("utf-8"))["log_history"] if path.exists() else ():
        for key, value in entry.items():
            metric = key.removeprefix("eval_")
            if metric != key and (split_metric(metric)[1] in METRICS or is_own(metric)):
                yield entry["step"], metric, value


def read_pack(path: Path) -> pd.DataFrame:
    """Read a pack, whose rows of a report are in the order of the file."""
    types: dict[str, type] = defaultdict(lambda: str, seed=int, value=float)
    table = pd.read_csv(path, dtype=types, keep_default_na=False)
    table[PACK_COLUMNS]  # a KeyError names a column that is missing
    order = pd.factorize(table["row"])[0]
    return table.assign(task=table.get("task"), sweep=0.0, job=order, trained_on="", folder=str(path))


def pack(table: pd.DataFrame) -> pd.DataFrame:
    """Return what a pack holds of a long table."""
    settings = [key for key in table if key not in COLUMNS]
    return table.dropna(subset="value")[[*PACK_COLUMNS, "task", *settings]]


def _name_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Add to each row's name the settings that distinguish it from others of the same name.

    Settings that are equal in all runs on a dataset are dropped. A seed besides the run's, such as
    `data_seed`, does not count if it is each run's own, and nor do the rows that it draws; but what they are
    drawn from does.
    """
    settings = [key for key in table if key not in COLUMNS]
    table[settings] = table[settings].astype(object)
    for key in [key for key in settings if key.endswith(SOURCE)]:
        named = [name for name in ("dataset", key.removesuffix(SOURCE)) if name in table]
        if (table.groupby(named, dropna=False)[key].nunique(dropna=False) == 1).all():
            settings.remove(key)  # it tells no more than the setting
    table[settings] = table[settings].fillna("null")
    rows = [table["dataset"], table["row"]]
    draws = pd.Series(False, table.index)
    for key in [key for key in settings if key.endswith("_seed")]:
        own = (table[key] == table["seed"].astype(str)).groupby(rows).transform("all")
        # A row with one seed tells nothing by itself.
        several = table["seed"].groupby(rows).transform("nunique") > 1
        own &= several | own.groupby(table["dataset"]).transform("all")
        table[key] = table[key].mask(own, "null")
        draws |= own & key.startswith("dataset_args.")
    for key in [key for key in DIGESTS if key in settings]:
        table[key] = table[key].str[:6].mask(draws & key.endswith(ROWS), "null")
    names = table["row"].copy()
    for (_, row), same in table.groupby(rows, sort=False):
        differs = [key for key in settings if same[key].nunique() > 1]
        for values, runs in same.groupby(differs, sort=False) if differs else ():
            pairs = zip(differs, values, strict=True)
            given = (f"{key.rpartition('.')[2]}={value}" for key, value in pairs if value != "null")
            shown = dict.fromkeys(given)  # the rows of the training and the evaluation are mostly the same
            names[runs.index] = f"{row} ({', '.join(shown)})" if shown else row
    kept = [key for key in settings if table.groupby("dataset")[key].nunique().gt(1).any()]
    return table.assign(row=names)[[*COLUMNS, *kept]]


def _without_repeats(table: pd.DataFrame, left_out: list[str]) -> pd.DataFrame:
    """Keep the first of several runs with the same row and seed, and describe the others in `left_out`."""
    run = ["dataset", "row", "seed"]
    first = table.groupby(run)["folder"].transform("first")
    repeats = (table["folder"] != first) | table.duplicated([*run, "test", "metric"])
    for folder, kept in dict.fromkeys(zip(table["folder"][repeats], first[repeats], strict=True)):
        left_out.append(f"{folder} repeats {kept}, which is kept")
    return table[~repeats]


def is_step(table: pd.DataFrame) -> pd.Series:
    """Return which rows of a long table were measured during training."""
    return table["test"].str.startswith(STEP)


def differing_tests(runs: pd.DataFrame) -> list[str]:
    """Name the test sets of which runs of one seed answered different questions, or fewer of them."""
    of_run, runs = ["test", "seed"], runs[~is_step(runs)]
    sets = runs.groupby(of_run, sort=False)["questions"].nunique()
    counts = runs[runs["metric"] == "count"].groupby(of_run, sort=False)["value"].nunique()
    found = {test for differs in (sets > 1, counts > 1) for test, _ in differs.index[differs]}
    return [test for test in dict.fromkeys(runs["test"]) if test in found]
