import pytest
from data_cases import task

from ntl.data import mathematics_dataset
from ntl.data.mathematics_dataset import EXTRAPOLATE_MODULES, MODULES
from ntl.data.prepare import main
from ntl.errors import UserError

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
def prepare(archive, tmp_path, capsys):
    """Run `ntl prepare`, and return what it prints."""

    def prepare(dataset, *settings, source=archive, destination=tmp_path / "out"):
        assert main([dataset, f"--source={source}", f"--destination={destination}", *settings]) == 0
        return capsys.readouterr().out

    return prepare


def pairs(path):
    lines = path.read_text().splitlines()
    return list(zip(lines[::2], lines[1::2], strict=True))


def outputs(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("bucket", [2**20, 5000])
def test_every_pair_of_the_mixture_is_in_training_or_held_out(prepare, tmp_path, monkeypatch, bucket):
    monkeypatch.setattr(mathematics_dataset, "BUCKET", bucket)
    assert "train.txt: 3,783 pairs" in prepare("mathematics_dataset", "--validation_share=0.03")
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
    assert len(task("mathematics_dataset", f"data_dir={out}").train) == len(train)


def test_existing_files_are_replaced_only_if_the_user_says_so(prepare, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "val.txt").write_text("Mine?\n1\n")
    with pytest.raises(UserError, match=r"val.txt.*--overwrite"):
        prepare("mathematics_dataset")
    assert outputs(tmp_path / "out") == ["val.txt"]
    prepare("mathematics_dataset", "--overwrite")
    assert ("Mine?", "1") not in pairs(tmp_path / "out" / "val.txt")
    assert outputs(tmp_path / "out") == OUTPUTS


def test_what_stops_before_the_end_leaves_no_file(archive, prepare, tmp_path):
    malformed = archive / "train-hard" / "numbers__place_value.txt"
    malformed.write_text("How?\n1\nWhat?\n")
    with pytest.raises(UserError, match=f"{malformed}, line 4"):
        prepare("mathematics_dataset")
    assert outputs(tmp_path / "out") == []


def test_a_missing_module_is_an_error_before_anything_is_read(archive, prepare, tmp_path):
    (archive / "extrapolate" / "numbers__place_value_big.txt").unlink()
    (archive / "train-easy" / f"{MODULES[0]}.txt").write_text("malformed")
    with pytest.raises(UserError, match=r"lacks extrapolate/numbers__place_value_big.txt"):
        prepare("mathematics_dataset")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["mathematics_dataset", "--validation_share=2"], "validation_share"),
        (["arithmetic"], "source=data/mathematics_dataset-v1.0"),
    ],
)
def test_an_invalid_setting_is_an_error_that_names_it_and_writes_nothing(
    arguments, named, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=named):
        main(arguments)
    assert list(tmp_path.iterdir()) == []


def test_too_few_pairs_and_a_destination_that_cannot_be_written_are_errors(prepare, tmp_path):
    with pytest.raises(UserError, match="train_per_difficulty"):
        prepare("arithmetic")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="destination="):
        prepare("mathematics_dataset", destination=tmp_path / "file")
