"""`benchmarks/regression.py` runs, with a tiny model in place of SmolLM2."""

import runpy
from pathlib import Path

import pandas as pd
import pytest
from regression_cases import reviews, save_tiny_encoder, save_tiny_model
from tolerances import assert_close

ROOT = Path(__file__).parents[3]
BENCHMARK = ROOT / "benchmarks/regression.py"


def test_it_prints_errors_intervals_time_and_memory(tmp_path, capsys):
    texts, stars = reviews(110)
    pd.DataFrame({"text": texts, "stars": stars}).to_csv(tmp_path / "reviews.csv", index=False)
    options = {
        "--prompt": "{text}\\nStars: ",
        "--model": save_tiny_model(tmp_path / "tiny"),
        "--rows": "80",
        "--new": "30",
        "--epochs": "1",
    }
    main = runpy.run_path(str(BENCHMARK))["main"]
    words = [word for option in options.items() for word in option]
    assert main([str(tmp_path / "reviews.csv"), "stars", *words]) == 0
    printed = capsys.readouterr().out
    assert "80 rows" in printed
    assert "30 new rows" in printed


def test_an_encoder_is_fine_tuned_on_the_same_rows(tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    texts, stars = reviews(110)
    table = tmp_path / "reviews.csv"
    pd.DataFrame({"text": texts, "stars": stars}).to_csv(table, index=False)
    encoder = save_tiny_encoder(tmp_path)
    main = runpy.run_path(str(BENCHMARK))["main"]
    options = ["--prompt", "{text}: ", "--rows", "80", "--new", "30", "--epochs", "12"]
    options += ["--encoder", str(encoder), "--learning-rate", "1e-2"]
    found = []
    with pytest.raises(SystemExit):
        main([str(table), "stars", *options, "--train", "all"])
    for _ in range(2):
        assert main([str(table), "stars", *options]) == 0
        found.append(float(capsys.readouterr().out.split()[-1]))
    assert_close(found[1], found[0], 0.05)  # the seed decides
    drawn = pd.DataFrame({"text": texts, "stars": stars}).sample(110, random_state=0)["stars"]
    assert found[0] < 0.9 * abs(drawn[80:] - drawn[:80].median()).mean()
