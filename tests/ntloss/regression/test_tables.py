"""Files as people have them: what is read, what is said, and what is refused by name."""

import gzip
import json

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest

from ntloss.regression.columns import read_answers
from ntloss.regression.tables import find_column, read_table

ROWS = [("fine, really", "3"), ("bad; very", "1"), ("so | so", "2"), ("ok", "2")]
PLAIN = {"text": ["a", "b"], "price": ["3", "4"]}


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
        ('price, text\n3, "a, ""b"""\n', {"price": ["3"], "text": ['a, "b"']}),
        ('name   size\n"a b"   5\n  d 7\n', {"name": ["a b", "d"], "size": ["5", "7"]}),
        ("text\nhello world\ngood morning\n", {"text": ["hello world", "good morning"]}),
        ('text;price\n"one,\ntwo"' + ";3\n", {"text": ["one,\ntwo"], "price": ["3"]}),
        (f"text;price\n{'long ' * 40_000};3\n", {"text": ["long " * 40_000], "price": ["3"]}),
        ("text,price\nNA,\n", {"text": ["NA"], "price": [""]}),
        ("text,price\n", {"text": [], "price": []}),
        ("code,y\n007,1\n", {"code": ["007"], "y": ["1"]}),
    ],
)
def test_the_first_line_says_what_separates_fields(read, lines, found):
    assert read(lines).rows.to_dict("list") == found


@pytest.mark.parametrize(
    "lines",
    [
        "text,price\na,3,\nb,4,\n",
        "text,price,\na,3\nb,4\n",
        "text;price\na;3;;\nb;4\n",
        "|text|price|\n|a|3|\n|b|4|\n",
        ",text,price\n,a,3\n,b,4\n",
    ],
)
def test_rows_may_begin_and_end_in_a_separator(read, lines):
    assert read(lines).rows.to_dict("list") == PLAIN


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
        "a,b\n1,2,3\n4,5\n",
        "a\tb\tc\n1\t2\t3\t4\n5\t6\t7\n",
        'a,b\n"1,2\n3,4\n',
        "Sales in 2024\n\ntext,price\na,3\nb,4\n",
        "",
    ],
)
def test_lines_that_are_no_table_are_refused_with_the_name_of_the_file(read, lines):
    with pytest.raises(ValueError, match=r"table\.csv"):
        read(lines)


def test_a_separator_that_is_given_is_taken_and_is_one_character(read):
    assert read("text^price\na,b^3\n", separator="^").rows.columns.tolist() == ["text", "price"]
    assert read("text price\na 3\n", separator=" ").rows.shape == (1, 2)
    assert read("a,b\tprice\nc,d\t3\n", separator="\\t").rows.columns.tolist() == ["a,b", "price"]
    for given in ("||", "tab", ""):
        with pytest.raises(ValueError, match="--separator"):
            read("a\n1\n", separator=given)


def test_without_a_header_columns_are_numbered(read):
    assert read("good,5\nbad,1\n", header=False).rows.to_dict("list") == {
        "x0": ["good", "bad"],
        "x1": ["5", "1"],
    }
    assert any("--no-header" in note for note in read("good,5\nbad,1\n").notes)


def test_columns_of_one_name_are_numbered_and_asking_for_one_says_so(read):
    table, notes = read("text,price,price\na,1,2\n")
    assert table.to_dict("list") == {"text": ["a"], "price.1": ["1"], "price.2": ["2"]}
    with pytest.raises(ValueError, match=r"price\.1"):
        find_column(table, "price", "--target", notes)


def test_a_column_that_is_missing_is_answered_with_those_there_are():
    table = pd.DataFrame(columns=["Life expectancy", "country"])
    assert find_column(table, "Life expectancy ", "--target") == "Life expectancy"
    for name in ("life expectancy", "something else"):
        with pytest.raises(ValueError, match=r"--target .*Life expectancy"):
            find_column(table, name, "--target")


@pytest.mark.parametrize("ending", ["gz", "bz2", "zip", "xz"])
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
        ("rows.json", b"[" * 9000),
        ("rows.csv", b"PK\x03\x04\xff"),
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
    sheet.column_dimensions.group("A", "B", hidden=True)
    book.save(tmp_path / "rows.xlsx")
    table, notes = read_table(tmp_path / "rows.xlsx")
    known = table.drop(columns="double").to_dict("list")
    assert known == {"shop": ["north", "north", "south"], "y": ["1", "2", "3"]}
    assert [" ".join(note.split()[:3]) for note in notes] == [
        "merged cells: each",
        "hidden rows: 1,",
        "hidden columns: 2,",
    ]
    with pytest.raises(ValueError, match="spreadsheet"):
        read_answers(table["double"])
