import pytest
from data_cases import write

from ntl.data import Example
from ntl.errors import UserError


def test_jokes_become_questions_and_scores_become_answers(load, tmp_path):
    files = {
        f"{name}.tsv": f"3\tA joke from {name}.\n11\tWith a\\\ttab\n" for name in ("train", "dev", "test")
    }
    data = load("rjokes", data_dir=write(tmp_path / "data", files))
    assert list(data.validation) == [Example("A joke from dev.", "3"), Example("With a tab", "11")]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("12\tfunny", "the score is '12'; expected a whole number from 0 to 11"),
        ("x\tfunny", "the score is 'x'"),
        ("-1\tfunny", "the score is '-1'"),
        ("3 funny", "it is '3 funny'; expected a score, a tab and a joke"),
        ("3\t ", r"it is '3\\t '; expected a score, a tab and a joke"),
    ],
)
def test_a_malformed_joke_is_an_error_that_names_file_and_line(load, tmp_path, line, complaint):
    files = {"train.tsv": f"1\tfine\n{line}\n", "dev.tsv": "1\tx\n", "test.tsv": "1\tx\n"}
    with pytest.raises(UserError, match=rf"train.tsv, line 2: {complaint}"):
        load("rjokes", data_dir=write(tmp_path / "data", files))
