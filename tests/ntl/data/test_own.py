"""Data of the user's own, which a function returns."""

import pytest

from ntl.data import Example, TaskData
from ntl.data.own import Own
from ntl.errors import UserError

ROWS = [Example("1 + 1 = ", "2")]


@pytest.mark.parametrize(
    ("returned", "named"),
    [
        (TaskData([Example("1 + 1 = ", 2)], ROWS, {"test": ROWS}), "row 0 of train"),
        (TaskData(ROWS, [("1 + 1 = ", "2")], {"test": ROWS}), "row 0 of validation"),
        (TaskData(ROWS, ROWS, {"validation": ROWS}), "validation"),
        (TaskData(ROWS, ROWS, {"train": ROWS}), "train"),
        (TaskData((row for row in ROWS), ROWS, {"test": ROWS}), "train"),
        (ROWS, "TaskData"),
    ],
)
def test_what_is_no_task_of_texts_is_an_error(returned, named, monkeypatch):
    monkeypatch.setattr("ntl.data.own.load_own", lambda *_: lambda: returned)
    with pytest.raises(UserError, match=named):
        Own(load="my_data:sums").read()


@pytest.mark.parametrize("options", [{"row": 70}, {}])
def test_options_that_are_no_arguments_of_the_function_are_an_error(options, monkeypatch):
    monkeypatch.setattr("ntl.data.own.load_own", lambda *_: lambda rows: TaskData(ROWS, ROWS, {"test": ROWS}))
    assert Own(load="my_data:sums", options={"rows": 70}).read().train == ROWS
    with pytest.raises(UserError, match=r"dataset_args\.options"):
        Own(load="my_data:sums", options=options).read()
