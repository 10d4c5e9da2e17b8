"""Invalid options and inputs of the losses: the errors say what was given and what was expected."""

import inspect
import re
from typing import Any

import pytest
import torch
from combined_cases import HIDDEN, NUMBERS, VOCAB
from tolerances import approx

from ntloss import (
    GaussianCrossEntropy,
    NTLCrossEntropyLoss,
    NTLLinearCrossEntropyLoss,
    NTLoss,
    NTLossDotProduct,
    NumberLevelLoss,
    NumberTokenLoss,
    Wasserstein,
)
from ntloss.engine import targets

BOTH = (NTLCrossEntropyLoss, NTLLinearCrossEntropyLoss)
ALL = (*BOTH, NumberTokenLoss)
OF_LOGITS = ("logits", "alone")
OF_HIDDEN = ("linear", "linear, all positions", "alone from hidden")
META = torch.device("meta")
NAN, INF = float("nan"), float("inf")


class Unbounded:
    def __repr__(self):
        return "Unbounded()"  # a test's name contains it, so no address

    def __call__(self, x):
        return -x.log_probs.gather(-1, x.target.unsqueeze(-1)).squeeze(-1)


class Summed(Unbounded):
    def __call__(self, x):
        return x.probs.sum()


class Learnt(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x.probs.sum(-1) * self.scale


def call(which, options=None, **changes):
    """Compute a loss of three positions with some of its inputs changed."""
    options = options or {}
    given: dict[str, Any] = {"labels": torch.tensor([9, 4, 3]), **changes}
    if which in OF_LOGITS:
        kind = NTLCrossEntropyLoss if which == "logits" else NumberTokenLoss
        return kind(NUMBERS, **options)(given.pop("logits", torch.zeros(3, VOCAB)), **given)
    hidden = given.pop("hidden_states", torch.zeros(3, HIDDEN))
    weight = given.pop("lm_head_weight", torch.zeros(VOCAB, HIDDEN))
    if which == "alone from hidden":
        return NumberTokenLoss(NUMBERS, **options).from_hidden(hidden, weight, **given)
    options = {"drop_ignored": which == "linear", **options}
    return NTLLinearCrossEntropyLoss(NUMBERS, **options)(hidden, weight, **given)


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"mode": "both"}, ValueError, "mode='both': expected 'add' or 'replace'"),
        ({"label_smoothing": -0.1}, ValueError, "label_smoothing=-0.1: expected 0 to 1"),
        ({"label_smoothing": 1.5}, ValueError, "label_smoothing=1.5: expected 0 to 1"),
        ({"label_smoothing": NAN}, ValueError, "label_smoothing=nan: expected 0 to 1"),
        ({"z_loss": -1.0}, ValueError, "z_loss=-1.0: expected 0 or more"),
        ({"z_loss": INF}, ValueError, "z_loss=inf: expected 0 or more"),
        ({"z_loss": NAN}, ValueError, "z_loss=nan: expected 0 or more"),
        ({"reduction": "average"}, ValueError, "reduction='average': expected 'mean', 'sum' or 'none'"),
        ({"weight": "0.3"}, ValueError, "weight='0.3': expected"),
        ({"smoothing": 0.1}, TypeError, "smoothing"),
    ],
    ids=str,
)
def test_options_out_of_range_raise_an_error(kind, options, error, says):
    with pytest.raises(error, match=re.escape(says)):
        kind(NUMBERS, **options)


@pytest.mark.parametrize("kind", [*ALL, NTLoss, NTLossDotProduct, NumberLevelLoss])
def test_an_option_that_is_assigned_later_is_an_error(kind, digits):
    made = kind(digits)
    fixed = set(inspect.signature(kind).parameters)
    # Those that take effect, and those that the vocabulary has been made from.
    fixed -= {"weight", "return_terms", "group", "tokenizer", "max_number_length"}
    for name in fixed - {"vocab_size", "digit_level", "space_prefixed"}:
        with pytest.raises(AttributeError, match=f"{name} is fixed when .*: make a new {kind.__name__} with"):
            setattr(made, name, None)


@pytest.mark.parametrize("kind", ALL)
def test_no_argument_is_advised_that_a_loss_does_not_have(kind, digits):
    options = {"softcap", "chunk_size", "z_loss", "reweigh"} - set(inspect.signature(kind).parameters)
    assert options
    for name in options:
        with pytest.raises(AttributeError, match=name) as error:
            setattr(kind(digits), name, 3.0)
        assert f"{name}=" not in str(error.value)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize(
    ("criterion", "error", "says"),
    [
        ("wassersten", ValueError, "wassersten.*wasserstein"),
        (3, TypeError, "criterion.*expected"),
        (Wasserstein, TypeError, r"Wasserstein is a class: expected an instance, Wasserstein\(\)"),
    ],
    ids=["name", "number", "class"],
)
def test_an_invalid_criterion_is_an_error(kind, criterion, error, says):
    with pytest.raises(error, match=says):
        kind(NUMBERS, criterion)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("given", [None, {4: 4.0}, 50_000], ids=["None", "dict", "int"])
def test_an_invalid_vocabulary_is_an_error(kind, given):
    with pytest.raises(TypeError, match=f"NumberVocabulary, given {type(given).__name__}"):
        kind(given)


@pytest.mark.parametrize("chunk_size", [0, -4, 2.5, "64"])
def test_an_invalid_chunk_size_is_an_error(chunk_size):
    with pytest.raises((TypeError, ValueError), match=r"chunk_size=.*expected 1 or more tokens, or None"):
        NTLLinearCrossEntropyLoss(NUMBERS, chunk_size=chunk_size)


@pytest.mark.parametrize("which", ["logits", "linear"])
@pytest.mark.parametrize("weight", [-1.0, NAN, INF])
def test_an_invalid_weight_is_an_error_whenever_it_is_set(which, weight):
    loss_fn = (NTLCrossEntropyLoss if which == "logits" else NTLLinearCrossEntropyLoss)(NUMBERS)
    with pytest.raises(ValueError, match=r"weight=.*expected"):
        loss_fn.weight = weight  # a negative one would reward wrong numbers
    assert loss_fn.weight == 0.3
    for given in (weight, torch.tensor(weight)):
        with pytest.raises(ValueError, match=r"weight=.*expected"):
            call(which, {"weight": given})


@pytest.mark.parametrize("settings", [{"vocab_size": 13}, {"digit_level": False}, {"space_prefixed": True}])
@pytest.mark.parametrize("kind", [NTLoss, NTLossDotProduct])
def test_settings_that_contradict_the_vocabulary_are_errors(kind, settings, digits):
    name, value = next(iter(settings.items()))
    with pytest.raises(ValueError, match=f"{name}={value}"):
        kind(digits, **settings)
    assert kind(digits, vocab_size=12).vocab_size == 12


def test_a_criterion_with_a_wrong_shape_or_with_parameters_is_an_error():
    with pytest.raises(ValueError, match=r"Unbounded.*returned shape \[\].*expected one loss"):
        call("logits", {"criterion": Summed()})
    NTLCrossEntropyLoss(NUMBERS, Learnt())
    with pytest.raises(ValueError, match="Learnt has trainable parameters"):
        NTLLinearCrossEntropyLoss(NUMBERS, Learnt())


# --- labels, weights, counts ----------------------------------------------------------------------


@pytest.mark.parametrize("which", [*OF_LOGITS, "linear", "alone from hidden"])
@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"labels": torch.tensor([9, 2])}, ValueError, r"labels of shape \[2\] do not fit: expected \[3\]"),
        ({"labels": torch.zeros(3, 1).long()}, ValueError, r"labels of shape \[3, 1\] do not fit"),
        ({"labels": torch.tensor([9.0, 2.0, 3.0])}, TypeError, "token ids, torch.int64, given torch.float32"),
        ({"labels": torch.zeros(3).bool()}, TypeError, "token ids, torch.int64, given torch.bool"),
        ({"labels": [9, 2, 3]}, TypeError, "token ids, torch.int64, given list"),
        ({"labels": None}, TypeError, "token ids, torch.int64, given NoneType"),
        ({"labels": torch.tensor([9, 2, VOCAB])}, ValueError, "label 23 lies outside .* expected 0 to 22"),
        ({"labels": torch.tensor([9, -1, 3])}, ValueError, "label -1 lies outside .* ignore_index=-100"),
        ({"labels": torch.zeros(3, device=META).long()}, ValueError, "labels are on meta"),
        ({"loss_weights": torch.ones(2)}, ValueError, r"loss_weights of shape \[2\]: expected .* \[3\]"),
        ({"loss_weights": torch.tensor([1.0, -1.0, 0.0])}, ValueError, "loss_weights contain -1.0: expected"),
        ({"loss_weights": torch.tensor([1.0, NAN, 0.0])}, ValueError, "loss_weights contain nan: expected"),
        ({"loss_weights": torch.ones(3).cfloat()}, TypeError, "loss_weights: expected a real .*complex64"),
        ({"loss_weights": [1.0, 1.0, 1.0]}, TypeError, "loss_weights: expected a real tensor, given list"),
        ({"loss_weights": 1.0}, TypeError, "loss_weights: expected a real tensor, given float"),
        ({"loss_weights": torch.ones(3, device=META)}, ValueError, "loss_weights are on meta"),
    ],
    ids=str,
)
def test_invalid_labels_and_weights_are_errors(which, changes, error, says, monkeypatch):
    with pytest.raises(error, match=says):
        call(which, **changes)
    if "contain" not in says and "outside" not in says:  # errors that need no values
        monkeypatch.setattr(targets, "_reads_values", lambda tensor: False)
        with pytest.raises(error, match=says):
            call(which, **changes)


@pytest.mark.parametrize("which", ["logits", "linear"])
@pytest.mark.parametrize(
    ("options", "count", "says"),
    [
        ({"reduction": "sum"}, 3, "divisor of reduction='mean': omit it with reduction='sum'"),
        ({"reduction": "none"}, 3, "divisor of reduction='mean': omit it with reduction='none'"),
        # Otherwise the loss would silently be zero.
        ({}, -3, "num_items_in_batch=-3: expected 0 or more"),
        ({}, NAN, "num_items_in_batch=nan: expected 0 or more"),
        ({}, torch.tensor(-3), r"num_items_in_batch=-3: expected 0 or more"),
    ],
    ids=str,
)
def test_an_invalid_count_is_an_error(which, options, count, says):
    with pytest.raises(ValueError, match=says):
        call(which, options, num_items_in_batch=count)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("which", [*OF_LOGITS, *OF_HIDDEN])
def test_float8_is_an_error_that_names_the_dtypes_to_cast_to(which, dtype):
    inputs = {"logits": torch.zeros(3, VOCAB)} if which in OF_LOGITS else {"hidden_states": torch.zeros(3, 6)}
    with pytest.raises(TypeError, match=r"float8.*cast float8.*to bfloat16 or float32"):
        call(which, **{name: tensor.to(dtype) for name, tensor in inputs.items()})


@pytest.mark.parametrize("which", OF_HIDDEN)
def test_logits_of_a_head_that_overflow_float16_are_an_error(which):
    hidden = torch.full((3, HIDDEN), 200.0).half()
    weight = torch.full((VOCAB, HIDDEN), 50.0).half()
    assert call(which, hidden_states=hidden, lm_head_weight=weight).isfinite()  # 60,000 each
    with pytest.raises(ValueError, match="logits in float16 exceed its largest number"):
        call(which, hidden_states=2 * hidden, lm_head_weight=weight)


@pytest.mark.parametrize("which", ["logits", "linear"])
def test_shifting_labels_without_a_sequence_is_an_error(which):
    one = {"logits": torch.zeros(VOCAB)} if which == "logits" else {"hidden_states": torch.zeros(HIDDEN)}
    with pytest.raises(ValueError, match=r"shift.*expected"):
        call(which, {"shift": True}, labels=torch.tensor(9), **one)


def test_normalizers_check_labels_and_weights():
    module = NTLCrossEntropyLoss(NUMBERS)
    with pytest.raises(TypeError, match=r"token ids, torch.int64, given torch.float32"):
        module.normalizers(torch.zeros(3))
    with pytest.raises(ValueError, match="label 99 lies outside"):
        module.normalizers(torch.tensor([99]))
    with pytest.raises(ValueError, match=r"loss_weights of shape \[1\]"):
        module.normalizers(torch.tensor([9, 2]), torch.ones(1))


def test_normalizers_are_exact_for_logits_in_float64():
    weights = torch.rand(50, dtype=torch.float64)
    items, numbers = NTLCrossEntropyLoss(NUMBERS).normalizers(torch.full((50,), 9), weights)
    assert items.dtype == torch.float64
    assert (items.item(), numbers.item()) == approx((weights.sum().item(),) * 2, dtype=torch.float64)


# --- logits, hidden states, heads -----------------------------------------------------------------


@pytest.mark.parametrize("which", OF_LOGITS)
@pytest.mark.parametrize(
    ("logits", "error", "says"),
    [
        (torch.zeros(3, VOCAB + 1), ValueError, r"shape \[3, 24\] .* vocabulary's size, 23.*vocab_size"),
        (torch.tensor(0.0), ValueError, r"shape \[\] .* vocabulary's size, 23"),
        (torch.zeros(3, VOCAB).long(), TypeError, "floating-point .* torch.int64"),
        (torch.zeros(3, VOCAB).cfloat(), TypeError, "floating-point .*complex64"),
        ([[0.0] * VOCAB] * 3, TypeError, "floating-point .* given list"),
        (None, TypeError, "floating-point .* given NoneType"),
    ],
    ids=["width", "scalar", "ints", "complex", "list", "None"],
)
def test_invalid_logits_are_errors(which, logits, error, says):
    with pytest.raises(error, match=f"(?s){says}"):
        call(which, logits=logits)


# PyTorch's own error is enough if it names both dtypes or devices.
@pytest.mark.parametrize("which", OF_HIDDEN)
@pytest.mark.parametrize(
    ("name", "given", "error", "says"),
    [
        ("hidden_states", torch.zeros(3, 7), ValueError, r"shape \[23, 6\] does not fit .* \[3, 7\]"),
        ("hidden_states", torch.zeros(3, 6).long(), TypeError, "hidden_states: .* torch.int64"),
        ("hidden_states", [[0.0] * 6] * 3, TypeError, "hidden_states: expected .* given list"),
        ("hidden_states", torch.tensor(0.0), ValueError, r"does not fit hidden_states of shape \[\]"),
        ("lm_head_weight", torch.zeros(22, 6), ValueError, "has 22 rows, the vocabulary 23 tokens"),
        ("lm_head_weight", torch.zeros(6, 23), ValueError, r"\[6, 23\] does not fit .* expected \[vocab"),
        ("lm_head_weight", torch.zeros(1, 23, 6), ValueError, r"shape \[1, 23, 6\] does not fit"),
        ("lm_head_weight", torch.nn.Linear(6, 23), TypeError, "lm_head_weight: expected .* given Linear"),
        ("lm_head_weight", torch.zeros(23, 6, device=META), ValueError, "lm_head_weight on meta"),
        ("lm_head_weight", torch.zeros(23, 6).bfloat16(), Exception, "(?i)float.*bfloat16"),
        ("bias", torch.zeros(22), ValueError, r"bias of shape \[22\]: expected \[vocab\] = \[23\]"),
        ("bias", torch.zeros(23, 1), ValueError, r"bias of shape \[23, 1\]: expected \[vocab\] = \[23\]"),
        ("bias", True, TypeError, "bias: expected .* given bool"),
        ("bias", torch.zeros(23, device=META), Exception, "on (device )?meta"),
        ("bias", torch.zeros(23).bfloat16(), Exception, "(?i)float32, bias is .*bfloat16"),
    ],
)
def test_an_invalid_head_is_an_error(which, name, given, error, says):
    with pytest.raises(error, match=says):
        call(which, **{name: given})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        *[
            ({name: value}, f"{name}={value}: expected a number above 0")
            for name in ("softcap", "logit_scale")
            for value in (0.0, -30.0, INF, NAN)
        ],
        ({"reduction": "average"}, "reduction='average': expected 'mean', 'sum' or 'none'"),
        ({"ignore_index": 9, "labels": torch.tensor([9, -100, 3])}, "label -100 lies outside"),
    ],
    ids=str,
)
def test_invalid_options_of_a_call_are_errors(options, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        call("alone from hidden", **options)
    transforms = bool({"softcap", "logit_scale"} & set(options))
    with pytest.raises(ValueError, match=re.escape(says)):
        NTLLinearCrossEntropyLoss(NUMBERS, **options) if transforms else call("alone", **options)


def test_from_hidden_requires_the_log_normalizer_if_the_criterion_does():
    with pytest.raises(ValueError, match="log_normalizer"):
        call("alone from hidden", {"criterion": GaussianCrossEntropy()})


def test_predict_numbers_checks_the_logits(digits):
    with pytest.raises(ValueError, match=r"\[1, 2, 13\].*12"):
        NTLossDotProduct(digits).predict_numbers(torch.zeros(1, 2, 13))
    with pytest.raises(TypeError, match=r"int64"):
        NTLossDotProduct(digits).predict_numbers(torch.zeros(1, 2, 12, dtype=torch.int64))


# --- when values are read -------------------------------------------------------------------------


@pytest.mark.parametrize("which", OF_LOGITS)
def test_values_on_other_devices_are_not_read(which):
    # The meta device has no values, so reading one raises an error.
    on_meta = {"logits": torch.zeros(3, VOCAB, device=META), "labels": torch.zeros(3, device=META).long()}
    assert call(which, **on_meta).device.type == "meta"
    weight = torch.tensor(-1.0, device=META)
    if which == "logits":
        assert call(which, {"weight": weight}, **on_meta).device.type == "meta"
