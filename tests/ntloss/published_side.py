"""The differential tests' requests and batches, and a program that answers them with the published package.

    python published_side.py <requests> <answers>

The test runs it in a process whose path leads to the published `ntloss`. It also imports this file, makes
requests and answers them with the library: both sides draw the same tensors, so no logits are exchanged.
"""

import os
import random
import subprocess
import sys
from typing import Any

import tiny_tokenizers
import torch
import torch.nn.functional as F

LOSS_FUNCTIONS = {"squared": F.mse_loss, "absolute": F.l1_loss, "huber": F.huber_loss}
ATTRIBUTES = ("number_values", "is_number_token", "number_token_ids", "max_dist", "vocab_size")


def make_requests(tokenizer, vocab_size, count):
    draw = random.Random(vocab_size)
    requests = []
    for seed in range(count):
        kind = ("NTLoss", "NTLossDotProduct")[seed % 2]
        settings: dict[str, Any] = {
            "vocab_size": draw.choice([None, vocab_size + 28]),
            "digit_level": draw.random() < 0.6,
            "reweigh": draw.random() < 0.6,
        }
        if kind == "NTLoss":
            settings["squash_factor"] = draw.choice([None, None, 1.5, 9.0])
        else:
            settings["loss_function"] = draw.choice(sorted(LOSS_FUNCTIONS))
        requests.append(
            {
                "tokenizer": tokenizer,
                "kind": kind,
                "settings": settings,
                "seed": seed,
                "reduction": draw.choice(["mean", "sum", "none"]),
                "weights": draw.choice([None, "fractions", "some zero"]),
                "ignore_index": draw.choice([-100, -1, "a number"]),
                "scale": draw.choice([0.3, 3.0, 15.0]),
            }
        )
    return requests


def make_loss(request, tokenizer, module):
    """Make the request's loss from an `ntloss` module, the published one or ours."""
    settings = dict(request["settings"])
    if "loss_function" in settings:
        settings["loss_function"] = LOSS_FUNCTIONS[settings["loss_function"]]
    return getattr(module, request["kind"])(tokenizer, **settings)


def make_batch(request, vocab_size, number_ids):
    """Make the arguments of the request's call; two thirds of the labels are numbers."""
    generator = torch.Generator().manual_seed(request["seed"])
    shape = (2, 3)
    logits = request["scale"] * torch.randn(*shape, vocab_size, generator=generator)
    text = torch.randint(vocab_size, shape, generator=generator)
    numbers = number_ids[torch.randint(len(number_ids), shape, generator=generator)]
    labels = torch.where(torch.rand(shape, generator=generator) < 2 / 3, numbers, text)
    labels[0, 0] = number_ids[0]
    ignore_index = int(number_ids[-1]) if request["ignore_index"] == "a number" else request["ignore_index"]
    labels[0, 1] = ignore_index
    weights = None
    if request["weights"] is not None:
        weights = torch.rand(shape, generator=generator) + 0.1
        if request["weights"] == "some zero":
            weights[1] = 0
    return {
        "logits": logits.requires_grad_(),
        "labels": labels,
        "loss_weights": weights,
        "reduction": request["reduction"],
        "ignore_index": ignore_index,
    }


def answer(request, loss_fn):
    batch = make_batch(request, loss_fn.vocab_size, loss_fn.number_token_ids)
    loss = loss_fn(**batch)
    loss.sum().backward()
    found = {
        "value": loss.detach(),
        "gradient": batch["logits"].grad,
        **{name: torch.as_tensor(getattr(loss_fn, name)) for name in ATTRIBUTES},
    }
    if request["kind"] == "NTLossDotProduct":
        found["yhat"], found["nt_mass"] = (x.detach() for x in loss_fn.predict_numbers(batch["logits"]))
    return found


class Characters:
    """All that the published NumberLevelLoss asks of a tokenizer."""

    def __init__(self, size):
        self.vocab = {text: i for i, text in enumerate("0123456789.ab")}
        self.size = size

    def __len__(self):
        return self.size

    def get_vocab(self):
        return self.vocab

    def add_tokens(self, tokens):
        return 0

    def convert_tokens_to_ids(self, token):
        return self.vocab[token]


def answer_number_level(request, module, characters):
    """Compute value and gradient of a NumberLevelLoss; `characters` makes a tokenizer of a size."""
    logits = request["logits"].clone().requires_grad_()
    make = tiny_tokenizers.HOME_MADE.get(request.get("make"), lambda: characters(logits.shape[-1]))
    loss = module.NumberLevelLoss(make(), **request["options"])(logits, request["labels"], **request["call"])
    loss.sum().backward()
    return loss.detach(), logits.grad


def main(requests_file, answers_file):
    from transformers import AutoTokenizer

    import ntloss

    torch.set_num_threads(1)
    asked = torch.load(requests_file)
    if "logits" in asked[0]:
        answers = [answer_number_level(request, ntloss, Characters) for request in asked]
    else:
        loaded = {folder: AutoTokenizer.from_pretrained(folder) for folder in {r["tokenizer"] for r in asked}}
        answers = [answer(r, make_loss(r, loaded[r["tokenizer"]], ntloss)) for r in asked]
    torch.save({"version": ntloss.__version__, "answers": answers}, answers_file)


def answers_of_published(published, requests, folder):
    torch.save(requests, folder / "requests.pt")
    done = subprocess.run(
        [sys.executable, __file__, folder / "requests.pt", folder / "answers.pt"],
        env={**os.environ, "PYTHONPATH": str(published), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    found = torch.load(folder / "answers.pt")
    (folder / "answers.pt").unlink()
    assert found["version"] == "0.3.2"
    answers: list[Any] = found["answers"]
    return answers


if __name__ == "__main__":
    main(*sys.argv[1:])
