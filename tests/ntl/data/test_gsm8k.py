import pytest
from data_cases import write

from ntl.data.gsm8k import normalize, parse_problem
from ntl.errors import UserError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,080 and 2,520,000.50", "1080 and 2520000.50"),
        ("$80 000 + $1 500 000", "$80000 + $1500000"),
        ("12 200-kilobyte videos", "12 200-kilobyte videos"),
        ("days 4,5,6 and rooms 13,15,17", "days 4,5,6 and rooms 13,15,17"),
        ("1,2345 and 0,2", "1,2345 and 0,2"),
        ("18*.5 = $.25, 00.10, -.5", "18*0.5 = $0.25, 00.10, -0.5"),
        ("It is 5. Then 6.", "It is 5. Then 6."),
        ("in 2019 100 cars", "in 2019 100 cars"),
    ],
)
def test_numbers_in_problems_are_normalized(text, expected):
    assert normalize(text) == expected
    assert normalize(expected) == expected


def test_annotations_are_removed():
    record = {"question": "How many?", "answer": "It is 48/2 = <<48/2=24>>24.\n#### 24"}
    assert parse_problem(record)[0].answer == "It is 48/2 = 24.\n#### 24"


GOOD = '{"question": "How many, 1 or 2?", "answer": "Two.\\n#### 2"}\n'


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('{"question": "How many', "JSON"),
        ("[1]", "question"),
        ('{"question": "How many?"}', "answer"),
        ('{"question": " ", "answer": "#### 1"}', "question"),
        ('{"question": 3, "answer": "#### 1"}', "question"),
        ('{"question": "How many?", "answer": "One."}', "answer"),
        ('{"question": "How many?", "answer": "One.\\n####"}', "answer"),
        ('{"question": "\\ud800", "answer": "#### 1"}', "question"),
    ],
)
def test_a_malformed_problem_is_an_error_that_names_file_line_and_key(load, tmp_path, line, named):
    folder = write(tmp_path / "data", {"train.jsonl": f"{GOOD}{line}\n", "test.jsonl": GOOD})
    with pytest.raises(UserError, match=rf"train.jsonl, line 2: .*{named}"):
        load("gsm8k", data_dir=folder)


def test_official_problems_are_split_by_seed_and_share(load, tmp_path):
    lines = "".join(GOOD.replace("1 or 2", f"{i} or 2") for i in range(20))
    folder = write(tmp_path / "data", {"train.jsonl": lines, "test.jsonl": GOOD})
    data = load("gsm8k", data_dir=folder, validation_share=0.25)
    assert (len(data.train), len(data.validation), len(data.tests["test"])) == (15, 5, 1)
    assert not set(data.train) & set(data.validation)
    other = load("gsm8k", data_dir=folder, validation_share=0.25, split_seed=1)
    assert set(other.validation) != set(data.validation)
