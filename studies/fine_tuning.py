"""Full fine-tuning of a small causal language model, in runs that can be stopped and continued.

Studies derive their runs from `FineTuning`. Each run writes one file, at its end, and runs that have one are
skipped. A run saves its state every five minutes, in 1.6 GB for SmolLM2-135M, and goes on from there: a
command may be stopped at any moment and started again. It may also run several times at once, because each
process locks the run that it works on: once for each core of a CPU, with OMP_NUM_THREADS=1, or about five
times on a GPU.
"""

import argparse
import fcntl
import json
import platform
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

import ntloss
from ntl.data.files import write_atomically
from ntloss import NTLCrossEntropyLoss, NumberVocabulary

BATCH = 16
WARMUP, CLIP = 20, 1.0
SAVE_EVERY = 300.0  # seconds


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
    """One training of all layers with AdamW and a linear decay.

    A study says in `batch_loss` what is minimized, and in `read` what is read after the steps of `compared`.

    Args:
        given: The command line.
        seed: Random seed of the order of the rows.
        rate: Learning rate, after 20 steps of warm-up.
        rows: Number of training rows.
        steps: Number of steps, of 16 rows each.
        compared: After how many steps the model is read.
    """

    modules: tuple[str, ...] = ("model",)
    """Names of the attributes that are trained."""
    loss_fn: NTLCrossEntropyLoss | None = None

    def __init__(
        self,
        given: argparse.Namespace,
        seed: int,
        rate: float,
        rows: int,
        steps: int,
        compared: Sequence[int],
    ):
        self.given, self.device = given, torch.device(given.device)
        self.rate, self.rows, self.steps, self.compared = rate, rows, steps, compared
        torch.manual_seed(seed)
        self.tokenizer = AutoTokenizer.from_pretrained(given.model)
        self.tokenizer.pad_token = self.tokenizer.pad_token or self.tokenizer.eos_token
        self.model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32).to(self.device)
        self.vocabulary = NumberVocabulary.from_tokenizer(
            self.tokenizer, vocab_size=self.model.config.vocab_size
        )
        # The same rows in the same order for each arm, and noise of its own.
        self.order, self.noise = np.random.default_rng(seed), np.random.default_rng((seed, 1))
        self.step, self.seconds = 0, 0.0
        self.waiting, self.losses, self.readings = list[int](), list[float](), list[dict[str, Any]]()

    def batch_loss(self, rows: Sequence[int]) -> Tensor:
        """Compute the loss of some training rows."""
        raise NotImplementedError

    def read(self) -> dict[str, Any]:
        """Read what the study compares."""
        raise NotImplementedError

    def train(self, state: Path) -> bool:
        """Train, from a saved state if there is one, and save it every five minutes.

        Returns:
            Whether training has ended; if not, the time is over.
        """
        parameters = list(chain(*(getattr(self, name).parameters() for name in self.modules)))
        self.optimizer = torch.optim.AdamW(
            parameters, lr=self.rate, betas=(0.9, 0.98), weight_decay=0.01, fused=True
        )
        if state.is_file():
            self._load(state)
        self.model.train()
        begin, saved = time.process_time() - self.seconds, time.monotonic()
        while self.step < self.steps:
            if datetime.now() > self.given.until:
                self._save(state)
                return False
            self._train_step(parameters)
            self.seconds = time.process_time() - begin
            if self.step in self.compared:
                self.model.eval()
                with torch.no_grad(), self.autocast():
                    self.readings.append({"step": self.step, **self.read()})
                self.model.train()
            if time.monotonic() - saved > SAVE_EVERY:
                self._save(state)
                saved = time.monotonic()
        return True

    def result(self) -> dict[str, Any]:
        """Return what was read, the mean loss of each epoch, and how the run was made."""
        every = max(1, self.rows // BATCH)
        epochs = [self.losses[i : i + every] for i in range(0, self.steps, every)]
        return {
            **{"rate": self.rate, "train_rows": self.rows, "steps": self.steps, "seconds": self.seconds},
            **{"read": self.readings, "losses": [round(float(np.mean(epoch)), 4) for epoch in epochs]},
            "made": {**provenance(self.device), "products": self.given.products},
        }

    def hidden_states(self, texts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Run the model on texts of token ids.

        Returns:
            The last states of all texts, and of padding if there is any, `[tokens, width]`; and for each text
            the place after its last token, `[texts]`.
        """
        # One row of all texts: where positions start again, attention starts anew, and nothing is padded.
        lengths = torch.tensor([len(text) for text in texts])
        tokens = torch.tensor([[*chain(*texts)]], device=self.device)
        positions = torch.cat([torch.arange(length) for length in lengths])[None].to(self.device)
        outputs = self.model.model(input_ids=tokens, position_ids=positions, use_cache=False)
        return outputs.last_hidden_state[0], lengths.cumsum(0).to(self.device)

    def logits_of(
        self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
    ) -> tuple[Tensor, Tensor]:
        """Compute the logits of answers that have one number of tokens.

        Returns:
            Logits `[answers, tokens, vocab]` and labels `[answers, tokens]`.
        """
        labels = torch.tensor(answers, device=self.device)
        states, ends = self.hidden_states([[*p, *a] for p, a in zip(prompts, answers, strict=True)])
        before = torch.arange(labels.shape[1], device=self.device) - labels.shape[1] - 1
        return self.model.lm_head(states[ends[:, None] + before]), labels

    def autocast(self) -> torch.autocast:
        """Make the context in which matrix products are computed."""
        bfloat16 = self.given.products == "bfloat16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=bfloat16)

    @property
    def progress(self) -> float:
        """The share of training that is done."""
        return self.step / self.steps

    def _train_step(self, parameters: Sequence[nn.Parameter]) -> None:
        if self.loss_fn is not None:
            self.loss_fn.anneal(self.progress)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * min(1, (self.step + 1) / WARMUP) * (1 - self.progress)
        if len(self.waiting) < BATCH:
            self.waiting += self.order.permutation(self.rows).tolist()
        rows, self.waiting = self.waiting[:BATCH], self.waiting[BATCH:]
        with self.autocast():
            loss = self.batch_loss(rows)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(float(loss.detach()))
        self.step += 1

    def _save(self, path: Path) -> None:
        state = {name: getattr(self, name) for name in ("step", "seconds", "waiting", "readings", "losses")}
        state |= {name: getattr(self, name).state_dict() for name in (*self.modules, "optimizer")}
        state |= {name: getattr(self, name).bit_generator.state for name in ("order", "noise")}
        part = path.with_suffix(".writing")
        torch.save(state, part)
        part.replace(path)

    def _load(self, path: Path) -> None:
        for name, value in torch.load(path, map_location=self.device).items():
            if name in (*self.modules, "optimizer"):
                getattr(self, name).load_state_dict(value)
            elif name in ("order", "noise"):
                getattr(self, name).bit_generator.state = value
            else:
                setattr(self, name, value)


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
