"""Errors of what one could use instead of a language model, on the rows that each seed of the study draws.

    python -m studies.ten_epochs.alternatives sentiment places --seeds 24 36 \\
        --frozen minilm=FOLDER mpnet=FOLDER --tuned encoder=FOLDER > alternatives.csv

A constant is the median of the training answers. Ridge regression reads TF-IDF, as in the study before. A
frozen sentence encoder is read by support vector regression, whose C the validation rows choose. A fine-tuned
encoder minimizes absolute errors; the validation rows choose its rate, if several are given, and its epoch.
Encoders are folders with weights for transformers; the mean of their last states stands for a text.
"""

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, get_linear_schedule_with_warmup

from ntl.report.runs import PACKED
from studies.whole_numbers.baselines import ridge_on_words, settings_of

FOLDER = Path(__file__).parent
COSTS = (0.3, 1.0, 3.0, 10.0)  # C of support vector regression
EPOCHS, BATCH = 10, 16


class Rows(NamedTuple):
    """The questions of a part of a table, and their answers."""

    texts: list[str]
    answers: np.ndarray


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the mean absolute error of each table, model and seed on the test rows, as CSV."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tables", nargs="+")
    parser.add_argument("--seeds", nargs=2, type=int, required=True, metavar=("FIRST", "END"))
    for kind in ("--frozen", "--tuned"):
        parser.add_argument(kind, nargs="*", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--rates", nargs="+", type=float, default=[1e-4], help="of fine-tuned encoders")
    given = parser.parse_args(arguments)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(PACKED)
    for seed in range(*given.seeds):
        for table in given.tables:
            for name, error in errors(table, seed, given.frozen, given.tuned, given.rates):
                writer.writerow((table, name, name, seed, "test", "", "mae", error))
                sys.stdout.flush()


def errors(
    table: str, seed: int, frozen: Sequence[str], tuned: Sequence[str], rates: Sequence[float]
) -> Iterator[tuple[str, float]]:
    """Yield each model's name and its mean absolute error on the test rows of a seed."""
    train, validation, test = rows_of(table, seed)
    yield "constant", error_of(np.median(train.answers), test)
    ridge = ridge_on_words().fit(train.texts, train.answers)
    yield "ridge", error_of(ridge.predict(test.texts), test)
    for name, _, folder in (each.partition("=") for each in frozen):
        encoder = Encoder(folder)
        inputs = [encoder.embed(part.texts) for part in (train, validation, test)]
        found = []
        for cost in COSTS:
            model = make_pipeline(StandardScaler(), SVR(C=cost))
            scale = train.answers.std()
            model.fit(inputs[0], train.answers / scale)
            on_validation, on_test = (scale * model.predict(states) for states in inputs[1:])
            found.append((error_of(on_validation, validation), error_of(on_test, test)))
        yield name, min(found)[1]
    for name, _, folder in (each.partition("=") for each in tuned):
        found = []
        for rate in rates:
            torch.manual_seed(seed)
            found += Encoder(folder).fine_tune(train, validation, test, rate)
        yield name, min(found)[1]


def rows_of(table: str, seed: int) -> tuple[Rows, Rows, Rows]:
    """Load the training, validation and test rows that a seed draws."""
    task = settings_of(table, seed, FOLDER).read()
    parts = (list(part) for part in (task.train, task.validation, task.tests["test"]))
    train, validation, test = (
        Rows([row.question for row in part], np.array([float(row.answer) for row in part])) for part in parts
    )
    return train, validation, test


def error_of(predicted: np.ndarray | np.floating, rows: Rows) -> float:
    """Compute the mean absolute error."""
    return float(np.abs(predicted - rows.answers).mean())


class Encoder:
    """A sentence encoder, whose mean state a linear head can read.

    Args:
        folder: Folder with its weights and its tokenizer.
        bfloat16: Whether matrix products are computed in bfloat16, which not every processor is fast at.
    """

    def __init__(self, folder: str, bfloat16: bool = True):
        self.bfloat16 = bfloat16
        self.tokenizer, self.model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
        self.head = nn.Linear(self.model.config.hidden_size, 1)

    def states(self, texts: Sequence[str]) -> Tensor:
        """Compute the mean of the last states of each text, `[texts, width]`."""
        batch = self.tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
            states = self.model(**batch).last_hidden_state.float()
        kept = batch["attention_mask"].unsqueeze(-1)
        return (states * kept).sum(1) / kept.sum(1)

    @torch.no_grad()
    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Compute the states of all texts, `[texts, width]`."""
        self.model.eval()
        # Texts of similar length together, which saves padding.
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        found = np.empty((len(texts), self.model.config.hidden_size), np.float32)
        for start in range(0, len(order), 2 * BATCH):
            chosen = order[start : start + 2 * BATCH]
            found[chosen] = self.states([texts[i] for i in chosen]).numpy()
        return found

    def fine_tune(
        self, train: Rows, validation: Rows, test: Rows, rate: float, epochs: int = EPOCHS
    ) -> list[tuple[float, float]]:
        """Minimize absolute errors; return the errors on validation and test rows after each epoch."""
        center, scale = train.answers.mean(), train.answers.std()
        targets = torch.from_numpy((train.answers - center) / scale).float()
        parameters = [*self.model.parameters(), *self.head.parameters()]
        optimizer = torch.optim.AdamW(parameters, rate, weight_decay=0.01)
        steps = epochs * -(-len(train.texts) // BATCH)
        schedule = get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
        found = []
        for _ in range(epochs):
            self.model.train()
            for chosen in torch.randperm(len(targets)).split(BATCH):
                predicted = self.head(self.states([train.texts[i] for i in chosen])).squeeze(-1)
                nn.functional.l1_loss(predicted, targets[chosen]).backward()
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
            both = (self.predict(part.texts, center, scale) for part in (validation, test))
            found.append(tuple(map(error_of, both, (validation, test))))
        return found

    @torch.no_grad()
    def predict(self, texts: Sequence[str], center: float, scale: float) -> np.ndarray:
        """Predict the number of each text."""
        return center + scale * self.head(torch.from_numpy(self.embed(texts))).squeeze(-1).numpy()


if __name__ == "__main__":
    main()
