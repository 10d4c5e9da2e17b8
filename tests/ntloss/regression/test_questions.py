"""How columns are read, and what a question holds of a row."""

import numpy as np
import pandas as pd
import pyarrow
import pytest

from ntloss.regression.questions import Column, Questions, as_table, as_times

ANSWERS = np.arange(4.0) ** 2


def column(*cells):
    return pd.Series(cells, name="price", dtype=object)


def choose(**columns):
    return Questions.choose(pd.DataFrame(columns), ANSWERS, "y")


@pytest.mark.parametrize(
    ("cells", "written"),
    [
        (["4006381333931", "96385074"], "4006381333931"),
        ([4006381333931.0, None], "4006381333931"),
        (["1.10", "1.9"], "1.10"),  # versions
        (["1.10", "1.05"], "1.1"),
        (["3.0", ""], "3"),
        ([0.1 + 0.2, 1.0], "0.3"),
        ([1 / 3, 1.0], "0.333333333"),
        ([3.0, 0.5], "3"),
        (pd.to_datetime(["2026-11-27", "2026-11-28"]), "2026-11-27"),
        (["2026-11-27 00:00:00", "2026-11-28 12:30:00"], "2026-11-27"),
        (pd.array([0.1, 0.2], dtype="float32"), "0.1"),
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


@pytest.mark.parametrize("name", ["", "id"])
def test_numbers_of_rows_are_left_out_where_some_rows_are(name):
    kept = np.flatnonzero(np.arange(30) % 4)
    index = np.random.default_rng(0).permutation(1000)[:22]
    for cells in (kept[:22], kept[:22] + 1, index):
        table = pd.DataFrame({name: cells, "text": [f"text {i}" for i in range(22)]})
        questions = Questions.choose(table, np.arange(22.0) ** 2)
        is_left_out = cells is not index or not name
        assert [*questions.left_out] == [name] * is_left_out


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


@pytest.mark.parametrize(
    ("dates", "order"),
    [
        (["04/11/2024", "25/10/2024", None], [1, 0]),
        (["04/11/2024", "10/25/2024", "01/30/2025"], [0, 1, 2]),
        (["4.11.2024", "5.10.2024"], [1, 0]),
        (["04/11/2024", "05/11/2024"], None),
        (["25/11/2024", "11/25/2024"], None),
    ],
)
def test_dates_are_read_where_their_days_decide_which_part_is_the_month(dates, order):
    times = as_times(pd.Series(dates, dtype=object))
    assert (None if times is None else times.dropna().sort_values().index.tolist()) == order


@pytest.mark.parametrize(
    ("fitted", "new", "numbers", "misfits"),
    [
        (("3", "4.5", "NA"), ("4", "NA", "252,0", "about 30", "1,234", "5E6"), [4] + [np.nan] * 5, 4),
        (("5 kg", "6.5 kg"), ("7 kg", "7000 g", "7", "?"), [7] + [np.nan] * 3, 2),
        (("1 star", "5 stars"), ("2 stars", "2 moons"), [2, np.nan], 1),
        (("2,5", "1.234,5"), ("1.500", "7,25", "7.25"), [1500, 7.25, np.nan], 1),
        (("4/5", "3/5"), ("2/5", "2/10"), [2, np.nan], 1),
        (("$1.50", "$2000"), ("$1,234.00", "€3"), [1234, np.nan], 1),
        (("3", "4.5"), (), [], 0),
    ],
)
def test_new_cells_are_read_by_the_record_of_the_fitted_ones(fitted, new, numbers, misfits):
    record = Column.learn(column(*fitted))
    assert record.kind == "numbers"
    assert np.array_equal(record.read(column(*new)), numbers, equal_nan=True)
    assert (f"{misfits} of {len(new)} rows" in " ".join(record.notes(column(*new)))) == bool(misfits)
    assert record.notes(column(*fitted)) == []


@pytest.mark.parametrize(
    "cells",
    [
        ("room 1", "room 2"),
        ("True", "False"),
        ("5 May", "6 June"),
        ("1:30", "2:30"),
        ("0123", "1234"),
        ("5E6", "1200"),
        ("05E1", "12E3"),
        ("$5", "€6"),
        (None, None),
    ],
)
def test_other_texts_and_codes_are_no_numbers_and_fit_any_text(cells):
    record = Column.learn(column(*cells))
    assert record.kind == "texts"
    assert record.notes(column(*cells, None)) == []
    assert record.write(column(*cells)) == [cell or "unknown" for cell in cells]
    assert record.notes(pd.Series([123, 456])) != []  # which may have lost zeros


@pytest.mark.parametrize(
    ("fitted", "new"),
    [
        (("4.1.2024", "10.11.2024"), ("24.10.2024", "2024-10-24")),
        (("0123", "4567"), ("0001", "123")),
        (("AB-12", "CD-34"), ("EF-56", "AB12")),
    ],
)
def test_dates_and_codes_of_another_form_are_counted(fitted, new):
    (note,) = Column.learn(column(*fitted, "NA")).notes(column(*new, None, "NA"))
    assert "1 of 4 rows" in note
    assert f"{new[1]!r} in row 2" in note


def test_numbers_that_are_far_from_all_fitted_ones_are_counted():
    record = Column.learn(pd.Series([50.0, 80, 120], name="kg"))
    assert record.notes(pd.Series([20.0, 0, 130, 140, np.nan])) == []
    assert Column.learn(pd.Series([-100.0, 100])).notes(pd.Series([-290.0, 290])) == []
    for far in ([61_000.0, 80, 90], [80, 0.08, 90]):
        (note,) = record.notes(pd.Series(far, name="kg"))
        assert "1 of 3 rows of 'kg'" in note
    assert "2 of 2 rows" in record.notes(pd.Series([True, False]))[0]
