"""Tables as people have them: what is read, what is said, and what is refused by name."""

import csv
import gzip
import json
import zipfile

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest

from ntloss.regression.columns import Answers, is_gap_mark, read_answers
from ntloss.regression.questions import Questions
from ntloss.regression.suspects import leave_out_summary
from ntloss.regression.tables import find_column, make_frame, read_table

ROWS = [("fine, really", "3"), ("bad; very", "1"), ("so | so", "2"), ("ok", "2")]


def write_csv(path, separator, encoding="utf-8", start=""):
    lines = [f"text{separator} price "]
    lines += [f'"{text}"{separator}{price}' for text, price in ROWS]
    path.write_text(start + "\n".join(lines) + "\n", encoding)
    return path


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separators_are_found_and_names_have_no_blanks(tmp_path, separator):
    table, notes = read_table(write_csv(tmp_path / "table.csv", separator))
    assert list(table.columns) == ["text", "price"]
    assert list(map(tuple, table.to_numpy())) == ROWS
    assert bool(notes) == (separator != ",")


def test_a_long_field_is_read_behind_a_short_table_and_the_limit_of_the_process_stays(tmp_path):
    limit = csv.field_size_limit()
    for name, text in (("short.csv", "ok"), ("long.csv", "long " * 40_000), ("wrong.csv", 'no "')):
        path = tmp_path / name
        path.write_text(f'text;price\n"{text}";3\n')
        if name == "wrong.csv":
            with pytest.raises(ValueError, match="quote"):
                read_table(path)
        else:
            assert read_table(path).rows.to_numpy().tolist() == [[text, "3"]]
        assert csv.field_size_limit() == limit


def test_the_separator_is_found_where_texts_have_many_lines(tmp_path):
    path = tmp_path / "poems.csv"
    path.write_text("text;price\n" + '"one,\ntwo,\nthree,\nfour";3\n' * 30)
    assert read_table(path).rows.shape == (30, 2)


def test_columns_of_one_name_are_numbered_and_asking_for_one_says_so(tmp_path):
    path = tmp_path / "twice.csv"
    path.write_text("text,price,price\na,1,2\n")
    table, notes = read_table(path)
    assert table.to_dict("list") == {"text": ["a"], "price.1": ["1"], "price.2": ["2"]}
    with pytest.raises(ValueError, match=r"price\.1"):
        find_column(table, "price", "--target", notes)


def test_digits_of_other_scripts_are_no_plain_numbers():
    with pytest.raises(ValueError, match="row 2"):
        read_answers(pd.Series(["5", "\uff15"], name="price"))


def test_commas_in_unquoted_texts_do_not_hide_another_separator(tmp_path):
    path = tmp_path / "reviews.csv"
    path.write_text("title;text;price\na, b;c, d, e;3\nf;g;4\n")
    assert read_table(path).rows.shape == (2, 3)


def test_a_line_that_names_the_separator_is_obeyed(tmp_path):
    table, _ = read_table(write_csv(tmp_path / "excel.csv", ";", start="sep=;\n"))
    assert list(map(tuple, table.to_numpy())) == ROWS


def test_blanks_separate_the_columns_of_a_table_of_numbers_and_no_words(tmp_path):
    path = tmp_path / "blanks.txt"
    path.write_text('name   size\n"a b"   5\nc     12\n  d 7\n')
    table, notes = read_table(path)
    assert table.to_numpy().tolist() == [["a b", "5"], ["c", "12"], ["d", "7"]]
    assert "blanks" in " ".join(notes)
    path.write_text("text\nhello world\ngood morning\n")
    assert read_table(path).rows["text"].tolist() == ["hello world", "good morning"]


@pytest.mark.parametrize(
    ("lines", "separator", "rows"),
    [
        ("text~price\na, b~3\nc~4\n", "~", [["a, b", "3"], ["c", "4"]]),
        ("size\tends\n5\t[-1, -1]\n6\t[2, 3]\n", "\t", [["5", "[-1, -1]"], ["6", "[2, 3]"]]),
        ("x;y\n1,5;2,5\n3,5;4,5\n", ";", [["1,5", "2,5"], ["3,5", "4,5"]]),
    ],
)
def test_the_separator_is_the_one_that_leaves_no_other_in_the_cells(tmp_path, lines, separator, rows):
    (tmp_path / "table.csv").write_text(lines)
    table, notes = read_table(tmp_path / "table.csv")
    assert table.to_numpy().tolist() == rows
    assert any(repr(separator) in note for note in notes)


def test_a_last_line_alone_makes_no_other_separator(tmp_path):
    (tmp_path / "table.csv").write_text("text,price\ngood,3\nbad,4\n~,5\n")
    assert read_table(tmp_path / "table.csv").rows["text"].tolist() == ["good", "bad", "~"]


def test_a_separator_that_is_given_is_taken(tmp_path):
    (tmp_path / "table.csv").write_text("text^price\na,b^3\nc^4\n")
    assert read_table(tmp_path / "table.csv", "^").rows.columns.tolist() == ["text", "price"]
    with pytest.raises(ValueError, match="--separator"):
        find_column(pd.DataFrame(columns=["text^price"]), "price", "--target")
    (tmp_path / "table.csv").write_text("text\nHello, world\nHi, there\n")
    with pytest.raises(ValueError, match="line 2") as raised:
        read_table(tmp_path / "table.csv")
    assert "--separator" not in str(raised.value)  # programs may lack it
    with pytest.raises(ValueError, match="--separator"):
        read_table(tmp_path / "table.csv", option="--separator")


@pytest.mark.parametrize(
    "start",
    [
        "# made in 2024\n# by hand, with care\n",
        'Sales of "2024"\n\n',
        "Sales\n",
        'Sales,\n"in 2024, by shop",\n,\n',  # as spreadsheets write them
    ],
)
def test_titles_and_comments_before_a_table_are_left_out(tmp_path, start):
    (tmp_path / "table.csv").write_text(start + "text,price\na,3\nb,4\nc,5\n")
    table, notes = read_table(tmp_path / "table.csv")
    assert table.columns.tolist() == ["text", "price"]
    assert len(notes) == 1


@pytest.mark.parametrize(
    "lines", ["text,price,\na,3,\nb,4,\n", "|text|price|\n|a|3|\n|b|4|\n", ",text,price\n,a,3\n,b,4\n"]
)
def test_columns_without_a_name_and_a_value_are_no_columns(tmp_path, lines):
    (tmp_path / "table.csv").write_text(lines)
    table = read_table(tmp_path / "table.csv").rows
    assert table.to_dict("list") == {"text": ["a", "b"], "price": ["3", "4"]}
    (tmp_path / "table.csv").write_text("text,price,,\na,3,1,2\n")
    assert [*read_table(tmp_path / "table.csv").rows] == ["text", "price", "Unnamed: 2", "Unnamed: 3"]


@pytest.mark.parametrize(
    "lines",
    ["a,b\n1,2,\n3,4,\n", "a,b,\n1,2\n3,4\n", "a;b\n1;2;;\n3;4\n", "Sales\n\na,b\n1,2,\n3,4,\n"],
)
def test_rows_may_end_in_a_separator(tmp_path, lines):
    (tmp_path / "table.csv").write_text(lines)
    assert read_table(tmp_path / "table.csv").rows.to_dict("list") == {"a": ["1", "3"], "b": ["2", "4"]}


@pytest.mark.parametrize("mark", [" ", ",", "\t", ";"])
def test_names_of_rows_as_r_writes_them_are_a_column_without_a_name(tmp_path, mark):
    rows = [['"cyl"', '"kind"'], ['"a b"', "6", '"x"'], ['"c"', "4", '"y z"'], ['"d"', "8", '"x"']]
    (tmp_path / "table.txt").write_text("".join(mark.join(row) + "\n" for row in rows))
    table, notes = read_table(tmp_path / "table.txt")
    assert table.to_dict("list") == {
        "Unnamed: 0": ["a b", "c", "d"],
        "cyl": ["6", "4", "8"],
        "kind": ["x", "y z", "x"],
    }
    assert any("R " in note for note in notes)
    (tmp_path / "table.txt").write_text("text,price\nHello,world,5\nHi,there,6\n")
    with pytest.raises(ValueError, match="line 2"):
        read_table(tmp_path / "table.txt")


def test_without_a_header_columns_are_numbered(tmp_path):
    (tmp_path / "table.csv").write_text("good,5\nbad,1\n")
    assert read_table(tmp_path / "table.csv", header=False).rows.to_dict("list") == {
        "x0": ["good", "bad"],
        "x1": ["5", "1"],
    }


@pytest.mark.parametrize("start", ["\n \n", "Sales;\n;\n"])
def test_quoted_separators_are_part_of_texts_below_blank_lines_and_titles(tmp_path, start):
    (tmp_path / "table.csv").write_text(start + 'text;price\n"a;b|c,d";5\n"e,f;g";6\n')
    assert read_table(tmp_path / "table.csv").rows.to_numpy().tolist() == [["a;b|c,d", "5"], ["e,f;g", "6"]]


def test_decimal_commas_with_a_unit_are_no_separators_below_a_title(tmp_path):
    (tmp_path / "table.csv").write_text('Sales;\n;\ntext;price\n"a, b";5,5 kg\n"c";6,25 kg\n')
    assert read_table(tmp_path / "table.csv").rows.to_numpy().tolist() == [
        ["a, b", "5,5 kg"],
        ["c", "6,25 kg"],
    ]


def test_names_in_a_comment_name_the_columns_of_a_table_of_numbers(tmp_path):
    numbers = np.array([[1.5, 2], [3, 4], [5, 6]])
    for mark in (",", " ", "\t"):
        names = mark.join(["size", "price"])
        np.savetxt(tmp_path / "table.txt", numbers, "%g", mark, header=f"made by hand\n{names}")
        table, notes = read_table(tmp_path / "table.txt")
        assert table.to_dict("list") == {"size": ["1.5", "3", "5"], "price": ["2", "4", "6"]}
        assert any("names" in note for note in notes)


@pytest.mark.parametrize("start", ["", "# made by hand\n", "#\tmade\n"])
def test_a_column_of_row_numbers_is_no_comment(tmp_path, start):
    (tmp_path / "table.tsv").write_text(f"{start}#\tname\tprice\n1\ta\t3\n2\tb\t4\n")
    table, notes = read_table(tmp_path / "table.tsv")
    assert table.to_dict("list") == {"#": ["1", "2"], "name": ["a", "b"], "price": ["3", "4"]}
    assert any("made" in note for note in notes) == bool(start)


def test_a_header_of_years_is_not_replaced_by_a_comment(tmp_path):
    (tmp_path / "table.csv").write_text("# exported 2024, by Ann\ntext,2023\na,3\nb,4\n")
    assert read_table(tmp_path / "table.csv").rows.to_dict("list") == {"text": ["a", "b"], "2023": ["3", "4"]}


def test_names_that_stand_between_rows_again_are_no_row(tmp_path):
    part = "text,price\na,3\nb,4\n"
    (tmp_path / "table.csv").write_text(2 * part)
    table, notes = read_table(tmp_path / "table.csv")
    assert table["price"].tolist() == ["3", "4", "3", "4"]
    assert any("1 row" in note for note in notes)
    (tmp_path / "words.csv").write_text("word\nword\nother\n")
    assert read_table(tmp_path / "words.csv").rows["word"].tolist() == ["word", "other"]


def test_blanks_before_quoted_fields_are_no_part_of_them(tmp_path):
    (tmp_path / "table.csv").write_text('price, text, kind\n3, "a, b", x\n4, "c ""d"", e", y\n')
    assert read_table(tmp_path / "table.csv").rows.to_numpy().tolist() == [
        ["3", "a, b", "x"],
        ["4", 'c "d", e', "y"],
    ]
    (tmp_path / "table.csv").write_text('price; text\n3; "a" and b\n4; c\n')
    assert read_table(tmp_path / "table.csv").rows["text"].tolist() == [' "a" and b', " c"]


def test_a_separator_is_one_character_and_a_tab_can_be_typed(tmp_path):
    (tmp_path / "table.csv").write_text("text\tprice\na, b\t3\n")
    assert read_table(tmp_path / "table.csv", "\\t").rows.shape == (1, 2)
    for given in ("||", "tab", ""):
        with pytest.raises(ValueError, match="--separator"):
            read_table(tmp_path / "table.csv", given)


def test_json_of_another_layout_or_name_is_an_error_that_says_what_was_expected(tmp_path):
    for content in ({"data": [{"text": "a"}]}, {"text": ["a"], "price": [3]}):
        (tmp_path / "rows.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match="array of objects"):
            read_table(tmp_path / "rows.json")
    for content in ('{"text": "a", "price": 3}\n{"text": "b", "price": 4}\n', '[{"text": "a", "price": 3}]'):
        (tmp_path / "rows.txt").write_text(content)
        with pytest.raises(ValueError, match=r"\.jsonl"):
            read_table(tmp_path / "rows.txt")


def test_a_line_that_is_no_row_is_shown_with_its_number(tmp_path):
    (tmp_path / "table.csv").write_text("# 2024\ntext,price\na,3\nb,4\nSource: a shop\n")
    with pytest.raises(ValueError, match=r"line 5 .*Source: a shop"):
        read_table(tmp_path / "table.csv")


def test_a_first_row_that_looks_like_data_is_pointed_out(tmp_path):
    (tmp_path / "table.csv").write_text("good,5\nbad,1\nfair,3\n")
    assert any("header" in note for note in read_table(tmp_path / "table.csv").notes)


@pytest.mark.parametrize("cell", ["-999", "-999.0", " -9.99e2"])
def test_marks_of_missing_answers_can_be_named_and_numbers_are_compared_by_value(cell):
    numbers, notes, _ = read_answers(pd.Series([cell, "3"], name="y"), missing=["-999"])
    assert np.array_equal(numbers, [np.nan, 3], equal_nan=True)
    assert cell.strip() in notes[0]
    assert is_gap_mark(pd.Series([cell, "3", None], dtype=object), ["-999"]).tolist() == [True, False, False]


def test_compressed_files_and_byte_order_marks(tmp_path):
    for encoding in ("utf-8-sig", "utf-16"):
        path = write_csv(tmp_path / "table.csv", ",", encoding)
        packed = tmp_path / "packed.csv.gz"
        packed.write_bytes(gzip.compress(path.read_bytes()))
        for file in (path, packed):
            assert list(read_table(file).rows.columns) == ["text", "price"]


@pytest.mark.parametrize("ending", ["gz", "bz2", "zip", "xz"])
def test_compressed_tables_are_read_and_damaged_ones_are_errors_that_name_them(tmp_path, ending):
    frame = pd.DataFrame({"text": [f"text {i}" for i in range(99)]})
    path, lines = tmp_path / f"rows.csv.{ending}", tmp_path / f"rows.jsonl.{ending}"
    frame.to_csv(path, index=False)
    frame.to_json(lines, orient="records", lines=True)
    assert read_table(path).rows.equals(read_table(lines).rows)
    packed = path.read_bytes()
    half = len(packed) // 2
    for damaged in (packed[:half], packed[:half] + bytes(9) + packed[half + 9 :], b"text\nfine\n"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"rows\.csv\.{ending}"):
            read_table(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [("rows.xlsx", b"text"), ("rows.parquet", b"text"), ("rows.json", b"[" * 200_000)],
)
def test_files_that_are_not_what_their_ending_says_are_errors_that_name_them(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=name):
        read_table(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "kind"), [("rows.xlsx", "csv"), ("rows.csv", "xlsx"), ("rows.json", "xlsx")]
)
def test_files_with_the_ending_of_another_format_are_refused_with_the_right_one(tmp_path, name, kind):
    path = write_csv(tmp_path / name, ",")
    if kind == "xlsx":
        with zipfile.ZipFile(path, "w") as book:
            book.writestr("xl/workbook.xml", bytes(range(256)))
    with pytest.raises(ValueError, match=rf"{name}.*\.{kind}"):
        read_table(path)


@pytest.mark.parametrize("name", ["rows.json", "rows.ndjson", "rows.jsonl"])
@pytest.mark.parametrize("as_lines", [True, False])
def test_json_in_both_layouts_leaves_nested_values_out_by_name(tmp_path, name, as_lines):
    rows = [{"text": "a", "price": 3, "helpful": [0, 0]}, {"text": "b", "price": None, "helpful": [1, 2]}]
    content = "\n".join(map(json.dumps, rows)) if as_lines else json.dumps(rows)
    (tmp_path / name).write_text(content)
    table, notes = read_table(tmp_path / name)
    assert table.to_dict("list") == {"text": ["a", "b"], "price": ["3", None]}
    assert any("helpful" in note for note in notes)
    with pytest.raises(ValueError, match="lists"):
        find_column(table, "helpful", "--target", notes)


def test_lines_of_json_end_only_at_line_feeds(tmp_path):
    texts = [f"one{mark}two" for mark in "\u2028\u2029\x85"]
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    for end in ("\n", "\r\n"):
        (tmp_path / "rows.jsonl").write_bytes("".join(line + end for line in lines).encode())
        assert read_table(tmp_path / "rows.jsonl").rows["text"].tolist() == texts


@pytest.mark.parametrize("content", ["[]", "", "{}", '[{"text": []}]'])
def test_a_file_without_columns_is_an_error_that_names_it(tmp_path, content):
    (tmp_path / "empty.json").write_text(content)
    with pytest.raises(ValueError, match=r"empty\.json"):
        read_table(tmp_path / "empty.json")


def test_parquet_is_read_as_texts(tmp_path):
    pd.DataFrame({"size": [1.0, np.nan], "n": [1, 2]}).to_parquet(tmp_path / "rows.parquet")
    table, _ = read_table(tmp_path / "rows.parquet")
    assert table.to_dict("list") == {"size": ["1", None], "n": ["1", "2"]}


def test_bytes_of_parquet_are_texts_in_utf_8(tmp_path):
    pd.DataFrame({"text": ["caf\u00e9".encode(), None, b"\xff"]}).to_parquet(tmp_path / "rows.parquet")
    assert read_table(tmp_path / "rows.parquet").rows["text"].tolist() == ["caf\u00e9", None, "\\xff"]


def test_whole_numbers_of_parquet_keep_their_digits_beside_gaps(tmp_path):
    column = pyarrow.table({"id": pyarrow.array([9007199254740993, None])})
    pyarrow.parquet.write_table(column, tmp_path / "rows.parquet")
    assert read_table(tmp_path / "rows.parquet").rows["id"].tolist() == ["9007199254740993", None]


def test_a_named_index_of_parquet_is_a_column(tmp_path):
    held = pd.DataFrame({"id": ["a", "b"], "part": [1, 2], "y": [3, 4]})
    texts = {"id": ["a", "b"], "part": ["1", "2"], "y": ["3", "4"]}
    for index, drop in (("id", True), ("id", False), (["id", "part"], True)):
        held.set_index(index, drop=drop).to_parquet(tmp_path / "rows.parquet")
        assert read_table(tmp_path / "rows.parquet").rows.to_dict("list") == texts


@pytest.mark.parametrize("rows", [[2, 0, 1], [1, 2], [0, 0, 2]])
def test_rows_of_parquet_are_numbered_in_their_order_whatever_their_index_is(tmp_path, rows):
    held = pd.DataFrame({"text": ["a", "b", "c"], "y": [1, 2, 3]}).iloc[rows]
    held.to_parquet(tmp_path / "rows.parquet")
    table = read_table(tmp_path / "rows.parquet").rows
    assert [*table.index] == [*range(len(rows))]
    assert table["text"].tolist() == held["text"].tolist()


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16-le", "utf-32"])
def test_other_encodings_are_refused_with_the_file_and_what_to_do(tmp_path, encoding):
    path = tmp_path / "table.csv"
    path.write_text("text,price\ncafé,3\n", encoding)
    with pytest.raises(ValueError, match=r"table.csv.*encoding"):
        read_table(path)


@pytest.mark.parametrize("lines", ["a,b\n1,2,3\n4,5\n", "a,b\n1\n2,3\n", 'a,b\n"1,2\n3,4\n'])
def test_malformed_files_are_refused_with_their_name(tmp_path, lines):
    path = tmp_path / "broken.csv"
    path.write_text(lines)
    with pytest.raises(ValueError, match=r"broken\.csv"):
        read_table(path)


def test_gaps_in_a_column_of_numbers_leave_it_one(tmp_path):
    path = tmp_path / "gaps.csv"
    path.write_text("size,country\n3,NA\nNA,NO\n?,SE\n")
    rows = read_table(path).rows
    assert rows.to_dict("list") == {"size": ["3", "NA", "?"], "country": ["NA", "NO", "SE"]}
    questions = Questions.choose(rows, np.arange(3.0))
    assert questions.write(rows)[1:] == [
        "size: unknown, country: NO, answer: ",
        "size: unknown, country: SE, answer: ",
    ]


@pytest.mark.parametrize(
    ("name", "last", "is_left_out", "notes"),
    [
        ("Total", 465, True, 1),
        ("TOTAL:", 465, True, 1),
        ("Grand total", 464, True, 1),  # of numbers that were not rounded
        ("Average", 15.5, True, 1),
        ("Summe", 465, True, 1),
        ("Total", 7, False, 1),
        ("Summe", 7, False, 0),
        ("b", 15.5, False, 0),
    ],
)
def test_a_last_row_that_sums_up_the_others_is_left_out(name, last, is_left_out, notes):
    rows = pd.DataFrame({"text": [*["a"] * 30, name, "Source: a shop"]})
    numbers = np.array([*range(1, 31), last, np.nan])
    found, said, _ = leave_out_summary(rows, Answers(numbers, ["read"]))
    assert len(said) == 1 + notes
    assert np.isnan(found).tolist() == [*[False] * 30, is_left_out, True]


def test_a_total_and_an_average_are_left_out_together():
    rows = pd.DataFrame({"text": [*["a"] * 30, "Total", "Average"]})
    for last in ([465, 15.5], [465, 7]):
        found, *_ = leave_out_summary(rows, Answers(np.array([*range(1, 31), *last], float), []))
        assert np.isnan(found[30:]).tolist() == [True, last[1] == 15.5]


def test_rows_that_only_happen_to_be_the_sum_of_the_others_stay():
    rows = pd.DataFrame({"text": [*["a"] * 30, "Total", "Total"]})
    for numbers in ([1, 2, 3], [*[0] * 30, 5, 5], [*range(29), 7], [*[1, -1] * 14, 1, 1]):
        answers = Answers(np.array(numbers, float), [])
        found, notes, _ = leave_out_summary(rows[: len(numbers)], answers)
        assert (found.tolist(), notes) == (numbers, [])


def test_a_column_that_is_missing_is_answered_with_those_there_are():
    table = pd.DataFrame(columns=["Life expectancy", "country"])
    assert find_column(table, "Life expectancy ", "--target") == "Life expectancy"
    with pytest.raises(ValueError, match="Life expectancy"):
        find_column(table, "life expectancy", "--target")
    with pytest.raises(ValueError, match="header"):
        find_column(pd.DataFrame(columns=["M", "0.455", "0.365"]), "rings", "--target")


@pytest.mark.parametrize("title", ["Sales, 2024", "Sales of books, in euros"])
def test_a_title_with_the_separator_in_it_is_pointed_out(tmp_path, title):
    (tmp_path / "table.csv").write_text(title + "\ntext,price\na,3\nb,4\nc,5\n")
    rows, notes = read_table(tmp_path / "table.csv")
    with pytest.raises(ValueError, match="title"):
        find_column(rows, "price", "--target", notes)


@pytest.mark.parametrize(
    ("texts", "decimal", "numbers", "noted"),
    [
        (["3", "-2.5", "1e3", " 4 ", "−5"], None, [3, -2.5, 1000, 4, -5], ""),
        (["$5", "$7.50", "-$2"], None, [5, 7.5, -2], "$"),
        (["12%", "7 %"], None, [12, 7], "%"),
        (["1.37kg", "2kg"], None, [1.37, 2], "kg"),
        (["True", "False"], None, [1, 0], "True"),
        (["3", "?", "", "unknown", "4"], None, [3, np.nan, np.nan, np.nan, 4], "3 rows"),
        (["4/5", "3.5 / 5", "5 out of 5", "?"], None, [4, 3.5, 5, np.nan], "out of 5"),
        (["4,5/10", "3/10"], None, [4.5, 3], "out of 10"),
        (["3", "#DIV/0!", "#VALUE!"], None, [3, np.nan, np.nan], "2 rows"),
        (["3", "\u2013", "\u2014", "n.a.", "4"], None, [3, np.nan, np.nan, np.nan, 4], "3 rows"),
        (["2,6", "3"], ",", [2.6, 3], ""),
        (["2,6", "1,234"], None, [2.6, 1.234], "'2,6'"),
        (["$1,234.50", "$99.00"], None, [1234.5, 99], "'$1,234.50'"),
        (["1,234,567", "(5,510)", "12"], None, [1234567, -5510, 12], "parentheses"),
        (["4\u202f733,00", "99,00"], None, [4733, 99], "','"),
        (["CHF 4'733.00", "CHF 99.00"], None, [4733, 99], "CHF"),
        (["$1.2M", "$900K"], None, [1.2e6, 9e5], "1200000"),
        (["5 m", "6 m"], None, [5, 6], "'m'"),
        (["1 star", "5 stars"], None, [1, 5], "stars"),
        (["\u20135", "3"], None, [-5, 3], ""),
        (["1.234.567", "12.345"], None, [1234567, 12345], "'1.234.567'"),
        (["1,234", "12"], ".", [1234, 12], ""),
        (["$1,234.00", "$5.50"], ".", [1234, 5.5], "$"),
        (["12.345", "523"], ",", [12345, 523], ""),
        (["2.712", "5.123"], None, [2.712, 5.123], "--decimal ,"),
        (["2.712", "5.123"], ".", [2.712, 5.123], ""),
        (["2.712", "5.123"], ",", [2712, 5123], ""),
        (["0.712", "5.123"], None, [0.712, 5.123], ""),
        (["1.234.567", "12.345"], ",", [1234567, 12345], ""),
        (["1.234,5", "2.345"], ",", [1234.5, 2345], ""),
        (["12.345", "523"], ".", [12.345, 523], ""),
        (["12.345", "523.1"], None, [12.345, 523.1], ""),
    ],
)
def test_answers_are_read_and_what_was_assumed_is_said(texts, decimal, numbers, noted):
    found, notes, _ = read_answers(pd.Series(texts, name="price"), decimal)
    assert np.array_equal(found, numbers, equal_nan=True)
    assert bool(notes) == bool(noted)
    assert noted in " ".join(notes)


@pytest.mark.parametrize(
    ("before", "texts", "numbers"),
    [
        (["4.776,5", "9.666"], ["9.666", "?"], [9666, np.nan]),
        (["4.776,5", "9.666"], ["2,512", "523"], [2.512, 523]),
        (["1.5", "2.345"], ["2.345", "523"], [2.345, 523]),
        (["2.712", "5.123"], ["2.345", "523"], [2.345, 523]),
        (["$1,234.50"], ["$1,234"], [1234]),
        (["5", "6"], ["2.345"], [2.345]),
        (["5", "6"], ["2,5", "1,234"], [2.5, 1.234]),  # which decide it themselves
    ],
)
def test_what_answers_leave_open_other_answers_of_their_kind_decide(before, texts, numbers):
    fitted = read_answers(pd.Series(before)).column
    assert np.array_equal(read_answers(pd.Series(texts), fitted=fitted).numbers, numbers, equal_nan=True)


@pytest.mark.parametrize(
    ("texts", "decimal", "shown"),
    [
        (["1,234", "5", "6"], None, "1,234"),
        (["(1,234)", "5"], None, "1,234"),
        (["$5", "7"], None, r"\$5"),
        (["1kg", "2g"], None, "1kg"),
        (["3", "four", "5"], None, "four"),
        (["12.345", "523"], None, "12.345"),
        (["1.2.3", "4"], ",", "1.2.3"),
        (["1,5", "2,345.6"], None, "1,5"),
        (["(5 kg)", "6 kg"], None, "5 kg"),
        (["(5)", "6", "-7"], None, "-7"),
        (["5\u00bd", "6\u00bd"], None, "row 1"),
        (["2 of 500", "3 of 500"], None, "2 of 500"),
        (["1.5", "2.345"], ",", "'1.5' in row 1. "),
        (["5.5%", "6.123%"], ",", "'5.5%' in row 1. "),
        (["1,5", "2,345.6"], ",", "'2,345.6' in row 2. "),
        (["1,2", "4"], ".", "1,2"),
        (["?", ""], None, "price"),
        (["$5", "€6"], None, "several units or marks: '\\$', '€'"),
        (["1kg", "2"], None, "'kg', and rows without one"),
        (["3", "TBD"], None, "--missing=TBD"),
        (["3", "---"], None, "--missing=---"),
        (["3", "<5"], None, "'<'"),
        (["1/5", "2/10"], None, "'1/5' in row 1"),
        (["1/5", "12/5"], None, "'1/5' in row 1"),
        (["1/5", "2"], None, "'1/5' in row 1"),
        (["3", "1e400"], None, "'1e400' in row 2"),
        (["low", "high"], None, "Expected numbers"),
        (["3-5", "4-6"], None, "'3-5' in row 1"),
        (["1:30", "2:15"], None, "'1:30' in row 1"),
        (["5 \u00b1 1", "6 \u00b1 1"], None, "row 1"),
        (["14.2-", "3"], None, "'14.2-' in row 1"),
        (["0x20", "0x3"], None, "'0x20' in row 1"),
        (["1_000", "2_000"], None, "'1_000' in row 1"),
        (["3", "inf"], None, "'inf' in row 2"),
        (["3", "-Infinity"], None, "'-Infinity' in row 2"),
        (["2024-01-05", "2024-01-06"], None, "'2024-01-05' in row 1"),
    ],
)
def test_answers_that_are_no_numbers_or_two_are_shown(texts, decimal, shown):
    with pytest.raises(ValueError, match=shown):
        read_answers(pd.Series(texts, name="price"), decimal)


@pytest.mark.parametrize(
    ("numbers", "wrong"),
    [
        (["$326", "$327", "$334"], ["on request"]),
        (["$1,234.50", "$99.00"], ["on request"]),
        (["5 kg", "6"], ["heavy"]),
        (["2.712", "5.123"], ["on request"]),
        (["$5", "$6"], ["3-5", "TBD"]),
    ],
)
def test_only_rows_without_a_number_are_named_if_there_are_any(numbers, wrong):
    with pytest.raises(ValueError, match=f"{len(wrong)} of") as raised:
        read_answers(pd.Series([*numbers, *wrong], name="price"))
    for text in wrong:
        assert f"{text!r} in row" in str(raised.value)
    for text in numbers:
        assert repr(text) not in str(raised.value)


SHEET = [
    ["Sales in 2024", "", "", ""],
    ["", "", "", ""],
    ["", "text", "price", ""],
    ["", "a", "3", ""],
    ["", "NA", "4.5", ""],
]


def test_sheets_may_have_titles_and_begin_at_any_cell():
    for first, noted in ((0, True), (1, False), (2, False)):
        notes = []
        table = make_frame(SHEET[first:], notes)
        assert table.to_dict("list") == {"text": ["a", "NA"], "price": ["3", "4.5"]}
        assert bool(notes) == noted
    assert make_frame([["text"], ["a"], ["b"]], []).to_dict("list") == {"text": ["a", "b"]}
    assert make_frame([["", "price"], ["a", "3"]], []).to_dict("list") == {"": ["a"], "price": ["3"]}


def test_excel_is_read_as_texts(tmp_path):
    pytest.importorskip("openpyxl")
    held = [[cell or None for cell in row] for row in SHEET]
    held[4][2] = 4.5
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
    for row in (
        ["Sales"],
        ["shop", "y", "double"],
        ["north", 1, "=B3*2"],
        [None, 2, "=B4*2"],
        ["south", 3, "=B5*2"],
    ):
        sheet.append(row)
    sheet.merge_cells("A1:C1")
    sheet.merge_cells("A3:A4")
    sheet.row_dimensions[4].hidden = True
    book.save(tmp_path / "rows.xlsx")
    table, notes = read_table(tmp_path / "rows.xlsx")
    assert table.drop(columns="double").to_dict("list") == {
        "shop": ["north", "north", "south"],
        "y": ["1", "2", "3"],
    }
    assert {note.partition(":")[0] for note in notes} >= {"merged cells", "hidden rows"}
    with pytest.raises(ValueError, match="spreadsheet"):
        read_answers(table["double"])
