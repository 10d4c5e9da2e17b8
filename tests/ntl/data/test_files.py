import gzip
import pickle
import re
import stat
from importlib import resources
from pathlib import Path

import pytest
from data_cases import splits, write

from ntl.data import DATASETS, Example, fingerprint
from ntl.data.files import map_pairs, read_lines, read_pairs, write_atomically
from ntl.errors import UserError

SIZES = {
    "mathematics_dataset": (312, 39, {"interpolate": 65, "extrapolate": 35}),
    "arithmetic": (300, 51, {"interpolate": 50, "extrapolate": 50}),
    "gsm8k": (140, 30, {"test": 30}),
    "rjokes": (300, 50, {"test": 50}),
    "multirc": (160, 40, {"test": 40}),
}
# Settings of the generated sample, as documented in SOURCES.md.
ARITHMETIC = {"train_per_difficulty": 100, "validation_per_difficulty": 17, "test_size": 50}
SMALL = {
    "arithmetic": {**ARITHMETIC, "train_per_difficulty": 2000},  # so that many repeat
    "noisy_regression": {"train_size": 300, "validation_size": 20, "test_size": 50},
}
SAMPLES = Path(str(resources.files("ntl.data") / "sample"))


@pytest.mark.parametrize("name", SIZES)
def test_samples_have_the_prepared_layout(load, name):
    data = load(name, data_dir="sample")
    sizes = len(data.train), len(data.validation), {test: len(part) for test, part in data.tests.items()}
    assert sizes == SIZES[name]
    assert data.number_metrics == (name != "multirc")
    assert data.final_answer_marker == ("####" if name == "gsm8k" else None)
    assert splits(load(name, data_dir=str(SAMPLES / name))) == splits(data)


@pytest.mark.parametrize("name", SMALL)
def test_generated_data_is_seeded_and_its_splits_are_disjoint(load, name):
    small = SMALL[name]
    data = load(name, data_dir=None, **small)
    assert data == load(name, data_dir=None, **small)
    assert data != load(name, data_dir=None, data_seed=1, **small)
    parts = [data.train, data.validation, *data.tests.values()]
    questions = [{without_sentence(example.question) for example in part} for part in parts]
    for i, mine in enumerate(questions):
        for theirs in questions[i + 1 :]:
            assert not mine & theirs


def without_sentence(question):
    return re.search(r"[-(\d].*[\d)]", question).group()


@pytest.mark.parametrize("name", SIZES)
def test_a_missing_folder_is_an_error_and_nothing_is_written(load, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"dataset_args.data_dir=data/"):
        load(name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("gsm8k", '{"question": "How many?", "answer": "#### 1"}\n'),
        (
            "multirc",
            '{"passage": {"text": "A.", "questions": [{"question": "Who?", "answers": '
            '[{"text": "Ann", "label": 1}]}]}}\n',
        ),
    ],
)
def test_official_files_around_the_published_place_are_read(load, name, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path(DATASETS[name]().data_dir).parent
    write(tmp_path / folder, {f"{part}.jsonl": line for part in ("train", "test", "val")})
    assert len(load(name).tests["test"]) == 1


@pytest.fixture
def pairs(tmp_path):
    """Return more examples than are read at once, and a file that holds them."""
    examples = [Example(f"What is {i}?", str(i)) for i in range(10_005)]
    path = tmp_path / "pairs.txt"
    path.write_text("".join(f"{example.question}\n{example.answer}\n" for example in examples))
    return examples, path


def test_memory_mapped_examples_behave_like_a_list(pairs):
    examples, path = pairs
    mapped = map_pairs(path)
    assert len(mapped) == len(examples)
    assert list(mapped) == examples
    assert (mapped[7], mapped[-1], mapped[9_998:10_002]) == (
        examples[7],
        examples[-1],
        examples[9_998:10_002],
    )
    assert pickle.loads(pickle.dumps(mapped))[3] == examples[3]
    assert fingerprint(mapped) == fingerprint(examples) != fingerprint(examples[:-1])
    with pytest.raises(IndexError):
        mapped[len(examples)]


def test_a_file_that_has_changed_is_read_again(pairs):
    _, path = pairs
    map_pairs(path)
    path.write_text("What is 1?\n1\n")
    assert list(map_pairs(path)) == [Example("What is 1?", "1")]


@pytest.mark.parametrize(
    ("content", "line"),
    [("How?\n1\nWhat?\n", 4), ("How?\n1\nWhat?\n-12", 4), ("How?\n\n", 2), ("", None)],
)
def test_a_malformed_file_of_pairs_is_an_error_that_names_file_and_line(tmp_path, content, line):
    path = tmp_path / "pairs.txt"
    path.write_text(content)
    with pytest.raises(UserError, match=r"pairs.txt" + (f", line {line}" if line else "")):
        map_pairs(path)


def test_only_a_line_feed_ends_a_line(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes("\ufeffone\u2028still one\x85\r\ntwo\x0bstill two\nthree".encode())
    lines = [line.rstrip("\r\n") for line in read_lines(path)]
    assert lines == ["one\u2028still one\x85", "two\x0bstill two", "three"]


def test_a_gzip_file_is_read_and_a_truncated_one_is_an_error(tmp_path):
    path = tmp_path / "pairs.txt.gz"
    path.write_bytes(gzip.compress(b"".join(f"What is {i}?\n{i}\n".encode() for i in range(50_000))))
    assert len(list(read_pairs(path))) == 50_000
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(UserError, match=r"pairs.txt.gz, line \d+"):
        list(read_pairs(path))


def test_a_file_is_replaced_at_once_and_nothing_is_left_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "metrics.json"
    write_atomically(path, "one")
    path.chmod(0o640)
    write_atomically(path, "two\r\n")
    assert path.read_bytes() == b"two\r\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    monkeypatch.setattr("os.replace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_atomically(path, "three")
    assert path.read_bytes() == b"two\r\n"
    assert [*tmp_path.iterdir()] == [path]
