"""Full fine-tuning of a small causal language model on a table, in runs that can be stopped and continued.

Each run writes one file, at its end, and runs that have one are skipped. A run saves its state every five
minutes, in 1.6 GB for SmolLM2-135M, and goes on from there: a command may be stopped at any moment and
started again. It may also run several times at once, because each process locks the run that it works on:
once for each core of a CPU, with OMP_NUM_THREADS=1, or about five times on a GPU.
"""

import argparse
import copy
import fcntl
import itertools
import json
import platform
import subprocess
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

import ntloss
from ntl.data.files import write_atomically
from ntl.data.tabular import Tabular
from ntl.scores import SPACED_LEVELS
from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary
from ntloss.numbers import NumberFormat
from ntloss.reading import UnlikelyNumberWarning, number_quantiles

# What dataset_args=tabular gets. The rows of each seed are those of studies/ten_epochs.
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
}
ARMS = ("ce", "hl_gauss", "jittered")
LEVELS = (*SPACED_LEVELS, 0.05, 0.5, 0.95)
BATCH = 16
WARMUP, CLIP = 20, 1.0
SAVE_EVERY = 300.0  # seconds
ROWS_READ = 50  # questions of a pass of reading


def parser_of(description: str | None, outputs: str) -> argparse.ArgumentParser:
    """Make a parser with the options that all studies share."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--seeds", nargs="+", type=int, required=True)
    parser.add_argument("--outputs", type=Path, default=Path(outputs))
    parser.add_argument("--model", default=".models/smollm2", help="`make model`")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--products",
        choices=("bfloat16", "float32"),
        default="bfloat16",
        help="dtype of matrix products; processors without instructions for bfloat16 need float32",
    )
    parser.add_argument(
        "--until",
        type=today_at,
        default=datetime.max,
        help="HH:MM, today: stop then; the run in progress goes on when the command is repeated",
    )
    return parser


def today_at(clock: str) -> datetime:
    """Return today's date at a time such as 22:35."""
    return datetime.combine(datetime.now(), datetime.strptime(clock, "%H:%M").time())


def make_runs(given: argparse.Namespace, planned: Iterable[tuple[str, Callable[[], "FineTuning"]]]) -> None:
    """Make the runs that have no file yet and on which no other process works.

    Args:
        given: The command line.
        planned: The name of each run's file, and what makes the run.
    """
    given.outputs.mkdir(parents=True, exist_ok=True)
    for name, make in planned:
        path, state = (given.outputs / f"{name}{ending}" for ending in (".json", ".state"))
        with open(given.outputs / f"{name}.lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if path.is_file():
                continue
            run = make()
            if not run.train(state):
                print(f"{name}: stopped after {run.step} of {run.steps} steps", flush=True)
                return
            write_atomically(path, json.dumps(run.result()))
            state.unlink(missing_ok=True)
            print(f"{name}: {run.seconds:.0f} s of processor time", flush=True)


class FineTuning:
    """One training of all layers on a table, with AdamW and a rate that falls to zero at the last step.

    Args:
        given: The command line.
        table, arm, seed, rate: Which run it is.
        steps: Number of steps of 16 rows, after which the model is read.
    """

    def __init__(self, given: argparse.Namespace, table: str, arm: str, seed: int, rate: float, steps: int):
        self.given, self.device = given, torch.device(given.device)
        self.which = {"table": table, "arm": arm, "seed": seed}
        self.rate, self.steps = rate, steps
        task = Tabular(**{**COMMON, **TABLES[table], "data_seed": seed}).read()
        train = [*task.train]
        self.held_out = {"validation": [*task.validation], "test": [*task.tests["test"]]}
        torch.manual_seed(seed)
        self.tokenizer = AutoTokenizer.from_pretrained(given.model)
        self.tokenizer.pad_token = self.tokenizer.pad_token or self.tokenizer.eos_token
        self.model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32).to(self.device)
        self.vocabulary = NumberVocabulary.from_tokenizer(
            self.tokenizer, vocab_size=self.model.config.vocab_size
        )
        self.prompts = self.tokenizer([row.question for row in train])["input_ids"]
        self.answers = [row.answer for row in train]
        self.format = NumberFormat.of(self.answers)
        widths = HLGauss.for_answers(map(float, self.answers), leading_zeros=True)
        self.schedule = widths.schedule or (0.0, 0.0)
        criterion = widths if arm == "hl_gauss" else None
        self.loss_fn = NTLCrossEntropyLoss(self.vocabulary, criterion).to(self.device)
        # The same rows in the same order for each arm, and noise of its own.
        self.order, self.noise = np.random.default_rng(seed), np.random.default_rng((seed, 1))
        self.step, self.seconds = 0, 0.0
        self.waiting, self.losses = list[int](), list[float]()

    def train(self, state: Path) -> bool:
        """Train, from a saved state if there is one, and save it every five minutes.

        Returns:
            Whether training has ended; if not, the time is over.
        """
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=self.rate, betas=(0.9, 0.98), weight_decay=0.01, fused=True
        )
        if state.is_file():
            self._load(state)
        self.model.train()
        begin, saved = time.process_time() - self.seconds, time.monotonic()
        while self.step < self.steps:
            if datetime.now() > self.given.until:
                self._save(state)
                return False
            self._train_step()
            self.seconds = time.process_time() - begin
            if time.monotonic() - saved > SAVE_EVERY:
                self._save(state)
                saved = time.monotonic()
        return True

    def result(self) -> dict[str, Any]:
        """Return what is read after the last step, the mean loss of each epoch, and how the run was made."""
        self.model.eval()
        with torch.no_grad(), self.autocast():
            read = {part: self.read(rows) for part, rows in self.held_out.items()}
        every = max(1, len(self.answers) // BATCH)
        epochs = [self.losses[i : i + every] for i in range(0, self.steps, every)]
        return {
            **self.which,
            **{"rate": self.rate, "train_rows": len(self.answers), "steps": self.steps},
            **{"seconds": self.seconds, "read": [{"step": self.step, **read}]},
            "losses": [round(float(np.mean(epoch)), 4) for epoch in epochs],
            "made": {**provenance(self.device), "products": self.given.products},
            "levels": LEVELS,
            "truths": {part: [float(row.answer) for row in rows] for part, rows in self.held_out.items()},
        }

    def batch_loss(self, rows: Sequence[int]) -> Tensor:
        """Compute the loss of some training rows, whose answers have one number of tokens."""
        prompts, answers = [self.prompts[row] for row in rows], self.written(rows)
        labels = torch.tensor(answers, device=self.device)
        # One row of all texts: where positions start again, attention starts anew, and nothing is padded.
        texts = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
        lengths = torch.tensor([len(text) for text in texts])
        tokens = torch.tensor([[*itertools.chain(*texts)]], device=self.device)
        positions = torch.cat([torch.arange(length) for length in lengths])[None].to(self.device)
        outputs = self.model.model(input_ids=tokens, position_ids=positions, use_cache=False)
        before = torch.arange(labels.shape[1]) - labels.shape[1] - 1
        ends = (lengths.cumsum(0)[:, None] + before).to(self.device)
        return self.loss_fn(self.model.lm_head(outputs.last_hidden_state[0, ends]), labels)

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

    def read(self, rows: Sequence[Any]) -> dict[str, list[Any]]:
        """Read the greedy answers, and quantiles of the numbers, of rows."""
        found: dict[str, list[Any]] = {"answers": [], "quantiles": [], "starts": []}
        for start in range(0, len(rows), ROWS_READ):
            questions = [row.question for row in rows[start : start + ROWS_READ]]
            encoded = self.tokenizer(questions, return_tensors="pt", padding=True, padding_side="left")
            inputs = encoded.to(self.device)
            # Both readings go on from one run of the prompts.
            first = {name: tensor[:, :-1] for name, tensor in inputs.items()}
            past = self.model(**first, use_cache=True, logits_to_keep=1).past_key_values
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UnlikelyNumberWarning)  # an untrained model writes no number
                quantiles = number_quantiles(
                    self.model, inputs, self.vocabulary, LEVELS, self.format, past_key_values=past
                )
            found["answers"] += self.greedy(inputs, past)
            found["quantiles"] += quantiles.values.tolist()
            found["starts"] += [round(x, 4) for x in quantiles.starts.tolist()]
        return found

    def greedy(self, inputs: Any, past: Any) -> list[float]:
        """Write the greedy answers to prompts that were run already, within the format."""
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
        return [float(self.format.read(text.strip())) for text in texts]

    def autocast(self) -> torch.autocast:
        """Make the context in which matrix products are computed."""
        bfloat16 = self.given.products == "bfloat16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=bfloat16)

    @property
    def progress(self) -> float:
        """The share of training that is done."""
        return self.step / self.steps

    def _train_step(self) -> None:
        self.loss_fn.anneal(self.progress)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * min(1, (self.step + 1) / WARMUP) * (1 - self.progress)
        if len(self.waiting) < BATCH:
            self.waiting += self.order.permutation(len(self.answers)).tolist()
        rows, self.waiting = self.waiting[:BATCH], self.waiting[BATCH:]
        with self.autocast():
            loss = self.batch_loss(rows)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(float(loss.detach()))
        self.step += 1

    def _save(self, path: Path) -> None:
        state = {name: getattr(self, name) for name in ("step", "seconds", "waiting", "losses")}
        state |= {name: getattr(self, name).state_dict() for name in ("model", "optimizer")}
        state |= {name: getattr(self, name).bit_generator.state for name in ("order", "noise")}
        part = path.with_suffix(".writing")
        torch.save(state, part)
        part.replace(path)

    def _load(self, path: Path) -> None:
        for name, value in torch.load(path, map_location=self.device).items():
            if name in ("model", "optimizer"):
                getattr(self, name).load_state_dict(value)
            elif name in ("order", "noise"):
                getattr(self, name).bit_generator.state = value
            else:
                setattr(self, name, value)


def draw(rng: np.random.Generator, answer: int, sigma: float, most: int) -> int:
    """Draw a label around an answer, of the same sign and of at most a given magnitude."""
    while True:
        label = round(rng.normal(answer, sigma))
        if abs(label) <= most and (label < 0) == (answer < 0):
            return label


def provenance(device: torch.device) -> dict[str, Any]:
    """Say what made a run: commit, versions, machine."""
    given = ("git", "rev-parse", "HEAD")
    commit = subprocess.run(given, capture_output=True, text=True, cwd=Path(__file__).parent)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    return {
        "commit": commit.stdout.strip() or None,
        "versions": {m.__name__: m.__version__ for m in (ntloss, torch, transformers)},
        "device": f"{device.type} {name}".strip(),
        "threads": torch.get_num_threads(),
        "ended": datetime.now().isoformat(timespec="seconds"),
    }
