"""Errors without a language model, on the rows that each seed of a sweep draws.

    python studies/whole_numbers/baselines.py sentiment places diamonds bikes > baselines.csv

Ridge regression reads the questions as TF-IDF of words, of pairs of words and of up to four letters. Where
the prompt is made of numbers and categories, boosted trees read these, and minimize absolute errors. Other
settings are the defaults of scikit-learn; nothing is selected.
"""

import csv
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from omegaconf import OmegaConf
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge
from sklearn.pipeline import Pipeline, make_pipeline, make_union

from ntl.data import Example
from ntl.data.tabular import Tabular
from ntl.report.runs import PACKED

FOLDER = Path(__file__).parent
SEEDS = range(12, 24)
OF_NUMBERS = ("diamonds", "bikes")


def main(tables: Sequence[str]) -> None:
    """Print the mean absolute error of each table, model and seed, as CSV."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(PACKED)
    for table in tables:
        for seed in SEEDS:
            for name, error in errors(settings_of(table, seed), table in OF_NUMBERS):
                writer.writerow((table, name, name, seed, "test", "", "mae", error))


def settings_of(table: str, seed: int, folder: Path | None = None) -> Tabular:
    """Read the rows' settings from the sweep's YAML, in this folder or another one, for one seed."""
    files = [OmegaConf.load((folder or FOLDER) / f"{name}.yaml") for name in ("common", table)]
    given = OmegaConf.merge(*(file.dataset_args for file in files), {"data_seed": seed})
    return Tabular(**OmegaConf.to_container(given))


def errors(settings: Tabular, of_numbers: bool) -> Iterator[tuple[str, float]]:
    """Yield each model's name and its mean absolute error on the test rows."""
    task = settings.read()
    train, test = list(task.train), list(task.tests["test"])
    answers, truths = (np.array([float(row.answer) for row in part]) for part in (train, test))
    ridge = ridge_on_words().fit([row.question for row in train], answers)
    yield "ridge", np.abs(ridge.predict([row.question for row in test]) - truths).mean()
    if of_numbers:
        columns = table_of([*train, *test], str(settings.prompt))
        trees = HistGradientBoostingRegressor(
            loss="absolute_error", categorical_features="from_dtype", random_state=0
        )
        trees.fit(columns[: len(train)], answers)
        yield "trees", np.abs(trees.predict(columns[len(train) :]) - truths).mean()


def ridge_on_words() -> Pipeline:
    """Make ridge regression on TF-IDF of words, of pairs of words and of up to four letters."""
    words, letters = (
        TfidfVectorizer(sublinear_tf=True, **options)
        for options in ({"ngram_range": (1, 2)}, {"ngram_range": (1, 4), "analyzer": "char_wb"})
    )
    return make_pipeline(make_union(words, letters), Ridge())


def table_of(rows: Sequence[Example], prompt: str) -> pd.DataFrame:
    """Read the columns of a prompt back from questions: numbers, and categories."""
    pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>.*?)", re.escape(prompt))
    found = pd.DataFrame([re.fullmatch(pattern, row.question).groupdict() for row in rows])
    numbers = found.apply(pd.to_numeric, errors="coerce")
    return numbers.assign(
        **{name: found[name].astype("category") for name in found if numbers[name].isna().all()}
    )


if __name__ == "__main__":
    main(sys.argv[1:])
