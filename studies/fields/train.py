"""Fine-tune SmolLM2 to write calls with three numbers, with several losses, and read its numbers.

    python -m studies.fields.train --seeds 0 1 2 3 4 5

How runs are stopped, continued and shared between processes: studies/fine_tuning.py.
"""

import argparse
import functools
import warnings
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary
from ntloss.numbers import NumberFormat
from ntloss.reading import UnlikelyNumberWarning, number_quantiles
from studies.fields.task import FIELDS, call_with, draw_rows
from studies.fine_tuning import BATCH, FineTuning, make_runs, parser_of

ARMS = ("ce", "ntl_was", "hl_gauss", "hl_gauss_fields")
RATE, EPOCHS = 3e-4, 2
TRAIN, TEST = 1200, 200
ROWS_READ = 50  # rows of a pass of reading


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that are missing, seed by seed."""
    parser = parser_of(__doc__, "outputs/fields")
    parser.add_argument("--arms", nargs="+", default=ARMS, choices=ARMS)
    given = parser.parse_args(arguments)
    which = [(arm, seed) for seed in given.seeds for arm in given.arms]
    make_runs(given, ((f"{arm}-{seed}", functools.partial(Run, given, arm, seed)) for arm, seed in which))


class Run(FineTuning):
    """One training on the calls of a seed."""

    def __init__(self, given: argparse.Namespace, arm: str, seed: int):
        steps = EPOCHS * (TRAIN // BATCH)
        super().__init__(given, seed, RATE, TRAIN, steps, [steps])
        self.which = {"arm": arm, "seed": seed}
        rows = draw_rows(TRAIN + TEST, np.random.default_rng((seed, 2)))
        train, self.test = rows[:TRAIN], rows[TRAIN:]
        self.prompts = self.tokenizer([row.question for row in train])["input_ids"]
        calls = self.tokenizer([row.call for row in train], add_special_tokens=False)["input_ids"]
        self.calls = [[*call, self.tokenizer.eos_token_id] for call in calls]
        columns = zip(FIELDS, zip(*(row.values for row in train), strict=True), strict=True)
        numbers = {field.name: list(values) for field, values in columns}
        self.formats = [
            NumberFormat.of([field.write(value) for value in numbers[field.name]]) for field in FIELDS
        ]
        self.space = self.tokenizer(" ", add_special_tokens=False)["input_ids"]
        self.loss_fn = make_loss(arm, self.vocabulary, numbers).to(self.device)

    def result(self) -> dict[str, Any]:
        """Return what was read, the true numbers, and how the run was made."""
        return {**self.which, **super().result(), "truths": [row.values for row in self.test]}

    def hidden_states(self, texts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Run the model on padded texts, which is faster than one long row if their lengths are close."""
        tokens = pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
        # No mask: what is before the padding does not see it.
        states = self.model.model(input_ids=tokens.to(self.device), use_cache=False).last_hidden_state
        ends = torch.tensor([row * tokens.shape[1] + len(text) for row, text in enumerate(texts)])
        return states.flatten(0, 1), ends.to(self.device)

    def batch_loss(self, rows: Sequence[int]) -> Tensor:
        """Compute the loss of some training rows; all calls have one number of tokens."""
        logits, labels = self.logits_of([self.prompts[i] for i in rows], [self.calls[i] for i in rows])
        return self.loss_fn(logits, labels)

    def read(self) -> dict[str, Any]:
        """Read the greedy calls, and the median of each number after the true beginning of its call."""
        calls, medians = [], []
        for start in range(0, TEST, ROWS_READ):
            rows = self.test[start : start + ROWS_READ]
            calls += self.greedy([row.question for row in rows])
            of_fields = []
            for i, form in enumerate(self.formats):
                beginnings = [row.question + call_with(row.values[:i]).rstrip() for row in rows]
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UnlikelyNumberWarning)  # an untrained model writes none
                    found = number_quantiles(
                        self.model,
                        self.inputs(beginnings),
                        self.vocabulary,
                        0.5,
                        form,
                        # A space and a minus sign are one token, a space and a digit are two.
                        prefix_ids=() if form.signed else self.space,
                    )
                of_fields.append(found.values[:, 0].tolist())
            medians += zip(*of_fields, strict=True)
        return {"calls": calls, "medians": medians}

    def greedy(self, questions: Sequence[str]) -> list[str]:
        """Write a call for each question, without a constraint."""
        inputs = self.inputs(questions)
        tokens = self.model.generate(
            **inputs,
            max_new_tokens=len(self.calls[0]),
            do_sample=False,
            pad_token_id=self.tokenizer.pad_token_id,
        )
        written = tokens[:, inputs["input_ids"].shape[1] :]
        return self.tokenizer.batch_decode(written, skip_special_tokens=True)

    def inputs(self, texts: Sequence[str]) -> Any:
        """Encode prompts, padded on the left."""
        inputs = self.tokenizer([*texts], return_tensors="pt", padding=True, padding_side="left")
        return inputs.to(self.device)


def make_loss(
    arm: str, vocabulary: NumberVocabulary, numbers: Mapping[str, Sequence[float]]
) -> NTLCrossEntropyLoss:
    """Make the loss of an arm for the numbers of each field."""
    if arm == "hl_gauss":
        return NTLCrossEntropyLoss(vocabulary, HLGauss.for_answers(chain(*numbers.values())))
    if arm == "hl_gauss_fields":
        return NTLCrossEntropyLoss(vocabulary, HLGauss.for_fields(numbers))
    return NTLCrossEntropyLoss(vocabulary, "ntl_was", 0.3 if arm == "ntl_was" else 0.0)


if __name__ == "__main__":
    main()
