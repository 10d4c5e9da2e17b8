"""Read the probability of each level on the test rows from the trained models of runs.

    python -m studies.scores.read outputs/scores/sentiment/*

Writes `levels.csv` into the folder of each run that is finished and has none: a row for each test row with
its label, the probabilities of the levels 0 to 8, and that of any other answer. The trained model, which is
large, is not needed then.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from transformers import AutoModelForCausalLM, AutoTokenizer

from ntl.data.tabular import Tabular
from ntl.evaluate import read_results
from ntloss.reading import read_scores

LEVELS = range(9)
FILE = "levels.csv"


def main(folders: Sequence[str]) -> None:
    """Read the runs in these folders."""
    for folder in map(Path, folders):
        run = read_results(folder / "test")
        if run is None or (folder / FILE).exists():
            continue
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.chat_template = None  # the runs were trained on plain text
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
        rows = list(Tabular(**run["settings"]["dataset_args"]).read().tests["test"])
        found = read_scores(model, tokenizer, [row.question for row in rows], levels=LEVELS)
        table = pd.DataFrame([{**one.probabilities, "none": one.none} for one in found])
        table.insert(0, "label", [int(row.answer) for row in rows])
        table.to_csv(folder / FILE, index=False, float_format="%.6g", lineterminator="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
