"""Teach a tiny language model to write actions, let it act in a closed loop, and record what that costs.

    python -m studies.actions.train --seeds 100 101 --steps 500                         # tuning: every rate
    python -m studies.actions.train --seeds 200 201 --steps 500                         # also every rate
    python -m studies.actions.train --seeds 0 1 2 3 4 5 6 7 8 9 10 11 --steps 500       # the chosen rates

Each run writes one file at its end, and runs that have one are skipped.
"""

import argparse
import itertools
import json
import subprocess
import time
import warnings
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, set_seed

import ntloss
from ntl.data.files import write_atomically
from ntl.metrics.quantiles import SPACED_LEVELS
from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary
from ntloss.numbers import NumberFormat
from ntloss.reading import UnlikelyNumberWarning, number_quantiles
from ntloss.writing import UpperLayers
from studies.actions.environments import ENVIRONMENTS, LARGEST, Array, Environment, meant
from studies.actions.results import (
    ALL_ARMS,
    ARMS,
    CURVE,
    KEY,
    PAIRS,
    PRETRAINED,
    RANGE,
    RATES,
    RESULTS,
    SMOLLM2,
    TUNED,
    TUNED_AT,
    TUNING,
    chosen_rates,
)
from studies.packs import merge

DIGITS, BATCH = 3, 32
FOLLOW_EVERY = 25  # steps


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that are missing: all rates on tuning seeds, the chosen ones on others."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", nargs="+", type=int, required=True)
    parser.add_argument("--environments", nargs="+", default=[*ENVIRONMENTS], choices=ENVIRONMENTS)
    parser.add_argument("--arms", nargs="+", default=ARMS, choices=ALL_ARMS)
    parser.add_argument("--steps", nargs="+", type=int, default=CURVE, choices=CURVE)
    parser.add_argument("--pairs", type=int, help="recorded actions (default: those of the environment)")
    parser.add_argument("--outputs", type=Path, default=Path("outputs/actions"))
    given = parser.parse_args(arguments)
    given.outputs.mkdir(parents=True, exist_ok=True)
    for steps, environment, seed, arm in itertools.product(
        given.steps, given.environments, given.seeds, given.arms
    ):
        pairs = given.pairs or PAIRS[environment]
        for rate in rates_of(given.outputs, environment, arm, steps, seed):
            path = given.outputs / f"{environment}-{arm}-{pairs}-{steps}-{rate:g}-{seed}.json"
            if not path.is_file():
                run = make_run(environment, arm, pairs, steps, rate, seed)
                write_atomically(path, json.dumps(run))
                print(f"{path.stem}: {run['costs']}, {run['seconds']:.0f} s of processor time", flush=True)


def rates_of(outputs: Path, environment: str, arm: str, steps: int, seed: int) -> Sequence[float]:
    """Return the learning rates of a seed's runs."""
    if arm in PRETRAINED:
        return RATES[:1]
    if seed in (*TUNING, *RANGE):
        return TUNED[TUNED_AT[steps]]
    chosen = chosen_rates(merge(RESULTS / "runs.jsonl.xz", outputs, KEY))
    if (environment, arm, TUNED_AT[steps]) not in chosen:
        raise SystemExit(f"{environment}, {arm}: make the tuning runs of {TUNED_AT[steps]} steps first.")
    return [chosen[environment, arm, TUNED_AT[steps]]]


def make_run(environment: str, arm: str, pairs: int, steps: int, rate: float, seed: int) -> dict[str, Any]:
    """Train a model, let it act, and return what its actions cost and how the run was made."""
    begin = time.process_time()
    policy, task = train_policy(environment, arm, pairs, steps, rate, seed), ENVIRONMENTS[environment]
    starts = 10_000 + seed  # the same for all arms
    return {
        **{
            "environment": environment,
            "arm": arm,
            "pairs": pairs,
            "steps": steps,
            "rate": rate,
            "seed": seed,
        },
        "costs": {how: task.cost(lambda s, how=how: policy.act(s, how), starts) for how in policy.readings},
        "expert": task.cost(task.expert, starts),
        "idle": task.cost(lambda states: np.zeros((len(states), task.parts)), starts),
        "seconds": time.process_time() - begin,
        "made": provenance(),
    }


def train_policy(environment: str, arm: str, pairs: int, steps: int, rate: float, seed: int) -> "Digits":
    """Train a policy on recordings of the expert."""
    task = ENVIRONMENTS[environment]
    questions, actions = task.recordings(np.random.default_rng(seed), pairs)
    policy = POLICIES.get(arm, Digits)(task, arm, actions, seed)
    policy.train(questions, actions, steps, rate, seed)
    return policy


def provenance() -> dict[str, Any]:
    """Say what made a run: commit, versions, machine."""
    commit = subprocess.run(
        ("git", "rev-parse", "HEAD"), capture_output=True, text=True, cwd=Path(__file__).parent
    )
    return {
        "commit": commit.stdout.strip() or None,
        "versions": {m.__name__: m.__version__ for m in (ntloss, torch, transformers)},
        "device": "cpu",
        "threads": torch.get_num_threads(),
        "ended": datetime.now().isoformat(timespec="seconds"),
    }


class Digits:
    """A policy that writes each number of an action with three digits.

    Args:
        task: What it acts in.
        arm: How it is trained.
        actions: Numbers of the training actions, `[rows, parts]`, which choose the widths of targets.
        seed: Random seed of the weights.
    """

    model_name = "examples/characters"
    vocab_size: int | None = None  # that of the model's configuration
    readings: tuple[str, ...] = ("greedy", "median", "mean")

    def __init__(self, task: Environment, arm: str, actions: Array, seed: int):
        self.task, self.arm, self.spread = task, arm, float(actions.std())
        self.tokenizer = AutoTokenizer.from_pretrained(self.model_name)
        set_seed(seed)
        self.model = self.make_model()
        self.vocabulary = self.make_vocabulary(self.model.config.vocab_size)
        self.loss_fn = self.make_loss(actions)

    def make_model(self) -> Any:
        """Make the model."""
        config = AutoConfig.from_pretrained(self.model_name)
        config.vocab_size = self.vocab_size or config.vocab_size
        return AutoModelForCausalLM.from_config(config)

    def make_vocabulary(self, vocab_size: int) -> NumberVocabulary:
        """Return the digits of the tokenizer."""
        return NumberVocabulary.from_tokenizer(self.tokenizer, vocab_size=vocab_size)

    def make_loss(self, actions: Array) -> NTLCrossEntropyLoss:
        """Make the loss of the arm."""
        criterion, options = {
            "hl_gauss_rule": (HLGauss.for_answers(actions.flatten().tolist(), leading_zeros=True), {}),
            "hl_gauss": (HLGauss(sigma=self.width, leading_zeros=True), {}),
            "hl_gauss_follows": (HLGauss(sigma=self.width[0], leading_zeros=True), {}),
            "ntl_was": ("ntl_was", {"weight": 0.3}),
            "ntl_mse": ("ntl_mse", {"weight": 0.3}),
            "crps": ("crps", {"weight": 1.0}),
            "label_smoothing": (None, {"label_smoothing": 0.1}),
        }.get(self.arm, (None, {}))
        return NTLCrossEntropyLoss(self.vocabulary, criterion, shift=True, **options)

    @property
    def width(self) -> tuple[float, float]:
        """First and last standard deviation of targets or noise: a tenth of the spread, half a unit."""
        return 0.1 * self.spread, 0.5

    def train(self, questions: list[str], actions: Array, steps: int, rate: float, seed: int) -> None:
        """Train with AdamW; the learning rate falls linearly to zero."""
        rng = np.random.default_rng((seed, 1))  # the same batches for all arms
        noise = np.random.default_rng((seed, 2))
        asked = self.encode(questions)
        optimizer = torch.optim.AdamW(self.parameters(), lr=rate, fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
        first, last = self.width
        for step in range(steps):
            self.loss_fn.anneal(step / steps)
            if self.arm == "hl_gauss_follows" and step and step % FOLLOW_EVERY == 0:
                self.follow_error(seed)
            rows = rng.integers(len(questions), size=BATCH)
            numbers = actions[rows]
            if self.arm == "jittered":
                sigma = first + (last - first) * step / steps
                numbers = np.clip(np.round(noise.normal(numbers, sigma)), 0, LARGEST).astype(int)
            self.batch_loss(asked[rows], numbers).backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        self.model.eval()

    def follow_error(self, seed: int) -> None:
        """Set the width of the targets to a running mean of the median's error on held-out pairs."""
        questions, actions = self.task.recordings(np.random.default_rng((seed, 3)), 64)
        self.model.eval()
        with torch.no_grad():
            error = np.abs(self.read(self.encode(questions), "median") - actions[:, 0]).mean()
        self.model.train()
        criterion = self.loss_fn.criterion
        criterion.sigma = max(self.width[1], (float(criterion.sigma) + float(error)) / 2)

    def parameters(self) -> list[nn.Parameter]:
        """Return what is trained."""
        return [*self.model.parameters()]

    def batch_loss(self, asked: Tensor, numbers: Array) -> Tensor:
        """Compute the loss of a batch of questions `[rows, tokens]` and numbers `[rows, parts]`."""
        answers = self.encode_answers(numbers)
        kept = answers.shape[1] + 1  # the positions whose next token is one of the answer, and the last one
        labels = torch.cat([torch.full_like(asked, -100), answers], 1)[:, -kept:]
        return self.loss_fn(self.logits(torch.cat([asked, answers], 1), kept), labels)

    def logits(self, tokens: Tensor, kept: int) -> Tensor:
        """Return the logits of the last positions of texts in training, `[rows, kept, vocab]`."""
        return self.model(tokens, logits_to_keep=kept).logits

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Encode texts of one length."""
        return torch.tensor(self.tokenizer(list(texts), add_special_tokens=False)["input_ids"])

    def encode_answers(self, numbers: Array) -> Tensor:
        """Encode the numbers of actions, `[rows, tokens]`."""
        return self.encode([" ".join(f"{number:03d}" for number in row) for row in numbers])

    @torch.no_grad()
    def act(self, states: Array, how: str) -> Array:
        """Return the actions in some states, `[states, parts]`, by one reading of the model's numbers."""
        texts, parts = self.task.question(states), []
        for part in range(self.task.parts):
            numbers = self.read(self.encode(texts), how)
            parts.append(numbers)
            if part + 1 < self.task.parts:
                texts = [f"{text}{number:03.0f} " for text, number in zip(texts, numbers, strict=True)]
        return meant(np.stack(parts, 1), self.task.acted)

    def read(self, asked: Tensor, how: str) -> Array:
        """Read the next number after texts `[texts, tokens]`, within three digits."""
        if how == "greedy":
            digits = self.encode([str(d) for d in range(10)])[:, 0]
            numbers = np.zeros(len(asked))
            for _ in range(DIGITS):
                best = self.model(asked).logits[:, -1, digits].argmax(-1)
                asked = torch.cat([asked, digits[best][:, None]], 1)
                numbers = 10 * numbers + best.numpy()
            return numbers
        inputs = {"input_ids": asked, "attention_mask": torch.ones_like(asked)}
        levels = (0.5,) if how == "median" else SPACED_LEVELS
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnlikelyNumberWarning)  # a model of few steps
            values = number_quantiles(
                self.model, inputs, self.vocabulary, levels, format=NumberFormat(DIGITS)
            ).values.numpy()
        return values.mean(1)


class Tokens(Digits):
    """A policy with one token for each number of an action."""

    FIRST = 98  # the tokens of the tokenizer stand before
    vocab_size = FIRST + LARGEST + 1

    def make_vocabulary(self, vocab_size: int) -> NumberVocabulary:
        """Return the tokens of the numbers."""
        values = {self.FIRST + number: number for number in range(LARGEST + 1)}
        return NumberVocabulary.from_mapping(values, vocab_size=vocab_size)

    def make_loss(self, actions: Array) -> NTLCrossEntropyLoss:
        """Make a loss with Gaussian targets."""
        return NTLCrossEntropyLoss(self.vocabulary, HLGauss(sigma=self.width), shift=True)

    def encode_answers(self, numbers: Array) -> Tensor:
        """Return the token of each number."""
        return torch.from_numpy(numbers) + self.FIRST

    @torch.no_grad()
    def act(self, states: Array, how: str) -> Array:
        """Return the actions in some states, `[states, parts]`, by one reading of the tokens."""
        asked, parts = self.encode(self.task.question(states)), []
        for _ in range(self.task.parts):
            shares = self.model(asked).logits[:, -1, self.FIRST :].double().softmax(-1)
            numbers = {
                "greedy": lambda p: p.argmax(-1),
                "median": lambda p: (p.cumsum(-1) < 0.5).sum(-1),
                "mean": lambda p: (p * torch.arange(LARGEST + 1)).sum(-1),
            }[how](shares)
            parts.append(numbers.numpy())
            asked = torch.cat([asked, numbers.round().long()[:, None] + self.FIRST], 1)
        return meant(np.stack(parts, 1), self.task.acted)


class Head(Digits):
    """A policy with a linear head of numbers on the last token of the question, and the absolute error."""

    def __init__(self, task: Environment, arm: str, actions: Array, seed: int):
        super().__init__(task, arm, actions, seed)
        self.head = nn.Linear(self.model.config.hidden_size, task.parts)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def parameters(self) -> list[nn.Parameter]:
        """Return the model's weights and the head's."""
        return [*self.model.parameters(), *self.head.parameters()]

    def batch_loss(self, asked: Tensor, numbers: Array) -> Tensor:
        """Compute the mean absolute error of values between -1 and 1."""
        truths = torch.from_numpy(meant(numbers, 1.0)).float()
        return (self.values(asked) - truths).abs().mean()

    def values(self, asked: Tensor) -> Tensor:
        """Return the head's values, `[rows, parts]`."""
        return self.head(self.model.model(asked).last_hidden_state[:, -1])

    @torch.no_grad()
    def act(self, states: Array, how: str) -> Array:
        """Return the head's actions; all readings are the same."""
        return self.values(self.encode(self.task.question(states))).numpy().clip(-1, 1) * self.task.acted


class Pretrained(Digits):
    """SmolLM2-135M-Instruct, whose upper four layers are trained; what the others return is kept."""

    model_name = ".models/smollm2"
    readings = ("greedy", "median")

    def make_model(self) -> Any:
        """Load the model, and freeze its lower layers."""
        self.arm = self.arm.removeprefix(SMOLLM2)
        model = AutoModelForCausalLM.from_pretrained(self.model_name, dtype=torch.float32)
        self.upper, self.kept = UpperLayers(model, 4), dict[tuple[int, ...], Tensor]()
        return model

    def parameters(self) -> list[nn.Parameter]:
        """Return the weights of the upper layers."""
        return [weight for weight in self.model.parameters() if weight.requires_grad]

    def logits(self, tokens: Tensor, kept: int) -> Tensor:
        """Return the logits of the last positions of texts in training, `[rows, kept, vocab]`."""
        texts = [tuple(row) for row in tokens.tolist()]
        if new := [text for text in dict.fromkeys(texts) if text not in self.kept]:
            self.kept.update(zip(new, self.upper.states({"input_ids": torch.tensor(new)}), strict=True))
        states = torch.stack([self.kept[text] for text in texts])
        return self.model(tokens, states=states, logits_to_keep=kept, use_cache=False).logits


POLICIES = {"tokens": Tokens, "head": Head, **dict.fromkeys(PRETRAINED, Pretrained)}

if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
