"""Fine-tune SmolLM2 to rate texts in nine levels, on mean levels or on the raters' shares, and read P(level).

    python -m studies.soft_labels.train --seeds 0 1 2 3 4 5

How runs are stopped, continued and shared between processes: studies/fine_tuning.py.
"""

import argparse
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ntl.data.tabular import Tabular
from ntloss import NTLCrossEntropyLoss, NumberVocabulary, soft_labels_of
from studies.fine_tuning import FineTuning, make_runs, parser_of
from studies.scores.read import LEVELS

ARMS = ("ce", "soft", "soft_crps")
RATE, STEPS = 1e-4, 120
TABLE = {
    "file": "data/sentiment_levels.csv",  # studies/scores/tables.py writes it
    "target": "level",
    "prompt": "{text}\nSentiment: ",
    "ratings": "ratings",
    "longest": 77,
    "significant_digits": None,
    "train_size": 600,
    "validation_size": 20,  # the least; nothing is chosen by them
    "test_size": 400,
}
ROWS_READ = 50  # questions of a pass of reading


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that are missing, seed by seed."""
    parser = parser_of(__doc__, "outputs/soft_labels")
    parser.add_argument("--arms", nargs="+", default=ARMS, choices=ARMS)
    given = parser.parse_args(arguments)
    which = [(arm, seed) for seed in given.seeds for arm in given.arms]
    make_runs(given, ((f"{arm}-{seed}", functools.partial(Run, given, arm, seed)) for arm, seed in which))


class Run(FineTuning):
    """One training on the texts of a seed."""

    def __init__(self, given: argparse.Namespace, arm: str, seed: int):
        task = Tabular(**TABLE, data_seed=seed).read()
        train, self.test = [*task.train], [*task.tests["test"]]
        super().__init__(given, seed, RATE, len(train), STEPS, [STEPS])
        self.which = {"arm": arm, "seed": seed}
        self.prompts = self.tokenizer([row.question for row in train])["input_ids"]
        self.labels = self.tokenizer([row.answer for row in train], add_special_tokens=False)["input_ids"]
        levels = self.tokenizer([str(level) for level in LEVELS], add_special_tokens=False)["input_ids"]
        self.levels = torch.tensor([ids[0] for ids in levels], device=self.device)
        tokens = {ids[0]: level for ids, level in zip(levels, LEVELS, strict=True)}
        self.vocabulary = NumberVocabulary.from_mapping(tokens, self.model.config.vocab_size)
        self.loss_fn = NTLCrossEntropyLoss(self.vocabulary, "crps", 1.0 if arm == "soft_crps" else 0.0)
        self.loss_fn = self.loss_fn.to(self.device)
        self.soft = None if arm == "ce" else soft_labels_of([row.ratings for row in train], self.vocabulary)

    def result(self) -> dict[str, Any]:
        """Return what was read, the labels and ratings, and how the run was made."""
        truths = {
            "labels": [int(row.answer) for row in self.test],
            "ratings": [row.ratings for row in self.test],
        }
        return {**self.which, **super().result(), **truths}

    def batch_loss(self, rows: Sequence[int]) -> Tensor:
        """Compute the loss of some training rows, whose answers are one token."""
        logits, labels = self.logits_of([self.prompts[i] for i in rows], [self.labels[i] for i in rows])
        if self.soft is None:
            return self.loss_fn(logits, labels)
        parts = (part[list(rows)].unsqueeze(1).to(self.device) for part in self.soft)
        return self.loss_fn(logits, self.loss_fn.prepare(labels, soft=type(self.soft)(*parts)))

    def read(self) -> dict[str, Any]:
        """Read the probabilities of the levels, among all tokens, for each test row."""
        found = []
        for start in range(0, len(self.test), ROWS_READ):
            questions = [row.question for row in self.test[start : start + ROWS_READ]]
            states, ends = self.hidden_states(self.tokenizer(questions)["input_ids"])
            shares = self.model.lm_head(states[ends - 1]).float().softmax(-1)[:, self.levels]
            found += [[round(share, 6) for share in row] for row in shares.tolist()]
        return {"probabilities": found}


if __name__ == "__main__":
    main()
