"""A criterion of one's own, and criteria by name: what the names of parameters mean."""

import functools
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from combined_cases import DIGITS, NUMBERS, make_case, numbers_case, squared_distance
from tolerances import assert_close

from ntloss import (
    HLGauss,
    NTLCrossEntropyLoss,
    NumberVocabulary,
    crps,
    dist2,
    gaussian_smoothing,
    ntl_was,
)
from ntloss.criteria import CRITERIA, READABLE, made_once, make_criterion
from ntloss.criteria.signature import name_of, reads_of

HUNDREDS = NumberVocabulary.from_mapping({n: n for n in range(1000)}, vocab_size=1001)
OPTIONS = {"hl_gauss": {"sigma": 2.0}}


def everything(
    probs, log_probs, logits, vocab_log_probs, log_mass, values,
    target, target_probs, place, digits_after, numbers, digits, cells, number_sigma, own_values,
):  # fmt: skip
    """Read all that there is."""
    shape = len(target), len(values)
    assert probs.shape == log_probs.shape == logits.shape == vocab_log_probs.shape == shape
    assert torch.equal(target_probs.argmax(-1), target)
    assert cells.shape[-1] == len(values)
    assert own_values is None
    assert len(log_mass) == len(place) == len(digits_after) == len(numbers.starts) == len(digits.length)
    return torch.zeros_like(log_mass)


def test_a_criterion_may_read_every_name():
    assert set(reads_of(everything)) == set(READABLE)
    case = numbers_case("ntil")
    for mode in ("add", "replace"):
        loss_fn = NTLCrossEntropyLoss(NUMBERS, everything, mode=mode)
        assert loss_fn.terms(case.logits(), case.labels).ntl == 0


@pytest.mark.parametrize(
    "given",
    [
        dist2,
        "dist2",
        {"name": "dist2"},
        {"name": dist2},
        "ntloss.criteria.tokens:dist2",
        partial(dist2, tau=1.0),
    ],
)
def test_a_function_its_name_a_mapping_and_its_place_mean_the_same(given):
    case = make_case(5)
    wanted = NTLCrossEntropyLoss(NUMBERS, dist2)(case.logits(), case.labels)
    assert_close(NTLCrossEntropyLoss(NUMBERS, given)(case.logits(), case.labels), wanted)


def in_turn(kind):
    torch._dynamo.reset()
    return torch.compile(kind, fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize("own", [squared_distance, f"{__name__}:power"])
def test_a_criterion_of_ones_own_serves_logits_hidden_states_and_the_compiler(own):
    case = make_case(6, bias=False)
    loss_fn = NTLCrossEntropyLoss(NUMBERS, own)
    wanted = loss_fn(case.logits(), case.labels)
    assert_close(loss_fn.from_hidden(case.hidden, case.weight, case.labels), wanted)
    assert_close(in_turn(loss_fn)(case.logits(), case.labels), wanted)


@functools.wraps(gaussian_smoothing)
def squared_smoothing(*args, **kwargs):
    return gaussian_smoothing(*args, **kwargs).square()


class SquaredGauss(HLGauss):
    @functools.wraps(HLGauss.__call__)
    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **kwargs).square()


@pytest.mark.parametrize("own", [squared_smoothing, SquaredGauss(2.0)])
def test_what_is_computed_from_a_cross_entropy_has_one_gradient_on_both_paths(own):
    case = make_case(2, 6, bias=False)
    leaves = case.hidden.requires_grad_(), case.weight.requires_grad_()
    loss_fn = NTLCrossEntropyLoss(NUMBERS, own)
    wanted = torch.autograd.grad(loss_fn(case.logits(), case.labels), leaves)
    assert_close(torch.autograd.grad(loss_fn.from_hidden(*leaves, case.labels), leaves), wanted)


def power(probs, values, target, exponent=1.5):
    return (probs * (values - values[target].unsqueeze(-1)).abs() ** exponent).sum(-1)


class Learnt(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, probs, values, target):
        return self.scale * crps(probs, values, target)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_module_with_parameters_is_trained(reduction):
    case, learnt = make_case(6, bias=False), Learnt()
    loss_fn = NTLCrossEntropyLoss(NUMBERS, learnt, reduction=reduction)
    head, found = case.weight.clone().requires_grad_(), []
    for loss in (
        loss_fn(F.linear(case.hidden, head), case.labels),
        loss_fn.from_hidden(case.hidden, head, case.labels),
    ):
        found.append(torch.autograd.grad(loss.sum(), (head, learnt.scale)))
    assert found[0][1].abs() > 0
    assert_close(*found)


def misspelled(prob, values, target):
    return prob


@pytest.mark.parametrize(
    ("given", "error", "names"),
    [
        ("wassersten", ValueError, "ntl_was"),
        ({"tau": 2.0}, ValueError, "name"),
        (partial(dist2, tua=2.0), ValueError, "tua.*tau"),
        ({"name": "dist2", "temperature": 2.0}, ValueError, "temperature.*tau"),
        ({"name": "hl_gauss", "width": 2.0}, ValueError, "width"),
        ("hl_gauss", ValueError, "sigma"),
        (3, TypeError, "criterion"),
        (HLGauss, ValueError, "sigma"),
        (Learnt, TypeError, "Learnt"),
        (misspelled, TypeError, "prob.*log_mass"),
        (lambda: 0, TypeError, "probs"),
        (lambda **options: 0, TypeError, "probs"),
    ],
)
def test_what_is_no_criterion_is_an_error(given, error, names):
    with pytest.raises(error, match=names):
        NTLCrossEntropyLoss(NUMBERS, given)


@pytest.mark.parametrize("criterion", [lambda probs: probs.sum(), lambda probs: None])
def test_one_loss_for_each_position_is_expected(criterion):
    case = make_case(5)
    with pytest.raises(ValueError, match="criterion"):
        NTLCrossEntropyLoss(NUMBERS, criterion)(case.logits(), case.labels)


@pytest.mark.parametrize("given", ["ntl_was", "ntl_mse", "ntl_mae", "ntl_huber", "crps", "ntil"])
def test_a_loss_in_units_of_hundreds_is_an_error_that_names_hl_gauss(given):
    with pytest.raises(ValueError, match="HLGauss"):
        NTLCrossEntropyLoss(HUNDREDS, given)
    NTLCrossEntropyLoss(DIGITS, given)


def test_the_sources_of_some_criteria_replace_cross_entropy():
    modes = {
        name: NTLCrossEntropyLoss(DIGITS, {"name": name, **OPTIONS.get(name, {})}).mode for name in CRITERIA
    }
    assert {name for name, mode in modes.items() if mode == "replace"} == {
        "hl_gauss",
        "gaussian_smoothing",
        "raft",
    }
    assert NTLCrossEntropyLoss(DIGITS, "raft", mode="add").mode == "add"
    assert NTLCrossEntropyLoss(DIGITS, {"name": "gaussian_smoothing", "sigma": 2.0}).mode == "replace"


def test_a_criterion_is_named_as_a_reader_would_write_it():
    assert name_of(ntl_was) == "ntl_was"
    assert name_of(make_criterion({"name": "dist2", "tau": 0.5})) == "dist2(tau=0.5)"
    assert "HLGauss(sigma=2)" in repr(NTLCrossEntropyLoss(DIGITS, HLGauss(2.0)))


def test_tables_are_made_once_for_each_loss_and_dtype():
    made = []

    @made_once
    def costs(values, power):
        made.append(values)
        return (values - values.unsqueeze(-1)).abs() ** power

    def criterion(probs, values, target, power=2.0):
        return (probs * costs(values, power)[target]).sum(-1)

    case = make_case(6)
    for options in ({}, {"power": 3.0}):
        loss_fn = NTLCrossEntropyLoss(NUMBERS, partial(criterion, **options))
        for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.float32):
            with torch.inference_mode():
                loss_fn(case.logits(dtype), case.labels)
            loss_fn(case.logits(dtype).requires_grad_(), case.labels).backward()
    assert len(made) == 4
    assert {values.dtype for values in made} == {torch.float64}
    twin = NTLCrossEntropyLoss(NUMBERS, criterion)
    assert_close(
        twin.to("meta")(case.logits().to("meta"), case.labels.to("meta")).shape,
        torch.Size([]),
    )


def test_tables_take_the_keywords_of_their_functions_and_are_bounded():
    values, made = torch.arange(5.0), []

    @made_once
    def table(values, power, *, scale=1.0):
        made.append(power)
        return scale * values**power

    for power in (*range(60), 59):
        table(values, power)
    assert len(made) == 60
    assert table(power=0, values=values, scale=2.0).tolist() == [2.0] * 5


def test_a_tensor_that_is_filled_in_place_gives_a_new_table():
    case = make_case(6)
    width = torch.tensor(1.0)
    loss_fn = NTLCrossEntropyLoss(NUMBERS, partial(gaussian_smoothing, sigma=width))
    narrow = loss_fn(case.logits(), case.labels)
    width.fill_(5.0)
    wide = NTLCrossEntropyLoss(NUMBERS, partial(gaussian_smoothing, sigma=5.0))(case.logits(), case.labels)
    assert_close(loss_fn(case.logits(), case.labels), wide)
    assert not torch.equal(narrow, wide)


def test_a_wrapped_criterion_keeps_its_meaning():
    def wrapped(criterion):
        @functools.wraps(criterion)
        def called(*args, **options):
            return criterion(*args, **options)

        return called

    assert NTLCrossEntropyLoss(DIGITS, wrapped(gaussian_smoothing)).mode == "replace"
    assert NTLCrossEntropyLoss(DIGITS, partial(wrapped(gaussian_smoothing), sigma=2.0)).mode == "replace"
    with pytest.raises(ValueError, match="crps"):
        NTLCrossEntropyLoss(HUNDREDS, wrapped(crps))


def of_sigma(probs, values, number_sigma):
    return (probs @ values) * number_sigma


def test_criteria_on_whole_numbers_need_tokens_of_digits():
    words = replace(
        DIGITS,
        tokens=tuple(replace(token, text=f"level {chr(97 + i)}") for i, token in enumerate(DIGITS.tokens)),
    )
    decimals = NumberVocabulary.from_mapping({i: f"0.{i}" for i in range(1, 10)}, vocab_size=12)
    for vocabulary, criterion, reads in (
        (words, HLGauss(1.0), "digits"),
        (words, "number_level", "numbers"),
        (words, of_sigma, "number_sigma"),
        (decimals, HLGauss(1.0), "digits"),
    ):
        with pytest.raises(ValueError, match=reads):
            NTLCrossEntropyLoss(vocabulary, criterion)
    NTLCrossEntropyLoss(words, "crps")
    NTLCrossEntropyLoss(decimals, "number_level")
