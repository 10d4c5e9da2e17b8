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


@pytest.mark.parametrize("line", ["12\tfunny", "x\tfunny", "-1\tfunny", "3 funny", "3\t "])
def test_a_malformed_joke_is_an_error_that_names_file_and_line(load, tmp_path, line):
    files = {"train.tsv": f"1\tfine\n{line}\n", "dev.tsv": "1\tx\n", "test.tsv": "1\tx\n"}
    with pytest.raises(UserError, match=r"train.tsv, line 2"):
        load("rjokes", data_dir=write(tmp_path / "data", files))
