"""Train the upper layers on worked solutions, and measure the losses on their text and on their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ntl.data.files import read_records
from ntl.data.tasks.gsm8k import parse_problem
from ntl.errors import UserError
from ntloss import NTLCrossEntropyLoss, NumberVocabulary, get_criterion
from ntloss.metrics import TokenMetrics
from studies.packing import ROOT
from studies.pretrained.model import UpperLayers
from studies.pretrained.training import Settings, fit

IGNORED = -100
BATCH = 16  # of evaluation, and of filling the cache


class Solution(NamedTuple):
    """A problem with its worked solution: token ids `[seq]`, and labels, which ignore the problem."""

    ids: Tensor
    labels: Tensor


class Solutions:
    """Problems whose solutions a model learns to write; only tokens of solutions count.

    Args:
        model: The model.
        options: One of the `texts` of `study.yaml`.
        training: As in `study.yaml`; the batch size is that of the options.
        cache: Path of the frozen layers' output, without its ending.

    Attributes:
        test, validation, pool: Places of the rows of each.

    Raises:
        UserError: The file is missing, or has too few short problems.
    """

    def __init__(
        self, model: UpperLayers, options: Mapping[str, Any], training: Mapping[str, Any], cache: Path
    ):
        self.model, self.training = model, {**training, "batch": options["batch"]}
        self.vocabulary = NumberVocabulary.from_tokenizer(model.tokenizer)
        file = ROOT / options["file"]
        if not file.exists():
            raise UserError(f"{file} is missing. Run `ntl prepare gsm8k source=FOLDER` (docs/lab_data.md).")
        problems = [
            self._tokenize(options["prompt"], *pair[:2]) for pair in read_records(file, parse_problem)
        ]
        short = [problem for problem in problems if len(problem.ids) <= options["longest"]]
        ends = np.cumsum([options["test"], options["validation"], options["pool"]])
        if len(short) < ends[-1]:
            raise UserError(f"{file} has {len(short)} short problems; expected at least {ends[-1]}.")
        order = np.random.default_rng(0).permutation(len(short))[: ends[-1]]
        self.rows = [short[place] for place in order]
        self.test, self.validation, self.pool = (range(a, b) for a, b in zip([0, *ends], ends, strict=False))
        self._states = self._cached(cache)

    def _tokenize(self, prompt: str, question: str, solution: str) -> Solution:
        tokenizer = self.model.tokenizer
        problem = tokenizer(prompt.format(question=question)).input_ids
        written = [*tokenizer(solution).input_ids, tokenizer.eos_token_id]
        ids = torch.tensor([*problem, *written])
        return Solution(ids, torch.tensor([*[IGNORED] * len(problem), *written]))

    def _cached(self, cache: Path) -> list[Tensor]:
        """Read or compute the frozen layers' output of each row, `[seq, width]`."""
        path = cache.with_suffix(".pt")
        if path.exists():
            return torch.load(path)
        states: list[Tensor] = [torch.empty(0)] * len(self.rows)
        order = sorted(range(len(self.rows)), key=lambda place: len(self.rows[place].ids))
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            found = self.model.frozen.states(self._inputs(chosen))
            for place, row in zip(chosen, found, strict=True):
                states[place] = row[: len(self.rows[place].ids)].clone()
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        torch.save(states, unfinished)
        unfinished.replace(path)
        return states

    def _inputs(self, chosen: Sequence[int]) -> dict[str, Tensor]:
        """Return token ids and mask of rows, padded on the right."""
        ids = [self.rows[place].ids for place in chosen]
        mask = pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
        return {"input_ids": pad_sequence(ids, batch_first=True), "attention_mask": mask}

    def tokens(self, chosen: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the logits `[1, tokens, vocab]` of the tokens of some rows' solutions, and these tokens."""
        states = pad_sequence([self._states[place] for place in chosen], batch_first=True)
        with self.model.frozen.given(states):
            hidden = self.model.model.model(**self._inputs(chosen), use_cache=False).last_hidden_state
        labels = pad_sequence(
            [self.rows[place].labels for place in chosen], batch_first=True, padding_value=IGNORED
        )
        counted = labels[:, 1:] != IGNORED
        return self.model.head(hidden[:, :-1][counted])[None], labels[:, 1:][counted][None]

    def fit(self, chosen: Sequence[int], settings: Settings) -> list[float]:
        """Train on rows from the pretrained weights; return the losses of the steps."""
        criterion = get_criterion(settings.criterion) if settings.criterion else None
        loss = NTLCrossEntropyLoss(
            self.vocabulary, criterion, weight=settings.weight, normalize_by=settings.normalize_by
        )
        full = loss.weight

        def step(place: int, batch: Sequence[int]) -> Tensor:
            if settings.decays:
                loss.weight = full * (1 - place / settings.steps)
            return loss(*self.tokens(batch))

        lengths = {place: len(self.rows[place].ids) for place in chosen}
        return fit(self.model, [], lengths, step, settings, self.training)

    @torch.no_grad()
    def measure(self, chosen: Sequence[int]) -> dict[str, float]:
        """Measure the losses of rows in nats per token, and the expected absolute error of a digit."""
        metrics = TokenMetrics(self.vocabulary)
        for start in range(0, len(chosen), BATCH):
            metrics.update(*self.tokens(chosen[start : start + BATCH]))
        found = metrics.compute()
        numbers, texts = found["number_tokens"], found["text_tokens"]
        total = numbers * found["cross_entropy"] + texts * found["text_cross_entropy"]
        return {
            "loss": total / (numbers + texts),
            "text_loss": found["text_cross_entropy"],
            "number_loss": found["cross_entropy"],
            "digit_error": found["expected_absolute_error"],
            "digit_accuracy": found["token_accuracy"],
        }
