"""Python and the page's JavaScript compute the same: losses, gradients, readings and models."""

import json
import random
from decimal import Decimal
from typing import Any

import make_data
import pytest
import torch
import torch.nn.functional as F
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split
from tolerances import PAGE, assert_close, assert_identical

from ntl.encodings.digits import character_tokenizer
from ntloss import NTLCrossEntropyLoss, NumberVocabulary, ntl_was
from ntloss.criteria import CRITERIA, fact
from ntloss.numbers import LabelNumbers, NumberFormat, number_texts, parse_number
from ntloss.reading import number_quantiles
from ntloss.reading.fixed_width import choose

MODELS = make_data.read_constant("models")["models"]
# The page's losses: criterion and options of the library. Cross-entropy is PyTorch's.
LOSSES: dict[str, tuple[str, dict[str, Any]] | None] = {"cross_entropy": None}
LOSSES |= {name: (name, {}) for name in make_data.read_constant("criteria")}
LOSSES["hl_gauss"] = ("hl_gauss", {"sigma": 1.0})
DIGITS = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=11)
# Typed numbers: one token per character, and one that ends the answer.
CHARACTERS = (*"0123456789.-+", "end")
CHARACTER_TOKENS = NumberVocabulary.from_mapping(dict(enumerate(CHARACTERS[:-1])), vocab_size=len(CHARACTERS))
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
EVALUATE = "cases => cases.map(({ name, logits, labels }) => losses.evaluate(name, logits, labels))"
READINGS = """({ probs, quantiles }) => probs.map((row) => ({
    ...readings.readAll(row), quantiles: quantiles.map((q) => readings.quantile(row, q)) }))"""
TYPED = """cases => cases.map(({ truth, said, padded, sure, sigma }) => {
    const aligned = numberLosses.align(numberLosses.parse(truth), numberLosses.parse(said), padded);
    const found = numberLosses.evaluate(aligned.labels, aligned.said, sure, { sigma, padded });
    return { ...aligned, losses: found };
})"""
PARSED = """texts => texts.map((text) => {
    try { return Number(numberLosses.textOf(numberLosses.parse(text))); } catch { return null; } })"""
SPLITS = "({ rule, texts }) => texts.map((text) => digitRules.split(digitRules.RULES[rule], text))"
DISTRIBUTIONS = """({ model, questions }) => {
    const loaded = t5.load(MODELS.models[model]);
    return questions.map((question) => Array.from(t5.distribution(loaded, question)));
}"""


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


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


def test_losses_have_the_titles_of_the_library():
    stored = make_data.read_constant("criteria")
    assert stored == {name: fact(CRITERIA[name], "title") for name in stored}


def test_the_page_computes_and_shows_each_loss_whose_title_is_stored(open_page):
    page = open_page()
    assert {*page.evaluate("losses.names")} == {*LOSSES}
    assert {*page.evaluate("LOSS_NAMES.all.map(({ name }) => name)")} == {*LOSSES}


def test_rounding_the_weights_again_changes_nothing():
    packed = MODELS[0]
    again = make_data.pack(make_data.unpack(packed).float(), character_tokenizer())
    assert again["tensors"] == packed["tensors"]


def test_what_the_page_says_about_the_labs_tokenizer_is_what_inspect_says():
    shown = {tokenizer["name"]: tokenizer for tokenizer in make_data.read_constant("tokenizers")}[
        "the lab's own"
    ]
    found = json.loads(json.dumps(make_data.inspect(character_tokenizer())))
    assert found == {key: shown[key] for key in found}


def test_the_page_computes_the_losses_and_gradients_of_the_library(open_page):
    """Of random logits, sure and unsure, and of labels in doubt."""
    rng = random.Random(0)
    cases = []
    for i in range(14):
        logits = [round(rng.gauss(0, (0.3, 1.0, 3.0, 8.0)[i % 4]), 4) for _ in range(11)]
        labels = [float(digit == (i % 10)) for digit in range(10)]
        if i >= 12:
            shares = [rng.random() for _ in range(10)]
            labels = [share / sum(shares) for share in shares]
        cases += [{"name": name, "logits": logits, "labels": labels} for name in LOSSES]
    for case, found in zip(cases, open_page().evaluate(EVALUATE, cases), strict=True):
        expected = of_loss(**case)
        assert_close(found["loss"], expected["loss"], PAGE, case["name"])
        assert_close(tensor(found["gradient"]), tensor(expected["gradient"]), PAGE, case["name"])


def write_tokens(truth, said, padded):
    """The truth's tokens, and what the model says at each: one character per token."""
    truth, said = (f"{Decimal(number_texts(text)[0]):f}" for text in (truth, said))
    if padded:
        width = NumberFormat.of([truth, said])
        return list(width.write(truth)), list(width.write(said))
    labels = [*truth, "end"]
    return labels, [*said, *["end"] * len(labels)][: len(labels)]


def test_the_page_computes_the_losses_of_whole_numbers_as_the_library_does(open_page):
    pairs = "405 398, 405 505, 3.14 3.2, -5 5, 405 4057, 1000 7, 0 0, 12.5 -0.25, 999999 100000, 1e5 1,234"
    cases = [
        dict(zip(("truth", "said"), pair.split(), strict=True)) | how
        for pair in pairs.split(", ")
        for how in (
            {"padded": True, "sure": 0.9, "sigma": 2.0},
            {"padded": False, "sure": 0.6, "sigma": 40.0},
        )
    ]
    for case, found in zip(cases, open_page().evaluate(TYPED, cases), strict=True):
        labels, spoken = write_tokens(case["truth"], case["said"], case["padded"])
        assert (found["labels"], found["said"]) == (labels, spoken)
        expected = of_typed(labels, spoken, case["sure"], case["sigma"], case["padded"])
        assert set(found["losses"]) == set(expected)
        for name, losses in expected.items():
            shown = found["losses"][name]
            assert [x is None for x in shown["tokens"]] == [x is None for x in losses["tokens"]], name
            of_page, of_library = (
                tensor([x or 0.0 for x in (*each["tokens"], each["whole"])]) for each in (shown, losses)
            )
            assert_close(of_page, of_library, PAGE, f"{case['truth']}, {case['said']}: {name}")


# What a visitor may type for a number; some are none.
NUMBERS = """7 007 -7 +7 -0 5. .5 -.5 1e5 1E+5 1.5e3 2.5E-1 1.e2 1,234 12,345.5 \u22127
    0,123 1234,567 4,5 1e 1e5x --5 +-5 1_000 . e5 nan \u20137"""


def test_the_page_reads_typed_numbers_as_the_library_does(open_page):
    texts = NUMBERS.split()
    assert open_page().evaluate(PARSED, texts) == [parse_number(text, "whole") for text in texts]


@pytest.mark.parametrize(("rule", "digits"), enumerate((r"\p{N}{1,3}", r"\p{N}")))
def test_the_page_splits_texts_as_the_tokenizers_do(open_page, rule, digits):
    """Published with cl100k_base and Llama 3 (one to three digits), and with Qwen 2 and later (one digit)."""
    pattern = (
        rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    texts = [
        *make_data.SENTENCES,
        "1234567 is 1,234,567; it's 12345 and 007.",
        "  Two  spaces, naïve café: -5 °C, 1e-10, I'LL pay €3.50!\nLine 2:\t10²",
        "",
    ]
    split = Split(Regex(pattern), "isolated")
    expected = [[piece for piece, _ in split.pre_tokenize_str(text)] for text in texts]
    assert open_page().evaluate(SPLITS, {"rule": rule, "texts": texts}) == expected


def random_distribution(rng, bells):
    """A distribution over 0 to 999 `[1000]`: bells, each of a weight, a center and a spread."""
    x = torch.arange(1000, dtype=torch.float64)
    drawn = [(rng.random(), rng.uniform(0, 999), rng.uniform(2, 150)) for _ in range(bells)]
    weights = sum(weight * torch.exp(-0.5 * ((x - center) / spread) ** 2) for weight, center, spread in drawn)
    weights = torch.as_tensor(weights) + 1e-9
    return weights / weights.sum()


def walk_down(probs, quantile):
    """The number of three digits, each by the library's choice."""
    tree = probs.reshape(10, 10, 10)
    remaining, written = torch.tensor([quantile], dtype=torch.float64), list[int]()
    for _ in range(3):
        masses = tree[tuple(written)].reshape(1, 10, -1).sum(-1)
        digit, remaining, *_ = choose(masses.double(), remaining)
        written.append(int(digit))
    return int("".join(map(str, written)))


def test_the_page_reads_numbers_as_the_library_does(open_page):
    rng = random.Random(1)
    rows = [random_distribution(rng, 1 + i % 3) for i in range(40)]
    given = {"probs": [row.tolist() for row in rows], "quantiles": QUANTILES}
    for row, read in zip(rows, open_page().evaluate(READINGS, given), strict=True):
        expected = {name: value.item() for name, value in make_data.read_distributions(row[None]).items()}
        quantiles = [walk_down(row, q) for q in QUANTILES]
        assert (read["greedy"], read["quantiles"]) == (expected["greedy"], quantiles)
        assert [read["low"], read["median"], read["high"]] == quantiles[::2]
        assert_close(read["mean"], expected["mean"], PAGE)


@pytest.mark.parametrize("packed", MODELS, ids=range(len(MODELS)))
def test_the_models_of_the_page_answer_as_in_python(open_page, packed):
    questions = ["12 70 45", "10 10 10", "99 99 99", "50 33 78", "27 91 14", "73 20 97", "7 5 120"]
    page = open_page()
    rows = page.evaluate(DISTRIBUTIONS, {"model": MODELS.index(packed), "questions": questions})
    expected = make_data.distributions(make_data.unpack(packed), packed, questions)
    assert_close(tensor(rows), expected, PAGE)
    assert_identical(tensor(rows).argmax(-1), expected.argmax(-1))
    read = page.evaluate(READINGS, {"probs": rows, "quantiles": QUANTILES})
    for question, numbers in zip(questions, read, strict=True):
        case = of_model(packed, question)
        assert (numbers["greedy"], numbers["quantiles"]) == (case["greedy"], case["quantiles"])
        assert_close(numbers["mean"], case["mean"], PAGE)
