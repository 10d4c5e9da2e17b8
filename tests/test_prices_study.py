"""The study of prices: runs are made once, packed and measured."""

import importlib
import json
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="the extra 'trl' is not installed")
pytest.importorskip("hydra")
from tolerances import approx

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "src/ntl/data/sample/tabular/diamonds.csv"


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return lambda name: importlib.import_module(f"studies.prices.{name}")


def test_a_run_is_made_once_packed_and_measured(study, tmp_path, monkeypatch, capsys):
    train, results = study("train"), study("results")
    monkeypatch.chdir(ROOT)
    for name, value in (("DATA", str(SAMPLE)), ("TRAIN", 8), ("TEST", 6), ("BATCH", 4)):
        monkeypatch.setattr(train, name, value)
    given = ["--seeds", "0", "--steps", "2", "--outputs", str(tmp_path)]
    train.main(given)
    made = {path.name: path.read_bytes() for path in tmp_path.glob("*.json")}
    assert made.keys() == {f"{arm}-0.json" for arm in train.ARMS}
    train.main(given)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.json")} == made
    run = json.loads(made["ce-0.json"])
    pairs = zip(run["median_errors"], run["truths"], strict=True)
    assert results.measures_of(run)["relative_mae"] == approx(sum(e / t for e, t in pairs) / 6)
    results.main(["--outputs", str(tmp_path), "--results", str(tmp_path / "pack")])
    printed = capsys.readouterr().out
    assert all(name in printed for name in (*train.ARMS, "median_mae", "relative_mae"))
