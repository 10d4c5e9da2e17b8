"""The published files of each dataset, and the samples in their layout."""

import json
from importlib import resources
from pathlib import Path

import pytest
from data_cases import task, write

from ntl.data import DATASETS, Example
from ntl.data.gsm8k import normalize
from ntl.data.mathematics_dataset import EXTRAPOLATE_MODULES, MODULES
from ntl.errors import UserError

SIZES = {
    "mathematics_dataset": (312, 39, {"interpolate": 65, "extrapolate": 35}),
    "arithmetic": (300, 51, {"interpolate": 50, "extrapolate": 50}),
    "gsm8k": (140, 30, {"test": 30}),
    "rjokes": (300, 50, {"test": 50}),
    "multirc": (160, 40, {"test": 40}),
}
SAMPLES = Path(str(resources.files("ntl.data") / "sample"))


@pytest.mark.parametrize("name", SIZES)
def test_samples_have_the_prepared_layout(name):
    data = task(name, "data_dir=sample")
    sizes = len(data.train), len(data.validation), {test: len(part) for test, part in data.tests.items()}
    assert sizes == SIZES[name]
    assert data.number_metrics == (name != "multirc")
    assert data.final_answer_marker == ("####" if name == "gsm8k" else None)
    assert task(name, f"data_dir={SAMPLES / name}").digest == data.digest


@pytest.mark.parametrize("name", SIZES)
def test_a_missing_folder_is_an_error_and_nothing_is_written(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"dataset_args.data_dir=data/"):
        task(name)
    assert list(tmp_path.iterdir()) == []


def test_mathematics_can_be_tested_by_module_whose_files_may_be_one_folder_deeper(tmp_path):
    sample = SAMPLES / "mathematics_dataset"
    for path in sample.rglob("*.txt"):
        inside = "" if path.parent == sample else "mathematics_dataset-v1.0"
        write(tmp_path / inside, {str(path.relative_to(sample)): path.read_text()})
    by_module = [
        task("mathematics_dataset", f"data_dir={at}", "mode=dataset_comparison")
        for at in ("sample", tmp_path)
    ]
    assert [*by_module[0].tests] == [*MODULES, *EXTRAPOLATE_MODULES]
    assert by_module[0].digest == by_module[1].digest


PROBLEM = '{"question": "How many, 1 or 2?", "answer": "Two.\\n#### 2"}'


def passage(text, *questions):
    entries = [
        {"question": question, "answers": [{"text": answer, "label": label} for answer, label in answers]}
        for question, answers in questions
    ]
    return json.dumps({"idx": 0, "passage": {"text": text, "questions": entries}})


PASSAGE = passage("Text.", ("Who?", [("Ann", 1)]))


@pytest.mark.parametrize(("name", "line"), [("gsm8k", PROBLEM), ("multirc", PASSAGE)])
def test_official_files_around_the_published_place_are_read(name, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path(DATASETS[name]().data_dir).parent
    write(tmp_path / folder, {f"{part}.jsonl": f"{line}\n" for part in ("train", "test", "val")})
    assert len(task(name).tests["test"]) == 1


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("gsm8k", PROBLEM, '{"question": "How many'),
        ("gsm8k", PROBLEM, "[1]"),
        ("gsm8k", PROBLEM, '{"question": "How many?"}'),
        ("gsm8k", PROBLEM, '{"question": " ", "answer": "#### 1"}'),
        ("gsm8k", PROBLEM, '{"question": 3, "answer": "#### 1"}'),
        ("gsm8k", PROBLEM, '{"question": "How many?", "answer": "One."}'),
        ("gsm8k", PROBLEM, '{"question": "How many?", "answer": "One.\\n####"}'),
        ("gsm8k", PROBLEM, '{"question": "\\ud800", "answer": "#### 1"}'),
        ("multirc", PASSAGE, '{"idx": 1}'),
        ("multirc", PASSAGE, PASSAGE.replace('"label": 1', '"other": 1')),
        ("multirc", PASSAGE, PASSAGE.replace('"Text."', "7")),
        ("multirc", PASSAGE, PASSAGE.replace('"questions": [', '"questions": [5, ')),
        *(("rjokes", "1\tfine", bad) for bad in ("12\tfunny", "x\tfunny", "-1\tfunny", "3 funny", "3\t ")),
    ],
)
def test_a_malformed_record_is_an_error_that_names_file_and_line(name, good, bad, tmp_path):
    ending = "tsv" if name == "rjokes" else "jsonl"
    files = {f"{part}.{ending}": f"{good}\n" for part in ("dev", "val", "test")}
    folder = write(tmp_path, {**files, f"train.{ending}": f"{good}\n{bad}\n"})
    with pytest.raises(UserError, match=rf"train.{ending}, line 2"):
        task(name, f"data_dir={folder}")


def test_official_problems_are_split_by_seed_and_share(tmp_path):
    lines = "".join(PROBLEM.replace("1 or 2", f"{i} or 2") + "\n" for i in range(20))
    given = (
        f"data_dir={write(tmp_path, {'train.jsonl': lines, 'test.jsonl': PROBLEM})}",
        "validation_share=0.25",
    )
    data = task("gsm8k", *given)
    assert (len(data.train), len(data.validation), len(data.tests["test"])) == (15, 5, 1)
    assert not set(data.train) & set(data.validation)
    assert set(task("gsm8k", *given, "split_seed=1").validation) != set(data.validation)


def test_correct_answers_are_joined_and_passages_are_not_divided(tmp_path):
    asked = ("Who?", [("Ann", 1), ("Bob", 0), ("Cleo", 1)]), ("Where?", [("Home", 1)]), ("Why?", [("No", 0)])
    lines = "\n".join(passage(f"Text {i}.", *asked) for i in range(10))
    folder = write(tmp_path, {"train.jsonl": lines, "val.jsonl": passage("Test.", *asked)})
    data = task("multirc", f"data_dir={folder}", "validation_share=0.2")
    assert [e.answer for e in data.tests["test"]] == ["Ann | Cleo", "Home"]  # Why has no correct answer
    assert data.tests["test"][0].question == "Test.\n\nQuestion: Who?"
    texts = [{e.question.split("\n")[0] for e in part} for part in (data.train, data.validation)]
    assert [len(text) for text in texts] == [8, 2]
    assert not texts[0] & texts[1]


def test_jokes_become_questions_and_scores_become_answers(tmp_path):
    files = {
        f"{name}.tsv": f"3\tA joke from {name}.\n11\tWith a\\\ttab\n" for name in ("train", "dev", "test")
    }
    data = task("rjokes", f"data_dir={write(tmp_path, files)}")
    assert data.validation == [Example("A joke from dev.", "3"), Example("With a tab", "11")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$80 000 + $1 500 000", "$80000 + $1500000"),
        ("1,2345 and 0,2", "1,2345 and 0,2"),
        ("18*.5 = $.25, 00.10. Then 6.", "18*0.5 = $0.25, 00.10. Then 6."),
        ("in 2019 100 cars", "in 2019 100 cars"),
    ],
)
def test_numbers_in_problems_are_normalized(text, expected):
    assert normalize(text) == expected
    assert normalize(expected) == expected
