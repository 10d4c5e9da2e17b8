"""What a question holds of a row, how answers are written, and what is said of errors, without a model."""

import re

import numpy as np
import pandas as pd
import pyarrow
import pytest

from ntloss.numbers import NumberFormat
from ntloss.regression.columns import Column, as_times
from ntloss.regression.evaluation import summarize
from ntloss.regression.formats import AnswerFormat
from ntloss.regression.program import _errors
from ntloss.regression.questions import Questions, as_table

ANSWERS = np.arange(4.0) ** 2


def choose(**columns):
    return Questions.choose(pd.DataFrame(columns), ANSWERS, "y")


@pytest.mark.parametrize(
    ("cells", "written"),
    [
        (["4006381333931", "96385074"], "4006381333931"),
        ([4006381333931, 96385074], "4006381333931"),
        ([4006381333931.0, None], "4006381333931"),
        (["+4917612345678", "112"], "+4917612345678"),
        (["1.10", "1.9"], "1.10"),  # versions
        (["1.10", "1.05"], "1.1"),
        (["3.0", ""], "3"),
        ([0.1 + 0.2, 1.0], "0.3"),
        ([1 / 3, 1.0], "0.333333333"),
        ([3.0, 0.5], "3"),
        (pd.to_datetime(["2026-11-27", "2026-11-28"]), "2026-11-27"),
        (["2026-11-27 00:00:00", "2026-11-28 12:30:00"], "2026-11-27"),
        (pd.array([0.1, 0.2], dtype="float32"), "0.1"),
        (pd.array([0.1, None], dtype="Float32"), "0.1"),
        (pd.array([0.1, None], dtype="float[pyarrow]"), "0.1"),
        ([6.02e23, 1.0], "6.02e+23"),
        (["6.020e+23", "1.0"], "6.02e+23"),
        ([["shop", 3], ["school", 2]], "['shop', 3]"),
        (pd.Series(["good \ud83d", "bad"], dtype=object), "good ?"),
    ],
)
def test_texts_stay_as_they_stand_and_floats_have_no_needless_digits(cells, written):
    questions = Questions.choose(pd.DataFrame({"x": cells}), ANSWERS[:2], "y")
    for given in (cells, [written]):
        assert questions.write(pd.DataFrame({"x": given}))[0] == f"{written}\ny: "


def test_gaps_of_numbers_are_unknown_and_texts_stay():
    table = pd.DataFrame({"n": ["1", "NA", "3"], "code": ["01", "?", "12"], "region": ["NA", None, " "]})
    questions = Questions.choose(table, np.arange(3.0))
    assert questions.write(table) == [
        "n: 1, code: 01, region: NA, answer: ",
        "n: unknown, code: ?, region: unknown, answer: ",
        "n: 3, code: 12, region: unknown, answer: ",
    ]


@pytest.mark.parametrize("make", [pyarrow.Table.from_pandas, lambda frame: frame.to_dict("records")])
def test_tables_of_other_kinds_keep_the_names_of_their_columns(make):
    frame = pd.DataFrame({"size": [2.5, 3.0, 7.0, 1.0], "text": ["a", "b", "c", "d"]})
    questions = Questions.choose(as_table(make(frame))[0], ANSWERS, "y")
    assert [name for name, column in questions.columns.items() if column.kind == "numbers"] == ["size"]
    assert questions.write(make(frame[["text", "size"]])) == questions.write(frame)


@pytest.mark.parametrize("name", [None, ""])
def test_answers_without_a_name_are_called_answer(name):
    questions = Questions.choose(pd.DataFrame({"text": ["a", "b", "c", "d"]}), ANSWERS, name)
    assert questions.write(["a"]) == ["a\nanswer: "]


def test_texts_and_times_of_arrow_are_no_numbers():
    held = pd.DataFrame({"text": ["a", None], "time": pd.to_datetime(["2026", "2027"]), "size": [1.5, None]})
    arrow = held.convert_dtypes(dtype_backend="pyarrow")
    assert [Column.learn(arrow[name]).kind for name in arrow] == ["texts", "texts", "numbers"]


@pytest.mark.parametrize("prompt", [None, "{x0}: "])
@pytest.mark.parametrize("make", [np.array, lambda rows: rows])
def test_columns_without_names_are_as_many_as_in_fit(make, prompt):
    rows = [[3, 1, 7], [5, 1, 4], [9, 1, 2], [2, 1, 2]]  # of which the second column is left out
    questions = Questions.choose(as_table(make(rows))[0], ANSWERS, "y", prompt, is_named=False)
    asked = questions.write(make(rows))
    for others in ([[0, *row] for row in rows], [row[:2] for row in rows]):
        with pytest.raises(ValueError, match="columns"):
            questions.write(make(others))
    frame = pd.DataFrame(rows)
    assert questions.write(frame.assign(more=0)) == questions.write(frame[[0, 2]]) == asked


@pytest.mark.parametrize("fitted", [["a", "b", "c"], pd.Series(["a", "b", "c"], name="review")])
def test_texts_without_a_name_are_the_only_column_and_another_name_is_refused(fitted):
    table, is_named = as_table(fitted)
    questions = Questions.choose(table, ANSWERS[:3], is_named=is_named)
    series = pd.Series(["a", "b", "c"])
    for given in ([*"abc"], np.array([*"abc"])[:, None], series, series.to_frame(), series.rename(0)):
        assert questions.write(given) == [f"{text}\nanswer: " for text in "abc"]
    with pytest.raises(ValueError, match=next(iter(questions.columns))):
        questions.write(series.to_frame("other"))
    if is_named:
        with pytest.raises(ValueError, match="review"):
            questions.write(series.rename("other"))
    else:
        assert questions.write(series.rename("other"))[0] == "a\nanswer: "


@pytest.mark.parametrize("prompt", ["{text}\nStars: ", "{review} = "])
def test_a_prompt_asks_plain_texts(prompt):
    questions = Questions.choose(*as_table([*"abcd"])[:1], ANSWERS, None, prompt, is_named=False)
    assert questions.write(["ok"]) == ["ok" + prompt.partition("}")[2]]


@pytest.mark.parametrize("prompt", ["Stars: ", "{colour} of {kind}"])
def test_a_prompt_without_columns_of_the_table_is_refused(prompt):
    with pytest.raises(ValueError, match="prompt"):
        Questions.choose(pd.DataFrame({"kind": [*"abcd"]}), ANSWERS, prompt=prompt)


def test_columns_of_one_name_are_refused_when_rows_are_predicted():
    twice = pd.DataFrame([["a", 1, 2]], columns=["text", "size", "size"])
    with pytest.raises(ValueError, match="'size'"):
        choose(text=["a", "b", "c", "d"], size=[1.5, 2, 3, 7]).write(twice)


@pytest.mark.parametrize("name", ["", "id"])
def test_numbers_of_rows_are_left_out_where_some_rows_are(name):
    kept = np.flatnonzero(np.arange(30) % 4)
    index = np.random.default_rng(0).permutation(1000)[:22]
    for cells in (kept[:22], kept[:22] + 1, index):
        table = pd.DataFrame({name: cells, "text": [f"text {i}" for i in range(22)]})
        questions = Questions.choose(table, np.arange(22.0) ** 2)
        is_left_out = cells is not index or not name
        assert [*questions.left_out] == [name] * is_left_out


def test_distinct_ages_are_no_numbers_of_rows():
    table = pd.DataFrame({"age": range(20, 80), "sex": ["f", "m"] * 30})
    assert Questions.choose(table, np.arange(60.0) ** 2).columns.keys() == {"age", "sex"}


def test_rows_in_which_nothing_is_given_are_found():
    table = pd.DataFrame({"a": ["x", " ", None, "y"], "b": [1, None, np.nan, None]})
    assert choose(a=table["a"], b=table["b"]).find_empty(table).tolist() == [False, True, True, False]


def test_a_table_without_a_column_that_differs_is_refused_by_name():
    with pytest.raises(ValueError, match=r"'kind'.*'place'"):
        choose(kind=["a"] * 4, place=["b"] * 4)


@pytest.mark.parametrize("write", [float, "{:.0f}".format, "${:.2f}".format, lambda n: 100 * n])
@pytest.mark.parametrize("gap", [None, "?"])
@pytest.mark.parametrize(("gaps", "is_left_out"), [(0, True), (3, True), (4, False)])
def test_copies_and_multiples_of_the_answer_are_left_out_also_with_a_few_gaps(write, gap, gaps, is_left_out):
    answers = np.arange(30.0) ** 2
    table = pd.DataFrame({"copy": [gap] * gaps + [write(n) for n in answers[gaps:]], "text": [*"ab"] * 15})
    assert ("copy" in Questions.choose(table, answers).left_out) == is_left_out


def test_a_prompt_that_names_the_answer_is_refused():
    with pytest.raises(ValueError, match=r"\{y\} is what is predicted"):
        Questions.choose(pd.DataFrame({"text": ["a", "b", "c", "d"]}), ANSWERS, "y", "{text} costs {y}: ")


@pytest.mark.parametrize(
    ("dates", "order"),
    [
        (["04/11/2024", "25/10/2024", None], [1, 0]),
        (["04/11/2024", "10/25/2024", "01/30/2025"], [0, 1, 2]),
        (["4.11.2024", "5.10.2024"], [1, 0]),
        (["2024-11-04 10:30", "2024-11-04 09:00"], [1, 0]),
        (["04/11/2024", "05/11/2024"], None),
        (["25/11/2024", "11/25/2024"], None),
    ],
)
def test_dates_are_read_where_their_days_decide_which_part_is_the_month(dates, order):
    times = as_times(pd.Series(dates, dtype=object))
    assert (None if times is None else times.dropna().sort_values().index.tolist()) == order


def test_shares_of_few_rows_have_intervals_within_0_and_100_percent():
    random = np.random.default_rng(0)
    errors = {"the median answer": random.exponential(10, 12), "NumberRegressor": random.exponential(1, 12)}
    found = np.array([[0.0, 1, 2], [0, 1, 2], [0, 1, 2]])
    for text in (
        summarize(errors),
        _errors(np.array([1.0, 5, 7]), found, 0.9, AnswerFormat(NumberFormat(1))),
    ):
        low, high = map(int, re.search(r"95 % interval: (-?\d+) to (\d+) %", text).groups())
        assert 0 <= low < high <= 100
