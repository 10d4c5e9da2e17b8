"""How a column of answers is read, and new rows as the fitted ones: numbers, units, marks, gaps, codes."""

import numpy as np
import pandas as pd
import pytest

from ntloss.regression.columns import Column, read_answers


def column(*cells, name="price"):
    return pd.Series(cells, name=name, dtype=object)


@pytest.mark.parametrize(
    ("texts", "decimal", "numbers", "noted"),
    [
        (["3", "-2.5", "1e+3", " 4 "], None, [3, -2.5, 1000, 4], ""),
        (["3", "−5", "\u20135"], None, [3, -5, -5], "−5"),
        (["$5", "$7.50", "-$2"], None, [5, 7.5, -2], "$"),
        (["12%", "7 %"], None, [12, 7], "%"),
        (["1.37kg", "2kg"], None, [1.37, 2], "kg"),
        (["1 star", "5 stars"], None, [1, 5], "star"),
        (["5 m", "6 m"], None, [5, 6], "m"),
        (["True", "False"], None, [1, 0], "True"),
        (["3", "?", "", "unknown", "\u2014", "#DIV/0!"], None, [3] + [np.nan] * 5, "5 rows"),
        (["4/5", "3.5 / 5", "5 out of 5", "?"], None, [4, 3.5, 5, np.nan], "'4/5' is read as 4"),
        (["4,5/10", "3/10"], None, [4.5, 3], "4.5"),
        (["2,6", "3"], ",", [2.6, 3], "2,6"),
        (["2,6", "1,234"], None, [2.6, 1.234], "'2,6'"),
        (["$1,234.50", "$99.00"], None, [1234.5, 99], "1234.5"),
        (["€1.234,50", "€99"], None, [1234.5, 99], "1234.5"),
        (["1,234,567", "(5,510)", "12"], None, [1234567, -5510, 12], "-5510"),
        (["1,23,456", "12"], None, [123456, 12], "123456"),
        (["4\u202f733,00", "99,00"], None, [4733, 99], "4733"),
        (["CHF 4'733.00", "CHF 99.00"], None, [4733, 99], "CHF"),
        (["$1.2M", "$900K"], None, [1.2e6, 9e5], "1200000"),
        (["$8,020", "$995"], None, [8020, 995], "8020"),
        (["8,020 kr", "995 kr"], None, [8020, 995], "8020"),
        (["Rs.500", "Rs.1,500"], None, [500, 1500], "1500"),
        (["€8.020", "€995"], None, [8020, 995], "8020"),
        (["1.234.567", "12.345"], None, [1234567, 12345], "'1.234.567'"),
        (["1,234", "12"], ".", [1234, 12], "1234"),
        (["12.345", "523"], ",", [12345, 523], "12345"),
        (["12.345", "523"], ".", [12.345, 523], ""),
        (["2.712", "5.123"], None, [2.712, 5.123], "--decimal ,"),
        (["2.712", "5.123"], ",", [2712, 5123], "2712"),
        (["0.712", "5.123"], None, [0.712, 5.123], ""),
    ],
)
def test_answers_are_read_and_what_was_assumed_is_said(texts, decimal, numbers, noted):
    found, notes, _ = read_answers(column(*texts), decimal)
    assert np.array_equal(found, numbers, equal_nan=True)
    assert bool(notes) == bool(noted)
    assert noted in " ".join(notes)


@pytest.mark.parametrize(
    ("texts", "decimal", "shown"),
    [
        (["1,234", "5", "6"], None, "--decimal"),
        (["12.345", "523"], None, "--decimal"),
        (["1,5", "2,345.6"], None, "'1,5' in row 1"),
        (["1,5", "2,345.6"], ",", "'2,345.6' in row 2"),
        (["1.5", "2.345"], ",", "'1.5' in row 1"),
        (["$5", "7"], None, r"'\$5'"),
        (["$5", "€6"], None, r"'\$', '€'"),
        (["1kg", "2g"], None, "'g', 'kg'"),
        (["3", "four", "5"], None, "--missing=four"),
        (["3", "a b"], None, "--missing='a b'"),
        (["5", "\uff15"], None, "row 2"),
        (["5½", "6½"], None, "row 1"),
        (["2 of 500", "3 of 500"], None, "2 of 500"),
        (["1/5", "2/10"], None, "'1/5' in row 1"),
        (["12/5", "-1/5"], None, "'12/5' in row 1, '-1/5' in row 2"),
        (["1/5", "2"], None, "'1/5' in row 1"),
        (["3", "1e400"], None, "'1e400' in row 2"),
        (["3", "inf"], None, "'inf' in row 2"),
        (["3-5", "4-6"], None, "'3-5' in row 1"),
        (["A-12", "A-3"], None, "'A-12' in row 1"),
        (["1:30", "2:15"], None, "'1:30' in row 1"),
        (["5 \u00b1 1", "6 \u00b1 1"], None, "row 1"),
        (["14.2-", "3"], None, "'14.2-' in row 1"),
        (["$.50", "$.75"], None, "row 1"),
        (["0x20", "1_000"], None, "'0x20' in row 1"),
        (["2024-01-05", "2024-01-06"], None, "'2024-01-05' in row 1"),
        (["=A2*2", "=A3*2"], None, "spreadsheet"),
        (["?", ""], None, "price"),
    ],
)
def test_answers_that_are_no_numbers_or_two_are_shown(texts, decimal, shown):
    with pytest.raises(ValueError, match=shown):
        read_answers(column(*texts), decimal)


def test_only_rows_without_a_number_are_named_if_there_are_any():
    with pytest.raises(ValueError, match="1 of 3 rows: 'on request' in row 3") as raised:
        read_answers(column("$326", "$1,334", "on request"))
    assert "$" not in str(raised.value)


@pytest.mark.parametrize("cell", ["-999", "-999.0", " -9.99e2"])
def test_marks_of_missing_answers_can_be_named_and_numbers_are_compared_by_value(cell):
    numbers, notes, _ = read_answers(column(cell, "3"), missing=["-999"])
    assert np.array_equal(numbers, [np.nan, 3], equal_nan=True)
    assert cell.strip() in notes[0]


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
        (("2024-01-05", "2024-11-30"), ("2024-02-01", "01/02/2024")),
        (("4.1.2024", "10.11.2024"), ("24.10.2024", "2024-10-24")),
        (("0123", "4567"), ("0001", "123")),
        (("AB-12", "CD-34"), ("EF-56", "AB12")),
        (("5E6", "2E3"), ("7E1", "5000000")),
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


def test_true_answers_in_another_unit_are_an_error_and_without_one_a_note():
    fitted = read_answers(column("408.68 kg", "300 kg")).column
    assert read_answers(column("350 kgs"), fitted=fitted).numbers.tolist() == [350]
    with pytest.raises(ValueError, match="'g'"):
        read_answers(column("408680 g"), fitted=fitted)
    assert any("no unit" in note for note in read_answers(column("350"), fitted=fitted).notes)
    assert any("another unit" in note for note in read_answers(column("408680"), fitted=fitted).notes)
    with pytest.raises(ValueError, match="/10"):
        read_answers(column("7/10"), fitted=read_answers(column("4/5", "3/5")).column)


@pytest.mark.parametrize(
    ("before", "texts", "numbers"),
    [
        (["4.776,5", "9.666"], ["9.666", "?"], [9666, np.nan]),
        (["4.776,5", "9.666"], ["2,512", "523"], [2.512, 523]),
        (["1.5", "2.345"], ["2.345", "523"], [2.345, 523]),
        (["$1,234.50"], ["$1,234"], [1234]),
    ],
)
def test_true_answers_have_the_decimal_mark_of_the_fitted_ones(before, texts, numbers):
    fitted = read_answers(column(*before)).column
    assert np.array_equal(read_answers(column(*texts), fitted=fitted).numbers, numbers, equal_nan=True)
