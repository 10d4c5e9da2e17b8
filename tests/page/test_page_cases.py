"""Python and the page's JavaScript compute the same: losses, gradients, readings and models."""

import json

import make_data
import page_cases
import pytest
import torch
from tolerances import PAGE, assert_close, assert_identical

from ntl.encodings.digits import character_tokenizer
from ntloss.criteria import CRITERIA, fact
from ntloss.numbers import parse_number

MODELS = make_data.read_constant("models")["models"]

LOSSES = "cases => cases.map(({ name, logits, labels }) => losses.evaluate(name, logits, labels))"
READINGS = """({ probs, quantiles }) => probs.map((row) => ({
    ...readings.readAll(row), quantiles: quantiles.map((q) => readings.quantile(row, q)) }))"""
TYPED = """cases => cases.map(({ truth, said, padded, sure, sigma }) => {
    const aligned = numberLosses.align(numberLosses.parse(truth), numberLosses.parse(said), padded);
    const found = numberLosses.evaluate(aligned.labels, aligned.said, sure, { sigma, padded });
    return { ...aligned, losses: found };
})"""
NUMBERS = """texts => texts.map((text) => {
    try { return Number(numberLosses.textOf(numberLosses.parse(text))); } catch { return null; } })"""
SPLITS = "cases => cases.map(({ rule, text }) => digitRules.split(digitRules.RULES[rule], text))"
DISTRIBUTIONS = """({ model, questions }) => {
    const loaded = t5.load(MODELS.models[model]);
    return questions.map((question) => Array.from(t5.distribution(loaded, question)));
}"""


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def test_losses_have_the_titles_of_the_library():
    stored = make_data.read_constant("criteria")
    assert stored == {name: fact(CRITERIA[name], "title") for name in stored}


def test_the_page_computes_and_shows_each_loss_whose_title_is_stored(open_page):
    page = open_page()
    assert {*page.evaluate("losses.names")} == {*page_cases.LOSSES}
    assert {*page.evaluate("LOSS_NAMES.all.map(({ name }) => name)")} == {*page_cases.LOSSES}


def test_rounding_the_weights_again_changes_nothing():
    packed = MODELS[0]
    tokenizer = character_tokenizer()
    again = make_data.pack(make_data.unpack(packed).float(), tokenizer)
    assert again["tensors"] == packed["tensors"]
    before, after = (make_data.page_weights(make_data.unpack(each)) for each in (packed, again))
    assert_close(after, before, PAGE)


def test_a_model_that_the_page_cannot_compute_is_refused():
    with pytest.raises(ValueError, match="no weight of a T5"):
        make_data.page_name("encoder.block.0.layer.1.DenseReluDense.wi_0.weight")


def test_what_the_page_says_about_the_labs_tokenizer_is_what_inspect_says():
    shown = {tokenizer["name"]: tokenizer for tokenizer in make_data.read_constant("tokenizers")}[
        "the lab's own"
    ]
    found = json.loads(json.dumps(make_data.inspect(character_tokenizer())))
    assert found == {key: shown[key] for key in found}


def test_the_page_computes_the_losses_and_gradients_of_the_library(open_page):
    cases = page_cases.loss_cases()
    for case, found in zip(cases, open_page().evaluate(LOSSES, cases), strict=True):
        assert_close(found["loss"], case["loss"], PAGE, case["name"])
        assert_close(tensor(found["gradient"]), tensor(case["gradient"]), PAGE, case["name"])


def test_the_page_computes_the_losses_of_whole_numbers_as_the_library_does(open_page):
    cases = page_cases.typed_cases()
    for case, found in zip(cases, open_page().evaluate(TYPED, cases), strict=True):
        assert (found["labels"], found["said"]) == (case["labels"], case["spoken"])
        assert set(found["losses"]) == set(case["losses"])
        for name, expected in case["losses"].items():
            shown = found["losses"][name]
            assert [x is None for x in shown["tokens"]] == [x is None for x in expected["tokens"]], name
            assert_close(filled(shown), filled(expected), PAGE, f"{case['truth']}, {case['said']}: {name}")


def test_the_page_reads_typed_numbers_as_the_library_does(open_page):
    texts = page_cases.NUMBERS.split()
    assert open_page().evaluate(NUMBERS, texts) == [parse_number(text, "whole") for text in texts]


def test_the_page_splits_texts_as_the_tokenizers_do(open_page):
    cases = page_cases.split_cases()
    assert open_page().evaluate(SPLITS, cases) == [case["pieces"] for case in cases]


def filled(losses):
    """The losses of the tokens, 0 where there is none, then that of the number."""
    return tensor([x or 0.0 for x in (*losses["tokens"], losses["whole"])])


def test_the_page_reads_numbers_as_the_library_does(open_page):
    cases = page_cases.reading_cases()
    probs = [page_cases.distribution_of(case["bumps"]).tolist() for case in cases]
    found = open_page().evaluate(READINGS, {"probs": probs, "quantiles": page_cases.QUANTILES})
    for case, read in zip(cases, found, strict=True):
        assert (read["greedy"], read["quantiles"]) == (case["greedy"], case["quantiles"])
        assert [read["low"], read["median"], read["high"]] == case["quantiles"][::2]
        assert_close(read["mean"], case["mean"], PAGE)


@pytest.mark.parametrize("model", range(len(MODELS)))
def test_the_models_of_the_page_answer_as_in_python(open_page, model):
    cases = [case for case in page_cases.model_cases() if case["model"] == model]
    questions = [case["question"] for case in cases]
    page = open_page()
    rows = page.evaluate(DISTRIBUTIONS, {"model": model, "questions": questions})
    read = page.evaluate(READINGS, {"probs": rows, "quantiles": page_cases.QUANTILES})
    for case, row, numbers in zip(cases, map(tensor, rows), read, strict=True):
        assert_close(row.reshape(10, 100).sum(-1), tensor(case["first_digit"]), PAGE)
        assert_close(row.cumsum(-1)[49::50], tensor(case["cumulated"]), PAGE)
        assert (numbers["greedy"], numbers["quantiles"]) == (case["greedy"], case["quantiles"])
        assert_close(numbers["mean"], case["mean"], PAGE)
    # All thousand probabilities, computed by Python now.
    packed = MODELS[model]
    expected = make_data.distributions(make_data.unpack(packed), packed, questions[:3])
    assert_close(tensor(rows[:3]), expected, PAGE)
    assert_identical(tensor(rows).argmax(-1)[:3], expected.argmax(-1))
