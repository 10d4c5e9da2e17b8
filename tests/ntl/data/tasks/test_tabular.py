import pandas as pd
import pytest
from data_cases import rows, tabular

from ntl.config import Tabular
from ntl.data.table_files import as_texts
from ntl.data.tasks.tabular import write_questions
from ntl.errors import UserError


@pytest.fixture
def table(tmp_path):
    """Return a function that writes a table and loads it, with one test and one validation row."""

    def load(text, *overrides):
        path = tmp_path / "table.csv"
        path.write_text(text, encoding="utf-8")
        return tabular(f"file={path}", "target=y", "validation_size=1", "test_size=1", *overrides)

    return load


def test_the_shipped_sample_splits_into_disjoint_questions_with_numeric_answers():
    data = tabular()
    assert len(data.tests["test"]) == 300
    assert len(data.validation) == 200
    assert 1490 <= len(data.train) <= 1500
    assert all(326 <= int(example.answer) <= 18823 for example in rows(data))
    train = {example.question for example in data.train}
    assert not train & {e.question for e in (*data.validation, *data.tests["test"])}
    assert all(question.count(",") == 8 for question in train)


def test_the_same_seed_gives_the_same_split_and_another_seed_a_different_one():
    assert tabular() == tabular()
    assert tabular().tests != tabular("data_seed=1").tests


def test_questions_are_short_text_with_missing_values_marked(table):
    data = table(
        'a,b,y\n2000.0833333,"Big, red",1\n5380000,,2\nNA,x,3\n0.000123456,é,4\n', "significant_digits=4"
    )
    assert {e.question: e.answer for e in rows(data)} == {
        "2000,Big, red": "1",
        "5380000,?": "2",
        "?,x": "3",
        "0.0001235,é": "4",
    }
    data = table("a,y\n2000.0833333,1\n1,2\n2,3\n", "significant_digits=null")
    assert "2000.0833333" in {e.question for e in rows(data)}


@pytest.mark.parametrize("given", [(), ("significant_digits=null",)])
@pytest.mark.parametrize(
    "values",
    [
        ("1234567890123", "1234567890124", "1234567890125"),
        ("12345678901234567890", "12345678901234567891", "3"),
        ("02139", "10001", "2139"),
        ("1.10", "1.20", "2.50"),
        ("1.10", "1.1", "3"),
        ("137171", "137172", "5"),
    ],
)
def test_no_character_of_ids_codes_and_whole_numbers_is_lost(table, values, given):
    text = "a,y\n" + "".join(f"{value},{y}\n" for y, value in enumerate(values))
    data = table(text, *given)
    assert {e.question for e in rows(data)} == {*values}
    assert data.note is None


def test_a_column_whose_numbers_are_rounded_is_named(table):
    text = "when,size,y\n2000.0833333,1,1\n2000.5,2,2\n2001,3,3\n"
    note = table(text, "significant_digits=4").note
    assert "when" in note
    assert "size" not in note


@pytest.mark.parametrize("digits", [4, 15])
def test_a_file_and_its_data_frame_have_the_same_questions(tmp_path, digits):
    frame = pd.DataFrame(
        {"a": [1.5, 25.0, 3.25], "b": [1.0, None, 3.0], "c": [0.1 + 0.2, 2.0, 1e-7], "y": [1, 2, 3]}
    )
    frame.to_csv(tmp_path / "table.csv", index=False)
    sizes = ("validation_size=1", "test_size=1", f"significant_digits={digits}")
    data = tabular(f"file={tmp_path}/table.csv", "target=y", *sizes)
    settings = Tabular(significant_digits=digits, target=["y"])
    assert {*write_questions(as_texts(frame), settings, data.columns)} == {e.question for e in rows(data)}


def test_na_is_a_text_among_texts_and_missing_among_numbers(table):
    data = table("code,size,y\nNA,7,1\nnull,NA,2\nDE,null,3\n,8,4\n")
    assert {e.question for e in rows(data)} == {"NA,7", "null,?", "DE,?", "?,8"}
    assert {e.answer for e in rows(table("t,y\n1,1\nNA,2\n3,3\n4,null\n", "split_by=t"))} == {"1", "2", "3"}


@pytest.mark.parametrize(
    "text",
    [
        "a,y\n1,2,\n3,4,\n5,6,\n",
        "a,y\n1,2\n3,4\n5,6,,\n",
        "a,y,\n1,2,\n3,4,\n5,6,\n",
        "\ufeffa,y\n1,2\n3,4\n5,6\n",
    ],
)
def test_commas_after_the_last_column_do_not_shift_the_columns(table, text):
    assert {(e.question, e.answer) for e in rows(table(text))} == {("1", "2"), ("3", "4"), ("5", "6")}


def test_columns_of_the_question_can_be_chosen(table):
    data = table("a,b,y\n1,2,3\n4,5,6\n7,8,9\n", "columns=[b]")
    assert {(e.question, e.answer) for e in rows(data)} == {("2", "3"), ("5", "6"), ("8", "9")}


@pytest.mark.parametrize(
    "dates", [("3", "10", "2", "1"), ("2020-03-01", "2020-10-01", "2020-02-01", "2020-01-01")]
)
def test_splitting_by_a_column_puts_its_largest_values_into_the_test_set(table, dates):
    data = table("t,y\n" + "".join(f"{t},{y}\n" for y, t in enumerate(dates)), "split_by=t", "train_size=1")
    assert [[e.answer for e in part] for part in (data.train, data.validation, data.tests["test"])] == [
        ["2"],
        ["0"],
        ["1"],
    ]


def test_rows_without_a_target_and_answers_with_exponents_are_handled(table):
    data = table("a,y\n1,1e3\n2,\n3,-2.50\n4, 7\n5,NA\n6,.5\n7,+5.\n")
    assert {e.question: e.answer for e in rows(data)} == {
        "1": "1000",
        "3": "-2.50",
        "4": "7",
        "6": "0.5",
        "7": "5",
    }


def test_training_rows_that_repeat_a_held_out_question_are_left_out(table):
    data = table("a,t,y\n1,0,1\n2,1,2\n2,2,3\n2,3,4\n", "columns=[a]", "split_by=t")
    assert [e.question for e in data.train] == ["1"]


@pytest.mark.parametrize("split_by", ["null", "2020"])
def test_the_name_of_a_column_may_be_a_number(tmp_path, split_by):
    (tmp_path / "table.csv").write_text("2019,2020\n1,2\n3,4\n5,6\n")
    sizes = ("validation_size=1", "test_size=1", "columns=null")
    data = tabular(f"file={tmp_path}/table.csv", "target=2019", f"split_by={split_by}", *sizes)
    assert {(e.question, e.answer) for e in rows(data)} == {("2", "1"), ("4", "3"), ("6", "5")}


@pytest.mark.parametrize(
    ("text", "overrides", "complaint"),
    [
        ("a,y\n1,2\n", (), "has 1 rows with a value of 'y'; expected at least 3"),
        ("a,y\n1,2\n3,x\n4,5\n", (), "row 2 below the header: 'y' is 'x'; expected a finite number"),
        ("a,y\n1,2\n3,inf\n4,5\n", (), "'y' is 'inf'; expected a finite number"),
        ("a,z\n1,2\n", (), "dataset_args.target names the column 'y'; expected one of the columns .*: a, z"),
        ("a,y\n1,2\n", ("columns=[b]",), "dataset_args.columns names the column 'b'"),
        ("a,y\n1,2\n", ("columns=[a,y]",), "names the target 'y'"),
        ("t,y\n21.11.2026,2\n3,4\n5,6\n", ("split_by=t",), "'21.11.2026'; expected numbers, or dates such"),
        ("a,y\n1,2\n", ("split_by=when",), "dataset_args.split_by names the column 'when'"),
        ("a,y\n1,2\n3,4\n5,6\n", ("train_size=9",), "expected at least 11"),
        ("a,y\n1,2\n", ("significant_digits=0",), "significant_digits=0; expected at least 1"),
        ("", (), "has no rows; expected a table"),
        ("a,b,y\n1,2,3\n1,x,2,3\n", (), "line 3: the row has 4 fields; expected 3"),
        ("a,y\n9,1,2\n9,3,4\n", (), "line 2: the row has 3 fields; expected 2"),
        ('a,y\n"x\nz",2\n9,3,4\n', (), "line 4: the row has 3 fields"),
        ("a,y\n1,2\n1,3\n1,4\n", (), "has 0 training rows .*; expected at least 1"),
        (
            "a,t,y\n1,0,1\n2,1,2\n2,2,3\n2,3,4\n",
            ("columns=[a]", "split_by=t", "train_size=2"),
            "has 1 training rows .*; expected at least 2. Lower dataset_args.train_size",
        ),
    ],
)
def test_a_table_that_cannot_be_used_is_an_error_with_the_reason(table, text, overrides, complaint):
    with pytest.raises(UserError, match=complaint):
        table(text, *overrides)


def questions_by_part(data):
    return [{e.question for e in part} for part in (data.train, data.validation, data.tests["test"])]


def test_rows_that_share_a_question_are_used_and_on_one_side_of_the_split(table):
    text = "weekday,hour,y\n" + "".join(f"{i % 7},{i % 24},{i}\n" for i in range(2000))
    data = table(text, "validation_size=200", "test_size=200")
    parts = questions_by_part(data)
    assert len(set.union(*parts)) == sum(map(len, parts))
    assert len(rows(data)) > 1950
    assert f"{2000 - len(rows(data))} rows with a question" in data.note


def test_a_row_that_repeats_a_question_and_its_answer_is_left_out_and_counted(table):
    data = table("a,y\n1,1\n" + "".join(f"{i},{i}\n" for i in range(9)) + "1,2\n")
    found = [(e.question, e.answer) for e in rows(data)]
    assert len(set(found)) == len(found)
    assert "left out: 1 rows that repeat" in data.note


REVIEWS = "id,film,text,y\n1,a,good,9\n2,a,bad,1\n3,b,fine,6\n4,b,poor,2\n5,c,great,10\n6,c,,5\n"


@pytest.mark.parametrize(
    ("text", "given", "mend"),
    [
        ("".join(f"{i},{i}\n" for i in range(90)), "rows=2", "Raise dataset_args.rows=2, lower"),
        (
            "20140502,1\n20140503,2\n20140504,3\n",
            "significant_digits=4",
            "Lower .* raise dataset_args.significant_digits",
        ),
    ],
)
def test_too_few_training_rows_are_an_error_that_names_what_limits_them(table, text, given, mend):
    with pytest.raises(UserError, match=f"has 0 training rows .*; expected at least 1. {mend}"):
        table(f"a,y\n{text}", given)


def test_a_prompt_writes_the_question_with_the_columns_in_braces(table):
    data = table(REVIEWS, "prompt='{text} ({film})\\nStars: '")
    assert {e.question: e.answer for e in rows(data)}["good (a)\nStars: "] == "9"
    assert "? (c)\nStars: " in {e.question for e in rows(data)}


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("'Stars of {title}: '", "prompt names the column 'title'; expected one of .*: id, film, text, y"),
        ("'{text} has {y}'", "prompt names the target 'y'"),
        ("'Stars: '", "names no column .*{in braces}"),
    ],
)
def test_a_prompt_without_a_usable_column_is_an_error(table, prompt, message):
    with pytest.raises(UserError, match=message):
        table(REVIEWS, f"prompt={prompt}")


def test_rows_of_one_group_are_in_one_split(table):
    for seed in range(5):
        data = table(REVIEWS, "columns=[film,id]", "group_by=film", f"data_seed={seed}")
        films = [{e.question[0] for e in part} for part in (data.train, data.validation, data.tests["test"])]
        assert len(set.union(*films)) == sum(map(len, films))


def test_a_question_that_is_repeated_in_other_groups_is_not_both_in_training_and_tested(table):
    text = "film,y,a\n" + "".join(f"{i // 2},{i},{i % 25}\n" for i in range(100))
    data = table(text, "columns=[a]", "group_by=film", "validation_size=5", "test_size=6")
    trained = {e.question for e in data.train}
    assert trained
    assert not trained & {e.question for e in (*data.validation, *data.tests["test"])}


@pytest.mark.parametrize("missing", ["", "NA"])  # NA is missing among numbers
def test_each_row_without_a_group_is_a_group_of_its_own(table, missing):
    text = "film,y,a\n" + "".join(f"{missing if i % 2 else i // 4},{i},{i}\n" for i in range(40))
    tested = set()
    for seed in range(20):
        sizes = ("validation_size=5", "test_size=6")
        data = table(text, "columns=[a]", "group_by=film", f"data_seed={seed}", *sizes)
        parts = [[int(e.answer) for e in part] for part in (data.train, data.validation, data.tests["test"])]
        films = [{i // 4 for i in part if i % 2 == 0} for part in parts]
        assert len(set.union(*films)) == sum(map(len, films))
        assert sum(i % 2 for part in parts for i in part) == 20  # no row without a group is left out
        tested |= {i for i in parts[2] if i % 2}
    assert len(tested) > 10


def test_questions_that_are_too_long_are_left_out(table):
    assert {len(e.question) for e in rows(table(REVIEWS, "columns=[text]", "longest=4"))} <= {1, 3, 4}


def test_training_rows_are_redrawn_by_their_own_seed(table):
    text = "a,y\n" + "".join(f"{i},{i}\n" for i in range(40))
    draws = [table(text, "train_size=5", *seed) for seed in ([], ["train_seed=1"], ["train_seed=2"])]
    assert len({tuple(e.question for e in data.train) for data in draws}) == 3
    assert len({data.tests["test"][0] for data in draws}) == 1
    assert table(text, "train_size=5", "train_seed=1") == draws[1]


def test_several_targets_make_one_answer_of_several_numbers(table):
    data = table("a,y,z\nx,1,2.50\nw,3,\nv,-5,1e1\nu,7,8\n", "target=[y,z]")
    assert {e.question: e.answer for e in rows(data)} == {"x": "1, 2.50", "v": "-5, 10", "u": "7, 8"}
    assert data.targets == ("y", "z")
    assert data.note == "left out: 1 rows without y or z"
    assert not data.number_metrics
    with pytest.raises(UserError, match="row 1 below the header: 'z' is 'no'"):
        table("a,y,z\nx,1,no\nw,3,4\nv,-5,1e1\n", "target=[y,z]")


def test_rows_that_are_left_out_are_counted(table):
    data = table("a,y\n1,2\nlonger,3\n4,\n5,6\n7,8\n", "longest=3")
    assert data.note == "left out: 1 rows without y, 1 rows with a question of more than 3 characters"
    assert table("a,y\n1,2\n3,4\n5,6\n").note is None
