import io

import pandas as pd
import pytest
from data_cases import rows, tabular

from ntl.data.table_files import read_table
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


def test_quotes_inside_a_field_and_fields_of_several_lines_are_read():
    text = 'a,b\n"Best" house,5" pipe\n"one\n\n""two""\n", "x, y"\n'
    assert read_table(io.StringIO(text), "data").to_numpy().tolist() == [
        ["Best house", '5" pipe'],
        ['one\n\n"two"\n', "x, y"],
    ]


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
