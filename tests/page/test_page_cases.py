"""Python and the page's JavaScript compute the same: losses, gradients, readings and models."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import make_data
import page_cases
import pytest
import torch
from tolerances import PAGE, assert_close, assert_identical

from ntl.encodings.digits import character_tokenizer
from ntloss import criterion_names
from ntloss.numbers import parse_number

CASES = json.loads(page_cases.CASES.read_text(encoding="utf-8"))
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


def tensor(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_there_are_at_least_two_hundred_cases() -> None:
    assert sum(map(len, CASES.values())) >= 200
    assert {case["name"] for case in CASES["losses"]} == set(page_cases.LOSSES)


def test_every_criterion_of_the_library_is_on_the_page_or_named_as_left_out() -> None:
    shown = {given[0] for given in page_cases.LOSSES.values() if given}
    assert shown | page_cases.LEFT_OUT == set(criterion_names())
    text = (page_cases.PLAYGROUND / "index.html").read_text(encoding="utf-8")
    assert all(f"<code>{name}</code>" in text for name in page_cases.LEFT_OUT)


@pytest.mark.parametrize("name", page_cases.LOSSES)
def test_losses_of_the_cases_are_those_of_the_library(name: str) -> None:
    for case in (case for case in CASES["losses"] if case["name"] == name):
        found = page_cases.of_loss(name, case["logits"], case["labels"])
        assert_close(tensor(found["gradient"]), tensor(case["gradient"]), PAGE, name)
        assert_close(found["loss"], case["loss"], PAGE, name)


def test_losses_of_typed_numbers_are_those_of_the_library() -> None:
    for case in CASES["typed"]:
        assert page_cases.write_tokens(case["truth"], case["said"], case["padded"]) == (
            case["labels"],
            case["spoken"],
        )
        found = page_cases.of_typed(
            case["labels"], case["spoken"], case["sure"], case["sigma"], case["padded"]
        )
        for name, expected in case["losses"].items():
            assert_close(filled(found[name]), filled(expected), PAGE, name)


def test_readings_of_the_cases_are_those_of_the_library() -> None:
    for case in CASES["readings"]:
        found = page_cases.of_distribution(page_cases.distribution_of(case["bumps"]))
        assert (found["greedy"], found["quantiles"]) == (case["greedy"], case["quantiles"])
        assert_close(found["mean"], case["mean"], PAGE)


@pytest.mark.parametrize("model", range(len(MODELS)))
def test_the_rounded_models_reproduce_the_cases(model: int) -> None:
    for case in [case for case in CASES["models"] if case["model"] == model][::4]:
        found = page_cases.of_model(MODELS[model], case["question"])
        assert (found["greedy"], found["quantiles"]) == (case["greedy"], case["quantiles"])
        for name in ("first_digit", "cumulated"):
            assert_close(tensor(found[name]), tensor(case[name]), PAGE, name)
        assert_close(found["mean"], case["mean"], PAGE)


def test_quantiles_of_the_library_are_those_of_the_whole_distribution() -> None:
    for case in CASES["models"]:
        model = make_data.unpack(MODELS[case["model"]])
        probs = make_data.distributions(model, MODELS[case["model"]], [case["question"]])
        read = make_data.read_distributions(probs)
        assert [read[name].item() for name in ("low", "median", "high")] == case["quantiles"][::2]


def test_rounding_the_weights_again_changes_nothing() -> None:
    packed = MODELS[0]
    tokenizer = character_tokenizer()
    again = make_data.pack(make_data.unpack(packed).float(), tokenizer)
    assert again["tensors"] == packed["tensors"]
    before, after = (make_data.page_weights(make_data.unpack(each)) for each in (packed, again))
    assert_close(after, before, PAGE)


def test_a_model_that_the_page_cannot_compute_is_refused() -> None:
    with pytest.raises(ValueError, match="no weight of a T5"):
        make_data.page_name("encoder.block.0.layer.1.DenseReluDense.wi_0.weight")


def test_what_the_page_says_about_the_labs_tokenizer_is_what_inspect_says() -> None:
    shown = {tokenizer["name"]: tokenizer for tokenizer in make_data.read_constant("tokenizers")}[
        "the lab's own"
    ]
    found = json.loads(json.dumps(make_data.inspect(character_tokenizer())))
    assert found == {key: shown[key] for key in found}


def test_the_page_computes_the_losses_and_gradients_of_the_library(open_page: Callable[..., Any]) -> None:
    cases = CASES["losses"]
    for case, found in zip(cases, open_page().evaluate(LOSSES, cases), strict=True):
        assert_close(found["loss"], case["loss"], PAGE, case["name"])
        assert_close(tensor(found["gradient"]), tensor(case["gradient"]), PAGE, case["name"])


def test_the_page_computes_the_losses_of_whole_numbers_as_the_library_does(
    open_page: Callable[..., Any],
) -> None:
    cases = CASES["typed"]
    for case, found in zip(cases, open_page().evaluate(TYPED, cases), strict=True):
        assert (found["labels"], found["said"]) == (case["labels"], case["spoken"])
        assert set(found["losses"]) == set(case["losses"])
        for name, expected in case["losses"].items():
            shown = found["losses"][name]
            assert [x is None for x in shown["tokens"]] == [x is None for x in expected["tokens"]], name
            assert_close(filled(shown), filled(expected), PAGE, f"{case['truth']}, {case['said']}: {name}")


def test_the_page_reads_typed_numbers_as_the_library_does(open_page: Callable[..., Any]) -> None:
    texts = page_cases.NUMBERS.split()
    assert open_page().evaluate(NUMBERS, texts) == [parse_number(text, "whole") for text in texts]


def test_the_page_splits_texts_as_the_tokenizers_do(open_page: Callable[..., Any]) -> None:
    cases = CASES["splits"]
    assert cases == page_cases.split_cases()
    assert open_page().evaluate(SPLITS, cases) == [case["pieces"] for case in cases]


def filled(losses: dict[str, Any]) -> torch.Tensor:
    """The losses of the tokens, 0 where there is none, then that of the number."""
    return tensor([x or 0.0 for x in (*losses["tokens"], losses["whole"])])


def test_the_page_reads_numbers_as_the_library_does(open_page: Callable[..., Any]) -> None:
    cases = CASES["readings"]
    probs = [page_cases.distribution_of(case["bumps"]).tolist() for case in cases]
    found = open_page().evaluate(READINGS, {"probs": probs, "quantiles": page_cases.QUANTILES})
    for case, read in zip(cases, found, strict=True):
        assert (read["greedy"], read["quantiles"]) == (case["greedy"], case["quantiles"])
        assert [read["low"], read["median"], read["high"]] == case["quantiles"][::2]
        assert_close(read["mean"], case["mean"], PAGE)


@pytest.mark.parametrize("model", range(len(MODELS)))
def test_the_models_of_the_page_answer_as_in_python(open_page: Callable[..., Any], model: int) -> None:
    cases = [case for case in CASES["models"] if case["model"] == model]
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
