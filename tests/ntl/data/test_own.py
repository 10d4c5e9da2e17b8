"""Data of the user's own, which a function returns."""

import pytest

from ntl.data import Example, TaskData
from ntl.data.own import Own
from ntl.errors import UserError

ROWS = [Example("1 + 1 = ", "2")]


@pytest.mark.parametrize(
    ("returned", "named"),
    [
        (TaskData(ROWS, ROWS, {"validation": ROWS}), "validation"),
        (TaskData(ROWS, ROWS, {"train": ROWS}), "train"),
        (ROWS, "TaskData"),
        (TaskData(ROWS, [("1", "2")], {}), "Example"),
        (TaskData([Example("1", 2)], ROWS, {}), "Example"),
    ],
)
def test_what_is_no_task_of_texts_is_an_error(returned, named, monkeypatch):
    monkeypatch.setattr("ntl.data.own.load_own", lambda *_: lambda: returned)
    with pytest.raises(UserError, match=named):
        Own(load="my_data:sums").read()
