"""Fine-tune all layers of SmolLM2 with several losses, and read its numbers after every second epoch.

    python -m studies.all_layers.train --tables sentiment places --arms ce hl_gauss jittered --seeds 27 28 29

How runs are stopped, continued and shared between processes: studies/fine_tuning.py.
"""

import argparse
import copy
import functools
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ntl.data.tabular import Tabular
from ntl.scores import SPACED_LEVELS
from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary
from ntloss.numbers import NumberFormat
from ntloss.reading import UnlikelyNumberWarning, number_quantiles
from studies.fine_tuning import BATCH, FineTuning, make_runs, parser_of
from studies.ten_epochs.jittered import draw

FOLDER = Path(__file__).parent
# What dataset_args=tabular gets. The rows of each seed are those of studies/ten_epochs. FreeSolv has 642
# molecules in all, of which 342 remain for training. `make data` makes all tables but EmoBank, for which
# studies/ten_epochs/emobank.yaml says where to get it.
COMMON = {"significant_digits": None, "train_size": 600, "validation_size": 100, "test_size": 200}
TABLES: dict[str, dict[str, Any]] = {
    # what about 20 people think of a short text, 0 to 80
    "sentiment": {
        "file": "data/sentiment.csv",
        "target": "sentiment",
        "prompt": "{text}\nSentiment: ",
        "ratings": "ratings",
        "longest": 77,
    },
    # the latitude of an airport in whole degrees
    "places": {
        "file": "data/places.csv",
        "target": "degrees",
        "prompt": "{name}, {city}, {country}\nLatitude: ",
        "longest": 87,
    },
    # the valence of a sentence, 1 to 5, with two decimals
    "emobank": {
        "file": "data/emobank.csv",
        "target": "valence",
        "prompt": "{text}\nValence: ",
        "longest": 87,
    },
    # the energy of hydration of a molecule in kcal/mol, with two decimals
    "freesolv": {
        "file": "data/freesolv.csv",
        "target": "energy",
        "prompt": "{name}, {smiles}\nHydration free energy: ",
        "train_size": 342,
    },
}
TRIED = (1e-4, 3e-4, 1e-3)  # learning rates
# The pilot chose these on seed 12 (README.md). For other arms and tables,
# `python -m studies.all_layers.results --rates` prints what the tuning seeds choose.
CHOSEN = {
    "sentiment": {"ce": 1e-4, "hl_gauss": 1e-4, "jittered": 1e-4, "ntl_was": 1e-4, "head": 1e-4},
    "places": {"ce": 3e-4, "hl_gauss": 1e-3, "jittered": 1e-3, "ntl_was": 1e-3, "head": 1e-3},
}
ARMS = ("ce", "hl_gauss", "jittered", "ntl_was", "head", "label_smoothing")
EPOCHS, COMPARED = 10, 5  # weights are compared after every second of ten epochs
LEVELS = (*SPACED_LEVELS, 0.05, 0.5, 0.95)
ROWS_READ = 50  # questions of a pass of reading


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that are missing, seed by seed."""
    parser = parser_of(__doc__, "outputs/all_layers")
    parser.add_argument("--tables", nargs="+", default=["sentiment", "places"], choices=TABLES)
    parser.add_argument("--arms", nargs="+", default=["ce", "hl_gauss", "jittered"], choices=ARMS)
    parser.add_argument(
        "--rates", nargs="+", type=float, help=f"such as {TRIED} on tuning seeds; default: the chosen ones"
    )
    parser.add_argument("--train-size", type=int, help="training rows; default: 600, or all of a small table")
    given = parser.parse_args(arguments)
    make_runs(given, planned(given))


def planned(given: argparse.Namespace) -> Iterator[tuple[str, Callable[[], FineTuning]]]:
    """Yield the name of each run and what makes it: seed by seed, the arms of a table together."""
    rows = "" if given.train_size is None else f"-{given.train_size}rows"
    for seed, table, arm in itertools.product(given.seeds, given.tables, given.arms):
        for rate in map(float, given.rates or [CHOSEN[table][arm]]):
            name = f"{table}-{arm}-{seed}-{rate:.0e}{rows}"
            yield name, functools.partial(Run, given, table, arm, seed, rate)


class Run(FineTuning):
    """One training on a table.

    Args:
        given: The command line.
        table, arm, seed, rate: Which run it is.
        steps: Number of steps, after which alone the model is read. None: ten epochs, and the model is read
            after every second of them.
    """

    def __init__(
        self,
        given: argparse.Namespace,
        table: str,
        arm: str,
        seed: int,
        rate: float,
        steps: int | None = None,
    ):
        task = rows_of(table, seed, given.train_size).read()
        train, *held_out = ([*part] for part in (task.train, task.validation, task.tests["test"]))
        all_steps = EPOCHS * (len(train) // BATCH)
        every = all_steps // COMPARED
        compared = range(every, all_steps + 1, every) if steps is None else [steps]
        super().__init__(given, seed, rate, len(train), steps or all_steps, compared)
        self.which = {"table": table, "arm": arm, "seed": seed}
        self.held_out = dict(zip(("validation", "test"), held_out, strict=True))
        self.prompts = self.tokenizer([row.question for row in train])["input_ids"]
        self.answers = [row.answer for row in train]
        self.format = NumberFormat.of(self.answers)
        self.loss_fn = make_loss(arm, self.vocabulary, self.answers)
        if self.loss_fn is not None:
            self.loss_fn = self.loss_fn.to(self.device)
        else:
            self.modules = ("model", "head")
            self.head = nn.Linear(self.model.config.hidden_size, 1).to(self.device)
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)
            numbers = np.array(self.answers, float)
            self.center, self.spread = float(numbers.mean()), float(numbers.std())
            self.targets = torch.from_numpy((numbers - self.center) / self.spread).float().to(self.device)
        if arm == "jittered":
            self.schedule = HLGauss.for_answers(map(float, self.answers)).schedule or (0.0, 0.0)

    def result(self) -> dict[str, Any]:
        """Return what was read at each of the steps that are compared, and how it was made."""
        truths = {part: [float(row.answer) for row in rows] for part, rows in self.held_out.items()}
        return {**self.which, **super().result(), "levels": LEVELS, "truths": truths}

    def batch_loss(self, rows: Sequence[int]) -> Tensor:
        """Compute the loss of some training rows."""
        prompts = [self.prompts[row] for row in rows]
        if self.loss_fn is None:
            states, ends = self.hidden_states(prompts)
            return (self.predict(states[ends - 1]) - self.targets[list(rows)]).abs().mean()
        logits, labels = self.logits_of(prompts, self.written(rows))
        return self.loss_fn(logits, labels)

    def predict(self, states: Tensor) -> Tensor:
        """Predict standardized numbers, `[rows]`, from the states of the prompts' last tokens."""
        with torch.autocast(self.device.type, enabled=False):  # bfloat16 would keep three digits
            return self.head(states.float()).squeeze(-1)

    def written(self, rows: Sequence[int]) -> list[list[int]]:
        """Write the answers of training rows as tokens, with the end token; all have one length."""
        answers = [self.answers[row] for row in rows]
        if self.which["arm"] == "jittered":
            answers = [self.jittered(float(answer)) for answer in answers]
        texts = [self.format.write(answer) for answer in answers]
        tokens = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return [[*row, self.tokenizer.eos_token_id] for row in tokens]

    def jittered(self, answer: float) -> str:
        """Draw a label around an answer, as wide as the targets of HL-Gauss are at this step."""
        first, last = self.schedule
        unit = 10**self.format.decimals
        most = 10 ** (self.format.digits + self.format.decimals) - 1
        drawn = draw(self.noise, round(answer * unit), (first + (last - first) * self.progress) * unit, most)
        return f"{drawn / unit:.{self.format.decimals}f}"

    def read(self) -> dict[str, Any]:
        """Read the answers of all validation and test rows."""
        found: dict[str, Any] = {}
        for part, rows in self.held_out.items():
            pieces = []
            for start in range(0, len(rows), ROWS_READ):
                questions = [row.question for row in rows[start : start + ROWS_READ]]
                inputs = self.tokenizer(questions, return_tensors="pt", padding=True, padding_side="left")
                pieces.append(self.read_batch(inputs.to(self.device)))
            found[part] = {name: [*itertools.chain(*(piece[name] for piece in pieces))] for name in pieces[0]}
        return found

    def read_batch(self, inputs: Any) -> dict[str, list[Any]]:
        """Read a batch of prompts: the head's number, or the greedy answer and quantiles of the numbers."""
        if self.loss_fn is None:
            states = self.model.model(**inputs, use_cache=False).last_hidden_state[:, -1]
            predicted = self.predict(states).double() * self.spread + self.center
            return {"answers": [round(x, 4) for x in predicted.tolist()]}
        # Both readings go on from one run of the prompts.
        first = {name: tensor[:, :-1] for name, tensor in inputs.items()}
        past = self.model(**first, use_cache=True, logits_to_keep=1).past_key_values
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnlikelyNumberWarning)  # an untrained model writes no number
            quantiles = number_quantiles(
                self.model, inputs, self.vocabulary, LEVELS, self.format, past_key_values=past
            )
        allowed, _ = self.format.masks(self.vocabulary)
        allowed, length = allowed.to(self.device), inputs["input_ids"].shape[1]

        def keep_format(tokens: Tensor, scores: Tensor) -> Tensor:
            return scores.masked_fill(~allowed[tokens.shape[1] - length], -torch.inf)

        tokens = self.model.generate(
            **inputs,
            past_key_values=copy.deepcopy(past),
            max_new_tokens=len(allowed),
            do_sample=False,
            logits_processor=[keep_format],
        )
        texts = self.tokenizer.batch_decode(tokens[:, length:])
        return {
            "answers": [float(self.format.read(text.strip())) for text in texts],
            "quantiles": quantiles.values.tolist(),
            "starts": [round(x, 4) for x in quantiles.starts.tolist()],
        }


def rows_of(table: str, seed: int, train_size: int | None = None) -> Tabular:
    """Return the settings of a table's rows for a seed."""
    settings = {**COMMON, **TABLES[table], "data_seed": seed}
    return Tabular(**settings if train_size is None else {**settings, "train_size": train_size})


def make_loss(arm: str, vocabulary: NumberVocabulary, answers: Sequence[str]) -> NTLCrossEntropyLoss | None:
    """Make the loss of an arm; None for the regression head."""
    if arm == "head":
        return None
    if arm == "hl_gauss":
        criterion = HLGauss.for_answers(map(float, answers), leading_zeros=True)
        return NTLCrossEntropyLoss(vocabulary, criterion)
    smoothing = 0.1 if arm == "label_smoothing" else 0.0
    weight = 0.3 if arm == "ntl_was" else 0.0
    return NTLCrossEntropyLoss(vocabulary, "ntl_was", weight, label_smoothing=smoothing)


if __name__ == "__main__":
    main()
