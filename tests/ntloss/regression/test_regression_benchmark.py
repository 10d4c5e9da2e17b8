"""`benchmarks/regression.py` runs, with a tiny model in place of SmolLM2."""

import runpy
from pathlib import Path

import pandas as pd
from regression_cases import reviews, save_tiny_encoder, save_tiny_model

ROOT = Path(__file__).parents[3]
BENCHMARK = ROOT / "benchmarks/regression.py"


def test_it_prints_errors_intervals_time_and_memory(tmp_path, capsys):
    texts, stars = reviews(110)
    pd.DataFrame({"text": texts, "stars": stars}).to_csv(tmp_path / "reviews.csv", index=False)
    options = {
        "--prompt": "{text}\\nStars: ",
        "--model": save_tiny_model(tmp_path / "tiny"),
        "--encoder": str(save_tiny_encoder(tmp_path)),
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
