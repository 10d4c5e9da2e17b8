"""`options_loss`: the loss of `NTLCrossEntropyLoss` on a vocabulary of the options, ragged, soft, by path."""

import math

import pytest
import torch
from test_soft_labels import random_logits, with_gradient
from tolerances import TWO_PATHS, approx, assert_close

from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary, options_loss
from ntloss.criteria import CRITERIA
from ntloss.criteria.signature import reads_of

VALUES = (-1.0, 0.0, 2.0, 3.5)
TOKENS = [name for name, each in CRITERIA.items() if name not in ("hl_gauss", "number_level", "ntil")]
SOFT = [name for name in TOKENS if "target_probs" in reads_of(CRITERIA[name])]


def as_vocabulary_loss(values, criterion, weight=1.0):
    vocabulary = NumberVocabulary.from_mapping(dict(enumerate(values)), vocab_size=len(values))
    return NTLCrossEntropyLoss(vocabulary, criterion, weight, reduction="none")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", TOKENS)
def test_a_question_has_the_loss_of_a_vocabulary_of_its_options(name, dtype):
    logits, target = random_logits(6, 4).detach().to(dtype).requires_grad_(), torch.tensor([0, 1, 2, 3, 3, 1])
    options = {"values": VALUES, "criterion": name, "weight": 0.3, "reduction": "none"}
    found = with_gradient(options_loss(logits, target, **options), logits)
    expected = with_gradient(as_vocabulary_loss(VALUES, name, 0.3)(logits, target), logits)
    assert_close(found, expected)


@pytest.mark.parametrize("name", TOKENS)
def test_questions_with_fewer_options_have_the_loss_of_the_options_that_they_have(name):
    if name in ("smmd", "ntl_was"):
        name = {"name": name, "squash": 3.0}  # depends on all distances
    mask = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1], [1, 1, 0, 1], [0, 1, 1, 1]]).bool()
    logits, target = random_logits(4, 4), torch.tensor([2, 3, 1, 1])
    options = {"values": VALUES, "criterion": name, "reduction": "none"}
    found = with_gradient(options_loss(logits, target, mask=mask, **options), logits)
    rows = []
    for row, has_option in enumerate(mask):
        loss_fn = as_vocabulary_loss([v for v, has in zip(VALUES, has_option, strict=True) if has], name)
        index = has_option[: target[row]].sum().reshape(1)
        rows.append(loss_fn(logits[row : row + 1, has_option], index))
    assert_close(found, with_gradient(torch.cat(rows), logits))


def test_each_question_may_have_values_of_its_own_in_any_order():
    values = torch.tensor([[3.0, 1.0, 2.0], [0.0, 10.0, -5.0]], dtype=torch.float64)
    logits, target = random_logits(2, 3), torch.tensor([1, 2])
    found = with_gradient(
        options_loss(logits, target, values=values, criterion="dist2", reduction="none"), logits
    )
    rows = [
        as_vocabulary_loss(own.tolist(), "dist2")(logits[row : row + 1], target[row : row + 1])
        for row, own in enumerate(values)
    ]
    assert_close(found, with_gradient(torch.cat(rows), logits))


@pytest.mark.parametrize("name", SOFT)
@pytest.mark.parametrize("masked", [False, True])
def test_a_soft_target_that_is_one_option_is_that_target(name, masked):
    logits, target = random_logits(3, 4), torch.tensor([1, 3, 2])
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 1, 1], [1, 1, 1, 1]]).bool() if masked else None
    soft = torch.nn.functional.one_hot(target, 4).double()
    options = {"values": VALUES, "criterion": name, "reduction": "none", "mask": mask}
    found = with_gradient(options_loss(logits, None, soft=soft, **options), logits)
    assert_close(found, with_gradient(options_loss(logits, target, **options), logits))


def test_reductions_dimensions_and_empty_batches():
    logits, target = random_logits(2, 3, 4), torch.tensor([[0, 1, 2], [3, 2, 1]])
    each = options_loss(logits, target, reduction="none")
    assert each.shape == target.shape
    assert_close(options_loss(logits, target), each.mean())
    assert_close(options_loss(logits, target, reduction="sum"), each.sum())
    for mask in (None, torch.ones(0, 4, dtype=torch.bool)):
        nothing = random_logits(0, 4)
        loss = options_loss(nothing, torch.zeros(0, dtype=torch.int64), mask=mask)
        loss.backward()
        assert loss.item() == 0


def test_logits_outside_of_the_mask_are_not_read():
    mask = torch.tensor([[True, True, False]])
    logits = torch.tensor([[0.5, -0.5, math.nan]], requires_grad=True)
    loss = options_loss(logits, torch.tensor([0]), mask=mask)
    loss.backward()
    assert loss.item() == approx(options_loss(torch.tensor([[0.5, -0.5]]), torch.tensor([0])).item())
    assert_close(logits.grad[0, 2], torch.tensor(0.0))


def test_impossible_options_give_no_nan():
    logits = torch.tensor([[0.0, -math.inf, 1.0]], requires_grad=True)
    for name in TOKENS:
        loss = options_loss(logits, torch.tensor([0]), criterion=name)
        (gradient,) = torch.autograd.grad(loss, logits)
        assert not loss.isnan(), name
        assert name in ("dist2", "gaussian_smoothing") or gradient.isfinite().all(), name
    assert options_loss(logits, torch.tensor([1]), weight=0.0).isinf()


def test_it_compiles_to_one_graph():
    logits, target = random_logits(3, 4).detach().float().requires_grad_(), torch.tensor([0, 1, 3])
    compiled = torch.compile(options_loss, fullgraph=True, backend="eager")
    found = with_gradient(compiled(logits, target), logits)
    assert_close(found, with_gradient(options_loss(logits, target), logits), TWO_PATHS)


LOGITS, TARGET = torch.zeros(2, 3), torch.tensor([0, 1])
SOFT_TARGET = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"logits": torch.zeros(2, 3, dtype=torch.int64)}, TypeError, "logits"),
        ({"logits": torch.zeros(2, 0)}, ValueError, "option"),
        ({"target": torch.tensor([0.0, 1.0])}, TypeError, "target"),
        ({"target": torch.tensor([0, 3])}, ValueError, "target 3"),
        ({"target": torch.tensor([-1, 1])}, ValueError, "target -1"),
        ({"target": torch.tensor([[0, 1]])}, ValueError, "target"),
        ({"target": None}, ValueError, "target"),
        ({"soft": SOFT_TARGET}, ValueError, "soft"),
        ({"target": None, "soft": SOFT_TARGET[:, :2]}, ValueError, "soft"),
        ({"target": None, "soft": SOFT_TARGET * 2}, ValueError, "2"),
        ({"target": None, "soft": SOFT_TARGET - 0.5}, ValueError, "-0.5"),
        ({"target": None, "soft": SOFT_TARGET, "criterion": "ntl_mse"}, ValueError, "target_probs"),
        ({"target": None, "soft": SOFT_TARGET, "criterion": {"name": "ntl_was", "squash": 2.0}}, ValueError,
         "squash"),
        ({"mask": torch.ones(2, 3)}, TypeError, "mask"),
        ({"mask": torch.tensor([[True, True, True], [False, False, False]])}, ValueError, "question 1"),
        ({"mask": torch.tensor([[True, True, True], [True, False, True]])}, ValueError, "target 1"),
        ({"target": None, "soft": SOFT_TARGET, "mask": torch.tensor([[True] * 3, [True, True, False]])},
         ValueError, "question 1"),
        ({"values": [0, 1]}, ValueError, "values"),
        ({"values": [0, 1, 1]}, ValueError, "values"),
        ({"values": [0, 1, math.inf]}, ValueError, "values"),
        ({"criterion": HLGauss(1.0)}, ValueError, "HLGauss"),
        ({"criterion": "ntil"}, ValueError, "numbers"),
        ({"criterion": lambda probs: probs.sum()}, ValueError, "shape"),
        ({"weight": -1.0}, ValueError, "weight"),
        ({"reduction": "avg"}, ValueError, "reduction"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_an_error(change, error, said):
    given = {"logits": LOGITS, "target": TARGET} | change
    with pytest.raises(error, match=said):
        options_loss(given.pop("logits"), given.pop("target"), **given)
