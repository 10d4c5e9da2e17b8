"""The loss as weighted tokens, and from log-probabilities of a few: what a training API takes and returns."""

import functools
import math
from functools import partial

import pytest
import torch
from test_soft_labels import FORMS, LEVELS, random_logits, with_gradient
from tolerances import assert_close

from ntloss import (
    HLGauss,
    NTLCrossEntropyLoss,
    NumberVocabulary,
    SoftTargets,
    dist2,
    gaussian_smoothing,
    soft_labels_of,
)
from ntloss.criteria import CRITERIA, cross_entropy, facts, gaussian

DIGITS = NumberVocabulary.from_mapping({**{d: d for d in range(10)}, 10: "."}, vocab_size=13)
ROWS = torch.tensor([[3, 9, 11, 0, 10, 3, 5], [-100, -100, 1, 2, 3, 12, -100]])
WEIGHTS = torch.tensor([[1.0, 0.5, 2.0, 1.0, 1.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0, 0.3, 1.0, 1.0]])
SHARES = torch.tensor([[1.0, 1.0, 1.0, 0.0, 1.0, 0.25, 0.25], [1.0, 1.0, 0.5, 0.5, 0.5, 1.0, 1.0]])


@facts("wider first digits", fixed_target=True)
def own(vocab_log_probs, values, target, digits_after):
    """Cross-entropy with a wider target for the first digits, weighted by their place."""
    return cross_entropy(gaussian(values, 2.0)[target], vocab_log_probs) * 1.2**digits_after


FIXED = {
    "hl_gauss": HLGauss(2.0),
    "relative": HLGauss(0.5, relative=0.1),
    "gaussian": gaussian_smoothing,
    "own": own,
}
OPTIONS = [
    {},
    {"mode": "add", "weight": 0.3},
    {"mode": "replace", "weight": 0.7},
    {"reduction": "sum"},
    {"reduction": "none"},
    {"label_smoothing": 0.1, "mode": "add"},
    {"weight": torch.tensor(0.4)},
    {"shift": True},
]


def weighted_log_probs(targets, logits):
    """What the API computes, for each position."""
    log_probs = logits.log_softmax(-1).gather(-1, targets.token_ids)
    return torch.where(targets.weights != 0, -targets.weights * log_probs, 0).sum(-1)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("weighted", [False, True])
def test_weighted_tokens_add_up_to_the_loss(name, options, weighted):
    logits = random_logits(2, 7, 13)
    loss_fn = NTLCrossEntropyLoss(DIGITS, FIXED[name], **options)
    labels = loss_fn.prepare(ROWS, weights=WEIGHTS, number_weights=SHARES) if weighted else ROWS
    found = weighted_log_probs(loss_fn.targets(labels), logits)
    found = found if options.get("reduction") == "none" else found.sum()
    expected = with_gradient(loss_fn(logits, labels), logits)
    assert_close(with_gradient(found, logits), expected, 1e-9)


def test_they_are_few_and_in_the_order_of_their_weights():
    loss_fn = NTLCrossEntropyLoss(DIGITS, HLGauss(0.2), reduction="none")
    targets = loss_fn.targets(torch.tensor([[11, 4, -100]]))
    assert targets.token_ids[0, :, 0].tolist() == [11, 4, 0]
    assert targets.token_ids.shape[-1] <= 10
    assert (targets.weights.diff(dim=-1) <= 0).all()
    assert_close(targets.weights.sum(-1), torch.tensor([[1.0, 1.0, 0.0]]).double())
    assert NTLCrossEntropyLoss(DIGITS, HLGauss(0.0)).targets(torch.tensor([[11, 4]])).token_ids.shape[-1] == 1
    assert loss_fn.targets(torch.full((1, 0), 3)).token_ids.shape == (1, 0, 1)


def test_dist2_has_its_entropy_and_the_probability_of_numbers_beside_it():
    logits, labels = random_logits(1, 9), torch.tensor([5])
    loss_fn = NTLCrossEntropyLoss(LEVELS, partial(dist2, tau=2.0), 0.3)
    q = torch.softmax(-((torch.arange(5.0) - 2.0).double() ** 2) / 2.0, -1)
    further = -(q * q.log()).sum() - logits.softmax(-1)[0, 3:8].sum().log()
    found = weighted_log_probs(loss_fn.targets(labels), logits).sum()
    assert_close(found, loss_fn(logits, labels) + 0.3 * further)


def test_soft_labels_and_widths_are_part_of_the_targets():
    logits = random_logits(1, 9)
    soft = soft_labels_of([[3, 3, 5]], LEVELS, dtype=torch.float64)
    loss_fn = NTLCrossEntropyLoss(LEVELS, "gaussian_smoothing", 0.5, mode="add")
    found = weighted_log_probs(loss_fn.targets(loss_fn.prepare(torch.tensor([5]), soft=soft)), logits).sum()
    assert_close(found, loss_fn(logits, loss_fn.prepare(torch.tensor([5]), soft=soft)))
    logits, widths = random_logits(2, 7, 13), torch.full((2, 7), 0.7).double()
    loss_fn = NTLCrossEntropyLoss(DIGITS, HLGauss(3.0))
    found = weighted_log_probs(loss_fn.targets(loss_fn.prepare(ROWS, sigma=widths)), logits).sum()
    assert_close(found, loss_fn(logits, loss_fn.prepare(ROWS, sigma=widths)))


@pytest.mark.parametrize(("label", "like", "others"), [(4, {3, 4, 5}, [10, 11]), (10, {10, 3, 5}, [4, 7])])
def test_a_value_of_several_tokens_has_its_weight_on_the_one_written_like_the_label(label, like, others):
    loss_fn = NTLCrossEntropyLoss(FORMS, {"name": "gaussian_smoothing", "sigma": 0.5}, reduction="sum")
    targets, logits = loss_fn.targets(torch.tensor([label])), random_logits(1, 16).detach()
    pairs = zip(targets.token_ids[0].tolist(), targets.weights[0].tolist(), strict=True)
    assert {token for token, weight in pairs if weight > 0.1} == like  # " 3" and " 5" are no tokens
    logits[:, others] = -math.inf  # the model writes no others
    assert_close(weighted_log_probs(targets, logits).sum(), loss_fn(logits, torch.tensor([label])))


@pytest.mark.parametrize("criterion", ["ntl_was", "crps", "del_loss", "raft", "ntil", "smmd"])
def test_a_criterion_without_a_fixed_target_names_the_other_way(criterion):
    with pytest.raises(ValueError, match="from_log_probs"):
        NTLCrossEntropyLoss(DIGITS, criterion).targets(ROWS)


def focal(vocab_log_probs, values, target):
    """Focal loss, whose weights depend on the probabilities."""
    return cross_entropy(gaussian(values, 1.0)[target], vocab_log_probs).square()


@pytest.mark.parametrize("criterion", [focal, functools.wraps(gaussian_smoothing)(focal)])
def test_an_own_criterion_says_whether_it_is_a_cross_entropy(criterion):
    with pytest.raises(ValueError, match="fixed target"):
        NTLCrossEntropyLoss(DIGITS, criterion).targets(ROWS)


@pytest.mark.parametrize(
    "options", [{}, {"mode": "replace"}, {"reduction": "none"}, {"shift": True}], ids=str
)
@pytest.mark.parametrize("name", [name for name in CRITERIA if name not in ("del_loss", "hl_gauss")])
def test_log_probs_of_the_candidates_are_enough_for_the_loss(name, options):
    vocabulary = FORMS if name not in ("ntil", "number_level") else DIGITS
    logits = random_logits(2, 7, vocabulary.vocab_size)
    loss_fn = NTLCrossEntropyLoss(vocabulary, name, **options)
    log_probs = logits.log_softmax(-1).gather(-1, loss_fn.candidates(ROWS))
    found = loss_fn.from_log_probs(log_probs, loss_fn.prepare(ROWS, weights=WEIGHTS))
    expected = with_gradient(loss_fn(logits, loss_fn.prepare(ROWS, weights=WEIGHTS)), logits)
    assert_close(with_gradient(found, logits), expected, 1e-9)


def test_whole_numbers_and_soft_labels_too():
    logits, loss_fn = random_logits(2, 7, 13), NTLCrossEntropyLoss(DIGITS, HLGauss(2.0))
    log_probs = logits.log_softmax(-1).gather(-1, loss_fn.candidates(ROWS))
    assert_close(loss_fn.from_log_probs(log_probs, ROWS), loss_fn(logits, ROWS))
    logits, labels = random_logits(1, 9), torch.tensor([4])
    soft = SoftTargets(torch.tensor([[4, 6]]), torch.tensor([[0.5, 0.5]]))
    loss_fn = NTLCrossEntropyLoss(LEVELS, "crps")
    log_probs = logits.log_softmax(-1).gather(-1, loss_fn.candidates(labels))
    found = loss_fn.from_log_probs(log_probs, loss_fn.prepare(labels, soft=soft))
    assert_close(found, loss_fn(logits, loss_fn.prepare(labels, soft=soft)))


def test_impossible_tokens_give_no_nan():
    loss_fn, labels = NTLCrossEntropyLoss(LEVELS, "ntl_was"), torch.tensor([4])
    log_probs = torch.tensor([[-math.inf, -0.1, -3.0, -math.inf, -5.0]], requires_grad=True)
    loss_fn.from_log_probs(log_probs, labels).backward()
    assert log_probs.grad.isfinite().all()


@pytest.mark.parametrize(
    ("options", "shape", "said"),
    [
        ({"criterion": "del_loss"}, (1, 2, 10), "del_loss"),
        ({"label_smoothing": 0.1}, (1, 2, 10), "label_smoothing"),
        ({}, (1, 2, 13), "candidates"),
        ({}, (2, 10), "candidates"),
    ],
)
def test_what_log_probs_do_not_tell_is_an_error(options, shape, said):
    loss_fn = NTLCrossEntropyLoss(DIGITS, **{"criterion": "ntl_was", **options})
    with pytest.raises(ValueError, match=said):
        loss_fn.from_log_probs(torch.zeros(shape), torch.tensor([[4, 11]]))
