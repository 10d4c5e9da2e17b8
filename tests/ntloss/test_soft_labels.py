"""Labels that are distributions, and numbers with a standard deviation of their own, in the loss."""

import math

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from tolerances import TWO_PATHS, approx, assert_close

from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary, SoftTargets, soft_labels_of
from ntloss.criteria import CRITERIA, cramer_distance, kl_divergence, wasserstein_distance
from ntloss.criteria.signature import reads_of

TEXT, SPACED_FOUR, SPACED_SEVEN = 12, 10, 11
# Two values have two tokens each.
FORMS = NumberVocabulary.from_mapping(
    {**{d: str(d) for d in range(10)}, SPACED_FOUR: " 4", SPACED_SEVEN: " 7"}, vocab_size=16
)
LEVELS = NumberVocabulary.from_mapping({token: token - 2.0 for token in range(3, 8)}, vocab_size=9)
LABELS = torch.tensor([[3, TEXT, SPACED_FOUR, -100], [7, 4, 13, 0]])
SOFT = [name for name, each in CRITERIA.items() if name != "hl_gauss" and "target_probs" in reads_of(each)]


def random_logits(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def one_hot_of(labels, dtype=torch.float64):
    """Soft labels that are the labels, in the second of three places; none at ignored labels and text."""
    is_number = (labels >= 0) & (labels < TEXT)
    ids = labels.clamp(min=0).unsqueeze(-1)
    return SoftTargets(
        torch.cat([torch.full_like(ids, 9), ids, torch.full_like(ids, 15)], -1),
        torch.tensor([0.0, 1.0, 0.0], dtype=dtype) * is_number.unsqueeze(-1),
    )


def of_soft(logits, labels, soft, *arguments, **options):
    loss_fn = NTLCrossEntropyLoss(LEVELS, *arguments, **options)
    return loss_fn(logits, loss_fn.prepare(labels, soft=soft))


def with_gradient(loss, logits):
    return loss, torch.autograd.grad(loss.sum(), logits)[0]


@pytest.mark.parametrize(
    "options", [{}, {"label_smoothing": 0.1}, {"mode": "replace"}, {"reduction": "none"}]
)
@pytest.mark.parametrize("name", SOFT)
def test_a_soft_label_that_is_one_token_is_that_label(name, options):
    logits, soft = random_logits(2, 4, 16), one_hot_of(LABELS)
    loss_fn = NTLCrossEntropyLoss(FORMS, name, **options)
    expected = with_gradient(loss_fn(logits, LABELS), logits)
    assert_close(with_gradient(loss_fn(logits, loss_fn.prepare(LABELS, soft=soft)), logits), expected, 1e-12)
    hidden, head = random_logits(2, 4, 5, seed=1), random_logits(16, 5, seed=2)
    of_hidden = loss_fn.from_hidden(hidden, head, loss_fn.prepare(LABELS, soft=soft), chunk_size=3)
    of_labels = loss_fn.from_hidden(hidden, head, LABELS)
    assert_close(with_gradient(of_hidden, head), with_gradient(of_labels, head), 1e-12)


def test_cross_entropy_is_that_of_the_distribution():
    logits, labels = random_logits(2, 9), torch.tensor([6, 8])
    soft = SoftTargets(
        torch.tensor([[6, 7, 0], [0, 0, 0]]), torch.tensor([[0.25, 0.75, 0.0], [0.0, 0.0, 0.0]])
    )
    loss = of_soft(logits, labels, soft, "crps", 0.0, reduction="sum")
    q = torch.zeros(2, 9, dtype=torch.float64)
    q[0, 6], q[0, 7], q[1, 8] = 0.25, 0.75, 1.0
    expected = F.cross_entropy(logits, q, reduction="sum")
    assert_close(with_gradient(loss, logits), with_gradient(expected, logits))


def test_criteria_compare_the_distributions_over_values():
    logits, soft = (
        random_logits(1, 16),
        SoftTargets(torch.tensor([[SPACED_FOUR, 4, 7]]), torch.tensor([[0.25, 0.25, 0.5]])),
    )
    found = {}
    for name in ("crps", "ntl_was", "dist2"):
        loss_fn = NTLCrossEntropyLoss(FORMS, name)
        found[name] = loss_fn.terms(logits, loss_fn.prepare(torch.tensor([7]), soft=soft)).ntl
    of_tokens = logits[:, :TEXT].softmax(-1)
    probs = of_tokens[:, :10].clone()
    probs[:, 4] += of_tokens[:, SPACED_FOUR]
    probs[:, 7] += of_tokens[:, SPACED_SEVEN]
    q, values = torch.zeros(1, 10, dtype=torch.float64), torch.arange(10.0, dtype=torch.float64)
    q[0, 4] = q[0, 7] = 0.5
    mixed = q @ torch.softmax(-((values - values.unsqueeze(-1)) ** 2), -1)
    assert_close(found["crps"], cramer_distance(q, probs, values).squeeze())
    assert_close(found["ntl_was"], wasserstein_distance(q, probs, values).squeeze())
    assert_close(found["dist2"], kl_divergence(mixed, probs.log()).squeeze())


@pytest.mark.parametrize("name", SOFT)
def test_gradients_are_right(name):
    labels = torch.tensor([4, 3, 8])
    soft = SoftTargets(
        torch.tensor([[3, 4], [3, 7], [0, 0]]), torch.tensor([[0.5, 0.5], [0.1, 0.9], [0, 0]]).double()
    )
    loss_fn = NTLCrossEntropyLoss(LEVELS, name)
    assert torch.autograd.gradcheck(
        lambda z: loss_fn(z, loss_fn.prepare(labels, soft=soft)), random_logits(3, 9), nondet_tol=1e-10
    )


@pytest.mark.parametrize("mode", ["add", "replace"])
def test_labels_are_shifted_with_their_distributions(mode):
    logits, soft = random_logits(2, 4, 16), one_hot_of(LABELS)
    soft.weights[0, 0] = torch.tensor([0.5, 0.5, 0.0])  # of the first label, which is not predicted
    soft.weights[0, 2] = torch.tensor([0.3, 0.7, 0.0])
    shifted = NTLCrossEntropyLoss(FORMS, "gaussian_smoothing", mode=mode, shift=True)
    plain = NTLCrossEntropyLoss(FORMS, "gaussian_smoothing", mode=mode)
    cut = SoftTargets(soft.token_ids[:, 1:], soft.weights[:, 1:])
    expected = plain(logits[:, :-1], plain.prepare(LABELS[:, 1:], soft=cut))
    assert_close(shifted(logits, shifted.prepare(LABELS, soft=soft)), expected)


def test_the_label_itself_may_have_no_weight_and_the_probability_0():
    logits = random_logits(1, 9).detach()
    logits[0, 5] = -math.inf  # the label, between those that were rated
    logits.requires_grad_()
    soft = SoftTargets(torch.tensor([[4, 6]]), torch.tensor([[0.5, 0.5]]))
    loss = of_soft(logits, torch.tensor([5]), soft, "crps", 0.0)
    assert_close(loss, -logits.log_softmax(-1)[0, [4, 6]].mean())
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("impossible", [[4], [6], [4, 6]])
def test_a_rating_of_probability_0_has_infinite_cross_entropy(impossible):
    logits = random_logits(1, 9).detach()
    logits[0, impossible] = -math.inf
    logits.requires_grad_()
    soft = SoftTargets(torch.tensor([[4, 6]]), torch.tensor([[0.5, 0.5]]))
    loss = of_soft(logits, torch.tensor([4]), soft, "crps")
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.item() == math.inf
    assert not gradient.isnan().any()


def own(log_probs, target_probs):
    return kl_divergence(target_probs, log_probs)


def test_an_own_criterion_that_needs_a_distribution_always_gets_one():
    logits, labels = random_logits(2, 4, 16), LABELS
    loss_fn = NTLCrossEntropyLoss(FORMS, own)
    expected = NTLCrossEntropyLoss(FORMS, {"name": "dist2", "tau": 1e-3})(logits, labels)
    assert_close(loss_fn(logits, labels), expected)
    assert_close(loss_fn(logits, loss_fn.prepare(labels, soft=one_hot_of(labels))), expected)


def test_it_compiles_to_one_graph():
    logits, soft = (
        random_logits(2, 4, 16).detach().float().requires_grad_(),
        one_hot_of(LABELS, torch.float32),
    )
    soft.weights[0, 0] = torch.tensor([0.5, 0.5, 0.0])
    loss_fn = NTLCrossEntropyLoss(FORMS, "crps")
    compiled = torch.compile(loss_fn, fullgraph=True, backend="aot_eager")
    found = with_gradient(compiled(logits, loss_fn.prepare(LABELS, soft=soft)), logits)
    assert_close(found, with_gradient(loss_fn(logits, loss_fn.prepare(LABELS, soft=soft)), logits), TWO_PATHS)


def test_ratings_become_the_shares_of_raters():
    soft = soft_labels_of([[4, 4, 5], [1], [2, 3, 3, 2]], LEVELS, dtype=torch.float64)
    assert soft.token_ids.tolist() == [[6, 7], [3, 0], [4, 5]]
    assert_close(soft.weights, torch.tensor([[2 / 3, 1 / 3], [1.0, 0.0], [0.5, 0.5]]).double(), 1e-7)
    assert soft_labels_of([], LEVELS).token_ids.shape == (0, 1)
    counts = soft_labels_of([{4: 2, 5: 1}, {1: 3}, {2: 1, 3: 1, 4: 0}], LEVELS, dtype=torch.float64)
    assert (counts.token_ids.tolist(), counts.weights.tolist()) == (
        soft.token_ids.tolist(),
        soft.weights.tolist(),
    )
    raters = pd.DataFrame({"one": [4, 1], "two": [5, 1]})  # a column each
    assert soft_labels_of(raters, LEVELS).pairs() == soft_labels_of([[4, 5], [1, 1]], LEVELS).pairs()


@pytest.mark.parametrize(
    ("ratings", "vocabulary", "said"),
    [
        ([[4], []], LEVELS, "item 1"),
        ([{4: 0}], LEVELS, "item 0"),
        ([{4: -1, 5: 2}], LEVELS, "item 0"),
        ([{4: math.inf, 5: 2}], LEVELS, "item 0"),
        ([{4: math.nan, 5: 2}], LEVELS, "item 0"),
        ([[6]], LEVELS, "6"),
        ([[4]], FORMS, "2 tokens"),
        ([[2.5]], LEVELS, "2.5"),
    ],
)
def test_ratings_are_values_of_one_token(ratings, vocabulary, said):
    with pytest.raises(ValueError, match=said):
        soft_labels_of(ratings, vocabulary)


IDS, WEIGHTS = torch.tensor([[4, 6], [8, 0]]), torch.tensor([[0.5, 0.5], [1.0, 0.0]])


@pytest.mark.parametrize(
    ("soft", "error", "said"),
    [
        (torch.zeros(2, 2), TypeError, "soft"),
        (SoftTargets(IDS.float(), WEIGHTS), TypeError, "soft"),
        (SoftTargets(IDS, IDS), TypeError, "soft"),
        (SoftTargets(IDS[:1], WEIGHTS), ValueError, "soft"),
        (SoftTargets(IDS[0], WEIGHTS[0]), ValueError, "soft"),
        (SoftTargets(IDS + 4, WEIGHTS), ValueError, "10"),
        (SoftTargets(IDS - 5, WEIGHTS), ValueError, "-1"),
        (SoftTargets(IDS, WEIGHTS * 1.1), ValueError, "1.1"),
        (SoftTargets(IDS, WEIGHTS - 0.5), ValueError, "-0.5"),
        (SoftTargets(IDS, WEIGHTS * math.nan), ValueError, "nan"),
        (SoftTargets(torch.tensor([[4, 8], [8, 0]]), WEIGHTS), ValueError, "token 8"),
        (SoftTargets(torch.tensor([[4, 6], [7, 0]]), WEIGHTS), ValueError, "token 7"),
    ],
)  # fmt: skip
def test_soft_labels_that_do_not_fit_are_an_error(soft, error, said):
    with pytest.raises(error, match=said):
        of_soft(torch.zeros(2, 9), torch.tensor([4, 8]), soft, "crps")


@pytest.mark.parametrize(
    "criterion", ["ntl_mse", "number_level", HLGauss(1.0), {"name": "ntl_was", "squash": 2.0}]
)
def test_a_criterion_that_compares_with_one_value_is_an_error(criterion):
    loss_fn = NTLCrossEntropyLoss(LEVELS, criterion)
    with pytest.raises(ValueError, match="soft"):
        loss_fn(
            torch.zeros(1, 2, 9),
            loss_fn.prepare(torch.tensor([[4, 8]]), soft=SoftTargets(IDS[None], WEIGHTS[None])),
        )


# A width for each number.
DIGITS = NumberVocabulary.from_mapping({**{d: d for d in range(10)}, 10: "."}, vocab_size=13)
ROW = torch.tensor([[3, 9, 11, 0, 10, 3, 5, -100, 7]])  # 39, 0.35, and 7 after an ignored label


def of_width(number_sigma=None, sigma=2.0, **options):
    logits = random_logits(1, 9, 13)
    loss_fn = NTLCrossEntropyLoss(DIGITS, HLGauss(sigma), reduction="none", **options)
    return with_gradient(loss_fn(logits, loss_fn.prepare(ROW, sigma=number_sigma)), logits)


def test_a_number_has_the_standard_deviation_of_its_first_token():
    widths = torch.tensor([[5.0, 99.0, math.nan, 0.1, 99.0, 99.0, 99.0, math.nan, 0.0]], dtype=torch.float64)
    found, gradient = of_width(widths)
    for places, sigma in ((slice(0, 2), 5.0), (slice(3, 7), 0.1), (slice(8, 9), 2.0)):
        expected, of_expected = of_width(sigma=sigma)
        assert_close(found[:, places], expected[:, places], what=str(sigma))
        assert_close(gradient[:, places], of_expected[:, places], what=str(sigma))
    assert abs(found - of_width()[0]).max() > 0.01


def test_a_hidden_path_and_shifted_labels_take_the_same_widths():
    widths = torch.tensor([[5.0, 0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.0, 0.5]])
    hidden, head = random_logits(1, 9, 4), random_logits(13, 4, seed=1)
    loss_fn = NTLCrossEntropyLoss(DIGITS, HLGauss(2.0))
    expected = loss_fn(hidden @ head.T, loss_fn.prepare(ROW, sigma=widths))
    assert_close(loss_fn.from_hidden(hidden, head, loss_fn.prepare(ROW, sigma=widths)), expected)
    shifted = NTLCrossEntropyLoss(DIGITS, HLGauss(2.0), shift=True)
    logits = hidden @ head.T
    one_later = F.pad(ROW, (1, 0), value=11), F.pad(widths, (1, 0))
    found = shifted(F.pad(logits, (0, 0, 0, 1)), shifted.prepare(one_later[0], sigma=one_later[1]))
    assert_close(found, expected)


def test_given_widths_fall_in_proportion_to_the_criterions_own():
    widths = torch.full((1, 9), 3.0)
    criterion = HLGauss((8.0, 2.0))
    loss_fn = NTLCrossEntropyLoss(DIGITS, criterion)
    logits = random_logits(1, 9, 13)
    for progress, width in ((0.0, 3.0), (0.5, 3.0 * 5 / 8), (1.0, 0.75), (0.0, 3.0)):
        loss_fn.anneal(progress)
        expected = NTLCrossEntropyLoss(DIGITS, HLGauss(width))(logits, ROW)
        assert loss_fn(logits, loss_fn.prepare(ROW, sigma=widths)).item() == approx(expected.item())


def test_a_width_takes_the_place_of_a_relative_one():
    relative = NTLCrossEntropyLoss(DIGITS, HLGauss(1.0, relative=0.5))
    logits, widths = random_logits(1, 9, 13), torch.full((1, 9), 3.0)
    expected = NTLCrossEntropyLoss(DIGITS, HLGauss(3.0))(logits, ROW)
    assert_close(relative(logits, relative.prepare(ROW, sigma=widths)), expected)


def by_width(probs, values, target, number_sigma=None):
    return torch.zeros_like(probs[:, 0]) if number_sigma is None else number_sigma.to(probs)


def test_an_own_criterion_may_read_the_width_of_its_number():
    widths = torch.tensor([[5.0, 99.0, 0.0, 0.1, 99.0, 99.0, 99.0, 0.0, 0.0]])
    loss_fn = NTLCrossEntropyLoss(DIGITS, by_width, reduction="none")
    terms = loss_fn.terms(random_logits(1, 9, 13), loss_fn.prepare(ROW, sigma=widths))
    assert_close(terms.ntl, torch.tensor([[5.0, 5.0, 0.0, 0.1, 0.0, 0.1, 0.1, 0.0, 0.0]]).double(), 1e-6)
    assert loss_fn.terms(random_logits(1, 9, 13), ROW).ntl.sum() == 0


@pytest.mark.parametrize(
    ("criterion", "widths", "error", "said"),
    [
        ("ntl_was", torch.ones(1, 9), ValueError, "sigma"),
        (HLGauss(1.0), torch.ones(9), ValueError, "sigma"),
        (HLGauss(1.0), [[1.0] * 9], TypeError, "sigma"),
        (HLGauss(1.0), -torch.ones(1, 9), ValueError, "-1"),
        (HLGauss(1.0), torch.full((1, 9), math.inf), ValueError, "inf"),
    ],
)
def test_widths_that_do_not_fit_are_an_error(criterion, widths, error, said):
    loss_fn = NTLCrossEntropyLoss(DIGITS, criterion)
    with pytest.raises(error, match=said):
        loss_fn.prepare(ROW, sigma=widths)
