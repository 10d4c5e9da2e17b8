"""Fine-tune all layers of SmolLM2 with several losses, and read its numbers after every second epoch.

    python -m studies.all_layers.train --tables sentiment places --arms ce hl_gauss jittered --seeds 27 28 29

Each run writes one file, at its end, and runs that have one are skipped. A run saves its state after each
epoch, in 1.6 GB, and goes on from there: the command may be stopped at any moment and started again. It may
also run several times at once, because each process locks the run that it works on: once for each core of a
CPU, with OMP_NUM_THREADS=1, or about five times on a GPU.
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
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

import ntloss
from ntl.data import load_task
from ntl.data.files import write_atomically
from ntl.data.tabular import Tabular
from ntl.scores import SPACED_LEVELS
from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary
from ntloss.numbers import NumberFormat
from ntloss.reading import UnlikelyNumberWarning, number_quantiles
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
        "train_size": None,
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
BATCH, EPOCHS, COMPARED = 16, 10, 5  # weights are compared after every second of ten epochs
WARMUP, CLIP = 20, 1.0
LEVELS = (*SPACED_LEVELS, 0.05, 0.5, 0.95)
ROWS_READ = 50  # questions of a pass of reading
MODULES = ("model", "head", "optimizer")  # with a state of their own


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that are missing, seed by seed."""
    given = parse(arguments)
    given.outputs.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    for table, arm, seed, rate in planned(given):
        path = given.outputs / f"{table}-{arm}-{seed}-{rate:.0e}{given.suffix}.json"
        with open(path.with_suffix(".lock"), "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # another process is at it
            if path.is_file():
                continue
            result = Run(given, table, arm, seed, rate).result(state := path.with_suffix(".state"))
            if result is None:
                print(f"{path.stem}: stopped, to be continued", flush=True)
                return
            write_atomically(path, json.dumps(result))
            state.unlink(missing_ok=True)
            print(f"{path.stem}: {result['seconds']:.0f} s of processor time", flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tables", nargs="+", default=["sentiment", "places"], choices=TABLES)
    parser.add_argument("--arms", nargs="+", default=["ce", "hl_gauss", "jittered"], choices=ARMS)
    parser.add_argument("--seeds", nargs="+", type=int, required=True)
    parser.add_argument(
        "--rates", nargs="+", type=float, help=f"such as {TRIED} on tuning seeds; default: the chosen ones"
    )
    parser.add_argument("--train-size", type=int, help="training rows; default: 600, or all of a small table")
    parser.add_argument("--outputs", type=Path, default=Path("outputs/all_layers"))
    parser.add_argument("--model", default=".models/smollm2", help="`make model`")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--products",
        choices=("bfloat16", "float32"),
        default="bfloat16",
        help="dtype of matrix products; processors without instructions for bfloat16 need float32",
    )
    parser.add_argument(
        "--until", help="HH:MM, today: stop then; the run in progress goes on when the command is repeated"
    )
    given = parser.parse_args(arguments)
    clock = datetime.strptime(given.until, "%H:%M").time() if given.until else None
    given.until = datetime.combine(datetime.now(), clock).timestamp() if clock else float("inf")
    given.suffix = "" if given.train_size is None else f"-{given.train_size}rows"
    return given


def planned(given: argparse.Namespace) -> Iterator[tuple[str, str, int, float]]:
    """Yield table, arm, seed and rate of each run: seed by seed, the arms of a table together."""
    for seed, table, arm in itertools.product(given.seeds, given.tables, given.arms):
        for rate in given.rates or [CHOSEN[table][arm]]:
            yield table, arm, seed, float(rate)


class Run:
    """One training: model, rows, loss.

    Args:
        given: The command line.
        table, arm, seed, rate: Which run it is.
    """

    def __init__(self, given: argparse.Namespace, table: str, arm: str, seed: int, rate: float):
        self.given, self.table, self.arm, self.seed, self.rate = given, table, arm, seed, rate
        self.device = torch.device(given.device)
        settings = rows_of(table, seed, given.train_size)
        task = load_task(settings)
        train, *held_out = ([*part] for part in (task.train, task.validation, task.tests["test"]))
        self.held_out = dict(zip(("validation", "test"), held_out, strict=True))
        self.answers = [row.answer for row in train]
        self.format = NumberFormat.of(self.answers)
        self.steps = EPOCHS * (len(train) // BATCH)
        torch.manual_seed(seed)
        self.tokenizer = AutoTokenizer.from_pretrained(given.model)
        self.tokenizer.pad_token = self.tokenizer.pad_token or self.tokenizer.eos_token
        self.model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32).to(self.device)
        self.head = nn.Linear(self.model.config.hidden_size, 1).to(self.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.vocabulary = NumberVocabulary.from_tokenizer(
            self.tokenizer, vocab_size=self.model.config.vocab_size
        )
        self.loss_fn = make_loss(arm, self.vocabulary, self.answers)
        if self.loss_fn is not None:
            self.loss_fn = self.loss_fn.to(self.device)
        numbers = np.array(self.answers, float)
        self.center, self.spread = float(numbers.mean()), float(numbers.std())
        self.units = np.rint(numbers * 10**self.format.decimals).astype(int)  # of the last digit
        self.prompts = self.tokenizer([row.question for row in train])["input_ids"]
        self.numbers = numbers
        # The same rows in the same order for each arm, and noise of its own.
        self.order, self.noise = np.random.default_rng(seed), np.random.default_rng((seed, 1))
        self.parameters = [*self.model.parameters(), *(self.head.parameters() if arm == "head" else [])]
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=rate, betas=(0.9, 0.98), weight_decay=0.01, fused=True
        )
        self.step, self.seconds = 0, 0.0
        self.waiting, self.losses, self.readings = list[int](), list[float](), list[dict[str, Any]]()

    def result(self, state: Path) -> dict[str, Any] | None:
        """Train, from a saved state if there is one, and save it after each epoch.

        Returns:
            What was read at each of the steps that are compared, and how it was made; None if time is over.
        """
        if state.is_file():
            self.load(state)
        self.model.train()  # SmolLM2 has no dropout
        begin = time.process_time() - self.seconds
        while self.step < self.steps:
            if time.time() > self.given.until:
                self.save(state)
                return None
            self.losses.append(self.train_step())
            self.seconds = time.process_time() - begin
            if self.step % (self.steps // COMPARED) == 0:
                self.readings.append({"step": self.step, **self.read_all()})
            if self.step % (self.steps // EPOCHS) == 0:
                self.save(state)
        every = self.steps // EPOCHS
        return {
            **{"table": self.table, "arm": self.arm, "seed": self.seed, "rate": self.rate},
            **{"train_rows": len(self.answers), "steps": self.steps, "seconds": time.process_time() - begin},
            "levels": LEVELS,
            "truths": {part: [float(r.answer) for r in rows] for part, rows in self.held_out.items()},
            "read": self.readings,
            "losses": [
                round(float(np.mean(self.losses[i : i + every])), 4) for i in range(0, self.steps, every)
            ],
            "made": {**provenance(self.device), "products": self.given.products},
        }

    def train_step(self) -> float:
        """Train on the next batch; return its loss."""
        progress = self.step / self.steps
        if self.loss_fn is not None:
            self.loss_fn.anneal(progress)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * min(1, (self.step + 1) / WARMUP) * (1 - progress)
        if len(self.waiting) < BATCH:
            self.waiting += self.order.permutation(len(self.answers)).tolist()
        rows, self.waiting = self.waiting[:BATCH], self.waiting[BATCH:]
        loss = self.loss(rows, progress)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return float(loss.detach())

    def loss(self, rows: Sequence[int], progress: float) -> Tensor:
        """Compute the loss of a batch of training rows."""
        written = [] if self.arm == "head" else self.written(rows, progress)
        answers = written or [[]] * len(rows)
        texts = [self.prompts[row] + answer for row, answer in zip(rows, answers, strict=True)]
        # One row of all texts: where positions start again, attention starts anew, and nothing is padded.
        tokens = torch.tensor([[*itertools.chain(*texts)]], device=self.device)
        positions = torch.cat([torch.arange(len(text)) for text in texts])[None].to(self.device)
        ends = np.cumsum([len(text) for text in texts]) - len(answers[0]) - 1  # of the prompts
        last = torch.from_numpy(ends).to(self.device)
        with self.autocast():
            outputs = self.model.model(input_ids=tokens, position_ids=positions, use_cache=False)
            states = outputs.last_hidden_state[0]
            if self.loss_fn is None:
                target = torch.from_numpy((self.numbers[rows] - self.center) / self.spread)
                return (self.predict(states[last]) - target.float().to(self.device)).abs().mean()
            labels = torch.tensor(written, device=self.device)
            at = last[:, None] + torch.arange(labels.shape[1], device=self.device)
            logits = self.model.lm_head(states[at])
        return self.loss_fn(logits, labels)

    def predict(self, states: Tensor) -> Tensor:
        """Predict standardized numbers, `[rows]`, from the states of the prompts' last tokens."""
        with torch.autocast(self.device.type, enabled=False):  # bfloat16 would keep three digits
            return self.head(states.float()).squeeze(-1)

    def autocast(self) -> torch.autocast:
        """Make the context in which matrix products are computed."""
        bfloat16 = self.given.products == "bfloat16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=bfloat16)

    def written(self, rows: Sequence[int], progress: float) -> list[list[int]]:
        """Write the answers of training rows as tokens, with the end token; all have one length."""
        answers = [self.answers[row] for row in rows]
        if self.arm == "jittered":
            first, last = HLGauss.for_answers(self.answers).schedule or (0.0, 0.0)
            unit = 10**self.format.decimals
            sigma = (first + (last - first) * progress) * unit
            most = 10 ** (self.format.digits + self.format.decimals) - 1
            drawn = [draw(self.noise, int(self.units[row]), sigma, most) for row in rows]
            answers = [f"{units / unit:.{self.format.decimals}f}" for units in drawn]
        texts = [self.format.write(answer) for answer in answers]
        tokens = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return [[*row, self.tokenizer.eos_token_id] for row in tokens]

    @torch.no_grad()
    def read_all(self) -> dict[str, Any]:
        """Read the answers of all validation and test rows."""
        self.model.eval()
        found: dict[str, Any] = {}
        for part, rows in self.held_out.items():
            pieces = []
            for start in range(0, len(rows), ROWS_READ):
                questions = [row.question for row in rows[start : start + ROWS_READ]]
                inputs = self.tokenizer(questions, return_tensors="pt", padding=True, padding_side="left")
                with self.autocast(), warnings.catch_warnings():
                    warnings.simplefilter("ignore", UnlikelyNumberWarning)  # numbers end in all training rows
                    pieces.append(self.read(inputs.to(self.device)))
            found[part] = {n: [*itertools.chain(*(piece[n] for piece in pieces))] for n in pieces[0]}
        self.model.train()
        return found

    def read(self, inputs: Any) -> dict[str, list[Any]]:
        """Read a batch of prompts: the head's number, or the greedy answer and quantiles of the numbers."""
        if self.loss_fn is None:
            states = self.model.model(**inputs, use_cache=False).last_hidden_state[:, -1]
            predicted = self.predict(states).double() * self.spread + self.center
            return {"answers": [round(x, 4) for x in predicted.tolist()]}
        # Both readings go on from one run of the prompts.
        past = self.model(
            **{name: tensor[:, :-1] for name, tensor in inputs.items()}, use_cache=True, logits_to_keep=1
        ).past_key_values
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

    def save(self, path: Path) -> None:
        """Save the state, so that the run can go on from it."""
        state = {name: getattr(self, name) for name in ("step", "seconds", "waiting", "readings", "losses")}
        state |= {name: getattr(self, name).state_dict() for name in MODULES}
        state |= {name: getattr(self, name).bit_generator.state for name in ("order", "noise")}
        part = path.with_suffix(".writing")
        torch.save(state, part)
        part.replace(path)

    def load(self, path: Path) -> None:
        """Go on from a saved state."""
        state = torch.load(path, map_location=self.device)
        for name, value in state.items():
            if name in MODULES:
                getattr(self, name).load_state_dict(value)
            elif name in ("order", "noise"):
                getattr(self, name).bit_generator.state = value
            else:
                setattr(self, name, value)


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


def provenance(device: torch.device) -> dict[str, Any]:
    """Say what made a run: commit, versions, machine."""
    commit = subprocess.run(("git", "rev-parse", "HEAD"), capture_output=True, text=True, cwd=FOLDER)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    return {
        "commit": commit.stdout.strip() or None,
        "versions": {m.__name__: m.__version__ for m in (ntloss, torch, transformers)},
        "device": f"{device.type} {name}".strip(),
        "threads": torch.get_num_threads(),
        "ended": datetime.now().isoformat(timespec="seconds"),
    }


if __name__ == "__main__":
    main()
