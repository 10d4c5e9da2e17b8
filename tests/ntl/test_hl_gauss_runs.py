"""Runs of the lab with Gaussian targets on whole numbers: sigma from the answers, and ratings as targets."""

import json

import pytest
from published_commands import scaled_down
from tolerances import approx

from ntl.train import main

ROWS = [f"text {i},{40 + 10 * (i % 3)},{30 + i % 5} {50 + i % 7}" for i in range(60)]


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["text,score,ratings", *ROWS]), encoding="utf-8")
    return [
        *(o for o in scaled_down(tmp_path) if "data_dir" not in o),
        "dataset_args=tabular",
        f"dataset_args.file={path}",
        "dataset_args.target=score",
        "dataset_args.columns=[text]",
        "dataset_args.ratings=ratings",
        "dataset_args.validation_size=6",
        "dataset_args.test_size=6",
        "model_args=vanilla_t5",
        "model_args.number_format=padded",
        "loss=hl_gauss",
    ]


@pytest.mark.parametrize("more", [[], ["loss.ratings=true"]])
def test_sigma_follows_the_answers_and_is_logged_and_saved(table, more, tmp_path, capsys):
    assert main([*table, *more]) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    first, last = json.loads((tmp_path / "run" / "config.json").read_text())["ntl"]["sigma"]
    assert first == approx(0.55 * 8.1650, 0.05)  # 40, 50 and 60 equally often
    assert last == approx(first / 8)
    assert f"sigma {first:.4g}" in printed


def test_ratings_change_the_loss(table, tmp_path, capsys):
    losses = {}
    for name, more in {"answers": [], "ratings": ["loss.ratings=true"]}.items():
        assert main([*table, *more, f"training_args.output_dir={tmp_path}/{name}"]) == 0, (
            capsys.readouterr().err
        )
        line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("step 1:"))
        losses[name] = line
    assert losses["answers"] != losses["ratings"]


@pytest.mark.parametrize(
    ("more", "key"),
    [
        (["loss=ce", "loss.ratings=true"], "hl_gauss"),
        (["loss.ratings=true", "dataset_args.ratings=null"], "ratings"),
    ],
)
def test_ratings_without_the_loss_or_the_column_are_errors(table, more, key, capsys):
    assert main([*table, *more]) != 0
    assert key in capsys.readouterr().err
