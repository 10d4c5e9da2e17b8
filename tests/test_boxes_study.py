"""The study of boxes and clocks: its drawings, its measures, and runs that are made once and measured."""

import importlib
from pathlib import Path

import pytest
from tolerances import approx

torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
pytest.importorskip("hydra")
ROOT = Path(__file__).parents[1]


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return lambda name: importlib.import_module(f"studies.boxes.{name}")


def test_answers_are_written_in_the_formats_of_models_that_point_and_squares_are_where_they_say(study):
    task = study("task")
    rows = task.draw_rows(30, torch.Generator().manual_seed(0))
    box, point, time = rows[:3]
    assert box.answer == "[{}, {}, {}, {}]".format(*box.numbers)
    assert point.answer == "({},{})".format(*point.numbers)
    assert time.answer == str(time.numbers[0])
    for row in rows:
        assert all(0 <= number <= task.LARGEST[row.question] for number in row.numbers)
        if row.question == task.BOX:
            x1, y1, x2, y2 = (number * task.SIDE / 100 for number in row.numbers)
            bright = row.image.amin(0) > 0.4
            assert int(bright.sum()) == approx((x2 - x1) * (y2 - y1), 0.35)
            assert bright[int((y1 + y2) / 2), int((x1 + x2) / 2)]


def test_scores_are_overlaps_distances_and_the_short_way_around_the_clock(study):
    task = study("task")
    found, truth = torch.tensor([[0.0, 0, 10, 10]]), torch.tensor([[5.0, 0, 15, 10]])
    assert task.score(task.BOX, found, truth) == approx(1 / 3)
    assert task.score(task.BOX, found, truth + 20) == 0
    assert task.score(task.POINT, torch.tensor([[0.0, 0]]), torch.tensor([[3.0, 4]])) == approx(5)
    assert task.score(task.TIME, torch.tensor([[719.0], [10]]), torch.tensor([[1.0], [20]])) == approx(6)


def test_a_run_is_made_once_packed_and_measured(study, tmp_path, monkeypatch, capsys):
    train, results = study("train"), study("results")
    monkeypatch.setattr(train, "TEST", 6)
    monkeypatch.setattr(train, "BATCH", 6)
    given = ["--seeds", "0", "--steps", "2", "--outputs", str(tmp_path)]
    train.main(given)
    made = {path.name: path.read_bytes() for path in tmp_path.glob("*.json")}
    assert made.keys() == {f"{arm}-0.json" for arm in train.ARMS}
    train.main(given)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.json")} == made
    results.main(["--outputs", str(tmp_path), "--results", str(tmp_path / "pack")])
    printed = capsys.readouterr().out
    assert all(name in printed for name in (*train.ARMS, "median_iou", "interval_coverage"))
