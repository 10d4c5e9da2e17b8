"""docs/csv_to_intervals.md: its commands run in turn, with a tiny model in place of SmolLM2."""

import re
import shlex
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from approach_cases import save_pretrained
from pages import ROOT, snippets

import ntl
from ntl.cli import main

PAGE = "docs/csv_to_intervals.md"
SMALL = {"training_args.max_steps": 2, "weights.trained_layers": 1, "dataset_args.cache_dir": "cache"}


def test_the_commands_of_csv_to_intervals_run_in_turn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_pretrained("llama")
    Path("data").mkdir()
    frame = pd.DataFrame({"text": [f"text {i}" for i in range(80)], "price": range(80)})
    frame.to_csv("data/houses.csv", index=False)
    (block,) = re.findall(r"^```bash\n(.*?)^```$", (ROOT / PAGE).read_text(), re.DOTALL | re.MULTILINE)
    fit, predict = map(shlex.split, block.splitlines())
    assert main([*fit[1:], "model=llama", *(f"{key}={value}" for key, value in SMALL.items())]) == 0
    rows = frame[["text"]].head(5)
    rows.to_csv("new.csv", index=False)
    assert main(predict[1:]) == 0
    found = pd.read_csv("answers.csv")
    assert found[[*rows]].equals(rows)
    (snippet,) = snippets(PAGE)
    monkeypatch.setattr(ntl, "fit", partial(ntl.fit, model="llama", **SMALL), raising=False)
    names = {"frame": frame, "rows": rows.to_dict("records")}
    exec(snippet, names)
    assert [*names["answers"]] == [*found][len(rows.columns) :]
    assert np.isfinite(names["answers"]).all(axis=None)
    assert ntl.load("prices").report.equals(names["model"].report)
