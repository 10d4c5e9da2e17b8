from importlib import resources
from pathlib import Path

from data_cases import write

from ntl.data.mathematics_dataset import EXTRAPOLATE_MODULES, MODULES

SAMPLES = resources.files("ntl.data") / "sample"


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
