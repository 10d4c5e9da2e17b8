import pytest
from data_cases import rows, tabular

from ntl.errors import UserError


@pytest.fixture
def table(tmp_path):
    """Return a function that writes a table and loads it, with one test and one validation row."""

    def load(text, *overrides):
        path = tmp_path / "table.csv"
        path.write_text(text, encoding="utf-8")
        return tabular(f"file={path}", "target=y", "validation_size=1", "test_size=1", *overrides)

    return load


def questions(data):
    return [{example.question for example in part} for part in (data.train, *data.parts.values())]


def test_the_shipped_sample_splits_into_disjoint_questions_with_numeric_answers():
    data = tabular()
    assert len(data.tests["test"]) == 300
    assert len(data.validation) == 200
    assert 1490 <= len(data.train) <= 1500
    assert all(326 <= int(example.answer) <= 18823 for example in rows(data))
    train, *held_out = questions(data)
    assert not train & set.union(*held_out)
    assert all(question.count(",") == 8 for question in train)


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


def test_columns_can_be_named_in_the_question(table):
    data = table("a,b,y\n1,x,3\n,y,6\n7,z,9\n", "names=true")
    assert {"a: 1, b: x, y: ", "a: unknown, b: y, y: "} < {e.question for e in rows(data)}


@pytest.mark.parametrize(
    "dates",
    [
        ("3", "10", "2", "1"),
        ("2020-03-01", "2020-10-01", "2020-02-01", "2020-01-01"),
        ("2020-03", "2020-10", "2020-02", ""),
    ],
)
def test_splitting_by_a_column_puts_its_largest_values_into_the_test_set(table, dates):
    data = table("t,y\n" + "".join(f"{t},{y}\n" for y, t in enumerate(dates)), "split_by=t", "train_size=1")
    assert [e.answer for e in rows(data)] == ["2", "0", "1"]


def test_rows_without_a_target_and_answers_with_exponents_are_handled(table):
    data = table("a,y\n1,1e3\n2,\n3,-2.50\n4, 7\n5,NA\n6,.5\n7,+5.\n")
    answers = {e.question: e.answer for e in rows(data)}
    assert answers == {"1": "1000", "3": "-2.50", "4": "7", "6": "0.5", "7": "5"}


def test_training_rows_that_repeat_a_held_out_question_are_left_out(table):
    data = table("a,t,y\n1,0,1\n2,1,2\n2,2,3\n2,3,4\n", "columns=[a]", "split_by=t")
    assert [e.question for e in data.train] == ["1"]


@pytest.mark.parametrize(
    ("text", "overrides", "named"),
    [
        ("a,y\n1,2\n", (), "train_size"),
        ("a,y\n1,\n2,\n", (), "target 'y'"),
        ("a,y\n1,2\n3,inf\n4,5\n", (), "'inf' in row 2"),
        ("a,z\n1,2\n", (), "dataset_args.target .*'y'"),
        ("a,y\n1,2\n", ("columns=[a,y]",), "dataset_args.columns .*'y'"),
        ("a,y\n1,2\n", ("prompt='Stars of {title}: '",), "dataset_args.prompt .*'title'"),
        ("a,y\n1,2\n", ("prompt='Stars: '",), "dataset_args.prompt"),
        ("a,y\n1,2\n", ("prompt='{a}: '", "names=true"), "dataset_args.names"),
        ("a,y\n1,2\n", ("split_by=when",), "dataset_args.split_by .*'when'"),
        ("t,y\n21.11.2026,2\n3,4\n5,6\n", ("split_by=t",), "dataset_args.split_by=t"),
        ("a,r,y\n1,x,2\n3,4,5\n5,6,7\n", ("ratings=r",), "dataset_args.ratings=r"),
        (
            "a,t,y\n1,0,1\n2,1,2\n2,2,3\n2,3,4\n",
            ("columns=[a]", "split_by=t", "train_size=2"),
            "1 training rows",
        ),
        ("a,y\n" + "".join(f"{i},{i}\n" for i in range(90)), ("rows=2",), "dataset_args.rows"),
        ("a,y\n20140502,1\n20140503,2\n20140504,3\n", ("significant_digits=4",), "significant_digits"),
    ],
)
def test_a_table_that_cannot_be_used_is_an_error_that_names_the_setting(table, text, overrides, named):
    with pytest.raises(UserError, match=named):
        table(text, *overrides)


def test_rows_that_share_a_question_are_used_and_on_one_side_of_the_split(table):
    text = "weekday,hour,y\n" + "".join(f"{i % 7},{i % 24},{i}\n" for i in range(2000))
    data = table(text, "validation_size=200", "test_size=200")
    assert len(set.union(*questions(data))) == sum(map(len, questions(data)))
    assert len(rows(data)) > 1950
    assert f"{2000 - len(rows(data))} rows with a question" in data.note


REVIEWS = "id,film,text,y\n1,a,good,9\n2,a,bad,1\n3,b,fine,6\n4,b,poor,2\n5,c,great,10\n6,c,,5\n"


def test_a_prompt_writes_the_question_with_the_columns_in_braces(table):
    data = table(REVIEWS, "prompt='{text} ({film})\\nStars: '")
    assert {e.question: e.answer for e in rows(data)}["good (a)\nStars: "] == "9"
    assert "? (c)\nStars: " in {e.question for e in rows(data)}


def test_rows_of_one_group_are_in_one_split(table):
    for seed in range(5):
        data = table(REVIEWS, "columns=[film,id]", "group_by=film", f"data_seed={seed}")
        films = [{question[0] for question in part} for part in questions(data)]
        assert len(set.union(*films)) == sum(map(len, films))


@pytest.mark.parametrize("missing", ["", "NA"])  # NA is missing among numbers
def test_each_row_without_a_group_is_a_group_of_its_own(table, missing):
    text = "film,y,a\n" + "".join(f"{missing if i % 2 else i // 4},{i},{i}\n" for i in range(40))
    data = table(text, "columns=[a]", "group_by=film", "validation_size=5", "test_size=6")
    parts = [[int(e.answer) for e in part] for part in (data.train, *data.parts.values())]
    assert sum(i % 2 for part in parts for i in part) == 20
    assert min(sum(i % 2 for i in part) for part in parts) > 0


def test_rows_that_are_left_out_are_counted(table):
    data = table("a,y\n1,2\nlonger,3\n4,\n5,6\n7,8\n", "longest=3")
    assert len(rows(table("a,y\n1,2\n3,4\n1,2\n5,6\n"))) == 3  # a repeated row counts once
    assert data.note == "left out: 1 rows without y, 1 rows with a question of more than 3 characters"
    assert table("a,y\n1,2\n3,4\n5,6\n").note is None
