"""Invalid options and inputs of the losses: the errors name the argument."""

import pickle
from functools import partial
from typing import Any

import pytest
import torch
from combined_cases import HIDDEN, NUMBERS, VOCAB
from tolerances import assert_close

from ntloss import (
    NTLCrossEntropyLoss,
    NTLoss,
    NTLossDotProduct,
    NumberVocabulary,
    SoftTargets,
    number_level,
)
from ntloss.engine import targets
from ntloss.engine.targets import LabelReader, PreparedLabels

OF_LOGITS = ("logits", "alone")
META = torch.device("meta")
NAN, INF = float("nan"), float("inf")


def call(which, options=None, **changes):
    """Compute a loss of three positions with some of its inputs changed."""
    options = options or {}
    given: dict[str, Any] = {"labels": torch.tensor([9, 4, 3]), **changes}
    loss_fn = (NTLoss if which == "alone" else NTLCrossEntropyLoss)(NUMBERS, **options)
    if which != "alone" and "weights" in given:
        given["labels"] = loss_fn.prepare(given["labels"], weights=given.pop("weights"))
    elif "weights" in given:
        given["loss_weights"] = given.pop("weights")
    if which in OF_LOGITS:
        return loss_fn(given.pop("logits", torch.zeros(3, VOCAB)), **given)
    hidden = given.pop("hidden_states", torch.zeros(3, HIDDEN))
    return loss_fn.from_hidden(hidden, given.pop("lm_head_weight", torch.zeros(VOCAB, HIDDEN)), **given)


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"mode": "both"}, ValueError),
        ({"label_smoothing": -0.1}, ValueError),
        ({"label_smoothing": 1.5}, ValueError),
        ({"label_smoothing": NAN}, ValueError),
        ({"reduction": "average"}, ValueError),
        ({"weight": "0.3"}, ValueError),
        *[({"weight": weight}, ValueError) for weight in (-1.0, NAN, INF)],
        *[({"weight": torch.tensor(weight)}, ValueError) for weight in (-1.0, NAN, INF, 1)],
        ({"smoothing": 0.1}, TypeError),
    ],
    ids=str,
)
def test_options_out_of_range_raise_an_error(options, error):
    with pytest.raises(error, match=next(iter(options))):
        NTLCrossEntropyLoss(NUMBERS, **options)


@pytest.mark.parametrize("kind", [NTLCrossEntropyLoss, NTLoss])
@pytest.mark.parametrize("given", [None, {4: 4.0}, 50_000], ids=["None", "dict", "int"])
def test_an_invalid_vocabulary_is_an_error(kind, given):
    with pytest.raises(TypeError, match=type(given).__name__):
        kind(given)


@pytest.mark.parametrize("settings", [{"vocab_size": 13}, {"digit_level": False}, {"space_prefixed": True}])
@pytest.mark.parametrize("kind", [NTLoss, NTLossDotProduct])
def test_settings_that_contradict_the_vocabulary_are_errors(kind, settings, digits):
    name, value = next(iter(settings.items()))
    with pytest.raises(ValueError, match=f"{name}={value}"):
        kind(digits, **settings)
    assert kind(digits, vocab_size=12).vocab_size == 12


# --- labels, weights, counts ----------------------------------------------------------------------


@pytest.mark.parametrize("which", [*OF_LOGITS, "hidden"])
@pytest.mark.parametrize(
    ("changes", "error", "reads_values"),
    [
        ({"labels": torch.tensor([9, 2])}, ValueError, False),
        ({"labels": torch.zeros(3, 1).long()}, ValueError, False),
        ({"labels": torch.tensor([9.0, 2.0, 3.0])}, TypeError, False),
        ({"labels": torch.zeros(3).bool()}, TypeError, False),
        ({"labels": [9, 2, 3]}, TypeError, False),
        ({"labels": None}, TypeError, False),
        ({"labels": torch.zeros(3, device=META).long()}, ValueError, False),
        ({"labels": torch.tensor([9, 2, VOCAB])}, ValueError, True),
        ({"labels": torch.tensor([9, -1, 3])}, ValueError, True),
        ({"weights": torch.ones(2)}, ValueError, False),
        ({"weights": torch.tensor([1.0, -1.0, 0.0])}, ValueError, True),
        ({"weights": torch.tensor([1.0, NAN, 0.0])}, ValueError, True),
        ({"weights": torch.ones(3).cfloat()}, TypeError, False),
        ({"weights": [1.0, 1.0, 1.0]}, TypeError, False),
        ({"weights": 1.0}, TypeError, False),
        ({"weights": torch.ones(3, device=META)}, ValueError, False),
    ],
    ids=str,
)
def test_invalid_labels_and_weights_are_errors(which, changes, error, reads_values, monkeypatch):
    name = next(iter(changes)).removesuffix("s")
    with pytest.raises(error, match=name):
        call(which, **changes)
    if not reads_values:
        monkeypatch.setattr(targets, "values_are_hidden", lambda *_: True)
        with pytest.raises(error, match=name):
            call(which, **changes)


@pytest.mark.parametrize("which", ["logits", "hidden"])
@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"reduction": "sum"}, 3),
        ({"reduction": "none"}, 3),
        # Otherwise the loss would silently be zero.
        ({}, -3),
        ({}, NAN),
        ({}, torch.tensor(-3)),
    ],
    ids=str,
)
def test_an_invalid_count_is_an_error(which, options, count):
    with pytest.raises(ValueError, match="count"):
        call(which, options, count=count)


@pytest.mark.parametrize("which", ["logits", "hidden"])
def test_shifting_labels_without_a_sequence_is_an_error(which):
    one = {"logits": torch.zeros(VOCAB)} if which == "logits" else {"hidden_states": torch.zeros(HIDDEN)}
    with pytest.raises(ValueError, match="shift"):
        call(which, {"shift": True}, labels=torch.tensor(9), **one)


@pytest.mark.parametrize(
    "other",
    [
        {"shift": True},
        {"ignore_index": 3},
        {"criterion": "crps"},
        {"criterion": partial(number_level, decimals=True)},
        {"vocabulary": NumberVocabulary.from_mapping({9: 1.0, 4: 3.0}, VOCAB)},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_record_of_another_loss_is_an_error(other):
    labels = torch.tensor([[9, 4, 3]])
    options = {"vocabulary": NUMBERS, "criterion": number_level}
    loss_fn, twin = (NTLCrossEntropyLoss(**options) for _ in range(2))
    another = NTLCrossEntropyLoss(**options | other)
    record = pickle.loads(pickle.dumps(loss_fn)).prepare(labels).map(torch.clone)
    assert_close(twin(torch.zeros(1, 3, VOCAB), record), loss_fn(torch.zeros(1, 3, VOCAB), labels))
    with pytest.raises(ValueError, match="prepared"):
        another(torch.zeros(1, 3, VOCAB), record)
    with pytest.raises(ValueError, match="prepared"):
        another.from_hidden(torch.zeros(1, 3, HIDDEN), torch.zeros(VOCAB, HIDDEN), record)


def test_cross_entropy_alone_takes_the_record_of_a_loss_that_shifts_as_it_does():
    logits, labels = torch.zeros(1, 3, VOCAB), torch.tensor([[9, 4, 3]])
    record = NTLCrossEntropyLoss(NUMBERS, number_level, shift=True).prepare(labels)
    plain = NTLCrossEntropyLoss(NUMBERS, None, shift=True)
    assert_close(plain(logits, record), plain(logits, labels))
    with pytest.raises(ValueError, match="prepared"):
        NTLCrossEntropyLoss(NUMBERS, None)(logits, record)


def reads_all(probs, values, target, digits, target_probs=None, number_sigma=None):
    return (probs * values).sum(-1)


def test_a_record_is_moved_split_and_packed_as_one():
    soft = SoftTargets(torch.full((2, 3, 1), 9), torch.ones(2, 3, 1))
    loss_fn, halves = NTLCrossEntropyLoss(NUMBERS, reads_all, shift=True), torch.full((2, 3), 0.5)
    labels = torch.full((2, 3), 9)
    record = loss_fn.prepare(labels, weights=halves, number_weights=halves, sigma=halves, soft=soft)
    part = record.map(lambda column: column[:1])
    assert [column.shape[0] for column in (*part[:4], *part.soft, part.numbers)] == [1] * 7
    moved = record.to("meta")
    assert {column.device.type for column in (*moved[:4], *moved.soft, moved.numbers)} == {"meta"}
    again = PreparedLabels.unpack(record.pack(), loss_fn.term.reader)
    columns = zip(
        (*again[:4], *again.soft, again.numbers), (*record[:4], *record.soft, record.numbers), strict=True
    )
    assert all(torch.equal(found, expected.to(found)) for found, expected in columns)
    bare = PreparedLabels.unpack(NTLCrossEntropyLoss(NUMBERS).prepare(labels).pack(), LabelReader(NUMBERS))
    assert bare.weights.unique().tolist() == bare.number_weights.unique().tolist() == [1.0]
    assert bare.soft is bare.sigma is bare.numbers is None


# --- logits, hidden states, heads -----------------------------------------------------------------


@pytest.mark.parametrize("which", OF_LOGITS)
@pytest.mark.parametrize(
    ("logits", "error"),
    [
        (torch.zeros(3, VOCAB + 1), ValueError),
        (torch.tensor(0.0), ValueError),
        (torch.zeros(3, VOCAB).long(), TypeError),
        (torch.zeros(3, VOCAB).cfloat(), TypeError),
        (torch.zeros(3, VOCAB).to(torch.float8_e4m3fn), TypeError),
        ([[0.0] * VOCAB] * 3, TypeError),
        (None, TypeError),
    ],
    ids=["width", "scalar", "ints", "complex", "float8", "list", "None"],
)
def test_invalid_logits_are_errors(which, logits, error):
    with pytest.raises(error, match="logits"):
        call(which, logits=logits)


# PyTorch's own error is enough if it names both dtypes or devices.
@pytest.mark.parametrize(
    ("name", "given", "error"),
    [
        ("hidden_states", torch.zeros(3, 7), ValueError),
        ("hidden_states", torch.zeros(3, 6).long(), TypeError),
        ("hidden_states", torch.zeros(3, 6).to(torch.float8_e5m2), TypeError),
        ("hidden_states", [[0.0] * 6] * 3, TypeError),
        ("hidden_states", torch.tensor(0.0), ValueError),
        ("lm_head_weight", torch.zeros(22, 6), ValueError),
        ("lm_head_weight", torch.zeros(6, 23), ValueError),
        ("lm_head_weight", torch.zeros(1, 23, 6), ValueError),
        ("lm_head_weight", torch.nn.Linear(6, 23), TypeError),
        ("lm_head_weight", None, TypeError),
        ("lm_head_weight", torch.zeros(23, 6).bfloat16(), TypeError),
        ("bias", torch.zeros(22), ValueError),
        ("bias", torch.zeros(23, 1), ValueError),
        ("bias", True, TypeError),
        ("bias", torch.zeros(23).bfloat16(), TypeError),
        *(("chunk_size", size, ValueError) for size in (0, -4, 2.5, "64")),
        *((name, x, ValueError) for name in ("softcap", "logit_scale") for x in (0.0, -30.0, INF, NAN)),
    ],
)
def test_an_invalid_head_is_an_error(name, given, error):
    with pytest.raises(error, match=name):
        call("hidden", **{name: given})
