import os
import re
from pathlib import Path

import pytest

from ntl.cli import main
from ntl.config import DATASET_BY_NAME
from ntl.data import load_task
from ntl.data.prepare import SETTINGS
from ntl.data.tasks import mathematics_dataset
from ntl.data.tasks.mathematics_dataset import EXTRAPOLATE_MODULES, MODULES
from tests.ntl.conftest import shared

PAIRS = 100
OUTPUTS = ["test_extrapolate.txt", "test_interpolate.txt", "train.txt", "val.txt"]


@pytest.fixture
def archive(tmp_path):
    """Write the official layout of the mathematics dataset, with questions that name their file."""
    folder = tmp_path / "archive"
    files = [(f"train-{d}", m) for d in ("easy", "medium", "hard") for m in MODULES]
    files += [("interpolate", m) for m in MODULES] + [("extrapolate", m) for m in EXTRAPOLATE_MODULES]
    for split, module in files:
        (folder / split).mkdir(parents=True, exist_ok=True)
        lines = "".join(f"{split} {module} {i}?\n{i}\n" for i in range(PAIRS))
        (folder / split / f"{module}.txt").write_text(lines)
    return folder


@pytest.fixture
def prepare(tmp_path, capsys):
    """Run `ntl prepare`, and return its output and its exit code."""

    def prepare(dataset, *overrides, source=tmp_path / "archive", destination=tmp_path / "out"):
        code = main(["prepare", dataset, f"source={source}", f"destination={destination}", *overrides])
        printed = capsys.readouterr()
        return code, " ".join((printed.out + printed.err).split())

    return prepare


def pairs(path):
    lines = path.read_text().splitlines()
    return list(zip(lines[::2], lines[1::2], strict=True))


def outputs(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def load(name, folder, tmp_path, **settings):
    kind = DATASET_BY_NAME[name]
    return load_task(kind(data_dir=str(folder), cache_dir=str(tmp_path / "cache"), **settings))


@pytest.mark.parametrize("bucket", [2**20, 5000])
def test_every_pair_of_the_mixture_is_in_training_or_held_out(
    archive, prepare, tmp_path, monkeypatch, bucket
):
    monkeypatch.setattr(mathematics_dataset, "BUCKET", bucket)
    code, printed = prepare("mathematics_dataset", "validation_share=0.03")
    assert code == 0
    assert "train.txt: 3,783 pairs" in printed
    out = tmp_path / "out"
    assert outputs(out) == OUTPUTS
    train, validation = pairs(out / "train.txt"), pairs(out / "val.txt")
    expected = [
        (f"train-{d} {m} {i}?", str(i))
        for d in ("easy", "medium", "hard")
        for m in MODULES
        for i in range(PAIRS)
    ]
    assert len(validation) == 3 * len(MODULES) * 3
    assert sorted(train + validation) == sorted(expected)
    # The whole file is shuffled: the first tenth comes from all source files.
    assert len({question.rpartition(" ")[0] for question, _ in train[:378]}) == 3 * len(MODULES)
    tests = pairs(out / "test_extrapolate.txt")
    assert tests == [(f"extrapolate {m} {i}?", str(i)) for m in EXTRAPOLATE_MODULES for i in range(PAIRS)]
    assert len(pairs(out / "test_interpolate.txt")) == len(MODULES) * PAIRS
    assert len(load("mathematics_dataset", out, tmp_path).train) == len(train)


def test_the_same_seed_gives_the_same_files_and_another_seed_gives_others(archive, prepare, tmp_path):
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        assert prepare("mathematics_dataset", f"split_seed={seed}", destination=tmp_path / folder)[0] == 0
    for name in ("train.txt", "val.txt"):
        first, again, other = ((tmp_path / folder / name).read_bytes() for folder in "abc")
        assert first == again
        assert first != other


def test_a_second_run_does_nothing_and_other_settings_need_overwrite(archive, prepare, tmp_path):
    prepare("mathematics_dataset")
    out = tmp_path / "out"
    before = {name: (out / name).stat().st_mtime_ns for name in OUTPUTS}
    code, printed = prepare("mathematics_dataset")
    assert code == 0
    assert "already prepared" in printed
    code, printed = prepare("mathematics_dataset", "split_seed=3")
    assert code == 2
    assert (
        "prepared differently, or not by `ntl prepare`: split_seed is 3 and was 0. Pass another destination"
        in printed
    )
    assert before == {name: (out / name).stat().st_mtime_ns for name in OUTPUTS}

    assert prepare("mathematics_dataset", "split_seed=3", "overwrite=true")[0] == 0
    assert "already prepared" in prepare("mathematics_dataset", "split_seed=3")[1]
    (out / "val.txt").write_text("Mine?\n1\n")
    code, printed = prepare("mathematics_dataset", "split_seed=3")
    assert code == 2
    assert re.search(r"val.txt is 8 bytes and was \d+ bytes", printed)
    archive.joinpath("train-easy", f"{MODULES[0]}.txt").write_text("Other?\n1\n")
    assert f"train-easy/{MODULES[0]}.txt is 9 bytes" in prepare("mathematics_dataset", "split_seed=3")[1]


def test_files_from_another_source_are_not_overwritten(archive, prepare, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "val.txt").write_text("Mine?\n1\n")
    code, printed = prepare("mathematics_dataset")
    assert code == 2
    assert "or not by `ntl prepare`: val.txt is 8 bytes and was not recorded" in printed
    assert outputs(tmp_path / "out") == ["val.txt"]


def test_two_datasets_can_share_a_folder(archive, prepare, tmp_path):
    small = ("train_per_difficulty=80", "validation_per_difficulty=20")
    assert prepare("mathematics_dataset")[0] == prepare("arithmetic", *small)[0] == 0
    assert "already prepared" in prepare("arithmetic", *small)[1]
    out = tmp_path / "out"
    train, validation = pairs(out / "arithmetic_train.txt"), pairs(out / "arithmetic_val.txt")
    assert (len(set(train)), len(set(validation)), len({*train, *validation})) == (240, 60, 300)
    assert {question.split()[1] for question, _ in train} == {"arithmetic__add_sub_multiple"}
    assert len(pairs(out / "arithmetic_test_extrapolate.txt")) == PAIRS
    sizes = {"train_per_difficulty": 1, "validation_per_difficulty": 1, "test_size": 1, "data_seed": 0}
    assert len(load("arithmetic", out, tmp_path, **sizes).train) == 240


def test_an_interrupted_run_leaves_nothing_and_the_next_one_is_complete(
    archive, prepare, tmp_path, monkeypatch
):
    read, calls = mathematics_dataset.read_pairs, []

    def interrupted(path):
        calls.append(path)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return read(path)

    with monkeypatch.context() as context:
        context.setattr(mathematics_dataset, "read_pairs", interrupted)
        code, printed = prepare("mathematics_dataset")
    assert code == 130
    assert "interrupted. Nothing was changed." in printed
    assert outputs(tmp_path / "out") == []
    assert prepare("mathematics_dataset")[0] == 0
    assert outputs(tmp_path / "out") == OUTPUTS


def test_files_of_a_run_killed_while_moving_them_do_not_count_as_complete(
    archive, prepare, tmp_path, monkeypatch
):
    replace = os.replace

    def killed(source, target):
        if Path(target).name == "val.txt":
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as context:
        context.setattr(os, "replace", killed)
        prepare("mathematics_dataset")
    assert outputs(tmp_path / "out") == ["train.txt"]
    code, printed = prepare("mathematics_dataset")
    assert code == 2
    assert "overwrite=true to replace them" in printed
    assert prepare("mathematics_dataset", "overwrite=true")[0] == 0
    assert outputs(tmp_path / "out") == OUTPUTS


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("How?\n1\nWhat?\n", "line 4: found '' after 'What?\\n'; expected a question and an answer"),
        ("How?\n1\nWhat?\n-12", "line 4: found '-12' after 'What?\\n'; expected"),
        ("How?\n\n", "line 2: found '\\n' after 'How?\\n'; expected"),
        ("", "is empty; expected questions"),
    ],
)
def test_a_malformed_file_is_an_error_and_nothing_is_written(archive, prepare, tmp_path, content, complaint):
    path = archive / "train-hard" / "numbers__place_value.txt"
    path.write_text(content)
    code, printed = prepare("mathematics_dataset")
    assert code == 2
    assert str(path) in printed
    assert complaint in printed
    assert outputs(tmp_path / "out") == []


def test_a_missing_module_is_an_error_before_anything_is_read(archive, prepare, tmp_path):
    (archive / "extrapolate" / "numbers__place_value_big.txt").unlink()
    (archive / "train-easy" / f"{MODULES[0]}.txt").write_text("malformed")
    code, printed = prepare("mathematics_dataset")
    assert code == 2
    assert (
        "lacks extrapolate/numbers__place_value_big.txt; it has extrapolate/, interpolate/, train-" in printed
    )
    assert not (tmp_path / "out").exists()


def test_too_few_pairs_are_an_error(archive, prepare):
    code, printed = prepare("arithmetic")
    assert code == 2
    assert "holds 100 pairs; expected 33333 for training + 1000 for validation" in printed


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["poems"], "ntl prepare poems is unknown; expected one of: arithmetic, mathematics_dataset, model"),
        (["arithmetik"], "Did you mean ntl prepare arithmetic"),
        (["arithmetic", "split_sed=1"], "split_sed"),
        (["arithmetic", "split_seed=x"], "split_seed"),
        (["mathematics_dataset", "validation_share=2"], "validation_share=2.0; expected a share above 0"),
        (["arithmetic"], "source=data/math.* is not a folder; expected one that holds train-easy/arithmetic"),
    ],
)
def test_an_invalid_setting_of_prepare_is_an_error_that_says_what_is_expected(
    arguments, complaint, tmp_path, monkeypatch, capsys
):

    monkeypatch.chdir(tmp_path)
    assert main(["prepare", *arguments]) == 2
    assert re.search(complaint, capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []


def test_a_destination_that_cannot_be_written_is_an_error(archive, prepare, tmp_path):
    (tmp_path / "file").write_text("")
    code, printed = prepare("mathematics_dataset", destination=tmp_path / "file")
    assert code == 2
    assert "cannot be written" in printed


def test_the_help_lists_every_dataset_with_its_settings(capsys):
    assert main(["prepare", "--help"]) == main(["prepare"]) == 0
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in SETTINGS)
    for name, text in (
        ("mathematics_dataset", "validation_share=0.0005 .* of each training file"),
        ("arithmetic", "train_per_difficulty=33333"),
    ):
        assert main(["prepare", name, "--help"]) == 0
        assert re.search(text, capsys.readouterr().out)


def test_the_official_files_are_prepared(prepare, tmp_path):
    source = shared("data/mathematics_dataset-v1.0")
    code, printed = prepare("mathematics_dataset", source=source)
    assert code == 0
    counts = (
        "train.txt: 246,873",
        "val.txt: 126",
        "test_interpolate.txt: 13,000",
        "test_extrapolate.txt: 7,000",
    )
    for count in counts:
        assert f"{count} pairs" in printed
