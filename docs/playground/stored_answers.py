"""Answers of a pretrained model that the interactive page shows as stored: `make_data.py answers RUN`.

RUN is a run of cross-entropy on rated texts:

    ntl compare studies/whole_numbers/sentiment.yaml loss=ce training_args.seed=0 \\
        dataset_args.validation_size=16 training_args.output_dir=outputs/stored

On another processor it has other errors. The page shows what the model answers to the sentences of
sentences.txt, which were written for the page. The texts of the test set are third parties', so of these rows
only numbers are stored: the ratings and the readings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

SENTENCES = Path(__file__).with_name("sentences.txt")
ROWS_SHOWN = 200
UNIT = 10_000
"""Probabilities are stored as whole numbers of this part."""
SCORES = {
    "greedy_mae": "mae",
    "median_mae": "median_mae",
    "mean_mae": "mean_mae",
    "coverage": "interval_coverage",
    "width": "interval_width",
}
READINGS = ("true", "predicted", "median", "lower", "upper")


def answer(run: Path) -> dict[str, Any]:
    """Return what the page shows of a run's answers."""
    found = json.loads((run / "test" / "metrics.json").read_text("utf-8"))
    config, metrics = found["settings"], found["metrics"]["test"]
    lines = (run / "test" / "predictions.jsonl").read_text("utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["test"] == "test"]
    texts = SENTENCES.read_text(encoding="utf-8").splitlines()
    training, data = config["training_args"], config["dataset_args"]
    return {
        "settings": {
            "rate": training["learning_rate"],
            "layers": config["weights"]["trained_layers"],
            "rows": data["train_size"],
            "steps": training["max_steps"],
        },
        "test": {
            "size": len(rows),
            "scores": {name: round(metrics[key], 2) for name, key in SCORES.items()},
            "rows": [[round(row[name]) for name in READINGS] for row in rows[:ROWS_SHOWN]],
        },
        "sentences": [
            {"text": text, **describe(probs)}
            for text, probs in zip(texts, distributions(run, data["prompt"], texts), strict=True)
        ],
    }


@torch.no_grad()
def distributions(run: Path, prompt: str, texts: list[str]) -> Tensor:
    """Read the probability of each answer from 0 to 99, `[texts, 100]`."""
    tokenizer = AutoTokenizer.from_pretrained(run)
    model = AutoModelForCausalLM.from_pretrained(run, dtype=torch.float32).eval()
    digits = tokenizer.convert_tokens_to_ids(list("0123456789"))
    found = []
    for text in texts:
        ids = torch.tensor(tokenizer(prompt.replace("{text}", text)).input_ids)
        # A row for each first digit. The logits before it are the same in all rows.
        rows = torch.cat([ids.expand(10, -1), torch.tensor(digits)[:, None]], dim=1)
        first, second = model(rows).logits[:, -2:, digits].double().softmax(-1).unbind(1)
        found.append((first[0, :, None] * second).flatten())
    return torch.stack(found)


def describe(probs: Tensor) -> Mapping[str, Any]:
    """Describe the distribution of one answer: what is read from it, and its rounded probabilities."""
    low, median, high = (int((probs.cumsum(0) < level - 1e-6).sum()) for level in (0.05, 0.5, 0.95))
    first = int(probs.view(10, 10).sum(1).argmax())
    return {
        "greedy": 10 * first + int(probs.view(10, 10)[first].argmax()),
        "median": median,
        "mean": round(float(probs @ torch.arange(100.0, dtype=probs.dtype)), 1),
        "low": low,
        "high": high,
        "probs": (UNIT * probs).round().int().tolist(),
    }
