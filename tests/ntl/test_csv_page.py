"""docs/csv_to_intervals.md: its commands run in turn, with a tiny model in place of SmolLM2."""

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
from approach_cases import save_pretrained
from pages import ROOT, snippets

from ntl.cli import main

PAGE = "docs/csv_to_intervals.md"
SMALL = ["training_args.max_steps=2", "weights.trained_layers=1", "dataset_args.cache_dir=cache"]


def test_the_commands_of_csv_to_intervals_run_in_turn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_pretrained(".models/smollm2")
    Path("data").mkdir()
    texts = pd.DataFrame(
        {"text": [f"text {i}" for i in range(700)], "sentiment": [i % 81 for i in range(700)]}
    )
    texts.to_csv("data/sentiment.csv", index=False)
    blocks = re.findall(r"^```bash\n(.*?)^```$", (ROOT / PAGE).read_text(), re.DOTALL | re.MULTILINE)
    fetch, train, predict = (shlex.split(block.replace("\\\n", " "), comments=True) for block in blocks)
    assert fetch == ["make", "model", "data/sentiment.csv"]
    assert main([*train[1:], *SMALL]) == 0
    rows = texts[["text"]].head(5)
    rows.to_csv("new.csv", index=False)
    assert main(predict[1:]) == 0
    found = pd.read_csv("answers.csv")
    assert found[[*rows]].equals(rows)
    (snippet,) = snippets(PAGE)
    names = {"rows": rows.to_dict("records")}
    exec(snippet, names)
    assert [*names["answers"]] == [*found][len(rows.columns) :]
    assert np.isfinite(names["answers"]).all(axis=None)
    assert Path("outputs/sentiment/model.safetensors").exists()
