"""Answers of a pretrained model that the interactive page shows as stored: `make_data.py answers`.

The model is the one of the study (studies/pretrained), fine-tuned with cross-entropy, with the study's
settings and seed 0; on another processor it has other errors. The page shows what it answers to the sentences
of sentences.txt, which were written for the page. The texts of the study's test set are third parties', so of
these rows only numbers are stored: the ratings and the readings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from studies.pretrained.model import Rows
from studies.pretrained.run import STUDY, Run, measure, trainer_of
from studies.pretrained.run import task_of as study_task
from studies.pretrained.training import Settings, draw

SENTENCES = Path(__file__).with_name("sentences.txt")
TASK, ROWS_SHOWN = "sentiment", 200
UNIT = 10_000
"""Probabilities are stored as whole numbers of this part."""


def answer() -> dict[str, Any]:
    """Train the model, about four minutes; return what the page shows of its answers."""
    run = Run(TASK, STUDY["common"], "ce", 0).complete()
    task = study_task(TASK)
    trainer, places = trainer_of(TASK, run.layers or 0)
    settings = Settings(run.arm, STUDY["rows"][run.rows], run.rate or 0.0, run.seed)
    trainer.fit([places[k] for k in draw(task.pool, run.seed, run.rows)], settings)
    ratings = task.answers[task.test].double()
    read = trainer.tree.read(trainer.predict([places[k] for k in task.test], run.arm))._asdict()
    columns = [ratings, *(read[name] for name in ("greedy", "median", "lower", "upper"))]
    prompt = STUDY["tasks"][TASK]["prompt"]
    texts = SENTENCES.read_text(encoding="utf-8").splitlines()
    rows = Rows(trainer.model.tokenizer([prompt.format(text=text) for text in texts]).input_ids, trainer.tree)
    logits = trainer.predict(range(len(texts)), run.arm, batch=8, rows=rows)
    return {
        "settings": {"rate": run.rate, "layers": run.layers, "rows": run.rows, "steps": settings.steps},
        "test": {
            "size": len(task.test),
            "scores": {name: round(score, 2) for name, score in measure(read, ratings).items()},
            "rows": [[int(x) for x in row] for row in torch.stack(columns, 1)[:ROWS_SHOWN].tolist()],
        },
        "sentences": describe(texts, logits, trainer),
    }


def describe(texts: list[str], logits: Tensor, trainer: Any) -> list[dict[str, Any]]:
    """Describe the distribution of each sentence: what is read from it, and its rounded probabilities."""
    found = trainer.tree.read(logits)
    probs = trainer.tree.log_probs(logits).double().exp()
    return [
        {
            "text": text,
            "greedy": int(found.greedy[i]),
            "median": int(found.median[i]),
            "mean": round(float(found.mean[i]), 1),
            "low": int(found.lower[i]),
            "high": int(found.upper[i]),
            "probs": (UNIT * probs[i]).round().int().tolist(),
        }
        for i, text in enumerate(texts)
    ]
