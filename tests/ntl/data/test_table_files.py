from __future__ import annotations

import pandas as pd
import pytest
from data_cases import task

from ntl.errors import UserError


def tabular(*overrides):
    return task("dataset_args=tabular", *(f"dataset_args.{override}" for override in overrides))


def rows(data):
    return [*data.train, *data.validation, *data.tests["test"]]


def test_a_missing_file_is_an_error_that_names_it():
    with pytest.raises(UserError, match=r"dataset_args.file=nowhere.csv cannot be read"):
        tabular("file=nowhere.csv")


@pytest.mark.filterwarnings("error::FutureWarning")
@pytest.mark.parametrize("ending", [".tsv", ".jsonl", "_mark.jsonl", ".parquet"])
def test_other_formats_are_read_like_csv(tmp_path, ending):
    held = pd.DataFrame({"a": ["x", None, "é"], "b": [1, 2, None], "y": [1, 2, 3]}).convert_dtypes()
    path = tmp_path / f"table{ending}"
    write = {
        ".tsv": lambda: held.to_csv(path, sep="\t", index=False),
        ".jsonl": lambda: held.to_json(path, orient="records", lines=True),
        ".parquet": lambda: held.to_parquet(path),
    }
    write[ending.removeprefix("_mark")]()
    if "_mark" in ending:
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    data = tabular(f"file={path}", "target=y", "validation_size=1", "test_size=1")
    assert {e.question: e.answer for e in rows(data)} == {"x,1": "1", "?,2": "2", "é,?": "3"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.csv", "", "cannot be read|no rows"),
        ("header.csv", "a,y\n", "has no rows"),
        ("broken.jsonl", "{", "cannot be read .*CSV .with a header., TSV, Parquet"),
        ("text.parquet", "no table", "cannot be read"),
    ],
)
def test_a_file_without_a_table_is_an_error(tmp_path, name, content, message):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        tabular(f"file={tmp_path / name}", "target=y")
