from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from ntl.config.compose import compose_config
from ntl.config.schema import choices, format_setting
from ntl.data import Example, TaskData, format_number, load_task
from ntl.data.tasks.gsm8k import normalize, parse_problem
from ntl.data.tasks.mathematics_dataset import EXTRAPOLATE_MODULES, MODULES
from ntl.errors import UserError
from tests.ntl.conftest import shared

SIZES = {
    "mathematics_dataset": (312, 39, {"interpolate": 65, "extrapolate": 35}),
    "arithmetic": (300, 51, {"interpolate": 50, "extrapolate": 50}),
    "multiplication": (300, 50, {"interpolate": 50, "extrapolate": 50}),
    "gsm8k": (140, 30, {"test": 30}),
    "rjokes": (300, 50, {"test": 50}),
    "multirc": (160, 40, {"test": 40}),
}
# Settings of the generated samples, as documented in SOURCES.md.
GENERATED = {
    "arithmetic": {"train_per_difficulty": 100, "validation_per_difficulty": 17, "test_size": 50},
    "multiplication": {
        "digits": 3, "extrapolate_digits": 4, "train_size": 300, "validation_size": 50, "test_size": 50
    },
}  # fmt: skip

SAMPLES = resources.files("ntl.data") / "sample"
SMALL_PRODUCTS = {"digits": 2, "extrapolate_digits": 3, "validation_size": 400, "test_size": 400}


@pytest.fixture
def load(tmp_path):
    """Load a dataset with its section of the configuration and the given changes."""

    def load(name, **changes):
        changes = {"cache_dir": tmp_path / "cache", **changes}
        overrides = [f"dataset_args.{key}={format_setting(value)}" for key, value in changes.items()]
        settings = compose_config("compare", [f"dataset_args={name}", *overrides], "ntl compare")
        return load_task({**settings["dataset_args"], "name": name})

    return load


def splits(data: TaskData) -> dict[str, list[Example]]:
    return {"train": list(data.train), "validation": list(data.validation)} | {
        test: list(examples) for test, examples in data.tests.items()
    }


def write(folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    return str(folder)


@pytest.mark.parametrize("name", SIZES)
def test_samples_have_the_prepared_layout(load, name):
    data = load(name, data_dir="sample")
    sizes = len(data.train), len(data.validation), {test: len(part) for test, part in data.tests.items()}
    assert sizes == SIZES[name]
    assert data.number_metrics == (name != "multirc")
    assert data.final_answer_marker == ("####" if name == "gsm8k" else None)
    assert splits(load(name, data_dir=str(SAMPLES / name))) == splits(data)


def test_every_dataset_but_noisy_regression_has_a_sample_test():
    # The sample of `tabular` is one CSV file (test_tabular.py).
    assert sorted([*SIZES, "noisy_regression", "tabular"]) == choices("dataset_args")


def test_the_samples_are_small():
    files = [path for path in Path(SAMPLES).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 400_000


@pytest.mark.parametrize("name", GENERATED)
def test_the_generated_samples_equal_the_generators_output(load, name):
    generated = load(name, data_dir=None, **GENERATED[name])
    assert splits(generated) == splits(load(name, data_dir="sample"))


@pytest.mark.parametrize("name", GENERATED)
def test_generated_data_is_seeded_and_its_splits_are_disjoint(load, name):
    small = GENERATED[name]
    data = load(name, data_dir=None, **small)
    assert data == load(name, data_dir=None, **small)
    assert data != load(name, data_dir=None, data_seed=1, **small)
    parts = [data.train, data.validation, *data.tests.values()]
    questions = [{canonical(name, example.question) for example in part} for part in parts]
    for i, mine in enumerate(questions):
        for theirs in questions[i + 1 :]:
            assert not mine & theirs


def canonical(name: str, question: str) -> object:
    """Normalise a question, ignoring the sentence around an expression and the order of factors."""
    if name == "multiplication":
        return tuple(sorted(re.findall(r"\d+", question)))
    return re.search(r"[-(\d].*[\d)]", question).group() if name == "arithmetic" else question


def test_the_extrapolation_test_of_multiplication_has_a_longer_factor(load):
    data = load("multiplication", data_dir=None, **GENERATED["multiplication"])
    for part, longest in ((data.train, 3), (data.tests["interpolate"], 3), (data.tests["extrapolate"], 4)):
        digits = [max(map(len, re.findall(r"\d+", example.question))) for example in part]
        assert max(digits) == longest
        assert part is not data.tests["extrapolate"] or min(digits) == longest
    for example in data.train:
        a, b = map(int, re.findall(r"\d+", example.question))
        assert example.answer == str(a * b)


def test_products_of_single_digits_are_not_all_held_out(load):
    data = load("multiplication", data_dir=None, **{**SMALL_PRODUCTS, "train_size": 5000})
    single = {example.question for example in data.train if re.search(r"is \d times \d\?", example.question)}
    assert len(single) > 50


def test_holding_out_more_products_than_exist_is_an_error(load):
    with pytest.raises(UserError, match="digits=1 leaves 11 products to hold out; expected at least 2000"):
        load("multiplication", data_dir=None, digits=1, extrapolate_digits=2)
    with pytest.raises(UserError, match="extrapolate_digits is 4; expected more than digits=4"):
        load("multiplication", data_dir=None, digits=4, extrapolate_digits=4)


def test_numbers_are_written_without_exponents_and_trailing_zeros():
    assert [format_number(x) for x in (0, -3, 100, -0.0)] == ["0", "-3", "100", "0"]
    assert format_number(np.float32(0.1)) == "0.1"
    assert format_number(-1e-7) == "-0.0000001"
    assert "e" not in format_number(1e30)


def test_mathematics_can_be_tested_by_module(load):
    data = load("mathematics_dataset", data_dir="sample", mode="dataset_comparison")
    assert list(data.tests) == [*MODULES, *EXTRAPOLATE_MODULES]


def test_official_modules_are_also_found_one_folder_deeper(load, tmp_path):
    sample = Path(SAMPLES / "mathematics_dataset")
    for path in sample.rglob("*.txt"):
        inside = "" if path.parent == sample else "mathematics_dataset-v1.0"
        write(tmp_path / "data" / inside, {str(path.relative_to(sample)): path.read_text()})
    data = load("mathematics_dataset", data_dir=str(tmp_path / "data"), mode="dataset_comparison")
    assert len(data.tests) == 20


@pytest.mark.parametrize("name", [name for name in SIZES if name != "multiplication"])
def test_a_missing_folder_is_an_error_that_says_what_to_do(load, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UserError, match=rf"dataset_args.data_dir=data/.* is not a folder.*`ntl prepare {name}`"
    ):
        load(name)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_split_is_an_error_before_anything_is_read(load, tmp_path):
    # The training file is malformed, but the message must be about the missing split.
    folder = write(
        tmp_path / "data", {"train.txt": "no answer", "notes.md": "", "test_extrapolate.txt": "q\n1\n"}
    )
    with pytest.raises(UserError, match=r"lacks val.txt, test_interpolate.txt; it has notes.md, test_extr"):
        load("mathematics_dataset", data_dir=folder)


# GSM8K


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


def test_annotations_are_removed_or_kept():
    record = {"question": "How many?", "answer": "It is 48/2 = <<48/2=24>>24.\n#### 24"}
    assert parse_problem(record)[0].answer == "It is 48/2 = 24.\n#### 24"
    assert parse_problem(record, "keep")[0].answer == "It is 48/2 = <<48/2=24>>24.\n#### 24"


GOOD = '{"question": "How many, 1 or 2?", "answer": "Two.\\n#### 2"}\n'


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"question": "How many', "it is not JSON"),
        ("", "it is not JSON"),
        ("[1]", "found '\\[1\\]'; expected an object with the key 'question'"),
        ('{"question": "How many?"}', "the key 'answer' is missing; the object has 'question'"),
        ('{"question": " ", "answer": "#### 1"}', "'question' is ' '; expected non-empty text"),
        ('{"question": 3, "answer": "#### 1"}', "'question' is '3'; expected non-empty text"),
        (
            '{"question": "How many?", "answer": "One."}',
            "'answer' ends with 'One.'; expected the final number",
        ),
        ('{"question": "How many?", "answer": "One.\\n####"}', "expected the final number"),
        ('{"question": "How many?", "answer": "It is <<1=1\\n#### 1"}', "an annotation that is not closed"),
        ('{"question": "\\ud800", "answer": "#### 1"}', "half of a surrogate pair"),
    ],
)
def test_a_malformed_problem_is_an_error_that_names_file_and_line(load, tmp_path, line, complaint):
    folder = write(tmp_path / "data", {"train.jsonl": f"{GOOD}{line}\n", "test.jsonl": GOOD})
    with pytest.raises(UserError, match=rf"train.jsonl, line 2: .*{complaint}") as caught:
        load("gsm8k", data_dir=folder)
    assert str(caught.value).endswith(
        "Correct or remove the line, or restore the file, which may be truncated."
    )


def test_a_byte_order_mark_is_no_part_of_the_first_question(load, tmp_path):
    folder = write(tmp_path / "data", {"train.jsonl": f"\ufeff{GOOD}", "test.jsonl": GOOD})
    assert load("gsm8k", data_dir=folder).validation[0].question == "How many, 1 or 2?"


def test_official_problems_are_split_by_seed_and_share(load, tmp_path):
    lines = "".join(GOOD.replace("1 or 2", f"{i} or 2") for i in range(20))
    folder = write(tmp_path / "data", {"train.jsonl": lines, "test.jsonl": GOOD})
    data = load("gsm8k", data_dir=folder, validation_share=0.25)
    assert (len(data.train), len(data.validation), len(data.tests["test"])) == (15, 5, 1)
    assert not set(data.train) & set(data.validation)
    other = load("gsm8k", data_dir=folder, validation_share=0.25, split_seed=1)
    assert set(other.validation) != set(data.validation)
    with pytest.raises(
        UserError, match=r"dataset_args.validation_share is 1; expected a number that is above 0"
    ):
        load("gsm8k", data_dir=folder, validation_share=1)


def test_the_official_problems_are_read(load):
    folder = shared("data/gsm8k")
    data = load("gsm8k", data_dir=str(folder))
    assert (len(data.train), len(data.validation), len(data.tests["test"])) == (6352, 1121, 1319)
    text = "".join(example.question + example.answer for example in data.tests["test"])
    assert "<<" not in text
    assert not re.search(r"\d,\d{3}", text)
    assert not re.search(r"(?<!\d)\.\d", text)


# rJokes


def test_jokes_become_questions_and_scores_become_answers(load, tmp_path):
    files = {
        f"{name}.tsv": f"3\tA joke from {name}.\n11\tWith a\\\ttab\n" for name in ("train", "dev", "test")
    }
    data = load("rjokes", data_dir=write(tmp_path / "data", files))
    assert list(data.validation) == [("A joke from dev.", "3", None), ("With a tab", "11", None)]


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


# MultiRC


def passage(text: str, *questions: tuple[str, list[tuple[str, int]]]) -> str:
    entries = [
        {"question": question, "answers": [{"text": answer, "label": label} for answer, label in answers]}
        for question, answers in questions
    ]
    return json.dumps({"idx": 0, "passage": {"text": text, "questions": entries}}) + "\n"


def test_correct_answers_are_joined_and_passages_are_not_divided(load, tmp_path):
    asked = ("Who?", [("Ann", 1), ("Bob", 0), ("Cleo", 1)]), ("Where?", [("Home", 1)]), ("Why?", [("No", 0)])
    lines = "".join(passage(f"Text {i}.", *asked) for i in range(10))
    folder = write(tmp_path / "data", {"train.jsonl": lines, "val.jsonl": passage("Test.", *asked)})
    data = load("multirc", data_dir=folder, validation_share=0.2)
    assert [e.answer for e in data.tests["test"]] == ["Ann | Cleo", "Home"]  # Why has no correct answer
    assert data.tests["test"][0].question == "Test.\n\nQuestion: Who?"
    texts = [{e.question.split("\n")[0] for e in part} for part in (data.train, data.validation)]
    assert [len(text) for text in texts] == [8, 2]
    assert not texts[0] & texts[1]


def test_a_malformed_passage_is_an_error_that_names_file_and_line(load, tmp_path):
    good = passage("Text.", ("Who?", [("Ann", 1)]))
    for odd, complaint in (
        ('{"idx": 1}', "the key 'passage' is missing"),
        (
            good.replace('"label": 1', '"other": 1'),
            "the key 'label' is missing; the object has 'text', 'other'",
        ),
        (good.replace('"Text."', "7"), "'text' is '7'; expected non-empty text"),
        (good.replace('"questions": [', '"questions": [5, '), "found '5'; expected an object"),
    ):
        folder = write(tmp_path / "data", {"train.jsonl": good + odd, "val.jsonl": good})
        with pytest.raises(UserError, match=f"train.jsonl, line 2: {complaint}"):
            load("multirc", data_dir=folder)


def test_reading_a_large_file_is_announced_only_the_first_time(load, monkeypatch, capsys):
    monkeypatch.setattr("ntl.data.files.LARGE_FILE", 10_000)
    load("arithmetic", data_dir="sample")
    assert re.fullmatch(
        r"Reading .*arithmetic_train.txt \(0 MB\); this happens only once.\n", capsys.readouterr().err
    )
    load("arithmetic", data_dir="sample")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("setting", [{"data_dir": None}, {"data_dir": "sample", "cache_dir": ""}])
def test_a_folder_setting_that_is_not_a_path_is_an_error(load, setting):
    with pytest.raises(
        UserError, match=rf"dataset_args.{list(setting)[-1]} is .*; expected the path of a folder"
    ):
        load("gsm8k", **setting)
