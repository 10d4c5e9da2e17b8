"""A control of the study: labels that are moved by noise of HL-Gauss's width, for plain cross-entropy.

    python -m studies.ten_epochs.jittered studies/ten_epochs/sentiment.yaml

HL-Gauss spreads each target over the numbers around the label. Cross-entropy on labels that are drawn from
the same distribution, anew in each epoch, has the same targets for a first digit in expectation; but it also
trains the digits after a first digit that differs from the label's. This command is `ntl compare` with a
dataset of such labels, the loss `jittered`, and rows in the order in which they are drawn. More overrides may
follow the study.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ntl.data import DATASETS, TaskData, tabular
from ntl.declare import setting
from ntloss import HLGauss


@dataclass
class Jittered(tabular.Tabular):
    """A table whose training rows stand there once for each epoch, each time with another label."""

    dataset_name: str = "jittered"
    epochs: int = setting(10, "times that each training row is repeated")

    def read(self) -> TaskData:
        """Read a table of whole numbers, and draw the training labels.

        Each label is drawn from a Gaussian around the true one and rounded, until it has the sign of the true
        one and no more digits than the longest, as the targets of HL-Gauss have. The standard deviation falls
        over all rows as that of HL-Gauss does over all steps.
        """
        data = super().read()
        answers = np.array([int(row.answer) for row in data.train])
        first, last = HLGauss.for_answers(answers.tolist()).schedule or (0.0, 0.0)
        most = 10 ** max(len(str(abs(answer))) for answer in answers.tolist()) - 1
        rng = np.random.default_rng(self.data_seed)
        order = np.concatenate([rng.permutation(len(answers)) for _ in range(self.epochs)])
        train = []
        for index, sigma in zip(order, np.linspace(first, last, len(order)), strict=True):
            label = draw(rng, int(answers[index]), sigma, most)
            train.append(data.train[index]._replace(answer=str(label)))
        return replace(data, train=train)


def draw(rng: np.random.Generator, answer: int, sigma: float, most: int) -> int:
    """Draw a label around an answer, of the same sign and of at most a given magnitude."""
    while True:
        label = round(rng.normal(answer, sigma))
        if abs(label) <= most and (label < 0) == (answer < 0):
            return label


DATASETS["jittered"] = Jittered


def main(arguments: Sequence[str]) -> int:
    """Run `ntl compare` on jittered labels; return its exit code."""
    from ntl.__main__ import main as ntl
    from ntl.settings import register

    register()
    study, *overrides = arguments
    chosen = [
        "dataset_args=jittered",
        "loss=jittered",
        "+training_args.train_sampling_strategy=sequential",
        "hydra/launcher=basic",  # the processes of the other launcher do not know the dataset
    ]
    return ntl(["compare", study, *chosen, *overrides])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
