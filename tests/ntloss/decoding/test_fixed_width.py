"""Quantiles of numbers of one width, against every number that the masked model can write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from decoding_cases import (
    END,
    PAD,
    assert_quantile,
    batch_of,
    fixed_width,
    make_model,
    next_token,
    texts_of,
)
from tolerances import DISTRIBUTION, approx, assert_close

from ntloss import NumberVocabulary
from ntloss.decoding import number_quantiles

MODELS = ["t5", "llama", "gpt2", "mamba"]
QUESTIONS = [[3, 4, 5], [10, 2, 3, 7, 6, 11, 4], [8]]
QUANTILES = (0.05, 0.3, 0.5, 0.95)
# Four digits, to keep the oracle small; 10 and 11 are text.
DIGITS = NumberVocabulary.from_mapping({2 + d: str(d) for d in range(4)} | {6: "-", 7: "."}, vocab_size=12)
# ... also with a second form of 2, a plus, and tokens of several characters.
SPELLINGS = NumberVocabulary.from_mapping(
    {2 + d: str(d) for d in range(3)} | {5: "+", 6: "-", 7: ".", 8: " 2", 9: "12", 10: ".1", 11: "-0"},
    vocab_size=13,
)
FORMATS: list[dict[str, Any]] = [
    {"digits": 3},
    {"digits": 1, "decimals": 2},
    {"digits": 2, "decimals": 1, "signed": True},
]


def check_against_all_numbers(
    model: Any, vocabulary: NumberVocabulary, width: Mapping[str, Any], found: Any, allowed: float
) -> None:
    texts = texts_of(vocabulary)
    for i, question in enumerate(QUESTIONS):
        numbers, masses = fixed_width(next_token(model, torch.tensor(question)), texts, **width)
        for k, quantile in enumerate(found.quantiles):
            assert_quantile(found.values[i, k].item(), quantile, numbers, allowed)
        median = found.values[i, found.quantiles.index(0.5)].item()
        assert found.mass[i].item() == approx(masses[median], allowed, scale=0.1)


@pytest.mark.parametrize("width", FORMATS, ids=str)
@pytest.mark.parametrize("vocabulary", [DIGITS, SPELLINGS], ids=["digits", "spellings"])
@pytest.mark.parametrize("kind", MODELS)
def test_quantiles_equal_those_of_the_enumerated_distribution(
    kind: str, vocabulary: NumberVocabulary, width: dict[str, Any]
) -> None:
    model = make_model(kind, vocabulary.vocab_size, seed=1)
    found = number_quantiles(model, batch_of(QUESTIONS), vocabulary, QUANTILES, **width)
    check_against_all_numbers(model, vocabulary, width, found, DISTRIBUTION[torch.float32])
    assert found.exact.all()
    assert_close(found.lower, found.upper)
    assert (found.values.diff(dim=-1) >= 0).all()


@pytest.mark.parametrize("kind", MODELS)
def test_half_precision_is_as_close_as_its_rounding(kind: str) -> None:
    model = make_model(kind, DIGITS.vocab_size, seed=2, scale=0.5).to(torch.bfloat16)
    found = number_quantiles(model, batch_of(QUESTIONS), DIGITS, QUANTILES, digits=3)
    check_against_all_numbers(model, DIGITS, {"digits": 3}, found, DISTRIBUTION[torch.bfloat16])


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("options", [{"digits": 3, "signed": True}, {"max_digits": 2}], ids=str)
def test_batching_does_not_change_the_quantiles(kind: str, options: dict[str, Any]) -> None:
    model = make_model(kind, DIGITS.vocab_size, seed=3).double()
    together = number_quantiles(model, batch_of(QUESTIONS), DIGITS, QUANTILES, **options)
    for i, question in enumerate(QUESTIONS):
        alone = number_quantiles(model, batch_of([question]), DIGITS, QUANTILES, **options)
        assert_close(together.values[i : i + 1], alone.values)
        if "digits" in options:  # a search goes on as long as any question of the batch is open
            assert_close(together.mass[i : i + 1], alone.mass)


def test_an_encoders_inputs_may_be_padded_on_either_side() -> None:
    model = make_model("t5", DIGITS.vocab_size).double()
    left, right = (
        number_quantiles(model, batch_of(QUESTIONS, side), DIGITS, digits=3) for side in ("left", "right")
    )
    assert_close(left.values, right.values)
    assert_close(left.mass, right.mass)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mamba"])
def test_a_prompt_padded_on_the_right_is_refused(kind: str) -> None:
    model = make_model(kind, DIGITS.vocab_size)
    with pytest.raises(ValueError, match="padding_side = 'left'"):
        number_quantiles(model, batch_of(QUESTIONS, "right"), DIGITS, digits=3)


@pytest.mark.parametrize("kind", MODELS)
def test_every_answer_starts_with_the_prefix(kind: str) -> None:
    model = make_model(kind, DIGITS.vocab_size)
    found = number_quantiles(model, batch_of(QUESTIONS[:1]), DIGITS, (0.5,), digits=2, prefix_ids=[10, 11])
    behind = next_token(model, torch.tensor(QUESTIONS[0]))
    numbers, _ = fixed_width(lambda written: behind([10, 11, *written]), texts_of(DIGITS), digits=2)
    assert_quantile(found.values.item(), 0.5, numbers, DISTRIBUTION[torch.float32])


def test_the_prompt_runs_once_and_quantiles_share_prefixes() -> None:
    model = make_model("llama", DIGITS.vocab_size)
    calls: list[int] = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(kwargs["input_ids"].shape[-1]), with_kwargs=True
    )
    found = number_quantiles(
        model, batch_of(QUESTIONS), DIGITS, [(k + 0.5) / 40 for k in range(40)], digits=3
    )
    assert calls == [7, 1, 1, 1]
    assert found.passes == 4
    # 4 first digits and 16 pairs of digits of each question are all that there are.
    assert found.rows <= 3 * (1 + 4 + 16 + 1)


def test_quantiles_are_nan_if_the_model_rules_out_every_number() -> None:
    model = make_model("t5", DIGITS.vocab_size)
    head = torch.nn.Linear(16, DIGITS.vocab_size)
    torch.nn.init.zeros_(head.weight)
    with torch.no_grad():
        head.bias.zero_()[2:8] = -torch.inf
    model.lm_head = head
    for options in ({"digits": 3}, {"digits": 1, "decimals": 1, "signed": True}, {}):
        found = number_quantiles(model, batch_of(QUESTIONS), DIGITS, **options)
        assert found.values.isnan().all()
        assert found.lower.isnan().all()
        assert found.upper.isnan().all()
        assert not found.exact.any()
        assert not found.mass.any()
        assert found.mode.isnan().all()


def test_the_mean_is_the_average_of_equally_spaced_quantiles() -> None:
    model = make_model("t5", DIGITS.vocab_size).double()
    spaced = [(k + 0.5) / 30 for k in range(30)]
    found = number_quantiles(model, batch_of(QUESTIONS), DIGITS, [0.9, *spaced], digits=2)
    mean, error = found.mean(30)
    for i, question in enumerate(QUESTIONS):
        numbers, _ = fixed_width(next_token(model, torch.tensor(question)), texts_of(DIGITS), digits=2)
        low, high = found.values[i, 1].item(), found.values[i, -1].item()
        clipped = sum(p * min(max(x, low), high) for x, p in numbers.items())
        assert abs(mean[i].item() - clipped) <= error[i].item()
        assert 0 < error[i].item() <= (high - low) / 60 + 1e-9
    with pytest.raises(ValueError, match=r"for k in range\(7\)"):
        found.mean(7)


def test_a_batch_takes_fewer_calls_than_a_loop() -> None:
    model = make_model("t5", DIGITS.vocab_size)
    passes = {
        number_quantiles(model, batch_of(QUESTIONS * count), DIGITS, digits=3).passes for count in (1, 5)
    }
    assert passes == {4}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantiles": (0.5, 1.0), "digits": 3}, "above 0 and below 1"),
        ({"quantiles": (), "digits": 3}, "one or more numbers"),
        ({"digits": 0}, "digits of 1 or more"),
        ({"digits": 12, "decimals": 9}, "at most 18 in total"),
        ({"decimals": 2}, "pass digits="),
        ({"signed": True}, "pass digits="),
        ({"max_digits": 19}, "expected 1 to 18"),
        ({"rtol": -1.0}, "expected 0 or more"),
        ({"rows_per_pass": 0}, "expected 1 or more"),
        ({"max_rows": 0}, "expected 1 or more"),
    ],
)
def test_impossible_options_are_errors(options: dict[str, Any], message: str) -> None:
    model = make_model("t5", DIGITS.vocab_size)
    with pytest.raises(ValueError, match=message):
        number_quantiles(model, batch_of(QUESTIONS), DIGITS, **options)


@pytest.mark.parametrize(
    ("tokens", "width", "message"),
    [
        ({2: "12", 3: "34"}, {"digits": 3}, "cannot write numbers of 3 digits"),
        ({2: "1", 3: "2"}, {"digits": 1, "decimals": 1}, "a point and 1 decimals"),
        ({2: "1", 3: "2", 4: "+"}, {"digits": 1, "signed": True}, "no minus sign"),
    ],
)
def test_a_width_that_the_vocabulary_cannot_write_is_an_error(
    tokens: dict[int, str], width: dict[str, Any], message: str
) -> None:
    vocabulary = NumberVocabulary.from_mapping(tokens, vocab_size=12)
    with pytest.raises(ValueError, match=message):
        number_quantiles(make_model("t5", 12), batch_of(QUESTIONS), vocabulary, **width)


def test_tokens_that_lead_to_a_dead_end_are_masked() -> None:
    # Behind "1" or "2", a number of three digits needs "34"; two tokens of two digits are too long.
    vocabulary = NumberVocabulary.from_mapping({2: "1", 3: "2", 4: "34"}, vocab_size=12)
    model = make_model("llama", 12)
    found = number_quantiles(model, batch_of(QUESTIONS), vocabulary, QUANTILES, digits=3)
    check_against_all_numbers(model, vocabulary, {"digits": 3}, found, DISTRIBUTION[torch.float32])


def test_unsupported_models_and_inputs_are_errors() -> None:
    model, inputs = make_model("llama", DIGITS.vocab_size), batch_of(QUESTIONS)
    with pytest.raises(TypeError, match="return_tensors='pt'"):
        number_quantiles(model, inputs["input_ids"], DIGITS, digits=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="labels"):
        number_quantiles(model, {**inputs, "labels": inputs["input_ids"]}, DIGITS, digits=3)
    with pytest.raises(ValueError, match=r"call model\.eval"):
        number_quantiles(model.train(), inputs, DIGITS, digits=3)
    model.eval()
    with pytest.raises(ValueError, match="12 wide"):
        number_quantiles(model, inputs, SPELLINGS, digits=3)
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    with pytest.raises(ValueError, match="Pass eos_token_id"):
        number_quantiles(model, inputs, DIGITS, digits=3)
    assert number_quantiles(model, inputs, DIGITS, digits=3, eos_token_id=[END, PAD]).values.isfinite().all()
