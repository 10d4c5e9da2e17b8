"""Fit gradient-boosted trees to the tables of the study. `python -m studies.small_models.trees`.

The trees (scikit-learn's HistGradientBoostingRegressor with absolute error, otherwise its defaults) see the
columns of the same rows of the same split, as numbers and categories instead of text. The errors of five
seeds are written to `trees.json`, and `tables.py` puts them beside the language models. The seed chooses the
rows for early stopping, which trees use above 10,000 rows only.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingRegressor

from ntl.config.settings import read_settings
from ntl.data import Example, load_task
from ntl.data.tasks.tabular import MISSING
from ntl.errors import UserError
from studies.small_models.run import RESULTS, STUDY, compose, words

SEEDS = range(5)


def main() -> int:
    """Fit the trees to each table that is there, write their errors, and return the exit code."""
    errors = {}
    for name, task in STUDY["tasks"].items():
        if task["family"] != "tables":
            continue
        try:
            overrides = [*words(STUDY["common"]), *words(task["overrides"])]
            data = load_task(read_settings(compose(overrides)).data)
        except UserError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 2
        tests = data.tests["test"]
        features = columns([*data.train, *tests])
        train, test = features[: len(data.train)], features[len(data.train) :]
        begin = time.perf_counter()
        errors[name] = [test_error(train, answers(data.train), test, answers(tests), seed) for seed in SEEDS]
        seconds = (time.perf_counter() - begin) / len(SEEDS)
        print(
            f"{name}: mean absolute error {np.mean(errors[name]):.4g}, seeds {np.round(errors[name], 1)}; "
            f"{seconds:.1f} s per seed"
        )
    (RESULTS / "trees.json").write_text(json.dumps(errors, indent=1) + "\n", encoding="utf-8")
    return 0


def test_error(
    train: pd.DataFrame, train_answers: np.ndarray, test: pd.DataFrame, test_answers: np.ndarray, seed: int
) -> float:
    """Fit trees to the training rows, and return their mean absolute error on the test rows."""
    trees = HistGradientBoostingRegressor(
        loss="absolute_error", categorical_features="from_dtype", random_state=seed
    )
    predicted = trees.fit(train, train_answers).predict(test)
    return float(np.abs(predicted - test_answers).mean())


def columns(examples: Sequence[Example]) -> pd.DataFrame:
    """Split questions into columns again."""
    return typed(pd.DataFrame([example.question.split(",") for example in examples]).replace(MISSING, None))


def typed(text: pd.DataFrame) -> pd.DataFrame:
    """Return columns of texts as numbers where all values are numbers, else as categories."""
    numbers = text.apply(pd.to_numeric, errors="coerce")
    is_numeric = numbers.notna().sum() == text.notna().sum()
    return pd.DataFrame(
        {key: numbers[key] if is_numeric[key] else text[key].astype("category") for key in text}
    )


def answers(examples: Sequence[Example]) -> np.ndarray:
    """Return the answers as numbers."""
    return np.array([float(example.answer) for example in examples])


if __name__ == "__main__":
    sys.exit(main())
