"""New rows are read as the fitted ones were: numbers, their unit and decimal mark, gaps and codes."""

import numpy as np
import pandas as pd
import pytest

from ntloss.regression.columns import Column, read_answers
from ntloss.regression.questions import Questions


def column(*cells, name="x"):
    return pd.Series(cells, name=name, dtype=object)


@pytest.mark.parametrize(
    ("fitted", "new", "numbers", "misfits"),
    [
        (("3", "4.5", "NA"), ("7", "NA", "252,0", "about 30", "1,234", "5E6"), [7] + [np.nan] * 5, 4),
        (("5 kg", "6.5 kg"), ("7 kg", "7000 g", "7", "?"), [7] + [np.nan] * 3, 2),
        (("1 star", "5 stars"), ("2 stars", "2 moons"), [2, np.nan], 1),
        (("2,5", "1.234,5"), ("1.500", "7,25", "7.25"), [1500, 7.25, np.nan], 1),
        (("4/5", "3/5"), ("2/5", "2/10"), [2, np.nan], 1),
        (("$1.50", "$2"), ("$1,234.00", "€3"), [1234, np.nan], 1),
    ],
)
def test_new_cells_are_read_by_the_record_of_the_fitted_ones(fitted, new, numbers, misfits):
    record = Column.learn(column(*fitted))
    assert record.kind == "numbers"
    assert np.array_equal(record.read(column(*new)), numbers, equal_nan=True)
    assert record.misfits(column(*new)).sum() == misfits
    assert (f"{misfits} of {len(new)} rows" in " ".join(record.notes(column(*new)))) == bool(misfits)
    assert record.notes(column(*fitted)) == []


def test_rows_may_have_one_label():
    cells = pd.concat([column("5 kg", "x"), column("7 kg", "8")])
    record = Column.learn(column("5 kg", "6 kg"))
    assert np.array_equal(record.read(cells), [5, np.nan, 7, np.nan], equal_nan=True)
    assert record.misfits(cells).tolist() == [False, True, False, True]


def test_numbers_that_are_far_from_all_fitted_ones_are_pointed_out():
    record = Column.learn(pd.Series([50.0, 80, 120], name="kg"))
    assert record.notes(pd.Series([130.0, 140, 61_000], name="kg")) == []
    (note,) = record.notes(pd.Series([50_000.0, 80_000, 61_000], name="kg"))
    assert "'kg'" in note


def test_codes_that_became_numbers_are_pointed_out():
    record = Column.learn(column("0123", "0456", "1789"))
    assert record.notes(column("0999", "1")) == []
    assert record.notes(pd.Series([123, 456], name="zip")) != []


@pytest.mark.parametrize(
    "cells", [("room 1", "room 2"), ("True", "False"), ("5 May", "6 June"), ("1:30", "2:30")]
)
def test_other_texts_are_no_numbers_and_fit_anything(cells):
    record = Column.learn(column(*cells))
    assert record.kind == "texts"
    assert record.notes(column("something else", "5", None)) == []


def test_gaps_of_numbers_and_codes_are_unknown_and_texts_stay():
    table = pd.DataFrame({"n": ["1", "NA", "3"], "code": ["01", "?", "12"], "region": ["NA", "EU", "?"]})
    questions = Questions.from_dict(
        {**vars(Questions.choose(table, np.arange(3.0))), "columns": {"n": {"kind": "numbers"}}}
    )
    assert questions.write(table)[1].startswith("unknown")
    questions = Questions.choose(table, np.arange(3.0))
    assert questions.write(table)[1] == "n: unknown, code: unknown, region: EU, answer: "
    assert questions.write(table)[0] == "n: 1, code: 01, region: NA, answer: "


def test_true_answers_in_another_unit_are_an_error_and_without_one_a_note():
    fitted = read_answers(column("408.68 kg", "300 kg")).column
    assert read_answers(column("350 kgs"), fitted=fitted).numbers.tolist() == [350]
    with pytest.raises(ValueError, match="'g'"):
        read_answers(column("408680 g"), fitted=fitted)
    assert any("no unit" in note for note in read_answers(column("350"), fitted=fitted).notes)
    notes = read_answers(column("408680"), fitted=fitted).notes
    assert any("another unit" in note for note in notes)
    with pytest.raises(ValueError, match="/10"):
        read_answers(column("8/10"), fitted=read_answers(column("4/5", "3/5")).column)


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        (["$8,020", "$995"], [8020, 995]),
        (["USD 8,020", "USD 12,500"], [8020, 12500]),
        (["€8.020", "€995"], [8020, 995]),
        (["8.020 EUR", "995 EUR"], [8020, 995]),
        (["€1.459", "€1.529"], [1.459, 1.529]),  # as of a litre of petrol
    ],
)
def test_three_digits_after_a_mark_are_thousands_of_money_and_said(texts, numbers):
    read = read_answers(pd.Series(texts, name="price"))
    assert read.numbers.tolist() == numbers
    assert any(texts[0] in note for note in read.notes)


def test_formulas_without_values_are_answers_that_have_to_be_saved():
    with pytest.raises(ValueError, match="spreadsheet"):
        read_answers(pd.Series(["=A2*2", "=A3*2"], name="y"))
