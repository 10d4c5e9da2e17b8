"""Files as people have them: what is read, what is said, and what is refused by name."""

import gzip
import json

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest

from ntloss.regression.tables import find_column, read_answers, read_table

ROWS = [("fine, really", "3"), ("bad; very", "1"), ("so | so", "2"), ("ok", "2")]
PLAIN = {"text": ["a", "b"], "price": ["3", "4"]}


def column(*cells):
    return pd.Series(cells, name="price", dtype=object)


@pytest.fixture
def read(tmp_path):
    """Write a file, and read it."""

    def read(content, name="table.csv", encoding="utf-8", **options):
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode(encoding))
        return read_table(tmp_path / name, **options)

    return read


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_separators_are_found_and_names_have_no_blanks(read, separator, encoding):
    lines = [f"text{separator} price ", *(f'"{text}"{separator}{price}' for text, price in ROWS)]
    table, notes = read("\n".join(lines) + "\n", encoding=encoding)
    assert list(table.columns) == ["text", "price"]
    assert list(map(tuple, table.to_numpy())) == ROWS
    assert bool(notes) == (separator != ",")


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("title;text;price\na, b;c, d, e;3\n", {"title": ["a, b"], "text": ["c, d, e"], "price": ["3"]}),
        ("x;y\n1,5;2,5\n", {"x": ["1,5"], "y": ["2,5"]}),
        ('\n \ntext;price\n"a;b|c,d";5\n', {"text": ["a;b|c,d"], "price": ["5"]}),
        ('name   size\n"a b"   5\n  d 7\n', {"name": ["a b", "d"], "size": ["5", "7"]}),
        ("text\nhello world\ngood morning\n", {"text": ["hello world", "good morning"]}),
        ('text;price\n"one,\ntwo"' + ";3\n", {"text": ["one,\ntwo"], "price": ["3"]}),
        (f"text;price\n{'long ' * 40_000};3\n", {"text": ["long " * 40_000], "price": ["3"]}),
        ("text,price\nNA,\n", {"text": ["NA"], "price": [""]}),
        ("code,y\n007,1\n", {"code": ["007"], "y": ["1"]}),
        ("text,price\na,3,\nb,4,\n", PLAIN),  # rows begin or end in a separator
        ("text;price\na;3;;\nb;4\n", PLAIN),
        ("|text|price|\n|a|3|\n|b|4|\n", PLAIN),
        (",text,price\n,a,3\n,b,4\n", PLAIN),
    ],
)
def test_the_first_line_says_what_separates_fields(read, lines, found):
    assert read(lines).rows.to_dict("list") == found


@pytest.mark.parametrize("mark", [" ", ",", "\t", ";"])
def test_names_of_rows_as_r_writes_them_are_a_column_without_a_name(read, mark):
    rows = [['"cyl"', '"kind"'], ['"a b"', "6", '"x"'], ['"c"', "4", '"y z"'], ['"d"', "8", '"x"']]
    table, notes = read("".join(mark.join(row) + "\n" for row in rows))
    found = {"Unnamed: 0": ["a b", "c", "d"], "cyl": ["6", "4", "8"], "kind": ["x", "y z", "x"]}
    assert table.to_dict("list") == found
    assert any("R " in note for note in notes)
    unquoted = "".join(mark.join([str(i), "5", "x"][i == 0 :]) + "\n" for i in range(4))
    assert read(unquoted).rows["Unnamed: 0"].tolist() == ["1", "2", "3"]


@pytest.mark.parametrize(
    "lines",
    [
        "text,price\nHello, world,5\nHi, there,6\n",
        "a,b\n1,2\n3,4,5\n",
        "a\tb\tc\n1\t2\t3\t4\n5\t6\t7\n",
        'a,b\n"1,2\n3,4\n',
        "Sales in 2024\n\ntext,price\na,3\nb,4\n",
        "",
    ],
)
def test_lines_that_are_no_table_are_refused_with_the_name_of_the_file(read, lines):
    with pytest.raises(ValueError, match=r"table\.csv"):
        read(lines)


def test_a_separator_and_that_there_is_no_header_may_be_given(read):
    assert read("text^price\na,b^3\n", separator="^").rows.columns.tolist() == ["text", "price"]
    assert read("text price\na 3\n", separator=" ").rows.shape == (1, 2)
    assert read("a,b\tprice\nc,d\t3\n", separator="\\t").rows.columns.tolist() == ["a,b", "price"]
    with pytest.raises(ValueError, match="--separator"):
        read("a\n1\n", separator="||")
    assert read("a,5\nb,1\n", header=False).rows.to_dict("list") == {"x0": ["a", "b"], "x1": ["5", "1"]}
    assert any("--no-header" in note for note in read("good,5\nbad,1\n").notes)


def test_columns_of_one_name_are_numbered_and_asking_for_one_or_one_that_is_missing_says_so(read):
    table, notes = read("text,price,price\na,1,2\n")
    assert table.to_dict("list") == {"text": ["a"], "price.1": ["1"], "price.2": ["2"]}
    with pytest.raises(ValueError, match=r"price\.1"):
        find_column(table, "price", "--target", notes)
    table = pd.DataFrame(columns=["Life expectancy", "country"])
    assert find_column(table, "Life expectancy ", "--target") == "Life expectancy"
    for name in ("life expectancy", "something else"):
        with pytest.raises(ValueError, match=r"--target .*Life expectancy"):
            find_column(table, name, "--target")


@pytest.mark.parametrize("ending", ["gz", "zip"])
def test_compressed_tables_are_read_and_damaged_ones_are_errors_that_name_them(read, tmp_path, ending):
    frame = pd.DataFrame({"text": [f"text {i}" for i in range(99)]})
    path, lines = tmp_path / f"rows.csv.{ending}", tmp_path / f"rows.jsonl.{ending}"
    frame.to_csv(path, index=False)
    frame.to_json(lines, orient="records", lines=True)
    assert read_table(path).rows.equals(read_table(lines).rows)
    packed = path.read_bytes()
    for damaged in (packed[: len(packed) // 2], b"text\nfine\n"):
        with pytest.raises(ValueError, match=rf"rows\.csv\.{ending}"):
            read(damaged, path.name)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.xlsx", b"text"),
        ("rows.parquet", b"text"),
        ("rows.csv.gz", gzip.compress("text,price\ncafé,3\n".encode("latin-1"), mtime=0)),
        ("rows.csv", "text,price\ncafé,3\n".encode("utf-16-le")),
        ("rows.json", b"[]"),
        ("rows.jsonl", b'{"text": "a"}\n{"text": '),
    ],
)
def test_files_that_are_no_table_of_their_ending_are_errors_that_name_them(read, name, content):
    with pytest.raises(ValueError, match=name):
        read(content, name)


@pytest.mark.parametrize("as_lines", [True, False])
def test_json_is_an_array_or_an_object_a_line(read, as_lines):
    rows = [{"text": "a\u2028b", "id": 9007199254740993}, {"text": None, "id": 2}]
    content = "\n".join(map(json.dumps, rows)) if as_lines else json.dumps(rows)
    found = {"text": ["a\u2028b", None], "id": ["9007199254740993", "2"]}
    assert read(content, "rows.json").rows.to_dict("list") == found
    assert read(content.encode(), "rows.jsonl").rows.to_dict("list") == found


def test_parquet_is_read_as_texts(tmp_path):
    file = tmp_path / "rows.parquet"
    held = {"size": [1.0, np.nan], "text": ["caf\u00e9".encode(), b"\xff"], "y": [1, 2]}
    pd.DataFrame(held, index=[7, 7]).to_parquet(file)
    table, _ = read_table(file)
    assert table.to_dict("list") == {"size": ["1", None], "text": ["caf\u00e9", "\\xff"], "y": ["1", "2"]}
    assert [*table.index] == [0, 1]
    pyarrow.parquet.write_table(pyarrow.table({"id": pyarrow.array([9007199254740993, None])}), file)
    assert read_table(file).rows["id"].tolist() == ["9007199254740993", None]
    pd.DataFrame({"id": ["a", "b"], "y": [3, 4]}).set_index("id").to_parquet(file)
    assert read_table(file).rows.to_dict("list") == {"id": ["a", "b"], "y": ["3", "4"]}


def test_sheets_of_excel_may_begin_at_any_cell(tmp_path):
    pytest.importorskip("openpyxl")
    held = [[None] * 3, [None, "text", "price"], [None, "a", 3], [None, "NA", 4.5]]
    with pd.ExcelWriter(tmp_path / "rows.xlsx") as book:
        pd.DataFrame(held).to_excel(book, sheet_name="first", header=False, index=False)
        pd.DataFrame({"x": [1]}).to_excel(book, sheet_name="second")
    table, notes = read_table(tmp_path / "rows.xlsx")
    assert table.to_dict("list") == {"text": ["a", "NA"], "price": ["3", "4.5"]}
    assert any("'first'" in note for note in notes)


def test_merged_cells_hidden_rows_and_formulas_of_excel(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    sheet = book.active
    for row in (["shop", "y", "double"], ["north", 1, "=B2*2"], [None, 2, "=B3*2"], ["south", 3, "=B4*2"]):
        sheet.append(row)
    sheet.merge_cells("A2:A3")
    sheet.row_dimensions[3].hidden = True
    book.save(tmp_path / "rows.xlsx")
    table, notes = read_table(tmp_path / "rows.xlsx")
    known = table.drop(columns="double").to_dict("list")
    assert known == {"shop": ["north", "north", "south"], "y": ["1", "2", "3"]}
    assert [note.partition(",")[0].partition(":")[0] for note in notes] == ["merged cells", "hidden rows"]
    with pytest.raises(ValueError, match="spreadsheet"):
        read_answers(table["double"])


@pytest.mark.parametrize(
    ("texts", "decimal", "numbers", "noted"),
    [
        (["3", "-2.5", "1e+3", " 4 "], None, [3, -2.5, 1000, 4], ""),
        (["3", "−5", "\u20135"], None, [3, -5, -5], "−5"),
        (["$5", "$7.50", "-$2"], None, [5, 7.5, -2], "$"),
        (["12%", "7 %"], None, [12, 7], "%"),
        (["1.37kg", "2kg"], None, [1.37, 2], "kg"),
        (["1 star", "5 stars"], None, [1, 5], "star"),
        (["3", "?", "", "unknown", "\u2014", "#DIV/0!"], None, [3] + [np.nan] * 5, "5 rows"),
        (["4/5", "3.5 / 5", "5 out of 5", "?"], None, [4, 3.5, 5, np.nan], "'4/5' is read as 4"),
        (["4,5/10", "3/10"], None, [4.5, 3], "4.5"),
        (["2,6", "3"], ",", [2.6, 3], "2,6"),
        (["$1,234.50", "$99.00"], None, [1234.5, 99], "1234.5"),
        (["1,234,567", "(5,510)", "12"], None, [1234567, -5510, 12], "-5510"),
        (["1,23,456", "12"], None, [123456, 12], "123456"),
        (["4\u202f733,00", "99,00"], None, [4733, 99], "4733"),
        (["CHF 4'733.00", "CHF 99.00"], None, [4733, 99], "CHF"),
        (["$1.2M", "$900K"], None, [1.2e6, 9e5], "1200000"),
        (["$8,020", "$995"], None, [8020, 995], "8020"),
        (["8,020 kr", "995 kr"], None, [8020, 995], "8020"),
        (["Rs.500", "Rs.1,500"], None, [500, 1500], "1500"),
        (["€8.020", "€995"], None, [8020, 995], "8020"),
        (["1,234", "12"], ".", [1234, 12], "1234"),
        (["12.345", "523"], ",", [12345, 523], "12345"),
        (["12.345", "523"], ".", [12.345, 523], ""),
        (["2.712", "5.123"], None, [2.712, 5.123], "--decimal ,"),
        (["2.712", "5.123"], ",", [2712, 5123], "2712"),
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
        (["1.5", "2.345"], ",", "'1.5' in row 1"),
        (["$5", "7"], None, r"'\$5'"),
        (["$5", "€6"], None, r"'\$', '€'"),
        (["$326", "$1,334", "on request"], None, "1 of 3 rows: 'on request' in row 3"),
        (["1kg", "2g"], None, "'g', 'kg'"),
        (["3", "four", "5"], None, "--missing=four"),
        (["3", "a b"], None, "--missing='a b'"),
        (["5", "\uff15"], None, "row 2"),
        (["5½", "6½"], None, "row 1"),
        (["2 of 500", "3 of 500"], None, "2 of 500"),
        (["1/5", "2/10"], None, "'1/5' in row 1"),
        (["12/5", "-1/5"], None, "'12/5' in row 1, '-1/5' in row 2"),
        (["3", "1e400"], None, "'1e400' in row 2"),
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


@pytest.mark.parametrize("cell", ["-999", "-999.0", " -9.99e2"])
def test_marks_of_missing_answers_can_be_named_and_numbers_are_compared_by_value(cell):
    numbers, notes, _ = read_answers(column(cell, "3"), missing=["-999"])
    assert np.array_equal(numbers, [np.nan, 3], equal_nan=True)
    assert cell.strip() in notes[0]


def test_true_answers_in_another_unit_are_an_error_and_without_one_a_note():
    fitted = read_answers(column("408.68 kg", "300 kg"))[2]
    assert read_answers(column("350 kgs"), fitted=fitted)[0].tolist() == [350]
    with pytest.raises(ValueError, match="'g'"):
        read_answers(column("408680 g"), fitted=fitted)
    assert any("no unit" in note for note in read_answers(column("350"), fitted=fitted)[1])
    assert any("1 of 1 rows" in note for note in read_answers(column("408680"), fitted=fitted)[1])
    with pytest.raises(ValueError, match="/10"):
        read_answers(column("7/10"), fitted=read_answers(column("4/5", "3/5"))[2])


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
    fitted = read_answers(column(*before))[2]
    assert np.array_equal(read_answers(column(*texts), fitted=fitted)[0], numbers, equal_nan=True)
