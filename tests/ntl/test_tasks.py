from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import shared

from ntl.comparison.configuration import load_config
from ntl.comparison.tables import noise_floor
from ntl.errors import UserError
from ntl.tasks import load_task
from ntl.tasks.files import read_pairs

SMALL = ("task.train_size=300", "task.validation_size=20", "task.test_size=50")
SMALL_ARITHMETIC = (
    "task=arithmetic",
    "task.train_per_difficulty=200",
    "task.validation_per_difficulty=10",
    "task.test_size=50",
)


def task(*overrides):
    return load_task(load_config(overrides)["task"])


@pytest.mark.parametrize("overrides", [SMALL, SMALL_ARITHMETIC])
def test_the_same_settings_give_the_same_examples_and_another_seed_gives_others(overrides):
    first, again, other = task(*overrides), task(*overrides), task(*overrides, "task.data_seed=1")
    assert first == again
    assert first.fingerprint == again.fingerprint
    assert first.fingerprint != other.fingerprint


@pytest.mark.parametrize("overrides", [SMALL, SMALL_ARITHMETIC])
def test_no_held_out_question_is_in_the_training_set(overrides):
    data = task(*overrides)
    train = {example.question for example in data.train}
    held_out = [*data.validation, *(e for examples in data.tests.values() for e in examples)]
    assert not train & {example.question for example in held_out}


def test_noisy_answers_scatter_around_the_weighted_sum_by_the_noise():
    data = task(*SMALL, "task.test_size=4000", "task.noise=10.0", "task.largest_answer=100000")
    example = data.tests["test"][0]
    integers = [int(x) for x in example.question.split()]
    weights = load_config(["task=noisy_regression"])["task"]["weights"]
    assert example.expected == sum(w * x for w, x in zip(weights, integers, strict=True))
    # E|N(0, 10)| = 10 * sqrt(2 / pi) = 7.98; its standard error here is 0.1.
    assert 7.48 < noise_floor(data.tests["test"]) < 8.48


def test_generated_answers_equal_pythons_evaluation_of_the_expression():
    data = task(*SMALL_ARITHMETIC)
    for example in (*data.train, *data.tests["interpolate"], *data.tests["extrapolate"]):
        expression = re.search(r"[-(\d].*[\d)]", example.question).group()
        assert eval(expression) == int(example.answer), example


def write_archive(folder: Path, pairs: int = 12) -> Path:
    for split in ("train-easy", "train-medium", "train-hard", "interpolate", "extrapolate"):
        (folder / split).mkdir(parents=True)
        name = "longer" if split == "extrapolate" else "sums"
        lines = "".join(f"What is {i} + 1?\n{i + 1}\n" for i in range(pairs))
        (folder / split / f"{name}.txt").write_text(lines)
    return folder


def archive_overrides(folder: Path) -> list[str]:
    return [
        "task=arithmetic",
        f"task.data_dir={folder}",
        "task.modules=[sums]",
        "task.extrapolate_modules=[longer]",
        "task.train_per_difficulty=10",
        "task.validation_per_difficulty=2",
        "task.test_size=5",
    ]


def test_files_are_split_by_the_requested_sizes(tmp_path):
    data = task(*archive_overrides(write_archive(tmp_path)))
    assert [len(data.train), len(data.validation)] == [30, 6]
    assert {name: len(examples) for name, examples in data.tests.items()} == {
        "interpolate": 5,
        "extrapolate": 5,
    }
    assert data.validation[0].question == "What is 10 + 1?"


def test_a_file_with_too_few_pairs_is_an_error_that_counts_them(tmp_path):
    folder = write_archive(tmp_path, pairs=11)
    with pytest.raises(UserError, match=r"sums.txt holds 11 pairs; expected 10 for training \+ 2"):
        task(*archive_overrides(folder))


def test_a_missing_folder_and_a_missing_module_are_errors(tmp_path):
    with pytest.raises(UserError, match=r"data_dir=.*nowhere is not a folder"):
        task(*archive_overrides(tmp_path / "nowhere"))
    folder = write_archive(tmp_path / "there")
    with pytest.raises(UserError, match=r"products\.txt does not exist"):
        task(*archive_overrides(folder), "task.modules=[products]")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"What is 1 + 1?\n2\nWhat is 1 + 2?\n", "line 3: the file ends with a question"),
        (b"", "line 0: the file ends"),
        (b"What is 1 + 1?\n\n", "line 2: the line is empty; expected an answer"),
        (b"What is 1 + 1?\ntwo\n", "line 2: the answer 'two' is not a number"),
        (b"\xff\xfe\n2\n", "cannot be read as UTF-8"),
    ],
)
def test_a_malformed_file_is_an_error_with_line_and_reason(tmp_path, content, complaint):
    path = tmp_path / "broken.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=complaint) as caught:
        list(read_pairs(path, numbers=True))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("task.noise=-1", "task.noise is -1"),
        ("task.train_size=0", "task.train_size is 0"),
        ("task.weights=[]", r"task.weights is \[\]"),
        ("task.largest=12", "make 27 questions"),
        ("task.smallest=x", "task.smallest is 'x'"),
    ],
)
def test_settings_out_of_range_are_errors(override, complaint):
    with pytest.raises(UserError, match=complaint):
        task(override)


def test_the_official_files_are_read():
    folder = shared("data/mathematics_dataset-v1.0")
    data = task("task=arithmetic", f"task.data_dir={folder}")
    assert [len(data.train), len(data.validation)] == [99_999, 3_000]
    assert len(data.tests["interpolate"]) == len(data.tests["extrapolate"]) == 1_000
