"""The demo, with a tiny model on invented ratings: that it runs, says what it finds, and continues."""

import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from model_cases import save_pretrained
from tolerances import approx

from studies.demo import demo
from studies.demo.demo import Row

SMALL = (
    "training_args.seed=0",
    "hydra/launcher=basic",
    "dataset_args.train_size=16",
    "dataset_args.validation_size=4",
    "dataset_args.test_size=12",
    "weights.trained_layers=1",
    "training_args.max_steps=2",
    "training_args.per_device_train_batch_size=4",
)


@pytest.fixture
def given(tmp_path, monkeypatch):
    """Write a tiny model and a table of texts, and return the overrides that use them."""
    save_pretrained(tmp_path / "model")
    draw = random.Random(0)
    rows = []
    for i in range(60):
        ratings = [draw.randrange(0, 81, 10) for _ in range(20)]
        rows.append((f"Text {i}", round(sum(ratings) / 20), " ".join(map(str, ratings))))
    pd.DataFrame(rows, columns=["text", "sentiment", "ratings"]).to_csv(tmp_path / "texts.csv", index=False)
    return [
        *SMALL,
        f"dataset_args.file={tmp_path}/texts.csv",
        f"model_args.model_name_or_path={tmp_path}/model",
        f"training_args.output_dir={tmp_path}/out",
    ]


def test_the_demo_prints_a_table_contrasts_and_sentences(given, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("ntl.report.figures.draw_figures", lambda *_: [])  # those of reports
    assert demo.main(given) == 0
    out = capfd.readouterr().out
    assert out.index(demo.NOTICE) < out.index("| cross-entropy     |    0 |")  # as soon as it ends
    assert "| HL-Gauss          |    0 |" in out
    for name in ("HL-Gauss", "regression head", "TF-IDF + ridge regression", "always the training median"):
        assert name in out
    assert out.count("holds") + out.count("does not hold") >= 4
    assert all(sentence in out for sentence in demo.SENTENCES)
    assert "trained with HL-Gauss says" in out
    assert "ntloss fit TABLE.csv" in out
    assert "criterion=HLGauss.for_answers(answers)" in out
    assert "With HL-Gauss and the median, the error changes by" in out
    assert "TF-IDF + ridge" in (tmp_path / "out/demo.svg").read_text("utf-8")
    table = Path(tmp_path / "out/demo.md").read_text()
    assert "| greedy | median | 90 % interval covers |" in table


def test_an_interrupted_demo_ends_in_one_line(given, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "compare", interrupted)
    assert demo.main(given) == 130
    assert capsys.readouterr().err.count("\n") == 1


def test_without_the_model_or_the_texts_one_line_says_what_to_do(given, tmp_path, capsys):
    for absent, word in (("file=nowhere.csv", "the texts"), ("longest=60", "the model")):
        overrides = [*given, f"dataset_args.{absent}"]
        if word == "the model":
            overrides += [f"model_args.model_name_or_path={tmp_path}/absent"]
        assert demo.main(overrides) == 2
        error = capsys.readouterr().err
        assert word in error
        assert "ntl compare" in error
        assert error.count("\n") == 1


def test_a_contrast_holds_only_if_it_does_in_every_seed():
    rows = [
        Row("T5", [{"mae": 9.0, "median_mae": 8.0}, {"mae": 9.0, "median_mae": 7.0}]),
        Row("HL-Gauss", [{"median_mae": 7.5}, {"median_mae": 6.5}]),
        Row("T5 regression head", [{"mae": 9.5}, {"mae": 9.25}]),
    ]
    lines = demo.describe_contrasts(rows, ridge=7.5)
    assert lines[1:] == [
        "- greedy - median: +1.0, +2.0: holds",
        "- greedy - regression head: -0.5, -0.2: does not hold",
        "- ridge regression - median: -0.5, +0.5: does not hold",
        "- median - HL-Gauss's median: +0.5, +0.5: holds",
    ]
    table = demo.describe_rows(rows, {"ridge": 7.5})
    assert "| T5 | 9.0 ± 0.0 | 7.5 ± 6.4 | – | – |" in table
    assert table[-1] == "Without a language model: ridge 7.5."


def test_the_advice_is_hl_gauss_only_where_its_medians_have_the_lowest_error():
    def advice(hl_gauss):
        rows = [Row("T5", [{"mae": 10.0, "median_mae": 9.0}]), Row("HL-Gauss", [{"median_mae": hl_gauss}])]
        return demo.describe_advice(rows)[-1]

    assert "changes by -20 % against" in advice(8.0)
    assert "with the median alone, by -10 %" in advice(8.0)
    assert "train with HL-Gauss" in advice(8.0)
    assert "train with HL-Gauss" not in advice(9.5)
    assert demo.describe_advice([Row("T5", [{"mae": 10.0, "median_mae": 9.0}])]) == []


def test_the_picture_marks_every_seed_and_sorts_texts_by_the_peoples_spread():
    seeds = [{"mae": 9.0 + i, "median_mae": 8.0, "coverage_95": 0.9, "coverage_5": 0.1} for i in range(3)]
    widths = np.array([[float(40 - i), float(50 - i)] for i in range(20)])
    left, middle, right = demo.draw([Row("T5", seeds)], 11.0, widths, "T5").axes
    assert "wider where people\ndisagree (rank correlation 1.00)" in middle.get_title()
    assert [list(line.get_ydata()) for line in left.lines[:2]] == [[9, 10, 11], [8, 8, 8]]
    assert middle.lines[1].get_xdata().tolist() == approx([22.5, 26.5, 30.5, 34.5, 38.5])
    assert list(right.lines[0].get_ydata()) == approx([10, 90])
