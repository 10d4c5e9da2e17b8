import io

import pandas as pd
import pytest
from data_cases import rows, tabular
from hypothesis import given, settings
from hypothesis import strategies as st

from ntl.data.table_files import as_texts, read_table
from ntl.errors import UserError


def test_a_missing_file_is_an_error_that_names_it():
    with pytest.raises(UserError, match=r"dataset_args.file=nowhere.csv cannot be read"):
        tabular("file=nowhere.csv")


@pytest.mark.filterwarnings("error::FutureWarning")
@pytest.mark.parametrize("ending", [".tsv", ".TSV", ".jsonl", "_mark.jsonl", ".parquet"])
def test_other_formats_are_read_like_csv(tmp_path, ending):
    held = pd.DataFrame({"a": ["x", None, "é"], "b": [1, 2, None], "y": [1, 2, 3]}).convert_dtypes()
    path = tmp_path / f"table{ending}"
    write = {
        ".tsv": lambda: held.to_csv(path, sep="\t", index=False),
        ".jsonl": lambda: held.to_json(path, orient="records", lines=True),
        ".parquet": lambda: held.to_parquet(path),
    }
    write[ending.removeprefix("_mark").lower()]()
    if "_mark" in ending:
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    data = tabular(f"file={path}", "target=y", "validation_size=1", "test_size=1")
    assert {e.question: e.answer for e in rows(data)} == {"x,1": "1", "?,2": "2", "é,?": "3"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nx\n\ny\n\n", {"a": ["x", "?", "y"]}),
        ("a\r\n\r\nx\r\n", {"a": ["?", "x"]}),
        ("\n\na\nx\n", {"a": ["x"]}),
        ("\n\na,b\n\n1,2\n\n3,4\n", {"a": ["1", "3"], "b": ["2", "4"]}),
    ],
)
def test_a_blank_line_is_a_row_only_between_the_rows_of_a_single_column(text, expected):
    assert read_table(io.StringIO(text), "data").fillna("?").to_dict("list") == expected


@pytest.mark.parametrize("rest", [75, 9000])  # of fewer and of more characters than csv's limit of a field
def test_a_quote_that_is_not_closed_is_an_error_that_names_where_its_row_begins(rest):
    lines = ["kind,size,new,price", 'house,"8\n0",TRUE,300', "flat,20,TRUE,100", '"flat,25.5,TRUE,116']
    text = "\n".join([*lines, *["house,80.25,FALSE,300"] * rest])
    for cut in (text, text[: text.index("TRUE,116")]):
        with pytest.raises(UserError, match=r"line 5: the row that begins here .* expected a closing quote"):
            read_table(io.StringIO(cut), "data")


@pytest.mark.parametrize("row", ['"Best" house\t1', '"Best house\t1\na "good" one\t2\n"fine" too\t3'])
def test_a_loose_quote_is_an_error_and_merges_no_rows(tmp_path, row):
    path = tmp_path / "table.tsv"
    path.write_text(f"text\ty\nfirst\t0\n{row}\nlast\t4\n")
    with pytest.raises(UserError, match="line 3: "):
        read_table(path, "data")


def test_quotes_inside_a_field_and_fields_of_several_lines_are_read():
    text = 'a,b\n"""Best"" house",5" pipe\n"one\n\n""two""\n", "x, y"\n'
    assert read_table(io.StringIO(text), "data").to_numpy().tolist() == [
        ['"Best" house', '5" pipe'],
        ['one\n\n"two"\n', "x, y"],
    ]


NAMES = ["", " ", " BMI ", "price", "a, b", ' "q"', " Unnamed: 0", "Unnamed: 1", "two\nlines"]
TEXTS = ["", " ", " x ", " a, b", ' "q" ', "\n", " two\nlines", "NA", "7"]
VALUES = [*TEXTS, "TRUE", " false", "True ", 7, True, None]


@settings(deadline=None, derandomize=True)
@given(st.data())
def test_a_data_frame_is_read_like_the_csv_file_that_it_is_stored_as(data):
    names = data.draw(st.lists(st.sampled_from(NAMES), unique_by=lambda name: name.lstrip(" ")))
    names += [] if "price" in names else ["price"]
    values = st.lists(st.sampled_from(VALUES), min_size=len(names), max_size=len(names))
    frame = pd.DataFrame(data.draw(st.lists(values, min_size=1, max_size=4)), columns=names, dtype=object)
    texts = as_texts(frame)
    for stored in (frame, texts):
        found = read_table(io.StringIO(stored.to_csv(index=False)), "data")
        assert list(found) == list(texts)
        assert found.equals(texts)


def test_names_and_texts_lose_their_leading_blanks_and_empty_texts_are_missing(tmp_path):
    rows = [{" BMI ": " 1", "kind": "  ", "size": ""}, {" BMI ": "2 ", "kind": " x ", "size": 3}]
    path = tmp_path / "table.jsonl"
    path.write_text(pd.DataFrame(rows).to_json(orient="records", lines=True))
    for table in (as_texts(pd.DataFrame(rows)), read_table(path, "data")):
        assert table.fillna("?").to_dict("list") == {
            "BMI ": ["1", "2 "],
            "kind": ["?", "x "],
            "size": ["?", "3"],
        }


def test_truth_values_are_written_in_one_way():
    table = read_table(io.StringIO("a,b,c,d\nTRUE,true,TRUE,\n,False,yes,\nFALSE,True,FALSE,\n"), "data")
    assert table.fillna("?").to_dict("list") == {
        "a": ["True", "?", "False"],
        "b": ["True", "False", "True"],
        "c": ["TRUE", "yes", "FALSE"],
        "d": ["?", "?", "?"],
    }
    frame = pd.DataFrame({"b": [True, False, True]})
    assert as_texts(frame).equals(table[["b"]])


@pytest.mark.parametrize(
    "header", [",Unnamed: 0,kind", ",Unnamed: 0,,Unnamed: 2", ",Unnamed: 0,Unnamed: 0.1", "Unnamed: 1,"]
)
def test_a_column_without_a_name_gets_a_free_one(header):
    text = f"{header},price\n" + ",".join("12345"[: header.count(",") + 2])
    table = read_table(io.StringIO(text), "data")
    assert table.columns.is_unique
    assert table.iloc[0].tolist() == [*"12345"[: header.count(",") + 2]]
    if ".1" not in header:  # pandas itself would number it so that it collides
        assert [*table] == [*pd.read_csv(io.StringIO(text))]


def test_json_lines_keep_every_digit_and_every_key(tmp_path):
    path = tmp_path / "exact.jsonl"
    path.write_text(
        '{"y": 0.3, "01": 9007199254740993, "b": true, "1": 1e400}\n\n'
        '{"y": 1.50, "01": null, "b": "x", "1": NaN, "new": -7}\n'
    )
    table = read_table(path, "data")
    assert [*table.columns] == ["y", "01", "b", "1", "new"]
    first, second = table.to_dict("records")
    assert (first["y"], first["01"], first["b"], first["1"]) == ("0.3", "9007199254740993", "True", "1e400")
    assert (second["y"], second["b"], second["1"], second["new"]) == ("1.50", "x", "NaN", "-7")
    assert pd.isna([first["new"], second["01"]]).all()


def test_large_whole_numbers_beside_gaps_keep_their_digits(tmp_path):
    pd.DataFrame({"y": pd.array([9007199254740993, None], "Int64")}).to_parquet(tmp_path / "a.parquet")
    assert read_table(tmp_path / "a.parquet", "data")["y"][0] == "9007199254740993"


def test_a_named_index_of_a_parquet_file_is_a_column(tmp_path):
    path = tmp_path / "table.parquet"
    held = pd.DataFrame({"id": ["a", "b"], "part": [1, 2], "y": [3, 4]})
    for index in ("id", ["id", "part"], ["part"]):
        held.set_index(index).to_parquet(path)
        assert read_table(path, "data")[[*held]].equals(as_texts(held))
    for frame in (held.set_index("id", drop=False), held.set_index(pd.Index(["x", "z"]))):
        frame.to_parquet(path)
        assert read_table(path, "data").equals(as_texts(held))


@pytest.mark.parametrize(
    "lists", [[[0, 1], [2, 3]], [[0, 1], []], [["x"], None], [[[1]], [[2]]], [{"b": [1]}, {"b": [2]}]]
)
def test_lists_of_a_parquet_file_are_texts(tmp_path, lists):
    frame = pd.DataFrame({"a": lists, "y": [3, 4]})
    frame.to_parquet(tmp_path / "table.parquet")
    found = read_table(tmp_path / "table.parquet", "data")
    assert found.equals(as_texts(frame))
    assert found["a"].dropna().tolist() == [str(each) for each in lists if each is not None]
    assert found["y"].tolist() == ["3", "4"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("array.jsonl", '[{"a": 1}, {"a": 2}]', "line 1: it is not an object"),
        ("nested.jsonl", '{"a": 1}\n{"a": [1]}', "line 2: it is not an object of texts and numbers"),
        ("half.jsonl", '{"a": "\\ud800"}', "line 1: .*surrogates not allowed"),
        ("short.csv", "a,y\n1\n2\n", "0 rows with a value of 'y'"),
        ("twice.csv", "a,a\n1,2\n", "two columns 'a'"),
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
