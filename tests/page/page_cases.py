"""What the library computes, for comparison with the page's JavaScript in a browser."""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

PLAYGROUND = Path(__file__).parents[2] / "docs" / "playground"
sys.path.insert(0, str(PLAYGROUND))

import make_data  # noqa: E402

from ntloss import NTLCrossEntropyLoss, NumberVocabulary, ntl_was  # noqa: E402
from ntloss.numbers import LabelNumbers, NumberFormat  # noqa: E402
from ntloss.reading import number_quantiles  # noqa: E402

# The page's losses: criterion and options of the library. Cross-entropy is PyTorch's.
LOSSES: dict[str, tuple[str, dict[str, Any]] | None] = {"cross_entropy": None}
LOSSES |= {name: (name, {}) for name in make_data.read_constant("criteria")}
LOSSES["hl_gauss"] = ("hl_gauss", {"sigma": 1.0})
DIGITS = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=11)
# Typed numbers: one token per character, and one that ends the answer.
CHARACTERS = (*"0123456789.-+", "end")
CHARACTER_TOKENS = NumberVocabulary.from_mapping(dict(enumerate(CHARACTERS[:-1])), vocab_size=len(CHARACTERS))
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def of_loss(name, logits, labels, **options):
    """Loss and gradient by the logits, averaged over the labels."""
    z = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    given = LOSSES[name]
    if given is None:
        each = F.cross_entropy(z.expand(10, -1), torch.arange(10), reduction="none")
    else:
        criterion = {"name": given[0], **given[1], **options}
        # In place of cross-entropy, the loss of a number label is the number term alone. Each label is a row
        # of its own, so that a whole number has one digit.
        loss = NTLCrossEntropyLoss(DIGITS, criterion, mode="replace", reduction="none")
        each = loss(z.expand(10, 1, -1), torch.arange(10)[:, None])[:, 0]
    total = (each * torch.tensor(labels, dtype=torch.float64)).sum()
    (gradient,) = torch.autograd.grad(total, z)
    return {"loss": total.item(), "gradient": gradient.tolist()}


def weighted_by_place(probs, values, target, digits_after):
    return ntl_was(probs, values, target) * 1.2**digits_after


def number_terms(vocabulary, criterion, logits, ids):
    """The number term of each position of a row, and their mean."""
    loss_fn = NTLCrossEntropyLoss(vocabulary, criterion, mode="add", reduction="none")
    each = loss_fn.terms(logits, ids).ntl[0]
    is_number = torch.isin(ids[0], torch.tensor(vocabulary.token_ids))
    if "numbers" in loss_fn.term.reads:  # one term for each number
        is_number &= LabelNumbers.unpack(loss_fn.prepare(ids).numbers).starts[0] > 0
    return each.tolist(), (each.sum() / is_number.sum().clamp(min=1)).item()


def of_typed(labels, said, sure, sigma=2.0, padded=True):
    """Every loss of a number: of each of its tokens, None where it does not look, and of all."""
    tokens = list(CHARACTERS)
    probs = torch.full((1, len(labels), len(tokens)), (1 - sure) / (len(tokens) - 1), dtype=torch.float64)
    ids = torch.tensor([[tokens.index(label) for label in labels]])
    probs[0, torch.arange(len(labels)), [tokens.index(token) for token in said]] = sure
    logits = probs.log()
    each = F.cross_entropy(logits[0], ids[0], reduction="none")
    found = {"cross_entropy": {"tokens": each.tolist(), "whole": each.mean().item()}}
    for name, given in {**LOSSES, "place_weighted": (weighted_by_place, {})}.items():
        if given is None:
            continue
        whole = name in ("ntil", "number_level")
        options = {**given[1], "decimals": True} if whole else given[1]
        if name == "hl_gauss":
            options = {"sigma": sigma, "leading_zeros": padded}
        row, mean = number_terms(CHARACTER_TOKENS, {"name": given[0], **options}, logits, ids)
        seen = [None if whole or not label.isdigit() else x for label, x in zip(labels, row, strict=True)]
        found[name] = {"tokens": seen, "whole": mean}
    return found


def of_targets(digits, sigma):
    """HL-Gauss's targets of a whole number's digits `[digits, 10]`, from the gradient at uniform logits."""
    z = torch.zeros(1, len(digits), 11, dtype=torch.float64, requires_grad=True)
    loss = NTLCrossEntropyLoss(DIGITS, {"name": "hl_gauss", "sigma": sigma}, reduction="none")
    each = loss(z, torch.tensor([[int(digit) for digit in digits]]))
    (gradient,) = torch.autograd.grad(each.sum(), z)
    return (1 / 11 - gradient[0, :, :10]).tolist()


def of_model(packed, question):
    """What the library reads out of one of the page's models, with the rounded weights."""
    model, tokens = make_data.unpack(packed), packed["tokens"]
    probs = make_data.distributions(model, packed, [question])
    size = model.config.vocab_size
    vocabulary = NumberVocabulary.from_mapping({tokens[str(d)]: d for d in range(10)}, vocab_size=size)
    ids = make_data.encode_question(packed, question)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    found = number_quantiles(model, inputs, vocabulary, QUANTILES, NumberFormat(3))
    read = make_data.read_distributions(probs)
    return {
        "greedy": read["greedy"].item(),
        "mean": read["mean"].item(),
        "quantiles": found.values[0].tolist(),
    }
