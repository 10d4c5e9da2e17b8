"""Runs of the lab with Gaussian targets on whole numbers: sigma from the answers."""

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


def test_sigma_follows_the_answers_and_is_logged_and_saved(table, tmp_path, capsys):
    assert main(table) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    first, last = json.loads((tmp_path / "run" / "config.json").read_text())["ntl"]["sigma"]
    assert first == approx(0.55 * 8.1650, 0.05)  # 40, 50 and 60 equally often
    assert last == approx(first / 8)
    assert f"sigma {first:.4g}" in printed
