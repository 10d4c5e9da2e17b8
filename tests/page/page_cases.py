"""What the library computes, for comparison with the page's JavaScript in a browser."""

import functools
import random
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

PLAYGROUND = Path(__file__).parents[2] / "docs" / "playground"
sys.path.insert(0, str(PLAYGROUND))

import make_data  # noqa: E402

from ntloss import NTLCrossEntropyLoss, NumberVocabulary, ntl_was  # noqa: E402
from ntloss.numbers import LabelNumbers, NumberFormat, number_texts  # noqa: E402
from ntloss.reading import number_quantiles  # noqa: E402
from ntloss.reading.fixed_width import choose  # noqa: E402

# The page's losses: criterion and options of the library. Cross-entropy is PyTorch's.
LOSSES: dict[str, tuple[str, dict[str, Any]] | None] = {"cross_entropy": None}
LOSSES |= {name: (name, {}) for name in make_data.read_constant("criteria")}
LOSSES["hl_gauss"] = ("hl_gauss", {"sigma": 1.0})
TEXT = 10
DIGITS = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=11)
# Typed numbers: one token per character, and one that ends the answer.
CHARACTERS = (*"0123456789.-+", "end")
CHARACTER_TOKENS = NumberVocabulary.from_mapping(dict(enumerate(CHARACTERS[:-1])), vocab_size=len(CHARACTERS))
WHOLE_NUMBERS = ("ntil", "number_level")
# Published with cl100k_base and Llama 3 (one to three digits), and with Qwen 2 and later (one digit).
SPLITTING = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXTS = (
    *make_data.SENTENCES,
    "1234567 is 1,234,567; it's 12345 and 007.",
    "  Two  spaces, naïve café: -5 °C, 1e-10, I'LL pay €3.50!\nLine 2:\t10²",
    "",
)
# What a visitor may type for a number; some are none.
NUMBERS = """7 007 -7 +7 -0 5. .5 -.5 1e5 1E+5 1.5e3 2.5E-1 1.e2 1,234 12,345.5 \u22127
    0,123 1234,567 4,5 1e 1e5x --5 +-5 1_000 . e5 nan \u20137"""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
QUESTIONS = (
    "12 70 45",
    "10 10 10",
    "99 99 99",
    "50 33 78",
    "27 91 14",
    "88 12 64",
    "41 59 30",
    "73 20 97",
    "7 5 120",
)


def loss_inputs():
    """Logits `[11]` and labels `[10]`: random ones, sure and unsure, and labels in doubt."""
    rng = random.Random(0)
    inputs = []
    for i in range(14):
        scale = (0.3, 1.0, 3.0, 8.0)[i % 4]
        logits = [round(rng.gauss(0, scale), 4) for _ in range(11)]
        labels = [0.0] * 10
        labels[(0, 9, 4, *rng.sample(range(10), 8), 1, 3, 7)[i]] = 1.0
        if i >= 12:
            shares = [rng.random() for _ in range(10)]
            labels = [share / sum(shares) for share in shares]
        inputs.append((logits, labels))
    return inputs


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


def loss_cases():
    return [
        {"name": name, "logits": logits, "labels": labels, **of_loss(name, logits, labels)}
        for logits, labels in loss_inputs()
        for name in LOSSES
    ]


def typed_inputs():
    """Truth, what the model says, whether both have one width, how sure it is, and HL-Gauss's sigma."""
    pairs = [("405", "398"), ("405", "505"), ("3.14", "3.2"), ("-5", "5"), ("405", "4057"), ("1000", "7")]
    pairs += [("0", "0"), ("12.5", "-0.25"), ("999999", "100000"), ("0.07", "0.0712")]
    pairs += [("1e5", "1,234")]
    return [(*pair, *how) for pair in pairs for how in ((True, 0.9, 2.0), (False, 0.6, 40.0))]


def write_tokens(truth, said, padded):
    """The truth's tokens, and what the model says at each: one character per token."""
    truth, said = (f"{Decimal(number_texts(text)[0]):f}" for text in (truth, said))
    if padded:
        numbers = [truth, said]
        width = NumberFormat.of(numbers)
        labels, spoken = (list(width.write(number)) for number in numbers)
    else:
        labels, spoken = [*truth, "end"], [*said, "end"]
    return labels, [*spoken, *["end"] * len(labels)][: len(labels)]


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
        whole = name in WHOLE_NUMBERS
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


def typed_cases():
    cases = []
    for truth, said, padded, sure, sigma in typed_inputs():
        labels, spoken = write_tokens(truth, said, padded)
        given = {"truth": truth, "said": said, "padded": padded, "sure": sure, "sigma": sigma}
        found = of_typed(labels, spoken, sure, sigma, padded)
        cases.append({**given, "labels": labels, "spoken": spoken, "losses": found})
    return cases


def split_cases():
    """Texts as the published patterns of GPT-4, Llama 3 and Qwen split them."""
    cases = []
    for rule, digits in enumerate((r"\p{N}{1,3}", r"\p{N}")):
        split = Split(Regex(SPLITTING.format(digits=digits)), "isolated")
        for text in TEXTS:
            cases.append(
                {"rule": rule, "text": text, "pieces": [piece for piece, _ in split.pre_tokenize_str(text)]}
            )
    return cases


def distribution_of(bumps):
    """A distribution over 0 to 999 `[1000]`: bells, each of a weight, a center and a spread."""
    x = torch.arange(1000, dtype=torch.float64)
    weights = sum(weight * torch.exp(-0.5 * ((x - center) / spread) ** 2) for weight, center, spread in bumps)
    weights = torch.as_tensor(weights) + 1e-9
    return weights / weights.sum()


def of_distribution(probs):
    """Readings of a distribution; the quantiles by the library's choice of each digit."""
    tree = probs.reshape(10, 10, 10)
    read = {name: value.item() for name, value in make_data.read_distributions(probs[None]).items()}
    return {
        "greedy": read["greedy"],
        "mean": read["mean"],
        "quantiles": [walk_down(tree, q) for q in QUANTILES],
    }


def walk_down(tree, quantile):
    remaining, written = torch.tensor([quantile], dtype=torch.float64), list[int]()
    for _ in range(3):
        masses = tree[tuple(written)].reshape(1, 10, -1).sum(-1)
        digit, remaining, _ = choose(masses.double(), remaining)
        written.append(int(digit))
    return int("".join(map(str, written)))


def reading_cases():
    """Random distributions of one to three bells."""
    rng = random.Random(1)
    cases = []
    for i in range(40):
        bumps = [[rng.random(), rng.uniform(0, 999), rng.uniform(2, 150)] for _ in range(1 + i % 3)]
        cases.append({"bumps": bumps, **of_distribution(distribution_of(bumps))})
    return cases


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
        "first_digit": probs.reshape(10, 100).sum(-1).tolist(),
        "cumulated": probs[0].cumsum(-1)[49::50].tolist(),
    }


@functools.cache
def model_cases():
    models = make_data.read_constant("models")["models"]
    return [
        {"model": i, "question": question, **of_model(packed, question)}
        for i, packed in enumerate(models)
        for question in QUESTIONS
    ]
