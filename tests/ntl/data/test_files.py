import re
import stat
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from data_cases import splits, write

from ntl.config import DATASET_BY_NAME
from ntl.data import format_number
from ntl.data.files import write_atomically
from ntl.errors import UserError

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
SMALL = {**GENERATED, "noisy_regression": {"train_size": 300, "validation_size": 20, "test_size": 50}}
SMALL["arithmetic"] = {**GENERATED["arithmetic"], "train_per_difficulty": 2000}  # so that many repeat
SAMPLES = resources.files("ntl.data") / "sample"


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
    assert sorted([*SIZES, "noisy_regression", "tabular"]) == sorted(DATASET_BY_NAME)


def test_the_samples_are_small():
    files = [path for path in Path(SAMPLES).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 400_000


@pytest.mark.parametrize("name", GENERATED)
def test_the_generated_samples_equal_the_generators_output(load, name):
    generated = load(name, data_dir=None, **GENERATED[name])
    assert splits(generated) == splits(load(name, data_dir="sample"))


@pytest.mark.parametrize("name", SMALL)
def test_generated_data_is_seeded_and_its_splits_are_disjoint(load, name):
    small = SMALL[name]
    data = load(name, data_dir=None, **small)
    assert data == load(name, data_dir=None, **small)
    assert data != load(name, data_dir=None, data_seed=1, **small)
    parts = [data.train, data.validation, *data.tests.values()]
    questions = [{canonical(name, example.question) for example in part} for part in parts]
    for i, mine in enumerate(questions):
        for theirs in questions[i + 1 :]:
            assert not mine & theirs


def canonical(name, question):
    """Normalise a question, ignoring the sentence around an expression and the order of factors."""
    if name == "multiplication":
        return tuple(sorted(re.findall(r"\d+", question)))
    return re.search(r"[-(\d].*[\d)]", question).group() if name == "arithmetic" else question


def test_numbers_are_written_without_exponents_and_trailing_zeros():
    assert [format_number(x) for x in (0, -3, 100, -0.0)] == ["0", "-3", "100", "0"]
    assert format_number(np.float32(0.1)) == "0.1"
    assert format_number(-1e-7) == "-0.0000001"
    assert "e" not in format_number(1e30)


@pytest.mark.parametrize("name", [name for name in SIZES if name != "multiplication"])
def test_a_missing_folder_is_an_error_that_says_what_to_do(load, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepared = name in ("mathematics_dataset", "arithmetic")
    advice = f"`ntl prepare {name}`" if prepared else "Put the official files there"
    with pytest.raises(UserError, match=rf"dataset_args.data_dir=data/.* is not a folder.*{advice}"):
        load(name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["gsm8k", "multirc"])
def test_official_files_around_the_published_place_are_read(load, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = DATASET_BY_NAME[name]()
    folder = Path(settings.data_dir).parent
    line = {
        "gsm8k": '{"question": "How many?", "answer": "#### 1"}\n',
        "multirc": '{"passage": {"text": "A.", "questions": [{"question": "Who?", "answers": '
        '[{"text": "Ann", "label": 1}]}]}}\n',
    }[name]
    write(tmp_path / folder, {f"{part}.jsonl": line for part in ("train", "test", "val")})
    assert len(load(name).tests["test"]) == 1


def test_a_missing_split_is_an_error_before_anything_is_read(load, tmp_path):
    # The training file is malformed, but the message must be about the missing split.
    folder = write(
        tmp_path / "data", {"train.txt": "no answer", "notes.md": "", "test_extrapolate.txt": "q\n1\n"}
    )
    with pytest.raises(UserError, match=r"lacks val.txt, test_interpolate.txt; it has notes.md, test_extr"):
        load("mathematics_dataset", data_dir=folder)


def test_a_file_is_replaced_at_once_and_nothing_beside_it_is_touched(tmp_path, monkeypatch):
    path, own, target = (tmp_path / name for name in ("run.json", "run.json.partial", "target"))
    own.symlink_to(target)
    target.write_text("mine")
    write_atomically(path, "one")
    path.chmod(0o640)
    write_atomically(path, "two\r\n")
    assert path.read_bytes() == b"two\r\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert (target.read_text(), own.is_symlink()) == ("mine", True)
    monkeypatch.setattr("os.replace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_atomically(path, "three")
    assert path.read_bytes() == b"two\r\n"
    assert {*tmp_path.iterdir()} == {path, own, target}


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path):
    write_atomically(tmp_path / "a", "")
    (tmp_path / "b").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode
